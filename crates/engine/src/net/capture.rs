//! CapturedFrame frames: which they are, and how they get to the reader.
//!
//! ```text
//!   core ── batch of captured frames ──▶ Capture (a thread of its own) ──▶ reader
//!     └── seen, matched, lost by port ──┘
//! ```
//!
//! A core never waits for the reader: what has no room is counted and dropped. A capture ends when its [`Capture`] is
//! dropped; cores notice at their next burst.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use softdpu_vpc::trace::{Filter, Step, Subject};
use softdpu_vpc::{Checksum, DropReason, Packet, PortId, Segmentation, Tail};

use super::{FrameTail, Port};
use crate::counters::Counter;
use crate::mailbox::{Inbox, Mailbox, waitable};

/// What a captured frame counts in the buffer beside its bytes.
const RECORD: usize = 64;

/// What a step of its path counts.
const STEP: usize = 256;

/// What is captured.
#[derive(Clone, Debug)]
pub struct CaptureSpec {
    /// Names of ports, now or later; empty: all.
    pub ports: Vec<String>,
    /// Which frames; none: all.
    pub filter: Option<Filter>,
    /// Frames that come in by the port.
    pub inward: bool,
    /// Frames that leave by it.
    pub outward: bool,
    /// Only those that are dropped.
    pub drops: bool,
    /// With the path through the tiers of those that come in.
    pub tiers: bool,
    /// Bytes that are kept of a frame.
    pub snaplen: u32,
    /// Bytes of frames that may wait to be taken; what comes then is lost, and counted.
    pub buffer: usize,
}

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameDirection {
    /// From the port into the node.
    In,
    /// By the port out of the node.
    Out,
}

/// A captured frame.
#[derive(Clone, Debug)]
pub struct CapturedFrame {
    /// When, [`softdpu_sys::clock`].
    pub time: u64,
    /// The port's name.
    pub port: Arc<str>,
    /// Which way it went.
    pub direction: FrameDirection,
    /// Bytes that it has.
    pub len: u32,
    /// What is known of, or left to do to, its transport checksum.
    pub checksum: Checksum,
    /// How it is still to be cut up.
    pub segmentation: Option<Segmentation>,
    /// Bytes of outer headers, from which on `checksum` and `segmentation` count.
    pub overhead: u16,
    /// Why it was dropped, if it was.
    pub dropped: Option<DropReason>,
    /// Its path through the tiers, where that was asked for.
    pub path: Option<Arc<FramePath>>,
    /// The port's number on its core.
    id: PortId,
    /// Where its bytes are in the batch.
    start: u32,
    kept: u32,
}

/// A frame's path through the tiers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FramePath {
    /// Its identifier, given where it came in: the core's number, and the frame's among those that the core has
    /// watched.
    pub identifier: (u8, u32),
    /// Nanoseconds since the first step, and the step.
    pub steps: Vec<(u64, Step)>,
}

/// Frames that were captured together.
#[derive(Debug, Default)]
pub struct CaptureBatch {
    /// In the order in which they passed.
    pub frames: Vec<CapturedFrame>,
    bytes: Vec<u8>,
}

impl CaptureBatch {
    /// The first bytes of one of its frames.
    pub fn bytes(&self, frame: &CapturedFrame) -> &[u8] {
        &self.bytes[frame.start as usize..][..frame.kept as usize]
    }

    fn size(&self) -> usize {
        let steps = |frame: &CapturedFrame| frame.path.as_ref().map_or(0, |path| path.steps.len() * STEP);
        self.bytes.len() + self.frames.iter().map(|frame| RECORD + steps(frame)).sum::<usize>()
    }
}

/// What a capture counted at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounts {
    /// Frames that passed, in the wanted directions.
    pub seen: u64,
    /// Those that were wanted.
    pub matched: u64,
    /// Those of them for which there was no room.
    pub lost: u64,
}

/// The same, as one core counts it.
#[derive(Debug, Default)]
struct CaptureCounters {
    seen: Counter,
    matched: Counter,
    lost: Counter,
}

/// What the cores and the reader share.
#[derive(Debug, Default)]
pub(crate) struct CaptureShared {
    /// The reader has gone.
    ended: AtomicBool,
    /// Bytes on their way.
    waiting: AtomicUsize,
    /// By port and core. Locked when a capture or a port begins, and to be read.
    counters: Mutex<Vec<(Arc<str>, Arc<CaptureCounters>)>>,
}

/// A capture that is under way, for its reader.
pub struct Capture {
    pub(crate) inbox: Inbox<CaptureBatch>,
    pub(crate) shared: Arc<CaptureShared>,
}

waitable!(Capture, take);

impl Capture {
    /// The next frames of some core. Those of different cores are not in order.
    pub fn take(&self) -> Option<CaptureBatch> {
        let batch = self.inbox.next()?;
        self.shared.waiting.fetch_sub(batch.size(), Relaxed);
        Some(batch)
    }

    /// What was counted so far, by port.
    pub fn counts(&self) -> BTreeMap<Arc<str>, CaptureCounts> {
        let mut counts: BTreeMap<Arc<str>, CaptureCounts> = BTreeMap::new();
        for (port, counters) in self.shared.counters().iter() {
            counts.entry(Arc::clone(port)).or_default().add(counters.read());
        }
        counts
    }

    /// Its counts, for another reader.
    pub fn tally(&self) -> CaptureTally {
        CaptureTally(Arc::clone(&self.shared))
    }

    /// Ends it: what is captured until the cores notice is lost, and not counted as such.
    pub fn end(&self) {
        self.shared.ended.store(true, Relaxed);
    }
}

/// What a capture counts, at all its ports together.
#[derive(Clone, Debug)]
pub struct CaptureTally(Arc<CaptureShared>);

impl CaptureTally {
    /// So far.
    pub fn read(&self) -> CaptureCounts {
        let mut sum = CaptureCounts::default();
        self.0.counters().iter().for_each(|(_, counters)| sum.add(counters.read()));
        sum
    }
}

impl CaptureCounts {
    /// Together with `more`.
    fn add(&mut self, more: CaptureCounts) {
        self.seen += more.seen;
        self.matched += more.matched;
        self.lost += more.lost;
    }
}

impl CaptureCounters {
    fn read(&self) -> CaptureCounts {
        CaptureCounts { seen: self.seen.get(), matched: self.matched.get(), lost: self.lost.get() }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end();
    }
}

impl CaptureShared {
    fn counters(&self) -> std::sync::MutexGuard<'_, Vec<(Arc<str>, Arc<CaptureCounters>)>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A capture, as a core is told to begin it.
#[derive(Clone)]
pub(crate) struct CaptureStart {
    pub spec: Arc<CaptureSpec>,
    pub shared: Arc<CaptureShared>,
    pub mailbox: Mailbox<CaptureBatch>,
}

/// A capture on one core.
pub(crate) struct CoreCapture {
    start: CaptureStart,
    /// By port number: those that are watched.
    watched: Vec<Option<(Arc<str>, Arc<CaptureCounters>)>>,
    batch: CaptureBatch,
    /// Frames of the burst that came in: where in the burst and where in the batch they are.
    arrived: Vec<(usize, usize)>,
}

impl CoreCapture {
    pub(crate) fn new(start: CaptureStart, ports: &[Option<Port>]) -> CoreCapture {
        let mut capture =
            CoreCapture { start, watched: Vec::new(), batch: CaptureBatch::default(), arrived: Vec::new() };
        capture.watch_ports(ports);
        capture
    }

    /// Watches those of the ports that are wanted. Counts go on where a port is still there.
    pub(crate) fn watch_ports(&mut self, ports: &[Option<Port>]) {
        let CoreCapture { start, watched, .. } = self;
        watched.resize(ports.len(), None);
        for (watched, port) in watched.iter_mut().zip(ports) {
            let name = port.as_ref().map(|port| &port.name);
            let name = name.filter(|name| {
                start.spec.ports.is_empty() || start.spec.ports.iter().any(|wanted| **wanted == ***name)
            });
            if watched.as_ref().map(|(name, _)| name) != name {
                *watched = name.map(|name| {
                    let counters: Arc<CaptureCounters> = Arc::default();
                    start.shared.counters().push((Arc::clone(name), Arc::clone(&counters)));
                    (Arc::clone(name), counters)
                });
            }
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.start.shared.ended.load(Relaxed)
    }

    #[inline]
    fn watched(&self, port: PortId, direction: FrameDirection) -> Option<&(Arc<str>, Arc<CaptureCounters>)> {
        let wanted = match direction {
            FrameDirection::In => self.start.spec.inward,
            FrameDirection::Out => self.start.spec.outward,
        };
        self.watched.get(port.0 as usize)?.as_ref().filter(|_| wanted)
    }

    #[inline]
    pub(crate) fn watches(&self, port: PortId, direction: FrameDirection) -> bool {
        self.watched(port, direction).is_some()
    }

    /// Whether it wants to know the path of frames that come in.
    pub(crate) fn wants_path(&self) -> bool {
        self.start.spec.tiers
    }

    pub(crate) fn wants(&self, subject: &Subject) -> bool {
        self.start.spec.filter.as_ref().is_none_or(|filter| filter.matches(subject))
    }

    /// Frames have passed.
    pub(crate) fn seen(&self, port: PortId, direction: FrameDirection, frames: usize) {
        if let Some((_, counters)) = self.watched(port, direction) {
            counters.seen.add(frames as u64);
        }
    }

    /// Forgets the burst before.
    pub(crate) fn begin(&mut self) {
        self.arrived.clear();
    }

    /// Frame `at` of the burst is there; what becomes of it will be [settled](Self::settle).
    pub(crate) fn arrive(&mut self, at: usize, frame: &PassingFrame<'_>) {
        self.arrived.push((at, self.batch.frames.len()));
        self.record(frame, None);
    }

    /// So many frames of the burst were dealt with, the others will come again; why those were dropped that were.
    /// `path` has their paths.
    pub(crate) fn settle(
        &mut self,
        passed: usize,
        reason: impl Fn(usize) -> Option<DropReason>,
        path: impl Fn(usize) -> Option<Arc<FramePath>>,
    ) {
        let has_path = self.start.spec.tiers;
        let (frames, mut again) = (&mut self.batch.frames, Vec::new());
        for (at, record) in self.arrived.drain(..) {
            if at < passed {
                frames[record].dropped = reason(at);
                frames[record].path = if has_path { path(at) } else { None };
            } else {
                again.push(record);
            }
        }
        if !again.is_empty() {
            let mut record = 0..;
            frames.retain(|_| record.next().is_some_and(|record| !again.contains(&record)));
        }
    }

    /// Takes a frame down as it is.
    pub(crate) fn record(&mut self, frame: &PassingFrame<'_>, dropped: Option<DropReason>) {
        let PassingFrame { time, port, direction, packet, tail, overhead } = *frame;
        let Some((name, _)) = self.watched(port, direction) else { return };
        let name = Arc::clone(name);
        let start = self.batch.bytes.len();
        let most = self.start.spec.snaplen as usize;
        let head = packet.head.bytes();
        self.batch.bytes.extend_from_slice(&head[..head.len().min(most)]);
        let rest = (packet.tail as usize).min(most.saturating_sub(head.len()));
        let filled = self.batch.bytes.len();
        self.batch.bytes.resize(filled + rest, 0);
        if tail.read(0, &mut self.batch.bytes[filled..]).is_err() {
            self.batch.bytes.truncate(filled);
        }
        self.batch.frames.push(CapturedFrame {
            time,
            port: name,
            direction,
            len: packet.len() as u32,
            checksum: packet.checksum,
            segmentation: packet.segmentation,
            overhead,
            dropped,
            path: None,
            id: port,
            start: start as u32,
            kept: (self.batch.bytes.len() - start) as u32,
        });
    }

    /// Hands over what was taken down, as far as there is room.
    pub(crate) fn send(&mut self) {
        if self.start.spec.drops {
            self.batch.frames.retain(|frame| frame.dropped.is_some());
        }
        if self.batch.frames.is_empty() {
            self.batch.bytes.clear();
            return;
        }
        let batch = std::mem::take(&mut self.batch);
        let shared = &self.start.shared;
        let room = shared.waiting.load(Relaxed) + batch.size() <= self.start.spec.buffer;
        for frame in &batch.frames {
            if let Some((_, counters)) = self.watched(frame.id, frame.direction) {
                counters.matched.add(1);
                counters.lost.add(u64::from(!room));
            }
        }
        if room {
            shared.waiting.fetch_add(batch.size(), Relaxed);
            self.start.mailbox.send(batch);
        }
    }
}

/// A frame as it passes a port.
#[derive(Clone, Copy)]
pub(crate) struct PassingFrame<'a> {
    pub time: u64,
    pub port: PortId,
    pub direction: FrameDirection,
    pub packet: &'a Packet,
    pub tail: FrameTail<'a>,
    /// Bytes of outer headers at the head's start; the offload is that of the frame behind them.
    pub overhead: u16,
}
