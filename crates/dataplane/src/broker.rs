//! The data plane's way to the supervisor: the link, and over it the vault and what this process may not open itself.
//!
//! The control thread alone takes messages off the link. A volume opens its file on a thread of its own, and waits
//! there for the control thread to pass the answer on.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softdpu_storage::{Broker, NbdUri, VolumeKind, VolumeSpec};

use softdpu_link::{DataPlaneLink, Down, Link, LinkError, Open, OpenFailure, SharedFd, Up};
use softdpu_sys::ReapedFd;

/// The link, shared by the control loop and the threads that open volumes.
pub(super) struct Wire {
    /// The link's socket, to wait on without the lock.
    fd: OwnedFd,
    link: Mutex<DataPlaneLink>,
    /// Threads that wait for something to be opened, by call.
    opens: Mutex<HashMap<u64, Sender<io::Result<OwnedFd>>>>,
    /// Messages that came while the control thread waited for another, which are the next ones.
    passed_over: Mutex<VecDeque<(Down, Vec<ReapedFd>)>>,
    vault: Mutex<BTreeMap<String, SharedFd>>,
    calls: AtomicU64,
}

/// How long the control thread waits for what takes the supervisor a moment.
const CONTROL_PATIENCE: Duration = Duration::from_secs(2);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wire {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Arc<Wire>> {
        let fd = socket.try_clone()?;
        Ok(Arc::new(Wire {
            fd,
            link: Mutex::new(Link::new(socket)),
            opens: Mutex::default(),
            passed_over: Mutex::default(),
            vault: Mutex::default(),
            calls: AtomicU64::new(0),
        }))
    }

    /// What was kept by the data planes before this one.
    pub(super) fn remember(&self, keys: Vec<String>, fds: Vec<ReapedFd>) {
        lock(&self.vault).extend(keys.into_iter().zip(fds.into_iter().map(Arc::new)));
    }

    /// What is no longer kept.
    pub(super) fn forget_kept(&self, keys: &[String]) {
        lock(&self.vault).retain(|key, _| !keys.contains(key));
    }

    /// Sends; blocks while the supervisor takes nothing, which it never does for long.
    pub(super) fn send(&self, message: &Up, fds: Vec<SharedFd>) -> Result<(), LinkError> {
        let mut link = lock(&self.link);
        link.send(message, fds)?;
        link.drain()
    }

    /// The next message that is here.
    pub(super) fn next(&self) -> Result<Option<(Down, Vec<ReapedFd>)>, LinkError> {
        if let Some(message) = lock(&self.passed_over).pop_front() {
            return Ok(Some(message));
        }
        lock(&self.link).receive()
    }

    /// Whether a message is here that the link's descriptor does not tell of.
    pub(super) fn has_passed_over(&self) -> bool {
        !lock(&self.passed_over).is_empty()
    }

    /// Waits for the next message.
    pub(super) fn wait(&self, timeout: Duration) -> Result<Option<(Down, Vec<ReapedFd>)>, LinkError> {
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

    /// Gives the thread that asked for a file the outcome.
    pub(super) fn opened(&self, call: u64, result: Result<(), OpenFailure>, fds: Vec<ReapedFd>) {
        let Some(waiting) = lock(&self.opens).remove(&call) else {
            tracing::warn!(call, "a file was opened that no thread asked for");
            return;
        };
        let first = || fds.into_iter().next().ok_or_else(|| io::Error::other("no descriptor came with the answer"));
        // The thread waits for as long as there is an answer to come.
        let _ = waiting.send(result.map_err(io::Error::from).and_then(|()| first().map(ReapedFd::into_owned)));
    }

    /// The link's descriptor, to poll.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// All keys of the vault.
    pub(super) fn kept_keys(&self) -> Vec<String> {
        lock(&self.vault).keys().cloned().collect()
    }

    /// What the vault has under this very key.
    pub(super) fn kept_fd(&self, key: &str) -> Option<SharedFd> {
        lock(&self.vault).get(key).cloned()
    }

    /// Has the supervisor open something; what its answer comes by.
    fn ask(&self, message: impl FnOnce(u64) -> Up) -> io::Result<(u64, Receiver<io::Result<OwnedFd>>)> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = channel();
        lock(&self.opens).insert(call, sender);
        self.send(&message(call), Vec::new()).map_err(lost)?;
        Ok((call, answer))
    }

    /// Has the supervisor open something, and waits for it, not on the control thread: a file system or server that
    /// hangs holds this thread and no other. The supervisor answers every call.
    fn ask_and_wait(&self, message: impl FnOnce(u64) -> Up) -> io::Result<OwnedFd> {
        let (_, answer) = self.ask(message)?;
        answer.recv().map_err(|_| io::Error::other("the answer got lost"))?
    }

    /// The same on the control thread, which takes messages off the link meanwhile and passes them over.
    fn ask_from_control(&self, message: impl FnOnce(u64) -> Up) -> io::Result<OwnedFd> {
        let (call, answer) = self.ask(message)?;
        let deadline = Instant::now() + CONTROL_PATIENCE;
        loop {
            if let Ok(result) = answer.try_recv() {
                return result;
            }
            match self.wait(deadline.saturating_duration_since(Instant::now())).map_err(lost)? {
                Some((Down::Opened { call, result }, fds)) => self.opened(call, result, fds),
                Some(other) => lock(&self.passed_over).push_back(other),
                None => {
                    lock(&self.opens).remove(&call);
                    return Err(io::Error::other("the supervisor does not answer"));
                }
            }
        }
    }

    /// A TAP interface of a device, with this MTU where the device says none.
    pub(super) fn open_tap(&self, device: &str, mtu: u16) -> io::Result<OwnedFd> {
        self.ask_from_control(|call| Up::OpenTap { call, device: device.to_owned(), mtu })
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
            VolumeKind::File { direct, .. } | VolumeKind::Device { direct, .. } => *direct,
            VolumeKind::Null { .. } | VolumeKind::Memory { .. } | VolumeKind::Nbd { .. } => false,
        };
        let open = Open { volume: spec.name.clone(), read_only: spec.read_only, direct, key: false };
        self.ask_and_wait(|call| Up::Open { call, open })
    }

    fn open_key(&self, spec: &VolumeSpec) -> io::Result<OwnedFd> {
        let open = Open { volume: spec.name.clone(), read_only: true, direct: false, key: true };
        self.ask_and_wait(|call| Up::Open { call, open })
    }

    fn connect(&self, name: &str, _uri: &NbdUri, limit: Duration) -> io::Result<OwnedFd> {
        let (volume, patience_ms) = (name.to_owned(), limit.as_millis() as u64);
        self.ask_and_wait(|call| Up::Connect { call, volume, patience_ms })
    }

    fn keep(&self, key: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.keep_fd(key, Arc::new(fd.try_clone_to_owned()?.into()))
    }

    fn kept(&self, prefix: &str) -> io::Result<Vec<(String, OwnedFd)>> {
        lock(&self.vault)
            .iter()
            .filter(|(key, _)| key.starts_with(prefix))
            .map(|(key, fd)| Ok((key.clone(), fd.as_fd().try_clone_to_owned()?)))
            .collect()
    }

    fn forget(&self, key: &str) -> io::Result<()> {
        lock(&self.vault).remove(key);
        self.send(&Up::Forget { key: key.to_owned() }, Vec::new()).map_err(lost)
    }
}

#[cfg(test)]
mod tests {
    use softdpu_storage::Volume;

    /// The supervisor, which does not know volumes, forgets what was kept of one by the shape of the key.
    #[test]
    fn the_link_knows_what_volumes_keep() {
        for kind in ["key", "memory", "user", "nbd-export", "nbd", "ring", "networks.loaded", "position"] {
            for key in [kind.to_owned(), format!("{kind}/v"), format!("{kind}/vv"), format!("{kind}/v/0")] {
                // Only sockets have a number.
                let is_exact = !key.ends_with("/0") && key != "nbd/v" || kind == "nbd" && key.ends_with("/0");
                if is_exact {
                    assert_eq!(softdpu_link::is_kept_of_volume("v", &key), Volume::is_kept_of("v", &key), "{key}");
                }
            }
        }
    }
}
