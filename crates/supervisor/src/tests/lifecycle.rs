use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::super::run::RunError;
use super::super::socket::SocketError;
use super::super::supervisor::Timing;
use super::bed::{Bed, FakePlane, PATIENCE};
use softdpu_api::status::DataPlaneState;
use softdpu_link::{Down, Open, Up};

fn open(plane: &mut FakePlane, volume: &str) -> Result<OwnedFd, String> {
    plane.say(
        &Up::Open { call: 9, open: Open { volume: volume.into(), read_only: false, direct: false, key: false } },
        vec![],
    );
    match plane.next() {
        (Down::Opened { call: 9, result: Ok(()) }, mut fds) => Ok(fds.remove(0).into_owned()),
        (Down::Opened { call: 9, result: Err(failure) }, _) => Err(failure.message),
        other => panic!("expected Opened, got {other:?}"),
    }
}

#[test]
fn each_backing_file_that_is_opened_is_a_description_of_its_own() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let first = open(&mut plane, "disk").unwrap();
    assert_eq!(std::fs::metadata(bed.path("disk.img")).unwrap().len(), 1 << 20);
    let second = open(&mut plane, "disk").unwrap();
    flock(&first, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(flock(&second, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    drop(first);
    flock(&second, FlockOperation::NonBlockingLockExclusive).expect("the supervisor holds no copy");
}

#[test]
fn only_what_volumes_are_kept_in_is_opened() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    assert_eq!(open(&mut plane, "/etc/shadow").unwrap_err(), "there is no volume called \"/etc/shadow\"");
    assert!(open(&mut plane, "scratch").unwrap_err().contains("it is a `memory` volume"));
}

#[test]
fn the_vault_is_handed_on_with_its_keys() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    for (key, text) in [("b", "old"), ("a", "A"), ("b", "new"), ("c", "C")] {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        plane.say(&Up::Keep { key: key.into() }, vec![Arc::new(file.into())]);
    }
    plane.say(&Up::Forget { key: "c".into() }, vec![]);
    plane.die("killed by SIGKILL");
    let mut next = bed.plane();
    let (_, incarnation, kept, fds) = next.start();
    assert_eq!((incarnation, kept), (2, vec!["a".to_owned(), "b".to_owned()]));
    let mut text = [0; 3];
    assert_eq!(rustix::io::pread(&fds[1], &mut text, 0), Ok(3));
    assert_eq!(&text, b"new");
}

#[test]
fn the_next_data_plane_learns_when_and_how_the_last_one_died() {
    let bed = Bed::new();
    let before = softdpu_link::monotonic_ns();
    bed.ready_plane().die("killed by SIGKILL");
    let (start, _) = bed.plane().next();
    let Down::Start { death: Some(death), .. } = start else { panic!("{start:?}") };
    assert_eq!(death.reason, "killed by SIGKILL");
    assert!((before..=softdpu_link::monotonic_ns()).contains(&death.at_ns));
}

#[test]
fn a_crash_loop_is_slowed_down_shown_and_never_given_up() {
    let bed = Bed::with(Timing::default(), true);
    bed.status_becomes(|status| status.data_plane.restarts >= 9);
    let status = bed.handle.status(PATIENCE).unwrap();
    assert_eq!(status.data_plane.state, DataPlaneState::Failed);
    assert_eq!(status.data_plane.last_exit.as_deref(), Some("exit status 1"));
    let starts = bed.starts.lock().unwrap().clone();
    let pause = |index: usize| starts[index + 1] - starts[index];
    assert!(pause(6) >= Duration::from_millis(50), "{:?}", pause(6));
    assert!(pause(8) >= Duration::from_millis(200), "{:?}", pause(8));
}

#[test]
fn data_planes_that_take_long_to_start_and_never_serve_are_slowed_down_too() {
    let bed = Bed::new();
    for _ in 0..7 {
        let mut plane = bed.plane();
        plane.start();
        std::thread::sleep(Duration::from_millis(260));
        plane.die("exit status 1");
    }
    bed.status_becomes(|status| status.data_plane.state == DataPlaneState::Failed);
    bed.plane();
    let starts = bed.starts.lock().unwrap().clone();
    // The seventh death is followed by the second pause.
    assert!(starts[7] - starts[6] >= Duration::from_millis(260 + 100), "{:?}", starts[7] - starts[6]);
}

#[test]
fn a_silent_data_plane_is_killed_and_replaced() {
    let timing = Timing { watchdog: Duration::from_secs(2), ..Timing::default() };
    let bed = Bed::with(timing, false);
    let mut plane = bed.ready_plane();
    // For longer than it may be silent, and often enough for a machine that is busy with something else now and then.
    for _ in 0..25 {
        std::thread::sleep(Duration::from_millis(100));
        plane.say(&Up::Alive, vec![]);
    }
    assert!(plane.was_killed());
    drop(plane);
    bed.status_becomes(|status| {
        status.data_plane.last_exit.as_deref() == Some("killed by SIGKILL (it was silent for too long)")
    });
    bed.ready_plane();
}

#[test]
fn a_data_plane_that_is_dead_and_cannot_be_reaped_is_replaced_without_waiting_for_the_watchdog() {
    let mut bed = Bed::new();
    let before = Instant::now();
    let stuck = bed.ready_plane().die_stuck("killed by SIGKILL");
    let mut second = bed.plane();
    assert!(before.elapsed() < Timing::default().watchdog);
    let (start, _) = second.next();
    let Down::Start { death: Some(death), .. } = start else { panic!("{start:?}") };
    assert_eq!(death.reason, "killed by SIGKILL");

    // Its end is not taken for another's, and nothing is started for it.
    stuck.end();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(bed.starts.lock().unwrap().len(), 2);

    // One that hangs does not hold up the end of all either.
    let stuck = second.die_stuck("killed by SIGKILL");
    bed.handle.stop();
    bed.finished().unwrap();
    stuck.end();
}

#[test]
fn a_data_plane_that_breaks_the_links_rules_is_killed_and_replaced() {
    let bed = Bed::new();
    let plane = bed.ready_plane();
    rustix::io::write(&plane.link, &[0xff; 64]).unwrap();
    assert!(plane.was_killed());
    bed.ready_plane();
}

#[test]
fn stopping_is_orderly_and_removes_the_sockets() {
    let mut bed = Bed::new();
    let mut plane = bed.ready_plane();
    bed.handle.stop();
    assert_eq!(plane.next().0, Down::Shutdown);
    plane.die("exit status 0");
    bed.finished().unwrap();
    assert!(!bed.path("a.sock").exists() && !bed.path("run/api.sock").exists());
    assert_eq!(bed.starts.lock().unwrap().len(), 1, "nothing was started again");
}

#[test]
fn a_data_plane_that_does_not_stop_in_time_is_killed() {
    let timing = Timing { shutdown: Duration::from_millis(100), ..Timing::default() };
    let mut bed = Bed::with(timing, false);
    let plane = bed.ready_plane();
    let before = Instant::now();
    bed.handle.stop();
    bed.finished().unwrap();
    assert!(plane.was_killed());
    assert!(before.elapsed() >= Duration::from_millis(100));
}

#[test]
fn a_socket_left_by_a_dead_process_is_replaced_and_one_in_use_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(folder.path().join("a.sock")).unwrap());
    let other = UnixListener::bind(folder.path().join("b.sock")).unwrap();
    let error = Bed::try_in(folder, Timing::default(), false).err().unwrap();
    assert!(matches!(&error, RunError::Socket(SocketError::InUse { path }) if path.ends_with("b.sock")), "{error}");
    drop(other);

    let folder = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(folder.path().join("a.sock")).unwrap());
    let bed = Bed::try_in(folder, Timing::default(), false).unwrap();
    let _front_end = bed.connect("a");
    let mut plane = bed.ready_plane();
    plane.attach();
}

#[test]
fn an_image_is_made_once_and_what_is_gone_is_not_taken_for_new() {
    let mut bed = Bed::new();
    let mut plane = bed.ready_plane();
    open(&mut plane, "disk").unwrap();
    // As when its file system is not mounted.
    std::fs::remove_file(bed.path("disk.img")).unwrap();
    let error = open(&mut plane, "disk").unwrap_err();
    assert!(error.contains("the image is gone") && error.contains("truncate -s 1048576"), "{error}");
    plane.die("killed by SIGKILL");
    let mut plane = bed.ready_plane();
    open(&mut plane, "disk").expect_err("a data plane that follows makes none either");
    bed.handle.stop();
    assert!(matches!(plane.next(), (Down::Shutdown, _)));
    plane.die("exit status 0");
    bed.finished().unwrap();
    let folder = std::mem::replace(&mut bed.folder, tempfile::tempdir().unwrap());
    let bed = Bed::try_in(folder, Timing::default(), false).unwrap();
    let mut plane = bed.ready_plane();
    open(&mut plane, "disk").expect_err("nor does a supervisor that follows");
    assert!(!bed.path("disk.img").exists());
    // As the error says.
    std::fs::File::create(bed.path("disk.img")).unwrap().set_len(1 << 20).unwrap();
    open(&mut plane, "disk").unwrap();
}

#[test]
fn a_data_plane_that_floods_the_supervisor_is_ended_and_another_one_serves() {
    let bed = Bed::new();
    let flood = |excess: &dyn Fn(&mut FakePlane)| {
        let mut plane = bed.ready_plane();
        excess(&mut plane);
        assert!(plane.was_killed(), "the supervisor goes on with it");
    };
    // It asks and takes no answers: more than the socket holds and the supervisor keeps.
    flood(&|plane| {
        let connect = Up::Connect { call: 1, volume: "no such volume".into(), patience_ms: 1 };
        for _ in 0..60_000 {
            // It is ended in the middle of it.
            if plane.link.send(&connect, vec![]).and_then(|()| plane.link.drain()).is_err() {
                break;
            }
        }
    });
    let session = "s".repeat(2 << 20);
    flood(&|plane| {
        plane.say(&Up::Close { connection: softdpu_link::ConnectionId(7), reason: session.clone() }, vec![]);
    });
    flood(&|plane| {
        let file = tempfile::tempfile().unwrap();
        plane.say(&Up::Keep { key: session.clone() }, vec![Arc::new(OwnedFd::from(file).into())]);
    });
    let status = bed.handle.status(PATIENCE).unwrap();
    assert!(status.data_plane.last_exit.unwrap().contains("a name that is too long"));
}

#[test]
fn servers_and_interfaces_are_those_of_volumes_and_devices() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut ask = |message: Up| {
        plane.say(&message, vec![]);
        match plane.next() {
            (Down::Opened { call: 9, result: Err(failure) }, _) => failure.message,
            other => panic!("expected a refusal, got {other:?}"),
        }
    };
    let connect = |volume: &str| Up::Connect { call: 9, volume: volume.into(), patience_ms: 100 };
    assert_eq!(ask(connect("203.0.113.7")), "there is no volume called \"203.0.113.7\"");
    assert_eq!(ask(connect("disk")), "volume \"disk\" has no server");
    let tap = |device: &str| Up::OpenTap { call: 9, device: device.into(), mtu: 1500 };
    assert_eq!(ask(tap("eth0")), "there is no device called \"eth0\"");
}
