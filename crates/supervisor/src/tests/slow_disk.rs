//! The disk of the state directory takes as long as the test likes.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::super::supervisor::Timing;
use super::bed::{A_WHILE, ApiStub, Bed, FakePlane};
use softdpu_api::status::{DataPlaneState, NodeStatus};
use softdpu_api::{Change, Id, Query};
use softdpu_link::{Call, Up};
use softdpu_site::volume_from_json;

fn volume(name: &str) -> Change {
    Change::VolumeCreate(volume_from_json(&json!({"name": name, "null": {"size": "4 MiB"}})).unwrap())
}

/// A disk that puts nothing into its files until the value is dropped.
struct SlowDisk(PathBuf);

impl SlowDisk {
    fn of(bed: &Bed) -> SlowDisk {
        let folder = bed.path("state");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("slow");
        fs::write(&path, "").unwrap();
        SlowDisk(path)
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

/// The data plane makes `change`, for which a client has asked.
fn make(plane: &mut FakePlane, change: Change) {
    let (id, call) = plane.call();
    assert_eq!(call, Call::Change(change));
    plane.say(&Up::Answer { id, result: Ok(json!({})) }, vec![]);
}

fn status(plane: &mut FakePlane, client: &mut ApiStub) -> NodeStatus {
    let asked = client.ask(Query::Status);
    let (id, call) = plane.call();
    assert_eq!(call, Call::Status);
    plane.say(&Up::Answer { id, result: Ok(json!(NodeStatus::default())) }, vec![]);
    serde_json::from_value(client.answer(asked).unwrap()).unwrap()
}

fn kept(bed: &Bed) -> String {
    fs::read_to_string(bed.path("state").join("desired.json")).unwrap_or_default()
}

/// `what` has been asked for, and is made and not answered.
fn made(bed: &Bed, plane: &mut FakePlane, what: Change) -> (ApiStub, Id) {
    let mut client = bed.api();
    let asked = client.ask(what.clone());
    make(plane, what);
    (client, asked)
}

#[test]
fn status_and_the_next_data_plane_do_not_wait_for_a_slow_disk() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let slow = SlowDisk::of(&bed);
    let (mut client, asked) = made(&bed, &mut plane, volume("new"));
    let mut other = bed.api();
    assert_eq!(status(&mut plane, &mut other).data_plane.state, DataPlaneState::Running);
    plane.die("killed by SIGKILL");
    let (site, ..) = bed.plane().start();
    assert!(site.volume("new").is_some());
    assert_eq!(kept(&bed), "");
    drop(slow);
    assert_eq!(client.answer(asked), Ok(json!({})));
    assert!(kept(&bed).contains("\"new\""));
}

#[test]
fn a_change_is_answered_when_it_is_saved_and_the_next_one_waits_for_that() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let slow = SlowDisk::of(&bed);
    let (mut client, asked) = made(&bed, &mut plane, volume("one"));
    let mut other = bed.api();
    let second = other.ask(volume("two"));
    assert!(plane.hears_nothing(), "a change is made before the one before it is saved");
    drop(slow);
    client.answer(asked).unwrap();
    make(&mut plane, volume("two"));
    other.answer(second).unwrap();
    assert!(kept(&bed).contains("\"two\""));
}

#[test]
fn a_supervisor_that_stops_waits_for_what_is_being_saved() {
    let mut bed = Bed::new();
    let mut plane = bed.ready_plane();
    let slow = SlowDisk::of(&bed);
    let (mut client, asked) = made(&bed, &mut plane, volume("new"));
    assert_eq!(status(&mut plane, &mut bed.api()).data_plane.state, DataPlaneState::Running);
    bed.handle.stop();
    plane.die("exit status 0");
    std::thread::sleep(A_WHILE);
    drop(slow);
    assert_eq!(client.answer(asked), Ok(json!({})));
    bed.finished().unwrap();
    assert!(kept(&bed).contains("\"new\""));
}

#[test]
fn a_disk_that_is_slow_for_long_is_told() {
    let bed = Bed::with(Timing { slow_save: Duration::from_millis(20), ..Timing::default() }, false);
    let mut plane = bed.ready_plane();
    let slow = SlowDisk::of(&bed);
    let (mut client, asked) = made(&bed, &mut plane, volume("new"));
    std::thread::sleep(Duration::from_millis(30));
    let told = status(&mut plane, &mut bed.api()).unsaved.unwrap();
    assert!(told.starts_with("changes are being saved for 0 s: the disk of the state directory is slow"), "{told}");
    drop(slow);
    client.answer(asked).unwrap();
    assert_eq!(status(&mut plane, &mut bed.api()).unsaved, None);
}
