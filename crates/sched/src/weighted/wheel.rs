//! Tenants that wait for a time.

use super::tenant::Tenant;
use crate::Nanos;
use crate::list::{List, TIMER};

/// What a slot is wide, in nanoseconds, as a power of two.
const BITS: u32 = 14;
const SLOTS: u64 = 256;
const WORDS: usize = SLOTS as usize / 64;

/// A timing wheel of one turn (Varghese and Lauck 1987, scheme 4). A time beyond the turn is kept in its last slot, and
/// put in again from there. A time is never too early; it is late by up to 16 µs.
#[derive(Debug)]
pub(super) struct Wheel {
    /// The slot of the last time that was asked about.
    current: u64,
    count: u32,
    filled: [u64; WORDS],
    slots: Vec<List<TIMER>>,
}

impl Wheel {
    pub(super) fn new() -> Wheel {
        Wheel { current: 0, count: 0, filled: [0; WORDS], slots: vec![List::default(); SLOTS as usize] }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn insert(&mut self, tenants: &mut [Tenant], index: u32, now: Nanos, at: Nanos) {
        if self.count == 0 {
            self.current = self.current.max(now.0 >> BITS);
        }
        let slot = (at.0 >> BITS).saturating_add(1).clamp(self.current + 1, self.current + SLOTS - 1);
        let slot = (slot % SLOTS) as usize;
        tenants[index as usize].timer_slot = slot as u8;
        self.slots[slot].push_back(tenants, index);
        self.filled[slot / 64] |= 1 << (slot % 64);
        self.count += 1;
    }

    pub(super) fn remove(&mut self, tenants: &mut [Tenant], index: u32) {
        let slot = usize::from(tenants[index as usize].timer_slot);
        self.slots[slot].remove(tenants, index);
        self.count -= 1;
        if self.slots[slot].is_empty() {
            self.filled[slot / 64] &= !(1 << (slot % 64));
        }
    }

    /// The number of the next slot after the current one that has tenants.
    fn next_slot(&self) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let first = self.current + 1;
        let (word, bit) = ((first % SLOTS) as usize / 64, (first % 64) as u32);
        let mut base = first - u64::from(bit);
        for step in 0..=WORDS {
            let mut bits = self.filled[(word + step) % WORDS];
            if step == 0 {
                bits &= u64::MAX << bit;
            }
            if bits != 0 {
                return Some(base + u64::from(bits.trailing_zeros()));
            }
            base += 64;
        }
        None
    }

    /// The first time at which something may be due.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.next_slot().map(|slot| Nanos(slot << BITS))
    }

    /// Takes out one that may be due at `now`.
    pub(super) fn pop(&mut self, tenants: &mut [Tenant], now: Nanos) -> Option<u32> {
        let target = now.0 >> BITS;
        let slot = match self.next_slot() {
            Some(slot) if slot <= target => slot,
            _ => {
                self.current = self.current.max(target);
                return None;
            }
        };
        // The slot itself may have more.
        self.current = slot - 1;
        let index = self.slots[(slot % SLOTS) as usize].front()?;
        self.remove(tenants, index);
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Share;

    #[test]
    fn times_come_in_order_and_none_too_early() {
        let mut tenants: Vec<Tenant> = (0..1_000).map(|_| Tenant::new(Share::default())).collect();
        let mut wheel = Wheel::new();
        let start = Nanos(123_456_789);
        let due = |index: u32| Nanos(start.0 + u64::from(index) * 7_919 * 31 % 3_900_000);
        for index in 0..1_000 {
            wheel.insert(&mut tenants, index, start, due(index));
        }
        wheel.remove(&mut tenants, 77);
        let (mut now, mut seen) = (start, 0);
        while let Some(next) = wheel.next() {
            now = now.max(next);
            while let Some(index) = wheel.pop(&mut tenants, now) {
                assert_ne!(index, 77);
                assert!(due(index) <= now && now.since(due(index)).0 <= 2 << BITS, "{:?} at {now:?}", due(index));
                seen += 1;
            }
        }
        assert_eq!((seen, wheel.count), (999, 0));
    }

    #[test]
    fn a_time_beyond_the_turn_is_looked_at_again() {
        let mut tenants = vec![Tenant::new(Share::default())];
        let mut wheel = Wheel::new();
        wheel.insert(&mut tenants, 0, Nanos(0), Nanos::SECOND);
        let next = wheel.next().unwrap_or_default();
        assert!(next < Nanos::SECOND && next > Nanos::MILLI, "{next:?}");
        assert_eq!(wheel.pop(&mut tenants, Nanos(next.0 - 1)), None);
        assert_eq!(wheel.pop(&mut tenants, next), Some(0));
        assert!(wheel.is_empty());
    }
}
