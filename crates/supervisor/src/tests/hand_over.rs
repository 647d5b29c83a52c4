//! Data planes that die of something: the one that is to blame goes, the others stay.

use std::time::Duration;

use super::bed::{A_WHILE, Bed, FrontEndStub, message};
use softdpu_api::status::DataPlaneState;
use softdpu_link::{ConnectionId, Down, Up};

/// A front end of device `a` whose session is `s1`.
fn with_session(bed: &Bed) -> (FrontEndStub, ConnectionId) {
    let mut plane = bed.ready_plane();
    let mut front_end = bed.connect("a");
    let (connection, ..) = plane.attach();
    front_end.send(&message(1, b""));
    plane.message();
    plane.handled(connection, b".", "s1");
    front_end.receive(1);
    plane.die("killed by SIGSEGV");
    (front_end, connection)
}

fn is_message(down: &Down, request: u8) -> bool {
    matches!(down, Down::Message { header, .. } if header[0] == request)
}

/// The innocent front end of device `b` is still served, and that of `a` is closed, for a reason that `status` shows.
fn only_b_lives(bed: &Bed, mut guilty: FrontEndStub, mut innocent: FrontEndStub, reason: &str) {
    assert!(guilty.is_closed());
    let mut plane = bed.ready_plane();
    let (connection, ..) = plane.attach();
    innocent.send(&message(9, b""));
    while plane.message().1 != message(9, b"") {
        plane.handled(connection, b"", "s");
    }
    plane.handled(connection, b"!", "s");
    assert_eq!(innocent.receive(1), b"!");

    let status = bed.handle.status(A_WHILE).unwrap_or_else(|| {
        // Asked of the data plane, which does not answer here.
        plane.die("killed by SIGKILL");
        bed.handle.status(super::bed::PATIENCE).unwrap()
    });
    let marks: Vec<_> = status.devices.iter().map(|device| device.closed_front_ends.clone()).collect();
    assert_eq!(marks[1], None);
    let mark = marks[0].clone().unwrap();
    assert_eq!(mark.count, 1);
    assert!(mark.reason.contains(reason), "{mark:?}");
    assert!((1..=10).contains(&mark.accepts_in_s), "{mark:?}");
    assert!(status.problems().iter().any(|problem| problem.contains(reason)), "{:?}", status.problems());
}

#[test]
fn a_message_that_kills_every_data_plane_is_given_up_and_those_that_wait_behind_it_are_not() {
    let bed = Bed::new();
    let mut guilty = bed.connect("a");
    guilty.send(&message(66, b"poison"));
    let mut innocent = bed.connect("b");
    innocent.send(&message(1, b""));
    for _ in 0..5 {
        bed.ready_plane().die_of(|down| is_message(down, 66));
    }
    only_b_lives(&bed, guilty, innocent, "5 data planes died while they handled its request 66");
}

#[test]
fn a_message_that_takes_its_time_is_not_blamed_for_the_one_behind_it() {
    let bed = Bed::new();
    let mut slow = bed.connect("b");
    slow.send(&message(11, b""));
    let mut plane = bed.ready_plane();
    plane.attach();
    plane.message();
    // Given first, and never answered in time.
    let mut guilty = bed.connect("a");
    guilty.send(&message(66, b"poison"));
    plane.die_of(|down| is_message(down, 66));
    for _ in 0..20 {
        let plane = bed.ready_plane();
        if guilty.0.set_nonblocking(true).is_ok() && guilty.is_closed() {
            plane.die("killed by SIGKILL");
            guilty.0.set_nonblocking(false).unwrap();
            return only_b_lives(&bed, guilty, slow, "request 66");
        }
        guilty.0.set_nonblocking(false).unwrap();
        plane.die_of(|down| is_message(down, 66));
    }
    panic!("the poison is never found");
}

#[test]
fn those_that_the_next_data_plane_is_given_are_said_to_belong_together() {
    let bed = Bed::new();
    let _connected = (bed.connect("a"), bed.connect("b"));
    let mut plane = bed.ready_plane();
    plane.attach();
    plane.attach();
    plane.die("killed by SIGKILL");
    let mut plane = bed.ready_plane();
    let more = [(); 2].map(|()| match plane.next().0 {
        Down::Attach { connection, more, .. } => {
            plane.say(&Up::Attached { connection }, vec![]);
            more
        }
        other => panic!("expected Attach, got {other:?}"),
    });
    assert_eq!(more, [true, false]);
    plane.die("the test is over");
}

#[test]
fn a_session_that_kills_every_data_plane_that_takes_it_up_is_given_up() {
    let bed = Bed::new();
    let (guilty, connection) = with_session(&bed);
    let mut innocent = bed.connect("b");
    innocent.send(&message(1, b""));
    for _ in 0..5 {
        bed.ready_plane().die_of(|down| matches!(down, Down::Attach { connection: id, .. } if *id == connection));
    }
    only_b_lives(&bed, guilty, innocent, "5 data planes died when they had taken up its session");
}

#[test]
fn a_session_that_kills_data_planes_a_moment_after_they_took_it_up_is_found_in_the_crash_loop() {
    let bed = Bed::new();
    let (mut guilty, connection) = with_session(&bed);
    let innocent = bed.connect("b");
    let mut deaths = 0;
    loop {
        let mut plane = bed.ready_plane();
        guilty.0.set_nonblocking(true).unwrap();
        let closed = guilty.is_closed();
        guilty.0.set_nonblocking(false).unwrap();
        if closed {
            plane.die("killed by SIGKILL");
            break;
        }
        assert!(deaths < 20, "the session is never found");
        deaths += 1;
        while plane.attach().0 != connection {}
        // Its queue breaks something.
        plane.die_after(Duration::from_millis(10));
    }
    only_b_lives(&bed, guilty, innocent, "died when they had taken up its session");
}

#[test]
fn a_suspect_that_has_to_wait_is_tried_again_and_neither_acquitted_nor_blamed_meanwhile() {
    let bed = Bed::new();
    let (guilty, connection) = with_session(&bed);
    let mut innocent = bed.connect("b");
    innocent.send(&message(1, b""));
    let deadly = |down: &Down| matches!(down, Down::Attach { connection: id, .. } if *id == connection);
    for round in 0..5 {
        let mut plane = bed.ready_plane();
        let mut held = 0;
        // Suspected, it comes last; its volume opens when it has been tried three times.
        while round >= 2 && held < 3 {
            match plane.next().0 {
                Down::Attach { connection: id, .. } if id == connection => {
                    plane.say(&Up::Held { connection: id }, vec![]);
                    held += 1;
                }
                Down::Attach { connection: id, .. } => plane.say(&Up::Attached { connection: id }, vec![]),
                Down::Closed { connection: id } => assert_eq!(id, connection),
                _ => {}
            }
        }
        plane.die_of(deadly);
    }
    only_b_lives(&bed, guilty, innocent, "5 data planes died when they had taken up its session");
}

#[test]
fn a_front_end_that_waits_for_its_volume_is_not_blamed_for_what_comes_later() {
    let bed = Bed::new();
    let mut waits = bed.connect("b");
    waits.send(&message(1, b""));
    let mut guilty = bed.connect("a");
    guilty.send(&message(66, b"poison"));
    for _ in 0..5 {
        let mut plane = bed.ready_plane();
        loop {
            let down = plane.next().0;
            match down {
                Down::Attach { connection, ref device, .. } if device == "b" => {
                    plane.say(&Up::Held { connection }, vec![]);
                }
                Down::Attach { connection, .. } => plane.say(&Up::Attached { connection }, vec![]),
                _ if is_message(&down, 66) => break,
                _ => {}
            }
        }
        plane.die("killed by SIGSEGV");
    }
    only_b_lives(&bed, guilty, waits, "5 data planes died while they handled its request 66");
}

#[test]
fn a_device_whose_front_end_was_given_up_accepts_nobody_for_a_while() {
    let bed = Bed::new();
    let mut guilty = bed.connect("a");
    guilty.send(&message(66, b""));
    for _ in 0..5 {
        bed.ready_plane().die_of(|down| is_message(down, 66));
    }
    assert!(guilty.is_closed());
    let mut plane = bed.ready_plane();
    let mut again = bed.connect("a");
    again.send(&message(66, b""));
    assert!(plane.hears_nothing());
    bed.connect("b");
    plane.attach();
}

#[test]
fn what_dies_before_it_is_ready_died_of_no_front_end() {
    let bed = Bed::new();
    let mut front_end = bed.connect("a");
    front_end.send(&message(1, b""));
    for _ in 0..8 {
        let mut plane = bed.plane();
        plane.start();
        assert!(plane.link.wait(Some(Duration::from_millis(5))).unwrap().is_none(), "it is not ready for front ends");
        plane.die("exit status 1");
    }
    bed.status_becomes(|status| status.data_plane.state == DataPlaneState::Failed);
    let mut plane = bed.ready_plane();
    let (connection, ..) = plane.attach();
    plane.message();
    plane.handled(connection, b".", "s");
    assert_eq!(front_end.receive(1), b".");
}

#[test]
fn what_dies_by_itself_died_of_no_front_end() {
    let bed = Bed::new();
    let (mut front_end, connection) = with_session(&bed);
    for _ in 0..9 {
        bed.ready_plane().die_after(Duration::from_millis(10));
    }
    let mut plane = bed.ready_plane();
    assert_eq!(plane.attach().0, connection);
    front_end.send(&message(1, b""));
    plane.message();
    plane.handled(connection, b".", "s");
    assert_eq!(front_end.receive(1), b".");
}

#[test]
fn a_session_that_a_data_plane_survives_is_acquitted() {
    let bed = Bed::new();
    let (mut front_end, connection) = with_session(&bed);
    for _ in 0..3 {
        for _ in 0..4 {
            bed.ready_plane().die_of(|down| matches!(down, Down::Attach { .. }));
        }
        let mut plane = bed.ready_plane();
        assert_eq!(plane.attach().0, connection);
        // Longer than any trial.
        std::thread::sleep(Duration::from_millis(400));
        plane.say(&Up::Alive, vec![]);
        plane.die("killed by SIGKILL");
    }
    let mut plane = bed.ready_plane();
    plane.attach();
    front_end.send(&message(1, b""));
    plane.message();
    plane.handled(connection, b".", "s");
    assert_eq!(front_end.receive(1), b".");
}
