//! A front end and its driver in one: what a guest and its VMM would be, small enough to misbehave on purpose.
//!
//! ```text
//!  memory (one memfd, one region)
//!  0          64 KiB     128 KiB    192 KiB    256 KiB         1 MiB                    4 MiB
//!  │ ring      │ headers  │ status   │ tables   │ scratch       │ data, 4 KiB a slot     │
//! ```

#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]

mod io;
pub mod verified;
pub mod wire;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use softdpu_memory::{GuestAddress, Mapping, Region, UserAddress, View};
use softdpu_ring::driver::{Driver, Layout};
use softdpu_ring::{Format, RingAddresses};
use softdpu_tests::{Context, Failure};
use softdpu_transport::vhost_user::client::{Answer, Client};
use softdpu_transport::vhost_user::{
    FdPresence, InflightDescription, Message, ProtocolFeatures, RegionDescription, VringAddress, VringState,
};

pub use io::{IN, OUT, pattern};
pub use wire::Refusal;

/// Where the guest sees its memory.
pub const GUEST: u64 = 0x10_0000;
/// Where the front end says it has it.
pub const USER: u64 = 0x7f00_0000_0000;
/// Bytes of a guest's memory.
pub const MEMORY: u64 = 4 << 20;

/// Offsets in the memory; see the picture.
pub const HEADERS: u64 = 0x1_0000;
pub const STATUSES: u64 = 0x2_0000;
pub const TABLES: u64 = 0x3_0000;
pub const SCRATCH: u64 = 0x4_0000;
pub const DATA: u64 = 0x10_0000;

/// Bytes of a block that is read or written, and of a data slot.
pub const BLOCK: usize = 4096;

/// VIRTIO_F_VERSION_1 and what a block driver wants (virtio 1.3 §5.2.3, §6).
const F_BLOCK: u64 = 1 << 32 | 1 << 9 | 1 << 13 | 1 << 14;
pub const F_INDIRECT_DESC: u64 = 1 << 28;
pub const F_EVENT_IDX: u64 = 1 << 29;
pub const F_PROTOCOL_FEATURES: u64 = 1 << 30;
pub const F_RING_PACKED: u64 = 1 << 34;

/// How long an answer or a completion may take before it counts as lost.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What a driver negotiates.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub format: Format,
    pub size: u16,
    pub event_idx: bool,
    pub indirect: bool,
    /// The front end holds the in-flight region.
    pub inflight: bool,
}

impl Settings {
    pub const SPLIT: Settings =
        Settings { format: Format::Split, size: 16, event_idx: false, indirect: true, inflight: false };
    pub const PACKED: Settings = Settings { format: Format::Packed, ..Settings::SPLIT };

    fn features(&self) -> u64 {
        let bit = |on: bool, bit: u64| if on { bit } else { 0 };
        F_BLOCK
            | F_PROTOCOL_FEATURES
            | bit(self.format == Format::Packed, F_RING_PACKED)
            | bit(self.event_idx, F_EVENT_IDX)
            | bit(self.indirect, F_INDIRECT_DESC)
    }
}

/// A guest's memory: a memfd and a view of it.
pub struct Memory {
    pub fd: OwnedFd,
    pub view: Arc<View>,
    pub bytes: u64,
}

impl Memory {
    pub fn new(bytes: u64) -> Result<Memory, Failure> {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).context("memfd")?;
        ftruncate(&fd, bytes).context("guest memory")?;
        let mapping = Mapping::file(fd.as_fd(), 0, bytes).context("mapping guest memory")?;
        let region = Region::new(GuestAddress(GUEST), UserAddress(USER), bytes, mapping, 0);
        let view = View::new(vec![region]).context("view of guest memory")?;
        Ok(Memory { fd, view, bytes })
    }

    /// Writes bytes `offset` into the memory.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let buffer = self.view.buffer(GuestAddress(GUEST + offset), bytes.len() as u64).expect("inside the memory");
        buffer.write_at(0, bytes).expect("inside the buffer");
    }

    /// Reads bytes `offset` into the memory.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let buffer = self.view.buffer(GuestAddress(GUEST + offset), len as u64).expect("inside the memory");
        buffer.read_at(0, &mut bytes).expect("inside the buffer");
        bytes
    }

    /// The memory as SET_MEM_TABLE describes it.
    pub fn region(&self) -> RegionDescription {
        RegionDescription { guest_address: GUEST, size: self.bytes, user_address: USER, mmap_offset: 0 }
    }
}

/// A connected front end with one queue.
pub struct FrontEnd {
    pub socket: UnixStream,
    pub client: Client,
    pub settings: Settings,
    pub memory: Arc<Memory>,
    /// Virtio features that were offered and are wanted.
    pub features: u64,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub err: OwnedFd,
    pub inflight: Option<(InflightDescription, OwnedFd)>,
    pub driver: Driver,
}

impl FrontEnd {
    /// Connects and brings queue 0 up.
    pub fn start(path: &Path, memory: Arc<Memory>, settings: Settings) -> Result<FrontEnd, Failure> {
        let mut front = FrontEnd::connect(path, memory, settings)?;
        front.share_memory()?;
        front.start_queue()?;
        Ok(front)
    }

    /// Connects and negotiates, and shares no memory yet.
    pub fn connect(path: &Path, memory: Arc<Memory>, settings: Settings) -> Result<FrontEnd, Failure> {
        let socket = UnixStream::connect(path).context(format_args!("connecting to {}", path.display()))?;
        socket.set_read_timeout(Some(PATIENCE)).context("read timeout")?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd");
        let driver = driver(&memory, &settings)?;
        let mut front = FrontEnd {
            socket,
            client: Client::default(),
            settings,
            memory,
            features: 0,
            kick: event()?,
            call: event()?,
            err: event()?,
            inflight: None,
            driver,
        };
        let Answer::Number(offered) = front.call(&Message::GetFeatures, &[])? else {
            return Err(Failure::new("GET_FEATURES was not answered with a number"));
        };
        let Answer::Number(protocol) = front.call(&Message::GetProtocolFeatures, &[])? else {
            return Err(Failure::new("GET_PROTOCOL_FEATURES was not answered with a number"));
        };
        front.features = settings.features() & offered;
        if front.features != settings.features() {
            return Err(Failure::new(format!("wanted features {:#x}, offered {offered:#x}", settings.features())));
        }
        front.call(&Message::SetProtocolFeatures(ProtocolFeatures::BLOCK.0 & protocol), &[])?;
        front.call(&Message::SetOwner, &[])?;
        front.call(&Message::SetFeatures(front.features), &[])?;
        Ok(front)
    }

    /// SET_MEM_TABLE with the memory this front end has.
    pub fn share_memory(&mut self) -> Result<(), Failure> {
        let memory = Arc::clone(&self.memory);
        self.call(&Message::SetMemTable(vec![memory.region()]), &[memory.fd.as_fd()])?;
        Ok(())
    }

    /// The addresses of the ring.
    pub fn addresses(&self) -> RingAddresses {
        addresses(&self.settings)
    }

    /// SET_VRING_ADDR for the ring.
    pub fn ring_address(&self) -> VringAddress {
        let ring = self.addresses();
        VringAddress {
            index: 0,
            flags: 0,
            descriptor: ring.descriptors.0,
            used: ring.device.0,
            available: ring.driver.0,
            log: 0,
        }
    }

    /// The position of a new ring, as SET_VRING_BASE has it: packed rings start with both wrap counters set.
    pub fn first_base(&self) -> u32 {
        match self.settings.format {
            Format::Split => 0,
            Format::Packed => 0x8000_8000,
        }
    }

    /// Brings queue 0 up with an empty ring.
    pub fn start_queue(&mut self) -> Result<(), Failure> {
        self.prepare_queue()?;
        self.kick_off()
    }

    /// Everything but SET_VRING_KICK.
    pub fn prepare_queue(&mut self) -> Result<(), Failure> {
        self.memory.write(0, &[0; HEADERS as usize]);
        self.driver = driver(&self.memory, &self.settings)?;
        self.make_inflight()?;
        let state = |num| VringState { index: 0, num };
        self.call(&Message::SetVringNum(state(self.settings.size.into())), &[])?;
        self.call(&Message::SetVringAddr(self.ring_address()), &[])?;
        self.call(&Message::SetVringBase(state(self.first_base())), &[])?;
        let there = FdPresence { index: 0, present: true };
        for (message, fd) in
            [(Message::SetVringCall(there), self.call.try_clone()), (Message::SetVringErr(there), self.err.try_clone())]
        {
            self.call(&message, &[fd.context("copying an eventfd")?.as_fd()])?;
        }
        self.call(&Message::SetVringEnable(state(1)), &[])?;
        Ok(())
    }

    /// SET_VRING_KICK, which starts the queue.
    pub fn kick_off(&mut self) -> Result<(), Failure> {
        let kick = self.kick.try_clone().context("copying an eventfd")?;
        self.call(&Message::SetVringKick(FdPresence { index: 0, present: true }), &[kick.as_fd()])?;
        Ok(())
    }

    fn make_inflight(&mut self) -> Result<(), Failure> {
        if !self.settings.inflight {
            return Ok(());
        }
        let wanted = InflightDescription {
            mmap_size: 0,
            mmap_offset: 0,
            num_queues: 1,
            queue_size: self.settings.size,
            padded: true,
        };
        let (answer, mut fds) = self.call_for_fds(&Message::GetInflightFd(wanted), &[])?;
        let (Answer::Inflight(description), Some(fd)) = (answer, fds.pop()) else {
            return Err(Failure::new("GET_INFLIGHT_FD was answered without a region"));
        };
        self.call(&Message::SetInflightFd(description), &[fd.as_fd()])?;
        self.inflight = Some((description, fd));
        Ok(())
    }

    /// A driver's reset of one ring: GET_VRING_BASE, and a start with an empty ring in the memory this front end has.
    pub fn restart_queue(&mut self) -> Result<(), Failure> {
        self.call(&Message::GetVringBase(VringState { index: 0, num: 0 }), &[])?;
        self.share_memory()?;
        self.start_queue()
    }

    /// RESET_DEVICE, and everything again that it undoes.
    pub fn reset(&mut self) -> Result<(), Failure> {
        self.call(&Message::ResetDevice, &[])?;
        self.call(&Message::SetFeatures(self.features), &[])?;
        self.share_memory()?;
        self.start_queue()
    }

    /// Whether the error eventfd is signalled within `patience`; takes the signal.
    pub fn error_signalled(&self, patience: Duration) -> bool {
        signalled(self.err.as_fd(), patience)
    }
}

fn addresses(settings: &Settings) -> RingAddresses {
    Layout::new(settings.format, settings.size).addresses(UserAddress(USER))
}

fn driver(memory: &Memory, settings: &Settings) -> Result<Driver, Failure> {
    Driver::new(&memory.view, settings.format, settings.size, settings.event_idx, addresses(settings))
        .context("the driver's ring")
}

/// Waits for a signal of an eventfd and takes it.
pub fn signalled(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let time = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)).unwrap_or(0) > 0;
    ready && rustix::io::read(fd, &mut [0; 8]).is_ok()
}
