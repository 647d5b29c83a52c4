//! A set of small numbers that gives its least one in a few steps: words of bits, and above them words that say which
//! words below are not empty.

/// Numbers below a bound.
#[derive(Clone, Debug)]
pub struct Free {
    /// Lowest first; the last has one word.
    levels: Vec<Box<[u64]>>,
}

impl Free {
    /// The empty set of numbers below `bound`.
    pub fn new(bound: usize) -> Free {
        let mut levels = Vec::new();
        let mut words = bound;
        loop {
            words = words.div_ceil(64).max(1);
            levels.push(vec![0; words].into_boxed_slice());
            if words == 1 {
                return Free { levels };
            }
        }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.levels.iter().map(|words| size_of_val(&**words)).sum()
    }

    /// The least number, which is no longer in it.
    pub fn take_first(&mut self) -> Option<usize> {
        let mut at = 0;
        for words in self.levels.iter().rev() {
            let word = words.get(at).copied().filter(|word| *word != 0)?;
            at = at * 64 + word.trailing_zeros() as usize;
        }
        self.take(at).then_some(at)
    }

    /// Puts `number` in.
    pub fn put(&mut self, number: usize) {
        let mut at = number;
        for words in &mut self.levels {
            let word = &mut words[at / 64];
            let was_empty = *word == 0;
            *word |= 1 << (at % 64);
            if !was_empty {
                return;
            }
            at /= 64;
        }
    }

    /// Takes `number` out, if it is in.
    pub fn take(&mut self, number: usize) -> bool {
        let word = self.levels[0].get(number / 64).copied().unwrap_or_default();
        if word >> (number % 64) & 1 == 0 {
            return false;
        }
        let mut at = number;
        for words in &mut self.levels {
            let word = &mut words[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                break;
            }
            at /= 64;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set_with_a_least_number(
            bound in prop_oneof![1usize..200, 4000usize..5000],
            steps in prop::collection::vec((0u8..3, any::<u16>()), 0..300),
        ) {
            let (mut free, mut model) = (Free::new(bound), BTreeSet::new());
            for (step, number) in steps {
                let number = usize::from(number) % bound;
                match step {
                    0 => {
                        free.put(number);
                        model.insert(number);
                    }
                    1 => prop_assert_eq!(free.take(number), model.remove(&number)),
                    _ => prop_assert_eq!(free.take_first(), model.pop_first()),
                }
            }
        }
    }
}
