//! Two well-behaved guests: numbered frames from one to the other, at a pace, and a look at each byte that arrives.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use softdpu_frontend::net::{FrameReceiver, FrameSender};
use softdpu_frontend::{Format, Frames, NetFrontEnd, NetOptions};
use softdpu_sys::affinity;
use softdpu_tests::{Context, Failure, Worker, wait_until};

use crate::SOON;
use crate::packets::{A, B};
use crate::scene::Scene;

/// Descriptors of a queue: what is sent in some milliseconds in which the machine runs something else.
const SIZE: u16 = 1024;
/// Frames a second that disturb no other guest.
pub const GENTLE: u64 = 5_000;
/// Bytes of a frame.
const LEN: u64 = 60;
/// Frames taken before more are sent.
const BATCH: usize = 64;
/// Nice value: the data-plane core's own, or the kernel would divide what their session gets of a busy machine by
/// these.
const NICE: i32 = -20;
/// How long it sleeps when there is nothing to do.
const PAUSE: Duration = Duration::from_micros(100);
/// The longest time between two looks that frames become due in. In more, the machine ran something else instead of
/// the pair, which asks for nothing then.
const LONGEST_LOOK: Duration = Duration::from_micros(500);

#[derive(Debug, Default)]
struct Counts {
    /// Nothing more is sent.
    closing: AtomicBool,
    /// Frames a second; 0: as many as go.
    pace: AtomicU64,
    /// Frames that were due by the pace.
    asked: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

pub struct Pair(Worker<Counts>);

/// Gives the calling thread a nice value and keeps it off CPU 0, which the data-plane core polls on: the kernel's load
/// balancer would move it there for hundreds of milliseconds, now and then.
pub fn run_as_guest(nice: i32) -> Result<(), Failure> {
    if let Some(&cpu) = affinity::allowed().iter().rfind(|&&cpu| cpu != 0) {
        affinity::pin_to(cpu).context("pinning a guest's thread")?;
    }
    rustix::process::nice(nice).context("nice")?;
    Ok(())
}

impl Pair {
    /// Starts at a pace, or at full speed.
    pub fn start(scene: &Scene, pace: Option<u64>) -> Result<Pair, Failure> {
        let connect = |name: &str, memory| {
            let options = NetOptions {
                queue_size: SIZE,
                format: Format::Split,
                required: Vec::new(),
                memory,
                timeout: SOON,
                status: false,
            };
            NetFrontEnd::connect(&scene.socket(name), &options).context(format_args!("connecting {name}"))
        };
        let frames = Frames::Smallest;
        let mut a = connect("a", FrameSender::bytes(frames, SIZE))?;
        let mut b = connect("b", FrameReceiver::bytes(frames, SIZE) + 64)?;
        let mut receiver = FrameReceiver::new(&mut b, SIZE, frames).context("the receiver")?;
        receiver.look_at_all(A, B);
        let sender = FrameSender::new(&mut a, SIZE, frames, 16, A, B).context("the sender")?;
        let ends = Ends { a, b, sender, receiver };
        let counts = Counts { pace: AtomicU64::new(pace.unwrap_or(0)), ..Counts::default() };
        Ok(Pair(Worker::start("the pair", counts, |counts, stop| {
            // Without the right to this priority, the machine has to be quiet.
            let _ = run_as_guest(NICE);
            work(ends, counts, stop)
        })))
    }

    pub fn set_pace(&self, pace: u64) {
        self.0.counts().pace.store(pace, Relaxed);
    }

    /// Frames received; an error if one of them was not what was sent.
    pub fn received(&self) -> Result<u64, Failure> {
        Ok(self.0.undisturbed()?.received.load(Relaxed))
    }

    /// Frames a second that are received in the next `time`.
    pub fn rate(&self, time: Duration) -> Result<f64, Failure> {
        let (start, before) = (Instant::now(), self.received()?);
        std::thread::sleep(time);
        Ok((self.received()? - before) as f64 / start.elapsed().as_secs_f64())
    }

    /// What arrives of so many frames that are due from now on, as a share.
    pub fn served(&self, frames: u64) -> Result<f64, Failure> {
        let asked = || self.0.counts().asked.load(Relaxed);
        let (before, received) = (asked(), self.received()?);
        wait_until("the pair to ask for its frames", SOON, || {
            let due = asked() - before;
            let now = self.received()? - received;
            Ok((due >= frames).then(|| now as f64 / due as f64))
        })
    }

    /// Fails unless frames arrived since `before`, or soon do.
    pub fn goes_on(&self, before: u64) -> Result<(), Failure> {
        wait_until("the pair to go on", SOON, || Ok((self.received()? > before + 1).then_some(())))
    }

    /// Ends it when what was sent has arrived, and compares what it counted with what `status` shows; in words.
    pub fn stop(&mut self, scene: &Scene) -> Result<String, Failure> {
        let counts = self.0.counts();
        counts.closing.store(true, Relaxed);
        let all = || {
            let [a, b] = scene.pair()?;
            let (sent, received) = (counts.sent.load(Relaxed), self.received()?);
            // What was lost on the way, its receiver being slow, is counted there.
            let same =
                a.count("frames_in") == sent && b.count("frames_out") == received && sent == received + b.drops();
            let bytes = a.count("bytes_in") == sent * LEN && b.count("bytes_out") == received * LEN;
            // Queue by queue the same: the sender's transmit queue, the receiver's receive queue.
            let by_queue = scene.queue("a-nic", 1)? == [sent, sent * LEN, 0]
                && scene.queue("b-nic", 0)? == [received, received * LEN, b.drops()];
            Ok((same && bytes && by_queue && a.drops() == 0)
                .then(|| format!("the pair received {received} of {sent} frames")))
        };
        let seen = wait_until("status to show what the pair sent and received", SOON, all).map_err(|error| {
            let ports = scene.pair().map(|[a, b]| format!("{a}, {b}")).unwrap_or_default();
            Failure::new(format!("{error}: {counts:?}; it shows {ports}"))
        });
        self.0.stop()?;
        seen
    }
}

struct Ends {
    a: NetFrontEnd,
    b: NetFrontEnd,
    sender: FrameSender,
    receiver: FrameReceiver,
}

fn work(mut ends: Ends, counts: &Counts, stop: &AtomicBool) -> Result<(), Failure> {
    let (mut pace, mut looked, mut asked, mut debt) = (0, Instant::now(), 0.0, 0.0);
    while !stop.load(Relaxed) {
        let wanted = counts.pace.load(Relaxed);
        let elapsed = looked.elapsed();
        looked += elapsed;
        if wanted != pace {
            (pace, debt) = (wanted, 0.0);
        }
        let new = elapsed.min(LONGEST_LOOK).as_secs_f64() * pace as f64;
        (asked, debt) = (asked + new, debt + new);
        counts.asked.store(asked as u64, Relaxed);
        let due = match pace {
            _ if counts.closing.load(Relaxed) => 0,
            0 => usize::MAX,
            _ => debt as usize,
        };
        ends.sender.reap(&mut ends.a.transmit);
        let count = due.min(BATCH).min(ends.sender.free());
        if count > 0 {
            ends.sender.send(&mut ends.a.transmit, count);
            debt -= count as f64;
            counts.sent.store(ends.sender.sent(), Relaxed);
        }
        let taken = ends.receiver.take(&mut ends.b.receive, BATCH).context("receiving")?;
        counts.received.store(ends.receiver.received(), Relaxed);
        if taken == 0 && (count == 0 || due < BATCH) {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}
