//! A guest's transmit queue.

use std::sync::{Arc, Mutex, PoisonError};

use softdpu_device::net::{self, FRAME_OFFSET, TxDrop, TxError, TxFrame, TxHeader};
use softdpu_ring::Chain;
use softdpu_sched::{Nanos, TokenBucket};
use softdpu_sys::IoMemory;
use softdpu_vpc::{Checksum, DropReason, HEAD, Packet, PortId};

use super::Loans;

/// Frames that go through the VPC together.
pub(crate) const BURST: usize = 32;

/// What a transmit queue is for.
pub struct Transmit {
    /// The port that its frames come in by.
    pub port: PortId,
    /// How frames lie in its chains.
    pub(crate) model: net::Transmit,
    /// What the port may send, on all its queues together.
    limit: Option<RateLimit>,
    /// Set while its next frame finds no buffer at its receiver.
    pub(crate) backpressure: Option<Backpressure>,
    /// Chains that other cores still read.
    pub(crate) loans: Loans,
    /// Frames that go through the network together. Few after one found no buffer: those behind it come again, so their
    /// first pass was wasted.
    pub(crate) burst: usize,
    /// How much is taken from its ring at once.
    poll_budget: FrameBudget,
}

/// A receiver without buffers keeps a queue from sending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backpressure {
    /// The receiver's port.
    pub port: PortId,
    /// Work that is ready again when the queue goes on.
    pub units: u32,
}

/// Why a chain is not a frame.
pub(crate) enum NoFrame {
    Drop(DropReason),
    Broken(String),
}

impl Transmit {
    /// A queue that may send up to `limit`.
    pub fn new(port: PortId, model: net::Transmit, limit: Option<RateLimit>) -> Transmit {
        Transmit {
            port,
            model,
            limit,
            backpressure: None,
            loans: Loans::default(),
            burst: BURST,
            poll_budget: FrameBudget::default(),
        }
    }

    /// How many frames a poll may take now: by its rate limit and its budget.
    #[inline]
    pub(crate) fn budget(&self, now: Nanos) -> usize {
        self.limit.as_ref().map_or(usize::MAX, |limit| limit.available(now)).min(self.poll_budget.frames)
    }

    /// So many frames took the core so long.
    #[inline]
    pub(crate) fn ran(&mut self, frames: usize, time: Nanos) {
        self.poll_budget.ran(frames, time);
    }

    /// When a queue without [`budget`](Self::budget) may go on.
    pub(crate) fn next(&self, now: Nanos) -> Nanos {
        self.limit.as_ref().map_or(now, |limit| limit.next(now))
    }

    /// Counts frames and bytes that were sent against the rate limit.
    #[inline]
    pub(crate) fn sent(&self, frames: u64, bytes: u64) {
        if let Some(limit) = &self.limit {
            limit.take(frames, bytes);
        }
    }

    /// Copies the head of a chain's frame out and checks its virtio header.
    #[inline(always)]
    pub(crate) fn read(&self, chain: &Chain, packet: &mut Packet) -> Result<(), NoFrame> {
        let head = &mut packet.head;
        let whole = self
            .model
            .parse_whole(&chain.buffer, chain.readable, move |len| head.reset_behind(FRAME_OFFSET as usize, len));
        let frame = match whole {
            Some(Ok(frame)) => frame,
            Some(Err(why)) => return Err(NoFrame::Drop(reason(why))),
            None => self.read_pieces(chain, packet)?,
        };
        // No more than there are.
        packet.tail = frame.len.saturating_sub(packet.head.len() as u32);
        packet.port = self.port;
        if frame.header == TxHeader::FINISHED {
            (packet.checksum, packet.segmentation) = (Checksum::Complete, None);
            // Here, so that its delivery need not write a header.
            packet.head.behind(&net::Receive::FINISHED);
        } else {
            packet.checksum = frame.header.checksum;
            packet.segmentation = frame.header.segmentation;
        }
        Ok(())
    }

    /// As [`read`](Self::read), for a chain of any layout. The caller sets what is not the head.
    #[inline(never)]
    fn read_pieces(&self, chain: &Chain, packet: &mut Packet) -> Result<TxFrame, NoFrame> {
        let frame = match self.model.parse(&chain.buffer, chain.readable) {
            Ok(frame) => frame,
            Err(TxError::Drop(why)) => return Err(NoFrame::Drop(reason(why))),
            Err(broken @ TxError::Writable(_)) => return Err(NoFrame::Broken(broken.to_string())),
        };
        packet.head.reset((frame.len as usize).min(HEAD));
        match frame.copy_head(&chain.buffer, packet.head.bytes_mut()) {
            Ok(_) => Ok(frame),
            Err(_) => Err(NoFrame::Drop(DropReason::Truncated)),
        }
    }
}

/// Where the frame's bytes behind a head of `head` bytes begin in its chain.
#[inline]
pub(crate) fn tail_offset(head: usize) -> u64 {
    FRAME_OFFSET + head as u64
}

/// Fetches what [`Transmit::read`] reads, and the ring has not fetched: the frame of a driver that keeps headers
/// elsewhere.
#[inline(always)]
pub(crate) fn prefetch(chain: &Chain) {
    if chain.readable > 1
        && let Some(piece) = chain.buffer.iovecs().get(1)
    {
        softdpu_sys::prefetch::read(piece.base().cast_const());
    }
}

fn reason(why: TxDrop) -> DropReason {
    match why {
        TxDrop::Header(_) | TxDrop::Short(_) => DropReason::Truncated,
        TxDrop::Long(_) => DropReason::TooLong,
        TxDrop::ChecksumNotNegotiated
        | TxDrop::ChecksumOutside { .. }
        | TxDrop::SegmentationNotNegotiated(_)
        | TxDrop::SegmentationWithoutChecksum
        | TxDrop::SegmentSize => DropReason::BadOffload,
    }
}

/// How many frames one poll takes from a ring at the most (NAPI's budget).
///
/// What a frame costs differs a thousandfold: one of 64 KiB that the core has to segment and sum takes as long as
/// hundreds of small ones. Counted in frames alone, one guest's poll could take as long as a hundred of another's. What
/// the next frames cost is not known before they are taken, so a poll that took too long is followed by shorter ones,
/// which grow again in steps: a guest gains little by frames that are costly now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameBudget {
    frames: usize,
}

impl FrameBudget {
    /// The most that the frames of a poll are meant to take: many times what polling all rings costs, and little to
    /// wait for.
    const TIME: u64 = 50_000;
    /// The largest budget, frames.
    const FRAMES: usize = 64;

    #[inline]
    fn ran(&mut self, frames: usize, time: Nanos) {
        if time.0 > Self::TIME {
            // Less than were taken: fits.
            self.frames = ((frames as u64 * Self::TIME / time.0) as usize).max(1);
        } else if time.0 <= Self::TIME / 2 {
            self.frames = (self.frames * 2).min(Self::FRAMES);
        }
    }
}

impl Default for FrameBudget {
    fn default() -> FrameBudget {
        FrameBudget { frames: FrameBudget::FRAMES }
    }
}

/// A limit on frames and bytes: of what a port sends, of which frames above it stay in the ring as before a slow wire,
/// of what a port receives, or of what wires bring a tenant, of which those are dropped.
///
/// All queues and cores share one, or the limit would be one for each. The lock is taken only where there is a limit:
/// once per batch for what is sent, once per frame for what is received.
#[derive(Clone, Debug)]
pub struct RateLimit(Arc<Mutex<RateBuckets>>);

#[derive(Debug)]
struct RateBuckets {
    packets: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
}

impl RateLimit {
    /// Limits frames (one that stands for several counts as those) and bytes a second.
    pub fn new(packets: Option<TokenBucket>, bytes: Option<TokenBucket>) -> RateLimit {
        RateLimit(Arc::new(Mutex::new(RateBuckets { packets, bytes })))
    }

    fn with<T>(&self, f: impl FnOnce(&mut RateBuckets) -> T) -> T {
        // RateBuckets are whole after every step.
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn available(&self, now: Nanos) -> usize {
        self.with(|buckets| {
            let packets = buckets.packets.as_mut().map_or(u64::MAX, |bucket| bucket.available(now));
            let bytes = buckets.bytes.as_mut().map_or(u64::MAX, |bucket| bucket.available(now));
            if bytes == 0 { 0 } else { usize::try_from(packets).unwrap_or(usize::MAX) }
        })
    }

    pub(crate) fn take(&self, packets: u64, bytes: u64) {
        self.with(|buckets| {
            if let Some(bucket) = &mut buckets.packets {
                bucket.take(packets);
            }
            if let Some(bucket) = &mut buckets.bytes {
                bucket.take(bytes);
            }
        });
    }

    /// Takes frames that came at `now`, which are bytes together, unless the limit is reached. Whether it did.
    pub(crate) fn take_if_open(&self, now: Nanos, packets: u64, bytes: u64) -> bool {
        let is_open = self.available(now) > 0;
        if is_open {
            self.take(packets, bytes);
        }
        is_open
    }

    fn next(&self, now: Nanos) -> Nanos {
        self.with(|buckets| {
            let packets = buckets.packets.as_mut().map_or(now, |bucket| bucket.next(now));
            let bytes = buckets.bytes.as_mut().map_or(now, |bucket| bucket.next(now));
            packets.max(bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 64 KiB frame that is cut up, and a small one, nanoseconds.
    const LARGE: u64 = 40_000;
    const SMALL: u64 = 60;

    /// Polls frames that cost so much each; what it took.
    fn poll(budget: &mut FrameBudget, each: u64) -> u64 {
        let time = budget.frames as u64 * each;
        budget.ran(budget.frames, Nanos(time));
        time
    }

    #[test]
    fn cheap_frames_come_in_whole_polls_and_costly_ones_a_few_at_a_time() {
        let mut budget = FrameBudget::default();
        (0..10).for_each(|_| assert!(poll(&mut budget, SMALL) < FrameBudget::TIME));
        assert_eq!(budget.frames, FrameBudget::FRAMES);
        poll(&mut budget, LARGE);
        (0..10).for_each(|_| assert!(poll(&mut budget, LARGE) <= FrameBudget::TIME));
        poll(&mut budget, u64::from(u32::MAX));
        assert_eq!(budget.frames, 1, "there is always a budget");
        (0..6).for_each(|_| assert!(poll(&mut budget, SMALL) < FrameBudget::TIME));
        assert_eq!(budget.frames, FrameBudget::FRAMES);
    }

    #[test]
    fn a_guest_that_times_its_costly_frames_gains_little() {
        let mut budget = FrameBudget::default();
        let polls = 1000;
        let costly = |budget: &FrameBudget| if budget.frames == FrameBudget::FRAMES { LARGE } else { SMALL };
        let time: u64 = (0..polls)
            .map(|_| {
                let each = costly(&budget);
                poll(&mut budget, each)
            })
            .sum();
        assert!(time / polls < FrameBudget::FRAMES as u64 * LARGE / 6, "{} ns a poll", time / polls);
    }
}
