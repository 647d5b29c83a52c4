//! The captures of a core: where frames are captured, and what became of them.
//!
//! A burst is captured as a whole, twice: before it is forwarded ([`Captures::arrive`]), as its heads are rewritten
//! then, and when it is done with ([`Captures::depart`]). What happens to single frames in between is
//! [noted](Captures::note) where it happens, which is off the usual path: frames that are dropped, segmented, or handed
//! off to another core, where they leave.

use std::sync::Arc;

use softdpu_sys::clock;
use softdpu_sys::port::MAX_FRAME;
use softdpu_vpc::packet::segment::Segmenter;
use softdpu_vpc::trace::{Step, Subject, Watch, served};
use softdpu_vpc::{Checksum, DropReason, Head, Packet, PortId, Reply, Tables, Verdict};

use super::{
    CaptureStart, CoreCapture, EgressFrame, FrameDirection, FramePath, FrameTail, PassingFrame, PortTable,
    finished_frame,
};
use crate::ids::CoreIndex;

/// What became of a frame that did not just leave as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameOutcome {
    /// Dropped before it came to a port that it could leave by.
    DroppedAtIngress(DropReason),
    /// Dropped at that port.
    DroppedAtEgress(DropReason),
    /// Handed off to the core that has the port.
    HandedOff,
    /// Segmented for a receiver that takes it only so.
    Segmented,
}

/// A frame of the burst with a capture that wants its path through the tiers.
struct TracedFrame {
    /// Where in the burst it is.
    at: usize,
    /// The packet's address, while the burst lasts.
    address: usize,
    begun: u64,
    path: FramePath,
}

/// The frames of a burst that are traced, while it goes through the tiers.
pub(crate) struct BurstTracer<'a> {
    traced: &'a mut [TracedFrame],
    /// The place in the burst of the first packet of those that go through the tiers.
    first: usize,
    ports: &'a PortTable,
}

impl Watch for BurstTracer<'_> {
    fn identifier(&self, at: usize) -> u32 {
        self.traced.iter().find(|one| one.at == self.first + at).map_or(0, |one| one.path.identifier.1)
    }

    fn step(&mut self, at: usize, step: Step) {
        let at = self.first + at;
        if let Some(one) = self.traced.iter_mut().find(|one| one.at == at) {
            one.path.steps.push((clock::now() - one.begun, step));
        }
    }

    fn port(&self, port: PortId) -> String {
        self.ports.name(port)
    }
}

/// The captures that are under way on a core; there is at least one.
#[derive(Default)]
struct ActiveCaptures {
    captures: Vec<CoreCapture>,
    /// Of the burst.
    traced: Vec<TracedFrame>,
    /// The core, and how many of its frames were traced so far.
    identifier: (u8, u32),
    /// Of the burst, by the address of the packet: a burst's packets stay where they are.
    outcomes: Vec<(usize, FrameOutcome)>,
    segment: Vec<u8>,
}

/// A packet's identity while its burst lasts.
fn address(packet: &Packet) -> usize {
    std::ptr::from_ref(packet).addr()
}

impl ActiveCaptures {
    /// Remembers what became of a frame.
    #[cold]
    fn note(&mut self, packet: &Packet, outcome: FrameOutcome) {
        self.push(address(packet), outcome);
    }

    /// The software tier has dealt with a frame.
    fn served(&mut self, packet: &Packet, steps: impl FnOnce() -> Vec<Step>) {
        let of = address(packet);
        if let Some(one) = self.traced.iter_mut().find(|one| one.address == of) {
            let time = clock::now() - one.begun;
            one.path.steps.extend(steps().into_iter().map(|step| (time, step)));
        }
    }

    /// What became of `part` became of the frame that it was cut from.
    fn inherit(&mut self, whole: &Packet, part: &Packet) {
        let (whole, part) = (address(whole), address(part));
        // What was noted of the part is at the end, behind what was inherited from those before it.
        let kept = self.outcomes.iter().rposition(|(of, _)| *of != part).map_or(0, |last| last + 1);
        for (_, outcome) in self.outcomes.split_off(kept) {
            self.push(whole, outcome);
        }
    }

    /// A frame may be cut into thousands of segments with the same outcome: it is noted once.
    fn push(&mut self, of: usize, outcome: FrameOutcome) {
        if self.outcomes.last() != Some(&(of, outcome)) {
            self.outcomes.push((of, outcome));
        }
    }

    fn outcomes(&self, packet: &Packet) -> impl Iterator<Item = FrameOutcome> + use<'_> {
        let of = address(packet);
        self.outcomes.iter().filter(move |(other, _)| *other == of).map(|(_, outcome)| *outcome)
    }

    /// A burst has come in by one port and is about to be forwarded.
    fn arrive<'a>(&mut self, tables: &Tables, packets: &[Packet], tail: impl Fn(usize) -> FrameTail<'a>) {
        self.outcomes.clear();
        self.traced.clear();
        self.captures.iter_mut().for_each(CoreCapture::begin);
        let Some(port) = packets.first().map(|packet| packet.port) else { return };
        if !self.captures.iter().any(|capture| capture.watches(port, FrameDirection::In)) {
            return;
        }
        let time = clock::now();
        for (at, packet) in packets.iter().enumerate() {
            let frame = PassingFrame { time, port, direction: FrameDirection::In, packet, tail: tail(at), overhead: 0 };
            let subject = Subject::at(tables, port, packet.head.bytes(), packet.len());
            let mut is_traced = false;
            for capture in self
                .captures
                .iter_mut()
                .filter(|capture| capture.watches(port, FrameDirection::In) && capture.wants(&subject))
            {
                capture.arrive(at, &frame);
                is_traced |= capture.wants_path();
            }
            if is_traced {
                // 0 stands for none.
                self.identifier.1 = self.identifier.1.wrapping_add(1).max(1);
                let path = FramePath { identifier: self.identifier, steps: Vec::new() };
                self.traced.push(TracedFrame { at, address: address(packet), begun: time, path });
            }
        }
    }

    /// The frames of a burst have gone where their verdicts say. Frames of the burst that are not among `packets` will
    /// come again.
    fn depart<'a>(
        &mut self,
        tables: &Tables,
        packets: &[Packet],
        verdicts: &[Verdict],
        tail: impl Fn(usize) -> FrameTail<'a>,
    ) {
        let reasons: Vec<Option<DropReason>> = packets
            .iter()
            .zip(verdicts)
            .map(|(packet, verdict)| match verdict {
                Verdict::Drop(reason) => Some(*reason),
                _ => self.outcomes(packet).find_map(|outcome| match outcome {
                    FrameOutcome::DroppedAtIngress(reason) => Some(reason),
                    FrameOutcome::DroppedAtEgress(_) | FrameOutcome::HandedOff | FrameOutcome::Segmented => None,
                }),
            })
            .collect();
        let paths: Vec<(usize, Arc<FramePath>)> =
            self.traced.drain(..).map(|traced| (traced.at, Arc::new(traced.path))).collect();
        let path = |at: usize| paths.iter().find(|(of, _)| *of == at).map(|(_, path)| Arc::clone(path));
        for capture in &mut self.captures {
            if let Some(packet) = packets.first() {
                capture.seen(packet.port, FrameDirection::In, packets.len());
            }
            capture.settle(packets.len(), |at| reasons.get(at).copied().flatten(), path);
        }
        let time = clock::now();
        for (at, (packet, verdict)) in packets.iter().zip(verdicts).enumerate() {
            let (port, overhead) = match *verdict {
                Verdict::Local { port, .. } => (port, 0),
                Verdict::Underlay { port, overhead, .. } => (port, overhead),
                Verdict::Software | Verdict::Consumed | Verdict::Drop(_) => continue,
            };
            self.leave(
                tables,
                &PassingFrame { time, port, direction: FrameDirection::Out, packet, tail: tail(at), overhead },
            );
        }
        self.send();
    }

    /// Frames that came from another core have left by their ports.
    fn depart_handed_off(&mut self, tables: &Tables, frames: &[EgressFrame]) {
        let time = clock::now();
        for frame in frames {
            let EgressFrame { to, overhead, packet, .. } = frame;
            let tail = frame.tail();
            let frame =
                PassingFrame { time, port: *to, direction: FrameDirection::Out, packet, tail, overhead: *overhead };
            self.leave(tables, &frame);
        }
        self.outcomes.clear();
        self.send();
    }

    /// A frame of this process's own has left.
    fn depart_reply(&mut self, tables: &Tables, port: PortId, packet: &Packet, rest: &[u8]) {
        let (time, tail) = (clock::now(), FrameTail::Bytes(rest));
        self.leave(tables, &PassingFrame { time, port, direction: FrameDirection::Out, packet, tail, overhead: 0 });
        let of = address(packet);
        self.outcomes.retain(|(other, _)| *other != of);
    }

    /// A frame was dropped without having been part of a burst.
    fn drop_alone(&mut self, tables: &Tables, frame: &PassingFrame<'_>, reason: DropReason) {
        self.take_down(tables, frame, Some(reason));
        self.send();
    }

    /// A frame has left by a port, unless something else became of it.
    fn leave(&mut self, tables: &Tables, frame: &PassingFrame<'_>) {
        if !self.captures.iter().any(|capture| capture.watches(frame.port, FrameDirection::Out)) {
            return;
        }
        let (mut cut, mut dropped) = (frame.overhead > 0, None);
        for outcome in self.outcomes(frame.packet) {
            match outcome {
                FrameOutcome::HandedOff | FrameOutcome::DroppedAtIngress(_) => return,
                FrameOutcome::Segmented => cut = true,
                FrameOutcome::DroppedAtEgress(reason) => dropped = Some(reason),
            }
        }
        let pieces = if cut && dropped.is_none() {
            Segmenter::new(frame.packet, frame.overhead.into(), MAX_FRAME).ok()
        } else {
            None
        };
        let Some(pieces) = pieces else { return self.take_down(tables, frame, dropped) };
        let mut segment = std::mem::take(&mut self.segment);
        for index in 0..pieces.segments() {
            segment.resize(pieces.len(index), 0);
            if pieces.write(index, &frame.tail, &mut segment).is_ok() {
                let (packet, rest) = finished_frame(&segment, frame.packet.port);
                let piece = PassingFrame { packet: &packet, tail: FrameTail::Bytes(rest), overhead: 0, ..*frame };
                self.take_down(tables, &piece, None);
            }
        }
        self.segment = segment;
    }

    fn take_down(&mut self, tables: &Tables, frame: &PassingFrame<'_>, dropped: Option<DropReason>) {
        let PassingFrame { port, direction, packet, .. } = *frame;
        let subject = Subject::at(tables, port, packet.head.bytes(), packet.len());
        for capture in &mut self.captures {
            capture.seen(port, direction, 1);
            if capture.watches(port, direction) && capture.wants(&subject) {
                capture.record(frame, dropped);
            }
        }
    }

    fn send(&mut self) {
        self.captures.iter_mut().for_each(CoreCapture::send);
    }
}

/// The captures of a core, if any is under way. While none is, each burst costs two checks of that, and so does each
/// frame with an outcome of its own.
#[derive(Default)]
pub(crate) struct Captures(Option<Box<ActiveCaptures>>);

impl Captures {
    /// A burst of one port is about to be forwarded.
    #[inline]
    pub(crate) fn arrive<'a>(&mut self, tables: &Tables, packets: &[Packet], tail: impl Fn(usize) -> FrameTail<'a>) {
        if let Some(captures) = &mut self.0 {
            captures.arrive(tables, packets, tail);
        }
    }

    /// What traces a burst through the tiers, where that is wanted of any of its frames. `first`: the place in the
    /// burst of the first packet of those that go through the tiers.
    #[inline]
    pub(crate) fn tracer<'a>(&'a mut self, first: usize, ports: &'a PortTable) -> Option<BurstTracer<'a>> {
        let captures = self.0.as_mut().filter(|captures| !captures.traced.is_empty())?;
        Some(BurstTracer { traced: &mut captures.traced, first, ports })
    }

    /// The software tier has dealt with a frame, and sends `replies`.
    pub(crate) fn served(
        &mut self,
        tables: &Tables,
        ports: &PortTable,
        packet: &Packet,
        verdict: &Verdict,
        replies: &[Reply],
    ) {
        if let Some(captures) = &mut self.0 {
            captures.served(packet, || served(tables, verdict, replies, &|port| ports.name(port)));
        }
    }

    /// These frames of the burst have gone where their verdicts say.
    #[inline]
    pub(crate) fn depart<'a>(
        &mut self,
        tables: &Tables,
        packets: &[Packet],
        verdicts: &[Verdict],
        tail: impl Fn(usize) -> FrameTail<'a>,
    ) {
        if let Some(captures) = &mut self.0 {
            captures.depart(tables, packets, verdicts, tail);
            self.forget_ended();
        }
    }

    /// Frames from another core have left, or found no credits on their way to one.
    #[inline]
    pub(crate) fn depart_handed_off(&mut self, tables: &Tables, frames: &[EgressFrame]) {
        if let Some(captures) = &mut self.0 {
            captures.depart_handed_off(tables, frames);
        }
    }

    /// A frame of this process's own has left.
    pub(crate) fn depart_reply(&mut self, tables: &Tables, port: PortId, packet: &Packet, rest: &[u8]) {
        if let Some(captures) = &mut self.0 {
            captures.depart_reply(tables, port, packet, rest);
        }
    }

    /// Frames that belong to no burst have left.
    pub(crate) fn send(&mut self) {
        if let Some(captures) = &mut self.0 {
            captures.send();
        }
    }

    /// What came in by a port, `len` bytes from `tail`, was dropped before it became a packet.
    #[cold]
    pub(crate) fn refused(
        &mut self,
        tables: &Tables,
        port: PortId,
        reason: DropReason,
        tail: FrameTail<'_>,
        len: usize,
    ) {
        if let Some(captures) = &mut self.0 {
            let mut head = Head::with_len(len);
            let behind = (len - head.len()) as u32;
            let (rest, is_whole) = tail.split(&mut head);
            if is_whole {
                let (checksum, segmentation) = (Checksum::Complete, None);
                let packet = Packet { head, tail: behind, checksum, segmentation, port };
                let (time, direction) = (clock::now(), FrameDirection::In);
                let frame = PassingFrame { time, port, direction, packet: &packet, tail: rest, overhead: 0 };
                captures.drop_alone(tables, &frame, reason);
            }
        }
    }

    /// Notes what became of a frame.
    #[inline]
    pub(crate) fn note(&mut self, packet: &Packet, outcome: FrameOutcome) {
        if let Some(captures) = &mut self.0 {
            captures.note(packet, outcome);
        }
    }

    /// What became of `part` became of the frame that it was cut from.
    pub(crate) fn inherit(&mut self, whole: &Packet, part: &Packet) {
        if let Some(captures) = &mut self.0 {
            captures.inherit(whole, part);
        }
    }

    /// Begins a capture on `core`.
    pub(crate) fn begin(&mut self, core: CoreIndex, start: CaptureStart, ports: &PortTable) {
        let captures = self.0.get_or_insert_default();
        captures.identifier.0 = core.0 as u8;
        captures.captures.push(CoreCapture::new(start, ports.slots()));
    }

    /// Ports have come or gone.
    pub(crate) fn ports_changed(&mut self, ports: &PortTable) {
        for capture in self.0.iter_mut().flat_map(|captures| &mut captures.captures) {
            capture.watch_ports(ports.slots());
        }
    }

    /// Forgets captures that have ended.
    pub(crate) fn forget_ended(&mut self) {
        if let Some(captures) = &mut self.0 {
            captures.captures.retain(|capture| !capture.has_ended());
            if captures.captures.is_empty() {
                self.0 = None;
            }
        }
    }
}
