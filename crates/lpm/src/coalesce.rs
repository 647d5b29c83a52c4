//! Exact match instead of longest prefix match (Zephyrus §4.3, hash-table coalescing): where no two prefixes of a table
//! overlap, at most one contains an address, and a hash table finds it with one probe for each length that occurs.
//! Asked before a table's routes are installed; what does not qualify is told what is in the way and stays a trie.

use std::fmt;
use std::net::IpAddr;

use crate::prefix::Prefix;

/// Lengths that an exact match may have: a probe costs about as much as a step through the trie, which has up to six
/// for IPv4.
pub const MOST_LENGTHS: usize = 3;

/// The exact-match form of one table and family: the lengths that a look-up probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    lengths: [u8; MOST_LENGTHS],
    count: u8,
}

impl Lengths {
    /// Each once, the most frequent first. What is found does not depend on the order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u8> {
        self.lengths.into_iter().take(self.count.into())
    }
}

/// Why a table cannot be exact match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// An address can be in both.
    Nested {
        /// The one that contains the other.
        wide: Prefix,
        /// The one inside.
        narrow: Prefix,
    },
    /// More than [`MOST_LENGTHS`] lengths would have to be probed.
    Lengths(usize),
    /// Routes came one by one since it was asked: any of them may overlap another.
    Added,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Conflict::Nested { wide, narrow } => write!(f, "{narrow} is inside {wide}"),
            Conflict::Lengths(count) => write!(f, "prefixes have {count} lengths, more than {MOST_LENGTHS}"),
            Conflict::Added => f.write_str("routes were added one by one"),
        }
    }
}

fn order(prefix: &Prefix) -> (IpAddr, u8) {
    (prefix.address(), prefix.length())
}

/// Whether `prefixes`, of one table, each once and in any order, can be looked up by exact match. The two families do
/// not meet, and are asked for one at a time. Default routes are left aside: a default is what is left where nothing
/// else matches, and needs no probe.
///
/// # Errors
/// [`Conflict`]: the first pair that overlaps, in the order of addresses, or else that there are too many lengths.
pub fn coalesce(prefixes: impl IntoIterator<Item = Prefix>) -> Result<Lengths, Conflict> {
    let mut prefixes: Vec<_> = prefixes.into_iter().filter(|prefix| prefix.length() != 0).collect();
    prefixes.sort_unstable_by_key(order);
    // Sorted, whatever is inside a prefix comes right behind it.
    for pair in prefixes.windows(2) {
        if pair[0].overlaps(pair[1]) {
            return Err(Conflict::Nested { wide: pair[0], narrow: pair[1] });
        }
    }
    let mut counts = [0usize; 129];
    for prefix in &prefixes {
        counts[usize::from(prefix.length())] += 1;
    }
    let mut occur: Vec<u8> = (1..=128).filter(|length| counts[usize::from(*length)] != 0).collect();
    if occur.len() > MOST_LENGTHS {
        return Err(Conflict::Lengths(occur.len()));
    }
    occur.sort_by_key(|length| std::cmp::Reverse(counts[usize::from(*length)]));
    let mut found = Lengths { lengths: [0; MOST_LENGTHS], count: occur.len() as u8 };
    found.lengths[..occur.len()].copy_from_slice(&occur);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(prefixes: &[&str]) -> Result<Vec<u8>, String> {
        let prefixes = prefixes.iter().map(|prefix| prefix.parse().unwrap());
        coalesce(prefixes).map(|lengths| lengths.iter().collect()).map_err(|conflict| conflict.to_string())
    }

    #[test]
    fn disjoint_prefixes_are_exact_with_the_most_frequent_length_first() {
        assert_eq!(asked(&[]), Ok(vec![]));
        assert_eq!(asked(&["10.0.0.0/16", "10.1.0.0/24", "10.1.1.0/24"]), Ok(vec![24, 16]));
        assert_eq!(asked(&["2001:db8::/64", "2001:db8:0:1::/64"]), Ok(vec![64]));
    }

    #[test]
    fn a_default_route_is_in_nobodys_way() {
        assert_eq!(asked(&["0.0.0.0/0", "10.1.0.0/16"]), Ok(vec![16]));
        assert_eq!(asked(&["::/0"]), Ok(vec![]));
    }

    #[test]
    fn the_pair_that_overlaps_is_named_even_with_others_between() {
        let nested = ["10.0.0.0/8", "11.0.0.0/8", "10.1.0.0/16", "10.0.0.0/24", "9.0.0.0/8"];
        assert_eq!(asked(&nested), Err("10.0.0.0/24 is inside 10.0.0.0/8".into()));
        assert_eq!(asked(&["10.255.0.0/16", "10.0.0.0/8"]), Err("10.255.0.0/16 is inside 10.0.0.0/8".into()));
    }

    #[test]
    fn many_lengths_are_too_many() {
        let many = ["10.0.0.0/16", "10.1.0.0/17", "10.2.0.0/18", "10.3.0.0/19"];
        assert_eq!(asked(&many), Err("prefixes have 4 lengths, more than 3".into()));
    }
}
