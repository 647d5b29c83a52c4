//! The rings of a device: SET_VRING_*, GET_VRING_BASE.

use serde::{Deserialize, Serialize};

use super::DeviceModel;
use super::command::{Command, FdId, QueueChange, QueueIndex, QueueStart};
use super::memory::MemoryTable;
use super::step::{Answer, Finish, Step};
use super::vring::{RingAddress, RingState, StartContext, Vring, check_size};
use crate::vhost_user::codec::Writer;
use crate::vhost_user::error::Fault;
use crate::vhost_user::layout::{RingFormat, VringBase};
use crate::vhost_user::messages::{VringAddress, VringState};

/// One ring for each queue of the device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Vrings(Vec<Vring>);

impl Vrings {
    /// `count` new rings.
    pub(super) fn new(count: u16) -> Self {
        Vrings(vec![Vring::default(); count.into()])
    }

    pub(super) fn count(&self) -> u16 {
        self.0.len() as u16
    }

    pub(super) fn get(&self, index: QueueIndex) -> Option<&Vring> {
        self.0.get(usize::from(index.0))
    }

    /// The queues in one state, ascending.
    pub(super) fn in_state(&self, state: RingState) -> impl Iterator<Item = (QueueIndex, &Vring)> {
        let rings = (0..).map(QueueIndex).zip(&self.0);
        rings.filter(move |(_, ring)| ring.state == state)
    }

    /// Whether any queue runs.
    pub(super) fn is_any_running(&self) -> bool {
        self.in_state(RingState::Running).next().is_some()
    }

    /// Checks that no queue runs, so that `field` may change.
    pub(super) fn require_stopped(&self, field: &'static str) -> Result<(), Fault> {
        match self.in_state(RingState::Running).next() {
            None => Ok(()),
            Some((queue, _)) => Err(Fault::Running { field, queue: queue.0 }),
        }
    }

    /// The last queue of which a front end makes use.
    pub(super) fn last_in_use(&self) -> Option<u16> {
        let in_use = |ring: &Vring| ring.size.is_some() || ring.state != RingState::Stopped;
        self.0.iter().rposition(in_use).map(|index| index as u16)
    }

    /// The device has `count` queues now. Descriptors of queues it has lost are no longer named.
    pub(super) fn resize(&mut self, count: u16) {
        self.0.resize(count.into(), Vring::default());
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = FdId> {
        self.0.iter().flat_map(Vring::descriptors)
    }

    /// The running queues with rings outside `memory`.
    pub(super) fn unmapped(&self, memory: &MemoryTable, format: RingFormat) -> Vec<QueueIndex> {
        let running = self.in_state(RingState::Running);
        running.filter(|(index, ring)| !ring.is_mapped(index.0, memory, format)).map(|(index, _)| index).collect()
    }

    pub(super) fn enable_all(&mut self) {
        self.0.iter_mut().for_each(|ring| ring.enabled = true);
    }

    pub(super) fn reset(&mut self) {
        self.0.iter_mut().for_each(Vring::reset);
    }

    /// What starts queue `index`.
    pub(super) fn start(
        &self,
        index: QueueIndex,
        with: StartContext<'_>,
        resumed: bool,
    ) -> Result<Box<QueueStart>, Fault> {
        self.0[usize::from(index.0)].start(index.0, with, resumed)
    }

    /// The ring a message names.
    fn ring(&mut self, index: u32) -> Result<(QueueIndex, &mut Vring), Fault> {
        let count = self.0.len() as u64;
        match self.0.get_mut(index as usize) {
            Some(ring) => Ok((QueueIndex(index as u16), ring)),
            None => Err(Fault::Range { field: "vring index", found: index.into(), least: 0, most: count - 1 }),
        }
    }

    /// The ring a message names, which must not run because `field` may not change then.
    fn stopped_ring(&mut self, index: u32, field: &'static str) -> Result<&mut Vring, Fault> {
        match self.ring(index)? {
            (_, ring) if ring.state == RingState::Stopped => Ok(ring),
            (queue, ring) if ring.state == RingState::Broken => Err(Fault::Broken { queue: queue.0 }),
            (queue, _) => Err(Fault::Running { field, queue: queue.0 }),
        }
    }

    pub(super) fn set_num(
        &mut self,
        device: &dyn DeviceModel,
        format: RingFormat,
        ring: VringState,
    ) -> Result<Step, Fault> {
        let slot = self.stopped_ring(ring.index, "num")?;
        slot.size = Some(check_size(device, format, ring.num.into())?);
        Step::OK
    }

    pub(super) fn set_address(&mut self, format: RingFormat, ring: VringAddress) -> Result<Step, Fault> {
        let (queue, address) = (ring.index, RingAddress::new(ring, format)?);
        let (index, slot) = self.ring(queue)?;
        match (slot.state, slot.address) {
            (RingState::Stopped, _) => {
                slot.address = Some(address);
                Step::OK
            }
            (RingState::Broken, _) => Err(Fault::Broken { queue: index.0 }),
            // vhost-user, Migration: logging of the used ring is switched by the same message while the ring runs.
            (RingState::Running, Some(before)) if before.differs_only_in_log(&address) => {
                slot.address = Some(address);
                update(index, QueueChange::Log(address.log))
            }
            (RingState::Running, _) => Err(Fault::Running { field: "ring addresses", queue: index.0 }),
        }
    }

    pub(super) fn set_base(&mut self, format: RingFormat, ring: VringState) -> Result<Step, Fault> {
        self.stopped_ring(ring.index, "base")?.set_base(ring.num, format)?;
        Step::OK
    }

    /// GET_VRING_BASE, which stops the ring.
    pub(super) fn get_base(&mut self, format: RingFormat, ring: VringState) -> Result<Step, Fault> {
        let (index, slot) = self.ring(ring.index)?;
        // The started ring's kick is what started it; the next start needs another SET_VRING_KICK.
        slot.kick = None;
        match std::mem::take(&mut slot.state) {
            RingState::Running => Ok(Step::Then(Command::QueueStop(index), Finish::Base(index))),
            RingState::Stopped | RingState::Broken => Ok(Step::Done(base_reply(index, slot.last_base(format)))),
        }
    }

    /// A queue was stopped at `base`.
    pub(super) fn stopped(&mut self, index: QueueIndex, base: VringBase, format: RingFormat) -> Result<Answer, Fault> {
        check_position(base, format)?;
        self.0[usize::from(index.0)].stopped_at(base);
        Ok(base_reply(index, base.to_wire()))
    }

    /// Queues lost their memory at these positions.
    pub(super) fn broken(
        &mut self,
        queues: &[QueueIndex],
        bases: &[VringBase],
        format: RingFormat,
    ) -> Result<(), Fault> {
        bases.iter().try_for_each(|base| check_position(*base, format))?;
        for (queue, base) in queues.iter().zip(bases) {
            self.0[usize::from(queue.0)].broken_at(*base);
        }
        Ok(())
    }

    /// The device was reset while queues were at these positions.
    pub(super) fn reset_at(&mut self, positions: &[(QueueIndex, VringBase)]) {
        for (index, base) in positions {
            if let Some(ring) = self.0.get_mut(usize::from(index.0)) {
                ring.reset_at(*base);
            }
        }
    }

    /// SET_VRING_KICK: the queue to be started, or else what it comes to.
    pub(super) fn set_kick(&mut self, index: u32, fd: Option<FdId>) -> Result<Kicked, Fault> {
        let (index, slot) = self.ring(index)?;
        slot.kick = fd;
        match slot.state {
            RingState::Running => update(index, QueueChange::Kick(fd)).map(Kicked::Updated),
            RingState::Broken => Err(Fault::Broken { queue: index.0 }),
            // The specification lets a ring start with the first kick; libvhost-user and DPDK start it with this
            // message, and so a kick that came before, while the eventfd was not watched, is not lost.
            RingState::Stopped => {
                slot.run();
                Ok(Kicked::Started(index))
            }
        }
    }

    /// Accepted before SET_FEATURES: QEMU sends it while it initialises the device.
    pub(super) fn set_call(&mut self, index: u32, fd: Option<FdId>) -> Result<Step, Fault> {
        let (index, slot) = self.ring(index)?;
        slot.call = fd;
        if slot.state == RingState::Running { update(index, QueueChange::Call(fd)) } else { Step::OK }
    }

    /// Accepted before SET_FEATURES, as SET_VRING_CALL.
    pub(super) fn set_err(&mut self, index: u32, fd: Option<FdId>) -> Result<Step, Fault> {
        let (index, slot) = self.ring(index)?;
        slot.err = fd;
        if slot.state == RingState::Running { update(index, QueueChange::Err(fd)) } else { Step::OK }
    }

    pub(super) fn set_enable(&mut self, ring: VringState) -> Result<Step, Fault> {
        let enabled = match ring.num {
            0 => false,
            1 => true,
            num => return Err(Fault::Range { field: "num", found: num.into(), least: 0, most: 1 }),
        };
        let (index, slot) = self.ring(ring.index)?;
        let changed = std::mem::replace(&mut slot.enabled, enabled) != enabled;
        if changed && slot.state == RingState::Running {
            update(index, QueueChange::Enabled(enabled))
        } else {
            Step::OK
        }
    }
}

/// What SET_VRING_KICK did.
pub(super) enum Kicked {
    /// The queue is to be started.
    Started(QueueIndex),
    /// The queue runs and has another descriptor.
    Updated(Step),
}

fn update(index: QueueIndex, change: QueueChange) -> Result<Step, Fault> {
    Step::command(Command::QueueUpdate { index, change })
}

fn base_reply(index: QueueIndex, number: u32) -> Answer {
    Answer::Payload(Writer::new().u32(index.0.into()).u32(number).done())
}

/// Checks that an acknowledged position has the ring's format.
fn check_position(base: VringBase, expected: RingFormat) -> Result<(), Fault> {
    if base.format() == expected {
        Ok(())
    } else {
        Err(Fault::WrongAck { found: format!("{base:?}"), expected: "a position in the ring's own format" })
    }
}
