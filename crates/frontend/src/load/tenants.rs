//! Closed loops of several tenants at once, from one thread.
//!
//! Each tenant keeps so many requests in flight: a [`Client`] at a disk with one queue, a
//! [`Stream`](super::stream::Stream) as frames between two interfaces. What all have is counted over the same time;
//! latencies are from the publishing of a request to the round that found its completion, by one clock reading a visit.

use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use softdpu_sys::{affinity, clock};

use super::requests::LoadError;
use crate::{BlockFrontEnd, BlockOptions, BlockQueue, Tag, Transfer};

/// Completions of one tenant that are taken before the next tenant is looked at: the client's own fairness.
const VISIT: usize = 8;
/// And where one has a single request at a time, whose answer is not to wait for the clients' own work on others'.
const SHORT_VISIT: usize = 2;
/// Time slices in which each tenant's requests are counted, for how steady they are.
const SLICES: u64 = 20;
/// Longest latency told apart.
const LONGEST: u64 = 60_000_000_000;
/// A device that completes nothing for this long is given up.
const STALL: Duration = Duration::from_secs(10);

/// What a tenant does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Reads or writes.
    pub transfer: Transfer,
    /// Bytes of a request, a multiple of 512.
    pub block_size: u32,
    /// Requests in flight.
    pub depth: usize,
}

/// What a tenant keeps going.
pub trait Loop: Send {
    /// What it has in flight when all that it wants is.
    fn depth(&self) -> usize;

    /// Raises what it keeps in flight to at most `depth`, and hands that over.
    ///
    /// # Errors
    /// [`LoadError`].
    fn raise(&mut self, depth: usize, now: u64) -> Result<(), LoadError>;

    /// Takes what is there, at most `most`, counts it if it is to be, and hands over as much if it `goes_on`. How many.
    ///
    /// # Errors
    /// [`LoadError`].
    fn visit(&mut self, served: Option<(&mut Served, usize)>, goes_on: bool, most: usize) -> Result<usize, LoadError>;

    /// What is in flight.
    fn outstanding(&mut self) -> usize;

    /// Nothing came back for so long.
    fn overdue(&mut self, waited: Duration) -> LoadError;
}

impl<L: Loop + ?Sized> Loop for Box<L> {
    fn depth(&self) -> usize {
        (**self).depth()
    }

    fn raise(&mut self, depth: usize, now: u64) -> Result<(), LoadError> {
        (**self).raise(depth, now)
    }

    fn visit(&mut self, served: Option<(&mut Served, usize)>, goes_on: bool, most: usize) -> Result<usize, LoadError> {
        (**self).visit(served, goes_on, most)
    }

    fn outstanding(&mut self) -> usize {
        (**self).outstanding()
    }

    fn overdue(&mut self, waited: Duration) -> LoadError {
        (**self).overdue(waited)
    }
}

/// A tenant's driver.
pub struct Client {
    front_end: BlockFrontEnd,
    work: Work,
    /// Those that are not used yet.
    idle: Vec<Tag>,
    /// Of the tags, those in use.
    active: usize,
    /// By tag: when it was handed over.
    sent: Vec<u64>,
    blocks: u64,
    next: u64,
}

/// What a tenant got.
#[derive(Clone, Debug)]
pub struct Served {
    /// Requests completed.
    pub requests: u64,
    /// In how long.
    pub elapsed: Duration,
    /// Latencies, nanoseconds.
    pub latency: Histogram<u64>,
    /// Requests in each twentieth of the time.
    pub slices: Vec<u64>,
}

impl Served {
    /// Requests a second.
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency that a share `quantile` of the requests did not exceed, nanoseconds.
    pub fn latency_at(&self, quantile: f64) -> u64 {
        self.latency.value_at_quantile(quantile)
    }

    /// Standard deviation over mean of the rate in twentieths of the time: 0 is steady.
    pub fn unsteadiness(&self) -> f64 {
        let count = self.slices.len().max(1) as f64;
        let mean = self.slices.iter().sum::<u64>() as f64 / count;
        let variance = self.slices.iter().map(|slice| (*slice as f64 - mean).powi(2)).sum::<f64>() / count;
        if mean > 0.0 { variance.sqrt() / mean } else { 0.0 }
    }
}

impl Client {
    /// Connects to a disk.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn connect(socket: &Path, work: Work) -> Result<Client, LoadError> {
        // A request takes three descriptors.
        let queue_size = (work.depth * 3).next_power_of_two().clamp(64, 1024) as u16;
        let options = BlockOptions { queue_size, max_transfer: work.block_size, ..BlockOptions::default() };
        let mut front_end = BlockFrontEnd::connect_when_listening(socket, &options)?;
        let block = u64::from(work.block_size / 512);
        let blocks = front_end.capacity() / block.max(1);
        if block == 0 || blocks == 0 || work.depth == 0 {
            return Err(LoadError::Load(format!("{work:?} on a device of {} sectors", front_end.capacity())));
        }
        let queue = front_end.queue_mut(0);
        let tags = queue.prepare(work.transfer, work.block_size, work.depth)?;
        let sent = vec![0; queue.depth()];
        queue.disarm();
        Ok(Client { front_end, work, idle: tags, active: 0, sent, blocks, next: 0 })
    }

    fn queue(&mut self) -> &mut BlockQueue {
        self.front_end.queue_mut(0)
    }

    #[inline]
    fn hand_over(&mut self, tag: Tag, now: u64) {
        // Neighbours are no nearer to each other than others.
        self.next = (self.next + 7_919) % self.blocks;
        let sector = self.next * u64::from(self.work.block_size / 512);
        self.sent[usize::from(tag)] = now;
        self.queue().repeat(tag, sector);
    }
}

impl Loop for Client {
    fn depth(&self) -> usize {
        self.work.depth
    }

    fn raise(&mut self, depth: usize, now: u64) -> Result<(), LoadError> {
        while self.active < depth.min(self.work.depth) {
            let Some(tag) = self.idle.pop() else { break };
            self.hand_over(tag, now);
            self.active += 1;
        }
        self.queue().publish();
        Ok(())
    }

    fn visit(&mut self, served: Option<(&mut Served, usize)>, goes_on: bool, most: usize) -> Result<usize, LoadError> {
        let Some(first) = self.queue().poll() else { return Ok(0) };
        let now = clock::now();
        let (mut done, mut taken) = (first, 0);
        let mut served = served;
        loop {
            if done.status != 0 {
                return Err(LoadError::Status { queue: 0, status: done.status });
            }
            taken += 1;
            if let Some((served, slice)) = &mut served {
                served.requests += 1;
                served.latency.saturating_record(now.saturating_sub(self.sent[usize::from(done.tag)]));
                served.slices[*slice] += 1;
            }
            if goes_on {
                self.hand_over(done.tag, now);
            } else {
                self.idle.push(done.tag);
                self.active -= 1;
            }
            if taken == most {
                break;
            }
            match self.queue().poll() {
                Some(next) => done = next,
                None => break,
            }
        }
        self.queue().publish();
        // With EVENT_IDX "no notification" is an index half the range behind; it has to move along.
        self.queue().disarm();
        Ok(taken)
    }

    fn outstanding(&mut self) -> usize {
        self.queue().outstanding()
    }

    fn overdue(&mut self, waited: Duration) -> LoadError {
        self.queue().overdue(waited).into()
    }
}

/// A part of a run.
#[derive(Clone, Debug)]
pub struct Span {
    /// How long it is.
    pub length: Duration,
    /// By active client, what it has in flight from here on at the least: nobody goes back to less. None: all that it
    /// wants.
    pub depths: Option<Vec<usize>>,
}

/// Lets those clients whose number is in `active` do their work at once, from a thread on `cpu`, ahead of other
/// programs. What each of them got.
///
/// # Errors
/// [`LoadError`].
pub fn run<L: Loop>(
    clients: &mut [L],
    active: &[usize],
    cpu: usize,
    warm_up: Duration,
    duration: Duration,
) -> Result<Vec<Served>, LoadError> {
    run_as(true, clients, active, cpu, warm_up, duration)
}

/// The same, `first` or as any program: where a server that the work goes on to needs the CPU as well.
///
/// # Errors
/// [`LoadError`].
pub fn run_as<L: Loop>(
    first: bool,
    clients: &mut [L],
    active: &[usize],
    cpu: usize,
    warm_up: Duration,
    duration: Duration,
) -> Result<Vec<Served>, LoadError> {
    let spans = [warm_up, duration].map(|length| Span { length, depths: None });
    Ok(run_spans(first, clients, active, cpu, &spans)?.pop().unwrap_or_default())
}

/// The same over several spans without a pause between them. What each client got, span by span.
///
/// # Errors
/// [`LoadError`].
pub fn run_spans<L: Loop>(
    first: bool,
    clients: &mut [L],
    active: &[usize],
    cpu: usize,
    spans: &[Span],
) -> Result<Vec<Vec<Served>>, LoadError> {
    let failed = |what: &str| LoadError::Load(what.to_owned());
    std::thread::scope(|scope| {
        let run = || {
            affinity::pin_to(cpu).map_err(|error| failed(&format!("CPU {cpu} of the clients: {error}")))?;
            // As the data plane's core has it: else other programs take turns with the clients, which then have nothing
            // in flight.
            let _first = first.then(|| {
                let _ = affinity::highest_nice();
                affinity::SessionFirst::new()
            });
            run_here(clients, active, spans)
        };
        scope.spawn(run).join().unwrap_or_else(|_| Err(failed("the clients' thread panicked")))
    })
}

fn run_here<L: Loop>(clients: &mut [L], active: &[usize], spans: &[Span]) -> Result<Vec<Vec<Served>>, LoadError> {
    let most = if active.iter().any(|&at| clients[at].depth() == 1) { SHORT_VISIT } else { VISIT };
    let mut all = Vec::new();
    for span in spans {
        all.push(run_span(clients, active, span, most)?);
    }
    let mut last = Instant::now();
    while active.iter().any(|&at| clients[at].outstanding() > 0) {
        for &at in active {
            if clients[at].visit(None, false, VISIT)? > 0 {
                last = Instant::now();
            }
        }
        if last.elapsed() > STALL {
            return Err(stalled(clients, active));
        }
    }
    Ok(all)
}

fn run_span<L: Loop>(clients: &mut [L], active: &[usize], span: &Span, most: usize) -> Result<Vec<Served>, LoadError> {
    let latency = Histogram::new_with_bounds(1, LONGEST, 3).map_err(|error| LoadError::Load(error.to_string()))?;
    let nothing = Served { requests: 0, elapsed: span.length, latency, slices: vec![0; SLICES as usize] };
    let mut all = vec![nothing; active.len()];
    let (start, length) = (clock::now(), span.length.as_nanos() as u64);
    for (place, &at) in active.iter().enumerate() {
        let depth = span.depths.as_ref().map_or(usize::MAX, |depths| depths[place]);
        clients[at].raise(depth, clock::now())?;
    }
    let mut last = Instant::now();
    loop {
        let now = clock::now();
        if now >= start + length {
            return Ok(all);
        }
        let slice = ((now - start) * SLICES / length) as usize;
        let mut any = false;
        for (&at, served) in active.iter().zip(&mut all) {
            any |= clients[at].visit(Some((served, slice)), true, most)? > 0;
        }
        if any {
            last = Instant::now();
        } else if last.elapsed() > STALL {
            return Err(stalled(clients, active));
        }
    }
}

fn stalled<L: Loop>(clients: &mut [L], active: &[usize]) -> LoadError {
    match active.iter().copied().find(|&at| clients[at].outstanding() > 0) {
        Some(at) => clients[at].overdue(STALL),
        None => LoadError::Load("nobody has anything in flight".to_owned()),
    }
}
