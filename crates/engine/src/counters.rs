//! Counters that one thread writes and any thread reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use softdpu_sched::Nanos;
use softdpu_vpc::steer::{BUCKETS, RULES};
use softdpu_vpc::{Datapath, Destination, HeavyFlow, Vpc};

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
    /// Times that it made its core wait: the front end's memory or eventfds, or its volume, were slow.
    pub stalls: Counter,
    /// For how long together, nanoseconds.
    pub stalled_ns: Counter,
    /// Of an interface's queue: frames that went through it, to or from the driver; one that stands for several counts
    /// once.
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
    /// Grants that its scheduler gave.
    pub grants: Counter,
    /// Times it gave its CPU away.
    pub sleeps: Counter,
    /// What became of those times.
    pub yields: YieldCounters,
    /// Requests completed.
    pub completed: Counter,
    /// Requests that ended on this core for a queue that had moved to another.
    pub travelled: Counter,
    /// Queues it owns.
    pub queues: Counter,
    /// Frames that came to its VPC.
    pub frames: Counter,
    /// Of those: decided by the flow tier.
    pub by_flow: Counter,
    /// Of those: handed to the software tier.
    pub by_software: Counter,
    /// The counts of its VPC.
    pub forwarding: ForwardingCounters,
    /// Packets from tunnels, by the core that forwards them.
    pub steering: SteeringCounters,
    /// Requests waiting in its channels.
    pub waiting: Counter,
    /// Requests at its back ends.
    pub outstanding: Counter,
    /// Whether it sleeps right now.
    pub asleep: AtomicBool,
}

/// What became of the times for which a core gave its CPU away. Each ends in one way, and is woken by one thing.
#[derive(Debug, Default)]
pub struct YieldCounters {
    /// Their slice was over, and nothing had come.
    pub expired: Counter,
    /// Work ended them.
    pub preempted: Counter,
    /// Woken by a driver.
    pub by_kick: Counter,
    /// By another core or the control thread.
    pub by_message: Counter,
    /// By a back end.
    pub by_back_end: Counter,
    /// By the socket of a port.
    pub by_socket: Counter,
    /// By the clock: the slice, or something that was due.
    pub by_timer: Counter,
    /// Empty polls in a row beyond which it yields now; 0 where that is a fixed time.
    pub threshold: Counter,
    /// How long its next slice is at the most, nanoseconds.
    pub slice_ns: Counter,
}

/// What a core did with packets from tunnels while a steering table was in force.
#[derive(Debug)]
pub struct SteeringCounters {
    /// Packets that it read, by bucket.
    pub buckets: [Counter; BUCKETS],
    /// Packets that it read, by the number of the rule that took them.
    pub rules: [Counter; RULES],
    /// Packets that it read and handed to other cores.
    pub handed: Counter,
    /// Packets that other cores have read and it forwarded.
    pub taken: Counter,
    /// Times that what it had of some flows was done, and another core was let go on.
    pub marks: Counter,
    /// Nanoseconds that it spent on packets from tunnels.
    pub worked_ns: Counter,
}

impl Default for SteeringCounters {
    fn default() -> Self {
        SteeringCounters {
            buckets: std::array::from_fn(|_| Counter::default()),
            rules: std::array::from_fn(|_| Counter::default()),
            handed: Counter::default(),
            taken: Counter::default(),
            marks: Counter::default(),
            worked_ns: Counter::default(),
        }
    }
}

/// The counts of a core's VPC, refreshed now and then.
#[derive(Debug, Default)]
pub struct ForwardingCounters {
    /// Frames that left, by destination and datapath: in the order of `Destination::ALL`, and of `Datapath::ALL`.
    pub paths: [[Counter; Datapath::ALL.len()]; Destination::ALL.len()],
    /// Flows that it has.
    pub flows: Counter,
    /// Flows that it has room for.
    pub capacity: Counter,
    /// Packets of flows for which there was no room.
    pub unkept: Counter,
    /// Flows that went on after a change of something else.
    pub revalidated: Counter,
    /// Flows that were computed anew after a change.
    pub recomputed: Counter,
    /// Packets that were put to policies.
    pub policy: Counter,
    heavy: Mutex<(Nanos, Vec<HeavyFlow>)>,
}

impl ForwardingCounters {
    /// The flows that carried most in a second, the heaviest first, and when that ended.
    pub fn heavy(&self) -> (Nanos, Vec<HeavyFlow>) {
        self.heavy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes what the VPC knows at `now`. `windows` is how many seconds of heavy flows were published before.
    pub(crate) fn take(&self, vpc: &mut Vpc, now: Nanos, windows: &mut u64) {
        let stats = vpc.stats();
        for (to, counters) in Destination::ALL.into_iter().zip(&self.paths) {
            for (by, counter) in Datapath::ALL.into_iter().zip(counters) {
                counter.set(stats.paths.get(to, by));
            }
        }
        self.unkept.set(stats.unkept);
        self.revalidated.set(stats.revalidated);
        self.recomputed.set(stats.recomputed);
        self.policy.set(stats.policy);
        self.flows.set(vpc.flows() as u64);
        self.capacity.set(vpc.flow_capacity() as u64);
        let (known, heavy) = vpc.heavy_flows(now.0);
        // Once a second; while it is being read, at the next call.
        if known != *windows
            && let Ok(mut published) = self.heavy.try_lock()
        {
            *windows = known;
            published.0 = now;
            published.1.clear();
            published.1.extend_from_slice(heavy);
        }
    }
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
    /// Frames that wires have brought for it and that went into its networks; they are in `served` as well.
    pub ingress_frames: Counter,
    /// Frames that wires have brought for it and that its backlog had no room for.
    pub ingress_dropped: Counter,
    /// Frames that wires have brought for it beyond its limit.
    pub ingress_limited: Counter,
}
