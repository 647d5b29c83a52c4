//! The in-flight region: GET_INFLIGHT_FD, SET_INFLIGHT_FD (vhost-user: Inflight I/O tracking).

use super::command::{Command, FdId};
use super::state::{Inflight, State, check_size};
use super::{DeviceModel, Finish, Step};
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

impl State {
    /// The session does not keep the region: the front end sends it back with SET_INFLIGHT_FD when it means it to be
    /// used.
    pub(super) fn get_inflight_fd(
        &mut self,
        device: &dyn DeviceModel,
        inflight: InflightDescription,
    ) -> Result<Step, Fault> {
        let (format, bytes) = self.inflight_size(device, &inflight)?;
        let InflightDescription { num_queues: queues, queue_size, .. } = inflight;
        let description = InflightDescription { mmap_size: bytes, mmap_offset: 0, ..inflight };
        Ok(Step::Then(Command::CreateInflight { queues, queue_size, format, bytes }, Finish::Inflight(description)))
    }

    pub(super) fn set_inflight_fd(
        &mut self,
        device: &dyn DeviceModel,
        inflight: InflightDescription,
        fd: Option<FdId>,
    ) -> Result<Step, Fault> {
        let (_, expected) = self.inflight_size(device, &inflight)?;
        let fd = fd.ok_or(Fault::FileDescriptors { found: 0, expected: 1 })?;
        self.require_stopped("the in-flight region")?;
        let InflightDescription { mmap_size: size, mmap_offset: offset, num_queues: queues, queue_size, .. } = inflight;
        if size < expected {
            return Err(Fault::InflightTooSmall { found: size, expected });
        }
        if offset.checked_add(size).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Fault::Wraps { field: "mmap offset", start: offset, len: size });
        }
        if !offset.is_multiple_of(INFLIGHT_ALIGN) {
            return Err(Fault::Alignment { field: "mmap offset", found: offset, align: INFLIGHT_ALIGN });
        }
        self.inflight = Some(Inflight { fd, size, offset, queues, queue_size });
        Step::OK
    }

    /// Checks the counts; gives the format in force and the bytes a region for them has: 257 MiB at most.
    fn inflight_size(
        &self,
        device: &dyn DeviceModel,
        inflight: &InflightDescription,
    ) -> Result<(RingFormat, u64), Fault> {
        self.require(ProtocolFeatures::INFLIGHT_SHMFD)?;
        // The layout depends on the format, so features come first. QEMU sees to it before it asks for the region.
        let format = RingFormat::of(self.negotiated()?);
        let (queues, most) = (u64::from(inflight.num_queues), self.vrings.len() as u64);
        if queues == 0 || queues > most {
            return Err(Fault::Range { field: "num queues", found: queues, least: 1, most });
        }
        let queue_size = check_size(device, format, inflight.queue_size.into())?;
        Ok((format, queues * inflight_layout(format, queue_size).bytes))
    }
}
