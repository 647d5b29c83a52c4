//! The in-flight region: GET_INFLIGHT_FD, SET_INFLIGHT_FD (vhost-user: Inflight I/O tracking).

use serde::{Deserialize, Serialize};

use super::DeviceModel;
use super::command::{Command, FdId, InflightRef};
use super::negotiation::Negotiation;
use super::step::{Finish, Step};
use super::vring::check_size;
use super::vrings::Vrings;
use crate::vhost_user::codec::Writer;
use crate::vhost_user::error::Fault;
use crate::vhost_user::features::ProtocolFeatures;
use crate::vhost_user::layout::{INFLIGHT_ALIGN, RingFormat, inflight_layout};
use crate::vhost_user::messages::{INFLIGHT_PADDED, InflightDescription};

/// The reply that says there is no region, in the form of a request of `size` bytes.
pub(super) fn none(size: u32) -> Vec<u8> {
    let padded = size as usize == INFLIGHT_PADDED;
    let none = InflightDescription { mmap_size: 0, mmap_offset: 0, num_queues: 0, queue_size: 0, padded };
    none.encode(Writer::new()).done()
}

/// The format and the size of a region that a front end asks for or sends.
pub(super) struct InflightSize {
    format: RingFormat,
    /// 257 MiB at most.
    bytes: u64,
}

impl InflightSize {
    /// Checks the counts of a description against what the session has.
    pub(super) fn of(
        device: &dyn DeviceModel,
        negotiation: &Negotiation,
        vrings: &Vrings,
        inflight: &InflightDescription,
    ) -> Result<Self, Fault> {
        negotiation.require(ProtocolFeatures::INFLIGHT_SHMFD)?;
        // The layout depends on the format, so features come first. QEMU sees to it before it asks for the region.
        let format = negotiation.acknowledged_format()?;
        let (queues, most) = (u64::from(inflight.num_queues), u64::from(vrings.count()));
        if queues == 0 || queues > most {
            return Err(Fault::Range { field: "num queues", found: queues, least: 1, most });
        }
        let queue_size = check_size(device, format, inflight.queue_size.into())?;
        Ok(InflightSize { format, bytes: queues * inflight_layout(format, queue_size).bytes })
    }

    /// GET_INFLIGHT_FD. The session does not keep the region: the front end sends it back with SET_INFLIGHT_FD when it
    /// means it to be used.
    pub(super) fn create(self, inflight: InflightDescription) -> Step {
        let InflightSize { format, bytes } = self;
        let InflightDescription { num_queues: queues, queue_size, .. } = inflight;
        let description = InflightDescription { mmap_size: bytes, mmap_offset: 0, ..inflight };
        Step::Then(Command::CreateInflight { queues, queue_size, format, bytes }, Finish::Inflight(description))
    }
}

/// The region that SET_INFLIGHT_FD set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Inflight {
    fd: FdId,
    size: u64,
    offset: u64,
    queues: u16,
    queue_size: u16,
}

impl Inflight {
    /// A region that needs the size `expected`.
    pub(super) fn new(inflight: InflightDescription, fd: FdId, expected: InflightSize) -> Result<Self, Fault> {
        let InflightDescription { mmap_size: size, mmap_offset: offset, num_queues: queues, queue_size, .. } = inflight;
        if size < expected.bytes {
            return Err(Fault::InflightTooSmall { found: size, expected: expected.bytes });
        }
        if offset.checked_add(size).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Fault::Wraps { field: "mmap offset", start: offset, len: size });
        }
        if !offset.is_multiple_of(INFLIGHT_ALIGN) {
            return Err(Fault::Alignment { field: "mmap offset", found: offset, align: INFLIGHT_ALIGN });
        }
        Ok(Inflight { fd, size, offset, queues, queue_size })
    }

    pub(super) fn descriptor(&self) -> FdId {
        self.fd
    }

    /// The part of queue `index`, which has `size` entries. The format may have changed since the region was set.
    pub(super) fn part(&self, index: u16, format: RingFormat, size: u16) -> Result<InflightRef, Fault> {
        if index >= self.queues {
            let most = u64::from(self.queues).saturating_sub(1);
            return Err(Fault::Range { field: "queue of the in-flight region", found: index.into(), least: 0, most });
        }
        if size > self.queue_size {
            let (found, most) = (size.into(), self.queue_size.into());
            return Err(Fault::Range { field: "queue size in the in-flight region", found, least: 1, most });
        }
        let bytes = inflight_layout(format, self.queue_size).bytes;
        let expected = bytes * u64::from(self.queues);
        if self.size < expected {
            return Err(Fault::InflightTooSmall { found: self.size, expected });
        }
        let offset = self.offset.saturating_add(bytes * u64::from(index));
        Ok(InflightRef { fd: self.fd, offset, bytes, queue_size: self.queue_size })
    }
}
