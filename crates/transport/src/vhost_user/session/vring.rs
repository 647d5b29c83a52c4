//! Rings: SET_VRING_*, GET_VRING_BASE.

use super::command::{Command, FdId, QueueChange, QueueIndex};
use super::state::{RingAddress, State, Vring, VringRun, check_base, check_size};
use super::{Answer, DeviceModel, Finish, Step};
use crate::vhost_user::codec::Writer;
use crate::vhost_user::error::Fault;
use crate::vhost_user::features::F_PROTOCOL_FEATURES;
use crate::vhost_user::layout::{RingFormat, VringBase};
use crate::vhost_user::messages::{FdPresence, RequestId, VringAddress, VringState, request};

/// `VHOST_VRING_F_LOG`.
const VRING_F_LOG: u32 = 1;

impl State {
    /// The ring a message names.
    fn ring(&mut self, index: u32) -> Result<(u16, &mut Vring), Fault> {
        let count = self.vrings.len() as u64;
        match self.vrings.get_mut(index as usize) {
            Some(ring) => Ok((index as u16, ring)),
            None => Err(Fault::Range { field: "vring index", found: index.into(), least: 0, most: count - 1 }),
        }
    }

    /// The ring a message names, which must not run because `field` may not change then.
    fn stopped_ring(&mut self, index: u32, field: &'static str) -> Result<&mut Vring, Fault> {
        match self.ring(index)? {
            (_, ring) if ring.run == VringRun::Stopped => Ok(ring),
            (queue, ring) if ring.run == VringRun::Broken => Err(Fault::Broken { queue }),
            (queue, _) => Err(Fault::Running { field, queue }),
        }
    }

    pub(super) fn set_vring_num(&mut self, device: &dyn DeviceModel, ring: VringState) -> Result<Step, Fault> {
        let format = RingFormat::of(self.negotiated()?);
        let slot = self.stopped_ring(ring.index, "num")?;
        slot.size = Some(check_size(device, format, ring.num.into())?);
        Step::OK
    }

    pub(super) fn set_vring_addr(&mut self, ring: VringAddress) -> Result<Step, Fault> {
        let format = RingFormat::of(self.negotiated()?);
        if ring.flags & !VRING_F_LOG != 0 {
            return Err(Fault::Field {
                field: "flags",
                found: ring.flags.into(),
                expected: "0 or VHOST_VRING_F_LOG (1)",
            });
        }
        let log = (ring.flags & VRING_F_LOG != 0).then_some(ring.log);
        let address = RingAddress { descriptor: ring.descriptor, driver: ring.available, device: ring.used, log };
        address.check_alignment(format)?;
        let (index, slot) = self.ring(ring.index)?;
        match (slot.run, slot.address) {
            (VringRun::Stopped, _) => {
                slot.address = Some(address);
                Step::OK
            }
            (VringRun::Broken, _) => Err(Fault::Broken { queue: index }),
            // vhost-user, Migration: logging of the used ring is switched by the same message while the ring runs.
            (VringRun::Running, Some(before)) if before == (RingAddress { log: before.log, ..address }) => {
                slot.address = Some(address);
                Ok(update(index, QueueChange::Log(log)))
            }
            (VringRun::Running, _) => Err(Fault::Running { field: "ring addresses", queue: index }),
        }
    }

    pub(super) fn set_vring_base(&mut self, ring: VringState) -> Result<Step, Fault> {
        let format = RingFormat::of(self.negotiated()?);
        let slot = self.stopped_ring(ring.index, "base")?;
        if format == RingFormat::Split && ring.num > u16::MAX.into() {
            return Err(Fault::Range { field: "num", found: ring.num.into(), least: 0, most: u16::MAX.into() });
        }
        if let Some(size) = slot.size {
            check_base(VringBase::from_wire(format, ring.num), size)?;
        }
        slot.base = Some(ring.num);
        slot.left_at = None;
        Step::OK
    }

    pub(super) fn get_vring_base(&mut self, ring: VringState) -> Result<Step, Fault> {
        let format = RingFormat::of(self.features.unwrap_or(0));
        let (index, slot) = self.ring(ring.index)?;
        // The started ring's kick is what started it; the next start needs another SET_VRING_KICK.
        slot.kick = None;
        let run = std::mem::take(&mut slot.run);
        if run == VringRun::Running {
            let index = QueueIndex(index);
            return Ok(Step::Then(Command::QueueStop(index), Finish::Base(index)));
        }
        // QEMU before 8.1 sets the status to 0 first when it pauses its guest or moves it, and asks then.
        let number = slot.left_at.or(slot.base).unwrap_or(format.initial_base().to_wire());
        Ok(Step::Done(base_reply(index, number)))
    }

    /// A queue has been stopped and stands at `base`.
    pub(super) fn stopped(&mut self, index: QueueIndex, base: VringBase) -> Result<Answer, Fault> {
        super::check_position(base, RingFormat::of(self.features.unwrap_or(0)))?;
        self.vrings[usize::from(index.0)].base = Some(base.to_wire());
        Ok(base_reply(index.0, base.to_wire()))
    }

    pub(super) fn set_vring_kick(
        &mut self,
        device: &dyn DeviceModel,
        ring: FdPresence,
        fd: Option<FdId>,
    ) -> Result<Step, Fault> {
        self.negotiated()?;
        let (index, slot) = self.ring(ring.index.into())?;
        slot.kick = fd;
        match slot.run {
            VringRun::Running => Ok(update(index, QueueChange::Kick(fd))),
            VringRun::Broken => Err(Fault::Broken { queue: index }),
            // The specification lets a ring start with the first kick; libvhost-user and DPDK start it with this
            // message, and so a kick that came before, while nobody looked, is not lost.
            VringRun::Stopped => {
                slot.run = VringRun::Running;
                slot.left_at = None;
                let start = self.queue_start(device, index, false)?;
                Ok(Step::Then(Command::QueueStart(start), Finish::Started))
            }
        }
    }

    /// Accepted before SET_FEATURES: QEMU sends it while it initialises the device.
    pub(super) fn set_vring_call(&mut self, ring: FdPresence, fd: Option<FdId>) -> Result<Step, Fault> {
        let (index, slot) = self.ring(ring.index.into())?;
        slot.call = fd;
        if slot.run == VringRun::Running { Ok(update(index, QueueChange::Call(fd))) } else { Step::OK }
    }

    /// Accepted before SET_FEATURES, as SET_VRING_CALL.
    pub(super) fn set_vring_err(&mut self, ring: FdPresence, fd: Option<FdId>) -> Result<Step, Fault> {
        let (index, slot) = self.ring(ring.index.into())?;
        slot.err = fd;
        if slot.run == VringRun::Running { Ok(update(index, QueueChange::Err(fd))) } else { Step::OK }
    }

    pub(super) fn set_vring_enable(&mut self, ring: VringState) -> Result<Step, Fault> {
        // "should be sent only when VHOST_USER_F_PROTOCOL_FEATURES has been negotiated", by which front ends understand
        // either the feature bit or the exchange of protocol features itself.
        if self.features.unwrap_or(0) & F_PROTOCOL_FEATURES == 0 && self.protocol_features.is_none() {
            return Err(Fault::OutOfOrder { first: RequestId(request::SET_PROTOCOL_FEATURES) });
        }
        let enabled = match ring.num {
            0 => false,
            1 => true,
            num => return Err(Fault::Range { field: "num", found: num.into(), least: 0, most: 1 }),
        };
        let (index, slot) = self.ring(ring.index)?;
        let changed = std::mem::replace(&mut slot.enabled, enabled) != enabled;
        if changed && slot.run == VringRun::Running {
            Ok(update(index, QueueChange::Enabled(enabled)))
        } else {
            Step::OK
        }
    }
}

fn update(index: u16, change: QueueChange) -> Step {
    Step::Then(Command::QueueUpdate { index: QueueIndex(index), change }, Finish::Status)
}

fn base_reply(index: u16, number: u32) -> Answer {
    Answer::Payload(Writer::new().u32(index.into()).u32(number).done())
}
