use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::fs::{FileType, fstat};

use super::*;

const SOON: Option<Duration> = Some(Duration::from_secs(60));

fn ends() -> (SupervisorLink, DataPlaneLink) {
    let (near, far) = SupervisorLink::pair().unwrap();
    (near, Link::new(far))
}

fn file_with(text: &str) -> SharedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    Arc::new(file.into())
}

fn text_of(fd: &ReapedFd) -> String {
    let mut bytes = vec![0; 64];
    let count = rustix::io::pread(fd, &mut bytes, 0).unwrap();
    String::from_utf8(bytes[..count].to_vec()).unwrap()
}

#[test]
fn a_message_arrives_with_its_descriptors_in_order() {
    let (mut supervisor, mut data_plane) = ends();
    let sent = Down::Message { connection: ConnectionId(7), header: [1; 12], payload: vec![0, 255], fds: vec![3, 4] };
    supervisor.send(&sent, vec![file_with("three"), file_with("four")]).unwrap();
    let (received, fds) = data_plane.wait(SOON).unwrap().unwrap();
    assert_eq!(received, sent);
    assert_eq!(fds.iter().map(text_of).collect::<Vec<_>>(), ["three", "four"]);
}

#[test]
fn each_frame_gets_its_own_descriptors_when_many_are_read_at_once() {
    let (mut supervisor, mut data_plane) = ends();
    for index in 0..50 {
        supervisor.send(&Down::Closed { connection: ConnectionId(index) }, vec![]).unwrap();
        let opened = Down::Opened { call: index, result: Ok(()) };
        supervisor.send(&opened, vec![file_with(&index.to_string())]).unwrap();
    }
    for index in 0..50 {
        let (closed, none) = data_plane.wait(SOON).unwrap().unwrap();
        assert_eq!((closed, none.len()), (Down::Closed { connection: ConnectionId(index) }, 0));
        let (opened, fds) = data_plane.wait(SOON).unwrap().unwrap();
        assert_eq!(opened, Down::Opened { call: index, result: Ok(()) });
        assert_eq!(text_of(&fds[0]), index.to_string());
    }
}

#[test]
fn a_start_with_more_descriptors_than_one_call_carries_arrives_whole() {
    let (mut supervisor, mut data_plane) = ends();
    let fd = file_with("kept");
    let kept: Vec<String> = (0..600).map(|index| format!("key {index}")).collect();
    let start = Down::Start {
        site: Box::default(),
        incarnation: 2,
        kept: kept.clone(),
        placements: vec![],
        death: None,
        loaded: vec![],
        standby: false,
    };
    supervisor.send(&start, vec![fd; 600]).unwrap();
    let (received, fds) = data_plane.wait(SOON).unwrap().unwrap();
    assert_eq!(received, start);
    assert_eq!(fds.len(), 600);
    assert!(fds.iter().all(|fd| FileType::from_raw_mode(fstat(fd).unwrap().st_mode) == FileType::RegularFile));
}

#[test]
fn a_short_message_is_padded_until_all_its_descriptors_fit() {
    let (mut near, far) = Link::<Many, Many>::pair().unwrap();
    let mut far = Link::<Many, Many>::new(far);
    let count = 12 * 253;
    let fd = file_with("x");
    let sender = std::thread::spawn(move || {
        near.send(&Many(count), vec![fd; count]).unwrap();
        near.drain().unwrap();
        near
    });
    let (received, fds) = far.wait(SOON).unwrap().unwrap();
    assert_eq!((received.0, fds.len()), (count, count));
    sender.join().unwrap();
}

#[derive(Serialize, Deserialize)]
struct Many(usize);

impl Attached for Many {
    fn attached(&self) -> usize {
        self.0
    }
}

#[test]
fn sending_never_blocks_and_what_is_queued_follows_when_the_peer_reads() {
    let (mut supervisor, mut data_plane) = ends();
    let call = |id| Down::Call { id, call: Call::Change(Change::VolumeDelete { name: "v".repeat(100_000) }) };
    for id in 0..50 {
        supervisor.send(&call(id), vec![]).unwrap();
    }
    assert!(supervisor.wants_write(), "5 MB do not fit into a socket");
    for id in 0..50 {
        let received = loop {
            supervisor.flush().unwrap();
            if let Some((received, _)) = data_plane.receive().unwrap() {
                break received;
            }
        };
        assert_eq!(received, call(id));
    }
    assert!(!supervisor.wants_write());
}

#[test]
fn messages_sent_before_a_death_are_received_before_the_end() {
    let (mut supervisor, mut data_plane) = ends();
    data_plane.send(&Up::Alive, vec![]).unwrap();
    data_plane.send(&Up::Keep { key: "k".into() }, vec![file_with("k")]).unwrap();
    drop(data_plane);
    assert_eq!(supervisor.receive().unwrap().unwrap().0, Up::Alive);
    assert_eq!(supervisor.receive().unwrap().unwrap().1.len(), 1);
    assert!(matches!(supervisor.receive(), Err(LinkError::Closed)));
    assert!(matches!(supervisor.receive(), Err(LinkError::Closed)));
}

#[test]
fn half_a_frame_is_no_message() {
    let (near, far) = SupervisorLink::pair().unwrap();
    let mut supervisor = near;
    let frame = frame_of(br#""alive""#, 0);
    for part in frame.chunks(3) {
        assert!(supervisor.receive().unwrap().is_none());
        rustix::io::write(&far, part).unwrap();
    }
    assert_eq!(supervisor.receive().unwrap().unwrap().0, Up::Alive);
}

fn frame_of(payload: &[u8], fds: u32) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&fds.to_le_bytes());
    frame.extend_from_slice(payload);
    frame
}

#[test]
fn frames_that_break_the_rules_are_refused() {
    let refused = |bytes: &[u8]| {
        let (mut supervisor, far) = SupervisorLink::pair().unwrap();
        rustix::io::write(&far, bytes).unwrap();
        supervisor.receive().unwrap_err().to_string()
    };
    assert!(refused(&[0xff; 8]).contains("more than the limit of 67108864"));
    assert!(refused(&[1, 0, 0, 0, 0xff, 0xff, 0xff, 0]).contains("more than the limit of 65536"));
    assert!(refused(&frame_of(b"{\"alive\"", 0)).contains("not a message"));
    assert!(refused(&frame_of(br#""alive""#, 2)).contains("a message with 0 file descriptors speaks of 2"));
    let keep_without_its_fd = frame_of(br#"{"keep":{"key":"k"}}"#, 0);
    assert!(refused(&keep_without_its_fd).contains("a message with 0 file descriptors speaks of 1"));
}

#[test]
fn a_message_is_not_sent_with_another_number_of_descriptors_than_it_speaks_of() {
    let (mut supervisor, _data_plane) = ends();
    let error = supervisor.send(&Down::Shutdown, vec![file_with("")]).unwrap_err();
    assert!(matches!(error, LinkError::FdsMismatch { expected: 0, found: 1 }));
}

#[test]
fn received_descriptors_do_not_leak_into_children() {
    let (mut supervisor, mut data_plane) = ends();
    supervisor.send(&Down::Opened { call: 1, result: Ok(()) }, vec![file_with("x")]).unwrap();
    let (_, fds) = data_plane.wait(SOON).unwrap().unwrap();
    let flags = rustix::io::fcntl_getfd(&fds[0]).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "fd {}", fds[0].as_fd().as_raw_fd());
}

#[test]
fn waiting_ends_at_its_deadline() {
    let (mut supervisor, _data_plane) = ends();
    assert!(supervisor.wait(Some(Duration::from_millis(20))).unwrap().is_none());
}

#[test]
fn a_data_plane_follows_one_whose_formats_it_reads() {
    let formats = Formats { link: LINK_FORMAT, oldest_session: 2, session: 3 };
    let refusal = |session| formats.refusal(&Formats { session, oldest_session: 1, ..formats });
    assert_eq!(refusal(2), None);
    assert_eq!(refusal(3), None);
    for session in [1, 4] {
        let reason = refusal(session).unwrap();
        assert_eq!(reason, format!("it reads sessions of formats 2 to 3, and those that run have {session}"));
    }
    let reason = formats.refusal(&Formats { link: LINK_FORMAT + 1, ..formats }).unwrap();
    assert!(reason.contains("link format"), "{reason}");
}
