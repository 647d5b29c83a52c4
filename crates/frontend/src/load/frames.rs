//! A closed loop from a guest to another, or to the underlay: as many frames are on their way as a receiver has buffers
//! for.
//!
//! One thread is both ends. What a guest would do with a frame is left out: sending stores a sequence number and a ring
//! entry, receiving reads a ring entry and writes one. A frame that is lost is noticed by the numbers of those behind
//! it, or by nothing arriving for [`SILENCE`]; it makes room for another.

use std::time::{Duration, Instant};

use softdpu_sys::clock;
use thiserror::Error;

use super::Waiting;
use super::pace::Pace;
use super::sink::{FrameSink, GuestSink};
use crate::net::{CorruptFrame, FrameReceiver, FrameSender};
use crate::{Frames, FrontEndError, NetFrontEnd, Station, sleep_until};

/// A server that delivers nothing for this long is given up.
const STALL: Duration = Duration::from_secs(5);
/// When nothing arrived for this long, what is on its way counts as lost: longer than a scheduler's time slice.
const SILENCE: Duration = Duration::from_millis(20);
/// Frames taken, or sent, before the other side gets its turn.
const BATCH: usize = 64;
/// Rounds without a frame between two looks at the clock.
const PATIENCE: u32 = 1 << 10;
/// Of the frames on their way, the share of the receiver's buffers that they fill at the most: the rest is taken and
/// waits to be given back in a batch.
const FILL: (usize, usize) = (3, 4);

/// What to send.
#[derive(Clone, Debug)]
pub struct Load {
    /// Which frames.
    pub frames: Frames,
    /// Flows they belong to, each with a source port of its own.
    pub flows: u16,
    /// Who sends.
    pub from: Station,
    /// Who receives.
    pub to: Station,
    /// Descriptors of a queue.
    pub queue_size: u16,
    /// How the client waits.
    pub waiting: Waiting,
    /// Before counting starts.
    pub warm_up: Duration,
    /// Of counting.
    pub duration: Duration,
    /// Measures the time the client itself takes (a clock reading a batch more).
    pub profile: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Frames received.
    pub frames: u64,
    /// Bytes of them, without virtio-net headers and frame check sequences.
    pub bytes: u64,
    /// Frames sent from the begin of counting on that never arrived.
    pub lost: u64,
    /// Frames sent from the begin of counting on.
    pub sent: u64,
    /// How long frames were received.
    pub elapsed: Duration,
    /// Rounds that received something.
    pub batches: u64,
    /// Kicks sent, both queues.
    pub kicks: u64,
    /// Notifications slept for.
    pub interrupts: u64,
    /// From finding frames to having sent what follows them; of a profiled load.
    pub busy: Option<Duration>,
}

/// Why a load ended early.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A front end.
    #[error(transparent)]
    FrontEnd(#[from] FrontEndError),
    /// A frame arrived otherwise than it was sent.
    #[error("of {sent} frames sent {received} had arrived: {source}")]
    Corrupt {
        /// Frames sent.
        sent: u64,
        /// Frames received before it.
        received: u64,
        /// What is wrong.
        source: CorruptFrame,
    },
    /// Nothing arrives.
    #[error(
        "of {sent} frames sent {received} arrived, none for {waited:?}; the server has not taken {outstanding} of them"
    )]
    Stalled {
        /// Frames sent.
        sent: u64,
        /// Frames received.
        received: u64,
        /// Frames that the sender's queue still holds.
        outstanding: usize,
        /// How long it was waited.
        waited: Duration,
    },
    /// The load makes no sense.
    #[error("{0}")]
    Load(String),
}

impl Load {
    /// Memory that the sender's port needs, bytes.
    pub fn sender_memory(&self) -> u64 {
        FrameSender::bytes(self.frames, self.queue_size)
    }

    /// Memory that the receiver's port needs, bytes.
    pub fn receiver_memory(&self) -> u64 {
        FrameReceiver::bytes(self.frames, self.queue_size)
    }

    /// Frames that are on their way at the most.
    pub fn window(&self) -> usize {
        let buffers = usize::from(self.queue_size) * FILL.0 / FILL.1;
        buffers / FrameReceiver::buffers(self.frames)
    }
}

/// Sends from `a` to `b`, both without a frame yet, from one thread.
///
/// # Errors
/// [`LoadError`].
pub fn run(a: &mut NetFrontEnd, b: &mut NetFrontEnd, load: &Load) -> Result<Outcome, LoadError> {
    run_into(a, GuestSink::new(b, load)?, load)
}

/// Sends from `a`, without a frame yet, to `sink`, from one thread.
///
/// # Errors
/// [`LoadError`].
pub fn run_into<S: FrameSink>(a: &mut NetFrontEnd, mut sink: S, load: &Load) -> Result<Outcome, LoadError> {
    let window = load.window();
    if window == 0 || load.flows == 0 {
        return Err(LoadError::Load(format!(
            "a queue of {} descriptors is too small for frames of {} bytes, or there are no flows",
            load.queue_size,
            load.frames.longest()
        )));
    }
    let sender = FrameSender::new(a, load.queue_size, load.frames, load.flows, load.from, load.to)?;
    // The server may have looked at the empty queues already, and gone to sleep.
    a.transmit.kick();
    sink.kick();
    let mut run = Run { a, sender, sink, window, written_off: 0, pace: Pace::new(window), batches: 0, busy: 0 };
    run.phase(load, load.warm_up, true)?;
    (run.batches, run.busy) = (0, 0);
    let before = run.counts();
    let start = clock::now();
    run.phase(load, load.duration, true)?;
    let elapsed = Duration::from_nanos(clock::now() - start);
    let after = run.counts();
    run.phase(load, STALL, false)?;
    let end = run.counts();
    // Numbers below `next` were sent before, whether they arrived or not.
    let sent = end.sent - before.next;
    Ok(Outcome {
        frames: after.received - before.received,
        bytes: after.bytes - before.bytes,
        lost: sent.saturating_sub(end.received - before.received),
        sent,
        elapsed,
        batches: run.batches,
        kicks: after.kicks - before.kicks,
        interrupts: after.interrupts - before.interrupts,
        busy: load.profile.then(|| Duration::from_nanos(run.busy)),
    })
}

/// Counters at one moment.
struct Counts {
    sent: u64,
    received: u64,
    bytes: u64,
    next: u64,
    kicks: u64,
    interrupts: u64,
}

struct Run<'a, S> {
    a: &'a mut NetFrontEnd,
    sender: FrameSender,
    sink: S,
    window: usize,
    /// Frames below this number count as lost, should they not have arrived.
    written_off: u64,
    pace: Pace,
    batches: u64,
    busy: u64,
}

impl<S: FrameSink> Run<'_, S> {
    fn counts(&self) -> Counts {
        let (received, bytes) = self.sink.received();
        let (kicks, interrupts) = self.sink.signals();
        Counts {
            sent: self.sender.sent(),
            received,
            bytes,
            next: self.sink.next(),
            kicks: self.a.transmit.kicks() + kicks,
            interrupts: self.a.transmit.interrupts() + interrupts,
        }
    }

    fn phase(&mut self, load: &Load, duration: Duration, sending: bool) -> Result<(), LoadError> {
        let end = clock::now() + duration.as_nanos() as u64;
        match (load.profile, sending) {
            (false, true) => self.rounds::<false, true>(load.waiting, end),
            (true, true) => self.rounds::<true, true>(load.waiting, end),
            (_, false) => self.rounds::<false, false>(load.waiting, end),
        }
    }

    /// Frames on their way.
    #[inline(always)]
    fn in_flight(&self) -> usize {
        (self.sender.sent() - self.sink.next().max(self.written_off)) as usize
    }

    /// Receives and sends until `end` (sending), or until nothing is on its way.
    fn rounds<const PROFILE: bool, const SENDING: bool>(
        &mut self,
        waiting: Waiting,
        end: u64,
    ) -> Result<(), LoadError> {
        let mut last = clock::now();
        let mut empty = 0;
        loop {
            let taken = self.sink.take(BATCH).map_err(|source| LoadError::Corrupt {
                sent: self.sender.sent(),
                received: self.sink.received().0,
                source,
            })?;
            let now = if taken > 0 { clock::now() } else { last };
            let sent = SENDING && self.send();
            if taken > 0 {
                (last, empty) = (now, 0);
                self.batches += 1;
                if PROFILE {
                    self.busy += clock::now() - now;
                }
                if SENDING && now >= end {
                    return Ok(());
                }
                self.pace.wait(now, taken);
                continue;
            }
            if !SENDING && self.in_flight() == 0 {
                return Ok(());
            }
            match waiting {
                Waiting::Polling => {
                    empty += 1;
                    if empty % PATIENCE == 0 {
                        self.silent(last, end, SENDING)?;
                    }
                }
                Waiting::Blocking if sent => {}
                Waiting::Blocking => {
                    self.sleep();
                    self.silent(last, end, SENDING)?;
                }
            }
            if SENDING && empty % PATIENCE == 0 && clock::now() >= end {
                return Ok(());
            }
        }
    }

    /// Sends as many frames as there is room for, where that is a batch; whether it did.
    #[inline(always)]
    fn send(&mut self) -> bool {
        let in_flight = self.in_flight();
        let room = self.window.saturating_sub(in_flight).min(BATCH);
        let batch = self.pace.batch();
        if room < batch && in_flight > 0 {
            return false;
        }
        // The used ring's line belongs to the server: it is looked at when frames run out.
        if self.sender.free() < room {
            self.sender.reap(&mut self.a.transmit);
        }
        let count = room.min(self.sender.free());
        if count == 0 || (count < batch && self.sender.outstanding() > 0) {
            return false;
        }
        self.sender.send(&mut self.a.transmit, count);
        true
    }

    /// Sleeps until frames arrive or, where the transmit queue is what is full, until frames are taken.
    fn sleep(&mut self) {
        let starved = self.sender.free() < self.pace.batch() && self.in_flight() < self.window;
        let slipped = self.sink.arm() || (starved && self.a.transmit.driver.arm());
        if !slipped {
            let deadline = Instant::now() + SILENCE;
            let mut fds = [self.sink.poll_fd(), self.a.transmit.poll_fd()];
            // Nothing is wrong with a deadline that passes: the caller looks at how long it has been.
            let _ = sleep_until(&mut fds[..if starved { 2 } else { 1 }], deadline);
        }
        self.sink.woken();
        if starved {
            self.a.transmit.take_notification();
            self.a.transmit.driver.disarm();
        }
    }

    /// Nothing arrived since `last`: is anything still to come?
    #[cold]
    fn silent(&mut self, last: u64, end: u64, sending: bool) -> Result<(), LoadError> {
        let now = clock::now();
        let waited = Duration::from_nanos(now.saturating_sub(last));
        self.sender.reap(&mut self.a.transmit);
        if waited >= STALL || (!sending && now >= end) {
            return Err(LoadError::Stalled {
                sent: self.sender.sent(),
                received: self.sink.received().0,
                outstanding: self.sender.outstanding(),
                waited,
            });
        }
        // What the server has not taken is not lost.
        if waited >= SILENCE && self.sender.outstanding() == 0 {
            self.written_off = self.sender.sent();
            self.sink.write_off(self.written_off);
        }
        Ok(())
    }
}
