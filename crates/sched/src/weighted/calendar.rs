//! Tenants with work in the order of their virtual times, in constant time.

use super::tenant::Tenant;
use crate::list::{LINE, List};

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
/// Invariant: V is at most the end of the first slot that has tenants, of every class, and none is more than 63 slots ahead of
/// it. So a slot's number modulo 64 says which it is.
#[derive(Debug)]
pub(super) struct Calendar {
    now: u64,
    /// Bit by bit, the classes that have tenants.
    classes: u32,
    /// By class, bit by bit, the slots that have tenants.
    filled: [u64; CLASSES],
    slots: Vec<[List<LINE>; 64]>,
}

impl Calendar {
    pub(super) fn new() -> Calendar {
        Calendar { now: 0, classes: 0, filled: [0; CLASSES], slots: vec![[List::default(); 64]; CLASSES] }
    }

    /// The class of a weight.
    pub(super) fn class(weight: u32) -> u8 {
        weight.clamp(1, LARGEST_WEIGHT).ilog2() as u8
    }

    #[inline]
    fn bits(class: usize) -> u32 {
        SLOT_BITS + SCALE.ilog2() - class as u32
    }

    /// Virtual time.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// The latest tag that a class can have.
    #[inline]
    pub(super) fn latest(&self, class: u8) -> u64 {
        self.now + (AHEAD << Self::bits(class.into()))
    }

    #[inline]
    pub(super) fn insert(&mut self, tenants: &mut [Tenant], index: u32) {
        let tenant = &mut tenants[index as usize];
        let class = usize::from(tenant.class());
        let bits = Self::bits(class);
        let first = self.now >> bits;
        let slot = ((tenant.tag >> bits).clamp(first, first + AHEAD) & 63) as usize;
        tenant.slot = slot as u8;
        self.slots[class][slot].push_back(tenants, index);
        self.filled[class] |= 1 << slot;
        self.classes |= 1 << class;
    }

    #[inline]
    pub(super) fn remove(&mut self, tenants: &mut [Tenant], index: u32) {
        let tenant = &tenants[index as usize];
        let (class, slot) = (usize::from(tenant.class()), usize::from(tenant.slot));
        self.slots[class][slot].remove(tenants, index);
        self.tidy(class, slot);
    }

    #[inline]
    fn tidy(&mut self, class: usize, slot: usize) {
        if self.slots[class][slot].is_empty() {
            self.filled[class] &= !(1 << slot);
            if self.filled[class] == 0 {
                self.classes &= !(1 << class);
            }
        }
    }

    /// Virtual time goes on to where the slot of a tag begins, of a tenant beside which there is no other.
    #[inline]
    pub(super) fn advance(&mut self, tag: u64, class: u8) {
        let bits = Self::bits(class.into());
        self.now = self.now.max(tag >> bits << bits);
    }

    /// Takes out the first of the earliest slot, and virtual time goes on to where that begins.
    #[inline]
    pub(super) fn pop(&mut self, tenants: &mut [Tenant]) -> Option<u32> {
        let (mut left, mut best) = (self.classes, None);
        // At most one step for each class; one, mostly.
        while left != 0 {
            let class = left.trailing_zeros() as usize;
            left &= left - 1;
            let bits = Self::bits(class);
            let first = self.now >> bits;
            let ahead = self.filled[class].rotate_right(first as u32 & 63).trailing_zeros();
            let start = (first + u64::from(ahead)) << bits;
            if best.is_none_or(|(earliest, _)| start <= earliest) {
                best = Some((start, class));
            }
        }
        let (start, class) = best?;
        self.now = self.now.max(start);
        let slot = ((start >> Self::bits(class)) & 63) as usize;
        let index = self.slots[class][slot].pop_front(tenants)?;
        self.tidy(class, slot);
        Some(index)
    }
}
