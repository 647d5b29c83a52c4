//! Requests in flight: taken from a ring and not completed yet.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use softdpu_device::block::BlockOp;
use softdpu_device::nvme::Status;
use softdpu_memory::GuestBuffer;
use softdpu_ring::{Chain, Used};
use softdpu_sched::{Cost, Grant, Nanos};

use crate::ids::QueueKey;

/// Permits that this process dropped.
static LOST: AtomicU64 = AtomicU64::new(0);

/// The duty to complete a request that was taken from a ring. It ends when the request is [completed](Self::complete)
/// or [abandoned](Self::abandon).
///
/// A permit that is dropped otherwise is a bug: the driver waits for the request for ever. Builds with debug assertions
/// panic; others log it.
#[derive(Debug)]
#[must_use = "a request is completed or abandoned"]
pub(crate) struct CompletionPermit {
    id: u16,
    descriptors: u16,
}

impl CompletionPermit {
    /// For a part of a request: the permit for the whole is another one. Only to be [abandoned](Self::abandon).
    pub(crate) fn none() -> CompletionPermit {
        CompletionPermit { id: u16::MAX, descriptors: 0 }
    }

    /// For a chain that was just taken.
    #[inline]
    pub(crate) fn new(chain: &Chain) -> CompletionPermit {
        CompletionPermit { id: chain.id, descriptors: chain.descriptors }
    }

    /// The request ended, with so many bytes written to its guest: what is to be published in the used ring.
    #[inline]
    pub(crate) fn complete(self, written: u32) -> Used {
        let used = Used { id: self.id, descriptors: self.descriptors, written };
        std::mem::forget(self);
        used
    }

    /// The request is never completed by this process: its queue was stopped or broken. The in-flight record still has
    /// it.
    #[inline]
    pub(crate) fn abandon(self) {
        std::mem::forget(self);
    }
}

impl Drop for CompletionPermit {
    #[cold]
    fn drop(&mut self) {
        let lost = LOST.fetch_add(1, Relaxed) + 1;
        tracing::error!(chain = self.id, lost, "a request was dropped: it was neither completed nor abandoned");
        debug_assert!(std::thread::panicking(), "the request in chain {} was dropped", self.id);
    }
}

/// What becomes of a request when a back end gives it back.
#[derive(Debug)]
pub(crate) enum FlightKind {
    /// A virtio-blk request; bytes of data that success writes to the guest.
    Block { to_guest: u32 },
    /// An NVMe command that is one request.
    Command { op: BlockOp, to_guest: u32 },
    /// An NVMe Compare: what was read is compared with this guest memory.
    Compare(Box<GuestBuffer>),
    /// One of the requests of an NVMe command, whose flight has this token.
    Part { whole: u64, op: BlockOp },
    /// An NVMe command of several requests: how many are at back ends, and how it ends.
    Whole { left: u32, status: Status },
}

impl FlightKind {
    /// Whether it is a request of its own at a back end.
    pub(crate) fn is_at_back_end(&self) -> bool {
        !matches!(self, FlightKind::Whole { .. })
    }
}

/// A request that a back end holds, and what is needed when it comes back.
pub(crate) struct Flight {
    pub permit: CompletionPermit,
    pub key: QueueKey,
    pub kind: FlightKind,
    /// The grant that it ran in.
    pub grant: Grant,
    /// When that grant began.
    pub since: Nanos,
    /// Bytes that it moves.
    pub bytes: u64,
}

impl Flight {
    /// What it cost the back end if it ends now.
    #[inline]
    pub(crate) fn cost(&self, now: Nanos) -> Cost {
        Cost { units: 1, time: now.since(self.since), bytes: self.bytes, pending: 0 }
    }
}

/// A request with its status byte written, and its used entry not.
pub(crate) struct CompletedRequest {
    pub used: Used,
    /// For the dirty log: what was written is logged where the queue's current view is known.
    pub buffer: GuestBuffer,
    /// Bytes of data that may have been written to the guest, beside the status.
    pub to_guest: u32,
    pub failed: bool,
}

/// A slab of flights; a token is the index. It grows to the most that was ever outstanding, then allocates no more.
#[derive(Default)]
pub(crate) struct Flights {
    slots: Vec<Option<Flight>>,
    free: Vec<u32>,
}

impl Flights {
    #[inline]
    pub(crate) fn insert(&mut self, flight: Flight) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        // In one place, so that it is written there and not first somewhere else. A free slot has nothing to drop.
        std::mem::forget(self.slots[index as usize].replace(flight));
        u64::from(index)
    }

    /// One more slot.
    #[cold]
    fn grow(&mut self) -> u32 {
        self.slots.push(None);
        self.slots.len() as u32 - 1
    }

    #[inline]
    pub(crate) fn get(&self, token: u64) -> Option<&Flight> {
        self.slots.get(usize::try_from(token).ok()?)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, token: u64) -> Option<&mut Flight> {
        self.slots.get_mut(usize::try_from(token).ok()?)?.as_mut()
    }

    #[inline]
    pub(crate) fn remove(&mut self, token: u64) -> Option<Flight> {
        let flight = self.slots.get_mut(usize::try_from(token).ok()?)?.take()?;
        self.free.push(token as u32);
        Some(flight)
    }

    /// Whether any request of a queue is in flight.
    pub(crate) fn any_of(&self, key: QueueKey) -> bool {
        self.slots.iter().flatten().any(|flight| flight.key == key)
    }

    /// The tokens of a queue's requests.
    pub(crate) fn of(&self, key: QueueKey) -> Vec<u64> {
        let of_queue = |(index, slot): (usize, &Option<Flight>)| {
            slot.as_ref().filter(|flight| flight.key == key).map(|_| index as u64)
        };
        self.slots.iter().enumerate().filter_map(of_queue).collect()
    }
}

/// A core that ends abandons what back ends still hold.
impl Drop for Flights {
    fn drop(&mut self) {
        self.slots.drain(..).flatten().for_each(|flight| flight.permit.abandon());
    }
}

#[cfg(test)]
mod tests {
    use softdpu_sched::{QueueId, TenantId};

    use super::*;

    const KEY: QueueKey = QueueKey { number: 1, generation: 1 };

    fn permit(id: u16) -> CompletionPermit {
        CompletionPermit { id, descriptors: 2 }
    }

    fn flight(id: u16, key: QueueKey) -> Flight {
        let queue = QueueId { tenant: TenantId(0), index: key.number };
        let grant = Grant { queue, units: 1 };
        Flight { permit: permit(id), key, kind: FlightKind::Block { to_guest: 0 }, grant, since: Nanos(0), bytes: 0 }
    }

    #[test]
    fn a_completed_request_is_published_as_its_chain() {
        assert_eq!(permit(7).complete(513), Used { id: 7, descriptors: 2, written: 513 });
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "the request in chain 7 was dropped"))]
    fn a_permit_that_is_dropped_is_a_bug() {
        let before = LOST.load(Relaxed);
        drop(permit(7));
        assert!(LOST.load(Relaxed) > before);
    }

    #[test]
    fn a_core_that_ends_abandons_what_is_in_flight() {
        let other = QueueKey { number: 2, ..KEY };
        let mut flights = Flights::default();
        let tokens: Vec<u64> = [(1, KEY), (2, other), (3, KEY)].map(|(id, key)| flights.insert(flight(id, key))).into();
        assert_eq!(flights.of(KEY), [tokens[0], tokens[2]]);
        flights.remove(tokens[0]).expect("it is in flight").permit.abandon();
        assert!(flights.remove(tokens[0]).is_none(), "once");
        assert_eq!(flights.insert(flight(4, other)), tokens[0], "its slot is used again");
        drop(flights);
    }
}
