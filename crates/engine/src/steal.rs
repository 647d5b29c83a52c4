//! Steal time: time in which the kernel kept a core's thread from running.
//!
//! A grant's cost is the time that passed on the clock. A thread that was preempted by the kernel, or was held up
//! by long interrupts, did not work for its tenant meanwhile. Asking the kernel costs a system call, so it is asked
//! only after a suspiciously long grant.

/// A span of time beyond which the kernel is asked for steal time, nanoseconds.
pub(crate) const SUSPICIOUS_NS: u64 = 100_000;

/// A reading of the clock, and the thread's CPU time at that reading. What the clock is ahead of the CPU time by the
/// next reading was stolen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StealTime {
    clock: u64,
    cpu_time: u64,
}

impl StealTime {
    /// Takes a reading. Steal time before it is not counted.
    pub(crate) fn restart(&mut self, clock: u64, cpu_time: u64) {
        *self = StealTime { clock, cpu_time };
    }

    /// The last `took` nanoseconds before `clock` less the steal time since the last reading. Takes a reading.
    pub(crate) fn subtract(&mut self, took: u64, clock: u64, cpu_time: u64) -> u64 {
        let stolen = clock.saturating_sub(self.clock).saturating_sub(cpu_time.saturating_sub(self.cpu_time));
        self.restart(clock, cpu_time);
        took.saturating_sub(stolen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_time_is_not_the_tenants() {
        let mut steal = StealTime::default();
        steal.restart(1_000_000, 500_000);
        assert_eq!(steal.subtract(300_000, 2_000_000, 1_500_000), 300_000, "it ran all the time");
        assert_eq!(steal.subtract(4_200_000, 7_000_000, 2_500_000), 200_000, "4 ms were stolen");
        assert_eq!(steal.subtract(200_000, 17_000_000, 2_600_000), 0, "never less than nothing");
    }
}
