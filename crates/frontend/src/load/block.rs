//! Reads or writes at a disk's queue.
//!
//! Requests are [prepared](crate::BlockQueue::prepare): per request the client stores a sector, resets a status byte
//! and writes one ring entry; per batch it stores one index and looks once whether to kick. A latency is from the
//! publishing of a batch (its clock reading) to the turn that found the completion.

use std::borrow::{Borrow, BorrowMut};
use std::path::Path;
use std::time::Duration;

use super::generator::{Generator, GeneratorOptions, Job, PollFds, Signals, Turn, Waiting};
use super::{LoadError, Outcome};
use crate::{BlockFrontEnd, BlockOptions, BlockQueue, Tag, Transfer};
use softdpu_sys::clock;

/// Bytes of a sector.
const SECTOR: u32 = 512;
/// Completions taken before the requests that follow them are published.
const BATCH: usize = 64;

/// An access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// Read or write.
    pub transfer: Transfer,
    /// Sectors at random, or in their order.
    pub random: bool,
}

impl Pattern {
    /// The name that fio has for it.
    pub fn name(self) -> &'static str {
        match (self.transfer, self.random) {
            (Transfer::Read, true) => "randread",
            (Transfer::Read, false) => "read",
            (Transfer::Write, true) => "randwrite",
            (Transfer::Write, false) => "write",
        }
    }
}

/// A load on all queues of a disk.
#[derive(Clone, Debug)]
pub struct BlockLoad {
    /// The access pattern.
    pub pattern: Pattern,
    /// Bytes of a request, a multiple of 512.
    pub block_size: u32,
    /// Requests in flight on each queue.
    pub depth: usize,
    /// How the client learns of completions.
    pub waiting: Waiting,
    /// Sectors of the device that are used.
    pub sectors: u64,
    /// The time before the measured one.
    pub warm_up: Duration,
    /// The measured time.
    pub duration: Duration,
    /// Where the random sequence starts.
    pub seed: u64,
    /// Measures the time that the client itself takes (two clock readings a batch more).
    pub profile: bool,
}

/// Sectors of requests, one after the other.
#[derive(Clone, Debug)]
enum Sectors {
    /// Anywhere: wyrand, which its seed determines.
    Random(fastrand::Rng),
    /// The next of the block numbers that begin at `next` and are `step` apart.
    Sequential { next: u64, step: u64 },
}

/// A queue under load. `Q` owns or borrows the queue.
pub struct BlockJob<Q> {
    queue: Q,
    depth: usize,
    /// Prepared requests that are not in flight.
    idle: Vec<Tag>,
    /// By tag: when its request was published.
    sent: Vec<u64>,
    sectors: Sectors,
    /// Blocks of the device that are used, and sectors of a block.
    blocks: u64,
    block: u64,
}

/// A front end whose first queue is under load.
pub struct FirstQueue(BlockFrontEnd);

impl Borrow<BlockQueue> for FirstQueue {
    fn borrow(&self) -> &BlockQueue {
        self.0.queue(0)
    }
}

impl BorrowMut<BlockQueue> for FirstQueue {
    fn borrow_mut(&mut self) -> &mut BlockQueue {
        self.0.queue_mut(0)
    }
}

/// A disk's driver with one queue.
pub type BlockClient = BlockJob<FirstQueue>;

/// What a [`BlockClient`] does: reads or writes anywhere on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockWork {
    /// Reads or writes.
    pub transfer: Transfer,
    /// Bytes of a request, a multiple of 512.
    pub block_size: u32,
    /// Requests in flight.
    pub depth: usize,
}

impl BlockClient {
    /// Connects to a disk.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn connect(socket: &Path, work: BlockWork) -> Result<BlockClient, LoadError> {
        let BlockWork { transfer, block_size, depth } = work;
        // A request takes three descriptors.
        let queue_size = (depth * 3).next_power_of_two().clamp(64, 1024) as u16;
        let options = BlockOptions { queue_size, max_transfer: block_size, ..BlockOptions::default() };
        let front_end = BlockFrontEnd::connect_when_listening(socket, &options)?;
        let sectors = front_end.capacity();
        BlockJob::new(FirstQueue(front_end), transfer, block_size, depth, sectors, |_| {
            Sectors::Random(fastrand::Rng::with_seed(1))
        })
    }
}

impl<Q: BorrowMut<BlockQueue>> BlockJob<Q> {
    fn new(
        mut queue: Q,
        transfer: Transfer,
        block_size: u32,
        depth: usize,
        sectors: u64,
        order: impl FnOnce(u64) -> Sectors,
    ) -> Result<BlockJob<Q>, LoadError> {
        let block = u64::from(block_size / SECTOR);
        if block == 0 || !block_size.is_multiple_of(SECTOR) || sectors < block || depth == 0 {
            return Err(LoadError::Load(format!(
                "{depth} requests of {block_size} bytes on a device of {sectors} sectors of {SECTOR} bytes"
            )));
        }
        let ring = queue.borrow_mut();
        let idle = ring.prepare(transfer, block_size, depth)?;
        let sent = vec![0; ring.depth()];
        ring.disarm();
        let blocks = sectors / block;
        Ok(BlockJob { queue, depth, idle, sent, sectors: order(blocks), blocks, block })
    }
}

impl Sectors {
    #[inline(always)]
    fn next(&mut self, blocks: u64, block: u64) -> u64 {
        match self {
            Sectors::Random(random) => random.u64(0..blocks) * block,
            Sectors::Sequential { next, step } => {
                let at = *next;
                *next = at + *step;
                if *next >= blocks {
                    *next %= blocks;
                }
                at * block
            }
        }
    }
}

impl<Q: BorrowMut<BlockQueue> + Send> Job for BlockJob<Q> {
    fn depth(&self) -> usize {
        self.depth
    }

    fn raise(&mut self, depth: usize) -> Result<(), LoadError> {
        let BlockJob { queue, idle, sent, sectors, blocks, block, .. } = self;
        let queue = queue.borrow_mut();
        let now = clock::now();
        while queue.outstanding() < depth
            && let Some(tag) = idle.pop()
        {
            sent[usize::from(tag)] = now;
            queue.repeat(tag, sectors.next(*blocks, *block));
        }
        queue.publish();
        Ok(())
    }

    #[inline(always)]
    fn turn(&mut self, most: usize, submits: bool, outcome: &mut Outcome) -> Result<Turn, LoadError> {
        let BlockJob { queue, idle, sent, sectors, blocks, block, .. } = self;
        let queue = queue.borrow_mut();
        let Some(mut done) = queue.poll() else { return Ok(Turn::default()) };
        let now = clock::now();
        let mut completed = 0;
        loop {
            if done.status != 0 {
                return Err(LoadError::Status { queue: queue.index(), status: done.status });
            }
            let sent = &mut sent[usize::from(done.tag)];
            outcome.record(now.saturating_sub(*sent));
            if submits {
                *sent = now;
                queue.repeat(done.tag, sectors.next(*blocks, *block));
            } else {
                idle.push(done.tag);
            }
            completed += 1;
            if completed == most {
                break;
            }
            match queue.poll() {
                Some(next) => done = next,
                None => break,
            }
        }
        queue.publish();
        queue.keep_quiet(completed);
        outcome.completed(now, completed);
        Ok(Turn { completed, now, submitted: submits })
    }

    fn in_flight(&self) -> usize {
        self.queue.borrow().outstanding()
    }

    fn signals(&self) -> Signals {
        let queue = self.queue.borrow();
        Signals { kicks: queue.kicks(), interrupts: queue.interrupts() }
    }

    fn arm(&mut self) -> bool {
        self.queue.borrow_mut().arm()
    }

    fn poll_fds<'a>(&'a self, fds: &mut PollFds<'a>) {
        fds.push(self.queue.borrow().poll_fd());
    }

    fn woken(&mut self, slept: bool) {
        // It stays armed: with EVENT_IDX one notification is all that comes.
        if slept {
            self.queue.borrow_mut().take_notification();
        }
    }

    fn overdue(&self, waited: Duration) -> LoadError {
        self.queue.borrow().overdue(waited).into()
    }
}

/// Runs `load` on `queues`, from the calling thread. The queues have nothing in flight, before and (after a success)
/// afterwards; the requests prepared for it stay with the queues, so a queue serves one load.
///
/// # Errors
/// [`LoadError`]; requests may then be in flight.
pub fn run(queues: &mut [BlockQueue], load: &BlockLoad) -> Result<Outcome, LoadError> {
    let count = queues.len() as u64;
    if count == 0 {
        return Err(LoadError::Load("a load has at least one queue".to_owned()));
    }
    let BlockLoad { pattern, block_size, depth, waiting, sectors, seed, profile, .. } = *load;
    let order = |index: u64| {
        move |blocks: u64| match pattern.random {
            true => Sectors::Random(fastrand::Rng::with_seed(seed.wrapping_add(index))),
            // The queues together take one block after the other.
            false => Sectors::Sequential { next: (seed % blocks + index) % blocks, step: count },
        }
    };
    let jobs = (0..).zip(queues.iter_mut());
    let jobs = jobs.map(|(at, queue)| BlockJob::new(queue, pattern.transfer, block_size, depth, sectors, order(at)));
    let mut jobs = jobs.collect::<Result<Vec<_>, _>>()?;
    let mut jobs: Vec<&mut BlockJob<&mut BlockQueue>> = jobs.iter_mut().collect();
    let mut outcomes = vec![Outcome::default(); jobs.len()];
    let mut generator = Generator::new(GeneratorOptions { waiting, batch: BATCH, pace: Some(depth), profile });
    generator.start(&mut jobs)?;
    generator.warm_up(&mut jobs, load.warm_up)?;
    generator.measure(&mut jobs, load.duration, &mut outcomes)?;
    generator.drain(&mut jobs)?;
    let mut all = outcomes.swap_remove(0);
    outcomes.iter().for_each(|outcome| all.merge(outcome));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_together_take_one_block_after_the_other() {
        let mut queues = [0, 1, 2].map(|next| Sectors::Sequential { next, step: 3 });
        let sectors: Vec<u64> = (0..9).map(|at| queues[at % 3].next(8, 8)).collect();
        assert_eq!(sectors, [0, 8, 16, 24, 32, 40, 48, 56, 0]);
    }

    #[test]
    fn random_sectors_are_whole_blocks_of_the_device_and_the_same_for_a_seed() {
        let of = |seed| {
            let mut sectors = Sectors::Random(fastrand::Rng::with_seed(seed));
            (0..1_000).map(|_| sectors.next(10, 8)).collect::<Vec<u64>>()
        };
        let found = of(7);
        assert!(found.iter().all(|sector| sector.is_multiple_of(8) && *sector < 80));
        assert_eq!((0..10).filter(|block| found.contains(&(block * 8))).count(), 10, "all blocks have their turn");
        assert_eq!(found, of(7));
        assert_ne!(found, of(8));
    }
}
