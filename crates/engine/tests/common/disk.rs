//! A virtio-blk driver in this process.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softdpu_device::block::{Block, BlockConfig};
use softdpu_engine::{QueueSpec, Role};
use softdpu_memory::{GuestAddress, UserAddress};
use softdpu_ring::driver::{Driver, Layout, Piece};
use softdpu_ring::{Format, InflightRecords, Position, Queue};
use softdpu_sched::TenantId;
use softdpu_storage::{PathBroker, Volume, VolumeKind, VolumeSpec};
use softdpu_sys::wake;

use super::{GuestMemory, SIZE, queue_config};

pub const SECTOR: u64 = 512;
/// Each slot: header and status in its first half, data in the second.
const SLOT: u64 = 8192;
const MEMORY: u64 = 0x20_0000;
const RING_AT: u64 = 0x1000;
const SLOTS_AT: u64 = 0x10_0000;

/// Guest memory with a ring in it, its driver, and the eventfds between both.
pub struct Guest {
    pub memory: GuestMemory,
    pub driver: Driver,
    pub format: Format,
    slots: Vec<u64>,
    busy: HashMap<u16, u64>,
}

pub fn memory_volume(size: u64) -> Arc<Volume> {
    let volume = Volume::open(VolumeSpec::new("disk", VolumeKind::Memory { size }), &PathBroker::new()).unwrap();
    volume.activate().unwrap();
    volume
}

impl Guest {
    pub fn new(format: Format) -> Guest {
        let memory = GuestMemory::new(MEMORY);
        Guest {
            driver: memory.driver(format, RING_AT),
            memory,
            format,
            slots: (0..u64::from(SIZE) / 3).collect(),
            busy: HashMap::new(),
        }
    }

    /// The device's end of the queue.
    pub fn spec(&self, volume: &Arc<Volume>, tenant: u16) -> QueueSpec {
        self.spec_at(volume, tenant, Position::start(self.format), None)
    }

    pub fn spec_at(
        &self,
        volume: &Arc<Volume>,
        tenant: u16,
        position: Position,
        records: Option<InflightRecords>,
    ) -> QueueSpec {
        let block = Block::new(BlockConfig::new(volume.size())).unwrap();
        let addresses = Layout::new(self.format, SIZE).addresses(UserAddress(RING_AT));
        let config = queue_config(self.format, 128);
        let ring = Queue::new(&self.memory.view, config, addresses, position, records).unwrap();
        let role = Role::Block { volume: Arc::clone(volume), requests: block.requests(block.features()) };
        self.memory.spec("disk", 0, TenantId(tenant), role, ring)
    }

    /// Queues a request of one block; false: no room.
    pub fn submit(&mut self, write: Option<&[u8; 512]>, sector: u64) -> bool {
        self.submit_slot(write, sector).is_some()
    }

    /// As [`submit`](Self::submit): the slot that the request has until it is taken.
    pub fn submit_slot(&mut self, write: Option<&[u8; 512]>, sector: u64) -> Option<u64> {
        let slot = self.slots.pop()?;
        let at = SLOTS_AT + slot * SLOT;
        let (header, status, data) = (GuestAddress(at), GuestAddress(at + 64), GuestAddress(at + SLOT / 2));
        let mut bytes = [0; 16];
        bytes[0] = u8::from(write.is_some());
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        self.memory.write(header.0, &bytes);
        self.memory.write(status.0, &[0xff]);
        if let Some(block) = write {
            self.memory.write(data.0, block);
        }
        let data = Piece { address: data, len: SECTOR as u32, writable: write.is_none() };
        let pieces = [Piece::readable(header, 16), data, Piece::writable(status, 1)];
        match self.driver.add(&pieces) {
            Some(id) => {
                assert!(self.busy.insert(id, slot).is_none(), "id {id} is in use");
                Some(slot)
            }
            None => {
                self.slots.push(slot);
                None
            }
        }
    }

    /// Queues a request of up to 768 KiB, with data that is not checked; false: no room.
    #[allow(dead_code, reason = "for tests of a core by hand")]
    pub fn submit_long(&mut self, is_write: bool, sector: u64, len: u32) -> bool {
        let Some(slot) = self.slots.pop() else { return false };
        let at = SLOTS_AT + slot * SLOT;
        let (header, status) = (GuestAddress(at), GuestAddress(at + 64));
        let mut bytes = [0; 16];
        bytes[0] = u8::from(is_write);
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        self.memory.write(header.0, &bytes);
        self.memory.write(status.0, &[0xff]);
        // Between the ring and the slots.
        let data = Piece { address: GuestAddress(0x4_0000), len, writable: !is_write };
        let id = self.driver.add(&[Piece::readable(header, 16), data, Piece::writable(status, 1)]);
        id.is_some_and(|id| self.busy.insert(id, slot).is_none())
    }

    /// Hands over what was queued, ringing if the device wants it.
    pub fn publish(&mut self) {
        if self.driver.publish() {
            self.memory.kick.ring();
        }
    }

    /// A completion: its status byte and data.
    pub fn take(&mut self) -> Option<(u8, Vec<u8>)> {
        self.take_slot().map(|(_, status, data)| (status, data))
    }

    /// As [`take`](Self::take), with the slot that the request had.
    pub fn take_slot(&mut self) -> Option<(u64, u8, Vec<u8>)> {
        let done = self.driver.take()?;
        let slot = self.busy.remove(&done.id).expect("completed twice, or never submitted");
        self.slots.push(slot);
        let at = SLOTS_AT + slot * SLOT;
        Some((slot, self.memory.read(at + 64, 1)[0], self.memory.read(at + SLOT / 2, 512)))
    }

    /// Waits for a completion as a driver that sleeps does.
    pub fn wait(&mut self) -> (u8, Vec<u8>) {
        let (_, status, data) = self.wait_slot();
        (status, data)
    }

    /// As [`wait`](Self::wait), with the slot that the request had.
    pub fn wait_slot(&mut self) -> (u64, u8, Vec<u8>) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(done) = self.take_slot() {
                return done;
            }
            if self.driver.arm() {
                continue;
            }
            let fd = self.memory.call.as_fd();
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut fds, Some(&timeout)).unwrap();
            wake::drain(fd);
            assert!(Instant::now() < deadline, "no completion within 20 s; {} requests are out", self.busy.len());
        }
    }

    /// All of its memory.
    pub fn bytes(&self) -> Vec<u8> {
        self.memory.read(0, MEMORY as usize)
    }

    pub fn outstanding(&self) -> usize {
        self.busy.len()
    }
}
