//! An interface that cannot be used: since when, why, and when it is tried again.

use std::time::{Duration, Instant};

/// The first pause before it is tried again; it doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// While there is nothing to be used.
#[derive(Debug)]
pub(crate) struct Absence {
    pub since: Instant,
    pub reason: String,
    /// How often it was tried since then.
    pub attempts: u64,
    /// When it is tried next.
    pub next: Instant,
    pause: Duration,
}

impl Absence {
    /// From `now` on.
    pub(super) fn new(reason: String, now: Instant) -> Absence {
        Absence { since: now, reason, attempts: 0, next: now + FIRST_PAUSE, pause: FIRST_PAUSE }
    }

    /// Before anything was tried.
    pub(super) fn untried(now: Instant) -> Absence {
        Absence { since: now, reason: String::new(), attempts: 0, next: now, pause: FIRST_PAUSE / 2 }
    }

    /// It was tried in vain. Whether the reason is another than before.
    pub(super) fn failed(&mut self, reason: String, now: Instant) -> bool {
        self.attempts += 1;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.next = now + self.pause;
        let is_news = self.reason != reason;
        self.reason = reason;
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tried_after_a_second_and_then_less_and_less_often() {
        let start = Instant::now();
        let mut absence = Absence::new("gone".to_owned(), start);
        let mut pauses = vec![(absence.next - start).as_secs()];
        for _ in 0..7 {
            let now = absence.next;
            absence.failed("gone".to_owned(), now);
            pauses.push((absence.next - now).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!((absence.attempts, absence.since), (7, start));
    }

    #[test]
    fn what_fails_at_first_is_tried_after_a_second_too() {
        let now = Instant::now();
        let mut absence = Absence::untried(now);
        assert_eq!(absence.next, now);
        assert!(absence.failed("gone".to_owned(), now));
        assert_eq!((absence.next - now, absence.attempts), (FIRST_PAUSE, 1));
    }

    #[test]
    fn only_another_reason_is_news() {
        let now = Instant::now();
        let mut absence = Absence::new("gone".to_owned(), now);
        let news: Vec<bool> =
            ["gone", "down", "down", "gone"].map(|reason| absence.failed(reason.to_owned(), now)).to_vec();
        assert_eq!(news, [false, true, false, true]);
        assert_eq!(absence.reason, "gone");
    }
}
