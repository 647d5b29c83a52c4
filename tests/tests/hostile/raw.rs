//! Writing rings by hand, behind the driver's back. The ring is empty and at its start.

use std::time::Instant;

use softdpu_ring::driver::Layout;
use softdpu_tests::Failure;
use softdpu_tests::descriptor::{AVAIL, Descriptor, INDIRECT, NEXT, WRITE};

use crate::client::{BLOCK, DATA, FrontEnd, GUEST, HEADERS, PATIENCE, STATUSES};
use crate::scene::Seen;

pub fn raw(addr: u64, len: u32, flags: u16, last: u16) -> Descriptor {
    Descriptor { addr, len, flags, last }
}

/// Slot 0's header, followed by descriptor `next`.
pub fn header(next: u16) -> Descriptor {
    raw(GUEST + HEADERS, 16, NEXT, next)
}

/// Slot 0's data for a read, followed by descriptor `next`.
pub fn data(next: u16) -> Descriptor {
    raw(GUEST + DATA, BLOCK as u32, NEXT | WRITE, next)
}

/// Slot 0's status, the last one.
pub fn status() -> Descriptor {
    raw(GUEST + STATUSES, 1, WRITE, 0)
}

impl FrontEnd {
    fn layout(&self) -> Layout {
        Layout::new(self.settings.format, self.settings.size)
    }

    /// Writes the available ring's entries and its index, and kicks.
    pub fn offer(&mut self, heads: &[u16], index: u16) {
        let driver = self.layout().driver as u64;
        for (slot, head) in (0..).zip(heads) {
            self.memory.write(driver + 4 + 2 * slot, &head.to_le_bytes());
        }
        self.memory.write(driver + 2, &index.to_le_bytes());
        self.ring_kick();
    }

    /// Writes descriptors from entry 0 on.
    pub fn describe(&mut self, descriptors: &[Descriptor]) {
        for (entry, descriptor) in (0..).zip(descriptors) {
            self.memory.write(16 * entry, &descriptor.split());
        }
    }

    /// Offers a chain that starts at descriptor 0 of a split ring: a read of block 0, if the header is used.
    pub fn chain(&mut self, descriptors: &[Descriptor]) -> Result<Seen, Failure> {
        self.header(0, crate::client::IN, 0);
        self.describe(descriptors);
        self.offer(&[0], 1);
        Ok(Seen::Nothing)
    }

    /// Writes an indirect table `offset` into the memory; a descriptor for it.
    pub fn table(&mut self, offset: u64, entries: &[Descriptor]) -> Descriptor {
        for (entry, descriptor) in (0..).zip(entries) {
            self.memory.write(offset + 16 * entry, &descriptor.split());
        }
        raw(GUEST + offset, 16 * entries.len() as u32, INDIRECT, 0)
    }

    /// Writes a packed table; a descriptor for it with buffer id 0.
    pub fn packed_table(&mut self, offset: u64, entries: &[Descriptor]) -> Descriptor {
        for (entry, descriptor) in (0..).zip(entries) {
            self.memory.write(offset + 16 * entry, &descriptor.packed());
        }
        raw(GUEST + offset, 16 * entries.len() as u32, INDIRECT, 0)
    }

    /// Writes descriptors into a packed ring from slot 0 on, flags as they are, the first one last, and kicks.
    pub fn packed_raw(&mut self, descriptors: &[Descriptor]) -> Result<Seen, Failure> {
        for (slot, descriptor) in (0..).zip(descriptors).skip(1) {
            self.memory.write(16 * slot, &descriptor.packed());
        }
        if let Some(first) = descriptors.first() {
            let bytes = first.packed();
            self.memory.write(0, &bytes[..8]);
            self.memory.write(8, &bytes[8..]);
        }
        self.ring_kick();
        Ok(Seen::Nothing)
    }

    /// As [`packed_raw`](Self::packed_raw), every descriptor made available with the first wrap counter.
    pub fn packed_chain(&mut self, descriptors: &[Descriptor]) -> Result<Seen, Failure> {
        self.header(0, crate::client::IN, 0);
        let available: Vec<Descriptor> = descriptors
            .iter()
            .map(|descriptor| Descriptor { flags: descriptor.flags | AVAIL, ..*descriptor })
            .collect();
        self.packed_raw(&available)
    }

    /// The used index of a split ring.
    pub fn used_index(&self) -> u16 {
        let bytes = self.memory.read(self.layout().device as u64 + 2, 2);
        u16::from_le_bytes([bytes[0], bytes[1]])
    }

    /// Waits for the first completion of a split ring; the status byte of slot 0.
    pub fn completed(&mut self) -> Result<Seen, Failure> {
        let start = Instant::now();
        while self.used_index() == 0 {
            if start.elapsed() > PATIENCE {
                return Err(Failure::new("the request did not come back"));
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        Ok(Seen::Status(self.status(0)))
    }
}
