//! Sets of rules, one bit a rule, in the order of their priority.

/// The sets of one axis, all of one length, each once. A set begins with its summary: one bit for each of its words
/// that is not 0.
#[derive(Clone, Debug, Default)]
pub struct Sets {
    words: Box<[u64]>,
    stride: usize,
}

/// How long sets of so many rules are.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    summary: usize,
    stride: usize,
}

const BITS: usize = u64::BITS as usize;

impl Shape {
    pub fn of(rules: usize) -> Shape {
        let words = rules.div_ceil(BITS).max(1);
        let summary = words.div_ceil(BITS);
        Shape { summary, stride: summary + words }
    }

    /// An empty set.
    pub fn empty(self) -> Vec<u64> {
        vec![0; self.stride]
    }

    /// Puts `rule` into `set`.
    pub fn put(self, set: &mut [u64], rule: usize) {
        let word = rule / BITS;
        set[self.summary + word] |= 1 << (rule % BITS);
        set[word / BITS] |= 1 << (word % BITS);
    }

    /// The first rule in all of `sets`, and in one of `either` if that is given, that `is` true of.
    #[inline]
    pub fn first<const N: usize>(
        self,
        sets: [&[u64]; N],
        either: Option<&Either<'_>>,
        mut is: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let both = |at: usize| {
            let all = sets.iter().fold(u64::MAX, |all, set| all & set[at]);
            either.map_or(all, |either| all & either.at(at))
        };
        for summary in 0..self.summary {
            let mut live = both(summary);
            while live != 0 {
                let word = summary * BITS + live.trailing_zeros() as usize;
                live &= live - 1;
                let mut rules = both(self.summary + word);
                while rules != 0 {
                    let rule = word * BITS + rules.trailing_zeros() as usize;
                    rules &= rules - 1;
                    if is(rule) {
                        return Some(rule);
                    }
                }
            }
        }
        None
    }
}

impl Sets {
    /// The sets, one behind the other.
    pub fn new(shape: Shape, words: Vec<u64>) -> Sets {
        Sets { words: words.into(), stride: shape.stride }
    }

    #[inline]
    pub fn get(&self, number: u32) -> &[u64] {
        let start = number as usize * self.stride;
        &self.words[start..start + self.stride]
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        size_of_val(&*self.words)
    }
}

/// The union of a set and of some others.
#[derive(Clone, Copy, Debug)]
pub struct Either<'a> {
    pub base: &'a [u64],
    pub sets: &'a Sets,
    /// Numbers of the others; those that there are no sets for count as empty.
    pub others: &'a [u32],
    /// How many sets there are.
    pub count: u32,
}

impl Either<'_> {
    #[inline]
    fn at(&self, at: usize) -> u64 {
        let others = self.others.iter().filter(|number| **number < self.count);
        others.fold(self.base[at], |either, number| either | self.sets.get(*number)[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_in_all_sets_that_passes() {
        let shape = Shape::of(10_000);
        let (mut a, mut b) = (shape.empty(), shape.empty());
        for rule in [3, 64, 4_999, 5_000, 9_999] {
            shape.put(&mut a, rule);
        }
        for rule in [4, 64, 5_000, 9_999] {
            shape.put(&mut b, rule);
        }
        assert_eq!(shape.first([&a, &b], None, |_| true), Some(64));
        assert_eq!(shape.first([&a, &b], None, |rule| rule > 64), Some(5_000));
        assert_eq!(shape.first([&a, &b], None, |rule| rule > 5_000), Some(9_999));
        assert_eq!(shape.first([&a, &b], None, |_| false), None);
    }

    #[test]
    fn a_union_is_of_the_base_and_those_that_exist() {
        let shape = Shape::of(100);
        let mut all = shape.empty();
        (0..100).for_each(|rule| shape.put(&mut all, rule));
        let (mut base, mut other) = (shape.empty(), shape.empty());
        shape.put(&mut base, 70);
        shape.put(&mut other, 9);
        let sets = Sets::new(shape, other);
        let either = |others| Either { base: &base, sets: &sets, others, count: 1 };
        assert_eq!(shape.first([&all], Some(&either(&[])), |_| true), Some(70));
        assert_eq!(shape.first([&all], Some(&either(&[7, 0])), |_| true), Some(9));
    }
}
