//! One connected front end: its socket, its fd table, the last session of the data plane's, and the one message
//! that is not yet applied.
//!
//! ```text
//!  Reading ── a whole message ──▶ Pending ── Handled ──▶ Replying ── reply sent ──▶ Reading
//!                                   │  ▲
//!                                   └──┘ the data plane died: the next one gets session, fds and message again
//! ```

mod kept;

use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use softdpu_api::status::Peer;
use softdpu_link::{ConnectionId, Down, FIRST_KEPT_FD, FdId, HEADER_SIZE, SharedFd};
use softdpu_sys::{ReapedFd, peer};

pub(super) use self::kept::FrontEndState;

/// The longest payload that is read: the largest message known has 12 + 256 bytes, the rest is room to read, and let
/// the data plane refuse in good order, messages of later protocol versions.
pub(crate) const MAX_PAYLOAD: usize = 4096;

/// The most descriptors with one message that are read. The protocol allows 8 (vhost-user: Multiple Memory regions
/// description); a few more are passed on so that the data plane refuses them in good order.
pub(crate) const MAX_MESSAGE_FDS: usize = 32;

/// The most descriptors the kernel passes at once (SCM_MAX_FD): with room for them nothing is cut off by us.
const SCM_MAX_FD: usize = 253;

/// The most descriptors in one connection's table: 512 memory slots, 3 for each of 256 queues, and a few.
const MAX_TABLE: usize = 2048;

/// Bits of the flags that hold the version, and the version there is (vhost-user: Message Specification, Header).
const VERSION_MASK: u32 = 0b11;
const VERSION: u32 = 1;

/// So many data planes may die of what a connection gave them, as far as is known, before it is closed.
const MOST_DEATHS: u32 = 5;

/// Why a connection is closed.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum Hangup {
    #[error("the front end disconnected")]
    Disconnected,
    #[error("the front end disconnected in the middle of a message ({found} of {expected} bytes)")]
    Truncated { found: usize, expected: usize },
    #[error("request {request} has protocol version {found}, not {VERSION}")]
    Version { request: u32, found: u32 },
    #[error("request {request} announces {found} bytes of payload, more than the limit of {MAX_PAYLOAD}")]
    Oversized { request: u32, found: u32 },
    #[error("a message came with more than {MAX_MESSAGE_FDS} file descriptors")]
    TooManyFds,
    #[error("file descriptors of a message were lost: raise the limit of open files (LimitNOFILE, ulimit -Hn)")]
    FdsLost,
    #[error("more than {MAX_TABLE} file descriptors are held for it")]
    TableFull,
    #[error("the socket failed: {0}")]
    Socket(Errno),
    #[error("{deaths} data planes died while they handled its request {request}, which is taken to be the cause")]
    PoisonMessage { request: u32, deaths: u32 },
    #[error("{deaths} data planes died when they had taken up its session, which is taken to be the cause")]
    PoisonSession { deaths: u32 },
}

/// A message that was read and is not yet applied.
#[derive(Debug)]
struct Pending {
    header: [u8; HEADER_SIZE],
    payload: Vec<u8>,
    fds: Vec<(FdId, SharedFd)>,
    /// The number under which this data plane was given it.
    given: Option<u64>,
    /// Data planes that died of it, as far as is known.
    deaths: u32,
}

/// How far the present data plane has come with a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Progress {
    /// It was not given it.
    Waiting,
    /// It was given it under this number, and has not answered.
    Given(u64),
    /// It was given it, and lets it wait: it has not looked at it.
    Held,
    /// It has taken it up.
    Attached,
}

#[derive(Debug)]
struct Reply {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<SharedFd>,
}

/// A connected front end.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    pub(crate) id: ConnectionId,
    pub(crate) device: String,
    /// Its last close closes what the front end has sent and nothing has read.
    socket: ReapedFd,
    peer: Option<Peer>,
    session: Option<String>,
    progress: Progress,
    /// Data planes that died of the session, as far as is known.
    session_deaths: u32,
    fds: BTreeMap<FdId, SharedFd>,
    next_fd: FdId,
    reading: Vec<u8>,
    reading_fds: Vec<ReapedFd>,
    pending: Option<Pending>,
    replies: VecDeque<Reply>,
    held_up: bool,
}

impl FrontEnd {
    pub(crate) fn new(id: ConnectionId, device: String, socket: OwnedFd) -> FrontEnd {
        let peer = peer::credentials(&socket).ok();
        let peer = peer.map(|peer| Peer { pid: peer.pid, uid: peer.uid, gid: peer.gid });
        FrontEnd {
            id,
            device,
            socket: socket.into(),
            peer,
            session: None,
            progress: Progress::Waiting,
            session_deaths: 0,
            fds: BTreeMap::new(),
            next_fd: 0,
            reading: Vec::new(),
            reading_fds: Vec::new(),
            pending: None,
            replies: VecDeque::new(),
            held_up: false,
        }
    }

    pub(crate) fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// Whether another message may be read: the last one is applied and its reply sent.
    pub(crate) fn wants_read(&self) -> bool {
        self.pending.is_none() && self.replies.is_empty()
    }

    /// Whether there is something to flush when the socket is writable.
    pub(crate) fn wants_write(&self) -> bool {
        !self.replies.is_empty() && !self.held_up
    }

    /// Whether there is something to flush after [`REFS_PAUSE`](softdpu_link::REFS_PAUSE).
    pub(crate) fn is_held_up(&self) -> bool {
        self.held_up
    }

    /// Reads towards one whole message, never beyond it. `true` when it is there, and pending from then on.
    pub(crate) fn read(&mut self) -> Result<bool, Hangup> {
        if !self.wants_read() {
            return Ok(false);
        }
        loop {
            let header = self.reading.first_chunk::<HEADER_SIZE>();
            let expected = HEADER_SIZE + header.map_or(Ok(0), payload_size)?;
            if header.is_some() && self.reading.len() == expected {
                self.message_is_read()?;
                return Ok(true);
            }
            match self.receive(expected) {
                Ok(0) if self.reading.is_empty() => return Err(Hangup::Disconnected),
                Ok(0) => return Err(Hangup::Truncated { found: self.reading.len(), expected }),
                Ok(_) | Err(Hangup::Socket(Errno::INTR)) => {}
                Err(Hangup::Socket(Errno::AGAIN)) => return Ok(false),
                Err(Hangup::Socket(Errno::CONNRESET)) => return Err(Hangup::Disconnected),
                Err(error) => return Err(error),
            }
        }
    }

    fn receive(&mut self, expected: usize) -> Result<usize, Hangup> {
        let at = self.reading.len();
        self.reading.resize(expected, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = {
            let mut into = [IoSliceMut::new(&mut self.reading[at..])];
            recvmsg(&self.socket, &mut into, &mut control, flags)
        };
        self.reading.truncate(at + received.as_ref().map_or(0, |message| message.bytes));
        let message = received.map_err(Hangup::Socket)?;
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                self.reading_fds.extend(fds.map(ReapedFd::from));
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Hangup::FdsLost);
        }
        if self.reading_fds.len() > MAX_MESSAGE_FDS {
            return Err(Hangup::TooManyFds);
        }
        Ok(message.bytes)
    }

    fn message_is_read(&mut self) -> Result<(), Hangup> {
        if self.fds.len() + self.reading_fds.len() > MAX_TABLE {
            return Err(Hangup::TableFull);
        }
        let mut header = [0; HEADER_SIZE];
        header.copy_from_slice(&self.reading[..HEADER_SIZE]);
        let payload = self.reading.split_off(HEADER_SIZE);
        self.reading.clear();
        let fds: Vec<ReapedFd> = self.reading_fds.drain(..).collect();
        let fds = fds.into_iter().map(|fd| (self.new_fd_id(), Arc::new(fd))).collect();
        self.pending = Some(Pending { header, payload, fds, given: None, deaths: 0 });
        Ok(())
    }

    /// Ids start again from zero after two billion; those still in the table are skipped.
    fn new_fd_id(&mut self) -> FdId {
        loop {
            let id = self.next_fd;
            self.next_fd = (self.next_fd + 1) % FIRST_KEPT_FD;
            if !self.fds.contains_key(&id) {
                return id;
            }
        }
    }

    /// Another data plane, or what the present one was given is taken back: it was given nothing yet.
    pub(crate) fn start_anew(&mut self) {
        self.progress = Progress::Waiting;
        if let Some(pending) = &mut self.pending {
            pending.given = None;
        }
    }

    /// Whether the present data plane knows of this connection.
    pub(crate) fn is_given(&self) -> bool {
        self.progress != Progress::Waiting
    }

    /// What a data plane is sent first about this connection; given under `number`, and `more` of them follow at once.
    pub(crate) fn attach(&mut self, number: u64, more: bool) -> (Down, Vec<SharedFd>) {
        self.progress = Progress::Given(number);
        let message = Down::Attach {
            device: self.device.clone(),
            connection: self.id,
            session: self.session.clone(),
            fds: self.fds.keys().copied().collect(),
            more,
        };
        (message, self.fds.values().cloned().collect())
    }

    /// The message that is not yet applied; given under `number`.
    pub(crate) fn message(&mut self, number: u64) -> Option<(Down, Vec<SharedFd>)> {
        let pending = self.pending.as_mut()?;
        pending.given = Some(number);
        let message = Down::Message {
            connection: self.id,
            header: pending.header,
            payload: pending.payload.clone(),
            fds: pending.fds.iter().map(|(id, _)| *id).collect(),
        };
        Some((message, pending.fds.iter().map(|(_, fd)| Arc::clone(fd)).collect()))
    }

    /// The data plane has taken up the session.
    pub(crate) fn attached(&mut self) {
        if self.is_given() {
            self.progress = Progress::Attached;
        }
    }

    /// The data plane lets it wait.
    pub(crate) fn held(&mut self) {
        if self.is_given() {
            self.progress = Progress::Held;
        }
    }

    /// Whether the data plane has taken up the session.
    pub(crate) fn is_attached(&self) -> bool {
        self.progress == Progress::Attached
    }

    /// Whether the data plane lets it wait.
    pub(crate) fn is_held(&self) -> bool {
        self.progress == Progress::Held
    }

    /// The number of the first thing that the data plane was given and has not answered.
    pub(crate) fn first_unanswered(&self) -> Option<u64> {
        match self.progress {
            Progress::Given(number) => Some(number),
            Progress::Held => None,
            Progress::Waiting | Progress::Attached => self.pending.as_ref()?.given,
        }
    }

    /// How many data planes died of this connection, as far as is known.
    pub(crate) fn deaths(&self) -> u32 {
        self.session_deaths + self.pending.as_ref().map_or(0, |pending| pending.deaths)
    }

    /// A data plane died of this connection, as far as is known. An error says that it has to go.
    pub(crate) fn accuse(&mut self) -> Result<(), Hangup> {
        let message = self.pending.as_mut().filter(|pending| pending.given.is_some());
        let request = match message.filter(|_| self.progress == Progress::Attached) {
            Some(pending) => {
                pending.deaths += 1;
                Some(word(&pending.header, 0))
            }
            None => {
                self.session_deaths += 1;
                None
            }
        };
        match (self.deaths(), request) {
            (deaths, _) if deaths < MOST_DEATHS => Ok(()),
            (deaths, Some(request)) => Err(Hangup::PoisonMessage { request, deaths }),
            (deaths, None) => Err(Hangup::PoisonSession { deaths }),
        }
    }

    /// A data plane has taken up the session and lives. The message is acquitted by its answer.
    pub(crate) fn acquit(&mut self) {
        self.session_deaths = 0;
    }

    /// The pending message is applied: its descriptors are in the table from now on. `false` if there was none.
    pub(crate) fn applied(&mut self) -> bool {
        let Some(pending) = self.pending.take() else {
            return false;
        };
        self.fds.extend(pending.fds);
        self.attached();
        true
    }

    /// The session, and the table it speaks of, as the data plane has them now. An error says that the data plane broke
    /// the link's rules.
    pub(crate) fn store(
        &mut self,
        session: String,
        kept: Vec<(FdId, SharedFd)>,
        released: &[FdId],
    ) -> Result<(), String> {
        if let Some((id, _)) = kept.iter().find(|(id, _)| *id < FIRST_KEPT_FD) {
            return Err(format!("descriptor id {id} is the supervisor's to give"));
        }
        for id in released {
            self.fds.remove(id);
        }
        self.fds.extend(kept);
        if self.fds.len() > MAX_TABLE {
            return Err(format!("more than {MAX_TABLE} descriptors for one connection"));
        }
        self.session = Some(session);
        Ok(())
    }

    /// Queues a reply.
    pub(crate) fn reply(&mut self, bytes: Vec<u8>, fds: Vec<SharedFd>) {
        if !bytes.is_empty() {
            self.replies.push_back(Reply { bytes, sent: 0, fds });
        }
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), Hangup> {
        self.held_up = false;
        while let Some(reply) = self.replies.front_mut() {
            match reply.send(self.socket.as_fd()) {
                Ok(()) if reply.sent == reply.bytes.len() => {
                    self.replies.pop_front();
                }
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::TOOMANYREFS) => {
                    self.held_up = true;
                    return Ok(());
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Hangup::Disconnected),
                Err(error) => return Err(Hangup::Socket(error)),
            }
        }
        Ok(())
    }
}

impl AsFd for FrontEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Reply {
    fn send(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = self.fds.iter().map(|fd| fd.as_fd()).collect();
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::INVAL);
        }
        let bytes = [IoSlice::new(&self.bytes[self.sent..])];
        let sent = sendmsg(socket, &bytes, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        self.fds.clear();
        self.sent += sent;
        Ok(())
    }
}

fn word(header: &[u8; HEADER_SIZE], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// Checks a header as far as it takes to find the next one.
fn payload_size(header: &[u8; HEADER_SIZE]) -> Result<usize, Hangup> {
    let (request, version, size) = (word(header, 0), word(header, 4) & VERSION_MASK, word(header, 8));
    if version != VERSION {
        return Err(Hangup::Version { request, found: version });
    }
    match usize::try_from(size) {
        Ok(bytes) if bytes <= MAX_PAYLOAD => Ok(bytes),
        _ => Err(Hangup::Oversized { request, found: size }),
    }
}
