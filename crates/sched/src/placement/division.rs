//! What of tenants' weights counts on each core.
//!
//! Each scheduler is fair on its own core. A tenant's weight is for the node, so it is divided over its queues: two
//! tenants of the same weight are due the same of the node, though one has a queue on each core and the other on one.

/// The most that a divided weight comes to; less, if that is enough to be exact: the larger weights are, the coarser
/// virtual time is.
const MOST: u64 = 1 << 13;

/// A tenant's weight, how many queues it has on a core, and how many on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightPart {
    /// Of the node.
    pub weight: u32,
    /// Queues on the core.
    pub here: u32,
    /// Queues on all cores.
    pub all: u32,
}

/// The weights on a core of tenants with these parts there. Only what they are to each other counts: they are what they
/// are where all tenants have the same part of their queues here, otherwise the least whole numbers that are so, or
/// nearly so where those are large. A tenant without queues on the core is taken to have
/// one there: it may come any time.
pub fn weights_on_core(parts: &[WeightPart]) -> Vec<u32> {
    let all = |part: &WeightPart| u64::from(part.all.max(1));
    let is_like = |one: &WeightPart, other: &WeightPart| {
        u64::from(one.here.max(1)) * all(other) == u64::from(other.here.max(1)) * all(one)
    };
    if parts.windows(2).all(|pair| is_like(&pair[0], &pair[1])) {
        return parts.iter().map(|part| part.weight).collect();
    }
    // In this part of a queue every weight is whole; where it gets too small, nearly.
    let unit = parts.iter().fold(1, |unit, part| (unit / gcd(unit, all(part)) * all(part)).min(1 << 20));
    let scaled = |part: &WeightPart| {
        let weight = u64::from(part.weight.max(1)) * u64::from(part.here.max(1));
        (u128::from(weight) * u128::from(unit) / u128::from(all(part))).max(1) as u64
    };
    let scaled: Vec<u64> = parts.iter().map(scaled).collect();
    let common = scaled.iter().fold(0, |common, weight| gcd(common, *weight)).max(1);
    let largest = scaled.iter().max().map_or(1, |largest| largest / common);
    let less = largest.div_ceil(MOST).next_power_of_two();
    scaled.iter().map(|weight| (weight / common / less).max(1) as u32).collect()
}

fn gcd(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Weighted;

    fn part(weight: u32, here: u32, all: u32) -> WeightPart {
        WeightPart { weight, here, all }
    }

    #[test]
    fn a_weight_is_divided_over_the_queues() {
        // One has a queue on each of eight cores, one has its only queue here, one has two of its eight.
        let weights = weights_on_core(&[part(1, 1, 8), part(1, 1, 1), part(4, 2, 8)]);
        assert_eq!(weights, [1, 8, 8]);
    }

    #[test]
    fn where_all_have_as_much_of_their_queues_weights_are_what_they_are() {
        for parts in [vec![part(4, 1, 8), part(2, 2, 16)], vec![part(7, 3, 5)], vec![part(10_000, 2, 2), part(1, 1, 1)]]
        {
            assert_eq!(weights_on_core(&parts), parts.iter().map(|part| part.weight).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_ratio_fits_and_no_weight_is_none() {
        for parts in [[part(10_000, 64, 64), part(1, 1, 1_000)], [part(1, 1, 1), part(1, 0, 5)]] {
            let weights = weights_on_core(&parts);
            assert!(weights.iter().all(|weight| (1..=Weighted::LARGEST_WEIGHT).contains(weight)), "{weights:?}");
        }
        assert_eq!(weights_on_core(&[]), Vec::<u32>::new());
    }
}
