//! The broker: it opens backing files, and keeps descriptors when this process dies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use softdpu_nbd::{NbdServer, NbdUri};
use softdpu_sys::{dial, keyring};

use crate::{KeySource, VolumeKind, VolumeSpec};

/// The way to what outlives this process or needs privilege. The control crate implements it towards the supervisor;
/// [`PathBroker`] is the plain one.
pub trait Broker: Send + Sync {
    /// Opens the file or device behind a volume.
    ///
    /// Each call returns a **fresh open file description**, of which the broker keeps no copy: the fence is a lock on
    /// the description that carries the I/O, and has to end when this process and its I/O have ended, not before and
    /// not after.
    ///
    /// # Errors
    /// What the operating system says.
    fn open_backing(&self, spec: &VolumeSpec) -> io::Result<OwnedFd>;

    /// Opens the key of an encrypted volume, to be read once: its key file, or a file with the key that the kernel's
    /// keyring has.
    ///
    /// # Errors
    /// What the operating system says; `InvalidInput` where the volume has no key.
    fn open_key(&self, spec: &VolumeSpec) -> io::Result<OwnedFd>;

    /// Connects to the server of the volume `name`, which is at `uri`; the server may take `limit` to answer.
    ///
    /// # Errors
    /// What went wrong, in words.
    fn connect(&self, name: &str, uri: &NbdUri, limit: Duration) -> io::Result<OwnedFd>;

    /// Keeps a copy of a descriptor under a name across our death; an older one of that name is replaced.
    ///
    /// # Errors
    /// When it cannot.
    fn keep(&self, key: &str, fd: BorrowedFd<'_>) -> io::Result<()>;

    /// Copies of what is kept under names that start with `prefix`, by this process or one before it.
    ///
    /// # Errors
    /// When the keeper cannot be asked.
    fn kept(&self, prefix: &str) -> io::Result<Vec<(String, OwnedFd)>>;

    /// No longer keeps what has that name; nothing where there is none.
    ///
    /// # Errors
    /// When the keeper cannot be asked.
    fn forget(&self, key: &str) -> io::Result<()>;
}

/// Opens paths itself and keeps descriptors for as long as it lives: for tests and tools that have no supervisor.
#[derive(Debug, Default)]
pub struct PathBroker {
    kept: Mutex<Vec<(String, OwnedFd)>>,
}

impl PathBroker {
    /// One that keeps nothing yet.
    #[expect(clippy::new_ret_no_self, reason = "volumes want it as a shared broker")]
    pub fn new() -> Arc<dyn Broker> {
        Arc::new(Self::default())
    }
}

impl Broker for PathBroker {
    fn open_backing(&self, spec: &VolumeSpec) -> io::Result<OwnedFd> {
        open_path(spec)
    }

    fn open_key(&self, spec: &VolumeSpec) -> io::Result<OwnedFd> {
        open_key(spec)
    }

    fn connect(&self, _name: &str, uri: &NbdUri, limit: Duration) -> io::Result<OwnedFd> {
        let deadline = Instant::now() + limit;
        match uri.server() {
            NbdServer::Unix(path) => {
                dial::unix(path, deadline).map_err(|error| io::Error::other(format!("cannot connect: {error}")))
            }
            NbdServer::Tcp { host, port } => dial::tcp(host, *port, deadline).map_err(io::Error::other),
        }
    }

    fn keep(&self, key: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        let copy = fd.try_clone_to_owned()?;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(other, _)| other != key);
        kept.push((key.into(), copy));
        Ok(())
    }

    fn kept(&self, prefix: &str) -> io::Result<Vec<(String, OwnedFd)>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter()
            .filter(|(key, _)| key.starts_with(prefix))
            .map(|(key, fd)| Ok((key.clone(), fd.as_fd().try_clone_to_owned()?)))
            .collect()
    }

    fn forget(&self, key: &str) -> io::Result<()> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| other != key);
        Ok(())
    }
}

/// Opens the path of a `file` or `device` volume with the flags its specification asks for: what a broker does for
/// [`Broker::open_backing`].
///
/// # Errors
/// What the operating system says; `InvalidInput` for kinds that have no path.
pub fn open_path(spec: &VolumeSpec) -> io::Result<OwnedFd> {
    let (path, direct, create) = match &spec.kind {
        VolumeKind::File { path, direct, create, .. } => (path, *direct, *create),
        VolumeKind::Device { path, direct } => (path, *direct, false),
        VolumeKind::Null { .. } | VolumeKind::Memory { .. } | VolumeKind::Nbd { .. } => {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this kind of volume has no backing path"));
        }
    };
    // NONBLOCK: a path that turns out to be a FIFO must not hang its opener; it means nothing for files and disks.
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    flags |= if spec.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if direct {
        flags |= OFlags::DIRECT;
    }
    if create {
        flags |= OFlags::CREATE;
    }
    let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    // With O_NONBLOCK set io_uring would hand EAGAIN to us instead of waiting for the page.
    rustix::fs::fcntl_setfl(&fd, rustix::fs::fcntl_getfl(&fd)? - OFlags::NONBLOCK)?;
    Ok(fd)
}

/// Opens the key of an encrypted volume: what a broker does for [`Broker::open_key`].
///
/// # Errors
/// What the operating system says; `InvalidInput` where the volume has no key.
pub fn open_key(spec: &VolumeSpec) -> io::Result<OwnedFd> {
    match spec.encryption.as_ref().map(|encryption| &encryption.key) {
        // NONBLOCK: as above; what is no file is refused where it is read.
        Some(KeySource::File(path)) => {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
            Ok(rustix::fs::open(path, flags, Mode::empty())?)
        }
        Some(KeySource::Keyring(key)) => keyring::user_key_file(key),
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, "this volume has no key")),
    }
}
