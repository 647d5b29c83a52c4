//! Where a long span of a core's time went: steal time, and stalls.
//!
//! A grant's cost is the time that passed on the clock. A thread that was preempted by the kernel, or was held up
//! by long interrupts, did not work for its tenant meanwhile: that is steal time, and no tenant's. A thread that waited
//! in the kernel did so for what it was at work for: a fault in memory that is being punched, say. That is a stall, and
//! its tenant's. Asking the kernel costs system calls, so it is asked only after a suspiciously long span.

/// A span of time beyond which the kernel is asked where it went, nanoseconds.
pub(crate) const SUSPICIOUS_NS: u64 = 100_000;

/// What the kernel knows of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadUse {
    /// Nanoseconds on a CPU.
    pub cpu_time: u64,
    /// How often it has waited, other than for a CPU.
    pub waits: u64,
}

/// A span of a core's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// How long the core was at it, nanoseconds, without steal time.
    pub time: u64,
    /// It waited in the kernel.
    pub has_waited: bool,
}

/// The last reading of the clock, if there was any, and what the kernel knew of the thread. What the clock is ahead of
/// the CPU time by the next reading was stolen, unless the thread has waited.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StealTime(Option<(u64, ThreadUse)>);

impl StealTime {
    /// Takes a reading. Steal time before it is not counted.
    pub(crate) fn restart(&mut self, clock: u64, thread: ThreadUse) {
        self.0 = Some((clock, thread));
    }

    /// The last `took` nanoseconds before `clock` less the steal time since the last reading. Takes a reading.
    pub(crate) fn subtract(&mut self, took: u64, clock: u64, thread: ThreadUse) -> Spent {
        let Some((before, was)) = self.0.replace((clock, thread)) else {
            return Spent { time: took, has_waited: false };
        };
        let ran = thread.cpu_time.saturating_sub(was.cpu_time);
        let stolen = clock.saturating_sub(before).saturating_sub(ran);
        // A short wait since the last reading, before a long span of work, is none of it.
        let has_waited = thread.waits > was.waits && stolen >= took / 2;
        Spent { time: if has_waited { took } else { took.saturating_sub(stolen) }, has_waited }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(cpu_time: u64, waits: u64) -> ThreadUse {
        ThreadUse { cpu_time, waits }
    }

    #[test]
    fn steal_time_is_not_the_tenants() {
        let mut steal = StealTime::default();
        steal.restart(1_000_000, thread(500_000, 3));
        let mut time = |took, clock, cpu_time| steal.subtract(took, clock, thread(cpu_time, 3)).time;
        assert_eq!(time(300_000, 2_000_000, 1_500_000), 300_000, "it ran all the time");
        assert_eq!(time(4_200_000, 7_000_000, 2_500_000), 200_000, "4 ms were stolen");
        assert_eq!(time(200_000, 17_000_000, 2_600_000), 0, "never less than nothing");
    }

    #[test]
    fn what_a_thread_waits_for_is_its_tenants() {
        let mut steal = StealTime::default();
        steal.restart(1_000_000, thread(500_000, 3));
        let waited = steal.subtract(4_200_000, 7_000_000, thread(1_000_000, 4));
        assert_eq!(waited, Spent { time: 4_200_000, has_waited: true });
        let ran = steal.subtract(200_000, 7_300_000, thread(1_300_000, 4));
        assert_eq!(ran, Spent { time: 200_000, has_waited: false }, "the wait was before");
        let worked = steal.subtract(400_000, 8_300_000, thread(2_290_000, 5));
        assert_eq!(worked, Spent { time: 390_000, has_waited: false }, "of 10 us, and 400 us of work");
    }

    #[test]
    fn what_was_before_the_first_reading_is_not_counted() {
        let first = StealTime::default().subtract(400_000, 8_300_000, thread(300_000, 5));
        assert_eq!(first, Spent { time: 400_000, has_waited: false });
    }
}
