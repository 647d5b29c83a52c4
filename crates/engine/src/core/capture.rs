//! Frames of this core that are shown to somebody: where they are looked at, and what became of them.
//!
//! Nobody looks at a frame on its way. A burst is looked at twice: before it is forwarded ([`Captures::arrive`]), as
//! its heads are rewritten then, and when it is done with ([`Captures::depart`]). What happens to single frames in
//! between is [noted](Captures::note) where it happens, which is off the usual path: frames that are dropped, cut up,
//! or sent on to another core, where they leave.

use std::sync::Arc;

use softdpu_sys::clock;
use softdpu_sys::port::MAX_FRAME;
use softdpu_vpc::packet::segment::Segmenter;
use softdpu_vpc::trace::{Step, Subject, Watch, served};
use softdpu_vpc::{Asked, Checksum, DropReason, Explanation, Head, Packet, PortId, Reply, Tables, Verdict};

use super::send::as_it_is;
use crate::ids::CoreIndex;
use crate::net::{CaptureStart, Net, Parcel, Passing, Path, Port, Source, Trace, Way};

/// What became of a frame that did not just leave as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Dropped before it came to a port that it could leave by.
    DroppedIn(DropReason),
    /// Dropped at that port.
    DroppedOut(DropReason),
    /// On its way to the core that has the port.
    Away,
    /// Cut up for a receiver that takes it only so.
    CutUp,
}

/// A frame of the burst whose way through the tiers somebody wants to know.
struct Followed {
    /// Where in the burst it is.
    at: usize,
    /// The packet's, while the burst lasts.
    address: usize,
    begun: u64,
    path: Path,
}

/// The frames of a burst that are followed, while the tiers have it.
struct Follower<'a> {
    followed: &'a mut [Followed],
    /// The number in the burst of the first packet of those that the tiers have.
    first: usize,
    ports: &'a [Option<Port>],
}

impl Watch for Follower<'_> {
    fn identifier(&self, at: usize) -> u32 {
        self.followed.iter().find(|one| one.at == self.first + at).map_or(0, |one| one.path.identifier.1)
    }

    fn step(&mut self, at: usize, step: Step) {
        let at = self.first + at;
        if let Some(one) = self.followed.iter_mut().find(|one| one.at == at) {
            one.path.steps.push((clock::now() - one.begun, step));
        }
    }

    fn port(&self, port: PortId) -> String {
        port_name(self.ports, port)
    }
}

/// What people call a port.
fn port_name(ports: &[Option<Port>], PortId(id): PortId) -> String {
    let port = ports.get(id as usize).and_then(Option::as_ref);
    port.map_or_else(|| format!("port {id}, which is no more"), |port| port.name.to_string())
}

/// The captures that are under way on a core; there is at least one.
#[derive(Default)]
pub(crate) struct Captures {
    traces: Vec<Trace>,
    /// Of the burst.
    followed: Vec<Followed>,
    /// Frames that were followed so far, and on which core.
    identifier: (u8, u32),
    /// Of the burst, by the address of the packet: a burst's packets stay where they are.
    fates: Vec<(usize, Fate)>,
    segment: Vec<u8>,
}

/// A packet's name while its burst lasts.
fn address(packet: &Packet) -> usize {
    std::ptr::from_ref(packet).addr()
}

impl Captures {
    /// Remembers what became of a frame.
    #[cold]
    pub(crate) fn note(&mut self, packet: &Packet, fate: Fate) {
        self.push(address(packet), fate);
    }

    /// The software tier has dealt with a frame.
    fn served(&mut self, packet: &Packet, steps: impl FnOnce() -> Vec<Step>) {
        let of = address(packet);
        if let Some(one) = self.followed.iter_mut().find(|one| one.address == of) {
            let time = clock::now() - one.begun;
            one.path.steps.extend(steps().into_iter().map(|step| (time, step)));
        }
    }

    /// What became of `part` became of the frame that it was cut from.
    pub(crate) fn inherit(&mut self, whole: &Packet, part: &Packet) {
        let (whole, part) = (address(whole), address(part));
        // What was noted of the part is at the end, behind what was inherited from those before it.
        let kept = self.fates.iter().rposition(|(of, _)| *of != part).map_or(0, |last| last + 1);
        for (_, fate) in self.fates.split_off(kept) {
            self.push(whole, fate);
        }
    }

    /// The same may be said of each of the thousands that a frame is cut into: it is noted once.
    fn push(&mut self, of: usize, fate: Fate) {
        if self.fates.last() != Some(&(of, fate)) {
            self.fates.push((of, fate));
        }
    }

    fn fates(&self, packet: &Packet) -> impl Iterator<Item = Fate> + use<'_> {
        let of = address(packet);
        self.fates.iter().filter(move |(other, _)| *other == of).map(|(_, fate)| *fate)
    }

    /// A burst has come in by one port and is about to be forwarded.
    pub(super) fn arrive<'a>(&mut self, tables: &Tables, packets: &[Packet], source: impl Fn(usize) -> Source<'a>) {
        self.fates.clear();
        self.followed.clear();
        self.traces.iter_mut().for_each(Trace::begin);
        let Some(port) = packets.first().map(|packet| packet.port) else { return };
        if !self.traces.iter().any(|trace| trace.watches(port, Way::In)) {
            return;
        }
        let time = clock::now();
        for (at, packet) in packets.iter().enumerate() {
            let frame = Passing { time, port, way: Way::In, packet, source: source(at), overhead: 0 };
            let subject = Subject::at(tables, port, packet.head.bytes(), packet.len());
            let mut is_followed = false;
            for trace in self.traces.iter_mut().filter(|trace| trace.watches(port, Way::In) && trace.wants(&subject)) {
                trace.arrive(at, &frame);
                is_followed |= trace.wants_path();
            }
            if is_followed {
                // 0 is nobody's.
                self.identifier.1 = self.identifier.1.wrapping_add(1).max(1);
                let path = Path { identifier: self.identifier, steps: Vec::new() };
                self.followed.push(Followed { at, address: address(packet), begun: time, path });
            }
        }
    }

    /// The frames of a burst have gone where their verdicts say. Frames of the burst that are not among `packets` will
    /// come again.
    pub(super) fn depart<'a>(
        &mut self,
        tables: &Tables,
        packets: &[Packet],
        verdicts: &[Verdict],
        source: impl Fn(usize) -> Source<'a>,
    ) {
        let reasons: Vec<Option<DropReason>> = packets
            .iter()
            .zip(verdicts)
            .map(|(packet, verdict)| match verdict {
                Verdict::Drop(reason) => Some(*reason),
                _ => self.fates(packet).find_map(|fate| match fate {
                    Fate::DroppedIn(reason) => Some(reason),
                    Fate::DroppedOut(_) | Fate::Away | Fate::CutUp => None,
                }),
            })
            .collect();
        let paths: Vec<(usize, Arc<Path>)> =
            self.followed.drain(..).map(|followed| (followed.at, Arc::new(followed.path))).collect();
        let path = |at: usize| paths.iter().find(|(of, _)| *of == at).map(|(_, path)| Arc::clone(path));
        for trace in &mut self.traces {
            if let Some(packet) = packets.first() {
                trace.seen(packet.port, Way::In, packets.len());
            }
            trace.settle(packets.len(), |at| reasons.get(at).copied().flatten(), path);
        }
        let time = clock::now();
        for (at, (packet, verdict)) in packets.iter().zip(verdicts).enumerate() {
            let (port, overhead) = match *verdict {
                Verdict::Local { port, .. } => (port, 0),
                Verdict::Underlay { port, overhead, .. } => (port, overhead),
                Verdict::Software | Verdict::Consumed | Verdict::Drop(_) => continue,
            };
            self.leave(tables, &Passing { time, port, way: Way::Out, packet, source: source(at), overhead });
        }
        self.send();
    }

    /// Frames that came from another core have left by their ports.
    pub(super) fn depart_parcels(&mut self, tables: &Tables, parcels: &[Parcel]) {
        let time = clock::now();
        for parcel in parcels {
            let Parcel { to, overhead, packet, .. } = parcel;
            let source = parcel.source();
            let frame = Passing { time, port: *to, way: Way::Out, packet, source, overhead: *overhead };
            self.leave(tables, &frame);
        }
        self.fates.clear();
        self.send();
    }

    /// A frame of this process's own has left.
    pub(super) fn depart_reply(&mut self, tables: &Tables, port: PortId, packet: &Packet, rest: &[u8]) {
        let (time, source) = (clock::now(), Source::Bytes(rest));
        self.leave(tables, &Passing { time, port, way: Way::Out, packet, source, overhead: 0 });
        let of = address(packet);
        self.fates.retain(|(other, _)| *other != of);
    }

    /// A frame was dropped without having been part of a burst.
    pub(super) fn drop_alone(&mut self, tables: &Tables, frame: &Passing<'_>, reason: DropReason) {
        self.take_down(tables, frame, Some(reason));
        self.send();
    }

    /// A frame has left by a port, unless something else became of it.
    fn leave(&mut self, tables: &Tables, frame: &Passing<'_>) {
        if !self.traces.iter().any(|trace| trace.watches(frame.port, Way::Out)) {
            return;
        }
        let (mut cut, mut dropped) = (frame.overhead > 0, None);
        for fate in self.fates(frame.packet) {
            match fate {
                Fate::Away | Fate::DroppedIn(_) => return,
                Fate::CutUp => cut = true,
                Fate::DroppedOut(reason) => dropped = Some(reason),
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
            if pieces.write(index, &frame.source, &mut segment).is_ok() {
                let (packet, rest) = as_it_is(&segment, frame.packet.port);
                let piece = Passing { packet: &packet, source: Source::Bytes(rest), overhead: 0, ..*frame };
                self.take_down(tables, &piece, None);
            }
        }
        self.segment = segment;
    }

    fn take_down(&mut self, tables: &Tables, frame: &Passing<'_>, dropped: Option<DropReason>) {
        let Passing { port, way, packet, .. } = *frame;
        let subject = Subject::at(tables, port, packet.head.bytes(), packet.len());
        for trace in &mut self.traces {
            trace.seen(port, way, 1);
            if trace.watches(port, way) && trace.wants(&subject) {
                trace.record(frame, dropped);
            }
        }
    }

    fn send(&mut self) {
        self.traces.iter_mut().for_each(Trace::send);
    }
}

/// Where frames pass. Nothing happens here while nobody captures, at the cost of a look at `captures`: twice a burst,
/// and where something happens to a single frame.
impl Net {
    /// A burst of one port is about to be forwarded.
    #[inline]
    pub(crate) fn arrive<'a>(&mut self, packets: &[Packet], source: impl Fn(usize) -> Source<'a>) {
        if let Some(captures) = &mut self.captures {
            captures.arrive(self.vpc.tables(), packets, source);
        }
    }

    /// Decides what becomes of a burst of one port; those of its frames are followed that somebody wants to know the
    /// way of.
    #[inline]
    pub(crate) fn forward(&mut self, packets: &mut [Packet], verdicts: &mut Vec<Verdict>) {
        let now = clock::now();
        let Net { captures, functions, ports, vpc, .. } = self;
        let mut through = |first, packets: &mut [Packet], verdicts: &mut Vec<Verdict>| match captures {
            Some(captures) if !captures.followed.is_empty() => {
                let mut follower = Follower { followed: &mut captures.followed, first, ports };
                vpc.forward_watched(now, packets, verdicts, &mut follower);
            }
            _ => vpc.forward(now, packets, verdicts),
        };
        match functions {
            None => through(0, packets, verdicts),
            Some(functions) => functions.forward(now, packets, verdicts, through),
        }
    }

    /// The software tier has dealt with a frame, and sends `replies`.
    pub(crate) fn served(&mut self, packet: &Packet, verdict: &Verdict, replies: &[Reply]) {
        let Net { captures, ports, vpc, .. } = self;
        if let Some(captures) = captures {
            let names = |port| port_name(ports, port);
            captures.served(packet, || served(vpc.tables(), verdict, replies, &names));
        }
    }

    /// What would become of a frame that came in by a port, which has to have this name still.
    pub(crate) fn explain(&self, port: PortId, name: &str, frame: &[u8]) -> Option<Explanation> {
        let there = self.ports.get(port.0 as usize)?.as_ref()?;
        let names = |port| port_name(&self.ports, port);
        let asked = Asked { names: &names, clock: &clock::now };
        (*there.name == *name).then(|| self.vpc.explain(clock::now(), port, frame, asked))
    }

    /// These frames of the burst have gone where their verdicts say.
    #[inline]
    pub(crate) fn depart<'a>(
        &mut self,
        packets: &[Packet],
        verdicts: &[Verdict],
        source: impl Fn(usize) -> Source<'a>,
    ) {
        if let Some(captures) = &mut self.captures {
            captures.depart(self.vpc.tables(), packets, verdicts, source);
            self.end_captures();
        }
    }

    /// Frames from another core have left, or had no room on their way to one.
    #[inline]
    pub(crate) fn depart_parcels(&mut self, parcels: &[Parcel]) {
        if let Some(captures) = &mut self.captures {
            captures.depart_parcels(self.vpc.tables(), parcels);
        }
    }

    /// A frame of this process's own has left.
    pub(crate) fn depart_reply(&mut self, port: PortId, packet: &Packet, rest: &[u8]) {
        if let Some(captures) = &mut self.captures {
            captures.depart_reply(self.vpc.tables(), port, packet, rest);
        }
    }

    /// Frames that belong to no burst have left.
    pub(crate) fn send_captured(&mut self) {
        if let Some(captures) = &mut self.captures {
            captures.send();
        }
    }

    /// What came in by a port, `len` bytes from `source`, is no frame to be looked at any further: it is dropped.
    #[cold]
    pub(crate) fn refuse(&mut self, port: PortId, reason: DropReason, source: Source<'_>, len: usize) {
        if let Some(port) = self.port(port) {
            port.counters.drop_in(reason);
        }
        if let Some(captures) = &mut self.captures {
            let mut head = Head::with_len(len);
            let tail = (len - head.len()) as u32;
            let (rest, read) = source.split(&mut head);
            if read {
                let (checksum, segmentation) = (Checksum::Complete, None);
                let packet = Packet { head, tail, checksum, segmentation, port };
                let (time, way) = (clock::now(), Way::In);
                let frame = Passing { time, port, way, packet: &packet, source: rest, overhead: 0 };
                captures.drop_alone(self.vpc.tables(), &frame, reason);
            }
        }
    }

    /// Notes what became of a frame.
    #[inline]
    pub(crate) fn note(&mut self, packet: &Packet, fate: Fate) {
        if let Some(captures) = &mut self.captures {
            captures.note(packet, fate);
        }
    }

    /// What became of `part` became of the frame that it was cut from.
    pub(crate) fn inherit(&mut self, whole: &Packet, part: &Packet) {
        if let Some(captures) = &mut self.captures {
            captures.inherit(whole, part);
        }
    }

    /// Begins to capture.
    pub(crate) fn capture(&mut self, core: CoreIndex, start: CaptureStart) {
        let captures = self.captures.get_or_insert_default();
        captures.identifier.0 = core.0 as u8;
        captures.traces.push(Trace::new(start, &self.ports));
    }

    /// Ports are there, or no more.
    pub(crate) fn ports_changed(&mut self) {
        let Net { captures, ports, .. } = self;
        for trace in captures.iter_mut().flat_map(|captures| &mut captures.traces) {
            trace.look_at(ports);
        }
    }

    /// Forgets captures that have ended.
    pub(crate) fn end_captures(&mut self) {
        if let Some(captures) = &mut self.captures {
            captures.traces.retain(|trace| !trace.has_ended());
            if captures.traces.is_empty() {
                self.captures = None;
            }
        }
    }
}
