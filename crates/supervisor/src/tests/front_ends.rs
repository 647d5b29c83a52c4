use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::bed::{Bed, message};
use softdpu_link::{Down, FIRST_KEPT_FD, Up};
use softdpu_sys::ReapedFd;

fn file_with(text: &str) -> ReapedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.into()
}

fn texts(fds: &[ReapedFd]) -> Vec<String> {
    let text = |fd: &ReapedFd| {
        let mut bytes = [0; 32];
        let count = rustix::io::pread(fd.as_fd(), &mut bytes, 0).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    };
    fds.iter().map(text).collect()
}

#[test]
fn a_message_is_answered_once_and_the_next_is_read_only_then() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut front_end = bed.connect("a");
    let (connection, session, ..) = plane.attach();
    assert_eq!(session, None);
    front_end.send(&[message(1, b""), message(2, b"second")].concat());
    assert_eq!(plane.message().1, message(1, b""));
    assert!(plane.hears_nothing(), "the second message waits for the first one's answer");
    plane.handled(connection, b"reply", "s1");
    assert_eq!(front_end.receive(5), b"reply");
    assert_eq!(plane.message().1, message(2, b"second"));
    assert!(front_end.receives_nothing());
}

#[test]
fn a_message_that_was_not_answered_is_given_to_the_next_data_plane_with_session_and_descriptors() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut front_end = bed.connect("a");
    let (connection, ..) = plane.attach();

    front_end.send_with_fds(&message(5, b"memory"), &[file_with("region").as_fd()]);
    let (_, _, ids, _) = plane.message();
    assert_eq!(ids, [0]);
    let up = Up::Handled {
        connection,
        reply: vec![],
        reply_fds: 0,
        session: "after 5".into(),
        kept: vec![FIRST_KEPT_FD],
        released: vec![],
        close: None,
    };
    plane.say(&up, vec![Arc::new(file_with("made"))]);
    front_end.send_with_fds(&message(12, b"kick"), &[file_with("kick").as_fd()]);
    let (_, _, ids, _) = plane.message();
    assert_eq!(ids, [1]);
    plane.die("killed by SIGKILL");

    for _ in 0..3 {
        let mut next = bed.ready_plane();
        let (again, session, ids, fds) = next.attach();
        assert_eq!((again, session.as_deref()), (connection, Some("after 5")));
        assert_eq!(ids, [0, FIRST_KEPT_FD], "not yet those of the message");
        assert_eq!(texts(&fds), ["region", "made"]);
        let (_, bytes, ids, fds) = next.message();
        assert_eq!((bytes, ids), (message(12, b"kick"), vec![1]));
        assert_eq!(texts(&fds), ["kick"]);
        next.die("killed by SIGKILL");
    }

    let mut last = bed.ready_plane();
    last.attach();
    last.message();
    last.handled(connection, b"ok", "after 12");
    assert_eq!(front_end.receive(2), b"ok");
    assert!(front_end.receives_nothing(), "one reply, however many data planes saw the message");
}

#[test]
fn an_answer_sent_just_before_the_death_counts() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut front_end = bed.connect("a");
    let (connection, ..) = plane.attach();
    front_end.send(&message(1, b""));
    plane.message();
    plane.handled(connection, b"once", "s1");
    plane.die("killed by SIGKILL");
    assert_eq!(front_end.receive(4), b"once");
    let mut next = bed.ready_plane();
    assert_eq!(next.attach().1.as_deref(), Some("s1"));
    assert!(next.hears_nothing());
    assert!(front_end.receives_nothing());
}

#[test]
fn descriptors_leave_the_table_when_they_are_released() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut front_end = bed.connect("a");
    let (connection, ..) = plane.attach();
    front_end.send_with_fds(&message(12, b""), &[file_with("old").as_fd()]);
    plane.message();
    plane.handled(connection, b"", "one");
    front_end.send_with_fds(&message(12, b""), &[file_with("new").as_fd()]);
    plane.message();
    let up = Up::Handled {
        connection,
        reply: b".".to_vec(),
        reply_fds: 0,
        session: "two".into(),
        kept: vec![FIRST_KEPT_FD + 5],
        released: vec![0],
        close: None,
    };
    plane.say(&up, vec![Arc::new(file_with("made"))]);
    front_end.receive(1);
    plane.die("exit status 101");
    let mut next = bed.ready_plane();
    let (_, session, ids, fds) = next.attach();
    assert_eq!((session.as_deref(), ids), (Some("two"), vec![1, FIRST_KEPT_FD + 5]));
    assert_eq!(texts(&fds), ["new", "made"]);
}

#[test]
fn a_reply_carries_its_descriptors() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut front_end = bed.connect("a");
    let (connection, ..) = plane.attach();
    front_end.send(&message(31, b""));
    plane.message();
    let up = Up::Handled {
        connection,
        reply: b"inflight".to_vec(),
        reply_fds: 1,
        session: "s".into(),
        kept: vec![FIRST_KEPT_FD],
        released: vec![],
        close: None,
    };
    let region = Arc::new(file_with("region"));
    plane.say(&up, vec![Arc::clone(&region), region]);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 8];
    let mut into = [std::io::IoSliceMut::new(&mut bytes)];
    rustix::net::recvmsg(&front_end.0, &mut into, &mut control, rustix::net::RecvFlags::empty()).unwrap();
    let fds: Vec<ReapedFd> = control
        .drain()
        .flat_map(|part| match part {
            rustix::net::RecvAncillaryMessage::ScmRights(fds) => fds.map(ReapedFd::from).collect(),
            _ => vec![],
        })
        .collect();
    assert_eq!((&bytes, texts(&fds)), (b"inflight", vec!["region".to_owned()]));
}

#[test]
fn a_second_front_end_waits_until_the_first_is_gone() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let first = bed.connect("a");
    let (connection, ..) = plane.attach();
    let mut second = bed.connect("a");
    second.send(&message(1, b"me too"));
    assert!(plane.hears_nothing());
    drop(first);
    assert_eq!(plane.next().0, Down::Closed { connection });
    let (other, session, ..) = plane.attach();
    assert_ne!(other, connection);
    assert_eq!(session, None);
    assert_eq!(plane.message().1, message(1, b"me too"));
}

#[test]
fn a_front_end_that_leaves_while_its_message_is_pending_is_noticed() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut front_end = bed.connect("a");
    let (connection, ..) = plane.attach();
    front_end.send(&message(11, b""));
    plane.message();
    drop(front_end);
    assert_eq!(plane.next().0, Down::Closed { connection });
    plane.handled(connection, b"too late", "s");
    bed.connect("a");
    assert_ne!(plane.attach().0, connection);
}

#[test]
fn messages_that_cannot_be_framed_close_their_connection_and_no_other() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut other = bed.connect("b");
    let (other_connection, ..) = plane.attach();
    let word = |word: u32| word.to_le_bytes();
    let oversized = [word(1), word(1), word(4097)].concat();
    let wrong_version = [word(1), word(2), word(0)].concat();
    for bytes in [oversized, wrong_version] {
        let mut front_end = bed.connect("a");
        let (connection, ..) = plane.attach();
        front_end.send(&bytes);
        assert_eq!(plane.next().0, Down::Closed { connection });
        assert!(front_end.is_closed());
    }
    let mut front_end = bed.connect("a");
    let (connection, ..) = plane.attach();
    front_end.send(&message(1, b"12345678")[..15]);
    assert!(plane.hears_nothing(), "half a message is no message");
    drop(front_end);
    assert_eq!(plane.next().0, Down::Closed { connection });

    other.send(&message(1, b""));
    assert_eq!(plane.message().0, other_connection);
}

#[test]
fn a_few_descriptors_too_many_are_passed_on_and_a_flood_closes_the_connection() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut front_end = bed.connect("a");
    let (connection, ..) = plane.attach();
    let file = file_with("x");
    front_end.send_with_fds(&message(5, b""), &[file.as_fd(); 9]);
    assert_eq!(plane.message().2, (0..9).collect::<Vec<_>>());
    plane.handled(connection, b".", "s");
    front_end.receive(1);
    front_end.send_with_fds(&message(5, b""), &[file.as_fd(); 100]);
    assert_eq!(plane.next().0, Down::Closed { connection });
}

#[test]
fn a_message_that_arrives_byte_by_byte_is_one_message() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut front_end = bed.connect("a");
    plane.attach();
    for byte in message(9, b"slow") {
        front_end.send(&[byte]);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(plane.message().1, message(9, b"slow"));
}

#[test]
fn messages_that_come_while_no_data_plane_runs_wait_for_the_next() {
    let bed = Bed::new();
    let plane = bed.ready_plane();
    plane.die("killed by SIGKILL");
    let mut front_end = bed.connect("a");
    front_end.send(&message(1, b"hello"));
    let mut next = bed.ready_plane();
    let (connection, ..) = next.attach();
    assert_eq!(next.message().1, message(1, b"hello"));
    next.handled(connection, b"!", "s");
    assert_eq!(front_end.receive(1), b"!");
}

#[test]
fn the_data_plane_can_close_a_connection_with_a_last_reply() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut front_end = bed.connect("a");
    let (connection, ..) = plane.attach();
    front_end.send(&message(77, b""));
    plane.message();
    let up = Up::Handled {
        connection,
        reply: b"no".to_vec(),
        reply_fds: 0,
        session: "s".into(),
        kept: vec![],
        released: vec![],
        close: Some("the request is unknown".into()),
    };
    plane.say(&up, vec![]);
    assert_eq!(front_end.receive(2), b"no");
    assert!(front_end.is_closed());
    assert_eq!(plane.next().0, Down::Closed { connection });
}

#[test]
fn front_ends_that_come_and_go_while_the_data_plane_takes_nothing_fill_no_queue() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let file = file_with("x");
    let mut rounds = 0;
    while let Some(mut front_end) = bed.try_connect("a") {
        rounds += 1;
        assert!(rounds < 1000, "the queue has no end");
        front_end.send_with_fds(&message(5, &[0; 4096]), &[file.as_fd(); 32]);
        // Long enough to be given to the data plane, most times.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let mut other = bed.connect("b");
    other.send(&message(1, b"me too"));
    // The data plane goes on, and so do the front ends.
    loop {
        match plane.next().0 {
            Down::Attach { connection, .. } => plane.say(&Up::Attached { connection }, vec![]),
            Down::Message { payload, .. } if payload == b"me too" => break,
            _ => {}
        }
    }
}
