//! Network namespaces of a test's own, and what the tests do in all of them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use softdpu_sys::namespace;
pub use softdpu_testing::skip;

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Network namespaces that end with the test.
pub struct Lab {
    names: Vec<String>,
}

impl Lab {
    /// `count` namespaces; or none, said loudly, where this process may not make any.
    pub fn new(test: &str, count: usize) -> Option<Lab> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut lab = Lab { names: Vec::new() };
        for _ in 0..count {
            let name = format!("sys-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            if let Err(error) = try_ip(&["netns", "add", &name]) {
                skip(test, &format!("it needs network namespaces (root, iproute2): {error}"));
                return None;
            }
            lab.names.push(name);
        }
        Some(lab)
    }

    /// iproute2 inside namespace `index`.
    pub fn ip(&self, index: usize, arguments: &str) {
        let mut all = vec!["-n", &self.names[index]];
        all.extend(arguments.split_whitespace());
        try_ip(&all).unwrap_or_else(|error| panic!("{error}"));
    }

    /// A veth pair, up, without IPv6 chatter: `a` in one namespace, `b` in another.
    pub fn veth(&self, (a_in, a): (usize, &str), (b_in, b): (usize, &str)) {
        self.ip(a_in, &format!("link add name {a} type veth peer name {b} netns {}", self.names[b_in]));
        for (index, name) in [(a_in, a), (b_in, b)] {
            self.ip(index, &format!("link set {name} addrgenmode none"));
            self.ip(index, &format!("link set {name} up"));
        }
    }

    /// Does `work` in namespace `index`.
    pub fn within<T: Send>(&self, index: usize, work: impl FnOnce() -> T + Send) -> T {
        let file = self.namespace(index);
        namespace::within(file.as_fd(), work).unwrap()
    }

    pub fn namespace(&self, index: usize) -> File {
        namespace::open(&self.names[index]).unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = try_ip(&["netns", "del", name]);
        }
    }
}

fn try_ip(arguments: &[&str]) -> Result<(), String> {
    let command = format!("ip {}", arguments.join(" "));
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("{command}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Calls `step` until it says so.
pub fn until(what: &str, mut step: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !step() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::yield_now();
    }
}

/// Waits until `fd` is readable.
pub fn readable(fd: std::os::fd::BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

/// What [`transfer`] carries: enough for the congestion window to let full-sized segments through.
const TRANSFER: usize = 8 << 20;

/// A TCP connection from namespace `from` to `address` in namespace `to`, `TRANSFER` bytes each way; done when the
/// handle is finished.
pub fn transfer(lab: &Lab, from: usize, to: usize, address: &str) -> JoinHandle<()> {
    let listener = lab.within(to, || TcpListener::bind((address, 7000)).unwrap());
    let address = listener.local_addr().unwrap();
    let client = lab.namespace(from);
    let pattern = || (0..TRANSFER).map(|index| (index % 251) as u8).collect::<Vec<_>>();
    let both_ways = move |stream: TcpStream| {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reader = stream.try_clone().unwrap();
        let receiving = std::thread::spawn(move || {
            let mut bytes = vec![0; TRANSFER];
            reader.read_exact(&mut bytes).unwrap();
            assert!(bytes == pattern(), "the bytes are others");
        });
        (&stream).write_all(&pattern()).unwrap();
        receiving.join().unwrap();
    };
    std::thread::spawn(move || {
        let server = std::thread::spawn(move || both_ways(listener.accept().unwrap().0));
        let connect = move || TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        both_ways(namespace::within(client.as_fd(), connect).unwrap());
        server.join().unwrap();
    })
}

/// A frame of an experimental protocol with a number in it.
pub fn numbered(number: u32, space: &mut [u8]) {
    space.fill(0);
    space[..6].fill(0xff);
    space[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    space[12..14].copy_from_slice(&[0x88, 0xb5]);
    space[14..18].copy_from_slice(&number.to_be_bytes());
}

/// The number in such a frame.
pub fn number(frame: &[u8]) -> Option<u32> {
    (frame[12..14] == [0x88, 0xb5]).then(|| u32::from_be_bytes(frame[14..18].try_into().unwrap()))
}
