use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde_json::json;

use super::bed::{Bed, FakePlane};
use crate::api::{ErrorCode, LoadResult, NetworkEntries, Request};
use crate::link::{Call, Down, LOADED, Refusal, Up};

/// A file for the daemon to load.
fn file(bed: &Bed, name: &str, text: &str) -> PathBuf {
    let path = bed.path(name);
    fs::write(&path, text).unwrap();
    path
}

/// The call to load a file, and what is in that.
fn asked(plane: &mut FakePlane) -> (u64, String) {
    match plane.next() {
        (Down::Call { id, call: Call::NetworkLoad { .. } }, fds) => (id, text(fds)),
        other => panic!("{other:?}"),
    }
}

fn text(fds: Vec<OwnedFd>) -> String {
    let mut text = String::new();
    fs::File::from(fds.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
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
    let asking = client.ask(&Request::NetworkLoad { path: path.clone() });
    let (id, text_given) = asked(&mut plane);
    assert_eq!(text_given, "first");
    plane.say(&Up::Answer { id, result: Ok(json!(found(3))) }, vec![]);
    let answer: LoadResult = serde_json::from_value(client.answer(asking).unwrap()).unwrap();
    assert_eq!(answer, found(3));
    assert_eq!(copies(&bed), ["loaded-1.csv"]);

    // What is refused leaves nothing behind, and the file itself may change.
    fs::write(&path, "second").unwrap();
    let asking = client.ask(&Request::NetworkLoad { path });
    let (id, _) = asked(&mut plane);
    let refusal = Refusal { code: "refused".into(), message: "guests.csv:1: no".into() };
    plane.say(&Up::Answer { id, result: Err(refusal) }, vec![]);
    assert_eq!(client.answer(asking).unwrap_err().code, ErrorCode::Refused);
    assert_eq!(copies(&bed), ["loaded-1.csv"]);

    plane.die("killed by SIGKILL");
    let mut next = bed.plane();
    let (_, _, kept, fds) = next.start();
    assert_eq!(kept, [LOADED]);
    // The description is shared with the one before: whoever reads it begins at its beginning.
    let mut kept = fs::File::from(fds.into_iter().next().unwrap());
    std::io::Seek::rewind(&mut kept).unwrap();
    let mut again = String::new();
    kept.read_to_string(&mut again).unwrap();
    assert_eq!(again, "first");
}

#[test]
fn a_data_plane_that_dies_over_a_file_leaves_what_was_loaded_before() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let asking = client.ask(&Request::NetworkLoad { path: file(&bed, "guests.csv", "first") });
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
        let asking = client.ask(&Request::NetworkLoad { path });
        let error = client.answer(asking).unwrap_err();
        assert!(error.code == ErrorCode::Failed && error.message.contains(why), "{error}");
    }
    assert!(plane.hears_nothing());
}
