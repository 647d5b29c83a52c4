//! Entries of networks that are loaded by file: read, checked and made into tables on a thread of their own, however
//! many they are, while the control thread goes on.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use softdpu_sys::wake::Doorbell;
use softdpu_vpc::spec::{NetworkSpec, Prefix, TableCapacity};
use softdpu_vpc::tables::{Loaded, Loading};
use softdpu_vpc::{Mac, Problem};

use softdpu_link::kept::Kept;
use softdpu_site::{LONGEST_LINE, LoadLine, LoadVia, load_line};

/// So many wrong lines are told of; what follows is not looked at.
const MOST_PROBLEMS: usize = 10;

/// What entries are held against.
pub(super) struct Ground {
    pub networks: Vec<NetworkSpec>,
    /// This node's tunnel end points, as far as they are known.
    pub own: Vec<IpAddr>,
    pub capacity: TableCapacity,
    /// How many routes may come one by one.
    pub room_for_routes: usize,
    /// Guests on other hosts that are not loaded,
    pub others: usize,
    /// routes,
    pub routes: usize,
    /// and hosts that either leads to.
    pub hosts: HashSet<IpAddr>,
    /// ECMP groups, by network and name.
    pub groups: Vec<(String, String)>,
    /// The entries were in force once: that a group has gone since does not keep them out.
    pub is_kept: bool,
    /// What they take the place of.
    pub previous: Option<Arc<Loaded>>,
}

/// What a thread has done.
pub(super) enum Outcome {
    /// A file is loaded.
    File(FromFile),
    /// This is a copy of what was loaded from it, for [changes](softdpu_vpc::tables::Pair).
    Copy(Arc<Loaded>),
}

/// What came of a file.
pub(super) struct FromFile {
    /// The management call that waits for it; None: it was in force before this process began.
    pub asked: Option<u64>,
    /// A [copy](Outcome::Copy) follows what could be loaded.
    pub result: Result<Arc<Loaded>, String>,
    pub took: Duration,
}

/// Loads files, and collects what came of them.
pub(super) struct Loader {
    sender: Sender<Outcome>,
    outcomes: Receiver<Outcome>,
    bell: Arc<Doorbell>,
}

impl Loader {
    pub(super) fn new() -> Result<Loader, Errno> {
        let (sender, outcomes) = channel();
        Ok(Loader { sender, outcomes, bell: Arc::new(Doorbell::new()?) })
    }

    /// Loads `file`, which messages call `name`. Whether there is a thread for it.
    pub(super) fn start(&self, asked: Option<u64>, file: OwnedFd, name: String, ground: Ground) -> bool {
        let (sender, bell) = (self.sender.clone(), Arc::clone(&self.bell));
        let run = move || {
            let began = Instant::now();
            let result = load(file, &name, &ground).map(Arc::new);
            // What was in force before may go, for all that is needed here.
            drop(ground);
            let loaded = result.as_ref().ok().cloned();
            // When the process ends it is not taken.
            let _ = sender.send(Outcome::File(FromFile { asked, result, took: began.elapsed() }));
            bell.ring();
            if let Some(loaded) = loaded {
                let copy = Arc::new(Loaded::clone(&loaded));
                drop(loaded);
                let _ = sender.send(Outcome::Copy(copy));
                bell.ring();
            }
        };
        std::thread::Builder::new().name("load".into()).spawn(run).is_ok()
    }

    /// The next outcome that is here.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.bell.drain();
        self.outcomes.try_recv().ok()
    }

    /// Readable when there is an outcome.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// All entries of a file, or what is wrong with it.
fn load(file: OwnedFd, name: &str, ground: &Ground) -> Result<Loaded, String> {
    let mut file = File::from(file);
    let unreadable = |error| format!("{name} cannot be read: {error}");
    let kept = if ground.is_kept { Some(Kept::read(&file).map_err(unreadable)?) } else { None };
    // The supervisor's descriptor shares the offset.
    std::io::Seek::rewind(&mut file).map_err(unreadable)?;
    read(BufReader::with_capacity(1 << 18, file), name, ground, kept.as_ref())
}

/// The entries of `input`. Where changes of them are kept as well, those in force.
fn read(input: impl BufRead, name: &str, ground: &Ground, kept: Option<&Kept>) -> Result<Loaded, String> {
    let since: String = kept.iter().flat_map(|kept| kept.lines()).collect();
    let mut input = input.take(kept.map_or(u64::MAX, |kept| kept.loaded)).chain(since.as_bytes());
    let groups = ground.groups.iter().map(|(network, group)| (network.as_str(), group.as_str()));
    let loading = Loading::new(&ground.networks, &ground.own, ground.capacity, ground.others);
    let mut loading =
        loading.with_groups(groups).beside(ground.routes, ground.hosts.clone()).after(ground.previous.clone());
    loading = loading.with_room(ground.room_for_routes);
    if ground.is_kept {
        loading = loading.with_unknown_groups();
    }
    let mut problems: Vec<String> = Vec::new();
    // By table, the first line without room; how many are wanted is known at the end.
    let mut full: BTreeMap<&'static str, (u32, Problem)> = BTreeMap::new();
    let (mut bytes, mut consumed) = (Vec::with_capacity(LONGEST_LINE), 0);
    for line in 1u32.. {
        bytes.clear();
        let mut limited = (&mut input).take(LONGEST_LINE as u64 + 1);
        let count = limited.read_until(b'\n', &mut bytes).map_err(|error| format!("{name} cannot be read: {error}"))?;
        if count == 0 {
            break;
        }
        if count > LONGEST_LINE {
            problems.push(format!("{name}:{line}: the line is longer than {LONGEST_LINE} bytes"));
            break;
        }
        consumed += count as u64;
        // Of what was loaded, what is still as it was; then what came since.
        let is_gone = |line: &LoadLine<'_>| kept.is_some_and(|kept| consumed <= kept.loaded && !kept.has(line));
        let problem = match entry(&mut loading, line, &bytes, is_gone) {
            Ok(()) => continue,
            Err(Wrong::Full(table, problem)) => {
                full.entry(table).and_modify(|known| known.1 = problem.clone()).or_insert((line, problem));
                continue;
            }
            Err(Wrong::Line(problem)) => problem,
        };
        problems.push(format!("{name}:{line}: {problem}"));
        if problems.len() == MOST_PROBLEMS {
            problems.push("what follows was not looked at".to_owned());
            break;
        }
    }
    problems.extend(full.values().map(|(line, problem)| format!("{name}:{line}: {problem}")));
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    loading.finish().map_err(|error| format!("{name}:{}: {}", error.line, error.problem))
}

/// What is wrong with a line.
enum Wrong {
    /// There is no room for it in the table of this name.
    Full(&'static str, Problem),
    /// Itself.
    Line(String),
}

impl From<String> for Wrong {
    fn from(problem: String) -> Wrong {
        Wrong::Line(problem)
    }
}

fn entry(
    loading: &mut Loading<'_>,
    line: u32,
    bytes: &[u8],
    is_gone: impl FnOnce(&LoadLine<'_>) -> bool,
) -> Result<(), Wrong> {
    let text = std::str::from_utf8(bytes).map_err(|_| "the line is not text in UTF-8".to_owned())?;
    let said = |problem: Problem| match problem {
        Problem::Full { table, .. } => Wrong::Full(table, problem),
        _ => Wrong::Line(format!("{problem}, in {:?}", text.trim_ascii())),
    };
    match load_line(text)?.filter(|line| !is_gone(line)) {
        None => Ok(()),
        Some(LoadLine::Endpoint { network, address, mac, host }) => {
            loading.endpoint(line, network, address, Mac(mac.0), host).map_err(said)
        }
        Some(LoadLine::Route { network, address, length, via }) => {
            let prefix = Prefix::new(address, length).map_err(|error| error.to_string())?;
            let added = match via {
                LoadVia::Host(host) => loading.route(line, network, prefix, host),
                LoadVia::Ecmp(group) => loading.route_to_group(line, network, prefix, group),
            };
            added.map_err(said)
        }
    }
}

#[cfg(test)]
mod tests {
    use softdpu_vpc::Vni;
    use softdpu_vpc::spec::SubnetSpec;

    use super::*;

    fn ground(endpoints: usize) -> Ground {
        let subnet = SubnetSpec { prefix: "10.0.0.0/8".parse().unwrap(), gateway: "10.0.0.1".parse().unwrap() };
        let network = NetworkSpec::new("acme", Vni::new(1).unwrap(), Mac([2, 0, 0, 0, 0, 1]), vec![subnet]);
        let capacity = TableCapacity { endpoints, routes: 10, hosts: 10 };
        Ground {
            networks: vec![network],
            own: vec!["192.0.2.1".parse().unwrap()],
            capacity,
            room_for_routes: 0,
            others: 0,
            routes: 0,
            hosts: HashSet::new(),
            groups: vec![("acme".into(), "far".into())],
            is_kept: false,
            previous: None,
        }
    }

    fn loaded(text: &str, endpoints: usize) -> Result<Loaded, String> {
        read(text.as_bytes(), "guests.csv", &ground(endpoints), None)
    }

    #[test]
    fn all_entries_of_a_file_are_loaded() {
        let text = "# ours\nendpoint,acme,10.0.0.3,,192.0.2.2\n\nroute,acme,172.16.0.0/12,192.0.2.3\n\
                    route,acme,172.32.0.0/12,ecmp:far\nendpoint,acme,10.0.0.4,02:00:00:00:00:04,192.0.2.2";
        let counts = loaded(text, 10).unwrap().counts();
        assert_eq!((counts.endpoints, counts.routes, counts.hosts), (2, 2, 2));
        let error = loaded("route,acme,172.32.0.0/12,ecmp:near", 10).unwrap_err();
        assert!(error.starts_with("guests.csv:1: the network has no ECMP group near"), "{error}");
        assert_eq!(loaded("", 10).unwrap().counts(), Default::default());
    }

    #[test]
    fn a_group_that_has_gone_does_not_keep_out_what_was_in_force_once() {
        let ground = Ground { is_kept: true, ..ground(10) };
        let text = "route,acme,172.32.0.0/12,ecmp:near\nendpoint,acme,10.0.0.3,,192.0.2.2\n";
        let counts = read(text.as_bytes(), "guests.csv", &ground, None).unwrap().counts();
        assert_eq!((counts.endpoints, counts.routes), (1, 1));
    }

    #[test]
    fn wrong_lines_are_told_with_their_places() {
        let wrong = |text: &str| loaded(text, 3).unwrap_err();
        let text = "endpoint,acme,10.0.0.3,,192.0.2.2\nendpoint,acme,11.0.0.3,,192.0.2.2\nguest\n";
        assert_eq!(
            wrong(text),
            "guests.csv:2: address 11.0.0.3 is in none of the network's subnets, in \
             \"endpoint,acme,11.0.0.3,,192.0.2.2\"\n\
             guests.csv:3: \"guest\" is no kind of entry: expected `endpoint` or `route`"
        );
        let twice = "endpoint,acme,10.0.0.3,,192.0.2.2\nendpoint,acme,10.0.0.3,,192.0.2.3\n";
        assert!(wrong(twice).starts_with("guests.csv:2: address 10.0.0.3 is another's"), "{}", wrong(twice));
        let four: String = (3..7).map(|last| format!("endpoint,acme,10.0.0.{last},,192.0.2.2\n")).collect();
        assert!(wrong(&four).starts_with("guests.csv:4: the table of endpoints is full: it has room for 3, and 4 are"));
        // Once for all, with the number of all.
        let many: String = (3..250).map(|last| format!("endpoint,acme,10.0.0.{last},,192.0.2.2\n")).collect();
        assert_eq!(
            wrong(&many),
            "guests.csv:4: the table of endpoints is full: it has room for 3, and 247 are wanted; set `endpoints` in node.tables for \
             more, or load fewer"
        );
        assert_eq!(wrong(&"x".repeat(600)), "guests.csv:1: the line is longer than 512 bytes");
        assert_eq!(wrong(&"x\n".repeat(50)).lines().count(), MOST_PROBLEMS + 1);
    }
}
