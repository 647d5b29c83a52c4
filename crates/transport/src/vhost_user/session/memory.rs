//! The memory table: SET_MEM_TABLE, ADD_MEM_REG, REM_MEM_REG.

use serde::{Deserialize, Serialize};

use super::command::{FdId, MemoryRegion};
use crate::vhost_user::error::Fault;
use crate::vhost_user::messages::RegionDescription;

/// Regions need no alignment of their own (a region of libblkio ends where its queues end), but the two ways to reach a
/// byte, through the front end's address and through the file, must agree within a page: otherwise a ring that is
/// aligned there would not be aligned here. Both are results of mmap, so every honest front end does this without
/// trying.
const PAGE: u64 = 4096;

/// The regions of guest memory that the front end has shared. What is in the table was checked, so no region wraps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct MemoryTable(Vec<MemoryRegion>);

impl MemoryTable {
    pub(super) fn regions(&self) -> &[MemoryRegion] {
        &self.0
    }

    /// SET_MEM_TABLE: the whole table, one descriptor a region.
    pub(super) fn set(&mut self, regions: &[RegionDescription], fds: &[FdId], slots: usize) -> Result<(), Fault> {
        self.0 = regions.iter().zip(fds).map(|(region, fd)| with_fd(region, *fd)).collect();
        self.check(slots)
    }

    /// ADD_MEM_REG.
    pub(super) fn add(&mut self, region: RegionDescription, fd: Option<FdId>, slots: usize) -> Result<(), Fault> {
        let fd = fd.ok_or(Fault::FileDescriptors { found: 0, expected: 1 })?;
        self.0.push(with_fd(&region, fd));
        self.check(slots)
    }

    /// REM_MEM_REG: the region is "identified by its guest address, user address and size. The mmap offset is ignored."
    pub(super) fn remove(&mut self, region: RegionDescription) -> Result<(), Fault> {
        let RegionDescription { guest_address, size, user_address, mmap_offset: _ } = region;
        let found = self.0.iter().position(|have| {
            have.guest_address == guest_address && have.user_address == user_address && have.size == size
        });
        let Some(found) = found else {
            return Err(Fault::NoSuchRegion { guest_address, user_address, size });
        };
        self.0.remove(found);
        Ok(())
    }

    /// The guest address behind the last region.
    pub(super) fn end(&self) -> u64 {
        self.0.iter().map(|region| region.guest_address + region.size).max().unwrap_or(0)
    }

    /// Whether `len` bytes at a user address lie inside one region.
    pub(super) fn contains(&self, address: u64, len: u64) -> bool {
        self.0.iter().any(|region| {
            address >= region.user_address
                && address - region.user_address <= region.size
                && len <= region.size - (address - region.user_address)
        })
    }

    /// Checks the whole table.
    pub(super) fn check(&self, slots: usize) -> Result<(), Fault> {
        if self.0.len() > slots {
            return Err(Fault::TooManyRegions { found: self.0.len(), most: slots });
        }
        self.0.iter().try_for_each(check_region)?;
        let mut sorted: Vec<&MemoryRegion> = self.0.iter().collect();
        sorted.sort_by_key(|region| region.guest_address);
        check_guest_addresses(&sorted)?;
        sorted.sort_by_key(|region| region.user_address);
        check_user_addresses(&sorted)
    }
}

fn with_fd(region: &RegionDescription, fd: FdId) -> MemoryRegion {
    let RegionDescription { guest_address, size, user_address, mmap_offset } = *region;
    MemoryRegion { guest_address, size, user_address, mmap_offset, fd }
}

/// No guest address may be in two regions. Sorted by guest address.
fn check_guest_addresses(sorted: &[&MemoryRegion]) -> Result<(), Fault> {
    for pair in sorted.windows(2) {
        if pair[0].guest_address + pair[0].size > pair[1].guest_address {
            let (first, second) = (pair[0].guest_address, pair[1].guest_address);
            return Err(Fault::Overlap { space: "guest address", first, second });
        }
    }
    Ok(())
}

/// The same memory may be in two places of the guest's address space, and is then at one place in the front end's.
/// Two different files cannot be. Sorted by user address.
fn check_user_addresses(sorted: &[&MemoryRegion]) -> Result<(), Fault> {
    let mut furthest: Option<&MemoryRegion> = None;
    for region in sorted {
        if let Some(before) = furthest.filter(|it| it.user_address + it.size > region.user_address)
            && before.user_address.wrapping_sub(before.mmap_offset)
                != region.user_address.wrapping_sub(region.mmap_offset)
        {
            let (first, second) = (before.user_address, region.user_address);
            return Err(Fault::Overlap { space: "user address", first, second });
        }
        if furthest.is_none_or(|it| it.user_address + it.size < region.user_address + region.size) {
            furthest = Some(region);
        }
    }
    Ok(())
}

fn check_region(region: &MemoryRegion) -> Result<(), Fault> {
    let MemoryRegion { guest_address, size, user_address, mmap_offset, .. } = *region;
    if size == 0 {
        return Err(Fault::Field { field: "size of a memory region", found: 0, expected: "at least 1" });
    }
    let starts = [("guest address", guest_address), ("user address", user_address), ("mmap offset", mmap_offset)];
    for (field, start) in starts {
        if start.checked_add(size).is_none() {
            return Err(Fault::Wraps { field, start, len: size });
        }
    }
    // An offset into a file is a signed 64-bit number.
    if mmap_offset + size > i64::MAX as u64 {
        return Err(Fault::Wraps { field: "mmap offset", start: mmap_offset, len: size });
    }
    if user_address % PAGE != mmap_offset % PAGE {
        let expected = "the same offset within a page as the user address";
        return Err(Fault::Field { field: "mmap offset", found: mmap_offset, expected });
    }
    Ok(())
}
