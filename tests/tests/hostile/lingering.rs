//! Descriptors whose last close waits: a TCP socket with SO_LINGER and bytes that its peer does not take.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use softdpu_tests::{Context, Failure};
use softdpu_transport::vhost_user::{FdPresence, Message};

use crate::client::wire::send;
use crate::client::{FrontEnd, MEMORY, Memory, Settings};

/// How long a close waits, if it is not interrupted.
pub const LINGER: Duration = Duration::from_secs(25);

const FIRST_QUEUE: FdPresence = FdPresence { index: 0, present: true };

/// What leaves a descriptor's last close to the daemon.
pub struct Attack {
    pub name: &'static str,
    pub act: fn(&mut Attacker) -> Result<(), Failure>,
}

/// What sends such descriptors.
pub struct Attacker {
    pub socket: PathBuf,
    pub supervisor: Pid,
    /// They take nothing for as long as they live.
    pub peers: Vec<TcpStream>,
}

impl Attacker {
    /// A socket whose last close waits [`LINGER`].
    fn lingering(&mut self) -> Result<OwnedFd, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listening")?;
        let mut near = TcpStream::connect(listener.local_addr().context("its address")?).context("connecting")?;
        self.peers.push(listener.accept().context("accepting")?.0);
        near.set_nonblocking(true).context("a socket option")?;
        while near.write(&[0; 65536]).is_ok() {}
        near.set_nonblocking(false).context("a socket option")?;
        rustix::net::sockopt::set_socket_linger(&near, Some(LINGER)).context("SO_LINGER")?;
        Ok(near.into())
    }

    fn connect(&self) -> Result<FrontEnd, Failure> {
        FrontEnd::start(&self.socket, Arc::new(Memory::new(MEMORY)?), Settings::SPLIT)
    }

    /// Sends the bytes `times` times, each with `count` descriptors of a lingering socket of its own. The supervisor
    /// reads them when this process has none of them left.
    fn leave(&mut self, to: BorrowedFd<'_>, bytes: &[u8], count: usize, times: usize) -> Result<(), Failure> {
        let fds = (0..times).map(|_| self.lingering()).collect::<Result<Vec<_>, _>>()?;
        kill_process(self.supervisor, Signal::STOP).context("stopping the supervisor")?;
        let sent = fds.into_iter().try_for_each(|fd| send(to, bytes, &vec![fd.as_fd(); count]));
        kill_process(self.supervisor, Signal::CONT).context("continuing the supervisor")?;
        Ok(sent?)
    }

    /// Leaves it with a message, and goes once that is handled.
    fn with(&mut self, message: &Message, count: usize) -> Result<(), Failure> {
        let mut front = self.connect()?;
        self.leave(front.socket.as_fd(), &message.encode(false), count, 1)?;
        // An answer, or the end of the connection.
        let _ = front.call(&Message::GetFeatures, &[]);
        Ok(())
    }
}

pub fn attacks() -> Vec<Attack> {
    vec![
        Attack { name: "with a message that takes none", act: |it| it.with(&Message::GetFeatures, 1) },
        Attack { name: "as kick", act: |it| it.with(&Message::SetVringKick(FIRST_QUEUE), 1) },
        Attack {
            name: "as memory",
            act: |it| {
                let region = Memory::new(MEMORY)?.region();
                it.with(&Message::SetMemTable(vec![region]), 1)
            },
        },
        Attack { name: "as back-end channel", act: |it| it.with(&Message::SetBackendReqFd, 1) },
        Attack { name: "too many of them", act: |it| it.with(&Message::GetFeatures, 60) },
        Attack {
            name: "with half a message",
            act: |it| {
                let front = it.connect()?;
                it.leave(front.socket.as_fd(), &Message::GetFeatures.encode(false)[..7], 1, 1)
            },
        },
        Attack {
            name: "unread behind other messages",
            act: |it| {
                let front = it.connect()?;
                it.leave(front.socket.as_fd(), &Message::GetFeatures.encode(false), 1, 8)
            },
        },
        Attack {
            name: "in the queue of a back-end channel",
            act: |it| {
                let mut front = it.connect()?;
                let (near, far) = UnixStream::pair().context("sockets")?;
                front.call(&Message::SetBackendReqFd, &[far.as_fd()])?;
                drop(far);
                it.leave(near.as_fd(), b"x", 1, 1)
            },
        },
        Attack {
            name: "on a connection that waits to be accepted",
            act: |it| {
                let _first = it.connect()?;
                let waiting = UnixStream::connect(&it.socket).context("connecting")?;
                it.leave(waiting.as_fd(), &Message::GetFeatures.encode(false), 1, 1)
            },
        },
    ]
}
