//! Folders and files of a measurement, which go with it.
//!
//! A process that uses one holds a lock on it (flock(2)), which ends with the process however that ends. So one without
//! a lock was left by a measurement that was killed, and the next one removes it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::{NamedTempFile, TempDir};

/// What their names begin with.
const PREFIX: &str = "softdpu-bench-";

/// Younger ones may belong to a process that has not locked them yet.
const YOUNG: Duration = Duration::from_secs(60);

/// What there is at the moment.
static PRESENT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn note(path: &Path, present: bool) {
    let mut paths = PRESENT.lock().unwrap_or_else(PoisonError::into_inner);
    if present {
        paths.insert(path.to_owned());
    } else {
        paths.remove(path);
    }
}

/// A folder that is removed with it.
#[derive(Debug)]
pub(crate) struct Folder {
    folder: TempDir,
    _lock: File,
}

impl Folder {
    /// One in the folder for temporary files.
    pub(crate) fn new() -> io::Result<Folder> {
        remove_stale(&std::env::temp_dir(), YOUNG);
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let lock = File::open(folder.path())?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        note(folder.path(), true);
        Ok(Folder { folder, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        note(self.folder.path(), false);
    }
}

/// A file that is removed with it.
#[derive(Debug)]
pub(crate) struct ScratchFile(NamedTempFile);

impl ScratchFile {
    /// An empty one in `folder`, whose name ends with `suffix`.
    pub(crate) fn new_in(folder: &Path, suffix: &str) -> io::Result<ScratchFile> {
        remove_stale(folder, YOUNG);
        let file = tempfile::Builder::new().prefix(PREFIX).suffix(suffix).tempfile_in(folder)?;
        flock(file.as_file(), FlockOperation::NonBlockingLockExclusive)?;
        note(file.path(), true);
        Ok(ScratchFile(file))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn as_file(&self) -> &File {
        self.0.as_file()
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        note(self.0.path(), false);
    }
}

/// Removes what this user's processes left in `folder` that ended before they could, as far as it can be removed.
fn remove_stale(folder: &Path, young: Duration) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX))
            && entry.metadata().is_ok_and(|it| !it.is_symlink() && it.uid() == geteuid().as_raw())
            && entry.metadata().and_then(|it| it.modified()).is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= young))
            && File::open(entry.path()).is_ok_and(|it| flock(&it, FlockOperation::NonBlockingLockExclusive).is_ok())
        {
            remove(&entry.path());
        }
    }
}

fn remove(path: &Path) {
    // What cannot be removed stays; the next measurement tries again.
    let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// From now on SIGINT and SIGTERM remove what there is before they end the process. Its servers end with it: see
/// [`Server`](crate::process::Server).
///
/// # Errors
/// When the kernel does not let it wait for signals.
pub fn clean_up_on_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            for path in PRESENT.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                remove(path);
            }
            // It does not return for these.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_measurement_left_is_removed_and_what_is_in_use_is_not() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("softdpu-bench-left")).unwrap();
        fs::write(at("softdpu-bench-left/site.toml"), "").unwrap();
        fs::write(at("softdpu-bench-left.raw"), "").unwrap();
        fs::write(at("precious"), "").unwrap();
        std::os::unix::fs::symlink(at("precious"), at("softdpu-bench-link")).unwrap();
        let used = ScratchFile::new_in(place.path(), ".raw").unwrap();
        assert!(at("softdpu-bench-left").exists(), "young enough to be in use and not locked yet");
        remove_stale(place.path(), Duration::ZERO);
        assert!(!at("softdpu-bench-left").exists() && !at("softdpu-bench-left.raw").exists());
        assert!(used.path().exists() && at("precious").exists() && at("softdpu-bench-link").is_symlink());
    }
}
