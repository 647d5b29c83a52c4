//! Front ends that make a core wait, and what becomes of them.
//!
//! Where a core touches what a front end owns, the kernel may take long: a fault under a hole that is being punched, a
//! signal to an eventfd with many watches. No look beforehand tells. So the core measures, and a front end that has
//! made it wait too long is served by the slow core, beside the others, for a term that doubles each time.
//!
//! ```text
//!             more than Stalls::ROOM                  term is over
//!   a core ────────────────────────────▶ slow core ──────────────────▶ a core
//!                                          │    ▲
//!                                          └────┘ stalls there: the term begins again
//! ```

use std::collections::BTreeMap;

use crate::Nanos;

/// The time for which a queue made its core wait, less what is forgiven: a leaky bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    level: Nanos,
    seen: Nanos,
}

impl Stalls {
    /// What a queue may waste at once.
    pub const ROOM: Nanos = Nanos(10_000_000);

    /// What it may waste in the long run, thousandths of its core's time.
    pub const FORGIVEN: u64 = 5;

    /// How many times as long as a stall took a queue rests on the slow core, which others of the node have then.
    pub const REST: u64 = 9;

    /// The longest rest.
    pub const LONGEST_REST: Nanos = Nanos(1_000_000_000);

    /// Its core has waited for `time`, until `now`. Whether that is more than there was room for; all is then
    /// forgotten.
    pub fn add(&mut self, now: Nanos, time: Nanos) -> bool {
        let forgiven = now.since(self.seen).0 / 1_000 * Stalls::FORGIVEN;
        self.seen = now;
        self.level = Nanos(self.level.0.saturating_sub(forgiven).saturating_add(time.0));
        let is_over = self.level > Stalls::ROOM;
        if is_over {
            self.level = Nanos(0);
        }
        is_over
    }

    /// For how long a queue of the slow core rests after a stall of `time`.
    pub fn rest(time: Nanos) -> Nanos {
        Nanos(time.0.saturating_mul(Stalls::REST)).min(Stalls::LONGEST_REST)
    }
}

/// What is demoted to the slow core, and for how long.
#[derive(Clone, Debug)]
pub struct Demotions<K> {
    terms: BTreeMap<K, Term>,
}

impl<K> Default for Demotions<K> {
    fn default() -> Self {
        Demotions { terms: BTreeMap::new() }
    }
}

#[derive(Clone, Copy, Debug)]
struct Term {
    length: Nanos,
    ends: Nanos,
    is_over: bool,
}

impl<K: Ord + Clone> Demotions<K> {
    /// The first term.
    pub const FIRST: Nanos = Nanos(4_000_000_000);

    /// The longest.
    pub const LONGEST: Nanos = Nanos(64_000_000_000);

    /// For how many times its last term a demotion is remembered after its end.
    pub const MEMORY: u64 = 4;

    /// `key` has made a core wait too long, at `now`. On the slow core already, its term begins again; otherwise it is
    /// twice as long as the last one, if that is remembered.
    pub fn demote(&mut self, now: Nanos, key: &K) {
        let first = Term { length: Nanos(0), ends: now, is_over: true };
        let term = self.terms.entry(key.clone()).or_insert(first);
        if std::mem::replace(&mut term.is_over, false) {
            term.length = Nanos(term.length.0 * 2).max(Self::FIRST).min(Self::LONGEST);
        }
        term.ends = Nanos(now.0.saturating_add(term.length.0));
    }

    /// Whether it is demoted.
    pub fn is_demoted(&self, key: &K) -> bool {
        self.terms.get(key).is_some_and(|term| !term.is_over)
    }

    /// Those with a term that is over at `now`: they are demoted no more. Others are forgotten.
    pub fn over(&mut self, now: Nanos) -> Vec<K> {
        let mut over = Vec::new();
        self.terms.retain(|key, term| {
            if !term.is_over && now >= term.ends {
                term.is_over = true;
                over.push(key.clone());
            }
            !term.is_over || now.since(term.ends).0 < Self::MEMORY * term.length.0
        });
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1_000 * MS;

    #[test]
    fn a_long_stall_is_too_much_at_once_and_short_ones_together() {
        let mut stalls = Stalls::default();
        assert!(stalls.add(Nanos(S), Nanos(30 * MS)));
        assert!(!stalls.add(Nanos(S), Nanos(MS)), "it was forgotten");
        let count = (2..).take_while(|at| !stalls.add(Nanos(S + at * MS), Nanos(MS))).count();
        assert_eq!(count, 9, "a millisecond in each, and 10 in all");
    }

    #[test]
    fn what_is_forgiven_is_half_a_hundredth_of_the_time() {
        let mut stalls = Stalls::default();
        // 4 ms a second, for ever.
        assert!(!(1..1_000).any(|second| stalls.add(Nanos(second * S), Nanos(4 * MS))));
        // 6 ms a second, not for long.
        assert!((1_000..1_020).any(|second| stalls.add(Nanos(second * S), Nanos(6 * MS))));
    }

    #[test]
    fn a_rest_leaves_a_tenth_of_the_time_and_has_an_end() {
        assert_eq!(Stalls::rest(Nanos(MS)), Nanos(9 * MS));
        assert_eq!(Stalls::rest(Nanos(S)), Nanos(S));
        assert_eq!(Stalls::rest(Nanos(u64::MAX)), Nanos(S));
    }

    #[test]
    fn terms_double_up_to_the_longest() {
        let (mut demotions, mut now) = (Demotions::default(), Nanos(0));
        for term in [4, 8, 16, 32, 64, 64] {
            demotions.demote(now, &"a");
            assert!(demotions.is_demoted(&"a") && !demotions.is_demoted(&"b"));
            assert!(demotions.over(Nanos(now.0 + term * S - 1)).is_empty(), "{term}");
            now = Nanos(now.0 + term * S);
            assert_eq!(demotions.over(now), ["a"], "{term}");
            assert!(!demotions.is_demoted(&"a"));
        }
    }

    #[test]
    fn a_term_begins_again_while_stalls_go_on() {
        let mut demotions = Demotions::default();
        for at in 0..10 {
            demotions.demote(Nanos(at * S / 2), &7);
        }
        assert!(demotions.over(Nanos(17 * S / 2 - 1)).is_empty());
        assert_eq!(demotions.over(Nanos(17 * S / 2)), [7]);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut demotions = Demotions::default();
        demotions.demote(Nanos(0), &7);
        assert_eq!(demotions.over(Nanos(4 * S)), [7]);
        assert!(demotions.over(Nanos(20 * S)).is_empty() && demotions.terms.is_empty());
        demotions.demote(Nanos(21 * S), &7);
        assert_eq!(demotions.over(Nanos(25 * S)), [7], "a first term again");
    }
}
