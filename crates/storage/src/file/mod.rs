//! Files and block devices: opening, the fence, growing. The I/O itself is in [`engine`].

pub(crate) mod disk;
pub(crate) mod engine;
mod landings;
pub(crate) mod open_file;
mod request;

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Advice, AtFlags, FileType, MemfdFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use softdpu_sys::lock;

use disk::Disk;
use landings::Landings;

use crate::{Activation, Broker, RangeLimits, VolumeError, VolumeKind, VolumeLimits, VolumeSpec};

/// What direct I/O asks of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Direct {
    /// Alignment of each piece's address.
    pub memory: usize,
    /// Alignment of offset and length, and of each piece's length.
    pub offset: u64,
}

/// Where in a file the bytes end that locks use for its content, and those begin that they use for its users.
const USERS: u64 = 1 << 62;

/// How a process before us is kept out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fence {
    /// The whole file, alone.
    Exclusive,
    /// The whole file, with other readers.
    Readers,
    /// The content, with others that share it; and this byte, alone: it is that of this volume of this daemon, so that
    /// our own dead processes are kept out, and other hosts and daemons are not.
    Shared { byte: u64 },
}

fn odd(bytes: u64) -> String {
    format!("the last {bytes} bytes are not served: they make no whole block")
}

/// A file or block device. One open file description per process carries the lock and all I/O.
pub(crate) struct FileBacking {
    file: OwnedFd,
    device: bool,
    /// Its size is a multiple of so many bytes.
    block: u64,
    /// Where its bytes are.
    pub(crate) disk: Disk,
    /// Bytes at its end that make no whole block and are not served; none once it has grown.
    odd_end: AtomicU64,
    fence: Fence,
    /// None: through the page cache.
    pub(super) direct: Option<Direct>,
    /// Whether discards reach the file; switched off when it turns out not to support them.
    pub(super) punch: AtomicBool,
    /// Whether FALLOC_FL_ZERO_RANGE works; as above.
    pub(super) zero_range: AtomicBool,
    /// Writes that were given up and may still land.
    pub(super) landings: Arc<Landings>,
}

impl FileBacking {
    /// Opens the file; its size and what it can do.
    pub(crate) fn open(
        spec: &VolumeSpec,
        broker: &dyn Broker,
    ) -> Result<(FileBacking, u64, VolumeLimits), VolumeError> {
        let name = &spec.name;
        let (path, direct, device, discard, asked, create) = match &spec.kind {
            VolumeKind::File { path, direct, discard, size, create } => {
                (path, *direct, false, *discard, *size, *create)
            }
            VolumeKind::Device { path, direct } => (path, *direct, true, true, None, false),
            VolumeKind::Null { .. } | VolumeKind::Memory { .. } | VolumeKind::Nbd { .. } => {
                return Err(VolumeError::spec(name, "this kind of volume has no file"));
            }
        };
        let shown = path.display();
        let os = |what: String, source: std::io::Error| VolumeError::os(name, what, source);
        let file = broker.open_backing(spec).map_err(|e| match e.raw_os_error() {
            Some(libc_einval) if direct && libc_einval == rustix::io::Errno::INVAL.raw_os_error() => {
                VolumeError::spec(name, format!("the file system of {shown} has no direct I/O: set direct = false"))
            }
            _ => os(format!("open {shown}"), e),
        })?;
        let stat = rustix::fs::fstat(&file).map_err(|e| os(format!("look at {shown}"), e.into()))?;
        match (FileType::from_raw_mode(stat.st_mode), device) {
            (FileType::RegularFile, false) | (FileType::BlockDevice, true) => {}
            (FileType::BlockDevice, false) => {
                return Err(VolumeError::spec(name, format!("{shown} is a block device: say device, not file")));
            }
            (FileType::RegularFile, true) => {
                return Err(VolumeError::spec(name, format!("{shown} is a file: say file, not device")));
            }
            (other, _) => return Err(VolumeError::spec(name, format!("{shown} is neither file nor disk ({other:?})"))),
        }
        let direct = if direct { Some(alignment(file.as_fd(), device)) } else { None };
        let block = direct.map_or(1, |direct| direct.offset).max(u64::from(spec.block_size));
        let had = length(file.as_fd(), device).map_err(|e| os(format!("find the size of {shown}"), e))?;
        let size = match asked {
            Some(asked) if create && had == 0 => {
                rustix::fs::ftruncate(&file, asked)
                    .map_err(|e| os(format!("size {shown} to {asked} bytes"), e.into()))?;
                asked
            }
            Some(asked) if had < asked => {
                let reason = format!(
                    "{shown} has {had} bytes, less than the {asked} it should have: correct the size, or leave it out \
                     and grow the volume"
                );
                return Err(VolumeError::spec(name, reason));
            }
            // A volume may have been grown at run time; nothing is ever cut off.
            _ => had,
        };
        let odd_end = size % block;
        let size = size - odd_end;
        if size == 0 {
            return Err(VolumeError::spec(name, format!("{shown} has {had} bytes, less than one block of {block}")));
        }
        if odd_end > 0 {
            tracing::warn!(volume = %name, "{}", odd(odd_end));
        }
        let preferred = u32::try_from(stat.st_blksize).unwrap_or(4096).clamp(4096, 1 << 20);
        let alignment = if device { block.max(4096) as u32 } else { preferred };
        // Bounded, so that one request cannot keep a kernel worker for ever.
        let range = RangeLimits { alignment, max_bytes: 1 << 30 };
        let limits = VolumeLimits {
            block_size: block as u32,
            preferred_block: preferred.max(block as u32),
            discard: discard.then_some(range),
            write_zeroes: range,
        };
        let backing = FileBacking {
            file,
            device,
            block,
            disk: Disk::of(if device { stat.st_rdev } else { stat.st_dev }),
            odd_end: odd_end.into(),
            fence: match (spec.read_only, spec.shared) {
                (true, _) => Fence::Readers,
                (false, false) => Fence::Exclusive,
                (false, true) => Fence::Shared { byte: user_byte(name, broker)? },
            },
            direct,
            punch: AtomicBool::new(discard),
            zero_range: AtomicBool::new(true),
            landings: Arc::default(),
        };
        Ok((backing, size, limits))
    }

    /// Takes the lock, on the very description that carries the I/O of this process. A process before us that was
    /// killed has one on its own description, which lives until the kernel is done with the last write it had in
    /// flight. With it comes the size, where the file has grown beyond `had` since it was looked at.
    pub(crate) fn fence(&self, name: &str, had: u64) -> Result<(Activation, Option<u64>), VolumeError> {
        let file = self.file.as_fd();
        let locked = match self.fence {
            Fence::Exclusive => lock::try_lock(file, true),
            Fence::Readers => lock::try_lock(file, false),
            Fence::Shared { byte } => lock::try_lock_part(file, true, byte, NonZeroU64::new(1))
                .and_then(|ours| Ok(ours && lock::try_lock_part(file, false, 0, NonZeroU64::new(USERS))?)),
        };
        match locked {
            Ok(true) => self.grown(name, had).map(|size| (Activation::Active, size)),
            Ok(false) => {
                let why = "its file is locked: by a softdpu that runs, or by I/O in flight of one that was killed";
                Ok((Activation::Busy { why: why.into() }, None))
            }
            Err(error) => Err(VolumeError::os(name, "lock its file", error)),
        }
    }

    /// The size, where it is more than it `had`. A file that has lost bytes is as it was: they fail when they are used.
    fn grown(&self, name: &str, had: u64) -> Result<Option<u64>, VolumeError> {
        let has = length(self.file.as_fd(), self.device).map_err(|e| VolumeError::os(name, "find its size", e))?;
        let odd_end = has % self.block;
        if has - odd_end <= had {
            return Ok(None);
        }
        self.odd_end.store(odd_end, Ordering::Relaxed);
        Ok(Some(has - odd_end))
    }

    /// Writes back what is in the page cache. Of a block device nothing stays there: when another host has written to
    /// the disk, nothing tells this one that its pages are old. File systems of several hosts see to that themselves.
    pub(crate) fn settle(&self, spec: &VolumeSpec) -> Result<(), VolumeError> {
        let os = |what: &str, e: Errno| VolumeError::os(&spec.name, what, e);
        if !spec.read_only {
            rustix::fs::fsync(&self.file).map_err(|e| os("write back its file", e))?;
        }
        if self.device && self.direct.is_none() {
            let all = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
            all.map_err(|e| os("let go of its pages", e))?;
        }
        Ok(())
    }

    /// Gives up the lock, unless a write of this process may still land. Whether it did.
    pub(crate) fn release(&self, name: &str) -> Result<bool, VolumeError> {
        if self.landings.count() > 0 {
            return Ok(false);
        }
        lock::unlock(self.file.as_fd()).map_err(|error| VolumeError::os(name, "unlock its file", error))?;
        Ok(true)
    }

    pub(crate) fn grow(&self, name: &str, size: u64) -> Result<(), VolumeError> {
        let os = |what: &str, e: std::io::Error| VolumeError::os(name, what, e);
        let had = length(self.file.as_fd(), self.device).map_err(|e| os("find its size", e))?;
        if had >= size {
            return Ok(());
        }
        if self.device {
            let reason = format!("its device has {had} bytes: grow the device to {size} first");
            return Err(VolumeError::spec(name, reason));
        }
        rustix::fs::ftruncate(&self.file, size).map_err(|e| os("grow its file", e.into()))?;
        self.odd_end.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Warnings about writes that hang, and about bytes that are not served.
    pub(crate) fn remark(&self) -> Option<String> {
        let hanging = self.landings.count();
        if hanging > 0 {
            let writes =
                if hanging == 1 { "1 write that was".to_owned() } else { format!("{hanging} writes that were") };
            return Some(format!("{writes} given up may still land: requests for the same blocks wait"));
        }
        Some(self.odd_end.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0).map(odd)
    }

    pub(crate) fn switch_off(flag: &AtomicBool) {
        flag.store(false, Ordering::Relaxed);
    }
}

impl AsFd for FileBacking {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The name under which the broker keeps the lock byte of a shared volume.
pub(crate) fn user_key(name: &str) -> String {
    format!("user/{name}")
}

/// The lock byte of a shared volume: chosen once, at random, and the same for all processes with this broker.
fn user_byte(name: &str, broker: &dyn Broker) -> Result<u64, VolumeError> {
    let os = |what: &str, e: std::io::Error| VolumeError::os(name, what, e);
    let key = user_key(name);
    let kept = broker.kept(&key).map_err(|e| os("ask for its place among its users", e))?;
    let mut bytes = [0; 8];
    if let Some((_, file)) = kept.into_iter().find(|(other, _)| *other == key) {
        let read =
            rustix::io::pread(&file, &mut bytes, 0).map_err(|e| os("read its place among its users", e.into()))?;
        if read == bytes.len() {
            return Ok(USERS + u64::from_le_bytes(bytes) % (USERS - 1));
        }
    }
    // Keyed at random: it guards against accidents, not against guesses.
    let number = RandomState::new().hash_one(name);
    let write = || {
        let file = rustix::fs::memfd_create("softdpu user", MemfdFlags::CLOEXEC)?;
        rustix::io::pwrite(&file, &number.to_le_bytes(), 0)?;
        broker.keep(&key, file.as_fd())
    };
    write().map_err(|e| os("have its place among its users kept", e))?;
    Ok(USERS + number % (USERS - 1))
}

fn length(file: BorrowedFd<'_>, device: bool) -> std::io::Result<u64> {
    if device {
        // The description is ours alone and all I/O says its offset, so its position is free to move.
        return Ok(rustix::fs::seek(file, SeekFrom::End(0))?);
    }
    Ok(u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0))
}

/// What direct I/O on this file needs: statx tells from Linux 6.1 on; before, a disk's logical block size, and a page
/// for files, which is enough everywhere.
fn alignment(file: BorrowedFd<'_>, device: bool) -> Direct {
    if let Ok(stat) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0
        && stat.stx_dio_mem_align.is_power_of_two()
        && stat.stx_dio_offset_align.is_power_of_two()
    {
        let memory = stat.stx_dio_mem_align.max(4) as usize;
        return Direct { memory, offset: u64::from(stat.stx_dio_offset_align.clamp(512, 65536)) };
    }
    let block = if device { rustix::fs::ioctl_blksszget(file).unwrap_or(4096) } else { 4096 };
    let block = if block.is_power_of_two() { block.clamp(512, 65536) } else { 4096 };
    Direct { memory: block as usize, offset: u64::from(block) }
}
