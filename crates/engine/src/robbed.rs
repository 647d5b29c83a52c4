//! Time that a core's thread was kept from running.
//!
//! A grant's cost is what passed on the clock, and a thread that the kernel has put another in the place of, or whose
//! interrupts took long, was not at work for its tenant meanwhile. To ask the kernel costs a system call, so it is asked
//! only of a grant that took suspiciously long.

/// A grant that took longer may have been interrupted.
pub(crate) const SUSPICIOUS_NS: u64 = 100_000;

/// A time on the clock, and what the thread had run by then. Between two of them it ran all the time or was kept from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Robbed {
    clock: u64,
    ran: u64,
}

impl Robbed {
    /// Begins anew: what was before is nobody's.
    pub(crate) fn begin(&mut self, clock: u64, ran: u64) {
        *self = Robbed { clock, ran };
    }

    /// Of the last `took` nanoseconds before `clock`, what the thread may have run: all but what it was kept from since it
    /// began.
    pub(crate) fn left(&mut self, took: u64, clock: u64, ran: u64) -> u64 {
        let lost = clock.saturating_sub(self.clock).saturating_sub(ran.saturating_sub(self.ran));
        self.begin(clock, ran);
        took.saturating_sub(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_was_kept_from_is_not_its_tenants() {
        let mut robbed = Robbed::default();
        robbed.begin(1_000_000, 500_000);
        assert_eq!(robbed.left(300_000, 2_000_000, 1_500_000), 300_000, "it ran all the time");
        assert_eq!(robbed.left(4_200_000, 7_000_000, 2_500_000), 200_000, "4 ms were another's");
        assert_eq!(robbed.left(200_000, 17_000_000, 2_600_000), 0, "never less than nothing");
    }
}
