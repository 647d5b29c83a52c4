use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::super::changes::Changes;
use super::super::desired::Desired;
use super::super::supervisor::Timing;
use super::super::vault::Vault;
use super::bed::{ApiStub, Bed, FakePlane, PATIENCE, site};
use softdpu_api::{
    ApiError, Change, EntryChanges, EntryEdit, EntryOp, ErrorCode, LONGEST_REQUEST, LoadFile, LoadResult,
    NetworkEntries, Query, Request, Unload,
};
use softdpu_link::kept::Kept;
use softdpu_link::{Call, Down, LOADED, Up};
use softdpu_site::{self as config, NetworkPart, Site, load_line};
use softdpu_sys::ReapedFd;
use softdpu_sys::wake::Doorbell;

/// A file for the daemon to load.
fn file(bed: &Bed, name: &str, text: &str) -> PathBuf {
    let path = bed.path(name);
    fs::write(&path, text).unwrap();
    path
}

/// The call to load a file, and what is in that.
fn asked(plane: &mut FakePlane) -> (u64, String) {
    match plane.next() {
        (Down::Call { id, call: Call::Change(Change::NetworkLoad(_)) }, fds) => (id, text(fds)),
        other => panic!("{other:?}"),
    }
}

fn text(fds: Vec<ReapedFd>) -> String {
    let mut text = String::new();
    fs::File::from(fds.into_iter().next().unwrap().into_owned()).read_to_string(&mut text).unwrap();
    text
}

fn found(endpoints: u64) -> LoadResult {
    let networks = (endpoints > 0).then(|| ("acme".to_owned(), NetworkEntries { endpoints, routes: 0 }));
    LoadResult { endpoints, networks: networks.into_iter().collect(), ..LoadResult::default() }
}

/// The copies in the state directory.
fn copies(bed: &Bed) -> Vec<String> {
    let files = fs::read_dir(bed.path("state")).into_iter().flatten().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    names.filter(|name| name.starts_with("loaded-")).collect()
}

#[test]
fn a_file_is_copied_before_it_is_loaded_and_the_copy_is_what_every_data_plane_gets() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let path = file(&bed, "guests.csv", "first");
    let asking = client.ask(Change::NetworkLoad(LoadFile { path: path.clone() }));
    let (id, text_given) = asked(&mut plane);
    assert_eq!(text_given, "first");
    plane.say(&Up::Answer { id, result: Ok(json!(found(3))) }, vec![]);
    let answer: LoadResult = serde_json::from_value(client.answer(asking).unwrap()).unwrap();
    assert_eq!(answer, found(3));
    assert_eq!(copies(&bed), ["loaded-1.csv"]);

    // What is refused leaves nothing behind, and the file itself may change.
    fs::write(&path, "second").unwrap();
    let asking = client.ask(Change::NetworkLoad(LoadFile { path }));
    let (id, _) = asked(&mut plane);
    let refusal = ApiError::new(ErrorCode::Refused, "guests.csv:1: no");
    plane.say(&Up::Answer { id, result: Err(refusal) }, vec![]);
    assert_eq!(client.answer(asking).unwrap_err().code, ErrorCode::Refused);
    assert_eq!(copies(&bed), ["loaded-1.csv"]);

    plane.die("killed by SIGKILL");
    let mut next = bed.plane();
    let (_, _, kept, fds) = next.start();
    assert_eq!(kept, [LOADED]);
    // The description is shared with the one before: whoever reads it begins at its beginning.
    let mut kept = fs::File::from(fds.into_iter().next().unwrap().into_owned());
    std::io::Seek::rewind(&mut kept).unwrap();
    let mut again = String::new();
    kept.read_to_string(&mut again).unwrap();
    assert_eq!(again, "first");
}

/// What the next data plane would load: the lines of the file that it is given that are in force.
fn in_force(bed: &Bed, plane: FakePlane) -> Vec<String> {
    plane.die("killed by SIGKILL");
    let (_, _, kept, fds) = bed.plane().start();
    let Some(fd) = fds.into_iter().next() else {
        assert!(kept.is_empty());
        return Vec::new();
    };
    lines(&fs::File::from(fd.into_owned()))
}

fn lines(file: &fs::File) -> Vec<String> {
    let kept = Kept::read(file).unwrap();
    let mut text = vec![0; kept.loaded as usize];
    file.read_exact_at(&mut text, 0).unwrap();
    let text = String::from_utf8(text).unwrap();
    let is_kept = |line: &&str| load_line(line).unwrap().is_some_and(|line| kept.has(&line));
    text.lines().filter(is_kept).map(str::to_owned).chain(kept.lines().map(|line| line.trim().to_owned())).collect()
}

/// A network `acme`, as far as the supervisor knows.
fn with_acme(plane: &mut FakePlane, client: &mut ApiStub) {
    let network = json!({"name": "acme", "vni": 7, "cidr": ["10.0.0.0/8"]});
    let asking = client.ask(Change::NetworkAdd(Box::new(config::network_from_json(&network).unwrap())));
    let (id, _) = plane.call();
    plane.say(&Up::Answer { id, result: Ok(json!({})) }, vec![]);
    client.answer(asking).unwrap();
}

fn route(op: EntryOp, prefix: &str) -> EntryEdit {
    let host = (op != EntryOp::Delete).then(|| "192.0.2.2".parse().unwrap());
    EntryEdit { host, ..EntryEdit::route(op, prefix.parse().unwrap()) }
}

/// Changes routes of `acme`, of which there are `routes` then.
fn change(
    plane: &mut FakePlane,
    client: &mut ApiStub,
    edits: Vec<EntryEdit>,
    result: Result<u64, ApiError>,
) -> Result<LoadResult, ApiError> {
    let changes = EntryChanges { network: "acme".into(), changes: edits };
    let asking = client.ask(Change::NetworkEntries(changes.clone()));
    let (id, call) = plane.call();
    assert_eq!(call, Call::Change(Change::NetworkEntries(changes)));
    let found = |routes| {
        let networks = (routes > 0).then(|| ("acme".to_owned(), NetworkEntries { endpoints: 0, routes }));
        LoadResult { routes, networks: networks.into_iter().collect(), ..LoadResult::default() }
    };
    plane.say(&Up::Answer { id, result: result.map(|routes| json!(found(routes))) }, vec![]);
    client.answer(asking).map(|answer| serde_json::from_value(answer).unwrap())
}

#[test]
fn single_entries_are_kept_beside_what_is_loaded_and_what_is_refused_is_not() {
    let bed = Bed::new();
    let (mut plane, mut client) = (bed.ready_plane(), bed.api());
    with_acme(&mut plane, &mut client);
    // The file has no end of its last line.
    let path = file(&bed, "routes.csv", "route,acme,172.16.0.0/12,192.0.2.9\nroute,acme,172.32.0.0/12,192.0.2.9");
    let loading = client.ask(Change::NetworkLoad(LoadFile { path }));
    let (id, _) = asked(&mut plane);
    plane.say(&Up::Answer { id, result: Ok(json!(found(2))) }, vec![]);
    client.answer(loading).unwrap();
    let edits = vec![route(EntryOp::Add, "1.0.0.0/8"), route(EntryOp::Delete, "172.16.0.0/12")];
    assert_eq!(change(&mut plane, &mut client, edits, Ok(2)).unwrap().routes, 2);
    let refusal = ApiError::new(ErrorCode::Refused, "no");
    change(&mut plane, &mut client, vec![route(EntryOp::Add, "2.0.0.0/8")], Err(refusal)).unwrap_err();
    change(&mut plane, &mut client, vec![route(EntryOp::Replace, "3.0.0.0/8")], Ok(3)).unwrap();
    assert_eq!(copies(&bed), ["loaded-1.csv"]);
    // One that a data plane dies over is not made.
    let changes = EntryChanges { network: "acme".into(), changes: vec![route(EntryOp::Add, "4.0.0.0/8")] };
    let asking = client.ask(Change::NetworkEntries(changes));
    plane.call();
    let left = in_force(&bed, plane);
    assert_eq!(client.answer(asking).unwrap_err().code, ErrorCode::Unavailable);
    let expected =
        ["route,acme,172.32.0.0/12,192.0.2.9", "route,acme,1.0.0.0/8,192.0.2.2", "route,acme,3.0.0.0/8,192.0.2.2"];
    assert_eq!(left, expected);
}

#[test]
fn single_entries_are_kept_although_nothing_was_loaded_until_the_last_has_gone() {
    let bed = Bed::new();
    let (mut plane, mut client) = (bed.ready_plane(), bed.api());
    with_acme(&mut plane, &mut client);
    let refusal = ApiError::new(ErrorCode::Refused, "no");
    change(&mut plane, &mut client, vec![route(EntryOp::Add, "2.0.0.0/8")], Err(refusal)).unwrap_err();
    assert!(copies(&bed).is_empty());
    change(&mut plane, &mut client, vec![route(EntryOp::Add, "1.0.0.0/8")], Ok(1)).unwrap();
    let remove = Change::NetworkRemove { name: "acme".into() };
    let asking = client.ask(remove);
    assert_eq!(client.answer(asking).unwrap_err().code, ErrorCode::Busy);
    assert_eq!(in_force(&bed, plane), ["route,acme,1.0.0.0/8,192.0.2.2"]);
    let asking = client.ask(Change::NetworkEntries(EntryChanges { network: "none".into(), changes: Vec::new() }));
    assert_eq!(client.answer(asking).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn a_supervisor_that_starts_knows_what_was_changed_and_cuts_off_what_is_torn() {
    let bed = Bed::new();
    let (mut plane, mut client) = (bed.ready_plane(), bed.api());
    with_acme(&mut plane, &mut client);
    for (at, prefix) in ["1.0.0.0/8", "2.0.0.0/8", "3.0.0.0/8"].into_iter().enumerate() {
        change(&mut plane, &mut client, vec![route(EntryOp::Add, prefix)], Ok(at as u64 + 1)).unwrap();
    }
    let (path, state) = (bed.path("state").join("loaded-1.csv"), bed.path("state").join("desired.json"));
    let whole = fs::metadata(&path).unwrap().len();
    let saved: serde_json::Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
    assert_eq!(saved["loaded"]["networks"]["acme"]["routes"], 1, "it is not saved anew with each change");
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"change 00000").unwrap();
    let site = site(&bed.folder);
    let desired = Desired::load(site).unwrap();
    assert_eq!(desired.loaded_networks(), ["acme"]);
    let mut changes = Changes::new(desired, Timing::default(), Arc::new(Doorbell::new().unwrap()));
    changes.keep_loaded(&mut Vault::default()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), whole);
    assert_eq!(lines(&fs::File::open(&path).unwrap()).len(), 3);
}

#[test]
fn a_file_with_many_records_is_written_anew() {
    let bed = Bed::new();
    let (mut plane, mut client) = (bed.ready_plane(), bed.api());
    with_acme(&mut plane, &mut client);
    let batch = |op| (0..=255).map(|at| route(op, &format!("1.{at}.0.0/16"))).collect::<Vec<_>>();
    let path = bed.path("state").join("loaded-1.csv");
    change(&mut plane, &mut client, batch(EntryOp::Add), Ok(256)).unwrap();
    let one = fs::metadata(&path).unwrap().len();
    while fs::metadata(&path).unwrap().len() < 8 << 20 {
        change(&mut plane, &mut client, batch(EntryOp::Replace), Ok(256)).unwrap();
    }
    assert_eq!(copies(&bed), ["loaded-1.csv"]);
    change(&mut plane, &mut client, vec![route(EntryOp::Delete, "1.7.0.0/16")], Ok(255)).unwrap();
    change(&mut plane, &mut client, vec![route(EntryOp::Add, "2.0.0.0/8")], Ok(256)).unwrap();
    let [copy] = copies(&bed).try_into().unwrap();
    assert_ne!(copy, "loaded-1.csv");
    assert!(fs::metadata(bed.path("state").join(copy)).unwrap().len() < one);
    let left = in_force(&bed, plane);
    assert_eq!(left.len(), 256);
    assert!(left.iter().all(|line| !line.contains("1.7.0.0/16")) && left[255] == "route,acme,2.0.0.0/8,192.0.2.2");
}

#[test]
fn entries_are_unloaded_when_their_turn_comes() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let (mut loads, mut unloads, mut third) = (bed.api(), bed.api(), bed.api());
    let entry = |last: u8| format!("endpoint,acme,10.0.0.{last},,192.0.2.2\n");
    let path = file(&bed, "guests.csv", &(entry(3) + &entry(4)));
    let loading = loads.ask(Change::NetworkLoad(LoadFile { path }));
    let (id, _) = asked(&mut plane);
    let addresses = vec!["10.0.0.3".parse().unwrap()];
    let unload = Unload { network: "acme".into(), addresses, prefixes: Vec::new() };
    let unloading = unloads.ask(Change::NetworkUnload(unload.clone()));
    // What is answered at once tells that the one before was read.
    let asking = third.ask(Query::DeviceArgs { name: "none".into() });
    third.answer(asking).unwrap_err();
    plane.say(&Up::Answer { id, result: Ok(json!(found(2))) }, vec![]);
    loads.answer(loading).unwrap();
    let (id, call) = plane.call();
    assert_eq!(call, Call::Change(Change::NetworkUnload(unload)));
    plane.say(&Up::Answer { id, result: Ok(json!(found(1))) }, vec![]);
    unloads.answer(unloading).unwrap();
    assert_eq!(in_force(&bed, plane), [entry(4).trim()]);
}

#[test]
fn a_data_plane_that_dies_over_a_file_leaves_what_was_loaded_before() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let asking = client.ask(Change::NetworkLoad(LoadFile { path: file(&bed, "guests.csv", "first") }));
    asked(&mut plane);
    plane.die("killed by SIGSEGV");
    assert_eq!(client.answer(asking).unwrap_err().code, ErrorCode::Unavailable);
    assert!(copies(&bed).is_empty());
    let mut next = bed.plane();
    let (_, _, kept, _) = next.start();
    assert!(kept.is_empty());
}

#[test]
fn what_is_no_file_is_refused_and_nobody_is_asked() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    for (path, why) in [(bed.path("none.csv"), "No such file"), ("/dev/null".into(), "it is no regular file")] {
        let asking = client.ask(Change::NetworkLoad(LoadFile { path }));
        let error = client.answer(asking).unwrap_err();
        assert!(error.code == ErrorCode::Failed && error.message.contains(why), "{error}");
    }
    assert!(plane.hears_nothing());
}

/// Waits until it is so.
fn becomes(what: &str, so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_file_that_gives_nothing_keeps_no_other_change_waiting() {
    // No time at all: a file without bytes is as good as one that hangs.
    let bed = Bed::with(Timing { copy: Duration::ZERO, ..Timing::default() }, false);
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let asking = client.ask(Change::NetworkLoad(LoadFile { path: file(&bed, "guests.csv", "") }));
    let error = client.answer(asking).unwrap_err();
    assert!(error.code == ErrorCode::Failed && error.message.contains("nothing came of it for 0 s"), "{error}");
    let asking = client.ask(Change::NetworkRemove { name: "none".into() });
    assert_eq!(client.answer(asking).unwrap_err().code, ErrorCode::NotFound);
    let asking = client.ask(Change::VolumeDelete { name: "none".into() });
    assert_eq!(client.answer(asking).unwrap_err().code, ErrorCode::NotFound);
    assert!(plane.hears_nothing());
    becomes("the late copy is removed", || copies(&bed).is_empty());
}

#[test]
fn a_load_that_is_refused_keeps_no_room_on_the_disk() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let asking = client.ask(Change::NetworkLoad(LoadFile { path: file(&bed, "guests.csv", "first") }));
    let (id, _) = asked(&mut plane);
    let copy = bed.path("state").join("loaded-1.csv");
    let is_open = || {
        let open = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        open.into_iter().any(|path| path.to_string_lossy().starts_with(&*copy.to_string_lossy()))
    };
    assert!(is_open());
    let refusal = ApiError::new(ErrorCode::Refused, "guests.csv:1: no");
    plane.say(&Up::Answer { id, result: Err(refusal) }, vec![]);
    client.answer(asking).unwrap_err();
    becomes("the copy is closed", || !is_open());
}

#[test]
fn the_copy_that_the_disk_names_is_there_although_changes_cannot_be_saved_any_more() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let mut load = |text: &str, result: Result<LoadResult, ApiError>| {
        let asking = client.ask(Change::NetworkLoad(LoadFile { path: file(&bed, "guests.csv", text) }));
        let (id, _) = asked(&mut plane);
        plane.say(&Up::Answer { id, result: result.map(|found| json!(found)) }, vec![]);
        client.answer(asking)
    };
    load("first", Ok(found(3))).unwrap();
    // In the way of the file that is to become desired.json.
    fs::create_dir(bed.path("state").join("desired.new")).unwrap();
    load("", Ok(found(0))).unwrap();
    load("third", Err(ApiError::new(ErrorCode::Refused, "no"))).unwrap_err();
    assert_eq!(fs::read_to_string(bed.path("state").join("loaded-1.csv")).unwrap(), "first");
}

/// Networks `a` and `b`, and a file of lists of `a` that is longer than a request may be.
fn with_networks(plane: &mut FakePlane, client: &mut ApiStub) -> String {
    for (name, vni) in [("a", 1), ("b", 2)] {
        let network = json!({"name": name, "vni": vni, "cidr": [format!("10.{vni}.0.0/16")]});
        let asking = client.ask(Change::NetworkAdd(Box::new(config::network_from_json(&network).unwrap())));
        let (id, _) = plane.call();
        plane.say(&Up::Answer { id, result: Ok(json!({})) }, vec![]);
        client.answer(asking).unwrap();
    }
    let rule = |at: u32| format!("  {{ priority = {at}, action = \"deny\", protocol = \"udp\", ports = {at} }},\n");
    let rules: String = (1..=10_000).map(rule).collect();
    assert!(rules.len() > LONGEST_REQUEST);
    format!("network = \"a\"\n[[acl]]\nname = \"edge\"\nrule = [\n{rules}]\n")
}

#[test]
fn lists_come_by_file_whole_and_the_next_data_plane_is_told_of_them() {
    let bed = Bed::new();
    let (mut plane, mut client) = (bed.ready_plane(), bed.api());
    let text = with_networks(&mut plane, &mut client);
    let ask = |text: &str| Request::NetworksFile { part: NetworkPart::Policy, path: file(&bed, "policy.toml", text) };
    let wrong = text.replace("priority = 7000, action = \"deny\"", "priority = 7000, action = \"dney\"");
    let asking = client.ask(ask(&wrong));
    let error = client.answer(asking).unwrap_err();
    let place = format!("{}:7004:", bed.path("policy.toml").display());
    assert!(error.code == ErrorCode::InvalidParams && error.message.starts_with(&place), "{error}");
    // What only the site shows is reported with its line as well: another has the name.
    let asking = client.ask(ask(&(text.clone() + "[[acl]]\nname = \"edge\"\n")));
    let error = client.answer(asking).unwrap_err();
    let place = format!("{}:10007:8: the network has a second ACL `edge`", bed.path("policy.toml").display());
    assert!(error.code == ErrorCode::Refused && error.message.starts_with(&place), "{error}");
    assert!(plane.hears_nothing());

    let asking = client.ask(ask(&text));
    let (id, call) = plane.call();
    let Call::Change(Change::NetworkPolicy(changes)) = call else { panic!("{call:?}") };
    assert_eq!(changes[0].acls[0].rules.len(), 10_000);
    plane.say(&Up::Answer { id, result: Ok(json!({"warning": "a core is late"})) }, vec![]);
    assert_eq!(client.answer(asking).unwrap(), json!({"warning": "a core is late"}));
    plane.die("killed by SIGKILL");
    let (site, ..) = bed.plane().start();
    assert_eq!(site.networks[0].acls[0].rules.len(), 10_000);
}

#[test]
fn several_networks_change_by_one_file_all_or_none() {
    let bed = Bed::new();
    let (mut plane, mut client) = (bed.ready_plane(), bed.api());
    with_networks(&mut plane, &mut client);
    let ask = |text: &str| Request::NetworksFile { part: NetworkPart::Routing, path: file(&bed, "peers.toml", text) };
    let asking = client.ask(ask("[[network]]\nname = \"a\"\npeer = \"b\"\n[[network]]\nname = \"b\"\npeer = \"c\"\n"));
    let error = client.answer(asking).unwrap_err();
    let place = format!("{}:6:", bed.path("peers.toml").display());
    assert!(error.message.starts_with(&place) && error.message.contains("there is no network `c`"), "{error}");
    assert!(plane.hears_nothing());
    let asking = client.ask(ask("[[network]]\nname = \"a\"\npeer = \"b\"\n[[network]]\nname = \"b\"\npeer = \"a\"\n"));
    let (id, _) = plane.call();
    plane.say(&Up::Answer { id, result: Ok(json!({})) }, vec![]);
    client.answer(asking).unwrap();
    plane.die("killed by SIGKILL");
    let (site, ..) = bed.plane().start();
    assert_eq!(Site::peerings(&site.networks).collect::<Vec<_>>(), [("a", "b")]);
}
