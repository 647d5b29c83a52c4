//! BFD (RFC 5880) between softdpu and FRR's bfdd: a member of an ECMP group whose host falls silent gets no packets
//! within some hundred milliseconds, although its kernel goes on answering ARP.

#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use softdpu_tests::{Context, Daemon, Failure, Host, Lab, Process, Wire, frr_program, skip, wait_until};

const WAIT: Duration = Duration::from_secs(60);
const WIRE: Wire = Wire::ETHERNET;
/// The hosts with bfdd.
const FIRST: u8 = 2;
const SECOND: u8 = 3;

/// softdpu on host 1, with two members that are watched by BFD. FRR waits for thirty of its packets: longer than
/// another data plane takes to start, whatever else the machine does. softdpu waits for three of FRR's.
fn site(host: &Host) -> String {
    format!(
        r#"[node]
dataplane = {{ cores = [0] }}
underlay  = {{ interface = "wire", address = "{address}", bfd = {{ interval = "100 ms", multiplier = 30 }} }}

[[network]]
name = "acme"
vni  = 5001
cidr = "10.0.1.0/24"

[[network.ecmp]]
name   = "gateways"
bfd    = true
member = [{{ host = "{first}" }}, {{ host = "{second}" }}]

[[network.route]]
prefix = "10.0.2.0/24"
ecmp   = "gateways"

[[device]]
name = "port"
tap  = {{ network = "acme", address = "10.0.1.2", interface = "acme0" }}
"#,
        address = WIRE.address(host.number()),
        first = WIRE.address(FIRST),
        second = WIRE.address(SECOND),
    )
}

/// FRR's bfdd on a host, with a session to host 1.
struct Bfdd {
    process: Process,
    folder: PathBuf,
    vtysh: PathBuf,
}

impl Bfdd {
    fn start(lab: &Lab, host: &Host, bfdd: &Path, vtysh: &Path) -> Result<Bfdd, Failure> {
        let folder = lab.path().join(format!("bfdd-{}", host.number()));
        std::fs::create_dir_all(&folder).context("a folder for bfdd")?;
        let peer = WIRE.address(1);
        let local = WIRE.address(host.number());
        let config = format!(
            "bfd\n peer {peer} local-address {local}\n  receive-interval 100\n  transmit-interval 100\n  detect-multiplier 3\n"
        );
        std::fs::write(folder.join("bfdd.conf"), config).context("bfdd's configuration")?;
        // Its shell asks for no password, whatever this machine's PAM would.
        std::fs::write(folder.join("vtysh.conf"), "username root nopassword\n").context("vtysh's configuration")?;
        // bfdd wants its user to be in a group of Debian's package: a list of groups of its own, which no other process
        // sees.
        let groups = std::fs::read_to_string("/etc/group").context("/etc/group")?;
        let others = groups.lines().filter(|line| !line.starts_with("frrvty:"));
        let groups: String = others.chain(["frrvty:x:64000:root"]).map(|line| format!("{line}\n")).collect();
        std::fs::write(folder.join("group"), groups).context("a list of groups")?;
        let at = |name: &str| folder.join(name).display().to_string();
        let run = format!(
            "mount --bind {groups} /etc/group && exec {bfdd} -u root -g root -P 0 -z {zebra} -i {pid} -f {config} \
             --vty_socket {vty}",
            groups = at("group"),
            bfdd = bfdd.display(),
            zebra = at("zserv.api"),
            pid = at("bfdd.pid"),
            config = at("bfdd.conf"),
            vty = folder.display(),
        );
        let process = host.start(lab, &format!("bfdd-{}", host.number()), &["unshare", "-m", "sh", "-c", &run])?;
        Ok(Bfdd { process, folder, vtysh: vtysh.to_owned() })
    }

    /// What `command` prints.
    fn ask(&self, host: &Host, commands: &[&str]) -> Result<String, Failure> {
        let vtysh = self.vtysh.display().to_string();
        let folder = self.folder.display().to_string();
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        let places = [vtysh.as_str(), "--config_dir", &folder, "--vty_socket", &folder];
        let arguments: Vec<&str> = places.into_iter().chain(commands).collect();
        host.exec(&arguments)
    }

    /// The session as bfdd sees it. Its shell prints nothing where bfdd does not take the connection, as right after
    /// its start.
    fn peer(&self, host: &Host, what: &str) -> Result<Value, Failure> {
        wait_until("bfdd to tell its peers", WAIT, || {
            let text = self.ask(host, &[&format!("show bfd peers {what}json")])?;
            if text.trim().is_empty() {
                return Ok(None);
            }
            let peers: Value = serde_json::from_str(&text).context("bfdd's peers")?;
            Ok(Some(peers[0].clone()))
        })
    }
}

/// State of a member, state of its session, and its share of flows.
fn member(daemon: &Daemon, at: usize) -> Result<(String, String, u64), Failure> {
    let member = daemon.status()?["networks"][0]["ecmp"][0]["members"][at].clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok((text(&member["state"]), text(&member["bfd"]["state"]), member["share_permille"].as_u64().unwrap_or_default()))
}

fn wait_for_state(daemon: &Daemon, at: usize, state: &str) -> Result<(), Failure> {
    let mut last = String::new();
    wait_until(&format!("member {at} to be {state}"), WAIT, || {
        let (now, ..) = member(daemon, at)?;
        last.clone_from(&now);
        Ok((now == state).then_some(()))
    })
    .map_err(|error| Failure::new(format!("{error}; it is {last}")))
}

#[test]
fn a_member_whose_host_falls_silent_is_left_out_and_a_killed_data_plane_is_not_noticed() {
    let test = "bfd";
    if !Host::is_possible(test) {
        return;
    }
    let (bfdd, vtysh) = match (frr_program("bfdd"), frr_program("vtysh")) {
        (Ok(bfdd), Ok(vtysh)) => (bfdd, vtysh),
        (Err(reason), _) | (_, Err(reason)) => return skip(test, &format!("no FRR: {reason}")),
    };
    Lab::run(test, |lab| {
        let ([a, first, second], _hub) = WIRE.three_hosts(test)?;
        let mut at_first = Bfdd::start(lab, &first, &bfdd, &vtysh)?;
        let at_second = Bfdd::start(lab, &second, &bfdd, &vtysh)?;
        let mut daemon = a.softdpu(lab, &site(&a))?;

        wait_for_state(&daemon, 0, "up")?;
        wait_for_state(&daemon, 1, "up")?;
        let (_, session, share) = member(&daemon, 0)?;
        assert_eq!(session, "up");
        assert!((400..=600).contains(&share), "half of the flows, not {share} thousandths");
        wait_until("FRR to agree", WAIT, || Ok((at_first.peer(&first, "")?["status"] == "up").then_some(())))?;
        let remote = at_first.peer(&first, "")?;
        assert_eq!(remote["remote-transmit-interval"], 100, "{remote}");

        // Another data plane goes on with the sessions, and neither side notices.
        let downs = |at: &Bfdd, host: &Host| -> Result<u64, Failure> {
            let counters = at.peer(host, "counters ")?;
            counters["session-down"].as_u64().ok_or_else(|| Failure::new(format!("no session-down in {counters}")))
        };
        let before = [downs(&at_first, &first)?, downs(&at_second, &second)?];
        let took = daemon.kill_data_plane()?;
        println!("another data plane after {} ms", took.as_millis());
        wait_for_state(&daemon, 0, "up")?;
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(member(&daemon, 0)?.0, "up");
        assert_eq!([downs(&at_first, &first)?, downs(&at_second, &second)?], before, "FRR saw no session go down");

        // FRR's administrator takes a session down, which says nothing of the path (RFC 5882 §4.2).
        let peer = format!("peer {} local-address {}", WIRE.address(1), WIRE.address(SECOND));
        at_second.ask(&second, &["configure terminal", "bfd", &peer, "shutdown"])?;
        wait_until("the session to be administratively down", WAIT, || {
            let (_, session, _) = member(&daemon, 1)?;
            Ok((session == "down").then_some(()))
        })?;
        assert_eq!(member(&daemon, 1)?.0, "up");
        at_second.ask(&second, &["configure terminal", "bfd", &peer, "no shutdown"])?;
        wait_until("the session to be up again", WAIT, || Ok((member(&daemon, 1)?.1 == "up").then_some(())))?;

        // Silence, while the kernel there goes on answering ARP: three packets of 100 ms, and what asking takes.
        at_first.process.signal(rustix::process::Signal::KILL);
        let since = Instant::now();
        wait_for_state(&daemon, 0, "bfd-down")?;
        println!("silence was noticed after {} ms", since.elapsed().as_millis());
        let (_, session, share) = member(&daemon, 0)?;
        assert_eq!((session.as_str(), share), ("down", 0));
        assert_eq!(member(&daemon, 1)?.2, 1000, "all flows take the other one");

        drop(at_first);
        let at_first = Bfdd::start(lab, &first, &bfdd, &vtysh)?;
        wait_for_state(&daemon, 0, "up")?;
        assert_eq!(at_first.peer(&first, "")?["status"], "up");
        Ok(())
    });
}
