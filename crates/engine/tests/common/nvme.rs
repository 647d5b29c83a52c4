//! A host of an NVMe queue pair in this process.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softdpu_device::block::Serial;
use softdpu_device::nvme::{Commands, Controller, ControllerConfig, ControllerMemory, NamespaceConfig};
use softdpu_engine::{NvmeQueue, QueueSpec, Role};
use softdpu_memory::{GuestAddress, Mapping, Window};
use softdpu_ring::Queue;
use softdpu_ring::nvme::driver::PairDriver;
use softdpu_ring::nvme::{Doorbells, PairConfig, PairRecords, QueueMemory, QueuePair, Shadow};
use softdpu_sched::TenantId;
use softdpu_storage::Volume;
use softdpu_sys::wake;

use super::{GuestMemory, SIZE};

const MEMORY: u64 = 0x20_0000;
const SQ: u64 = 0x1_0000;
const CQ: u64 = 0x2_0000;
const SLOTS: u64 = 0x10_0000;
const SLOT: u64 = 8192;

/// Where the host keeps shadow doorbells.
pub const SHADOW: Shadow = Shadow { doorbells: GuestAddress(0x3_0000), events: GuestAddress(0x3_1000) };

/// Opcodes.
pub mod op {
    pub const FLUSH: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const READ: u8 = 2;
    pub const COMPARE: u8 = 5;
    pub const ZEROES: u8 = 8;
    pub const DATASET: u8 = 9;
    pub const VERIFY: u8 = 0xc;
}

/// A host with the memory of one queue pair, and the volumes behind its namespaces, from 1.
pub struct NvmeHost {
    pub memory: GuestMemory,
    pub driver: PairDriver,
    pub doorbells: Arc<Mapping>,
    pub records: Arc<Mapping>,
    pub interrupts: bool,
    pub shadow: Option<Shadow>,
    volumes: Vec<Arc<Volume>>,
    commands: Commands,
    config: PairConfig,
    slots: Vec<u64>,
    busy: HashMap<u16, u64>,
    next: u16,
}

impl NvmeHost {
    /// Namespace `n` has the volume `n - 1`, in blocks of 512 bytes.
    pub fn new(volumes: &[Arc<Volume>]) -> NvmeHost {
        let memory = GuestMemory::new(MEMORY);
        let mut config = ControllerConfig::new("s".parse::<Serial>().unwrap(), "nqn.2026-11.test:engine");
        let namespace =
            |(at, volume): (usize, &Arc<Volume>)| NamespaceConfig::new(at as u32 + 1, volume.size(), volume.name());
        config.namespaces = volumes.iter().enumerate().map(namespace).collect();
        let doorbells = Mapping::heap(Doorbells::BYTES);
        let kept = ControllerMemory {
            doorbells: page(&doorbells),
            admin: Window::of_mapping(Mapping::heap(ControllerMemory::ADMIN_BYTES)),
        };
        let commands = Controller::new(config, kept).unwrap().commands();
        let queue = |address| QueueMemory { id: 1, address: GuestAddress(address), size: SIZE };
        let config = PairConfig { sq: queue(SQ), cq: queue(CQ), interrupts: true, resumed: false };
        NvmeHost {
            driver: PairDriver::new(&memory.view, config, page(&doorbells)).unwrap(),
            memory,
            doorbells,
            records: Mapping::heap(PairRecords::bytes(SIZE, SIZE)),
            interrupts: true,
            shadow: None,
            volumes: volumes.to_vec(),
            commands,
            config,
            slots: (0..64).collect(),
            busy: HashMap::new(),
            next: 0,
        }
    }

    /// The device's end of the pair.
    pub fn spec(&self, tenant: u16, resumed: bool) -> QueueSpec {
        let records = PairRecords::new(Window::of_mapping(Arc::clone(&self.records)));
        let config = PairConfig { resumed, interrupts: self.interrupts, ..self.config };
        let pair = QueuePair::new(&self.memory.view, config, page(&self.doorbells), self.shadow, records).unwrap();
        let namespaces = (1..).zip(self.volumes.iter().cloned()).collect();
        let role = Role::Nvme(NvmeQueue { commands: self.commands.clone(), namespaces });
        QueueSpec { resumed, ..self.memory.spec("nvme", 1, TenantId(tenant), role, Queue::Pair(pair)) }
    }

    pub fn use_shadow(&mut self) {
        self.shadow = Some(SHADOW);
        self.driver.set_shadow(&self.memory.view, SHADOW).unwrap();
    }

    /// Queues a command with a page of data that begins with `data`; None: no room. Its identifier.
    pub fn submit(&mut self, opcode: u8, nsid: u32, dwords: &[(usize, u32)], data: &[u8]) -> Option<u16> {
        let slot = self.slots.pop()?;
        let at = SLOTS + slot * SLOT;
        self.memory.write(at, data);
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let mut bytes = [0; 64];
        bytes[0] = opcode;
        bytes[2..4].copy_from_slice(&id.to_le_bytes());
        bytes[4..8].copy_from_slice(&nsid.to_le_bytes());
        bytes[24..32].copy_from_slice(&at.to_le_bytes());
        for (index, value) in dwords {
            bytes[index * 4..index * 4 + 4].copy_from_slice(&value.to_le_bytes());
        }
        if !self.driver.submit(&bytes) {
            self.slots.push(slot);
            return None;
        }
        assert!(self.busy.insert(id, slot).is_none(), "identifier {id} is in use");
        Some(id)
    }

    /// Hands over what was queued. A write to the register wakes the device.
    pub fn publish(&mut self) {
        if self.driver.ring() {
            self.memory.kick.ring();
        }
    }

    /// A completion: identifier, status, and the first 512 bytes of its data.
    pub fn take(&mut self) -> Option<(u16, u16, Vec<u8>)> {
        let from = self.driver.head();
        let done = self.driver.take()?;
        if self.driver.ring_head(from) {
            self.memory.kick.ring();
        }
        let slot = self.busy.remove(&done.command).expect("completed twice, or never submitted");
        self.slots.push(slot);
        Some((done.command, done.status, self.memory.read(SLOTS + slot * SLOT, 512)))
    }

    /// Waits for a completion, as a driver does that sleeps until an interrupt.
    pub fn wait(&mut self) -> (u16, u16, Vec<u8>) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(done) = self.take() {
                return done;
            }
            let fd = self.memory.call.as_fd();
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap();
            wake::drain(fd);
            assert!(Instant::now() < deadline, "no completion within 20 s; {} commands are out", self.busy.len());
        }
    }

    /// Runs a command; returns its status and data.
    pub fn run(&mut self, opcode: u8, nsid: u32, dwords: &[(usize, u32)], data: &[u8]) -> (u16, Vec<u8>) {
        let id = self.submit(opcode, nsid, dwords, data).expect("there is room");
        self.publish();
        let (done, status, data) = self.wait();
        assert_eq!(done, id);
        (status, data)
    }

    pub fn outstanding(&self) -> usize {
        self.busy.len()
    }
}

fn page(doorbells: &Arc<Mapping>) -> Doorbells {
    Doorbells::new(Window::of_mapping(Arc::clone(doorbells))).unwrap()
}
