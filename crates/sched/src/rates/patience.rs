//! How long a sender is held for a receiver that has no room.

use crate::Nanos;

/// The longest that one frame is held.
const LONGEST: Nanos = Nanos(200 * Nanos::MICRO.0);
/// The window over which holding is added up, and what of it may be spent holding.
const WINDOW: Nanos = Nanos(20 * Nanos::MILLI.0);
const BUDGET: Nanos = Nanos(4 * Nanos::MILLI.0);

/// Whether to hold a sender while its receiver has no room, as flow control between guests of one node, or to drop as a
/// wire would.
///
/// A receiver that is merely busy is waited for up to [`LONGEST`]. If it has no room then, frames for it are dropped
/// until it takes one. Holding also delays what the sender has for other receivers, so a receiver that makes senders
/// wait for more than a fifth of a window is not waited for until the window is over.
#[derive(Clone, Debug, Default)]
pub struct Patience {
    window: Nanos,
    spent: Nanos,
    /// Since when a sender is held, and up to when that is in `spent`.
    held: Option<(Nanos, Nanos)>,
    /// Nothing is held until the receiver takes a frame again.
    lost: bool,
}

impl Patience {
    /// The receiver has no room at `now`. Whether to hold the sender and try again.
    pub fn hold(&mut self, now: Nanos) -> bool {
        if now.since(self.window) >= WINDOW {
            self.window = now;
            self.spent = Nanos(0);
        }
        if self.lost {
            return false;
        }
        let (since, counted) = *self.held.get_or_insert((now, now));
        self.spent = self.spent + now.since(counted);
        if now.since(since) >= LONGEST || self.spent >= BUDGET {
            self.held = None;
            self.lost = true;
            return false;
        }
        self.held = Some((since, now));
        true
    }

    /// The receiver took a frame.
    #[inline]
    pub fn took(&mut self) {
        self.held = None;
        self.lost = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_receiver_is_waited_for_but_not_for_long() {
        let mut patience = Patience::default();
        let start = Nanos::SECOND;
        assert!(patience.hold(start));
        assert!(patience.hold(start + Nanos(199_000)));
        assert!(!patience.hold(start + Nanos(200_000)));
        assert!(!patience.hold(start + Nanos(201_000)), "nor is the next frame held");
        patience.took();
        assert!(patience.hold(start + Nanos(500_000)));
    }

    #[test]
    fn a_receiver_that_makes_senders_wait_again_and_again_is_not_waited_for() {
        let mut patience = Patience::default();
        let (mut now, mut held) = (Nanos::SECOND, 0u64);
        // It takes a frame each time its sender has almost lost patience.
        for _ in 0..1_000 {
            let start = now;
            while patience.hold(now) && now.since(start) < Nanos(190_000) {
                now = now + Nanos::MICRO;
            }
            held += now.since(start).0;
            patience.took();
            now = now + Nanos::MICRO;
        }
        let share = held as f64 / now.since(Nanos::SECOND).0 as f64;
        let windows = now.since(Nanos::SECOND).0 / WINDOW.0 + 1;
        assert!(held <= windows * (BUDGET.0 + LONGEST.0), "held {held} ns, {share:.2} of the time");
    }
}
