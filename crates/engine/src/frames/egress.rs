//! How a frame leaves by a port.

use softdpu_sched::Nanos;
use softdpu_sys::clock;
use softdpu_sys::port::{MAX_FRAME, VnetHeader};
use softdpu_vpc::packet::segment::{Segmenter, WriteError};
use softdpu_vpc::{Checksum, DropReason, Packet, PortId, Reply, Verdict};

use super::Forwarder;
use crate::ids::QueueKey;
use crate::net::{
    DeliveredRun, DeliveryError, FrameOutcome, FrameTail, Port, deliver, finished_frame, gather, socket_header,
};
use crate::queue::{QueueTable, RateLimit};

/// The egress that a frame's verdict names.
#[derive(Clone, Copy)]
pub(super) struct Egress {
    pub port: PortId,
    pub hash: u32,
    /// Bytes of outer headers.
    pub overhead: u16,
}

/// The port has no buffer for the frame, which is to be tried again.
pub(super) struct Backpressured(pub PortId);

impl Forwarder {
    /// Sends a frame by a port, wherever that is.
    pub(super) fn send(
        &mut self,
        queues: &mut QueueTable,
        egress: Egress,
        packet: &Packet,
        tail: FrameTail<'_>,
        may_hold: bool,
    ) -> Result<(), Backpressured> {
        let Some(port) = self.ports.get_mut(egress.port) else {
            self.drop_in(packet, DropReason::PortDown);
            return Ok(());
        };
        if let Some(owner) = port.owner {
            if owner != self.links.index {
                self.hand_off(queues, owner, egress, packet, tail);
            } else if port.socket.is_some() {
                self.send_to_socket(egress, packet, tail);
            } else {
                // It is being read just now: later in this round.
                self.hand_off(queues, owner, egress, packet, tail);
            }
            return Ok(());
        }
        if port.receivers.is_empty() {
            self.drop_out(egress.port, packet, DropReason::PortDown);
            return Ok(());
        }
        let receiver = port.receivers[egress.hash as usize % port.receivers.len()];
        if receiver.core != self.links.index {
            self.hand_off(queues, receiver.core, egress, packet, tail);
            return Ok(());
        }
        self.send_to_guest(queues, egress.port, receiver.key, packet, tail, may_hold)
    }

    /// Sends a frame by a port that receives no more than `limit`.
    #[inline(never)]
    pub(super) fn send_within(
        &mut self,
        limit: &RateLimit,
        queues: &mut QueueTable,
        egress: Egress,
        packet: &Packet,
        tail: FrameTail<'_>,
        may_hold: bool,
    ) -> Result<(), Backpressured> {
        if limit.available(Nanos(clock::now())) == 0 {
            self.drop_out(egress.port, packet, DropReason::Policed);
            return Ok(());
        }
        self.send(queues, egress, packet, tail, may_hold)?;
        // One that is tried again has taken nothing yet.
        limit.take(packet.frames() as u64, packet.len() as u64);
        Ok(())
    }

    fn send_to_guest(
        &mut self,
        queues: &mut QueueTable,
        to: PortId,
        key: QueueKey,
        packet: &Packet,
        tail: FrameTail<'_>,
        may_hold: bool,
    ) -> Result<(), Backpressured> {
        let found = queues.find_to_finish(key).filter(|(queue, _)| queue.is_active());
        let Some((queue, unpublished)) = found else {
            self.drop_out(to, packet, DropReason::PortDown);
            return Ok(());
        };
        let bytes = packet.len() as u64;
        match deliver(queue, packet, tail) {
            Ok(()) => {
                queue.spec.counters.count_frames(1, bytes);
                unpublished.add(queue);
                self.delivered(to, DeliveredRun { frames: 1, bytes, tails: packet.tail.into() });
                Ok(())
            }
            Err(DeliveryError::Unfinished) => {
                self.segment_for_guest(queues, to, key, packet, tail);
                Ok(())
            }
            Err(DeliveryError::NoBuffer) => {
                let Some(port) = self.ports.get_mut(to) else { return Ok(()) };
                if may_hold && port.patience.hold(Nanos(clock::now())) {
                    port.counters.held.add(1);
                    return Err(Backpressured(to));
                }
                if let Some(queue) = queues.find(key) {
                    queue.spec.counters.dropped.add(1);
                }
                self.drop_out(to, packet, DropReason::NoBuffer);
                Ok(())
            }
            Err(DeliveryError::Drop(reason)) => {
                self.drop_out(to, packet, reason);
                Ok(())
            }
            Err(DeliveryError::Broken(reason)) => {
                queues.break_queue(key.number, reason);
                self.drop_out(to, packet, DropReason::PortDown);
                Ok(())
            }
        }
    }

    /// Finishes a frame for a driver that takes no unfinished ones: in segments, summed.
    fn segment_for_guest(
        &mut self,
        queues: &mut QueueTable,
        to: PortId,
        key: QueueKey,
        packet: &Packet,
        tail: FrameTail<'_>,
    ) {
        let segmenter = match Segmenter::new(packet, 0, MAX_FRAME) {
            Ok(segmenter) => segmenter,
            Err(reason) => return self.drop_in(packet, reason),
        };
        self.captures.note(packet, FrameOutcome::Segmented);
        let mut segment = std::mem::take(&mut self.segment);
        for index in 0..segmenter.segments() {
            let has_room = queues.find(key).is_some_and(|queue| queue.is_active() && queue.has_buffer());
            if !has_room {
                // Nor is there for those behind it: nothing is given back meanwhile.
                self.drop_out(to, packet, DropReason::NoBuffer);
                break;
            }
            segment.resize(segmenter.len(index), 0);
            if let Err(error) = segmenter.write(index, &tail, &mut segment) {
                self.drop_in(packet, not_written(error));
                break;
            }
            if let Some(port) = self.ports.get_mut(to) {
                port.counters.copied_again.add(segment.len() as u64);
            }
            let (finished, rest) = finished_frame(&segment, packet.port);
            let finished = Packet { checksum: Checksum::Valid, ..finished };
            let _ = self.send_to_guest(queues, to, key, &finished, FrameTail::Bytes(rest), false);
            self.captures.inherit(packet, &finished);
        }
        self.segment = segment;
    }

    /// Writes a frame into a socket's memory: whole where its reader takes it so, otherwise in segments, summed.
    fn send_to_socket(&mut self, egress: Egress, packet: &Packet, tail: FrameTail<'_>) {
        let Some(Port { socket: Some(socket), counters, .. }) = self.ports.get_mut(egress.port) else { return };
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
        let written = if egress.overhead == 0 {
            write(socket_header(packet), packet.len(), &mut |room| gather(packet, tail, room))
        } else {
            Segmenter::new(packet, egress.overhead.into(), MAX_FRAME).and_then(|segmenter| {
                (0..segmenter.segments()).try_for_each(|index| {
                    write(VnetHeader::default(), segmenter.len(index), &mut |room| {
                        segmenter.write(index, &tail, room).map_err(not_written)
                    })
                })
            })
        };
        for _ in 0..no_room {
            self.drop_out(egress.port, packet, DropReason::NoBuffer);
        }
        if let Err(reason) = written {
            self.drop_in(packet, reason);
        }
    }

    /// Takes a whole frame through the software tier, and sends its replies.
    pub(super) fn run_software_tier(&mut self, queues: &mut QueueTable, packet: &Packet, tail: FrameTail<'_>) {
        let mut whole = std::mem::take(&mut self.whole);
        let mut replies = std::mem::take(&mut self.replies);
        let from = packet.port;
        whole.resize(packet.len(), 0);
        if gather(packet, tail, &mut whole).is_ok() {
            if let Some(port) = self.ports.get(from) {
                port.counters.software.add(1);
            }
            let verdict = self.vpc.software(from, &whole, packet.checksum, packet.segmentation, &mut replies);
            self.captures.served(self.vpc.tables(), &self.ports, packet, &verdict, &replies);
            if let Verdict::Drop(reason) = verdict {
                self.drop_in(packet, reason);
            }
        } else {
            self.drop_in(packet, DropReason::Truncated);
        }
        self.send_replies(queues, replies, Some(from));
        self.whole = whole;
    }

    /// Sends replies of the software tier to a frame `from` a port, or what it sends unasked.
    pub(super) fn send_replies(&mut self, queues: &mut QueueTable, mut replies: Vec<Reply>, from: Option<PortId>) {
        for reply in replies.drain(..) {
            let egress = Egress { port: reply.port, hash: 0, overhead: 0 };
            let (packet, rest) = finished_frame(&reply.frame, from.unwrap_or(reply.port));
            // What goes to another is forwarded, in fragments; what goes back is the network's own reply.
            if from.is_some_and(|from| from != reply.port) && !self.functions.may_leave(reply.port, &packet) {
                self.drop_in(&packet, DropReason::Firewall);
                continue;
            }
            // A reply that finds no room is asked for again.
            let _ = self.send(queues, egress, &packet, FrameTail::Bytes(rest), false);
            self.captures.depart_reply(self.vpc.tables(), reply.port, &packet, rest);
        }
        self.replies = replies;
    }
}

/// The drop reason of a frame that could not be written.
fn not_written(error: WriteError) -> DropReason {
    match error {
        WriteError::Tail(_) => DropReason::Truncated,
        WriteError::Index { .. } | WriteError::NoRoom { .. } => DropReason::Malformed,
    }
}
