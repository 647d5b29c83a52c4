//! The broker: it opens backing files, and keeps descriptors when this process dies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};

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

    /// Opens the key file of an encrypted volume, to be read once.
    ///
    /// # Errors
    /// What the operating system says; `InvalidInput` where the key is in no file.
    fn open_key(&self, spec: &VolumeSpec) -> io::Result<OwnedFd>;

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
        open_key_file(spec)
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

/// Opens the key file of an encrypted volume: what a broker does for [`Broker::open_key`].
///
/// # Errors
/// What the operating system says; `InvalidInput` where the key is in no file.
pub fn open_key_file(spec: &VolumeSpec) -> io::Result<OwnedFd> {
    let Some(KeySource::File(path)) = spec.encryption.as_ref().map(|encryption| &encryption.key) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this volume has no key file"));
    };
    // NONBLOCK: as above; what is no file is refused where it is read.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}
