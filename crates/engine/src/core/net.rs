//! What a core does with frames.

use std::sync::Arc;

use softdpu_sched::{Nanos, TenantScheduler, Work};
use softdpu_sys::clock;
use softdpu_sys::port::{Frame, MAX_FRAME, PortError, VnetHeader};
use softdpu_vpc::packet::segment::{Segmenter, WriteError};
use softdpu_vpc::{Checksum, DropReason, Head, Packet, PortId, Reply, Tail, Verdict};

use super::capture::Fate;
use super::{Core, Cut, here};
use crate::message::{CoreIndex, FromCore, QueueKey, ToCore};
use crate::net::{
    BURST, Held, Injection, Lent, Loan, NoFrame, Parcel, ParcelTail, Port, Receiver, Refused, Run, Source, Transmit,
    Whose, deliver, deliver_run, left_to_do, prefetch, socket_header, tail_offset,
};
use crate::queue::{Role, RunningQueue};

/// Where a frame goes.
#[derive(Clone, Copy)]
struct Target {
    port: PortId,
    hash: u32,
    /// Bytes of outer headers.
    overhead: u16,
}

/// A port that has no room: the frame is to be tried again.
struct NoRoom(PortId);

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

/// Frames from other cores that are passed on between two looks at the clock, unless each takes long by itself.
const PIECE: usize = 8;
/// What frames from other cores may take of a round, nanoseconds: as long as a grant is meant to take.
pub(super) const ARRIVED_NS: u64 = 8_000;
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
        let Some(queue) = self.queues[number as usize].as_deref_mut() else { return (0, 0) };
        if let Role::Transmit(Transmit { held: Some(held), .. }) = &mut queue.spec.role {
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
        let is_broken = |core: &Self| core.queues[number as usize].as_deref().is_none_or(RunningQueue::is_broken);
        let full = if self.urgent.is_empty() { BURST } else { SMALL_BURST };
        let mut most = transmit.burst.min(full);
        let started = clock::now();
        let mut lookout = self.lookout(started);
        while done < units && held.is_none() && !is_broken(self) {
            if done > 0 {
                let now = clock::now();
                if self.turns_are_timed && now.saturating_sub(started) > LONG_NS {
                    self.cut = Cut::Late;
                    break;
                }
                if self.is_called(tenant) || self.is_awaited(number, tenant, &mut lookout, now) {
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
        let queue = self.queues[number as usize].as_deref_mut().filter(|queue| !queue.is_broken());
        let Some(queue) = queue else {
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
        if !queue.touched && !queue.finished.is_empty() {
            queue.touched = true;
            self.touched.push(number);
        }
        std::mem::swap(&mut self.batch, &mut queue.waiting);
        if queue.outlived_its_view && queue.waiting.is_empty() {
            queue.outlived_its_view = false;
            queue.waiting.release();
        }
        if let Role::Transmit(transmit) = &mut queue.spec.role {
            transmit.held = held.map(|by| Held { by, units: (units - done) as u32 });
            transmit.burst = most;
            transmit.took(frames, bytes);
        }
        (done, bytes)
    }

    /// Takes a burst through the VPC, each of whose chains may be lent, the first as `loan`. Returns how many chains are done with,
    /// the bytes and frames they carried, and the port that has no room for the one after them.
    fn burst(&mut self, number: u32, chains: &[softdpu_ring::Chain], loan: Loan) -> (usize, u64, u64, Option<PortId>) {
        let mut packets = std::mem::take(&mut self.net.packets);
        let mut verdicts = std::mem::take(&mut self.net.verdicts);
        let mut read = Read::default();
        let mut sender = None;
        if let Some(queue) = self.queues[number as usize].as_deref()
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
        if let Some(queue) = self.queues[number as usize].as_deref() {
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

    /// Delivers the first so many frames, returns how many, which go to the only receive queue of one port, on this core, and with
    /// which nothing else is to be done than to deliver them.
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
        let Some(queue) = here(&mut self.queues, key).filter(|queue| queue.takes_work()) else { return 0 };
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
            if !queue.touched {
                queue.touched = true;
                self.touched.push(key.number);
            }
            self.delivered(port, run);
        }
        run.frames
    }

    fn delivered(&mut self, to: PortId, run: Run) {
        if let Some(port) = self.net.port(to) {
            port.patience.took();
            port.counters.frames_out.add(run.frames as u64);
            port.counters.bytes_out.add(run.bytes);
            port.counters.copied.add(run.bytes);
            port.counters.copied_heads.add(run.bytes - run.tails);
        }
    }

    fn count_in(&mut self, from: PortId, len: usize) {
        if let Some(port) = self.net.port(from) {
            port.counters.frames_in.add(1);
            port.counters.bytes_in.add(len as u64);
        }
    }

    /// Does what was decided about a frame.
    fn dispatch(
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
    fn drop_out(&mut self, port: PortId, packet: &Packet, reason: DropReason) {
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

    /// Sends what the software tier wants sent because of a frame `from` a port, or of itself.
    fn send_replies(&mut self, mut replies: Vec<Reply>, from: Option<PortId>) {
        for reply in replies.drain(..) {
            let target = Target { port: reply.port, hash: 0, overhead: 0 };
            let (packet, rest) = as_it_is(&reply.frame, from.unwrap_or(reply.port));
            // What goes to another is forwarded, in fragments; what goes back is the network's own word.
            if from.is_some_and(|from| from != reply.port) && !self.net.may_leave(reply.port, &packet) {
                self.drop_in(&packet, DropReason::Firewall);
                continue;
            }
            // A reply that finds no room is asked for again.
            let _ = self.send(target, &packet, Source::Bytes(rest), false);
            self.net.depart_reply(reply.port, &packet, rest);
        }
        self.net.replies = replies;
    }

    /// Sends a frame by a port, wherever that is.
    fn send(&mut self, target: Target, packet: &Packet, source: Source<'_>, may_hold: bool) -> Result<(), NoRoom> {
        let Some(port) = self.net.port(target.port) else {
            self.drop_in(packet, DropReason::PortDown);
            return Ok(());
        };
        if let Some(owner) = port.owner {
            if owner != self.index {
                self.send_away_frame(owner, target, packet, source);
            } else if port.socket.is_some() {
                self.send_to_socket(target, packet, source);
            } else {
                // It is being read just now: later in this round.
                self.send_away_frame(owner, target, packet, source);
            }
            return Ok(());
        }
        if port.receivers.is_empty() {
            self.drop_out(target.port, packet, DropReason::PortDown);
            return Ok(());
        }
        let receiver = port.receivers[target.hash as usize % port.receivers.len()];
        if receiver.core != self.index {
            self.send_away_frame(receiver.core, target, packet, source);
            return Ok(());
        }
        self.send_to_guest(target.port, receiver.key, packet, source, may_hold)
    }

    fn send_to_guest(
        &mut self,
        to: PortId,
        key: QueueKey,
        packet: &Packet,
        source: Source<'_>,
        may_hold: bool,
    ) -> Result<(), NoRoom> {
        let Some(queue) = here(&mut self.queues, key).filter(|queue| queue.takes_work()) else {
            self.drop_out(to, packet, DropReason::PortDown);
            return Ok(());
        };
        let bytes = packet.len() as u64;
        match deliver(queue, packet, source) {
            Ok(()) => {
                queue.spec.counters.count_frames(1, bytes);
                if !queue.touched {
                    queue.touched = true;
                    self.touched.push(key.number);
                }
                self.delivered(to, Run { frames: 1, bytes, tails: packet.tail.into() });
                Ok(())
            }
            Err(Refused::Unfinished) => {
                self.cut_up_for_guest(to, key, packet, source);
                Ok(())
            }
            Err(Refused::NoBuffer) => {
                let Some(port) = self.net.port(to) else { return Ok(()) };
                if may_hold && port.patience.hold(Nanos(clock::now())) {
                    port.counters.held.add(1);
                    return Err(NoRoom(to));
                }
                if let Some(queue) = here(&mut self.queues, key) {
                    queue.spec.counters.dropped.add(1);
                }
                self.drop_out(to, packet, DropReason::NoBuffer);
                Ok(())
            }
            Err(Refused::Drop(reason)) => {
                self.drop_out(to, packet, reason);
                Ok(())
            }
            Err(Refused::Broken(reason)) => {
                self.break_queue(key.number, reason);
                self.drop_out(to, packet, DropReason::PortDown);
                Ok(())
            }
        }
    }

    /// A driver that takes no unfinished frames gets finished ones.
    fn cut_up_for_guest(&mut self, to: PortId, key: QueueKey, packet: &Packet, source: Source<'_>) {
        let segmenter = match Segmenter::new(packet, 0, MAX_FRAME) {
            Ok(segmenter) => segmenter,
            Err(reason) => return self.drop_in(packet, reason),
        };
        self.net.note(packet, Fate::CutUp);
        let mut segment = std::mem::take(&mut self.net.segment);
        for index in 0..segmenter.segments() {
            let has_room = here(&mut self.queues, key).is_some_and(|queue| queue.takes_work() && queue.has_room());
            if !has_room {
                // Nor is there for those behind it: nothing is given back meanwhile.
                self.drop_out(to, packet, DropReason::NoBuffer);
                break;
            }
            segment.resize(segmenter.len(index), 0);
            if let Err(error) = segmenter.write(index, &source, &mut segment) {
                self.drop_in(packet, not_written(error));
                break;
            }
            if let Some(port) = self.net.port(to) {
                port.counters.copied_again.add(segment.len() as u64);
            }
            let (finished, rest) = as_it_is(&segment, packet.port);
            let finished = Packet { checksum: Checksum::Valid, ..finished };
            let _ = self.send_to_guest(to, key, &finished, Source::Bytes(rest), false);
            self.net.inherit(packet, &finished);
        }
        self.net.segment = segment;
    }

    /// Writes a frame into a socket's memory: whole where its reader takes it so, otherwise cut up and finished.
    fn send_to_socket(&mut self, target: Target, packet: &Packet, source: Source<'_>) {
        let Some(Port { socket: Some(socket), counters, .. }) = self.net.port(target.port) else { return };
        let mut no_room = 0;
        let mut write = |header: VnetHeader, len: usize, fill: &mut dyn FnMut(&mut [u8]) -> Result<(), DropReason>| {
            let Some(room) = socket.reserve(len) else {
                no_room += 1;
                return Ok(());
            };
            fill(room)?;
            socket.commit(header, len);
            counters.frames_out.add(1);
            counters.bytes_out.add(len as u64);
            counters.copied.add(len as u64);
            Ok(())
        };
        counters.copied_heads.add(packet.head.len() as u64);
        let written = if target.overhead == 0 {
            write(socket_header(packet), packet.len(), &mut |room| gather(packet, source, room))
        } else {
            Segmenter::new(packet, target.overhead.into(), MAX_FRAME).and_then(|segmenter| {
                (0..segmenter.segments()).try_for_each(|index| {
                    write(VnetHeader::default(), segmenter.len(index), &mut |room| {
                        segmenter.write(index, &source, room).map_err(not_written)
                    })
                })
            })
        };
        for _ in 0..no_room {
            self.drop_out(target.port, packet, DropReason::NoBuffer);
        }
        if let Err(reason) = written {
            self.drop_in(packet, reason);
        }
    }

    /// A frame for a port of another core, or for one that is being read just now.
    fn send_away_frame(&mut self, core: CoreIndex, target: Target, packet: &Packet, source: Source<'_>) {
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

    /// The bytes behind a frame's head as they lie in the sender's memory, if its chain can be lent to `core`. A parcel to this core
    /// itself cannot: whoever ends the queue asks other cores only.
    fn lend(&mut self, core: CoreIndex, packet: &Packet, source: Source<'_>) -> Option<ParcelTail> {
        let (Source::Guest(buffer, offset), Some(loan)) = (source, self.net.loan) else { return None };
        if packet.tail == 0 || core == self.index {
            return None;
        }
        let Role::Transmit(transmit) = &mut here(&mut self.queues, loan.key)?.spec.role else { return None };
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

    /// Passes frames from other cores on, until there are no more or they have taken long since `now`. Whether there are no more.
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
            if self.turns_are_timed && clock::now().saturating_sub(now) > ARRIVED_NS {
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

    /// Reads the sockets that this core owns. Whether there was anything.
    pub(super) fn read_sockets(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.net.sockets.len() {
            // One that fails may have been put away.
            let Some(id) = self.net.sockets.get(at).copied() else { break };
            let Some(mut socket) = self.net.port(id).and_then(|port| port.socket.take()) else { continue };
            let received = socket.receive(BURST, |frames| self.socket_frames(id, frames));
            if let Some(port) = self.net.port(id) {
                port.socket = Some(socket);
            }
            match received {
                Ok(count) => any |= count > 0,
                Err(error) => self.socket_failed(id, &error),
            }
        }
        any
    }

    /// Takes frames that somebody brings as though the port had. A guest's are not held back: what has no room is dropped.
    pub(super) fn inject(&mut self, injection: Injection) {
        let Injection { port, mut frames, shared } = injection;
        let is_there = self.net.port(port).is_some_and(|known| *known.name == *shared.name);
        if is_there {
            for burst in frames.chunks_mut(BURST) {
                let mut burst: Vec<Frame<'_>> =
                    burst.iter_mut().map(|bytes| Frame { header: VnetHeader::default(), bytes }).collect();
                self.socket_frames(port, &mut burst);
            }
        }
        shared.took(is_there.then_some(frames.len()));
    }

    fn socket_failed(&mut self, id: PortId, error: &PortError) {
        if error.is_final() {
            // Polled on, it is ready for ever.
            self.set_socket(id, None, None);
            return self.control.send(FromCore::SocketLost { port: id, reason: error.to_string() });
        }
        if let Some(port) = self.net.port(id)
            && !std::mem::replace(&mut port.complained, true)
        {
            tracing::warn!(port = %port.name, %error, "its socket fails; this is said once");
        }
    }

    /// Takes frames of a socket through the VPC.
    fn socket_frames(&mut self, id: PortId, frames: &mut [Frame<'_>]) {
        let mut packets = std::mem::take(&mut self.net.packets);
        let mut rests: [&[u8]; BURST] = [&[]; BURST];
        let mut count = 0;
        let limit = self.net.port(id).and_then(|port| port.limit.clone());
        for frame in frames.iter().take(BURST) {
            if let Some(limit) = &limit {
                if limit.room(Nanos(clock::now())) == 0 {
                    self.net.refuse(id, DropReason::Policed, Source::Bytes(frame.bytes), frame.bytes.len());
                    continue;
                }
                let stands_for = match usize::from(frame.header.gso_size) {
                    0 => 1,
                    size => frame.bytes.len().div_ceil(size),
                };
                limit.take(stands_for as u64, frame.bytes.len() as u64);
            }
            let Some((checksum, segmentation)) = left_to_do(&frame.header, frame.bytes.len()) else {
                self.net.refuse(id, DropReason::BadOffload, Source::Bytes(frame.bytes), frame.bytes.len());
                continue;
            };
            let packet = &mut packets[count];
            packet.head.reset(frame.bytes.len());
            let (head, rest) = frame.bytes.split_at(packet.head.len());
            packet.head.bytes_mut().copy_from_slice(head);
            (packet.tail, packet.port) = (rest.len() as u32, id);
            (packet.checksum, packet.segmentation) = (checksum, segmentation);
            rests[count] = rest;
            count += 1;
            self.count_in(id, frame.bytes.len());
        }
        if self.net.steer.lets_all_stay() {
            return self.take_through(packets, count, &rests);
        }
        count = self.hand_on(id, &mut packets, &mut rests, count);
        let began = clock::now();
        self.take_through(packets, count, &rests);
        self.counters.steering.worked_ns.add(clock::now().saturating_sub(began));
    }

    /// Takes the first `count` frames through the VPC, behind whose heads are `rests`. They are of one port, and nobody waits for what
    /// has no room.
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

    /// Hands everything that was written to sockets in this round to the kernel.
    pub(super) fn flush_sockets(&mut self) {
        for at in 0..self.net.sockets.len() {
            let Some(id) = self.net.sockets.get(at).copied() else { break };
            let Some(Port { socket: Some(socket), counters, .. }) = self.net.port(id) else { continue };
            let flushed = socket.flush();
            let dropped = socket.take_dropped();
            if dropped > 0 {
                counters.dropped_out[DropReason::Backend as usize].add(dropped);
            }
            if let Err(error) = flushed {
                self.socket_failed(id, &error);
            }
        }
    }

    /// Lets a transmit queue go on that was held for a receiver's room, if there is room or patience is over.
    pub(super) fn release_held(&mut self, number: u32, now: Nanos) {
        let Some(queue) = self.queues[number as usize].as_deref_mut() else { return };
        let id = queue.id();
        let Role::Transmit(transmit) = &mut queue.spec.role else { return };
        let Some(Held { by, units }) = transmit.held else { return };
        let receivers = self.net.port(by).map(|port| Arc::clone(&port.receivers)).unwrap_or_default();
        let room = receivers.is_empty()
            || receivers.iter().any(|receiver| {
                here(&mut self.queues, receiver.key).is_none_or(|queue| !queue.takes_work() || queue.has_room())
            });
        if !room && self.net.port(by).is_some_and(|port| port.patience.hold(now)) {
            return;
        }
        if let Some(queue) = self.queues[number as usize].as_deref_mut()
            && let Role::Transmit(transmit) = &mut queue.spec.role
        {
            transmit.held = None;
            self.scheduler.ready(now, id, Work { units, bytes: 0 });
        }
    }
}

/// A finished frame in memory of this process: its packet, and the bytes behind the head.
pub(super) fn as_it_is(frame: &[u8], port: PortId) -> (Packet, &[u8]) {
    let head = Head::of(frame);
    let rest = &frame[head.len()..];
    (Packet { head, tail: rest.len() as u32, checksum: Checksum::Complete, segmentation: None, port }, rest)
}

/// A frame whose sender said that it was longer than it is.
fn not_written(error: WriteError) -> DropReason {
    match error {
        WriteError::Tail(_) => DropReason::Truncated,
        WriteError::Index { .. } | WriteError::Room { .. } => DropReason::Malformed,
    }
}

/// Writes the frame as a whole into `to`, which is as long.
fn gather(packet: &Packet, source: Source<'_>, to: &mut [u8]) -> Result<(), DropReason> {
    let (head, tail) = to.split_at_mut(packet.head.len());
    head.copy_from_slice(packet.head.bytes());
    source.read(0, tail).map_err(|_| DropReason::Truncated)
}

/// How many of the first of `parcels` are of the same one's.
fn same_owner(parcels: &[Parcel]) -> usize {
    let of = parcels.first().map(|first| first.whose);
    parcels.iter().take_while(|parcel| Some(parcel.whose) == of).count()
}
