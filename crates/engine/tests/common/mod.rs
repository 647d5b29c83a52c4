//! Cores and drivers in this process, for the engine's tests. Each program of tests uses a part of it.

pub mod cores;
pub mod disk;
pub mod nic;
pub mod nvme;
pub mod tunnel;

use std::os::fd::AsFd;
use std::sync::Arc;

use softdpu_engine::{QueueCounters, QueueSpec, Role};
use softdpu_memory::{GuestAddress, Mapping, Region, UserAddress, View};
use softdpu_ring::driver::{Driver, Layout};
use softdpu_ring::{Format, Queue, QueueConfig};
use softdpu_sched::TenantId;
use softdpu_sys::wake::Doorbell;

/// Entries of each ring.
pub const SIZE: u16 = 256;

/// Guest memory, and the eventfds between a driver and the device.
pub struct GuestMemory {
    pub view: Arc<View>,
    pub kick: Doorbell,
    pub call: Doorbell,
}

impl GuestMemory {
    /// `len` bytes from address 0 on.
    pub fn new(len: u64) -> GuestMemory {
        let mapping = Mapping::heap(len as usize);
        let view = View::new(vec![Region::new(GuestAddress(0), UserAddress(0), len, mapping, 0)]).unwrap();
        GuestMemory { view, kick: Doorbell::new().unwrap(), call: Doorbell::new().unwrap() }
    }

    /// The driver's side of a ring at this address.
    pub fn driver(&self, format: Format, at: u64) -> Driver {
        let addresses = Layout::new(format, SIZE).addresses(UserAddress(at));
        Driver::new(&self.view, format, SIZE, true, addresses).unwrap()
    }

    /// The device's side of a queue with this ring.
    pub fn spec(&self, device: &str, index: u16, tenant: TenantId, role: Role, ring: Queue) -> QueueSpec {
        QueueSpec {
            device: device.into(),
            index,
            tenant,
            role,
            ring,
            view: Arc::clone(&self.view),
            kick: Some(self.kick.as_fd().try_clone_to_owned().unwrap()),
            call: Some(self.call.as_fd().try_clone_to_owned().unwrap()),
            error: None,
            enabled: true,
            resumed: false,
            counters: Arc::new(QueueCounters::default()),
        }
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.view.buffer(GuestAddress(at), bytes.len() as u64).unwrap().write_at(0, bytes).unwrap();
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.view.buffer(GuestAddress(at), len as u64).unwrap().read_at(0, &mut bytes).unwrap();
        bytes
    }
}

/// A ring of [`SIZE`] entries, with chains of up to `max_pieces` buffers.
pub fn queue_config(format: Format, max_pieces: usize) -> QueueConfig {
    QueueConfig { size: SIZE, format, event_idx: true, indirect: true, max_pieces, log_used: None, resumed: false }
}
