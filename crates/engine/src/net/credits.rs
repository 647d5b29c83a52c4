//! How much may wait for somebody who takes it, and how much of each who bring it: frames of a port for another core,
//! flow records of a function.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use softdpu_vpc::PortId;

/// Who brings something is counted by one of so many numbers. Two whose identifiers are that far apart share one.
const NUMBERS: usize = 4096;

/// Whose it is: the number that a port or a function is counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Whose(u16);

impl Whose {
    /// Of the guest or TAP at `port`.
    #[inline]
    pub(crate) fn of(PortId(port): PortId) -> Whose {
        Whose::numbered(port)
    }

    /// Of that identifier, among others of its kind.
    #[inline]
    pub(crate) fn numbered(identifier: u32) -> Whose {
        Whose((identifier as usize % NUMBERS) as u16)
    }
}

/// What waits.
///
/// Each may have as much there as there is room left (dynamic thresholds, Choudhury and Hahne, IEEE/ACM ToN 1998, with
/// α = 1): one that floods has half of the room, two have a third each in the long run, and who comes next finds some.
#[derive(Debug)]
pub(crate) struct Room {
    capacity: usize,
    waiting: AtomicUsize,
    of: Box<[AtomicU32]>,
}

impl Room {
    /// For so much, all together.
    pub(crate) fn new(capacity: usize) -> Room {
        let of = (0..NUMBERS).map(|_| AtomicU32::new(0)).collect();
        Room { capacity, waiting: AtomicUsize::new(0), of }
    }

    /// How much waits.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// How much more of somebody's there is room for: so much that no less is left behind it. Cores that look at the
    /// same time may exceed the room by what each has.
    pub(crate) fn left(&self, whose: Whose) -> usize {
        let left = self.capacity.saturating_sub(self.waiting());
        left.saturating_sub(self.of[usize::from(whose.0)].load(Relaxed) as usize).div_ceil(2)
    }

    /// How much of `wanted` may wait, which then does.
    pub(crate) fn take(&self, whose: Whose, wanted: usize) -> usize {
        let taken = wanted.min(self.left(whose));
        self.put(whose, taken);
        taken
    }

    /// So much waits, whether there is room or not.
    pub(crate) fn put(&self, whose: Whose, count: usize) {
        self.waiting.fetch_add(count, Relaxed);
        self.of[usize::from(whose.0)].fetch_add(count as u32, Relaxed);
    }

    /// So much does not wait any more.
    pub(crate) fn give_back(&self, whose: Whose, count: usize) {
        self.waiting.fetch_sub(count, Relaxed);
        self.of[usize::from(whose.0)].fetch_sub(count as u32, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: usize = 4096;

    /// Takes 64 at a time until a port gets no more; what it has.
    fn flood(room: &Room, whose: Whose) -> usize {
        std::iter::from_fn(|| Some(room.take(whose, 64)).filter(|taken| *taken > 0)).sum()
    }

    #[test]
    fn a_flood_leaves_room_for_who_comes_next() {
        let room = Room::new(CAPACITY);
        let ports: Vec<Whose> = (1..11).map(|port| Whose::of(PortId(port))).collect();
        let first = flood(&room, ports[0]);
        assert_eq!(first, CAPACITY / 2);
        for port in &ports[1..] {
            assert!(room.take(*port, 1) == 1, "nothing is left with {} waiting", room.waiting());
            flood(&room, *port);
        }
        assert!(room.waiting() <= CAPACITY, "{}", room.waiting());
    }

    #[test]
    fn what_is_given_back_may_be_taken_again() {
        let room = Room::new(CAPACITY);
        let (a, b) = (Whose::of(PortId(1)), Whose::of(PortId(2)));
        let taken = flood(&room, a);
        assert_eq!(room.take(b, 100), 100);
        room.give_back(a, taken);
        room.give_back(b, 100);
        assert_eq!(room.waiting(), 0);
        assert_eq!(flood(&room, a), taken);
    }

    #[test]
    fn ports_are_counted_apart() {
        assert_ne!(Whose::of(PortId(7)), Whose::of(PortId(8)));
        assert_eq!(Whose::of(PortId(7)), Whose::of(PortId(7 + NUMBERS as u32)));
    }
}
