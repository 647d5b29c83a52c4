//! When the next data plane is started: at once, unless one after the other dies young.

use std::time::Duration;

/// A data plane that served for less than this died young; what it took to be ready does not count. Whatever kills one
/// that has served for longer is no reason to keep its guests waiting.
pub(super) const YOUNG: Duration = Duration::from_millis(250);

/// So many may die young, one after the other, before a pause is made.
const FREE: u32 = 5;

/// The first pause; it doubles with each further death.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause. There is no end to trying: guests wait, and the cause may be outside.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Counts early deaths and says how long to wait.
#[derive(Debug, Default)]
pub(super) struct RestartPolicy {
    young_deaths: u32,
}

impl RestartPolicy {
    /// A data plane died that had served for `served`: zero if it never did. How long to wait before the next is
    /// started.
    pub(super) fn died(&mut self, served: Duration) -> Duration {
        self.young_deaths = if served < YOUNG { self.young_deaths.saturating_add(1) } else { 0 };
        match self.young_deaths.checked_sub(FREE) {
            None | Some(0) => Duration::ZERO,
            Some(more) => (FIRST_PAUSE * (1 << (more - 1).min(16))).min(LONGEST_PAUSE),
        }
    }

    /// What the next program of the supervisor has to know of it.
    pub(super) fn young_deaths(&self) -> u32 {
        self.young_deaths
    }

    pub(super) fn resume(young_deaths: u32) -> RestartPolicy {
        RestartPolicy { young_deaths }
    }

    /// Whether pauses are being made.
    pub(super) fn is_backing_off(&self) -> bool {
        self.young_deaths > FREE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_data_plane_that_dies_now_and_then_is_started_again_at_once() {
        let mut policy = RestartPolicy::default();
        for _ in 0..100 {
            assert_eq!(policy.died(YOUNG), Duration::ZERO);
        }
        assert!(!policy.is_backing_off());
    }

    #[test]
    fn a_crash_loop_slows_down_to_one_start_in_five_seconds_and_never_ends() {
        let mut policy = RestartPolicy::default();
        let pauses: Vec<u128> = (0..14).map(|_| policy.died(10 * MS).as_millis()).collect();
        assert_eq!(pauses, [0, 0, 0, 0, 0, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        for _ in 0..1000 {
            assert_eq!(policy.died(MS), LONGEST_PAUSE);
        }
        assert!(policy.is_backing_off());
    }

    #[test]
    fn one_that_serves_ends_the_crash_loop() {
        let mut policy = RestartPolicy::default();
        for _ in 0..20 {
            policy.died(MS);
        }
        assert_eq!(policy.died(YOUNG), Duration::ZERO);
        assert_eq!(policy.died(MS), Duration::ZERO);
    }
}
