//! When the router is advertised to a port that has not asked (RFC 4861 §6.2.4): a few times soon after it comes up,
//! then again and again long before a route that a guest has from it expires.

use crate::hash::splitmix64;
use crate::service::ra::ROUTER_LIFETIME;

const SECOND: u64 = 1_000_000_000;
/// Most and least time between two advertisements, nanoseconds: MaxRtrAdvInterval and MinRtrAdvInterval with their
/// defaults (RFC 4861 §6.2.1).
const LONGEST: u64 = 600 * SECOND;
const SHORTEST: u64 = LONGEST / 100 * 33;
/// The first ones are no further apart than this (RFC 4861 §10, MAX_INITIAL_RTR_ADVERT_INTERVAL and
/// MAX_INITIAL_RTR_ADVERTISEMENTS).
const INITIAL: u64 = 16 * SECOND;
const INITIALS: u32 = 3;

// A guest keeps its route although two advertisements in a row are lost.
const _: () = assert!(3 * LONGEST <= ROUTER_LIFETIME as u64 * SECOND);

/// A port's advertisements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Schedule {
    /// How many there were.
    sent: u32,
    /// When the next is due, nanoseconds; 0, when the port comes up.
    next: u64,
}

impl Schedule {
    /// Whether one is due at `now`, nanoseconds; the next one is then due later. `seed` is the port's own: that all
    /// ports of all hosts have their turn at once is what chance is there to prevent.
    pub fn is_due(&mut self, now: u64, seed: u64) -> bool {
        let due = now >= self.next;
        if due {
            self.sent = self.sent.saturating_add(1);
            let chance = splitmix64(seed ^ u64::from(self.sent) ^ now);
            let interval = if self.sent < INITIALS { INITIAL } else { SHORTEST + chance % (LONGEST - SHORTEST) };
            self.next = now.saturating_add(interval);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_soon_and_then_between_the_least_and_the_most_interval() {
        let mut schedule = Schedule::default();
        let start = 5 * SECOND;
        let due: Vec<_> = (start..start + 20_000 * SECOND)
            .step_by(SECOND as usize)
            .filter(|now| schedule.is_due(*now, 7))
            .map(|now| now - start)
            .collect();
        assert_eq!(due[..3], [0, INITIAL, 2 * INITIAL]);
        let intervals: Vec<_> = due[2..].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(intervals.iter().all(|interval| (SHORTEST..=LONGEST + SECOND).contains(interval)), "{intervals:?}");
        assert!(intervals.iter().any(|interval| *interval != intervals[0]), "no chance in it");
    }

    #[test]
    fn ports_have_their_turns_at_different_times() {
        let after_initials = |seed| {
            let mut schedule = Schedule::default();
            for number in 0..3 {
                assert!(schedule.is_due(SECOND + number * INITIAL, seed));
            }
            schedule.next
        };
        assert_ne!(after_initials(1), after_initials(2));
    }
}
