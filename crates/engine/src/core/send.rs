//! How a frame leaves by a port.

use softdpu_sched::{Nanos, TenantScheduler};
use softdpu_sys::clock;
use softdpu_sys::port::{MAX_FRAME, VnetHeader};
use softdpu_vpc::packet::segment::{Segmenter, WriteError};
use softdpu_vpc::{Checksum, DropReason, Head, Packet, PortId, Reply, Tail};

use super::Core;
use super::capture::Fate;
use crate::ids::QueueKey;
use crate::net::{Port, Refused, Run, Source, deliver, socket_header};

/// Where a frame goes.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub port: PortId,
    pub hash: u32,
    /// Bytes of outer headers.
    pub overhead: u16,
}

/// A port that has no room: the frame is to be tried again.
pub(super) struct NoRoom(pub PortId);

impl<S: TenantScheduler> Core<S> {
    /// Sends a frame by a port, wherever that is.
    pub(super) fn send(
        &mut self,
        target: Target,
        packet: &Packet,
        source: Source<'_>,
        may_hold: bool,
    ) -> Result<(), NoRoom> {
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
        let found = self.queues.find_to_finish(key).filter(|(queue, _)| queue.is_active());
        let Some((queue, unpublished)) = found else {
            self.drop_out(to, packet, DropReason::PortDown);
            return Ok(());
        };
        let bytes = packet.len() as u64;
        match deliver(queue, packet, source) {
            Ok(()) => {
                queue.spec.counters.count_frames(1, bytes);
                unpublished.add(queue);
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
                if let Some(queue) = self.queues.find(key) {
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
            let has_room = self.queues.find(key).is_some_and(|queue| queue.is_active() && queue.has_buffer());
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

    /// Sends what the software tier wants sent because of a frame `from` a port, or of itself.
    pub(super) fn send_replies(&mut self, mut replies: Vec<Reply>, from: Option<PortId>) {
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
        WriteError::Index { .. } | WriteError::NoRoom { .. } => DropReason::Malformed,
    }
}

/// Writes the frame as a whole into `to`, which is as long.
pub(super) fn gather(packet: &Packet, source: Source<'_>, to: &mut [u8]) -> Result<(), DropReason> {
    let (head, tail) = to.split_at_mut(packet.head.len());
    head.copy_from_slice(packet.head.bytes());
    source.read(0, tail).map_err(|_| DropReason::Truncated)
}
