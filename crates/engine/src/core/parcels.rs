//! Frames between cores.

use softdpu_sched::TenantScheduler;
use softdpu_sys::clock;
use softdpu_vpc::{DropReason, Packet, Tail};

use super::Core;
use super::capture::Fate;
use super::send::Target;
use crate::ids::{CoreIndex, QueueKey};
use crate::message::ToCore;
use crate::net::{Lent, Parcel, ParcelTail, Source, Whose};
use crate::queue::Role;

/// Frames from other cores that are passed on between two looks at the clock, unless each takes long by itself.
const PIECE: usize = 8;

/// What frames from other cores may take of a round, nanoseconds: as long as a grant is meant to take.
pub(super) const ARRIVED_NS: u64 = 8_000;

impl<S: TenantScheduler> Core<S> {
    /// A frame for a port of another core, or for one that is being read just now.
    pub(super) fn send_away_frame(&mut self, core: CoreIndex, target: Target, packet: &Packet, source: Source<'_>) {
        let Some(tail) = self.lend(core, packet, source) else {
            let mut tail = vec![0; packet.tail as usize];
            if source.read(0, &mut tail).is_err() {
                return self.drop_in(packet, DropReason::Truncated);
            }
            if let Some(port) = self.net.port(target.port) {
                port.counters.copied_again.add(tail.len() as u64);
            }
            return self.send_away_as(core, target, packet, ParcelTail::Copied(tail));
        };
        self.send_away_as(core, target, packet, tail);
    }

    fn send_away_as(&mut self, core: CoreIndex, target: Target, packet: &Packet, tail: ParcelTail) {
        self.net.note(packet, Fate::Away);
        let Target { port: to, hash, overhead } = target;
        // What a tunnel brings is its receiver's: its senders are on other hosts.
        let is_from_tunnel = self.net.vpc.tables().underlay_port() == Some(packet.port);
        let whose = Whose::of(if is_from_tunnel { to } else { packet.port });
        if let Some(port) = self.net.port(to) {
            port.counters.copied_heads.add(packet.head.len() as u64);
        }
        self.net.send_parcel(core, Parcel { to, hash, overhead, whose, packet: packet.clone(), tail });
    }

    /// The bytes behind a frame's head as they lie in the sender's memory, if its chain can be lent to `core`. A parcel
    /// to this core itself cannot: whoever ends the queue asks other cores only.
    fn lend(&mut self, core: CoreIndex, packet: &Packet, source: Source<'_>) -> Option<ParcelTail> {
        let (Source::Guest(buffer, offset), Some(loan)) = (source, self.net.loan) else { return None };
        if packet.tail == 0 || core == self.index {
            return None;
        }
        let Role::Transmit(transmit) = &mut self.queues.find(loan.key)?.spec.role else { return None };
        transmit.loans.lend(loan.number);
        Some(ParcelTail::Lent(Lent { loan, buffer: buffer.clone(), offset }))
    }

    /// Hands what was collected for other cores to them, and what waited for a socket of this core to it.
    pub(super) fn send_parcels(&mut self) {
        let mut parcels = std::mem::take(&mut self.net.parcels);
        for (core, batch) in parcels.drain(..) {
            if core == self.index {
                self.take_parcels(batch);
            } else {
                self.hand_over(core, batch);
            }
        }
        // What the parcels to this core gave rise to goes in the next round.
        parcels.append(&mut self.net.parcels);
        self.net.parcels = parcels;
    }

    /// Hands what was collected for other cores to them, now.
    pub(super) fn hand_over_parcels(&mut self) {
        let index = self.index;
        let others: Vec<_> = self.net.parcels.extract_if(.., |(core, _)| *core != index).collect();
        for (core, batch) in others {
            self.hand_over(core, batch);
        }
    }

    /// Hands `batch` to another core, in its order; what finds no room there is dropped.
    fn hand_over(&mut self, core: CoreIndex, mut batch: Vec<Parcel>) {
        let room = &self.rooms[core.0];
        let mut left_out: Vec<Parcel> = Vec::new();
        let mut at = 0;
        while let Some(&Parcel { whose, .. }) = batch.get(at) {
            let run = same_owner(&batch[at..]);
            let taken = room.take(whose, run);
            left_out.extend(batch.drain(at + taken..at + run));
            at += taken;
        }
        if !batch.is_empty() {
            self.peers[core.0].send(ToCore::Parcels(batch));
        }
        if left_out.is_empty() {
            return;
        }
        for Parcel { to, packet, .. } in &left_out {
            self.drop_out(*to, packet, DropReason::NoBuffer);
        }
        self.net.depart_parcels(&left_out);
        self.give_back(left_out);
    }

    /// Passes frames from other cores on, until there are no more or they have taken long since `now`. Whether there
    /// are no more.
    pub(super) fn take_arrived(&mut self, now: u64) -> bool {
        while !self.net.arrived.is_empty() {
            let batch: Vec<_> = self.net.arrived.drain(..self.net.arrived.len().min(PIECE)).collect();
            let mut rest = &batch[..];
            while let Some(Parcel { whose, .. }) = rest.first() {
                let run = same_owner(rest);
                self.rooms[self.index.0].give_back(*whose, run);
                rest = &rest[run..];
            }
            self.take_parcels(batch);
            if self.dispatcher.is_timed() && clock::now().saturating_sub(now) > ARRIVED_NS {
                break;
            }
        }
        self.net.arrived.is_empty()
    }

    /// Frames from other cores.
    pub(super) fn take_parcels(&mut self, parcels: Vec<Parcel>) {
        for parcel in &parcels {
            let target = Target { port: parcel.to, hash: parcel.hash, overhead: parcel.overhead };
            let _ = self.send(target, &parcel.packet, parcel.source(), false);
        }
        self.net.depart_parcels(&parcels);
        self.give_back(parcels);
    }

    /// Chains that were lent with these go back to the cores they are from.
    pub(super) fn give_back(&mut self, parcels: Vec<Parcel>) {
        let mut returns: Vec<(CoreIndex, QueueKey, Vec<u64>)> = Vec::new();
        for parcel in parcels {
            // Its memory is let go of before that is told.
            let loan = match parcel.tail {
                ParcelTail::Lent(Lent { loan, .. }) => loan,
                ParcelTail::Copied(_) => continue,
            };
            match returns.iter_mut().find(|(_, key, _)| *key == loan.key) {
                Some((_, _, numbers)) => numbers.push(loan.number),
                None => returns.push((loan.core, loan.key, vec![loan.number])),
            }
        }
        for (core, key, numbers) in returns {
            let message = ToCore::Returned { key, numbers };
            if core == self.index { self.handle(message) } else { self.peers[core.0].send(message) }
        }
    }
}

/// How many of the first of `parcels` are of the same one's.
fn same_owner(parcels: &[Parcel]) -> usize {
    let of = parcels.first().map(|first| first.whose);
    parcels.iter().take_while(|parcel| Some(parcel.whose) == of).count()
}
