//! Tenants with work in the order of their virtual times, in constant time.

use super::index::{Table, TenantIndex};
use super::list::{List, READY};
use super::tenant::Tenant;

/// Virtual time per nanosecond at weight 1. A tenant's tag grows by its cost over its weight, in these units.
pub(super) const SCALE: u64 = 16;
/// What a slot is wide in, nanoseconds of cost of a tenant whose weight is that of its class, as a power of two.
const SLOT_BITS: u32 = 15;
/// The least cost that always leads to another slot, nanoseconds.
pub(super) const SLOT: u64 = 1 << SLOT_BITS;
/// Classes of weights: 1, 2 to 3, 4 to 7, and so on.
const CLASSES: usize = 14;
/// The largest weight.
pub(super) const LARGEST_WEIGHT: u32 = (1 << CLASSES) - 1;
/// The slots ahead of virtual time in which a tenant may be.
pub(super) const AHEAD: u64 = 62;
/// How far the clock may be ahead of virtual time: further than it comes to be where lanes have no more than their
/// shares. Time that is charged to nobody counts for guarantees all the same, so that they can have more of what is
/// charged than they have of the clock.
pub(super) const FURTHEST: u64 = 4 * SLOT * SCALE;
/// The most thousandths of a core's time that can be guaranteed.
const MOST_GUARANTEED: u32 = 990;

/// A class of weights, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WeightClass(pub(super) u8);

impl WeightClass {
    /// The class of a weight.
    pub(super) fn of(weight: u32) -> WeightClass {
        WeightClass(weight.clamp(1, LARGEST_WEIGHT).ilog2() as u8)
    }

    #[inline(always)]
    fn row(self) -> usize {
        self.0.into()
    }

    /// The width of a slot, as a power of two of virtual time.
    #[inline]
    fn bits(self) -> u32 {
        SLOT_BITS + SCALE.ilog2() - u32::from(self.0)
    }
}

/// A slot of a class: its number modulo 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(pub(super) u8);

impl Slot {
    #[inline(always)]
    fn of(number: u64) -> Slot {
        Slot((number & 63) as u8)
    }

    #[inline(always)]
    fn row(self) -> usize {
        usize::from(self.0 & 63)
    }

    #[inline(always)]
    fn mask(self) -> u64 {
        1 << (self.0 & 63)
    }
}

/// Start-time fair queueing over slots.
///
/// Each class of weights has 64 slots in a circle, as wide in virtual time as its tenants' shares are small, and a word
/// that tells which have tenants. Those of one slot are served in turn. Nothing here depends on how many there are:
///
/// ```text
///            V
///  class 0   |  [      a,b     ][      c       ][              ]   weight 1
///  class 1   |  [  d   ][      ][       ][      ][       ][     ]   weights 2, 3
///  class 2   |  [  ][e ][  ][  ]                                   weights 4 to 7
/// ```
///
/// Virtual time goes on by the work that is done in turns over the weights of all that have work, so that it does not
/// stand still while tenants that are alone in a wide slot have their turns: who asks for less than its share does not
/// get ahead of it then (`docs/scheduling-design.md` has why that matters). A slot may be served once it has begun; of
/// those, the one that ends first is next (WF²Q+, Bennett and Zhang 1997, to the precision of slots).
///
/// Invariant: V is before the end of the first slot that has tenants, of every class, and none is more than 63 slots
/// ahead of it. So a slot's number modulo 64 says which it is.
///
/// The **clock** is what tenants are told to be behind or ahead of. It is V, but where V is held back by that
/// invariant, or waits while lanes are served, it goes on all the same, at the pace at which all tenants that are here
/// would be served if all had work. Whoever asks for less than its share of that falls behind it, whatever slots others
/// are in (`docs/scheduling-design.md`, the bound).
#[derive(Debug)]
pub(super) struct Calendar {
    now: u64,
    clock: u64,
    /// What of the clock is too little to show, in 2^-32.
    fraction: u64,
    /// What a nanosecond of cost is for the clock at the least, in 2^-32.
    pace: u64,
    /// Of all tenants that have queues on this core: their weights, and thousandths of its time that are guaranteed.
    present: (u64, u32),
    /// What virtual time is to be before, by the invariant: never later than that.
    limit: u64,
    /// Of all tenants with work.
    pub(super) weights: u64,
    /// Bit by bit, the classes that have tenants.
    classes: u32,
    /// By class, bit by bit, the slots that have tenants.
    filled: [u64; CLASSES],
    slots: Box<[[List<TenantIndex, READY>; 64]; CLASSES]>,
}

impl Calendar {
    pub(super) fn new() -> Calendar {
        Calendar {
            now: 0,
            clock: 0,
            fraction: 0,
            pace: 0,
            present: (0, 0),
            limit: u64::MAX,
            weights: 0,
            classes: 0,
            filled: [0; CLASSES],
            slots: Box::new([[List::default(); 64]; CLASSES]),
        }
    }

    /// What tenants are behind or ahead of.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.clock.max(self.now)
    }

    /// What turns go by, which the clock may be ahead of.
    #[inline]
    pub(super) fn virtual_time(&self) -> u64 {
        self.now
    }

    /// Whether virtual time has passed the slot of a tag: one that waits for its turn is never so far behind.
    #[inline]
    pub(super) fn has_passed(&self, tag: u64, class: WeightClass) -> bool {
        let bits = class.bits();
        tag >> bits < self.now >> bits
    }

    /// A tenant has queues on this core from now on, or has none any more.
    pub(super) fn count(&mut self, is_present: bool, weight: u32, guarantee: u32) {
        let (weights, guaranteed) = self.present;
        let weight = u64::from(weight);
        self.present = if is_present {
            (weights + weight, guaranteed + guarantee)
        } else {
            (weights - weight, guaranteed - guarantee)
        };
        let (weights, guaranteed) = self.present;
        // What is guaranteed is nobody's share.
        let left = u64::from(1_000 - guaranteed.min(MOST_GUARANTEED));
        self.pace = (SCALE << 32) / 1_000 * left / weights.max(1);
    }

    /// A tenant of this weight has work now.
    #[inline]
    pub(super) fn enter(&mut self, weight: u32) {
        self.weights += u64::from(weight);
    }

    /// And now it has none.
    #[inline]
    pub(super) fn leave(&mut self, weight: u32) {
        self.weights -= u64::from(weight);
    }

    /// So much was done, nanoseconds of cost. `turn`: for a tenant whose turn it was, its tag and class, beyond whose
    /// slot virtual time does not go. None for one that went first. Nobody's turn comes nearer by that, so virtual time
    /// waits: if it went on, those who go first would stay behind it whatever they had, alone or beside what is
    /// guaranteed to others, and whoever is in a later lane would have nothing.
    #[inline]
    pub(super) fn pass(&mut self, cost: u64, turn: Option<(u64, WeightClass)>) {
        let Some((tag, class)) = turn else {
            self.tick(cost);
            if self.classes == 0 {
                // Nobody waits for a turn.
                self.now = self.clock;
            }
            return;
        };
        let scaled = cost.saturating_mul(SCALE);
        let passed = match (u32::try_from(scaled), u32::try_from(self.weights)) {
            // Division of half as many bits takes less than half the time.
            (Ok(cost), Ok(weights @ 1..)) => (cost / weights).into(),
            _ => scaled / self.weights.max(1),
        };
        let bits = class.bits();
        let turn = ((tag >> bits) + 1) << bits;
        let limit = if self.classes == 0 { turn } else { self.limit.min(turn) };
        self.now = self.now.max(self.now.saturating_add(passed).min(limit - 1));
        self.tick(cost);
    }

    /// The clock goes on, and nothing else.
    #[inline]
    pub(super) fn tick(&mut self, cost: u64) {
        let went = u128::from(cost) * u128::from(self.pace) + u128::from(self.fraction);
        self.fraction = went as u64 & u64::from(u32::MAX);
        let went = u64::try_from(went >> 32).unwrap_or(u64::MAX);
        self.clock = self.clock.saturating_add(went).min(self.now + FURTHEST).max(self.now);
    }

    /// The latest tag that a class can have.
    #[inline]
    pub(super) fn latest(&self, class: WeightClass) -> u64 {
        self.now() + (AHEAD << class.bits())
    }

    #[inline]
    pub(super) fn insert(&mut self, tenants: &mut Table<TenantIndex, Tenant>, index: TenantIndex) {
        let tenant = &mut tenants[index];
        let class = tenant.class();
        let bits = class.bits();
        let first = self.now >> bits;
        let slot = (tenant.tag >> bits).clamp(first, first + AHEAD);
        let end = (slot + 1) << bits;
        self.limit = if self.classes == 0 { end } else { self.limit.min(end) };
        let slot = Slot::of(slot);
        tenant.set_slot(slot);
        self.slots[class.row()][slot.row()].push_back(tenants, index);
        self.filled[class.row()] |= slot.mask();
        self.classes |= 1 << class.0;
    }

    #[inline]
    pub(super) fn remove(&mut self, tenants: &mut Table<TenantIndex, Tenant>, index: TenantIndex) {
        let (class, slot) = (tenants[index].class(), tenants[index].slot());
        self.slots[class.row()][slot.row()].remove(tenants, index);
        self.tidy(class, slot);
    }

    #[inline]
    fn tidy(&mut self, class: WeightClass, slot: Slot) {
        if self.slots[class.row()][slot.row()].is_empty() {
            self.filled[class.row()] &= !slot.mask();
            if self.filled[class.row()] == 0 {
                self.classes &= !(1 << class.0);
            }
        }
    }

    /// Virtual time goes on to where the slot of a tag begins, of a tenant beside which there is no other.
    #[inline]
    pub(super) fn advance(&mut self, tag: u64, class: WeightClass) {
        let bits = class.bits();
        self.now = self.now.max(tag >> bits << bits);
    }

    /// Takes out the first of the slot that is next, and virtual time goes on.
    #[inline]
    pub(super) fn pop(&mut self, tenants: &mut Table<TenantIndex, Tenant>) -> Option<TenantIndex> {
        let mut left = self.classes;
        if left == 0 {
            return None;
        }
        // What ends first, of what has begun; and what begins first, where that is none. Both with their classes.
        let (mut soonest, mut open) = (u64::MAX, WeightClass(0));
        let (mut earliest, mut class) = (u64::MAX, WeightClass(0));
        let mut limit = u64::MAX;
        // At most one step for each class; one, mostly. Which of them is chosen is as good as random to a processor, so
        // nothing branches on it.
        while left != 0 {
            let each = WeightClass(left.trailing_zeros() as u8);
            left &= left - 1;
            let start = self.first(each) << each.bits();
            let end = start + (1 << each.bits());
            limit = limit.min(end);
            let by_end = if start <= self.now { end } else { u64::MAX };
            open = if by_end <= soonest { each } else { open };
            soonest = soonest.min(by_end);
            class = if start <= earliest { each } else { class };
            earliest = earliest.min(start);
        }
        let class = if soonest == u64::MAX { class } else { open };
        let slot = Slot::of(self.first(class));
        self.now = self.now.max(earliest);
        self.limit = limit;
        let index = self.slots.get_mut(class.row())?[slot.row()].pop_front(tenants)?;
        self.tidy(class, slot);
        Some(index)
    }

    /// The first slot of a class that has tenants, by its number.
    #[inline]
    fn first(&self, class: WeightClass) -> u64 {
        let first = self.now >> class.bits();
        let ahead = self.filled[class.row()].rotate_right(first as u32 & 63).trailing_zeros();
        first + u64::from(ahead)
    }
}
