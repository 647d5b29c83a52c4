//! What a core does with frames.

use std::sync::Arc;

use softdpu_sched::{Nanos, PreemptReason, TenantScheduler, Work};
use softdpu_sys::clock;
use softdpu_sys::port::MAX_FRAME;
use softdpu_vpc::{DropReason, Packet, PortId, Verdict};

use super::Core;
use super::capture::Fate;
use super::send::{NoRoom, Target, gather};
use crate::net::{Port, Receiver, Run, Source, deliver_run};
use crate::queue::{BURST, Backpressure, Loan, NoFrame, Role, RunningQueue, Transmit, prefetch, tail_offset};

/// A burst of frames that was read.
#[derive(Default)]
struct Read {
    count: usize,
    /// Chains that were read.
    chains: usize,
    /// By frame: which chain it is in, and the bytes of its head.
    origins: [u8; BURST],
    heads: [u8; BURST],
    /// Chains that are no frames.
    refused: Vec<(u8, DropReason)>,
    /// What the driver did wrong in the chain behind the last that was read.
    broken: Option<String>,
}

/// Segments that a burst's frames stand for, all together, about: those that are to be cut up come in shorter bursts.
const SEGMENTS: usize = 256;
/// A grant that has taken this long ends with the burst, nanoseconds.
const LONG_NS: u64 = 50_000;

/// Frames of a burst where somebody may come whose work does not wait for a whole one.
const SMALL_BURST: usize = 8;

impl Read {
    /// Copies the heads of the frames in `chains`, of which there are at most [`BURST`], to `packets`.
    // On its own: a loop that has the processor's registers for itself.
    #[inline(never)]
    fn frames(&mut self, transmit: &Transmit, chains: &[softdpu_ring::Chain], packets: &mut [Packet]) {
        chains.iter().for_each(prefetch);
        let (mut count, mut segments) = (0, 0);
        self.chains = chains.len();
        for (index, chain) in chains.iter().enumerate() {
            let (Some(packet), Some(origin), Some(head)) =
                (packets.get_mut(count), self.origins.get_mut(count), self.heads.get_mut(count))
            else {
                break;
            };
            match transmit.read(chain, packet) {
                Ok(()) => {
                    *origin = index as u8;
                    *head = packet.head.len() as u8;
                    count += 1;
                    if let Some(segmentation) = packet.segmentation {
                        segments += packet.len() / usize::from(segmentation.size.max(1));
                        if segments >= SEGMENTS {
                            self.chains = index + 1;
                            break;
                        }
                    }
                }
                Err(NoFrame::Drop(reason)) => self.refused.push((index as u8, reason)),
                Err(NoFrame::Broken(reason)) => {
                    self.broken = Some(reason);
                    break;
                }
            }
        }
        self.count = count;
    }
}

impl<S: TenantScheduler> Core<S> {
    /// Sends up to `units` frames that wait in a transmit queue's channel. Returns how many went, and their bytes.
    pub(super) fn transmit(&mut self, number: u32, units: usize) -> (usize, u64) {
        let Some(queue) = self.queues.get_mut(number) else { return (0, 0) };
        if let Role::Transmit(Transmit { backpressure: Some(held), .. }) = &mut queue.spec.role {
            // By a grant before this one: what this one is for waits with the rest.
            held.units += units as u32;
            return (0, 0);
        }
        let units = units.min(queue.waiting.len());
        let tenant = queue.spec.tenant;
        std::mem::swap(&mut self.batch, &mut queue.waiting);
        let batch = std::mem::take(&mut self.batch);
        let Role::Transmit(transmit) = &queue.spec.role else { return (0, 0) };
        let numbers = transmit.loans.next();
        let key = queue.key;
        let (mut done, mut bytes, mut frames) = (0, 0, 0);
        let mut held = None;
        let is_broken = |core: &Self| core.queues.get(number).is_none_or(RunningQueue::is_broken);
        let full = if self.urgent.is_empty() { BURST } else { SMALL_BURST };
        let mut most = transmit.burst.min(full);
        let started = clock::now();
        let mut tick = self.dispatcher.tick(Nanos(started));
        while done < units && held.is_none() && !is_broken(self) {
            if done > 0 {
                let now = clock::now();
                if self.dispatcher.is_timed() && now.saturating_sub(started) > LONG_NS {
                    self.dispatcher.preempt(PreemptReason::Slice);
                    break;
                }
                if self.preempt_at_wakeup() || self.preempt_at_tick(number, &mut tick, now) {
                    break;
                }
            }
            let burst = &batch[done..units.min(done + most)];
            let loan = Loan { core: self.index, key, number: numbers + done as u64 };
            let (went, went_bytes, went_frames, no_room) = self.burst(number, burst, loan);
            done += went;
            bytes += went_bytes;
            frames += went_frames;
            most = if no_room.is_some() { 1 } else { (2 * most).min(full) };
            held = no_room;
        }
        self.batch = batch;
        let queue = self.queues.get_to_finish(number).filter(|(queue, _)| !queue.is_broken());
        let Some((queue, unpublished)) = queue else {
            // Whoever broke it saw an empty queue: everything that waited is here.
            self.channels.leave(tenant, self.batch.len() as u32);
            self.batch.clear();
            self.batch.release();
            return (done, bytes);
        };
        self.channels.leave(tenant, done as u32);
        let used = self.batch.take(done).iter().map(|chain| chain.used(0));
        match &mut queue.spec.role {
            Role::Transmit(transmit) if !transmit.loans.is_settled() => {
                transmit.loans.settle(used, &mut queue.finished);
            }
            _ => queue.finished.extend(used),
        }
        if !queue.finished.is_empty() {
            unpublished.add(queue);
        }
        std::mem::swap(&mut self.batch, &mut queue.waiting);
        queue.release_old_view();
        if let Role::Transmit(transmit) = &mut queue.spec.role {
            transmit.backpressure = held.map(|port| Backpressure { port, units: (units - done) as u32 });
            transmit.burst = most;
            transmit.sent(frames, bytes);
        }
        (done, bytes)
    }

    /// Takes a burst through the VPC, each of whose chains may be lent, the first as `loan`. Returns how many chains
    /// are done with, the bytes and frames they carried, and the port that has no room for the one after them.
    fn burst(&mut self, number: u32, chains: &[softdpu_ring::Chain], loan: Loan) -> (usize, u64, u64, Option<PortId>) {
        let mut packets = std::mem::take(&mut self.net.packets);
        let mut verdicts = std::mem::take(&mut self.net.verdicts);
        let mut read = Read::default();
        let mut sender = None;
        if let Some(queue) = self.queues.get(number)
            && let Role::Transmit(transmit) = &queue.spec.role
        {
            sender = Some(transmit.port);
            read.frames(transmit, chains, &mut packets);
        }
        let Read { count, chains: taken, origins, heads, refused, broken } = read;
        let chains = &chains[..taken.min(chains.len())];
        verdicts.clear();
        let source = |at: usize| {
            let chain = &chains[usize::from(origins[at])];
            Source::Guest(&chain.buffer, tail_offset(heads[at].into()))
        };
        self.net.arrive(&packets[..count], source);
        self.net.forward(&mut packets[..count], &mut verdicts);
        let (mut done, mut bytes, mut frames, mut went) = (chains.len(), 0, 0, 0);
        let mut no_room = None;
        let mut passed = count;
        let mut at = 0;
        while at < count {
            let run = self.deliver_run(&mut packets[at..count], &verdicts[at..], |index| source(at + index));
            for (packet, head) in packets[at..][..run].iter().zip(&heads[at..]) {
                bytes += u64::from(*head) + u64::from(packet.tail);
            }
            frames += run as u64;
            went += run as u64;
            at += run;
            let (Some(packet), Some(verdict)) = (packets[..count].get(at), verdicts.get(at)) else { break };
            let len = usize::from(heads[at]) + packet.tail as usize;
            self.net.loan = Some(Loan { number: loan.number + u64::from(origins[at]), ..loan });
            let dispatched = self.dispatch(packet, *verdict, source(at), true);
            self.net.loan = None;
            if let Err(NoRoom(by)) = dispatched {
                (done, passed) = (usize::from(origins[at]), at);
                no_room = Some(by);
                break;
            }
            bytes += len as u64;
            frames += packet.segmentation.map_or(1, |s| len.div_ceil(usize::from(s.size)) as u64);
            went += 1;
            at += 1;
        }
        if let Some(port) = packets[..count].first().and_then(|packet| self.net.port(packet.port)) {
            port.counters.frames_in.add(went);
            port.counters.bytes_in.add(bytes);
        }
        if let Some(queue) = self.queues.get(number) {
            let refused = refused.iter().filter(|(index, _)| usize::from(*index) < done).count();
            queue.spec.counters.count_frames(went, bytes);
            queue.spec.counters.dropped.add(refused as u64);
        }
        self.net.settle_functions(&packets[..count], passed);
        self.net.depart(&packets[..passed], &verdicts, source);
        self.net.packets = packets;
        self.net.verdicts = verdicts;
        // Those behind a frame that is held come again with it.
        for (index, reason) in refused.into_iter().filter(|(index, _)| usize::from(*index) < done) {
            let (Some(port), Some(chain)) = (sender, chains.get(usize::from(index))) else { continue };
            let source = Source::Guest(&chain.buffer, tail_offset(0));
            let readable = chain.buffer.len_of(0..chain.readable);
            let len = readable.saturating_sub(tail_offset(0)).min(MAX_FRAME as u64) as usize;
            self.net.refuse(port, reason, source, len);
        }
        if let Some(reason) = broken {
            self.break_queue(number, reason);
        }
        (done, bytes, frames, no_room)
    }

    /// Delivers the first so many frames, returns how many, which go to the only receive queue of one port, on this
    /// core, and with which nothing else is to be done than to deliver them.
    #[inline]
    fn deliver_run<'a>(
        &mut self,
        packets: &mut [Packet],
        verdicts: &[Verdict],
        source: impl Fn(usize) -> Source<'a>,
    ) -> usize {
        let Some(Verdict::Local { port, .. }) = verdicts.first().copied() else { return 0 };
        let key = match self.net.port(port) {
            Some(Port { owner: None, receivers, .. }) => match receivers[..] {
                [Receiver { core, key }] if core == self.index => key,
                _ => return 0,
            },
            _ => return 0,
        };
        let found = self.queues.find_to_finish(key).filter(|(queue, _)| queue.is_active());
        let Some((queue, unpublished)) = found else { return 0 };
        let same = |verdict: &&Verdict| matches!(verdict, Verdict::Local { port: to, .. } if *to == port);
        let together = verdicts.iter().take_while(same).count();
        let run = match deliver_run(queue, packets.get_mut(..together).unwrap_or_default(), source) {
            Ok(run) => run,
            Err(error) => {
                self.break_queue(key.number, error.to_string());
                return 0;
            }
        };
        if run.frames > 0 {
            queue.spec.counters.count_frames(run.frames as u64, run.bytes);
            unpublished.add(queue);
            self.delivered(port, run);
        }
        run.frames
    }

    pub(super) fn delivered(&mut self, to: PortId, run: Run) {
        if let Some(port) = self.net.port(to) {
            port.patience.took();
            port.counters.frames_out.add(run.frames as u64);
            port.counters.bytes_out.add(run.bytes);
            port.counters.copied.add(run.bytes);
            port.counters.copied_heads.add(run.bytes - run.tails);
        }
    }

    pub(super) fn count_in(&mut self, from: PortId, len: usize) {
        if let Some(port) = self.net.port(from) {
            port.counters.frames_in.add(1);
            port.counters.bytes_in.add(len as u64);
        }
    }

    /// Does what was decided about a frame.
    pub(super) fn dispatch(
        &mut self,
        packet: &Packet,
        verdict: Verdict,
        source: Source<'_>,
        may_hold: bool,
    ) -> Result<(), NoRoom> {
        match verdict {
            Verdict::Local { port, hash } => self.send(Target { port, hash, overhead: 0 }, packet, source, may_hold),
            Verdict::Underlay { port, hash, overhead } => {
                self.send(Target { port, hash, overhead }, packet, source, may_hold)
            }
            Verdict::Software => {
                self.software(packet, source);
                Ok(())
            }
            Verdict::Consumed => Ok(()),
            Verdict::Drop(reason) => {
                self.drop_in(packet, reason);
                Ok(())
            }
        }
    }

    /// The frame is dropped before it comes to a port that it could leave by.
    pub(super) fn drop_in(&mut self, packet: &Packet, reason: DropReason) {
        if let Some(port) = self.net.port(packet.port) {
            port.counters.drop_in(reason);
        }
        self.net.note(packet, Fate::DroppedIn(reason));
    }

    /// The frame is dropped at the port by which it was to leave.
    pub(super) fn drop_out(&mut self, port: PortId, packet: &Packet, reason: DropReason) {
        if let Some(port) = self.net.port(port) {
            port.counters.drop_out(reason);
        }
        self.net.note(packet, Fate::DroppedOut(reason));
    }

    /// Shows a whole frame to the software tier and sends what it wants sent.
    fn software(&mut self, packet: &Packet, source: Source<'_>) {
        let mut whole = std::mem::take(&mut self.net.whole);
        let mut replies = std::mem::take(&mut self.net.replies);
        let from = packet.port;
        whole.resize(packet.len(), 0);
        if gather(packet, source, &mut whole).is_ok() {
            if let Some(port) = self.net.port(from) {
                port.counters.software.add(1);
            }
            let verdict = self.net.vpc.software(from, &whole, packet.checksum, packet.segmentation, &mut replies);
            self.net.served(packet, &verdict, &replies);
            if let Verdict::Drop(reason) = verdict {
                self.drop_in(packet, reason);
            }
        } else {
            self.drop_in(packet, DropReason::Truncated);
        }
        self.send_replies(replies, Some(from));
        self.net.whole = whole;
    }

    /// What is due in the network without a frame: functions turn, guests are told of their router.
    pub(super) fn advertise(&mut self, now: u64) {
        self.net.turn_functions(now);
        let mut replies = std::mem::take(&mut self.net.replies);
        let (ports, index) = (&self.net.ports, self.index);
        let port = |PortId(id): PortId| ports.get(id as usize).and_then(Option::as_ref);
        self.net.vpc.advertise(now, |id| port(id).is_some_and(|port| port.is_up_at(index)), &mut replies);
        let any = !replies.is_empty();
        self.send_replies(replies, None);
        if any {
            self.net.send_captured();
        }
    }

    /// Tells a port's network that its endpoint is here.
    pub(super) fn announce(&mut self, port: PortId) {
        let mut replies = std::mem::take(&mut self.net.replies);
        self.net.vpc.announce(clock::now(), port, &mut replies);
        self.send_replies(replies, None);
        self.net.send_captured();
    }

    /// Takes the first `count` frames through the VPC, behind whose heads are `rests`. They are of one port, and nobody
    /// waits for what has no room.
    #[inline]
    pub(super) fn take_through(&mut self, mut packets: Vec<Packet>, count: usize, rests: &[&[u8]; BURST]) {
        let mut verdicts = std::mem::take(&mut self.net.verdicts);
        verdicts.clear();
        let source = |at: usize| Source::Bytes(rests[at]);
        self.net.arrive(&packets[..count], source);
        self.net.forward(&mut packets[..count], &mut verdicts);
        for (at, (packet, verdict)) in packets[..count].iter().zip(&verdicts).enumerate() {
            let _ = self.dispatch(packet, *verdict, source(at), false);
        }
        self.net.settle_functions(&packets[..count], count);
        self.net.depart(&packets[..count], &verdicts, source);
        self.net.packets = packets;
        self.net.verdicts = verdicts;
    }

    /// Lets a transmit queue go on that was held for a receiver's room, if there is room or patience is over.
    pub(super) fn release_held(&mut self, number: u32, now: Nanos) {
        let Some(queue) = self.queues.get_mut(number) else { return };
        let id = queue.id();
        let Role::Transmit(transmit) = &mut queue.spec.role else { return };
        let Some(Backpressure { port, units }) = transmit.backpressure else { return };
        let receivers = self.net.port(port).map(|port| Arc::clone(&port.receivers)).unwrap_or_default();
        let room = receivers.is_empty()
            || receivers.iter().any(|receiver| {
                self.queues.find(receiver.key).is_none_or(|queue| !queue.is_active() || queue.has_buffer())
            });
        if !room && self.net.port(port).is_some_and(|port| port.patience.hold(now)) {
            return;
        }
        if let Some(queue) = self.queues.get_mut(number)
            && let Role::Transmit(transmit) = &mut queue.spec.role
        {
            transmit.backpressure = None;
            self.dispatcher.ready(now, id, Work { units, bytes: 0 });
        }
    }
}
