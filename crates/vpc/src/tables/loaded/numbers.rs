//! Numbers of next hops: what stays from load to load keeps its own, so that flows that have it stay valid.

use crate::id::HopId;

/// Gives numbers to the next hops of a load.
pub(super) struct HopNumbering {
    /// By [index](HopId::loaded_index): numbers that are kept from the load before.
    kept: Vec<bool>,
    /// The next index to try.
    next: usize,
}

impl HopNumbering {
    /// After a load with so many numbers, of which none is kept yet.
    pub fn after(previous: usize) -> HopNumbering {
        HopNumbering { kept: vec![false; previous], next: 0 }
    }

    /// Keeps a number of the load before. False, if it is kept for another next hop already, or is none.
    pub fn keep(&mut self, hop: HopId) -> bool {
        let slot = hop.loaded_index().and_then(|at| self.kept.get_mut(at));
        slot.is_some_and(|kept| !std::mem::replace(kept, true))
    }

    pub fn is_kept(&self, hop: HopId) -> bool {
        hop.loaded_index().and_then(|at| self.kept.get(at)).is_some_and(|kept| *kept)
    }

    /// The lowest unused number, once all that stay are kept. It may have been another next hop's: flows by that have a
    /// stamp that is stale.
    pub fn unused(&mut self) -> HopId {
        while self.kept.get(self.next) == Some(&true) {
            self.next += 1;
        }
        self.next += 1;
        HopId::loaded(self.next - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_not_kept_are_given_first() {
        let mut numbers = HopNumbering::after(4);
        assert!(numbers.keep(HopId::loaded(1)) && numbers.keep(HopId::loaded(2)));
        assert!(!numbers.keep(HopId::loaded(2)), "it is another's");
        assert!(!numbers.keep(HopId::loaded(4)) && !numbers.keep(HopId::new(7)), "it was never given");
        let given: Vec<HopId> = (0..4).map(|_| numbers.unused()).collect();
        assert_eq!(given, [0, 3, 4, 5].map(HopId::loaded));
    }
}
