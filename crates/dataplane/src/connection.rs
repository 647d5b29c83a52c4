//! One front end's connection to a device: its session, what it shared, and the queues it started.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendFlags, send};
use softdpu_engine::{Engine, QueueKey, QueueUpdate};
use softdpu_memory::{DirtyBitmap, GuestAddress, Member, PAGE, Region, UserAddress, View};
use softdpu_transport::vhost_user::{
    Ack, BackendMessage, Command, CommandId, DirtyLog, FdId, MemoryRegion, QueueChange, QueueIndex, QueueStart,
    RingFormat, Session, VringBase,
};

use softdpu_link::{ConnectionId, FIRST_KEPT_FD, SharedFd};

/// A queue of a connection, as far as it has come.
pub(super) enum QueueState {
    /// Its volume is not fenced yet; it starts when it is.
    Waiting(Box<WaitingQueue>),
    /// A core serves it.
    Running(Started),
    /// The driver broke it; a core still has it, inert.
    Broken(Started),
    /// It could not be started.
    Failed {
        /// Where it was to begin.
        base: VringBase,
    },
}

/// A queue that a core has.
#[derive(Clone, Copy)]
pub(super) struct Started {
    pub key: QueueKey,
    pub size: u16,
    pub format: RingFormat,
}

/// A queue that could start at once, were its volume active.
pub(super) struct WaitingQueue {
    pub start: QueueStart,
    pub ring: softdpu_ring::Queue,
}

/// A command that cores have not all carried out.
pub(super) struct Awaited {
    pub id: CommandId,
    pub tokens: HashSet<u64>,
    pub stops: HashMap<QueueKey, QueueIndex>,
    pub bases: BTreeMap<QueueIndex, VringBase>,
    pub end: End,
}

/// What the acknowledgement will be.
pub(super) enum End {
    Done,
    Stopped(QueueIndex),
    Broken(Vec<QueueIndex>),
    /// With the positions of all that were stopped.
    Reset,
}

impl Awaited {
    pub(super) fn is_over(&self) -> bool {
        self.tokens.is_empty() && self.stops.is_empty()
    }

    pub(super) fn ack(mut self) -> Ack {
        let mut base = |index: &QueueIndex| self.bases.remove(index);
        match &self.end {
            End::Done => Ack::Done,
            End::Stopped(index) => match base(index) {
                Some(base) => Ack::Stopped { base },
                None => Ack::Failed(format!("queue {index} does not run")),
            },
            End::Reset => Ack::Reset(self.bases.into_iter().collect()),
            End::Broken(indexes) => Ack::Broken(indexes.iter().filter_map(base).collect()),
        }
    }
}

/// A connection. The device drives it; see `device.rs`.
pub(super) struct Connection {
    pub id: ConnectionId,
    pub session: Session,
    pub fds: BTreeMap<u32, SharedFd>,
    /// Its part in its guest's domain.
    memory: Member,
    /// Guest memory, without dirty tracking.
    pub view: Arc<View>,
    dirty: Option<Arc<DirtyBitmap>>,
    pub queues: BTreeMap<QueueIndex, QueueState>,
    pub awaited: Option<Awaited>,
    /// For the next answer to the supervisor.
    pub reply: (Vec<u8>, Vec<SharedFd>),
    pub kept: Vec<u32>,
    pub released: Vec<u32>,
    /// A message waits for its answer.
    pub answering: bool,
    /// The front end is gone; what is left is being wound up.
    pub closing: bool,
    next_fd: u32,
}

impl Connection {
    pub(super) fn new(id: ConnectionId, session: Session, fds: BTreeMap<u32, SharedFd>, memory: Member) -> Self {
        let next_fd = fds.keys().next_back().map_or(0, |last| last + 1).max(FIRST_KEPT_FD);
        Connection {
            id,
            session,
            fds,
            memory,
            view: View::empty(),
            dirty: None,
            queues: BTreeMap::new(),
            awaited: None,
            reply: Default::default(),
            kept: Vec::new(),
            released: Vec::new(),
            answering: false,
            closing: false,
            next_fd,
        }
    }

    /// The queue that a core knows by `key`.
    pub(super) fn queue_of(&self, key: QueueKey) -> Option<QueueIndex> {
        self.queues.iter().find_map(|(index, state)| {
            matches!(state, QueueState::Running(s) | QueueState::Broken(s) if s.key == key).then_some(*index)
        })
    }

    /// Whether one of its queues does no work until its driver starts it anew.
    pub(super) fn needs_reset(&self) -> bool {
        self.queues.values().any(|state| matches!(state, QueueState::Broken(_) | QueueState::Failed { .. }))
    }

    /// Changes a queue's state; the front end is notified when its device needs a reset for it and did not before.
    pub(super) fn set_state(&mut self, index: QueueIndex, state: QueueState) {
        let before = self.needs_reset();
        self.queues.insert(index, state);
        if !before
            && self.needs_reset()
            && let Some(message) = self.session.needs_reset()
        {
            self.send_backend(&message);
        }
    }

    /// Queues a core has.
    pub(super) fn live(&self) -> Vec<(QueueIndex, QueueKey)> {
        self.queues
            .iter()
            .filter_map(|(index, state)| match state {
                QueueState::Running(started) | QueueState::Broken(started) => Some((*index, started.key)),
                QueueState::Waiting(_) | QueueState::Failed { .. } => None,
            })
            .collect()
    }

    pub(super) fn fd(&self, FdId(id): FdId) -> Result<&SharedFd, String> {
        self.fds.get(&id).ok_or_else(|| format!("descriptor {id} is not in the connection's table"))
    }

    /// A copy of an eventfd of the front end.
    ///
    /// Anything else is refused. Whether it blocks is the front end's business: it is neither read nor written, but
    /// watched for edges, or signalled by the kernel ([`notify`](softdpu_sys::notify)).
    pub(super) fn eventfd(&self, id: FdId) -> Result<OwnedFd, String> {
        let fd = self.fd(id)?.as_fd().try_clone_to_owned().map_err(|error| format!("copying a descriptor: {error}"))?;
        if !is_eventfd(fd.as_fd()) {
            return Err("a kick, call or error descriptor is not an eventfd".to_owned());
        }
        Ok(fd)
    }

    pub(super) fn optional_eventfd(&self, id: Option<FdId>) -> Result<Option<OwnedFd>, String> {
        id.map(|id| self.eventfd(id)).transpose()
    }

    /// Tells the front end that a queue which no core has is broken (vhost-user: SET_VRING_ERR).
    pub(super) fn signal_error(&self, error: Option<FdId>, engine: &mut Engine) {
        // A front end that does not take it has itself to thank.
        if let Ok(Some(fd)) = self.optional_eventfd(error) {
            engine.signal(fd.as_fd());
        }
    }

    /// Maps a new memory table and makes the view of it.
    pub(super) fn map(&self, regions: &[MemoryRegion]) -> Result<Arc<View>, String> {
        let mut ranges: Vec<(BorrowedFd<'_>, u64, u64)> = Vec::with_capacity(regions.len());
        for region in regions {
            let start = region.mmap_offset / PAGE * PAGE;
            let len = region
                .size
                .checked_add(region.mmap_offset - start)
                .ok_or_else(|| format!("the region at {:#x} wraps", region.guest_address))?;
            ranges.push((self.fd(region.fd)?.as_fd(), start, len));
        }
        let mappings = self.memory.map(&ranges).map_err(|error| error.to_string())?;
        let regions = regions.iter().zip(mappings).map(|(region, mapping)| {
            let offset = (region.mmap_offset % PAGE) as usize;
            Region::new(
                GuestAddress(region.guest_address),
                UserAddress(region.user_address),
                region.size,
                mapping,
                offset,
            )
        });
        let view = View::new(regions.collect()).map_err(|error| error.to_string())?;
        self.check_log(&view)?;
        Ok(view)
    }

    fn check_log(&self, view: &View) -> Result<(), String> {
        match &self.dirty {
            Some(log) if log.covers() < view.end() => Err(format!(
                "the dirty log covers {:#x} bytes of guest memory, which ends at {:#x}",
                log.covers(),
                view.end()
            )),
            _ => Ok(()),
        }
    }

    /// The view that queues are to use: with the log if there is one.
    pub(super) fn tracked(&self) -> Arc<View> {
        match &self.dirty {
            Some(log) => self.view.with_dirty([Arc::clone(log)]),
            None => Arc::clone(&self.view),
        }
    }

    /// Takes over dirty logging as SET_LOG_BASE and the feature bits set it.
    pub(super) fn set_dirty_log(&mut self, log: &DirtyLog) -> Result<(), String> {
        let dirty = match (log.logging, log.memory) {
            (true, Some((fd, offset, bytes))) => {
                let start = offset / PAGE * PAGE;
                let len = bytes.checked_add(offset - start).ok_or("the dirty log wraps")?;
                let mapping = self.memory.map_log(self.fd(fd)?.as_fd(), start, len);
                let mapping = mapping.map_err(|error| format!("dirty log: {error}"))?;
                let bitmap = DirtyBitmap::new(mapping, (offset - start) as usize, bytes as usize);
                Some(Arc::new(bitmap.ok_or("the dirty log is not inside its file")?))
            }
            _ => None,
        };
        let before = std::mem::replace(&mut self.dirty, dirty);
        if let Err(error) = self.check_log(&self.view) {
            self.dirty = before;
            return Err(error);
        }
        Ok(())
    }

    /// Makes a file for an in-flight region and puts it into the table.
    pub(super) fn make_inflight(&mut self, bytes: u64) -> Result<FdId, String> {
        let fd = memfd_create("softdpu-inflight", MemfdFlags::CLOEXEC).map_err(|error| format!("memfd: {error}"))?;
        ftruncate(&fd, bytes).map_err(|error| format!("in-flight region of {bytes} bytes: {error}"))?;
        let id = self.next_fd;
        self.next_fd += 1;
        self.fds.insert(id, Arc::new(fd.into()));
        self.kept.push(id);
        Ok(FdId(id))
    }

    /// Sends on the back-end channel. A front end that does not read it loses the message: sending does not wait.
    pub(super) fn send_backend(&self, message: &BackendMessage) {
        let Ok(channel) = self.fd(message.channel) else { return };
        if let Err(error) = send(channel.as_fd(), &message.bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            tracing::warn!(connection = self.id.0, %error, "the front end takes no messages on its back-end channel");
        }
    }

    /// A changed queue's update for its core.
    pub(super) fn update(&self, change: QueueChange) -> Result<QueueUpdate, String> {
        Ok(match change {
            QueueChange::Kick(fd) => QueueUpdate::Kick(self.optional_eventfd(fd)?),
            QueueChange::Call(fd) => QueueUpdate::Call(self.optional_eventfd(fd)?),
            QueueChange::Err(fd) => QueueUpdate::Error(self.optional_eventfd(fd)?),
            QueueChange::Enabled(enabled) => QueueUpdate::Enabled(enabled),
            QueueChange::Log(log) => QueueUpdate::LogUsed(log.map(GuestAddress)),
        })
    }

    /// Closes what the session no longer needs.
    pub(super) fn release(&mut self, FdId(id): FdId) {
        self.fds.remove(&id);
        if let Some(at) = self.kept.iter().position(|kept| *kept == id) {
            // The supervisor has not heard of it; a reply that carries it has its own copy.
            self.kept.swap_remove(at);
        } else {
            self.released.push(id);
        }
    }
}

fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    // An eventfd has no other mark that user space can see.
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
}

/// The words for a command in logs.
pub(super) fn command_name(command: &Command) -> &'static str {
    match command {
        Command::MemoryChange { .. } => "memory change",
        Command::QueueStart(_) => "queue start",
        Command::QueueUpdate { .. } => "queue update",
        Command::QueueStop { .. } => "queue stop",
        Command::DirtyLog(_) => "dirty log",
        Command::CreateInflight { .. } => "in-flight region",
        Command::Reset(_) => "reset",
        Command::Status(_) => "status",
        Command::SetConfig { .. } => "configuration write",
        Command::SetMtu(_) => "MTU",
        Command::SendRarp { .. } => "RARP",
    }
}
