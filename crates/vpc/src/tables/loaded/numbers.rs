//! Numbers of next hops: what stays from load to load keeps its own, so that flows that have it go on.

use super::FIRST;

/// Which numbers are given.
pub(super) struct Numbers {
    /// By number, from [`FIRST`] on.
    taken: Vec<bool>,
    /// The next to see whether it is free.
    next: usize,
}

impl Numbers {
    /// None is given yet of those that `before` had, nor of others.
    pub fn new(before: usize) -> Numbers {
        Numbers { taken: vec![false; before], next: 0 }
    }

    /// Keeps a number that was given before. False where another has it.
    pub fn keep(&mut self, number: u32) -> bool {
        let slot = number.checked_sub(FIRST).and_then(|at| self.taken.get_mut(at as usize));
        slot.is_some_and(|taken| !std::mem::replace(taken, true))
    }

    pub fn is_kept(&self, number: u32) -> bool {
        number.checked_sub(FIRST).and_then(|at| self.taken.get(at as usize)).is_some_and(|taken| *taken)
    }

    /// The lowest that nobody has; to be asked when all are kept that stay. It may have been another's: whose flows know that by
    /// their stamps.
    pub fn unused(&mut self) -> u32 {
        while self.taken.get(self.next) == Some(&true) {
            self.next += 1;
        }
        self.next += 1;
        FIRST + self.next as u32 - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_kept_is_given_first() {
        let mut numbers = Numbers::new(4);
        assert!(numbers.keep(FIRST + 1) && numbers.keep(FIRST + 2));
        assert!(!numbers.keep(FIRST + 2), "it is another's");
        assert!(!numbers.keep(FIRST + 4) && !numbers.keep(7), "it was never given");
        let given: Vec<u32> = (0..4).map(|_| numbers.unused() - FIRST).collect();
        assert_eq!(given, [0, 3, 4, 5]);
    }
}
