//! The state of a session: plain data that outlives the process.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::DeviceModel;
use super::command::{DirtyLog, FdId, InflightRef, MemoryRegion, QueueIndex, QueueStart};
use crate::vhost_user::error::Fault;
use crate::vhost_user::features::{F_LOG_ALL, ProtocolFeatures};
use crate::vhost_user::layout::{RingFormat, VringBase, inflight_layout};
use crate::vhost_user::messages::{RequestId, request};

/// What has been agreed with the front end. Fields may be added with a default; see [`super::saved`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(super) owned: bool,
    pub(super) features: Option<u64>,
    pub(super) protocol_features: Option<ProtocolFeatures>,
    pub(super) status: u8,
    pub(super) regions: Vec<MemoryRegion>,
    pub(super) log: Option<LogMemory>,
    pub(super) log_event: Option<FdId>,
    pub(super) inflight: Option<Inflight>,
    pub(super) backend_channel: Option<FdId>,
    /// The configuration changed while the device was suspended; the front end is told when a queue starts.
    pub(super) config_changed: bool,
    pub(super) mtu: Option<u16>,
    pub(super) vrings: Vec<Vring>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogMemory {
    pub(super) fd: FdId,
    pub(super) offset: u64,
    pub(super) size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Inflight {
    pub(super) fd: FdId,
    pub(super) size: u64,
    pub(super) offset: u64,
    pub(super) queues: u16,
    pub(super) queue_size: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Vring {
    pub(super) size: Option<u16>,
    pub(super) address: Option<RingAddress>,
    /// As sent: what it means depends on the format, which may still change.
    pub(super) base: Option<u32>,
    /// Where it stood when the status became 0, for a GET_VRING_BASE that comes after that. It does not start there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) left_at: Option<u32>,
    pub(super) kick: Option<FdId>,
    pub(super) call: Option<FdId>,
    pub(super) err: Option<FdId>,
    pub(super) enabled: bool,
    pub(super) run: VringRun,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RingAddress {
    pub(super) descriptor: u64,
    pub(super) driver: u64,
    pub(super) device: u64,
    pub(super) log: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum VringRun {
    #[default]
    Stopped,
    Running,
    /// Stopped because a memory change took its rings away; its position is in `base`.
    Broken,
}

impl State {
    pub(super) fn has(&self, feature: ProtocolFeatures) -> bool {
        self.protocol_features.unwrap_or_default().contains(feature)
    }

    /// Checks that a protocol feature has been negotiated.
    pub(super) fn require(&self, feature: ProtocolFeatures) -> Result<(), Fault> {
        if self.has(feature) { Ok(()) } else { Err(Fault::NotNegotiated { feature }) }
    }

    /// The negotiated virtio features; an error while there are none.
    pub(super) fn negotiated(&self) -> Result<u64, Fault> {
        self.features.ok_or(Fault::OutOfOrder { first: RequestId(request::SET_FEATURES) })
    }

    pub(super) fn running(&self) -> Option<u16> {
        self.vrings.iter().position(|ring| ring.run == VringRun::Running).map(|index| index as u16)
    }

    /// Checks that no queue runs, so that `field` may change.
    pub(super) fn require_stopped(&self, field: &'static str) -> Result<(), Fault> {
        match self.running() {
            None => Ok(()),
            Some(queue) => Err(Fault::Running { field, queue }),
        }
    }

    pub(super) fn dirty_log(&self) -> DirtyLog {
        DirtyLog {
            memory: self.log.map(|log| (log.fd, log.offset, log.size)),
            event: self.log_event,
            logging: self.features.unwrap_or(0) & F_LOG_ALL != 0,
        }
    }

    /// Every descriptor the state refers to.
    pub(super) fn held(&self) -> BTreeSet<FdId> {
        let rings = self.vrings.iter().flat_map(|ring| [ring.kick, ring.call, ring.err]).flatten();
        let regions = self.regions.iter().map(|region| region.fd);
        let others = [self.log.map(|log| log.fd), self.log_event, self.inflight.map(|it| it.fd), self.backend_channel];
        rings.chain(regions).chain(others.into_iter().flatten()).collect()
    }

    /// Checks everything a queue needs to run and puts it together.
    pub(super) fn queue_start(
        &self,
        device: &dyn DeviceModel,
        index: u16,
        resumed: bool,
    ) -> Result<Box<QueueStart>, Fault> {
        let features = self.negotiated()?;
        let format = RingFormat::of(features);
        let ring = &self.vrings[usize::from(index)];
        let missing = |id| Fault::OutOfOrder { first: RequestId(id) };
        let size = ring.size.ok_or_else(|| missing(request::SET_VRING_NUM))?;
        let address = ring.address.ok_or_else(|| missing(request::SET_VRING_ADDR))?;
        if self.regions.is_empty() {
            return Err(missing(request::SET_MEM_TABLE));
        }
        check_size(device, format, size.into())?;
        address.check_alignment(format)?;
        self.check_mapped(index, &address, format, size)?;
        let base = ring.base.map_or(format.initial_base(), |number| VringBase::from_wire(format, number));
        check_base(base, size)?;
        Ok(Box::new(QueueStart {
            index: QueueIndex(index),
            size,
            format,
            features,
            protocol_features: self.protocol_features.unwrap_or_default(),
            descriptor: address.descriptor,
            driver: address.driver,
            device: address.device,
            log: address.log,
            base,
            resumed,
            kick: ring.kick,
            call: ring.call,
            err: ring.err,
            inflight: self.inflight_of(index, format, size)?,
            enabled: ring.enabled,
        }))
    }

    /// Checks that each part of a ring lies inside one region.
    pub(super) fn check_mapped(
        &self,
        queue: u16,
        address: &RingAddress,
        format: RingFormat,
        size: u16,
    ) -> Result<(), Fault> {
        let layout = format.layout(size);
        let parts = [
            ("descriptor", address.descriptor, layout.descriptor.0),
            ("available", address.driver, layout.driver.0),
            ("used", address.device, layout.device.0),
        ];
        for (part, address, len) in parts {
            let inside = self.regions.iter().any(|region| {
                address >= region.user_address
                    && address - region.user_address <= region.size
                    && len <= region.size - (address - region.user_address)
            });
            if !inside {
                return Err(Fault::NotMapped { part, queue, address, len });
            }
        }
        Ok(())
    }

    fn inflight_of(&self, index: u16, format: RingFormat, size: u16) -> Result<Option<InflightRef>, Fault> {
        let Some(inflight) = self.inflight else {
            return Ok(None);
        };
        if index >= inflight.queues {
            let most = u64::from(inflight.queues).saturating_sub(1);
            return Err(Fault::Range { field: "queue of the in-flight region", found: index.into(), least: 0, most });
        }
        if size > inflight.queue_size {
            let most = inflight.queue_size.into();
            return Err(Fault::Range {
                field: "queue size in the in-flight region",
                found: size.into(),
                least: 1,
                most,
            });
        }
        let bytes = inflight_layout(format, inflight.queue_size).bytes;
        let expected = bytes * u64::from(inflight.queues);
        if inflight.size < expected {
            return Err(Fault::InflightTooSmall { found: inflight.size, expected });
        }
        let offset = inflight.offset.saturating_add(bytes * u64::from(index));
        Ok(Some(InflightRef { fd: inflight.fd, offset, bytes, queue_size: inflight.queue_size }))
    }
}

impl RingAddress {
    pub(super) fn check_alignment(&self, format: RingFormat) -> Result<(), Fault> {
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
pub(super) fn check_base(base: VringBase, size: u16) -> Result<(), Fault> {
    if let VringBase::Packed { next_available, next_used, .. } = base {
        for (field, slot) in [("next available descriptor", next_available), ("next used descriptor", next_used)] {
            if slot >= size {
                return Err(Fault::Range { field, found: slot.into(), least: 0, most: u64::from(size) - 1 });
            }
        }
    }
    Ok(())
}
