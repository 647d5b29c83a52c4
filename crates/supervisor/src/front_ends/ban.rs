//! How long a device accepts no front end after data planes died of one: most front ends reconnect at once and bring
//! the same guest.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::reexec::Moment;
use softdpu_api::status::ClosedFrontEnds;

/// For how long a device accepts none after its front end was closed; doubles each time.
const FIRST_BAN: Duration = Duration::from_secs(10);

/// The longest of these pauses.
const LONGEST_BAN: Duration = Duration::from_secs(600);

/// What became of a device's front ends that data planes died of.
#[derive(Debug)]
pub(super) struct Ban {
    /// How many were closed.
    front_ends: u32,
    /// Why the last one was.
    reason: String,
    /// None is accepted before.
    pub(super) until: Instant,
}

/// A [`Ban`] as the next program of the supervisor is given it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BanState {
    front_ends: u32,
    reason: String,
    until: Moment,
}

impl From<&Ban> for BanState {
    fn from(Ban { front_ends, reason, until }: &Ban) -> BanState {
        BanState { front_ends: *front_ends, reason: reason.clone(), until: (*until).into() }
    }
}

impl From<BanState> for Ban {
    fn from(BanState { front_ends, reason, until }: BanState) -> Ban {
        Ban { front_ends, reason, until: until.into() }
    }
}

impl Ban {
    /// A front end is closed for `reason`, after those of `before`. Also how long the pause is.
    pub(super) fn after(before: Option<&Ban>, reason: String, now: Instant) -> (Ban, Duration) {
        let front_ends = before.map_or(0, |ban| ban.front_ends) + 1;
        let pause = (FIRST_BAN * (1 << (front_ends - 1).min(16))).min(LONGEST_BAN);
        (Ban { front_ends, reason, until: now + pause }, pause)
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until <= now
    }

    pub(super) fn status(&self, now: Instant) -> ClosedFrontEnds {
        ClosedFrontEnds {
            count: self.front_ends,
            reason: self.reason.clone(),
            accepts_in_s: self.until.saturating_duration_since(now).as_secs_f64().ceil() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_further_front_end_that_is_closed_doubles_the_pause_up_to_ten_minutes() {
        let now = Instant::now();
        let (mut last, mut pauses) = (None, Vec::new());
        for _ in 0..9 {
            let (ban, pause) = Ban::after(last.as_ref(), "it kills".into(), now);
            assert!(!ban.is_over(now) && ban.is_over(now + pause));
            pauses.push(pause.as_secs());
            last = Some(ban);
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
        let status = last.unwrap().status(now);
        assert_eq!((status.count, status.accepts_in_s), (9, 600));
    }
}
