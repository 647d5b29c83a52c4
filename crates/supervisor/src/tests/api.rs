use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::supervisor::Timing;
use super::bed::{Bed, FakePlane};
use softdpu_api::status::{DataPlaneState, DeviceState, FunctionStatus, NodeStatus, VolumeStatus};
use softdpu_api::{ApiError, Change, ErrorCode, Query};
use softdpu_link::{Call, Up};
use softdpu_site::{
    Bytes, Device, ScaleChange, Volume, device_from_json, function_change_from_json, function_from_json,
    volume_from_json,
};

fn volume(name: &str) -> Volume {
    volume_from_json(&json!({"name": name, "null": {"size": "4 MiB"}})).unwrap()
}

fn device(bed: &Bed, name: &str, volume: &str) -> Device {
    let socket = bed.path(&format!("{name}.sock"));
    let parameters = json!({"name": name, "domain": "vm", "virtio-blk": {"volume": volume, "socket": socket}});
    device_from_json(&parameters, Path::new("/run/softdpu")).unwrap()
}

fn accept(plane: &mut FakePlane, expected: Change) {
    let (id, call) = plane.call();
    assert_eq!(call, Call::Change(expected));
    plane.say(&Up::Answer { id, result: Ok(json!({})) }, vec![]);
}

#[test]
fn status_joins_what_both_processes_know() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let asked = client.ask(Query::Status);
    let (id, call) = plane.call();
    assert_eq!(call, Call::Status);
    let volumes = vec![VolumeStatus { name: "disk".into(), errors: 3, ..VolumeStatus::default() }];
    plane.say(&Up::Answer { id, result: Ok(json!(NodeStatus { volumes, ..NodeStatus::default() })) }, vec![]);
    let status: NodeStatus = serde_json::from_value(client.answer(asked).unwrap()).unwrap();
    assert_eq!(status.volumes[0].errors, 3);
    assert_eq!(status.supervisor_pid, std::process::id());
    assert_eq!((status.data_plane.pid.is_some(), status.data_plane.state), (true, DataPlaneState::Running));
    assert!(status.data_plane.time_to_ready_us.is_some());
}

#[test]
fn silent_clients_make_room_for_others_and_busy_ones_do_not() {
    let bed = Bed::with(Timing { idle_client: Duration::from_millis(50), ..Timing::default() }, false);
    let mut plane = bed.ready_plane();
    let mut busy = bed.api();
    let asked = busy.ask(Query::Status);
    let (call, _) = plane.call();
    let _silent: Vec<_> = (0..200).map(|_| bed.api()).collect();
    let mut last = bed.api();
    let question = last.ask(Query::Status);
    let (second, _) = plane.call();
    for id in [call, second] {
        plane.say(&Up::Answer { id, result: Ok(json!(NodeStatus::default())) }, vec![]);
    }
    busy.answer(asked).unwrap();
    last.answer(question).unwrap();
}

#[test]
fn status_is_answered_and_changes_are_refused_while_the_data_plane_restarts() {
    let bed = Bed::new();
    let _front_end = bed.connect("a");
    let mut plane = bed.ready_plane();
    plane.attach();
    plane.die("killed by SIGKILL");
    let mut starting = bed.plane();
    starting.start();
    let mut client = bed.api();
    let asked = client.ask(Query::Status);
    let status: NodeStatus = serde_json::from_value(client.answer(asked).unwrap()).unwrap();
    assert_eq!(status.data_plane.state, DataPlaneState::Restarting);
    assert_eq!((status.data_plane.restarts, status.data_plane.last_exit.as_deref()), (1, Some("killed by SIGKILL")));
    assert_eq!(status.devices[0].state, DeviceState::Connected);
    assert_eq!(status.devices[0].peer.map(|peer| peer.pid as u32), Some(std::process::id()));
    assert_eq!(status.devices[1].peer, None);
    assert_eq!(status.volumes.len(), 2);
    let asked = client.ask(Change::VolumeCreate(volume("new")));
    let error = client.answer(asked).unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("restarting"), "{error}");
}

#[test]
fn the_next_data_plane_has_the_cores_that_joined_and_what_is_refused_changes_nothing() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let scale = |cores: &[u32]| Change::NodeScale(ScaleChange { cores: cores.to_vec() });
    let asked = client.ask(scale(&[0, 1]));
    accept(&mut plane, scale(&[0, 1]));
    assert_eq!(client.answer(asked), Ok(json!({})));

    let asked = client.ask(scale(&[7]));
    let (id, call) = plane.call();
    assert_eq!(call, Call::Change(scale(&[7])));
    plane.say(&Up::Answer { id, result: Err(ApiError::new(ErrorCode::Refused, "no such CPU")) }, vec![]);
    assert_eq!(client.answer(asked).unwrap_err().code, ErrorCode::Refused);

    plane.die("killed by SIGKILL");
    let (site, ..) = bed.plane().start();
    assert_eq!(site.node.dataplane.cores, [0, 1]);
}

#[test]
fn what_was_changed_is_there_for_the_next_data_plane() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();

    let asked = client.ask(Change::VolumeCreate(volume("new")));
    accept(&mut plane, Change::VolumeCreate(volume("new")));
    assert_eq!(client.answer(asked), Ok(json!({})));

    let added = device(&bed, "c", "new");
    let asked = client.ask(Change::DeviceAdd(added.clone()));
    accept(&mut plane, Change::DeviceAdd(added));
    let answer = client.answer(asked).unwrap();
    let names: Vec<&Value> = answer["devices"].as_array().unwrap().iter().map(|device| &device["name"]).collect();
    assert_eq!(names, ["c", "a", "b"]);
    let _front_end = bed.connect("c");
    plane.attach();

    let asked = client.ask(Change::VolumeGrow { name: "new".into(), size: Bytes(8 << 20) });
    accept(&mut plane, Change::VolumeGrow { name: "new".into(), size: Bytes(8 << 20) });
    client.answer(asked).unwrap();

    plane.die("killed by SIGKILL");
    let (site, ..) = bed.plane().start();
    assert!(site.device("c").is_some());
    assert_eq!(site.volume("new").unwrap().backend.size(), Some(Bytes(8 << 20)));
}

#[test]
fn functions_are_there_for_the_next_data_plane_and_shown_while_there_is_none() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let firewall = |ports: u16| {
        let rule = json!({"priority": 1, "action": "allow", "protocol": "tcp", "ports": ports});
        json!({"name": "guard", "firewall": {"rule": [rule]}})
    };
    let function = function_from_json(&firewall(22)).unwrap();
    let asked = client.ask(Change::FunctionAdd(function.clone()));
    accept(&mut plane, Change::FunctionAdd(function.clone()));
    assert_eq!(client.answer(asked), Ok(json!({})));
    // What the data plane refuses, or dies of, is as it was.
    let change = function_change_from_json(&firewall(443)).unwrap();
    let asked = client.ask(Change::FunctionSet(change.clone()));
    let (id, _) = plane.call();
    let refusal = ApiError::new(ErrorCode::Refused, "no");
    plane.say(&Up::Answer { id, result: Err(refusal) }, vec![]);
    assert_eq!(client.answer(asked).unwrap_err().code, ErrorCode::Refused);
    let asked = client.ask(Change::FunctionSet(change.clone()));
    plane.call();
    plane.die("killed by SIGKILL");
    assert_eq!(client.answer(asked).unwrap_err().code, ErrorCode::Unavailable);
    let mut plane = bed.plane();
    let (site, ..) = plane.start();
    assert_eq!(site.function("guard"), Some(&function));
    let asked = client.ask(Query::FunctionList);
    let functions: Vec<FunctionStatus> = serde_json::from_value(client.answer(asked).unwrap()).unwrap();
    assert_eq!(functions.iter().map(|it| (&*it.name, &*it.kind)).collect::<Vec<_>>(), [("guard", "firewall")]);
}

#[test]
fn what_the_data_plane_refuses_is_not_recorded_and_leaves_no_socket() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let asked = client.ask(Change::DeviceAdd(device(&bed, "c", "scratch")));
    let (id, _) = plane.call();
    assert!(bed.path("c.sock").exists());
    let refusal = ApiError::new(ErrorCode::Busy, "the volume is fenced");
    plane.say(&Up::Answer { id, result: Err(refusal) }, vec![]);
    let error = client.answer(asked).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::Busy, "the volume is fenced"));
    assert!(!bed.path("c.sock").exists());
    plane.die("killed by SIGKILL");
    assert!(bed.plane().start().0.device("c").is_none());
}

#[test]
fn a_change_whose_data_plane_dies_is_answered_and_undone() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let asked = client.ask(Change::VolumeCreate(volume("new")));
    plane.call();
    plane.die("killed by SIGKILL");
    assert_eq!(client.answer(asked).unwrap_err().code, ErrorCode::Unavailable);
    assert!(bed.plane().start().0.volume("new").is_none());
}

#[test]
fn nothing_is_kept_of_a_volume_whose_data_plane_died_while_it_was_created() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let asked = client.ask(Change::VolumeCreate(volume("new")));
    plane.call();
    for key in ["key/new", "memory/new", "nbd-export/new", "nbd/new/0", "key/new2"] {
        let file = fs::File::open("/dev/null").unwrap();
        plane.say(&Up::Keep { key: key.into() }, vec![Arc::new(file.into())]);
    }
    plane.die("killed by SIGKILL");
    assert_eq!(client.answer(asked).unwrap_err().code, ErrorCode::Unavailable);
    let (_, _, kept, _) = bed.plane().start();
    assert_eq!(kept, ["key/new2"]);
}

#[test]
fn a_removed_device_is_disconnected_and_its_socket_is_gone() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut front_end = bed.connect("a");
    plane.attach();
    let mut client = bed.api();
    let asked = client.ask(Change::DeviceRemove { name: "a".into() });
    accept(&mut plane, Change::DeviceRemove { name: "a".into() });
    client.answer(asked).unwrap();
    assert!(front_end.is_closed());
    assert!(!bed.path("a.sock").exists());
}

#[test]
fn changes_are_made_one_after_the_other() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let (mut first, mut second) = (bed.api(), bed.api());
    let create = first.ask(Change::VolumeCreate(volume("v")));
    let (id, _) = plane.call();
    let again = second.ask(Change::VolumeCreate(volume("v")));
    assert!(plane.hears_nothing());
    plane.say(&Up::Answer { id, result: Ok(json!({})) }, vec![]);
    first.answer(create).unwrap();
    assert_eq!(second.answer(again).unwrap_err().code, ErrorCode::Exists);
}

#[test]
fn requests_sent_in_one_go_are_answered_in_order() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    client.send_raw(b"nonsense\n\n");
    let asked: Vec<_> = (0..3).map(|_| client.ask(Query::DeviceArgs { name: "a".into() })).collect();
    let status = client.ask(Query::VolumeList);
    let args = client.ask(Query::DeviceArgs { name: "nobody".into() });
    assert_eq!(client.response().outcome.unwrap_err().code, ErrorCode::BadRequest);
    for id in asked {
        client.answer(id).unwrap();
    }
    let (id, _) = plane.call();
    plane.say(&Up::Answer { id, result: Ok(json!(NodeStatus::default())) }, vec![]);
    assert_eq!(client.answer(status), Ok(json!([])));
    assert_eq!(client.answer(args).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn a_request_without_end_is_refused_and_the_client_dropped() {
    let bed = Bed::with(Timing::default(), false);
    let _plane = bed.ready_plane();
    let mut client = bed.api();
    client.send_raw(&vec![b'x'; softdpu_api::LONGEST_REQUEST + 1]);
    assert_eq!(client.response().outcome.unwrap_err().code, ErrorCode::BadRequest);
}

#[test]
fn a_change_that_cannot_be_saved_says_so_and_is_saved_when_it_can() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    fs::write(bed.path("state"), "in its place").unwrap();
    let mut client = bed.api();
    let asked = client.ask(Change::VolumeCreate(volume("extra")));
    accept(&mut plane, Change::VolumeCreate(volume("extra")));
    let answer = client.answer(asked).unwrap();
    let warning = answer["warning"].as_str().expect("the change is made, with a warning");
    assert!(warning.contains("cannot be saved in") && warning.contains("/state: "), "{warning}");
    plane.die("killed by SIGKILL");
    bed.status_becomes(|status| status.problems().iter().any(|problem| problem == warning));
    fs::remove_file(bed.path("state")).unwrap();
    bed.status_becomes(|status| status.unsaved.is_none());
    assert!(fs::read_to_string(bed.path("state/desired.json")).unwrap().contains("extra"));
}
