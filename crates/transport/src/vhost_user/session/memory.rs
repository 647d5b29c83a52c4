//! The memory table: SET_MEM_TABLE, ADD_MEM_REG, REM_MEM_REG.

use super::command::{Command, FdId, MemoryRegion, QueueIndex};
use super::state::{State, VringRun};
use super::{DeviceModel, Finish, Step};
use crate::vhost_user::error::Fault;
use crate::vhost_user::features::ProtocolFeatures;
use crate::vhost_user::layout::{RingFormat, VringBase};
use crate::vhost_user::messages::RegionDescription;

/// Regions need no alignment of their own (a region of libblkio ends where its queues end), but the two ways to reach a
/// byte, through the front end's address and through the file, must agree within a page: otherwise a ring that is
/// aligned there would not be aligned here. Both are results of mmap, so every honest front end does this without
/// trying.
const PAGE: u64 = 4096;

impl State {
    pub(super) fn set_mem_table(
        &mut self,
        device: &dyn DeviceModel,
        regions: &[RegionDescription],
        fds: &[FdId],
    ) -> Result<Step, Fault> {
        let table = regions.iter().zip(fds).map(|(region, fd)| with_fd(region, *fd)).collect();
        self.change_memory(device, table)
    }

    pub(super) fn add_mem_reg(
        &mut self,
        device: &dyn DeviceModel,
        region: RegionDescription,
        fd: Option<FdId>,
    ) -> Result<Step, Fault> {
        self.require(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
        let fd = fd.ok_or(Fault::FileDescriptors { found: 0, expected: 1 })?;
        let mut table = self.regions.clone();
        table.push(with_fd(&region, fd));
        self.change_memory(device, table)
    }

    pub(super) fn rem_mem_reg(&mut self, region: RegionDescription) -> Result<Step, Fault> {
        self.require(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
        let RegionDescription { guest_address, size, user_address, mmap_offset: _ } = region;
        // vhost-user, REM_MEM_REG: "identified by its guest address, user address and size. The mmap offset is
        // ignored."
        let found = self.regions.iter().position(|have| {
            have.guest_address == guest_address && have.user_address == user_address && have.size == size
        });
        let Some(found) = found else {
            return Err(Fault::NoSuchRegion { guest_address, user_address, size });
        };
        let mut table = self.regions.clone();
        table.remove(found);
        self.replace_memory(table)
    }

    fn change_memory(&mut self, device: &dyn DeviceModel, table: Vec<MemoryRegion>) -> Result<Step, Fault> {
        check_table(&table, device.memory_slots())?;
        self.replace_memory(table)
    }

    fn replace_memory(&mut self, table: Vec<MemoryRegion>) -> Result<Step, Fault> {
        self.regions = table;
        let format = RingFormat::of(self.features.unwrap_or(0));
        let mut broken = Vec::new();
        for (index, ring) in self.vrings.iter().enumerate().filter(|(_, ring)| ring.run == VringRun::Running) {
            let index = index as u16;
            let mapped = match (ring.address, ring.size) {
                (Some(address), Some(size)) => self.check_mapped(index, &address, format, size).is_ok(),
                _ => false,
            };
            if !mapped {
                broken.push(QueueIndex(index));
            }
        }
        let finish = if broken.is_empty() { Finish::Status } else { Finish::Broken(broken.clone()) };
        Ok(Step::Then(Command::MemoryChange { regions: self.regions.clone(), broken }, finish))
    }

    /// The queues have lost their memory and stand where `bases` say.
    pub(super) fn broken(&mut self, queues: &[QueueIndex], bases: &[VringBase]) -> Result<(), Fault> {
        let format = RingFormat::of(self.features.unwrap_or(0));
        for base in bases {
            super::check_position(*base, format)?;
        }
        for (queue, base) in queues.iter().zip(bases) {
            let ring = &mut self.vrings[usize::from(queue.0)];
            ring.base = Some(base.to_wire());
            ring.kick = None;
            ring.run = VringRun::Broken;
        }
        Ok(())
    }
}

fn with_fd(region: &RegionDescription, fd: FdId) -> MemoryRegion {
    let RegionDescription { guest_address, size, user_address, mmap_offset } = *region;
    MemoryRegion { guest_address, size, user_address, mmap_offset, fd }
}

/// Checks a whole table.
pub(super) fn check_table(table: &[MemoryRegion], slots: usize) -> Result<(), Fault> {
    if table.len() > slots {
        return Err(Fault::TooManyRegions { found: table.len(), most: slots });
    }
    table.iter().try_for_each(check_region)?;
    let mut sorted: Vec<&MemoryRegion> = table.iter().collect();
    sorted.sort_by_key(|region| region.guest_address);
    for pair in sorted.windows(2) {
        if pair[0].guest_address + pair[0].size > pair[1].guest_address {
            let (first, second) = (pair[0].guest_address, pair[1].guest_address);
            return Err(Fault::Overlap { space: "guest address", first, second });
        }
    }
    // The same memory may be in two places of the guest's address space, and is then at one place in the front end's.
    // Two different files cannot be.
    sorted.sort_by_key(|region| region.user_address);
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
