//! A guest's transmit queue.

use std::sync::{Arc, Mutex, PoisonError};

use softdpu_device::net::{self, FRAME_OFFSET, TxDrop, TxError};
use softdpu_ring::Chain;
use softdpu_sched::{Nanos, TokenBucket};
use softdpu_sys::IoMemory;
use softdpu_vpc::{DropReason, HEAD, Packet, PortId};

use super::offload;

/// What a transmit queue is for.
pub struct Transmit {
    /// The port whose frames it brings.
    pub port: PortId,
    /// How frames lie in its chains.
    pub(crate) model: net::Transmit,
    /// What the port may send, on all its queues together.
    limit: Option<RateLimit>,
    /// Frames that wait for a receiver's room.
    pub(crate) held: Option<Held>,
}

/// A queue whose next frame found no room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// The port that has none.
    pub by: PortId,
    /// Work that the scheduler is to be told of when it goes on.
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
        Transmit { port, model, limit, held: None }
    }

    /// How many frames may be taken now.
    #[inline]
    pub(crate) fn room(&self, now: Nanos) -> usize {
        self.limit.as_ref().map_or(usize::MAX, |limit| limit.room(now))
    }

    /// When a queue without [`room`](Self::room) may go on.
    pub(crate) fn next(&self, now: Nanos) -> Nanos {
        self.limit.as_ref().map_or(now, |limit| limit.next(now))
    }

    /// Frames and their bytes went.
    #[inline]
    pub(crate) fn took(&self, frames: u64, bytes: u64) {
        if let Some(limit) = &self.limit {
            limit.take(frames, bytes);
        }
    }

    /// Copies the head of a chain's frame out and checks its virtio header.
    #[inline]
    pub(crate) fn read(&self, chain: &Chain, packet: &mut Packet) -> Result<(), NoFrame> {
        let frame = match self.model.parse(&chain.buffer, chain.readable) {
            Ok(frame) => frame,
            Err(TxError::Drop(why)) => return Err(NoFrame::Drop(reason(why))),
            Err(broken @ TxError::Writable(_)) => return Err(NoFrame::Broken(broken.to_string())),
        };
        packet.head.reset((frame.len as usize).min(HEAD));
        let Ok(head) = frame.copy_head(&chain.buffer, packet.head.bytes_mut()) else {
            return Err(NoFrame::Drop(DropReason::Truncated));
        };
        packet.tail = frame.len - head as u32;
        packet.port = self.port;
        packet.checksum = offload::checksum(frame.header.checksum);
        packet.segmentation = frame.header.segmentation.map(offload::segmentation);
        Ok(())
    }
}

/// Where the frame's bytes behind a head of `head` bytes begin in its chain.
#[inline]
pub(crate) fn tail_offset(head: usize) -> u64 {
    FRAME_OFFSET + head as u64
}

/// Fetches what [`Transmit::read`] looks at, and the ring has not fetched: the frame of a driver that keeps headers elsewhere.
#[inline]
pub(crate) fn prefetch(chain: &Chain) {
    if let Some(piece) = chain.buffer.iovecs().get(1) {
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

/// Limits on what a port sends. Frames above it stay in the ring, as before a slow wire.
///
/// All transmit queues of a port share one, on whatever core they are, or the limit would be one per queue. The lock is taken
/// once per batch, and only where there is a limit.
#[derive(Clone, Debug)]
pub struct RateLimit(Arc<Mutex<Buckets>>);

#[derive(Debug)]
struct Buckets {
    packets: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
}

impl RateLimit {
    /// Limits frames (one that stands for several counts as those) and bytes a second.
    pub fn new(packets: Option<TokenBucket>, bytes: Option<TokenBucket>) -> RateLimit {
        RateLimit(Arc::new(Mutex::new(Buckets { packets, bytes })))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Buckets) -> T) -> T {
        // Buckets are whole after every step.
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn room(&self, now: Nanos) -> usize {
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

    fn next(&self, now: Nanos) -> Nanos {
        self.with(|buckets| {
            let packets = buckets.packets.as_mut().map_or(now, |bucket| bucket.next(now));
            let bytes = buckets.bytes.as_mut().map_or(now, |bucket| bucket.next(now));
            packets.max(bytes)
        })
    }
}
