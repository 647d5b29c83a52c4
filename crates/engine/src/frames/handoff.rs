//! Frames between cores: what this core forwards to ports of others, and what others forward to ports of this one.

use std::collections::VecDeque;
use std::sync::Arc;

use softdpu_sys::clock;
use softdpu_vpc::{DropReason, Packet, Tail};

use super::Forwarder;
use super::egress::Egress;
use crate::ids::{CoreIndex, QueueKey};
use crate::message::ToCore;
use crate::net::{CreditOwner, CreditPool, EgressFrame, EgressTail, FrameOutcome, FrameTail, LentTail};
use crate::queue::{QueueTable, Role};

/// Frames from other cores that are sent between two readings of the clock, unless each takes long by itself.
const PIECE: usize = 8;

/// What frames from other cores may take of a round, nanoseconds: as long as a grant is meant to take.
pub(super) const BUDGET_NS: u64 = 8_000;

/// The egress frames of a core, on both ways.
pub(super) struct Handoff {
    /// For each core, those that were forwarded to its ports in this round.
    outgoing: Vec<(CoreIndex, Vec<EgressFrame>)>,
    /// Those for ports of this core, in order.
    arrived: VecDeque<EgressFrame>,
    /// For those that wait for each core.
    credits: Arc<[CreditPool]>,
}

impl Handoff {
    pub(super) fn new(credits: Arc<[CreditPool]>) -> Handoff {
        Handoff { outgoing: Vec::new(), arrived: VecDeque::new(), credits }
    }

    /// Whether any frame waits.
    pub(super) fn has_work(&self) -> bool {
        !self.outgoing.is_empty() || !self.arrived.is_empty()
    }

    /// Whether any frame waits to be sent to a core.
    pub(super) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Collects a frame for a core.
    fn collect(&mut self, core: CoreIndex, frame: EgressFrame) {
        match self.outgoing.iter_mut().find(|(other, _)| *other == core) {
            Some((_, batch)) => batch.push(frame),
            None => self.outgoing.push((core, vec![frame])),
        }
    }

    /// Takes credits of a core for `batch`, in its order. Returns the frames that found none.
    fn admit(&self, core: CoreIndex, batch: &mut Vec<EgressFrame>) -> Vec<EgressFrame> {
        let credits = &self.credits[core.0];
        let mut refused = Vec::new();
        let mut at = 0;
        while let Some(&EgressFrame { owner, .. }) = batch.get(at) {
            let run = same_owner(&batch[at..]);
            let taken = credits.take(owner, run);
            refused.extend(batch.drain(at + taken..at + run));
            at += taken;
        }
        refused
    }

    /// The next frames that arrived at core `index`, with their credits given back.
    fn next(&mut self, index: CoreIndex) -> Vec<EgressFrame> {
        let batch: Vec<_> = self.arrived.drain(..self.arrived.len().min(PIECE)).collect();
        let mut rest = &batch[..];
        while let Some(EgressFrame { owner, .. }) = rest.first() {
            let run = same_owner(rest);
            self.credits[index.0].release(*owner, run);
            rest = &rest[run..];
        }
        batch
    }
}

/// How many of the first of `frames` are of the same owner.
fn same_owner(frames: &[EgressFrame]) -> usize {
    let owner = frames.first().map(|first| first.owner);
    frames.iter().take_while(|frame| Some(frame.owner) == owner).count()
}

impl Forwarder {
    /// Collects a frame for a port of another core, or for one with a socket that is being read just now.
    pub(super) fn hand_off(
        &mut self,
        queues: &mut QueueTable,
        core: CoreIndex,
        egress: Egress,
        packet: &Packet,
        tail: FrameTail<'_>,
    ) {
        let tail = match self.lend(queues, core, packet, tail) {
            Some(lent) => lent,
            None => {
                let mut copy = vec![0; packet.tail as usize];
                if tail.read(0, &mut copy).is_err() {
                    return self.drop_in(packet, DropReason::Truncated);
                }
                if let Some(port) = self.ports.get(egress.port) {
                    port.counters.copied_again.add(copy.len() as u64);
                }
                EgressTail::Copied(copy)
            }
        };
        self.captures.note(packet, FrameOutcome::HandedOff);
        let Egress { port: to, hash, overhead } = egress;
        // What a tunnel brings is charged to its receiver: its senders are on other hosts.
        let is_from_tunnel = self.vpc.tables().underlay_port() == Some(packet.port);
        let owner = CreditOwner::of(if is_from_tunnel { to } else { packet.port });
        if let Some(port) = self.ports.get(to) {
            port.counters.copied_heads.add(packet.head.len() as u64);
        }
        self.handoff.collect(core, EgressFrame { to, hash, overhead, owner, packet: packet.clone(), tail });
    }

    /// The bytes behind a frame's head as they lie in the sender's memory, if its chain can be lent to `core`. A frame
    /// for this core itself cannot: a queue that ends asks other cores only.
    fn lend(
        &mut self,
        queues: &mut QueueTable,
        core: CoreIndex,
        packet: &Packet,
        tail: FrameTail<'_>,
    ) -> Option<EgressTail> {
        let (FrameTail::Guest(buffer, offset), Some(loan)) = (tail, self.loan) else { return None };
        if packet.tail == 0 || core == self.links.index {
            return None;
        }
        let Role::Transmit(transmit) = &mut queues.find(loan.key)?.spec.role else { return None };
        transmit.loans.lend(loan.number);
        Some(EgressTail::Lent(LentTail { loan, buffer: buffer.clone(), offset }))
    }

    /// Sends what was collected for other cores to them, and what waited for a socket of this core to that.
    #[inline]
    pub(crate) fn send_outgoing(&mut self, queues: &mut QueueTable) {
        if self.handoff.has_outgoing() {
            self.send_collected(queues);
        }
    }

    #[inline(never)]
    fn send_collected(&mut self, queues: &mut QueueTable) {
        let mut outgoing = std::mem::take(&mut self.handoff.outgoing);
        for (core, batch) in outgoing.drain(..) {
            if core == self.links.index {
                self.send_arrived(queues, batch);
            } else {
                self.send_to_core(queues, core, batch);
            }
        }
        // What the frames for this core gave rise to goes in the next round.
        outgoing.append(&mut self.handoff.outgoing);
        self.handoff.outgoing = outgoing;
    }

    /// Sends what was collected for other cores to them, now.
    pub(crate) fn send_to_other_cores(&mut self, queues: &mut QueueTable) {
        let index = self.links.index;
        let others: Vec<_> = self.handoff.outgoing.extract_if(.., |(core, _)| *core != index).collect();
        for (core, batch) in others {
            self.send_to_core(queues, core, batch);
        }
    }

    /// Sends `batch` to another core, in its order; frames that find no credits are dropped.
    fn send_to_core(&mut self, queues: &mut QueueTable, core: CoreIndex, mut batch: Vec<EgressFrame>) {
        let refused = self.handoff.admit(core, &mut batch);
        if !batch.is_empty() {
            self.links.send(core, ToCore::EgressFrames(batch));
        }
        if refused.is_empty() {
            return;
        }
        for EgressFrame { to, packet, .. } in &refused {
            self.drop_out(*to, packet, DropReason::NoBuffer);
        }
        self.captures.depart_handed_off(self.vpc.tables(), &refused);
        self.give_back(queues, refused);
    }

    /// Frames have arrived from another core.
    pub(crate) fn arrive(&mut self, frames: Vec<EgressFrame>) {
        self.handoff.arrived.extend(frames);
    }

    /// Whether frames that arrived from other cores wait.
    #[inline]
    pub(crate) fn has_arrived(&self) -> bool {
        !self.handoff.arrived.is_empty()
    }

    /// Sends frames from other cores by their ports, until there are no more or, if `is_timed`, they have taken long
    /// since `now`. Whether there are no more.
    pub(crate) fn take_arrived(&mut self, queues: &mut QueueTable, now: u64, is_timed: bool) -> bool {
        while self.has_arrived() {
            let batch = self.handoff.next(self.links.index);
            self.send_arrived(queues, batch);
            if is_timed && clock::now().saturating_sub(now) > BUDGET_NS {
                break;
            }
        }
        !self.has_arrived()
    }

    /// Sends frames of other cores by ports of this one.
    fn send_arrived(&mut self, queues: &mut QueueTable, frames: Vec<EgressFrame>) {
        for frame in &frames {
            let egress = Egress { port: frame.to, hash: frame.hash, overhead: frame.overhead };
            let _ = self.send(queues, egress, &frame.packet, frame.tail(), false);
        }
        self.captures.depart_handed_off(self.vpc.tables(), &frames);
        self.give_back(queues, frames);
    }

    /// Chains that were lent with these go back to the cores they are from.
    pub(crate) fn give_back(&mut self, queues: &mut QueueTable, frames: Vec<EgressFrame>) {
        let mut returns: Vec<(CoreIndex, QueueKey, Vec<u64>)> = Vec::new();
        for frame in frames {
            // Its memory is let go of before that is reported.
            let loan = match frame.tail {
                EgressTail::Lent(LentTail { loan, .. }) => loan,
                EgressTail::Copied(_) => continue,
            };
            match returns.iter_mut().find(|(_, key, _)| *key == loan.key) {
                Some((_, _, numbers)) => numbers.push(loan.number),
                None => returns.push((loan.core, loan.key, vec![loan.number])),
            }
        }
        for (core, key, numbers) in returns {
            // A queue that has left this core is found by its messages.
            if core != self.links.index || !queues.take_back(key, &numbers) {
                self.links.send(core, ToCore::Returned { key, numbers });
            }
        }
    }
}

#[cfg(test)]
impl Forwarder {
    /// The credits of a core.
    pub(crate) fn credits(&self, core: CoreIndex) -> &CreditPool {
        &self.handoff.credits[core.0]
    }

    /// How many frames of other cores wait.
    pub(crate) fn arrived(&self) -> usize {
        self.handoff.arrived.len()
    }
}
