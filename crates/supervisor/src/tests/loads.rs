use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use super::super::supervisor::Timing;
use super::bed::{ApiStub, Bed, FakePlane, PATIENCE};
use softdpu_api::{
    ApiError, Change, ErrorCode, LONGEST_REQUEST, LoadFile, LoadResult, NetworkEntries, Query, Request, Unload,
};
use softdpu_link::{Call, Down, LOADED, Up};
use softdpu_site::{self as config, NetworkPart, Site};
use softdpu_sys::ReapedFd;

/// A file for the daemon to load.
fn file(bed: &Bed, name: &str, text: &str) -> PathBuf {
    let path = bed.path(name);
    fs::write(&path, text).unwrap();
    path
}

/// The call to load a file, and what is in that.
fn asked(plane: &mut FakePlane) -> (u64, String) {
    match plane.next() {
        (Down::Call { id, call: Call::Change(Change::NetworkLoad(_) | Change::NetworkUnload(_)) }, fds) => {
            (id, text(fds))
        }
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

#[test]
fn entries_are_unloaded_from_what_is_in_force_when_their_turn_comes() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let (mut loads, mut unloads, mut third) = (bed.api(), bed.api(), bed.api());
    let entry = |last: u8| format!("endpoint,acme,10.0.0.{last},,192.0.2.2\n");
    let path = file(&bed, "guests.csv", &(entry(3) + &entry(4)));
    let loading = loads.ask(Change::NetworkLoad(LoadFile { path }));
    let (id, _) = asked(&mut plane);
    let addresses = vec!["10.0.0.3".parse().unwrap()];
    let unload = Unload { network: "acme".into(), addresses, prefixes: Vec::new() };
    let unloading = unloads.ask(Change::NetworkUnload(unload));
    // What is answered at once tells that the one before was read.
    let asking = third.ask(Query::DeviceArgs { name: "none".into() });
    third.answer(asking).unwrap_err();
    plane.say(&Up::Answer { id, result: Ok(json!(found(2))) }, vec![]);
    loads.answer(loading).unwrap();
    let (id, left) = asked(&mut plane);
    assert_eq!(left, entry(4));
    plane.say(&Up::Answer { id, result: Ok(json!(found(1))) }, vec![]);
    unloads.answer(unloading).unwrap();
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
