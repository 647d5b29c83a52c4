//! Tenants that wait for a time.

use super::index::{Table, TenantIndex};
use super::list::{List, TIMER};
use super::tenant::Tenant;
use crate::Nanos;

/// What a slot is wide, in nanoseconds, as a power of two.
const BITS: u32 = 14;
const SLOTS: u64 = 256;
const WORDS: usize = SLOTS as usize / 64;

/// A slot of the wheel: its number modulo [`SLOTS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TimerSlot(u8);

/// As many as a [`TimerSlot`] can name.
const _: () = assert!(SLOTS == 1 << u8::BITS);

impl TimerSlot {
    fn of(number: u64) -> TimerSlot {
        TimerSlot(number as u8)
    }

    fn row(self) -> usize {
        self.0.into()
    }

    /// The word of the bitmap, and the bit in it.
    fn bit(self) -> (usize, u64) {
        (self.row() / 64, 1 << (self.0 % 64))
    }
}

/// A timing wheel of one turn (Varghese and Lauck 1987, scheme 4). A time beyond the turn is kept in its last slot, and
/// put in again from there. A time is never too early; it is late by up to 16 µs.
#[derive(Debug)]
pub(super) struct Wheel {
    /// The slot of the last time that was asked about.
    current: u64,
    count: u32,
    filled: [u64; WORDS],
    slots: Vec<List<TenantIndex, TIMER>>,
}

impl Wheel {
    pub(super) fn new() -> Wheel {
        Wheel { current: 0, count: 0, filled: [0; WORDS], slots: vec![List::default(); SLOTS as usize] }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn insert(
        &mut self,
        tenants: &mut Table<TenantIndex, Tenant>,
        index: TenantIndex,
        now: Nanos,
        at: Nanos,
    ) {
        if self.count == 0 {
            self.current = self.current.max(now.0 >> BITS);
        }
        let slot = (at.0 >> BITS).saturating_add(1).clamp(self.current + 1, self.current + SLOTS - 1);
        let slot = TimerSlot::of(slot);
        tenants[index].timer_slot = slot;
        self.slots[slot.row()].push_back(tenants, index);
        let (word, bit) = slot.bit();
        self.filled[word] |= bit;
        self.count += 1;
    }

    pub(super) fn remove(&mut self, tenants: &mut Table<TenantIndex, Tenant>, index: TenantIndex) {
        let slot = tenants[index].timer_slot;
        self.slots[slot.row()].remove(tenants, index);
        self.count -= 1;
        if self.slots[slot.row()].is_empty() {
            let (word, bit) = slot.bit();
            self.filled[word] &= !bit;
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
    pub(super) fn pop(&mut self, tenants: &mut Table<TenantIndex, Tenant>, now: Nanos) -> Option<TenantIndex> {
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
        let index = self.slots[TimerSlot::of(slot).row()].front()?;
        self.remove(tenants, index);
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Share, TenantId};

    fn tenants(count: u16) -> Table<TenantIndex, Tenant> {
        let mut tenants = Table::default();
        tenants.grow_to(TenantId(count - 1).into(), || Tenant::new(Share::default()));
        tenants
    }

    #[test]
    fn times_come_in_order_and_none_too_early() {
        let mut tenants = tenants(1_000);
        let tenant = |number: u16| TenantIndex::from(TenantId(number));
        let mut wheel = Wheel::new();
        let start = Nanos(123_456_789);
        let due = |number: u16| Nanos(start.0 + u64::from(number) * 7_919 * 31 % 3_900_000);
        for number in 0..1_000 {
            wheel.insert(&mut tenants, tenant(number), start, due(number));
        }
        wheel.remove(&mut tenants, tenant(77));
        let (mut now, mut seen) = (start, 0);
        while let Some(next) = wheel.next() {
            now = now.max(next);
            while let Some(index) = wheel.pop(&mut tenants, now) {
                let TenantId(index) = index.into();
                assert_ne!(index, 77);
                assert!(due(index) <= now && now.since(due(index)).0 <= 2 << BITS, "{:?} at {now:?}", due(index));
                seen += 1;
            }
        }
        assert_eq!((seen, wheel.count), (999, 0));
    }

    #[test]
    fn a_time_beyond_the_turn_is_looked_at_again() {
        let mut tenants = tenants(1);
        let first = TenantIndex::from(TenantId(0));
        let mut wheel = Wheel::new();
        wheel.insert(&mut tenants, first, Nanos(0), Nanos::SECOND);
        let next = wheel.next().unwrap_or_default();
        assert!(next < Nanos::SECOND && next > Nanos::MILLI, "{next:?}");
        assert_eq!(wheel.pop(&mut tenants, Nanos(next.0 - 1)), None);
        assert_eq!(wheel.pop(&mut tenants, next), Some(first));
        assert!(wheel.is_empty());
    }
}
