//! Too many descriptors in flight (ETOOMANYREFS), which the kernel says to users without CAP_SYS_RESOURCE once more of
//! their descriptors are in flight than a process may have open. Each test runs in a process of its own, which gives up
//! the capability and lowers its limit.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use rustix::time::{ClockId, clock_gettime};

use super::super::front_ends::FrontEnd;
use super::bed::PATIENCE;
use softdpu_link::{ConnectionId, Down, Link, SharedFd, SupervisorLink};

/// Set in the process of its own.
const ALONE: &str = "SOFTDPU_TEST_REFS";

/// Open files of that process.
const LIMIT: u64 = 64;

/// Runs the test called `name` once more, alone; whether this is that process.
fn alone(name: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        let sets = capabilities(None).unwrap();
        let without = sets.effective - CapabilitySet::SYS_RESOURCE - CapabilitySet::SYS_ADMIN;
        set_capabilities(None, rustix::thread::CapabilitySets { effective: without, ..sets }).unwrap();
        setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) }).unwrap();
        return true;
    }
    let path = format!("{}::{name}", module_path!().split_once("::").unwrap().1);
    let mut test = Command::new(std::env::current_exe().unwrap());
    let output = test.args(["--exact", &path, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// A socket with more descriptors in flight than the process may have open; nothing more goes until it is closed.
fn flood() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    for _ in 0..LIMIT {
        let fds: [BorrowedFd<'_>; 50] = [near.as_fd(); 50];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(50))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        match sendmsg(&near, &[IoSlice::new(b".")], &mut control, SendFlags::empty()) {
            Ok(_) => {}
            Err(Errno::TOOMANYREFS) => return (near, far),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("as many descriptors are in flight as one likes");
}

fn file() -> SharedFd {
    Arc::new(tempfile::tempfile().unwrap().into())
}

#[test]
fn a_link_waits_for_the_kernel_without_going_round_in_circles() {
    if !alone("a_link_waits_for_the_kernel_without_going_round_in_circles") {
        return;
    }
    let (mut near, far) = SupervisorLink::pair().unwrap();
    let mut far = Link::<softdpu_link::Up, Down>::new(far);
    let others = flood();
    let message = Down::Message { connection: ConnectionId(1), header: [0; 12], payload: vec![], fds: vec![7] };
    near.send(&message, vec![file()]).unwrap();
    assert!(near.is_held_up() && !near.wants_write(), "the socket is writable all the time");

    let cpu = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let before = cpu();
    assert!(near.wait(Some(Duration::from_millis(300))).unwrap().is_none());
    assert!(cpu() - before < Duration::from_millis(100), "{:?} for waiting", cpu() - before);

    drop(others);
    // The kernel may still be closing what was in flight.
    near.drain().unwrap();
    assert_eq!(far.wait(Some(PATIENCE)).unwrap().unwrap().0, message);
}

#[test]
fn a_reply_waits_for_the_kernel_and_its_front_end_stays() {
    if !alone("a_reply_waits_for_the_kernel_and_its_front_end_stays") {
        return;
    }
    let (near, mut far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    let mut front_end = FrontEnd::new(ConnectionId(1), "a".into(), near.into());
    let others = flood();
    front_end.reply(b"region".to_vec(), vec![file()]);
    front_end.flush().unwrap();
    assert!(front_end.is_held_up() && !front_end.wants_write() && !front_end.wants_read());
    drop(others);
    while front_end.is_held_up() {
        std::thread::sleep(Duration::from_millis(5));
        front_end.flush().unwrap();
    }
    let mut bytes = [0; 6];
    far.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"region");
    assert!(front_end.wants_read());
}
