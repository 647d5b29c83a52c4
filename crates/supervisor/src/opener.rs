//! Opens what the data plane wants, each on a thread of its own: a file system or a server that hangs must not hang
//! the supervisor.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, ftruncate, open};
use rustix::io::Errno;
use softdpu_sys::wake::Doorbell;

use super::wanted::Wanted;
use softdpu_link::{Open, OpenFailure};
use softdpu_site::{Backend, Bytes, Volume};

/// So many opens may be under way; those that hang count.
const MOST_AT_ONCE: usize = 256;

/// What came of what was wanted.
pub(super) struct Opened {
    /// Which data plane asked.
    pub(super) incarnation: u64,
    /// What it called the request.
    pub(super) call: u64,
    /// The volume or device that it is for.
    pub(super) name: String,
    /// The volume's file, if it is one that is made where it is missing.
    pub(super) image: Option<PathBuf>,
    pub(super) result: Result<OwnedFd, OpenFailure>,
}

/// Starts opens and collects what came of them; rings `bell` for each.
pub(super) struct Opener {
    results: Receiver<Opened>,
    sender: Sender<Opened>,
    bell: Arc<Doorbell>,
    under_way: Arc<AtomicUsize>,
}

/// What is to be opened: a volume's path and size with the flags that were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Backing {
    path: PathBuf,
    read_only: bool,
    direct: bool,
    missing: Missing,
}

/// What a missing file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// A mistake.
    Wrong,
    /// Not made yet: it is made of that size, empty.
    New(u64),
    /// Gone with what was in it, as when its file system is not mounted: nothing is made in its place.
    Gone(u64),
}

impl Backing {
    /// What `open` asks for of `volume`, whose image may be made if it `is_new`. Only paths of volumes are opened.
    pub(super) fn of(volume: &Volume, open: &Open, is_new: bool) -> Result<Backing, OpenFailure> {
        if open.key {
            let Some(path) = volume.encryption.as_ref().and_then(|encryption| encryption.key_file.as_ref()) else {
                let message = format!("volume {:?} has no key file", volume.name);
                return Err(OpenFailure { errno: Some(Errno::INVAL.raw_os_error()), message });
            };
            return Ok(Backing { path: path.clone(), read_only: true, direct: false, missing: Missing::Wrong });
        }
        let (path, missing) = match &volume.backend {
            Backend::File(file) => match file.size {
                Some(size) if file.create && is_new => (&file.path, Missing::New(size.0)),
                Some(size) if file.create => (&file.path, Missing::Gone(size.0)),
                _ => (&file.path, Missing::Wrong),
            },
            Backend::Device(device) => (&device.path, Missing::Wrong),
            Backend::Null { .. } | Backend::Memory { .. } | Backend::Nbd(_) => {
                let message =
                    format!("volume {:?} has no file: it is a `{}` volume", volume.name, volume.backend.kind());
                return Err(OpenFailure { errno: Some(Errno::INVAL.raw_os_error()), message });
            }
        };
        if volume.read_only && !open.read_only {
            let message = format!("volume {:?} is read-only", volume.name);
            return Err(OpenFailure { errno: Some(Errno::ROFS.raw_os_error()), message });
        }
        Ok(Backing { path: path.clone(), read_only: open.read_only, direct: open.direct, missing })
    }

    /// Its path, if it is a file that is made where it is missing.
    pub(super) fn image(&self) -> Option<PathBuf> {
        (self.missing != Missing::Wrong).then(|| self.path.clone())
    }

    /// Opens it: always a new open file description, so that a lock on it is held by no other.
    pub(super) fn open(&self) -> Result<OwnedFd, OpenFailure> {
        self.try_open().map_err(|(what, errno)| match self.missing {
            // There is more to say than the number does.
            Missing::Gone(size) if errno == Errno::NOENT => {
                OpenFailure { errno: None, message: gone(&self.path, size) }
            }
            _ => OpenFailure {
                errno: Some(errno.raw_os_error()),
                message: format!("{}: cannot {what}: {errno}", self.path.display()),
            },
        })
    }

    fn try_open(&self) -> Result<OwnedFd, (&'static str, Errno)> {
        let access = if self.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let direct = if self.direct { OFlags::DIRECT } else { OFlags::empty() };
        // NONBLOCK: a FIFO in the place of the file must not hang the opener.
        let flags = access | direct | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = match (open(&self.path, flags, mode), self.missing) {
            (Err(Errno::NOENT), Missing::New(size)) => {
                create(&self.path, size)?;
                tracing::warn!(path = %self.path.display(), size = %Bytes(size), "made a new, empty image");
                open(&self.path, flags, mode).map_err(|errno| ("open it", errno))?
            }
            (opened, _) => opened.map_err(|errno| ("open it", errno))?,
        };
        let kind =
            fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode)).map_err(|errno| ("look at it", errno))?;
        if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
            return Err(("use it: it is neither a file nor a block device", Errno::INVAL));
        }
        let plain = fcntl_getfl(&fd).and_then(|flags| fcntl_setfl(&fd, flags - OFlags::NONBLOCK));
        plain.map_err(|errno| ("set it up", errno))?;
        Ok(fd)
    }
}

/// An image is gone, and how to go on.
fn gone(path: &Path, size: u64) -> String {
    let path = path.display();
    format!(
        "the image is gone: it was there before, and no empty one is made in its place. Mount its file system or restore \
         it; for a new, empty one: truncate -s {size} {path}"
    )
}

/// Makes the file whole before it has its name: one that was cut short by a crash would be taken for a volume of the
/// wrong size.
fn create(path: &Path, size: u64) -> Result<(), (&'static str, Errno)> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mode = Mode::RUSR | Mode::WUSR;
    let unnamed = open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode);
    let file = match unnamed {
        Ok(file) => file,
        // Not every file system has unnamed files.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let file = open(path, flags, mode).map_err(|errno| ("create it", errno))?;
            return ftruncate(&file, size).map_err(|errno| ("give it its size", errno));
        }
        Err(errno) => return Err(("create it", errno)),
    };
    ftruncate(&file, size).map_err(|errno| ("give it its size", errno))?;
    use std::os::fd::AsRawFd;
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    match rustix::fs::linkat(rustix::fs::CWD, unnamed, rustix::fs::CWD, path, flags) {
        // Another process was faster: its file is opened.
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(("give it its name", errno)),
    }
}

impl Opener {
    pub(super) fn new(bell: Arc<Doorbell>) -> Opener {
        let (sender, results) = channel();
        Opener { results, sender, bell, under_way: Arc::default() }
    }

    /// Opens what is wanted for the volume or device `name` in the background.
    pub(super) fn start(&self, incarnation: u64, call: u64, name: &str, wanted: Result<Wanted, OpenFailure>) {
        let (sender, bell, under_way) = (self.sender.clone(), Arc::clone(&self.bell), Arc::clone(&self.under_way));
        let name = name.to_owned();
        let image = wanted.as_ref().ok().and_then(Wanted::image);
        let finish = move |result| {
            // The receiver is gone only when the supervisor is.
            let _ = sender.send(Opened { incarnation, call, name, image, result });
            bell.ring();
        };
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(failure) => return finish(Err(failure)),
        };
        if self.under_way.fetch_add(1, Ordering::Relaxed) >= MOST_AT_ONCE {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            let message = format!("{MOST_AT_ONCE} other files are being opened");
            return finish(Err(OpenFailure { errno: Some(Errno::AGAIN.raw_os_error()), message }));
        }
        let late_finish = finish.clone();
        let thread = std::thread::Builder::new().name("open".into()).spawn(move || {
            let result = wanted.open();
            finish(result);
            under_way.fetch_sub(1, Ordering::Release);
        });
        if let Err(error) = thread {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            late_finish(Err(OpenFailure {
                errno: error.raw_os_error(),
                message: format!("no thread to open: {error}"),
            }));
        }
    }

    /// Whether a thread opens something. Where none does, all that they have opened is ready.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }

    /// What is ready.
    pub(super) fn take(&self) -> Option<Opened> {
        self.results.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    fn backing(path: &Path, missing: Missing) -> Backing {
        Backing { path: path.to_owned(), read_only: false, direct: false, missing }
    }

    #[test]
    fn each_open_is_a_description_of_its_own_so_that_locks_exclude_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let backing = backing(&folder.path().join("disk"), Missing::New(1 << 20));
        let first = backing.open().unwrap();
        let second = backing.open().unwrap();
        flock(&first, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(flock(&second, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
        drop(first);
        flock(&second, FlockOperation::NonBlockingLockExclusive).unwrap();
    }

    #[test]
    fn a_missing_file_is_created_at_its_size_and_an_existing_one_keeps_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        backing(&path, Missing::New(1 << 20)).open().unwrap();
        let file = fs::metadata(&path).unwrap();
        assert_eq!((file.len(), file.mode() & 0o777), (1 << 20, 0o600));
        backing(&path, Missing::New(2 << 20)).open().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
    }

    #[test]
    fn what_cannot_be_opened_is_said_with_path_and_reason() {
        let folder = tempfile::tempdir().unwrap();
        let missing = backing(&folder.path().join("none"), Missing::Wrong).open().unwrap_err();
        assert_eq!(missing.errno, Some(Errno::NOENT.raw_os_error()));
        assert!(missing.message.contains("none: cannot open it: No such file"), "{}", missing.message);
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(
            backing(&fifo, Missing::Wrong).open().unwrap_err().message.contains("neither a file nor a block device")
        );
    }
}
