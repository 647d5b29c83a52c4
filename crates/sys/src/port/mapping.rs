//! Memory shared with the kernel that is unmapped with its owner. It holds guests' frames: no core dump has it.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// A mapping of this process. It hands out its address only: the code that makes references answers for them.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its mapping and makes no reference into it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// `len` bytes of a kernel object (a socket's rings) from `offset` on, readable, writable and present.
    pub(crate) fn of(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, Errno> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, fd, offset) }?;
        Self::new(base.cast(), len)
    }

    /// `len` zeroed bytes, in huge pages if `huge` (then `len` is a multiple of 2 MiB).
    pub(crate) fn anonymous(len: usize, huge: bool) -> Result<Self, Errno> {
        let mut flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        if huge {
            flags |= MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        }
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        Self::new(base.cast(), len)
    }

    fn new(base: *mut u8, len: usize) -> Result<Self, Errno> {
        let mapping = NonNull::new(base).map(|base| Mapping { base, len }).ok_or(Errno::NOMEM)?;
        // SAFETY: our mapping; the advice changes what core dumps have, not its contents.
        unsafe { madvise(base.cast(), len, Advice::LinuxDontDump) }?;
        Ok(mapping)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length; what had addresses in it is gone with the owner.
        // An error would mean that it was not mapped, which leaves nothing to do.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
