//! Upgrades of the supervisor: another program goes on with everything that this one has, and one that cannot changes
//! nothing.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use serde_json::json;
use softdpu_api::status::{NodeStatus, UpgradeStage};
use softdpu_api::{Change, Query, Upgrade, UpgradePart};
use softdpu_link::{Call, Down, SharedFd, Up};
use softdpu_site::volume_from_json;

use super::bed::{ApiStub, Bed, FORMATS, FakePlane, message};

fn upgrade(program: &str, only: Option<UpgradePart>) -> Query {
    Query::Upgrade(Upgrade { program: format!("/{program}").into(), force: false, only })
}

const SUPERVISOR: Option<UpgradePart> = Some(UpgradePart::Supervisor);

fn null() -> SharedFd {
    Arc::new(OwnedFd::from(File::open("/dev/null").unwrap()).into())
}

/// Answers one more message of a front end at `a`: all of the way is there.
fn serves(bed: &Bed, plane: &mut FakePlane) {
    let mut front_end = bed.connect("a");
    let (connection, ..) = plane.attach();
    front_end.send(&message(1, b""));
    assert_eq!(plane.message().1, message(1, b""));
    plane.handled(connection, b"!", "s");
    assert_eq!(front_end.receive(1), b"!");
    drop(front_end);
    assert!(matches!(plane.next(), (Down::Closed { .. }, _)));
}

fn node(client: &mut ApiStub, plane: &mut FakePlane) -> NodeStatus {
    let asked = client.ask(Query::Status);
    let (id, call) = plane.call();
    assert_eq!(call, Call::Status);
    plane.say(&Up::Answer { id, result: Ok(json!(NodeStatus::default())) }, vec![]);
    serde_json::from_value(client.answer(asked).unwrap()).unwrap()
}

#[test]
fn another_program_goes_on_with_every_connection_message_and_descriptor() {
    let mut bed = Bed::new();
    let mut plane = bed.ready_plane();
    // A session with descriptors, and a message that is not answered.
    let mut first = bed.connect("a");
    let (a, ..) = plane.attach();
    first.send_with_fds(&message(5, b"memory"), &[null().as_fd(), null().as_fd()]);
    plane.message();
    plane.handled(a, b".", "session");
    first.receive(1);
    first.send(&message(7, b"unanswered"));
    assert_eq!(plane.message().1, message(7, b"unanswered"));
    // Half a message, of which the descriptor is there.
    let mut second = bed.connect("b");
    let (b, ..) = plane.attach();
    let whole = message(8, b"in halves");
    second.send_with_fds(&whole[..9], &[null().as_fd()]);
    // Half a frame of the data plane, and a descriptor in the vault.
    plane.say(&Up::Keep { key: "kept".into() }, vec![null()]);
    let alive = [7u32.to_le_bytes().as_slice(), &0u32.to_le_bytes(), b"\"alive\""].concat();
    rustix::io::write(plane.link.as_fd(), &alive[..11]).unwrap();
    // A question under way, and half of one.
    let (mut asking, mut half, mut client) = (bed.api(), bed.api(), bed.api());
    let asked = asking.ask(Query::VolumeList);
    let (call, _) = plane.call();
    let question = "{\"softdpu\":1,\"id\":1,\"method\":\"device.args\",\"params\":{\"name\":\"a\"}}\n";
    half.send_raw(&question.as_bytes()[..30]);

    let order = client.ask(upgrade("new", SUPERVISOR));
    bed.followed();
    let result = client.answer(order).unwrap();
    assert_eq!(
        (&result["from"], &result["switched_us"]),
        (&json!("1"), &json!(0)),
        "the data plane serves on: {result}"
    );
    assert!(result["supervisor"]["switched_us"].as_u64().is_some_and(|us| us > 0), "{result}");

    assert!(plane.hears_nothing(), "it notices nothing");
    rustix::io::write(plane.link.as_fd(), &alive[11..]).unwrap();
    plane.say(&Up::Answer { id: call, result: Ok(json!(NodeStatus::default())) }, vec![]);
    assert_eq!(asking.answer(asked).unwrap(), json!([]));
    half.send_raw(&question.as_bytes()[30..]);
    assert!(half.response().outcome.is_ok());
    second.send(&whole[9..]);
    let (connection, bytes, ids, fds) = plane.message();
    assert_eq!((connection, bytes, ids.len(), fds.len()), (b, whole, 1, 1));
    plane.handled(a, b"answer", "later session");
    assert_eq!(first.receive(6), b"answer");
    let status = node(&mut client, &mut plane);
    let upgraded = status.supervisor_upgrade.unwrap();
    assert_eq!((upgraded.stage, upgraded.error), (UpgradeStage::Done, None));
    assert_eq!((status.data_plane.restarts, status.data_plane.version.as_deref()), (0, Some("1")));

    // Its death is noticed, and the next one gets everything.
    plane.die("killed by SIGSEGV");
    let mut next = bed.plane();
    assert_eq!(next.program.to_str(), Some("first"), "the data plane's program was not upgraded");
    next.greet("1", FORMATS);
    let (_, incarnation, kept, fds) = next.start();
    assert_eq!((incarnation, kept, fds.len()), (2, vec!["kept".to_owned()], 1));
    next.say(&Up::Ready, vec![]);
    let (connection, session, ids, fds) = next.attach();
    assert_eq!((connection, session.as_deref()), (a, Some("later session")));
    assert_eq!((ids, fds.len()), (vec![0, 1], 2));
    next.attach();
    assert_eq!(next.message().2, [0], "the unanswered message of the other front end, with its descriptor");
    drop(first);
    assert!(matches!(next.next(), (Down::Closed { .. }, _)));
    serves(&bed, &mut next);
    bed.handle.stop();
    assert!(matches!(next.next(), (Down::Shutdown, _)));
    next.die("exit status 0");
    bed.finished().unwrap();
    assert!(UnixStream::connect(bed.path("a.sock")).is_err(), "its sockets are gone with the last program");
}

#[test]
fn a_program_that_cannot_follow_changes_nothing() {
    for (program, why) in [
        ("mute", "it does not answer in time"),
        ("too-new", "reads states of formats"),
        ("other-link", "does not speak link format"),
        ("liar", "has not read it"),
        ("refuses", "it is not to its taste"),
        ("cannot-start", "it cannot be executed: permission denied"),
        ("absent", "cannot be started"),
    ] {
        let bed = Bed::new();
        let mut plane = bed.ready_plane();
        let mut client = bed.api();
        let order = client.ask(upgrade(program, SUPERVISOR));
        let error = client.answer(order).unwrap_err();
        assert!(error.message.contains(why), "{program}: {error:?}");
        serves(&bed, &mut plane);
        let status = node(&mut client, &mut plane);
        let failed = status.supervisor_upgrade.map(|upgrade| (upgrade.stage, upgrade.error.unwrap_or_default()));
        match failed {
            Some((UpgradeStage::Failed, error)) => assert!(error.contains(why), "{program}: {error}"),
            other => assert_eq!((program, other), ("absent", None)),
        }
        assert!(bed.path("a.sock").exists());
    }
}

#[test]
fn a_program_that_cannot_take_up_the_state_is_followed_by_the_one_before() {
    let mut bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let order = client.ask(upgrade("goes-back", None));
    bed.followed();
    let error = client.answer(order).unwrap_err();
    assert!(error.message.contains("the upgrade of the supervisor failed: it could not"), "{error:?}");
    assert!(plane.hears_nothing());
    serves(&bed, &mut plane);
}

#[test]
fn the_supervisor_is_upgraded_first_and_then_upgrades_the_data_plane() {
    let mut bed = Bed::new();
    let mut old = bed.ready_plane();
    let mut client = bed.api();
    let order = client.ask(upgrade("new", None));
    bed.followed();
    let mut new = bed.plane();
    assert_eq!(new.program.to_str(), Some("/new"));
    new.greet("2", FORMATS);
    assert!(matches!(new.next(), (Down::Start { standby: true, incarnation: 2, .. }, _)));
    new.say(&Up::Prepared { problems: vec![] }, vec![]);
    assert!(matches!(old.next(), (Down::Quiesce { .. }, _)));
    old.say(&Up::Quiesced { abandoned: 0 }, vec![]);
    assert!(matches!(new.next(), (Down::TakeOver { .. }, _)));
    let result = client.answer(order).unwrap();
    assert_eq!((&result["from"], &result["to"]), (&json!("1"), &json!("2")));
    assert!(result["supervisor"]["to"].is_string(), "{result}");
    // The next one begins while the old data plane has not left, and the new one is on probation.
    let order = client.ask(upgrade("newer", SUPERVISOR));
    bed.followed();
    client.answer(order).unwrap();
    assert!(matches!(old.next(), (Down::Shutdown, _)), "it is told to leave all the same");
    old.die("exit status 0");
    serves(&bed, &mut new);
    new.die("killed by SIGSEGV");
    assert_eq!(bed.ready_plane().program.to_str(), Some("first"), "the program before, after one that died young");
}

#[test]
fn a_supervisor_that_does_not_speak_to_the_present_data_plane_is_upgraded_after_it() {
    let bed = Bed::new();
    let mut old = bed.ready_plane();
    let mut client = bed.api();
    let order = client.ask(upgrade("other-link", None));
    let mut new = bed.plane();
    new.greet("2", FORMATS);
    new.next();
    new.say(&Up::Prepared { problems: vec![] }, vec![]);
    old.next();
    old.say(&Up::Quiesced { abandoned: 0 }, vec![]);
    assert!(matches!(new.next(), (Down::TakeOver { .. }, _)));
    // Here it does not speak to the new one either.
    let error = client.answer(order).unwrap_err();
    assert!(
        error.message.starts_with("the data plane was upgraded from 1 to 2; the upgrade of the super"),
        "{error:?}"
    );
    serves(&bed, &mut new);
}

#[test]
fn a_data_plane_that_cannot_take_over_stays_below_the_new_supervisor() {
    let mut bed = Bed::new();
    let mut old = bed.ready_plane();
    let mut client = bed.api();
    let order = client.ask(upgrade("new", None));
    bed.followed();
    bed.plane().die("exit status 1");
    let error = client.answer(order).unwrap_err();
    assert!(error.message.starts_with("the supervisor was upgraded from "), "{error:?}");
    assert!(error.message.contains("has ended: exit status 1"), "{error:?}");
    serves(&bed, &mut old);
}

#[test]
fn changes_that_wait_are_made_by_the_program_that_follows() {
    let mut bed = Bed::new();
    let mut plane = bed.ready_plane();
    let (mut client, mut other) = (bed.api(), bed.api());
    let order = client.ask(upgrade("slow", SUPERVISOR));
    let volume = volume_from_json(&json!({"name": "more", "null": {"size": "4 MiB"}})).unwrap();
    let asked = other.ask(Change::VolumeCreate(volume.clone()));
    bed.followed();
    client.answer(order).unwrap();
    let (id, call) = plane.call();
    assert_eq!(call, Call::Change(Change::VolumeCreate(volume)));
    plane.say(&Up::Answer { id, result: Ok(json!({})) }, vec![]);
    other.answer(asked).unwrap();
    let order = client.ask(upgrade("new", SUPERVISOR));
    bed.followed();
    client.answer(order).unwrap();
    plane.die("killed by SIGSEGV");
    let mut next = bed.plane();
    next.greet("1", FORMATS);
    assert!(next.start().0.volume("more").is_some(), "what was changed is still there");
}

#[test]
fn a_data_plane_that_dies_meanwhile_is_followed_by_another() {
    for _ in 0..10 {
        let mut bed = Bed::new();
        let mut plane = bed.ready_plane();
        let mut front_end = bed.connect("a");
        let (connection, ..) = plane.attach();
        front_end.send(&message(1, b""));
        plane.message();
        let mut client = bed.api();
        let order = client.ask(upgrade("new", SUPERVISOR));
        plane.die_saying(&super::bed::handled(connection, b"!", "last"), "killed by SIGKILL");
        bed.followed();
        client.answer(order).unwrap();
        assert_eq!(front_end.receive(1), b"!", "what it said last counts");
        let mut next = bed.ready_plane();
        assert_eq!(next.attach().1.as_deref(), Some("last"));
        assert_eq!(bed.starts.lock().unwrap().len(), 2);
    }
}

#[test]
fn twenty_programs_follow_one_after_the_other() {
    let mut bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut front_end = bed.connect("a");
    let (connection, ..) = plane.attach();
    let mut client = bed.api();
    for number in 0..20u8 {
        front_end.send_with_fds(&message(u32::from(number), b""), &[null().as_fd()]);
        assert_eq!(plane.message().2, [u32::from(number)]);
        let order = client.ask(upgrade("new", SUPERVISOR));
        bed.followed();
        client.answer(order).unwrap();
        plane.handled(connection, &[number], "session");
        assert_eq!(front_end.receive(1), [number]);
    }
    drop(front_end);
    assert!(matches!(plane.next(), (Down::Closed { .. }, _)));
}
