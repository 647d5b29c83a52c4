//! One ring: what the front end has set, and whether it runs (vhost-user: Ring states).

use serde::{Deserialize, Serialize};

use super::DeviceModel;
use super::command::{FdId, QueueIndex, QueueStart};
use super::inflight::Inflight;
use super::memory::MemoryTable;
use super::negotiation::Negotiation;
use crate::vhost_user::error::Fault;
use crate::vhost_user::layout::{RingFormat, VringBase};
use crate::vhost_user::messages::{RequestId, VringAddress, request};

/// `VHOST_VRING_F_LOG`.
const VRING_F_LOG: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Vring {
    pub(super) size: Option<u16>,
    pub(super) address: Option<RingAddress>,
    /// As sent: what it means depends on the format, which may still change.
    base: Option<u32>,
    /// The position when the status became 0, for a GET_VRING_BASE that comes after that. The ring does not start
    /// there.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "left_at")]
    base_before_reset: Option<u32>,
    pub(super) kick: Option<FdId>,
    pub(super) call: Option<FdId>,
    pub(super) err: Option<FdId>,
    pub(super) enabled: bool,
    #[serde(rename = "run")]
    pub(super) state: RingState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RingState {
    #[default]
    Stopped,
    Running,
    /// Stopped because a memory change took its rings away; its position is in `base`.
    Broken,
}

/// What a queue needs to start, beside its own ring.
#[derive(Clone, Copy)]
pub(super) struct StartContext<'a> {
    pub(super) device: &'a dyn DeviceModel,
    pub(super) negotiation: &'a Negotiation,
    pub(super) memory: &'a MemoryTable,
    pub(super) inflight: Option<&'a Inflight>,
}

impl Vring {
    /// Where the ring starts: the position the front end set, or that of a new ring.
    pub(super) fn base(&self, format: RingFormat) -> VringBase {
        self.base.map_or(format.initial_base(), |number| VringBase::from_wire(format, number))
    }

    /// SET_VRING_BASE.
    pub(super) fn set_base(&mut self, number: u32, format: RingFormat) -> Result<(), Fault> {
        if format == RingFormat::Split && number > u16::MAX.into() {
            return Err(Fault::Range { field: "num", found: number.into(), least: 0, most: u16::MAX.into() });
        }
        if let Some(size) = self.size {
            check_base(VringBase::from_wire(format, number), size)?;
        }
        self.base = Some(number);
        self.base_before_reset = None;
        Ok(())
    }

    /// The ring runs from now on.
    pub(super) fn run(&mut self) {
        self.state = RingState::Running;
        self.base_before_reset = None;
    }

    /// The ring was stopped at `base`.
    pub(super) fn stopped_at(&mut self, base: VringBase) {
        self.base = Some(base.to_wire());
    }

    /// The ring lost its memory at `base`.
    pub(super) fn broken_at(&mut self, base: VringBase) {
        self.base = Some(base.to_wire());
        self.kick = None;
        self.state = RingState::Broken;
    }

    /// The device was reset while the ring was at `base`.
    pub(super) fn reset_at(&mut self, base: VringBase) {
        self.base_before_reset = Some(base.to_wire());
    }

    /// The position that GET_VRING_BASE answers with while the ring does not run. QEMU before 8.1 sets the status to 0
    /// first when it pauses its guest or moves it, and asks then.
    pub(super) fn last_base(&self, format: RingFormat) -> u32 {
        self.base_before_reset.or(self.base).unwrap_or(format.initial_base().to_wire())
    }

    /// As new, but for the descriptors that QEMU sends only when it connects.
    pub(super) fn reset(&mut self) {
        *self = Vring { call: self.call, err: self.err, ..Vring::default() };
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = FdId> + use<> {
        [self.kick, self.call, self.err].into_iter().flatten()
    }

    /// Whether its parts lie in guest memory.
    pub(super) fn is_mapped(&self, index: u16, memory: &MemoryTable, format: RingFormat) -> bool {
        match (self.address, self.size) {
            (Some(address), Some(size)) => address.check_mapped(index, memory, format, size).is_ok(),
            _ => false,
        }
    }

    /// Checks everything a queue needs to run and puts it together.
    pub(super) fn start(&self, index: u16, with: StartContext<'_>, resumed: bool) -> Result<Box<QueueStart>, Fault> {
        let features = with.negotiation.acknowledged()?;
        let format = RingFormat::of(features);
        let missing = |id| Fault::OutOfOrder { first: RequestId(id) };
        let size = self.size.ok_or_else(|| missing(request::SET_VRING_NUM))?;
        let address = self.address.ok_or_else(|| missing(request::SET_VRING_ADDR))?;
        if with.memory.regions().is_empty() {
            return Err(missing(request::SET_MEM_TABLE));
        }
        check_size(with.device, format, size.into())?;
        address.check_alignment(format)?;
        address.check_mapped(index, with.memory, format, size)?;
        let base = self.base(format);
        check_base(base, size)?;
        Ok(Box::new(QueueStart {
            index: QueueIndex(index),
            size,
            format,
            features,
            protocol_features: with.negotiation.protocol_features(),
            descriptor: address.descriptor,
            driver: address.driver,
            device: address.device,
            log: address.log,
            base,
            resumed,
            kick: self.kick,
            call: self.call,
            err: self.err,
            inflight: with.inflight.map(|inflight| inflight.part(index, format, size)).transpose()?,
            enabled: self.enabled,
        }))
    }
}

/// User addresses of a ring's three parts, and the guest address under which its used ring is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RingAddress {
    descriptor: u64,
    driver: u64,
    device: u64,
    pub(super) log: Option<u64>,
}

impl RingAddress {
    /// From SET_VRING_ADDR.
    pub(super) fn new(ring: VringAddress, format: RingFormat) -> Result<Self, Fault> {
        if ring.flags & !VRING_F_LOG != 0 {
            let expected = "0 or VHOST_VRING_F_LOG (1)";
            return Err(Fault::Field { field: "flags", found: ring.flags.into(), expected });
        }
        let log = (ring.flags & VRING_F_LOG != 0).then_some(ring.log);
        let address = RingAddress { descriptor: ring.descriptor, driver: ring.available, device: ring.used, log };
        address.check_alignment(format)?;
        Ok(address)
    }

    pub(super) fn differs_only_in_log(&self, other: &RingAddress) -> bool {
        *self == RingAddress { log: self.log, ..*other }
    }

    fn check_alignment(&self, format: RingFormat) -> Result<(), Fault> {
        let layout = format.layout(1);
        let parts = [
            ("descriptor", self.descriptor, layout.descriptor.1),
            ("available", self.driver, layout.driver.1),
            ("used", self.device, layout.device.1),
        ];
        for (field, found, align) in parts {
            if !found.is_multiple_of(align) {
                return Err(Fault::Alignment { field, found, align });
            }
        }
        Ok(())
    }

    /// Checks that each part lies inside one region.
    fn check_mapped(&self, queue: u16, memory: &MemoryTable, format: RingFormat, size: u16) -> Result<(), Fault> {
        let layout = format.layout(size);
        let parts = [
            ("descriptor", self.descriptor, layout.descriptor.0),
            ("available", self.driver, layout.driver.0),
            ("used", self.device, layout.device.0),
        ];
        for (part, address, len) in parts {
            if !memory.contains(address, len) {
                return Err(Fault::NotMapped { part, queue, address, len });
            }
        }
        Ok(())
    }
}

/// Checks a queue size (virtio 1.3 §2.7: a power of two up to 32768; §2.8.10.1: up to 32768).
pub(super) fn check_size(device: &dyn DeviceModel, format: RingFormat, size: u64) -> Result<u16, Fault> {
    let most = device.queue_size_limit().min(1 << 15);
    if size == 0 || size > most.into() {
        return Err(Fault::Range { field: "num", found: size, least: 1, most: most.into() });
    }
    if format == RingFormat::Split && !size.is_power_of_two() {
        return Err(Fault::Field { field: "num", found: size, expected: "a power of two for a split ring" });
    }
    Ok(size as u16)
}

/// Checks that the slots of a packed position exist. A split position is free running.
fn check_base(base: VringBase, size: u16) -> Result<(), Fault> {
    if let VringBase::Packed { next_available, next_used, .. } = base {
        for (field, slot) in [("next available descriptor", next_available), ("next used descriptor", next_used)] {
            if slot >= size {
                return Err(Fault::Range { field, found: slot.into(), least: 0, most: u64::from(size) - 1 });
            }
        }
    }
    Ok(())
}
