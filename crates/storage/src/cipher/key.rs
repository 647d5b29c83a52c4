//! Keys of volumes: read once, kept by the broker for the processes after us, never shown.
//!
//! The broker keeps the key for as long as the daemon runs, in a memfd that is mapped nowhere and so in no core dump:
//! a data plane that was killed goes on with the key its volume was opened with, also where the key file is on a medium
//! that was taken out, or has changed. The key of a volume that could not be opened is not kept: the next attempt reads
//! it again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, MemfdFlags, SealFlags, fcntl_add_seals, fstat, memfd_create};
use softdpu_accel::{KeyError, Xts};
use softdpu_sys::secret::Secret;
use zeroize::Zeroizing;

use crate::{Broker, Encryption, KeySource, VolumeError, VolumeSpec};

/// Bytes of the longest key.
const LONGEST: usize = 64;

/// The name under which the broker keeps a volume's key.
pub(crate) fn kept_key(name: &str) -> String {
    format!("key/{name}")
}

/// A key that no process before us has kept. It is to be [kept](Self::keep) once its volume is open.
pub(crate) struct NewKey {
    key: Zeroizing<Vec<u8>>,
}

impl NewKey {
    /// Has the broker keep it for the processes after us.
    ///
    /// # Errors
    /// When the broker cannot.
    pub(crate) fn keep(&self, name: &str, broker: &dyn Broker) -> Result<(), VolumeError> {
        keep(&kept_key(name), &self.key, broker).map_err(|e| VolumeError::os(name, "have its key kept", e))
    }
}

/// The key of an encrypted volume, made ready for use; itself, where it is to be kept.
///
/// # Errors
/// [`VolumeError`] with what is wrong with the key and what to do, never with any of its bytes.
pub(crate) fn load(
    spec: &VolumeSpec,
    encryption: &Encryption,
    broker: &dyn Broker,
) -> Result<(Secret<Xts>, Option<NewKey>), VolumeError> {
    let name = &spec.name;
    let os = |what: &str, e: io::Error| VolumeError::os(name, what, e);
    let place = kept_key(name);
    let kept = broker.kept(&place).map_err(|e| os("ask for its kept key", e))?;
    let kept = kept.into_iter().find(|(other, _)| *other == place);
    let (key, is_new) = match kept {
        Some((_, file)) => (read(&file).map_err(|e| os("read its kept key", e))?, false),
        None => (find(spec, encryption, broker)?, true),
    };
    let refused = |error: KeyError| {
        let source = shown(&encryption.key);
        let advice = match error {
            KeyError::Length { .. } => "write exactly so many bytes, such as with: head -c 64 /dev/urandom",
            KeyError::EqualHalves => "make another, such as with: head -c 64 /dev/urandom",
        };
        VolumeError::spec(name, format!("{source}: {error}; {advice}"))
    };
    let xts = Xts::new(&key, encryption.sector_size).map_err(refused)?;
    let xts = Secret::new(xts).map_err(|e| os("get memory for its key", e))?;
    Ok((xts, is_new.then_some(NewKey { key })))
}

fn shown(source: &KeySource) -> String {
    match source {
        KeySource::File(path) => format!("key file {}", path.display()),
        KeySource::Keyring(key) => format!("key {key:?} of the kernel's keyring"),
    }
}

/// Reads the key from where it is configured to be.
fn find(spec: &VolumeSpec, encryption: &Encryption, broker: &dyn Broker) -> Result<Zeroizing<Vec<u8>>, VolumeError> {
    let name = &spec.name;
    let what = || format!("read {}", shown(&encryption.key));
    match &encryption.key {
        KeySource::File(path) => {
            let file = broker.open_key(spec).map_err(|e| VolumeError::os(name, what(), e))?;
            let stat = fstat(&file).map_err(|e| VolumeError::os(name, what(), e))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Err(VolumeError::spec(name, format!("key file {} is no regular file", path.display())));
            }
            if let Some(problem) = permission_problem(stat.st_mode) {
                return Err(VolumeError::spec(name, format!("key file {0} {problem}: chmod 600 {0}", path.display())));
            }
            read(&file).map_err(|e| VolumeError::os(name, what(), e))
        }
        KeySource::Keyring(key) => {
            let found = broker.open_key(spec).and_then(|file| read(&file));
            found.map_err(|e| match e.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::NOKEY) => VolumeError::spec(
                    name,
                    format!(
                        "there is no key {key:?} in the keyrings of softdpu's session and user: add it before softdpu starts, \
                         with keyctl padd user {key} @u < FILE"
                    ),
                ),
                _ => VolumeError::os(name, what(), e),
            })
        }
    }
}

/// Why a key file of that mode is not used.
fn permission_problem(mode: u32) -> Option<String> {
    (mode & 0o077 != 0).then(|| format!("can be used by others than its owner (mode {:04o})", mode & 0o7777))
}

/// The bytes of a key, and one more where there are more.
fn read(file: &OwnedFd) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut key = Zeroizing::new(vec![0; LONGEST + 1]);
    let mut len = 0;
    while len < key.len() {
        match rustix::io::pread(file, &mut key[len..], len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    key.truncate(len);
    Ok(key)
}

fn keep(place: &str, key: &[u8], broker: &dyn Broker) -> io::Result<()> {
    let file = memfd_create("softdpu key", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let written = rustix::io::pwrite(&file, key, 0)?;
    if written != key.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    broker.keep(place, file.as_fd())
}
