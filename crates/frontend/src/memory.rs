//! The memory that a front end shares: one memfd, allocated from its start.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::MemfdFlags;
use softdpu_memory::{GuestAddress, Mapping, Region, UserAddress, View, Window};
use softdpu_transport::vhost_user::RegionDescription;

use super::FrontEndError;

/// Guest-physical address of the first byte. Not 0, so that a zeroed address is invalid.
const GUEST_BASE: u64 = 0x10_0000;
/// Front-end virtual address of the first byte: far from the guest-physical one, so that a server that confuses them
/// fails.
const USER_BASE: u64 = 0x5000_0000_0000;

/// Guest memory.
#[derive(Debug)]
pub struct GuestMemory {
    file: OwnedFd,
    view: Arc<View>,
    len: u64,
    used: u64,
}

impl GuestMemory {
    /// Makes `len` bytes, rounded up to whole pages.
    pub(crate) fn new(len: u64) -> Result<GuestMemory, FrontEndError> {
        let len = len.next_multiple_of(4096);
        let failed = FrontEndError::memory(len);
        let file =
            rustix::fs::memfd_create("softdpu-front-end", MemfdFlags::CLOEXEC).map_err(|error| failed(&error))?;
        rustix::fs::ftruncate(&file, len).map_err(|error| failed(&error))?;
        let mapping = Mapping::file(file.as_fd(), 0, len).map_err(|error| (len, error))?;
        let region = Region::new(GuestAddress(GUEST_BASE), UserAddress(USER_BASE), len, mapping, 0);
        let view = View::new(vec![region]).map_err(|error| (len, error))?;
        Ok(GuestMemory { file, view, len, used: 0 })
    }

    /// Allocates `len` zeroed bytes that begin at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// [`FrontEndError::Memory`] where not that many are left.
    pub fn allocate(&mut self, len: u64, align: u64) -> Result<GuestAddress, FrontEndError> {
        let start = self.used.next_multiple_of(align);
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(FrontEndError::Memory { bytes: len, reason: format!("{} are left", self.len - self.used) });
        }
        self.used = start + len;
        Ok(GuestAddress(GUEST_BASE + start))
    }

    /// The region, as SET_MEM_TABLE and ADD_MEM_REG describe it.
    pub fn region(&self) -> RegionDescription {
        RegionDescription { guest_address: GUEST_BASE, size: self.len, user_address: USER_BASE, mmap_offset: 0 }
    }

    /// The memfd behind it.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// This process's mapping of the memory.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// The front-end virtual address of a guest-physical one.
    pub fn user(&self, address: GuestAddress) -> UserAddress {
        UserAddress(address.0.wrapping_sub(GUEST_BASE).wrapping_add(USER_BASE))
    }

    /// `len` bytes at `address` to read and write word by word, rings included.
    ///
    /// # Errors
    /// [`FrontEndError::Access`] where the bytes are not all in the memory.
    pub fn window(&self, address: GuestAddress, len: usize) -> Result<Window, FrontEndError> {
        Ok(self.view.guest_window(address, len, 1)?)
    }
}
