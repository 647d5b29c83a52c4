//! One dimension of rules: the values of a field, cut where rules begin and end, and for each piece the rules that have
//! any of it.

use std::collections::HashMap;

use super::bits::{Sets, Shape};
use crate::policy::rule::Range;

/// Most pieces. With more ends of rules than this, some are inside a piece, no more than their number divided by this:
/// so many rules may be in a piece's set that have only another part of the piece. The caller looks at each rule it
/// finds.
const PIECES: usize = 1024;

/// What can be cut into pieces.
pub trait Value: Copy + Ord {
    const ZERO: Self;
    fn next(self) -> Option<Self>;
}

macro_rules! values {
    ($($kind:ty),+) => {
        $(impl Value for $kind {
            const ZERO: $kind = 0;
            fn next(self) -> Option<$kind> {
                self.checked_add(1)
            }
        })+
    };
}

values!(u8, u16, u32, u128);

#[derive(Clone, Debug)]
pub struct Axis<T> {
    /// Where pieces begin, the first at 0.
    starts: Box<[T]>,
    /// The number of each piece's set.
    numbers: Box<[u32]>,
    sets: Sets,
}

impl<T: Value> Axis<T> {
    /// For rules that have the values of `ranges`, one each.
    pub fn build(shape: Shape, ranges: &[Range<T>]) -> Axis<T> {
        let starts = cut(ranges, PIECES);
        let piece = |value| starts.partition_point(|start| *start <= value) - 1;
        let mut sets = vec![shape.empty(); starts.len()];
        for (rule, &(first, last)) in ranges.iter().enumerate() {
            for set in &mut sets[piece(first)..=piece(last)] {
                shape.put(set, rule);
            }
        }
        // The same sets come again and again: each is there once.
        let (mut known, mut words) = (HashMap::<&[u64], u32>::new(), Vec::new());
        let numbers = sets
            .iter()
            .map(|set| {
                let next = known.len() as u32;
                *known.entry(set).or_insert_with(|| {
                    words.extend_from_slice(set);
                    next
                })
            })
            .collect();
        Axis { starts: starts.into(), numbers, sets: Sets::new(shape, words) }
    }

    /// A set that has every rule with `value`.
    #[inline]
    pub fn set(&self, value: T) -> &[u64] {
        // The first piece begins at the least value.
        let piece = self.starts.partition_point(|start| *start <= value).saturating_sub(1);
        self.sets.get(self.numbers[piece])
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        size_of_val(&*self.starts) + size_of_val(&*self.numbers) + self.sets.size()
    }
}

/// Where pieces begin. An end that more rules share than may be inside of a piece is always a cut, and between two cuts
/// there are no more ends than that: two neighbours have more together, so there are no more than `pieces` of them.
fn cut<T: Value>(ranges: &[Range<T>], pieces: usize) -> Vec<T> {
    let mut ends: Vec<T> = ranges.iter().flat_map(|(first, last)| [Some(*first), last.next()]).flatten().collect();
    ends.retain(|end| *end != T::ZERO);
    ends.sort_unstable();
    let distinct = ends.chunk_by(|a, b| a == b).count();
    let inside = if distinct < pieces { 0 } else { ends.len() / pieces };
    let (mut starts, mut since) = (vec![T::ZERO], 0);
    for same in ends.chunk_by(|a, b| a == b) {
        since += same.len();
        if since > inside {
            starts.push(same[0]);
            since = 0;
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_are_few_and_no_piece_has_many_ends_inside(
            ranges in prop::collection::vec((any::<u8>(), any::<u8>()), 1..200),
            pieces in 4_usize..40,
        ) {
            let ranges: Vec<_> = ranges.iter().map(|(a, b)| (*a.min(b), *a.max(b))).collect();
            let starts = cut(&ranges, pieces);
            prop_assert!(starts.is_sorted_by(|a, b| a < b) && starts[0] == 0);
            prop_assert!(starts.len() <= pieces + 1, "{} pieces", starts.len());
            let most = 2 * ranges.len() / pieces;
            for (at, start) in starts.iter().enumerate() {
                let end = starts.get(at + 1).copied();
                let inside = |value: u8| value > *start && end.is_none_or(|end| value < end);
                let ends = ranges.iter().flat_map(|(first, last)| [Some(*first), last.checked_add(1)]).flatten();
                prop_assert!(ends.filter(|end| inside(*end)).count() <= most);
            }
        }

        #[test]
        fn a_set_has_every_rule_and_few_others(ranges in prop::collection::vec((any::<u16>(), any::<u16>()), 1..100)) {
            let ranges: Vec<_> = ranges.iter().map(|(a, b)| (*a.min(b), *a.max(b))).collect();
            let shape = Shape::of(ranges.len());
            let axis = Axis::build(shape, &ranges);
            for value in ranges.iter().flat_map(|(first, last)| [*first, *last, last.wrapping_add(1)]) {
                let found: Vec<_> = (0..ranges.len())
                    .filter(|rule| shape.first([axis.set(value)], None, |at| at == *rule).is_some())
                    .collect();
                let has = |rule: &usize| (ranges[*rule].0..=ranges[*rule].1).contains(&value);
                prop_assert_eq!(found, (0..ranges.len()).filter(has).collect::<Vec<_>>());
            }
        }
    }
}
