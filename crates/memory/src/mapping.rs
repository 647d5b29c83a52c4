//! One range of one file, mapped once.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use softdpu_sys::reaper::reap;
use thiserror::Error;

use crate::budget::Reservation;
use crate::{fault, file_system};

/// Files are mapped in whole pages of this size.
pub(crate) const PAGE_SIZE: u64 = 4096;

/// What makes two descriptors the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MappingKey {
    /// `st_dev` of the file.
    pub device: u64,
    /// `st_ino` of the file.
    pub inode: u64,
    /// Offset of the mapping in the file, bytes.
    pub offset: u64,
    /// Length of the mapping, bytes.
    pub len: u64,
}

/// Why a descriptor could not be mapped.
#[derive(Debug, Error)]
pub enum MapError {
    /// Zero length, a length that wraps, or one this process cannot address.
    #[error("a mapping of {len:#x} bytes at offset {offset:#x} is not possible")]
    Range {
        /// Offset in the file, bytes.
        offset: u64,
        /// Length, bytes.
        len: u64,
    },
    /// The offset is not a multiple of the page size.
    #[error("file offset {0:#x} is not a multiple of the page size 4096")]
    Unaligned(u64),
    /// The file ends before the mapping does.
    #[error("the file has {size:#x} bytes, the mapping needs {needed:#x}")]
    TooShort {
        /// Size of the file, bytes.
        size: u64,
        /// End of the mapping, bytes.
        needed: u64,
    },
    /// More mappings than are watched for a file that is cut short.
    #[error("this process maps as many files as it can watch")]
    TooMany,
    /// The descriptor is not a file that can hold memory.
    #[error("the descriptor is not a memory file (its type is {0})")]
    NotMemory(&'static str),
    /// Page faults on the file may wait for others than this machine's kernel.
    #[error(
        "the file is on a file system ({name}, type {kind:#x}): its page faults may wait for a program or a server, and \
         hold up a core; share a memfd, or a file on tmpfs, hugetlbfs, ext4, xfs or btrfs"
    )]
    FileSystem {
        /// Its `f_type` (linux/magic.h).
        kind: u64,
        /// Its name.
        name: &'static str,
    },
    /// The kernel refused.
    #[error("{call} failed: {source}")]
    Os {
        /// The system call.
        call: &'static str,
        /// Its error.
        source: rustix::io::Errno,
    },
}

enum Source {
    File { key: MappingKey, pages: Option<Pages>, slot: Option<fault::Slot> },
    Heap(Layout),
}

/// Mapped pages. Unmapped when it is dropped, which takes as long as it takes to free memory that nothing else has.
struct Pages {
    base: NonNull<u8>,
    len: usize,
    /// Given back when they are unmapped.
    _reservation: Option<Reservation>,
}

// SAFETY: an address range, to which it makes no reference.
unsafe impl Send for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: base and length are what mmap was given and returned, and the last user is gone.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Shared memory mapped into this process, read and write. No core dump has it (MADV_DONTDUMP). When the last `Arc` is
/// dropped the [reaper](softdpu_sys::reaper) unmaps it: the thread that dropped it, a core's perhaps, does not wait.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    source: Source,
    faulted: Arc<AtomicBool>,
}

// SAFETY: a Mapping is an address range. All access goes through copies, atomics and the kernel, which tolerate other
// writers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset`, shared, read and write.
    ///
    /// # Errors
    /// [`MapError`], before anything was mapped.
    pub fn file(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Arc<Mapping>, MapError> {
        Self::reserved(fd, offset, len, None)
    }

    /// As [`Mapping::file`], of bytes that are reserved until they are unmapped.
    pub(crate) fn reserved(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        reservation: Option<Reservation>,
    ) -> Result<Arc<Mapping>, MapError> {
        let (key, page) = Self::check(fd, offset, len)?;
        // In whole pages of the file's own size: the kernel maps huge pages whole, and unmaps nothing smaller.
        let whole = len.checked_next_multiple_of(page).and_then(|whole| usize::try_from(whole).ok());
        let whole = whole.ok_or(MapError::Range { offset, len })?;
        let bytes = usize::try_from(len).map_err(|_| MapError::Range { offset, len })?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            mmap(std::ptr::null_mut(), whole, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, offset)
        }
        .map_err(|source| MapError::Os { call: "mmap", source })?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(MapError::Range { offset, len })?;
        let pages = Pages { base, len: whole, _reservation: reservation };
        // SAFETY: the mapping that was made; the advice changes what core dumps have, not its contents.
        unsafe { madvise(base.as_ptr().cast(), whole, Advice::LinuxDontDump) }
            .map_err(|source| MapError::Os { call: "madvise", source })?;
        let faulted = Arc::new(AtomicBool::new(false));
        let slot = fault::register(base.as_ptr() as usize, whole, Arc::clone(&faulted)).ok_or(MapError::TooMany)?;
        let source = Source::File { key, pages: Some(pages), slot: Some(slot) };
        Ok(Arc::new(Mapping { base, len: bytes, source, faulted }))
    }

    /// What [`Mapping::file`] would map, checked against the file, without mapping it.
    ///
    /// # Errors
    /// As [`Mapping::file`].
    pub fn key(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<MappingKey, MapError> {
        Self::check(fd, offset, len).map(|(key, _)| key)
    }

    /// The key, and the size of the file's pages.
    fn check(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(MappingKey, u64), MapError> {
        if !offset.is_multiple_of(PAGE_SIZE) {
            return Err(MapError::Unaligned(offset));
        }
        let needed = offset.checked_add(len).ok_or(MapError::Range { offset, len })?;
        if len == 0 || len > isize::MAX as u64 {
            return Err(MapError::Range { offset, len });
        }
        let page = file_system::page_size(fd, PAGE_SIZE)?;
        let stat = rustix::fs::fstat(fd).map_err(|source| MapError::Os { call: "fstat", source })?;
        match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::RegularFile => {
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                if needed > size {
                    return Err(MapError::TooShort { size, needed });
                }
            }
            // Without a size to compare with; mmap itself refuses what is out of range.
            rustix::fs::FileType::CharacterDevice if is_dax(stat.st_rdev) => {}
            rustix::fs::FileType::CharacterDevice => {
                return Err(MapError::NotMemory("character device other than device DAX"));
            }
            rustix::fs::FileType::Directory => return Err(MapError::NotMemory("directory")),
            rustix::fs::FileType::Fifo => return Err(MapError::NotMemory("pipe")),
            rustix::fs::FileType::BlockDevice => return Err(MapError::NotMemory("block device")),
            _ => return Err(MapError::NotMemory("special file")),
        }
        Ok((MappingKey { device: stat.st_dev, inode: stat.st_ino, offset, len }, page))
    }

    /// Zeroed memory of this process alone, for tests and tools. `len` is rounded up to whole pages.
    ///
    /// # Panics
    /// When `len` is zero or more than half the address space.
    pub fn heap(len: usize) -> Arc<Mapping> {
        let layout = Layout::from_size_align(len, PAGE_SIZE as usize).expect("a sensible length").pad_to_align();
        assert!(layout.size() > 0, "a mapping has at least one byte");
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { std::alloc::handle_alloc_error(layout) };
        Arc::new(Mapping { base, len: layout.size(), source: Source::Heap(layout), faulted: Arc::default() })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Which file range it is; none for heap memory.
    pub fn file_key(&self) -> Option<MappingKey> {
        match &self.source {
            Source::File { key, .. } => Some(*key),
            Source::Heap(_) => None,
        }
    }

    /// Whether the file behind it was cut short under us: what is mapped now is private zeroes.
    pub fn is_faulted(&self) -> bool {
        self.faulted.load(Ordering::Relaxed)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

/// Whether a character device is persistent or other memory that the kernel maps directly (device DAX).
fn is_dax(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let subsystem = std::fs::read_link(format!("/sys/dev/char/{major}:{minor}/subsystem"));
    subsystem.is_ok_and(|path| path.ends_with("dax"))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match &mut self.source {
            Source::File { pages, slot, .. } => {
                // First out of the handler's table, so that it never replaces what comes to lie here later.
                drop(slot.take());
                if let Some(pages) = pages.take() {
                    reap(pages);
                }
            }
            // SAFETY: allocated with this layout in `heap`, and the last user is gone.
            Source::Heap(layout) => unsafe { dealloc(self.base.as_ptr(), *layout) },
        }
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapping").field("len", &self.len).field("key", &self.file_key()).finish()
    }
}
