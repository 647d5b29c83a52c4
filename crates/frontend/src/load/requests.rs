//! A closed-loop load: every queue is kept at a depth by submitting again as soon as something comes back.
//!
//! The measured loop makes no allocation and, when polling, no system call but the kicks the device asks for. Requests
//! are [prepared](crate::BlockQueue::prepare): per request the client stores a sector, resets a status byte and writes
//! one ring entry; per batch it stores one index and looks once whether to kick. The clock is read once a batch, so a
//! latency is from the publishing of a batch (its clock reading) to the round that found the completion.

use std::fmt;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use softdpu_sys::clock;
use thiserror::Error;

use super::pace::Pace;
use crate::block::{BlockCompletion, wait_for_any};
use crate::{BlockQueue, FrontEndError, Tag, Transfer};

/// How the client learns of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Waiting {
    /// It looks at the ring all the time; notifications are off.
    Polling,
    /// It sleeps on the call eventfd whenever nothing is there.
    Blocking,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waiting::Polling => "polling",
            Waiting::Blocking => "blocking",
        })
    }
}

/// Which sectors, which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// Read or write.
    pub transfer: Transfer,
    /// Anywhere, or one behind the other.
    pub random: bool,
}

impl Pattern {
    /// As fio calls it.
    pub fn name(self) -> &'static str {
        match (self.transfer, self.random) {
            (Transfer::Read, true) => "randread",
            (Transfer::Read, false) => "read",
            (Transfer::Write, true) => "randwrite",
            (Transfer::Write, false) => "write",
        }
    }
}

/// What to do to a device.
#[derive(Clone, Debug)]
pub struct Load {
    /// Which sectors, which way.
    pub pattern: Pattern,
    /// Bytes of a request, a multiple of 512.
    pub block_size: u32,
    /// Requests in flight on each queue.
    pub depth: usize,
    /// How to wait.
    pub waiting: Waiting,
    /// Sectors of the device that are used.
    pub sectors: u64,
    /// Before counting starts.
    pub warm_up: Duration,
    /// Of counting.
    pub duration: Duration,
    /// Where the random sequence starts.
    pub seed: u64,
    /// Measures the time the client itself takes (two clock readings a batch more).
    pub profile: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Requests completed.
    pub requests: u64,
    /// In how long.
    pub elapsed: Duration,
    /// Latencies, nanoseconds.
    pub latency: Histogram<u64>,
    /// Batches taken: rounds that found something.
    pub batches: u64,
    /// Kicks sent.
    pub kicks: u64,
    /// Notifications slept for.
    pub interrupts: u64,
    /// From finding completions to having published what follows them; of a profiled load.
    pub busy: Option<Duration>,
}

impl Outcome {
    /// Requests a second.
    pub fn iops(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }
}

/// Why a load ended early.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The front end.
    #[error(transparent)]
    FrontEnd(#[from] FrontEndError),
    /// A request failed.
    #[error(
        "a request at queue {queue} ended with status {status} (0 OK, 1 I/O error, 2 unsupported, 255 none written)"
    )]
    Status {
        /// The queue.
        queue: u16,
        /// The status byte.
        status: u8,
    },
    /// The load makes no sense.
    #[error("{0}")]
    Load(String),
}

/// A device that completes nothing for this long is given up.
const STALL: Duration = Duration::from_secs(5);
/// Longest latency told apart: beyond, a request counts as this long. More than [`STALL`].
const LONGEST: u64 = 60_000_000_000;
/// Completions taken before what follows them is handed over.
const BATCH: usize = 64;

/// A queue under load. By tag: when its request was handed over.
struct Lane {
    sent: Vec<u64>,
    last: usize,
}

/// Which sector comes next.
struct Sectors {
    state: u64,
    random: bool,
    /// Blocks of the device.
    blocks: u64,
    /// Sectors of a block.
    block: u64,
}

impl Sectors {
    #[inline(always)]
    fn next(&mut self) -> u64 {
        if self.random {
            // Marsaglia's xorshift64; the high half of a product brings it into range without a division.
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            ((u128::from(self.state) * u128::from(self.blocks)) >> 64) as u64 * self.block
        } else {
            self.state = if self.state + 1 >= self.blocks { 0 } else { self.state + 1 };
            self.state * self.block
        }
    }
}

struct Run<'a> {
    queues: &'a mut [BlockQueue],
    lanes: Vec<Lane>,
    sectors: Sectors,
    latency: Histogram<u64>,
    batches: u64,
    busy: u64,
    pace: Pace,
}

/// Runs `load` on `queues`, from one thread. The queues have nothing in flight, before and (after a success)
/// afterwards; the requests prepared for it stay with the queues, so a queue serves one load.
///
/// # Errors
/// [`LoadError`]; requests may then be in flight.
pub fn run(queues: &mut [BlockQueue], load: &Load) -> Result<Outcome, LoadError> {
    let block = u64::from(load.block_size / 512);
    if block == 0 || !load.block_size.is_multiple_of(512) || load.sectors < block {
        return Err(LoadError::Load(format!(
            "requests of {} bytes on a device of {} sectors of 512 bytes",
            load.block_size, load.sectors
        )));
    }
    if load.depth == 0 || queues.is_empty() {
        return Err(LoadError::Load("a load has at least one queue and one request in flight".to_owned()));
    }
    let mut lanes = Vec::with_capacity(queues.len());
    let mut prepared = Vec::with_capacity(queues.len());
    for queue in queues.iter_mut() {
        prepared.push(queue.prepare(load.pattern.transfer, load.block_size, load.depth)?);
        lanes.push(Lane { sent: vec![0; queue.depth()], last: 0 });
        queue.disarm();
    }
    let blocks = load.sectors / block;
    let state = if load.pattern.random { load.seed | 1 } else { load.seed % blocks };
    let mut run = Run {
        queues,
        lanes,
        sectors: Sectors { state, random: load.pattern.random, blocks, block },
        latency: Histogram::new_with_bounds(1, LONGEST, 3).map_err(|error| LoadError::Load(error.to_string()))?,
        batches: 0,
        busy: 0,
        pace: Pace::new(load.depth),
    };
    run.fill(&prepared);
    run.phase(load, load.warm_up, true)?;
    run.latency.reset();
    run.batches = 0;
    run.busy = 0;
    let (kicks, interrupts) = run.counts();
    let start = clock::now();
    run.phase(load, load.duration, true)?;
    let elapsed = Duration::from_nanos(clock::now() - start);
    let (latency, batches, busy) = (run.latency.clone(), run.batches, run.busy);
    let (kicks, interrupts) = (run.counts().0 - kicks, run.counts().1 - interrupts);
    run.phase(load, STALL, false)?;
    Ok(Outcome {
        requests: latency.len(),
        elapsed,
        latency,
        batches,
        kicks,
        interrupts,
        busy: load.profile.then(|| Duration::from_nanos(busy)),
    })
}

impl Run<'_> {
    fn fill(&mut self, prepared: &[Vec<Tag>]) {
        for ((queue, lane), tags) in self.queues.iter_mut().zip(&mut self.lanes).zip(prepared) {
            let now = clock::now();
            for tag in tags {
                lane.sent[usize::from(*tag)] = now;
                queue.repeat(*tag, self.sectors.next());
            }
            queue.publish();
        }
    }

    fn counts(&self) -> (u64, u64) {
        self.queues.iter().fold((0, 0), |(k, i), queue| (k + queue.kicks(), i + queue.interrupts()))
    }

    fn phase(&mut self, load: &Load, duration: Duration, refill: bool) -> Result<(), LoadError> {
        let end = clock::now() + duration.as_nanos() as u64;
        match (load.profile, refill) {
            (false, true) => self.rounds::<false, true>(load.waiting, end),
            (true, true) => self.rounds::<true, true>(load.waiting, end),
            (_, false) => self.rounds::<false, false>(load.waiting, end),
        }
    }

    /// Rounds over all queues until `end` (refilling), or until nothing is in flight.
    fn rounds<const PROFILE: bool, const REFILL: bool>(&mut self, waiting: Waiting, end: u64) -> Result<(), LoadError> {
        let mut empty = 0u32;
        let mut stalled: Option<Instant> = None;
        loop {
            let mut found = false;
            for at in 0..self.queues.len() {
                if let Some(first) = self.queues[at].poll() {
                    let now = self.batch::<PROFILE, REFILL>(at, first)?;
                    if REFILL && now >= end {
                        return Ok(());
                    }
                    found = true;
                }
            }
            if !REFILL && self.queues.iter().all(|queue| queue.outstanding() == 0) {
                return Ok(());
            }
            if found {
                empty = 0;
                continue;
            }
            match waiting {
                Waiting::Polling => {
                    empty = empty.wrapping_add(1);
                    if empty == 0x10_0000 {
                        empty = 0;
                        let since = *stalled.get_or_insert_with(Instant::now);
                        if since.elapsed() > STALL {
                            return Err(self.stalled());
                        }
                    } else if empty == 1 {
                        stalled = None;
                    }
                }
                Waiting::Blocking => {
                    let slipped = self.queues.iter_mut().any(BlockQueue::arm);
                    if !slipped && wait_for_any(self.queues, Instant::now() + STALL).is_err() {
                        return Err(self.stalled());
                    }
                }
            }
        }
    }

    /// Takes what is there, up to [`BATCH`], and hands over as many new requests. The time it saw.
    #[inline(always)]
    fn batch<const PROFILE: bool, const REFILL: bool>(
        &mut self,
        at: usize,
        first: BlockCompletion,
    ) -> Result<u64, LoadError> {
        let (queue, lane) = (&mut self.queues[at], &mut self.lanes[at]);
        let now = clock::now();
        let mut done = first;
        let mut taken = 0;
        loop {
            if done.status != 0 {
                return Err(LoadError::Status { queue: queue.index(), status: done.status });
            }
            let sent = &mut lane.sent[usize::from(done.tag)];
            self.latency.saturating_record(now.saturating_sub(*sent));
            if REFILL {
                *sent = now;
                queue.repeat(done.tag, self.sectors.next());
            }
            taken += 1;
            if taken == BATCH {
                break;
            }
            match queue.poll() {
                Some(next) => done = next,
                None => break,
            }
        }
        queue.publish();
        self.batches += 1;
        lane.last += taken;
        if lane.last >= 1 << 14 {
            // With EVENT_IDX "no notification" is an index half the range behind; it has to move along.
            lane.last = 0;
            queue.disarm();
        }
        if PROFILE {
            self.busy += clock::now() - now;
        }
        self.pace.wait(now, taken);
        Ok(now)
    }

    fn stalled(&self) -> LoadError {
        let worst = self.queues.iter().max_by_key(|queue| queue.outstanding());
        match worst {
            Some(queue) => queue.overdue(STALL).into(),
            None => LoadError::Load("no queue".to_owned()),
        }
    }
}
