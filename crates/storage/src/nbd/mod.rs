//! Volumes at NBD servers.
//!
//! ```text
//!  NbdBacking (per volume) ── the export's properties, sockets of a process before us, the connecting thread
//!    NbdLink (per core; one for all where the server has no multi-conn) ── one connection and its requests
//!      NbdRequest (per request) ── which command is next
//! ```
//!
//! Connecting may block (names, handshakes), so a short-lived thread does it; cores only ever use connected,
//! non-blocking sockets.
//!
//! **The fence.** NBD has none, so it is made of what there is: each socket is kept by the broker under `nbd/VOLUME/N`,
//! so it outlives a killed process; the next activation shuts each kept socket down for writing and reads
//! until the server closes it, which servers do when all they had received is done. What this cannot give: a server
//! that closes earlier, or not within the volume's timeout, or that is reached by another host.

mod handshake;
mod link;
pub(crate) mod mailbox;
mod request;
mod traffic;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use serde::{Deserialize, Serialize};
use softdpu_memory::{GuestBuffer, View};
use softdpu_nbd::NbdUri;
use softdpu_nbd::wire::{self, Export};

pub(crate) use link::NbdLink;
use mailbox::Mailbox;

use crate::{
    Activation, BlockOp, Broker, RangeLimits, Request, Volume, VolumeError, VolumeKind, VolumeLimits, VolumeSpec,
};

/// The longest a first connection may take: its caller waits for it.
const FIRST_CONNECT: Duration = Duration::from_secs(10);

/// How long a server may take to flush its cache before another host has the volume; it is asked again after that.
const SETTLE: Duration = Duration::from_secs(10);

/// The most times an old connection is read from at a time: 4 MiB, after which other work has its turn.
const READS_PER_LOOK: usize = 64;

/// What a connector thread brings.
type ConnectResult = Arc<Mutex<Option<Result<(OwnedFd, Export), ConnectError>>>>;

/// Why there is no connection.
struct ConnectError {
    reason: String,
    /// The server is there, but what it offers cannot be used: it needs an operator.
    lasting: bool,
}

pub(crate) struct NbdBacking {
    name: String,
    uri: NbdUri,
    read_only: bool,
    /// What a server that is well may take for an answer.
    answer: Duration,
    timeout: Duration,
    longest_pause: Duration,
    export: Export,
    broker: Arc<dyn Broker>,
    /// The connection over which the export was opened first. Kept, as some servers serve one client only, or end
    /// with their last.
    first: Mutex<Option<(OwnedFd, Export)>>,
    /// Sockets of the process before us, until their server has closed them; none before the first poll.
    old: Mutex<Option<Vec<OldConnection>>>,
    shared: Mutex<Weak<NbdLink>>,
    links: AtomicU32,
    parallel: Arc<Mutex<Parallel>>,
    /// Links without a connection.
    down: AtomicUsize,
    cache: Cache,
}

/// What may be in the server's cache and nowhere else.
#[derive(Default)]
struct Cache {
    /// Writes that the server has answered and need not have made durable.
    answered: AtomicU64,
    /// Of those, the ones that a flush has covered.
    flushed: AtomicU64,
}

impl Cache {
    fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// A flush was answered that was sent when `answered` writes were.
    fn flush(&self, answered: u64) {
        self.flushed.fetch_max(answered, Ordering::Relaxed);
    }

    /// Whether a flush would find nothing.
    fn is_clean(&self) -> bool {
        self.flushed.load(Ordering::Relaxed) >= self.answered()
    }

    /// A connection was lost, and the server with it, as far as can be told. Whether there was something in its cache.
    fn lose(&self) -> bool {
        let answered = self.answered();
        self.flushed.fetch_max(answered, Ordering::Relaxed) < answered
    }
}

/// Whether there may be more than one link, and how many there are.
struct Parallel {
    /// The server promises that a flush on one connection covers the writes of all (NBD_FLAG_CAN_MULTI_CONN).
    allowed: bool,
    links: usize,
}

struct OldConnection {
    key: String,
    socket: OwnedFd,
    until: Instant,
}

/// What outlives a process about an export: with it a volume opens though its server is away, or serves one client only
/// and still has the old one.
#[derive(Serialize, Deserialize)]
struct ExportMemo {
    uri: NbdUri,
    export: Export,
}

impl NbdBacking {
    pub(crate) fn open(
        spec: &VolumeSpec,
        broker: &Arc<dyn Broker>,
    ) -> Result<(NbdBacking, u64, VolumeLimits), VolumeError> {
        let VolumeKind::Nbd { uri, answer, timeout, reconnect } = &spec.kind else {
            return Err(VolumeError::spec(&spec.name, "this kind of volume has no server"));
        };
        let known = recall(&spec.name, uri, &**broker);
        let (export, first) = match known {
            Some(export) => (export, None),
            None => {
                let dial = |limit| broker.connect(&spec.name, uri, limit);
                let found = handshake::connect(uri.export(), FIRST_CONNECT.min(*timeout), dial);
                let (socket, export) = found.map_err(|reason| server_error(&spec.name, uri, reason))?;
                remember(&spec.name, uri, export, &**broker)?;
                (export, Some((socket, export)))
            }
        };
        if export.can(wire::READ_ONLY) && !spec.read_only {
            let reason = format!("the export at {uri} is read-only: set read_only = true");
            return Err(VolumeError::spec(&spec.name, reason));
        }
        let block = export.min_block.max(spec.block_size);
        let size = export.size / u64::from(block) * u64::from(block);
        if size == 0 {
            return Err(VolumeError::spec(&spec.name, format!("the export at {uri} is smaller than a block")));
        }
        let range = RangeLimits { alignment: export.preferred_block.max(block), max_bytes: 1 << 30 };
        let limits = VolumeLimits {
            block_size: block,
            preferred_block: export.preferred_block.max(block),
            discard: export.can(wire::SEND_TRIM).then_some(range),
            write_zeroes: range,
        };
        let backing = NbdBacking {
            name: spec.name.clone(),
            uri: uri.clone(),
            read_only: spec.read_only,
            answer: *answer,
            timeout: *timeout,
            longest_pause: *reconnect,
            export,
            broker: Arc::clone(broker),
            first: Mutex::new(first),
            old: Mutex::new(None),
            shared: Mutex::default(),
            links: AtomicU32::new(0),
            parallel: Arc::new(Mutex::new(Parallel { allowed: export.can(wire::CAN_MULTI_CONN), links: 0 })),
            down: AtomicUsize::new(0),
            cache: Cache::default(),
        };
        Ok((backing, size, limits))
    }

    /// Waits, a step at a time, until the server has closed the connections of the process before us.
    pub(crate) fn fence(&self) -> Result<Activation, VolumeError> {
        let mut old = lock(&self.old);
        let os = |what: &str, e| VolumeError::os(&self.name, what, e);
        let waiting = match &mut *old {
            Some(waiting) => waiting,
            None => {
                let until = Instant::now() + self.timeout;
                let prefix = sockets_prefix(&self.name);
                let kept = self.broker.kept(&prefix).map_err(|e| os("ask for its old connections", e))?;
                let kept = kept.into_iter().map(|(key, socket)| {
                    // No more requests; the server ends what it has.
                    let _ = shutdown(&socket, Shutdown::Write);
                    OldConnection { key, socket, until }
                });
                old.insert(kept.collect())
            }
        };
        let mut result = Ok(());
        waiting.retain(|old| {
            let over = old.is_over(&self.name);
            if over {
                result = std::mem::replace(&mut result, Ok(())).and(self.broker.forget(&old.key));
            }
            !over
        });
        result.map_err(|e| os("have its old connections forgotten", e))?;
        if waiting.is_empty() {
            return Ok(Activation::Active);
        }
        let why = format!("{} has not yet ended what a softdpu that was killed had sent it", self.uri.server());
        Ok(Activation::Busy { why })
    }

    /// Has the server put what it has answered on stable storage. A flush on a connection of our own need not cover
    /// what was written on another, and a server may refuse one more, so it goes on one that the cores use.
    pub(crate) fn settle(&self) -> Result<(), VolumeError> {
        if self.read_only || !self.export.can(wire::SEND_FLUSH) || self.cache.is_clean() {
            return Ok(());
        }
        let Some(link) = lock(&self.shared).upgrade() else { return Ok(()) };
        let me = Arc::new(Mailbox::new()?);
        let until = Instant::now() + SETTLE;
        link.join(&me, Instant::now());
        let result = flush(&link, &me, until);
        link.leave(&me);
        result.map_err(|error| VolumeError::os(&self.name, "have its server's cache flushed", error))
    }

    /// The next to have the volume waits for the connections that there are now.
    pub(crate) fn release(&self) {
        *lock(&self.old) = None;
    }

    /// Asks for the export's size on a new connection: NBD says it once on each.
    pub(crate) fn grow(&self, size: u64) -> Result<(), VolumeError> {
        let dial = |limit| self.broker.connect(&self.name, &self.uri, limit);
        let found = handshake::connect(self.uri.export(), FIRST_CONNECT.min(self.timeout), dial);
        let (_, export) = found.map_err(|reason| server_error(&self.name, &self.uri, reason))?;
        if export.size < size {
            let reason = format!("the export has {} bytes: grow it at the server to {size} first", export.size);
            return Err(server_error(&self.name, &self.uri, reason));
        }
        // What the server promises no more, the next data plane must not count on.
        let lost = if lock(&self.parallel).allowed { 0 } else { wire::CAN_MULTI_CONN };
        let flags = self.export.flags & !lost;
        remember(&self.name, &self.uri, Export { size, flags, ..self.export }, &*self.broker)
    }

    /// A core's connection: its own where the server promises that a flush on one covers the writes of all
    /// (NBD_FLAG_CAN_MULTI_CONN), else the one all cores share.
    pub(crate) fn link(&self, volume: &Arc<Volume>, me: &Arc<Mailbox>, now: Instant) -> Arc<NbdLink> {
        let mut shared = lock(&self.shared);
        let mut parallel = lock(&self.parallel);
        let link = match shared.upgrade().filter(|_| !parallel.allowed) {
            Some(link) => link,
            None => {
                parallel.links += 1;
                let id = self.links.fetch_add(1, Ordering::Relaxed);
                let first = lock(&self.first).take();
                let first = first.filter(|(socket, _)| self.broker.keep(&self.key(id), socket.as_fd()).is_ok());
                let link = NbdLink::new(volume, id, first);
                *shared = Arc::downgrade(&link);
                link
            }
        };
        drop((parallel, shared));
        link.join(me, now);
        link
    }

    fn link_ends(&self) {
        lock(&self.parallel).links -= 1;
    }

    fn key(&self, id: u32) -> String {
        format!("{}{id}", sockets_prefix(&self.name))
    }

    fn forget(&self, id: u32) {
        let _ = self.broker.forget(&self.key(id));
    }

    fn answer(&self) -> Duration {
        self.answer
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn longest_pause(&self) -> Duration {
        self.longest_pause
    }

    fn goes_down(&self) {
        self.down.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether no link is down any more.
    fn comes_up(&self) -> bool {
        self.down.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// Connects in a thread of its own, which leaves what it got in `slot` and wakes the owners. Whether there is
    /// one.
    fn start_connecting(&self, id: u32, slot: &ConnectResult, owners: &[Arc<Mailbox>]) -> bool {
        let (uri, broker, key) = (self.uri.clone(), Arc::clone(&self.broker), self.key(id));
        let (known, read_only, limit) = (self.export, self.read_only, self.timeout.min(FIRST_CONNECT));
        let (slot, owners) = (Arc::downgrade(slot), owners.to_vec());
        let (name, parallel) = (self.name.clone(), Arc::clone(&self.parallel));
        let attempt = move || {
            let refused =
                |reason: String, lasting| ConnectError { reason: format!("{}: {reason}", uri.server()), lasting };
            let dial = |limit| broker.connect(&name, &uri, limit);
            let connected = handshake::connect(uri.export(), limit, dial).map_err(|reason| refused(reason, false));
            let result = connected.and_then(|(socket, export)| {
                same_export(&known, &export, read_only).map_err(|reason| refused(reason, true))?;
                if known.can(wire::CAN_MULTI_CONN) && !export.can(wire::CAN_MULTI_CONN) {
                    let one = Export { flags: known.flags & !wire::CAN_MULTI_CONN, ..known };
                    // For the next data plane, which begins with one connection; without it that one is refused like
                    // us.
                    let _ = remember(&name, &uri, one, &*broker);
                    lock(&parallel).become_one().map_err(|reason| refused(reason, true))?;
                }
                // Before the first request is on it: else no successor would know of it after a kill in between.
                let kept = broker.keep(&key, socket.as_fd());
                kept.map_err(|e| refused(format!("cannot have its connection kept: {e}"), false))?;
                Ok((socket, export))
            });
            let Some(slot) = slot.upgrade() else {
                // The volume was detached in the meantime.
                let _ = broker.forget(&key);
                return;
            };
            *lock(&slot) = Some(result);
            for owner in owners {
                owner.wake();
            }
        };
        std::thread::Builder::new().name("nbd-connect".into()).spawn(attempt).is_ok()
    }
}

impl Parallel {
    /// The server does not promise consistency among connections any more. With one that is as good as before.
    ///
    /// # Errors
    /// Where there are several: a flush on one of them would no longer cover what was written on the others.
    fn become_one(&mut self) -> Result<(), String> {
        if self.links > 1 {
            return Err(format!(
                "it no longer promises consistency among connections (multi-conn), and {} cores have one each: serve the \
                 export as before, or end the data plane: its successor uses one connection",
                self.links
            ));
        }
        self.allowed = false;
        Ok(())
    }
}

impl OldConnection {
    /// One poll, which ends soon even if the server keeps sending. Whether there will be no other.
    fn is_over(&self, volume: &str) -> bool {
        let mut scratch = [0; 64 << 10];
        for _ in 0..READS_PER_LOOK {
            match recv(&self.socket, &mut scratch[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return true,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                // Reset: the server has dropped it.
                Err(_) => return true,
            }
        }
        if Instant::now() < self.until {
            return false;
        }
        tracing::warn!(volume, "the server did not close an old connection in time; going on without");
        true
    }
}

/// Sends a flush and waits for its answer.
fn flush(link: &NbdLink, me: &Arc<Mailbox>, until: Instant) -> std::io::Result<()> {
    let request = Request {
        token: 0,
        op: BlockOp::Flush,
        offset: 0,
        len: 0,
        buffer: GuestBuffer::new(&View::empty()),
        data: 0..0,
        durable: false,
    };
    link.submit(request, me, until);
    let mut done = Vec::new();
    loop {
        // Sends and receives, too.
        let now = Instant::now();
        link.tick(me, now);
        me.silence();
        me.take(&mut done);
        if let Some(done) = done.pop() {
            return done.result.map_err(std::io::Error::other);
        }
        if now >= until {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let due = link.next_deadline().map_or(until, |due| due.min(until)).saturating_duration_since(now);
        let pause = Timespec { tv_sec: due.as_secs() as i64, tv_nsec: due.subsec_nanos().into() };
        let socket = link.interest().map(|(socket, _)| socket);
        let mut fds = vec![PollFd::from_borrowed_fd(me.as_fd(), PollFlags::IN)];
        fds.extend(socket.as_ref().map(|socket| PollFd::new(&**socket, PollFlags::IN)));
        // EINTR is a wake-up like any other.
        let _ = poll(&mut fds, Some(&pause));
    }
}

/// A server that was restarted has to offer at least what it did before.
fn same_export(known: &Export, now: &Export, read_only: bool) -> Result<(), String> {
    if now.size < known.size {
        return Err(format!("its export has shrunk from {} to {} bytes", known.size, now.size));
    }
    if now.can(wire::READ_ONLY) && !read_only {
        return Err("its export has become read-only".into());
    }
    if now.min_block > known.min_block.max(512) {
        return Err(format!("its smallest block has grown from {} to {} bytes", known.min_block, now.min_block));
    }
    Ok(())
}

fn server_error(name: &str, uri: &NbdUri, reason: String) -> VolumeError {
    VolumeError::Server { volume: name.into(), server: uri.server().to_string(), reason }
}

/// How the names begin under which the broker keeps a volume's sockets.
pub(crate) fn sockets_prefix(name: &str) -> String {
    format!("nbd/{name}/")
}

/// The name under which the broker keeps what is known about a volume's export.
pub(crate) fn memo_key(name: &str) -> String {
    format!("nbd-export/{name}")
}

fn remember(name: &str, uri: &NbdUri, export: Export, broker: &dyn Broker) -> Result<(), VolumeError> {
    let os = |e: std::io::Error| VolumeError::os(name, "have its export's size kept", e);
    let memo = serde_json::to_vec(&ExportMemo { uri: uri.clone(), export }).map_err(|e| os(e.into()))?;
    let file = rustix::fs::memfd_create("nbd export", MemfdFlags::CLOEXEC).map_err(|e| os(e.into()))?;
    rustix::io::pwrite(&file, &memo, 0).map_err(|e| os(e.into()))?;
    broker.keep(&memo_key(name), file.as_fd()).map_err(os)
}

fn recall(name: &str, uri: &NbdUri, broker: &dyn Broker) -> Option<Export> {
    let key = memo_key(name);
    let (_, file) = broker.kept(&key).ok()?.into_iter().find(|(other, _)| *other == key)?;
    let mut bytes = vec![0; 16 << 10];
    let len = rustix::io::pread(&file, &mut bytes[..], 0).ok()?;
    let memo: ExportMemo = serde_json::from_slice(&bytes[..len]).ok()?;
    (memo.uri == *uri).then_some(memo.export)
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
