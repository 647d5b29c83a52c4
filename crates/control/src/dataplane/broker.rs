//! The data plane's way to the supervisor: the link, and over it the opening of files and the vault.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softdpu_storage::{Broker, Kind, VolumeSpec};

use crate::link::{BEAT, DataPlaneLink, Down, Link, LinkError, Open, SharedFd, Up};

/// How long the supervisor may take to open a file.
const OPEN_PATIENCE: Duration = Duration::from_secs(20);

/// The link, shared by the control loop and by whoever opens volumes.
pub(super) struct Wire {
    /// The link's socket, to wait on without the lock.
    fd: OwnedFd,
    link: Mutex<DataPlaneLink>,
    /// Messages that came while an answer was awaited.
    backlog: Mutex<VecDeque<(Down, Vec<OwnedFd>)>>,
    vault: Mutex<BTreeMap<String, SharedFd>>,
    calls: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wire {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Arc<Wire>> {
        let fd = socket.try_clone()?;
        Ok(Arc::new(Wire {
            fd,
            link: Mutex::new(Link::new(socket)),
            backlog: Mutex::default(),
            vault: Mutex::default(),
            calls: AtomicU64::new(0),
        }))
    }

    /// What was kept by the data planes before this one.
    pub(super) fn remember(&self, keys: Vec<String>, fds: Vec<OwnedFd>) {
        lock(&self.vault).extend(keys.into_iter().zip(fds.into_iter().map(Arc::new)));
    }

    /// Sends; blocks while the supervisor takes nothing, which it never does for long.
    pub(super) fn send(&self, message: &Up, fds: Vec<SharedFd>) -> Result<(), LinkError> {
        let mut link = lock(&self.link);
        link.send(message, fds)?;
        link.drain()
    }

    /// The next message that is here.
    pub(super) fn next(&self) -> Result<Option<(Down, Vec<OwnedFd>)>, LinkError> {
        if let Some(message) = lock(&self.backlog).pop_front() {
            return Ok(Some(message));
        }
        lock(&self.link).receive()
    }

    /// Waits for the next message. The lock is free meanwhile: cores that keep or forget a descriptor must not wait for a
    /// slow file server with us.
    pub(super) fn wait(&self, timeout: Duration) -> Result<Option<(Down, Vec<OwnedFd>)>, LinkError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(message) = lock(&self.link).receive()? {
                return Ok(Some(message));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let pause = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            // EINTR is a wake-up like any other.
            let _ = poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&pause));
        }
    }

    /// The link's descriptor, to poll.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What the vault has under this very key.
    pub(super) fn kept_fd(&self, key: &str) -> Option<SharedFd> {
        lock(&self.vault).get(key).cloned()
    }

    /// Keeps a descriptor across our death.
    pub(super) fn keep_fd(&self, key: &str, fd: SharedFd) -> io::Result<()> {
        self.send(&Up::Keep { key: key.to_owned() }, vec![Arc::clone(&fd)]).map_err(lost)?;
        lock(&self.vault).insert(key.to_owned(), fd);
        Ok(())
    }
}

fn lost(error: LinkError) -> io::Error {
    io::Error::other(format!("the supervisor cannot be asked: {error}"))
}

impl Broker for Wire {
    fn open_backing(&self, spec: &VolumeSpec) -> io::Result<OwnedFd> {
        let direct = match &spec.kind {
            Kind::File { direct, .. } | Kind::Device { direct, .. } => *direct,
            Kind::Null { .. } | Kind::Memory { .. } | Kind::Nbd { .. } => false,
        };
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let open = Open { volume: spec.name.clone(), read_only: spec.read_only, direct };
        self.send(&Up::Open { call, open }, Vec::new()).map_err(lost)?;
        let deadline = Instant::now() + OPEN_PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.wait(left.min(BEAT)).map_err(lost)? {
                Some((Down::Opened { call: answered, result }, fds)) if answered == call => {
                    result?;
                    return fds
                        .into_iter()
                        .next()
                        .ok_or_else(|| io::Error::other("no descriptor came with the answer"));
                }
                Some(other) => lock(&self.backlog).push_back(other),
                // Whoever waits is alive: the supervisor's watchdog must not take a slow file server for a hang.
                None if !left.is_zero() => self.send(&Up::Alive, Vec::new()).map_err(lost)?,
                None => {
                    let text = format!("the supervisor did not open it within {} s", OPEN_PATIENCE.as_secs());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
            }
        }
    }

    fn keep(&self, key: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.keep_fd(key, Arc::new(fd.try_clone_to_owned()?))
    }

    fn kept(&self, prefix: &str) -> io::Result<Vec<(String, OwnedFd)>> {
        lock(&self.vault)
            .iter()
            .filter(|(key, _)| key.starts_with(prefix))
            .map(|(key, fd)| Ok((key.clone(), fd.try_clone()?)))
            .collect()
    }

    fn forget(&self, key: &str) -> io::Result<()> {
        lock(&self.vault).remove(key);
        self.send(&Up::Forget { key: key.to_owned() }, Vec::new()).map_err(lost)
    }
}
