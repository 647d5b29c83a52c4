//! Frames from a guest to another, or to the underlay: as many are on their way as a receiver has buffers for.
//!
//! One thread is both ends. What a guest would do with a frame is left out: sending stores a sequence number and a ring
//! entry, receiving reads a ring entry and writes one. A frame that is lost is noticed by the numbers of those behind
//! it, or by nothing arriving for [`SILENCE`]; it makes room for another.

use std::borrow::BorrowMut;
use std::path::Path;
use std::time::Duration;

use softdpu_ring::Format;
use softdpu_sys::clock;

use super::generator::{Generator, GeneratorOptions, Job, PollFds, Signals, Turn, Waiting};
use super::pace::Pace;
use super::sink::{FrameSink, GuestSink};
use super::{LoadError, Outcome};
use crate::net::{FrameReceiver, FrameSender};
use crate::{Frames, NetFrontEnd, NetOptions, Station};

/// When nothing arrived for this long, what is on its way counts as lost: longer than a scheduler's time slice.
const SILENCE: Duration = Duration::from_millis(20);
/// Frames taken, or sent, before the other side gets its turn.
const BATCH: usize = 64;
/// Of the frames on their way, the share of the receiver's buffers that they fill at the most: the rest is taken and
/// waits to be given back in a batch.
const FILL: (usize, usize) = (3, 4);
/// Descriptors that a client's queue may have, the least that suffice.
const QUEUES: [u16; 3] = [256, 512, 1024];
/// Frames that a client sends at a time.
const BURST: usize = 16;

/// A load from one guest.
#[derive(Clone, Debug)]
pub struct FrameLoad {
    /// Sizes of the frames.
    pub frames: Frames,
    /// Flows they belong to, each with a source port of its own.
    pub flows: u16,
    /// The sending guest.
    pub from: Station,
    /// The receiving guest.
    pub to: Station,
    /// Descriptors of a queue.
    pub queue_size: u16,
    /// How the client learns of frames.
    pub waiting: Waiting,
    /// The time before the measured one.
    pub warm_up: Duration,
    /// The measured time.
    pub duration: Duration,
    /// Measures the time that the client itself takes (a clock reading a batch more).
    pub profile: bool,
}

/// What came of a [`FrameLoad`].
#[derive(Clone, Debug, Default)]
pub struct FrameOutcome {
    /// Frames received; without latencies.
    pub received: Outcome,
    /// Bytes of them, without virtio-net headers and frame check sequences.
    pub bytes: u64,
    /// Frames sent from the begin of the measured time on that never arrived.
    pub lost: u64,
    /// Frames sent from the begin of the measured time on.
    pub sent: u64,
}

impl FrameLoad {
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
        buffers(self.queue_size) / FrameReceiver::buffers(self.frames)
    }
}

/// Buffers of a receive queue of `size` that frames on their way may fill.
fn buffers(size: u16) -> usize {
    usize::from(size) * FILL.0 / FILL.1
}

/// How a job sends.
#[derive(Clone, Copy, Debug)]
struct Sending {
    /// Frames on their way at full load.
    window: usize,
    /// The least that is sent at a time while others are on their way.
    least: usize,
    /// The most.
    most: usize,
}

/// Frames from a port to a sink. `P` owns or borrows the sending port.
pub struct FrameJob<P, S> {
    port: P,
    sender: FrameSender,
    sink: S,
    sending: Sending,
    /// Frames that are to be on their way now.
    target: usize,
    /// Frames below this number count as lost, should they not have arrived.
    written_off: u64,
    /// When a frame arrived last.
    last: u64,
    /// By number, modulo its length: when a frame was sent. None: latencies are not measured.
    sent_at: Option<Box<[u64]>>,
}

/// Two guests, one of which sends.
pub type FrameClient = FrameJob<NetFrontEnd, GuestSink<NetFrontEnd>>;

/// Frames of a [`FrameClient`], and their way.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Sizes of the frames.
    pub frames: Frames,
    /// Flows they belong to.
    pub flows: u16,
    /// The sending guest.
    pub from: Station,
    /// The receiving guest.
    pub to: Station,
    /// The MAC address that frames are sent to: the receiver's, or that of a gateway on the way.
    pub by: [u8; 6],
}

impl FrameClient {
    /// Connects both guests, to a server that may not listen yet; `depth` frames are on their way at full load.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn connect(sockets: [&Path; 2], route: Route, depth: usize) -> Result<FrameClient, LoadError> {
        let frames = route.frames;
        let Some(size) = QUEUES.into_iter().find(|size| (1..=buffers(*size)).contains(&depth)) else {
            let most = buffers(QUEUES[QUEUES.len() - 1]);
            return Err(LoadError::Load(format!("{depth} frames on their way: expected 1 to {most}")));
        };
        let port = |socket, memory| {
            let options = NetOptions {
                queue_size: size,
                format: Format::Split,
                required: Vec::new(),
                memory: memory + 4096,
                timeout: Duration::from_secs(5),
                status: false,
            };
            NetFrontEnd::connect_when_listening(socket, &options)
        };
        let sender = port(sockets[0], FrameSender::bytes(frames, size))?;
        let receiver = port(sockets[1], FrameReceiver::bytes(frames, size))?;
        let sink = GuestSink::new(receiver, size, frames)?;
        let sending = Sending { window: depth, least: 1, most: BURST };
        let mut job = FrameJob::new(sender, sink, size, route, sending)?;
        job.sent_at = Some(vec![0; 2 * usize::from(size)].into());
        Ok(job)
    }
}

impl<P: BorrowMut<NetFrontEnd>, S: FrameSink> FrameJob<P, S> {
    fn new(mut port: P, mut sink: S, size: u16, route: Route, sending: Sending) -> Result<FrameJob<P, S>, LoadError> {
        let hop = Station { mac: route.by, ..route.to };
        let sender = FrameSender::new(port.borrow_mut(), size, route.frames, route.flows, route.from, hop)?;
        // The server may have looked at the empty queues already, and gone to sleep.
        port.borrow_mut().transmit.kick();
        sink.kick();
        Ok(FrameJob { port, sender, sink, sending, target: 0, written_off: 0, last: 0, sent_at: None })
    }

    #[inline(always)]
    fn on_their_way(&self) -> usize {
        // A sink that counts frames instead of reading their numbers is ahead where some arrive that were written off.
        self.sender.sent().saturating_sub(self.sink.next().max(self.written_off)) as usize
    }

    /// Sends as many frames as there is room for, where that is a batch; whether it did. `now` is 0 where the clock was
    /// not read.
    #[inline(always)]
    fn send(&mut self, now: u64) -> bool {
        let Sending { least, most, .. } = self.sending;
        let on_their_way = self.on_their_way();
        let room = self.target.saturating_sub(on_their_way).min(most);
        if room == 0 || (room < least && on_their_way > 0) {
            return false;
        }
        let transmit = &mut self.port.borrow_mut().transmit;
        // The used ring's line belongs to the server: it is looked at when frames run out.
        if self.sender.free() < room {
            self.sender.reap(transmit);
        }
        let count = room.min(self.sender.free());
        if count == 0 || (count < least && self.sender.outstanding() > 0) {
            return false;
        }
        let first = self.sender.sent();
        if let Some(sent_at) = &mut self.sent_at {
            let now = if now == 0 { clock::now() } else { now };
            for number in first..first + count as u64 {
                sent_at[number as usize % sent_at.len()] = now;
            }
        }
        self.sender.send(transmit, count);
        true
    }
}

impl<P: BorrowMut<NetFrontEnd> + Send, S: FrameSink + Send> Job for FrameJob<P, S> {
    fn depth(&self) -> usize {
        self.sending.window
    }

    fn raise(&mut self, depth: usize) -> Result<(), LoadError> {
        self.target = self.target.max(depth.min(self.sending.window));
        self.last = clock::now();
        while self.send(self.last) {}
        Ok(())
    }

    #[inline(always)]
    fn turn(&mut self, most: usize, submits: bool, outcome: &mut Outcome) -> Result<Turn, LoadError> {
        let completed = self.sink.take(most).map_err(|source| LoadError::Corrupt {
            sent: self.sender.sent(),
            received: self.sink.received().0,
            source,
        })?;
        let now = if completed > 0 { clock::now() } else { 0 };
        if completed > 0 {
            self.last = now;
            outcome.completed(now, completed);
            if let Some(sent_at) = &self.sent_at {
                // Those before the last of a batch are taken to be the ones sent before it.
                let next = self.sink.next();
                for number in next.saturating_sub(completed as u64)..next {
                    outcome.record(now.saturating_sub(sent_at[number as usize % sent_at.len()]));
                }
            }
        }
        if !submits {
            self.target = 0;
        }
        let submitted = submits && self.send(now);
        Ok(Turn { completed, now, submitted })
    }

    fn in_flight(&self) -> usize {
        self.on_their_way()
    }

    fn check(&mut self, now: u64) -> Result<(), LoadError> {
        self.sender.reap(&mut self.port.borrow_mut().transmit);
        let silent = now.saturating_sub(self.last) >= SILENCE.as_nanos() as u64;
        // What the server has not taken is not lost.
        if silent && self.sender.outstanding() == 0 && self.on_their_way() > 0 {
            self.written_off = self.sender.sent();
            self.sink.write_off(self.written_off);
        }
        Ok(())
    }

    fn signals(&self) -> Signals {
        let transmit = &self.port.borrow().transmit;
        let (kicks, interrupts) = self.sink.signals();
        Signals { kicks: transmit.kicks() + kicks, interrupts: transmit.interrupts() + interrupts }
    }

    /// Frames, and where the transmit queue is what is full, its completions.
    fn arm(&mut self) -> bool {
        let starved = self.is_starved();
        self.sink.arm() || (starved && self.port.borrow_mut().transmit.driver.arm())
    }

    fn poll_fds<'a>(&'a self, fds: &mut PollFds<'a>) {
        fds.push(self.sink.poll_fd());
        if self.is_starved() {
            fds.push(self.port.borrow().transmit.poll_fd());
        }
    }

    fn woken(&mut self, _slept: bool) {
        self.sink.woken();
        if self.is_starved() {
            let transmit = &mut self.port.borrow_mut().transmit;
            transmit.take_notification();
            transmit.driver.disarm();
        }
    }

    fn overdue(&self, waited: Duration) -> LoadError {
        LoadError::Stalled {
            sent: self.sender.sent(),
            received: self.sink.received().0,
            outstanding: self.sender.outstanding(),
            waited,
        }
    }
}

impl<P: BorrowMut<NetFrontEnd>, S: FrameSink> FrameJob<P, S> {
    /// Whether there is room for frames on their way, but not in the transmit queue.
    fn is_starved(&self) -> bool {
        self.sender.free() < self.sending.least && self.on_their_way() < self.target
    }
}

/// Sends from `a` to `b`, both without a frame yet, from the calling thread.
///
/// # Errors
/// [`LoadError`].
pub fn run(a: &mut NetFrontEnd, b: &mut NetFrontEnd, load: &FrameLoad) -> Result<FrameOutcome, LoadError> {
    run_into(a, GuestSink::new(b, load.queue_size, load.frames)?, load)
}

/// Sends from `a`, without a frame yet, to `sink`, from the calling thread.
///
/// # Errors
/// [`LoadError`].
pub fn run_into<S: FrameSink + Send>(
    a: &mut NetFrontEnd,
    sink: S,
    load: &FrameLoad,
) -> Result<FrameOutcome, LoadError> {
    let FrameLoad { frames, flows, from, to, queue_size, waiting, profile, .. } = *load;
    let window = load.window();
    if window == 0 || flows == 0 {
        return Err(LoadError::Load(format!(
            "a queue of {queue_size} descriptors is too small for frames of {} bytes, or there are no flows",
            frames.longest()
        )));
    }
    let sending = Sending { window, least: Pace::new(window).batch(), most: BATCH };
    let mut job = FrameJob::new(a, sink, queue_size, Route { frames, flows, from, to, by: to.mac }, sending)?;
    let mut received = [Outcome::default()];
    let mut generator = Generator::new(GeneratorOptions { waiting, batch: BATCH, pace: Some(window), profile });
    generator.start(&mut [&mut job])?;
    generator.warm_up(&mut [&mut job], load.warm_up)?;
    // Numbers below this were sent before, whether they arrived or not.
    let (first, before) = (job.sink.next(), job.sink.received());
    generator.measure(&mut [&mut job], load.duration, &mut received)?;
    let bytes = job.sink.received().1 - before.1;
    generator.drain(&mut [&mut job])?;
    let sent = job.sender.sent() - first;
    let lost = sent.saturating_sub(job.sink.received().0 - before.0);
    let [received] = received;
    Ok(FrameOutcome { received, bytes, lost, sent })
}
