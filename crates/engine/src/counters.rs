//! Counters that one thread writes and any thread reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A counter with a single writer: the core that owns it. Adding is a plain load and store, no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owner calls this.
    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Replaces the value. Only the owner calls this.
    #[inline(always)]
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// The value right now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What a queue did. Written by the core that owns the queue, which moves with it.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Reads taken from the ring.
    pub reads: Counter,
    /// Writes taken from the ring.
    pub writes: Counter,
    /// Flushes taken from the ring.
    pub flushes: Counter,
    /// Discards taken from the ring.
    pub discards: Counter,
    /// Write-zeroes taken from the ring.
    pub write_zeroes: Counter,
    /// Requests answered without I/O: get-id and malformed ones.
    pub immediate: Counter,
    /// Bytes read from the volume.
    pub bytes_read: Counter,
    /// Bytes written to the volume.
    pub bytes_written: Counter,
    /// Requests that ended in an error status.
    pub errors: Counter,
    /// Requests completed.
    pub completed: Counter,
    /// Times the driver rang while this core slept.
    pub kicks: Counter,
    /// Interrupts sent to the driver.
    pub interrupts: Counter,
    /// Completions for which the driver wanted no interrupt.
    pub suppressed: Counter,
    /// Requests taken from the ring and not yet completed.
    pub in_flight: Counter,
    /// Core time that its grants took, nanoseconds.
    pub core_ns: Counter,
    /// Of an interface's queue: frames that went through it, to or from the driver; one that stands for several counts once.
    pub frames: Counter,
    /// Their bytes.
    pub frame_bytes: Counter,
    /// Frames that found no buffer in a receive queue; chains of a transmit queue that are no frames.
    pub dropped: Counter,
}

impl QueueCounters {
    #[inline]
    pub(crate) fn count_frames(&self, frames: u64, bytes: u64) {
        self.frames.add(frames);
        self.frame_bytes.add(bytes);
    }
}

/// What a core did.
#[derive(Debug, Default)]
pub struct CoreCounters {
    /// Rounds of the loop.
    pub rounds: Counter,
    /// Nanoseconds in rounds that did something.
    pub busy_ns: Counter,
    /// Nanoseconds in rounds that found nothing, asleep included.
    pub idle_ns: Counter,
    /// Times it went to sleep.
    pub sleeps: Counter,
    /// Requests completed.
    pub completed: Counter,
    /// Requests that ended here when their queue had moved on to another core, which was told.
    pub travelled: Counter,
    /// Queues it owns.
    pub queues: Counter,
    /// Frames that came to its VPC.
    pub frames: Counter,
    /// Of those: decided by the flow tier.
    pub by_flow: Counter,
    /// Of those: handed to the software tier.
    pub by_software: Counter,
    /// Requests waiting in its channels.
    pub waiting: Counter,
    /// Requests at its back ends.
    pub outstanding: Counter,
    /// Whether it sleeps right now.
    pub asleep: AtomicBool,
}

/// What a tenant got from one core.
#[derive(Debug, Default)]
pub struct TenantCounters {
    /// Requests served.
    pub served: Counter,
    /// Payload bytes of those.
    pub bytes: Counter,
    /// Core time they took, nanoseconds.
    pub core_ns: Counter,
    /// Requests waiting in its channel.
    pub waiting: Counter,
    /// What all requests have waited there before they ran, together, nanoseconds.
    pub waited_ns: Counter,
    /// For how long a limit held some of them, nanoseconds.
    pub limited_ns: Counter,
}
