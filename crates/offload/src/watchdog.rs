//! Whether an agent is to be ended: it leaves work undecided (Wave §3.3).

use softdpu_sched::Nanos;

/// What is to be done about an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchdogVerdict {
    /// Nothing: it decides, or has nothing to decide.
    Leave {
        /// When to ask next; none: when there is work.
        until: Option<Nanos>,
    },
    /// It is to be ended: work has waited for so long without any decision.
    End {
        /// Since the last decision, or since there was work.
        undecided: Nanos,
    },
}

/// The watch over one agent. Pure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    limit: Nanos,
    /// Since when work has waited without any decision.
    undecided: Option<Nanos>,
}

impl Watchdog {
    /// The limit for agents that schedule threads (Wave §3.3).
    pub const THREADS: Nanos = Nanos(20_000_000);

    /// An agent may leave work undecided for so long.
    pub fn new(limit: Nanos) -> Watchdog {
        Watchdog { limit, undecided: None }
    }

    /// How much waits for a decision now, as the host counts it: runnable threads while a core is idle or preemptible,
    /// scanned pages. `decided`: whether the agent has decided anything since the last call.
    pub fn observe(&mut self, now: Nanos, waiting: usize, decided: bool) -> WatchdogVerdict {
        if waiting == 0 {
            self.undecided = None;
            return WatchdogVerdict::Leave { until: None };
        }
        let since = match self.undecided {
            Some(since) if !decided => since,
            _ => now,
        };
        self.undecided = Some(since);
        let undecided = now.since(since);
        match undecided > self.limit {
            true => WatchdogVerdict::End { undecided },
            false => WatchdogVerdict::Leave { until: Some(since + self.limit + Nanos(1)) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Nanos {
        Nanos(count * 1_000_000)
    }

    #[test]
    fn an_agent_that_leaves_work_undecided_is_ended_after_the_limit_and_not_before() {
        let mut watchdog = Watchdog::new(Watchdog::THREADS);
        assert_eq!(watchdog.observe(ms(5), 1, false), WatchdogVerdict::Leave { until: Some(Nanos(25_000_001)) });
        assert!(matches!(watchdog.observe(ms(25), 3, false), WatchdogVerdict::Leave { .. }));
        assert_eq!(watchdog.observe(ms(26), 3, false), WatchdogVerdict::End { undecided: ms(21) });
    }

    #[test]
    fn an_agent_that_has_nothing_to_decide_is_left_alone_for_ever() {
        let mut watchdog = Watchdog::new(Watchdog::THREADS);
        watchdog.observe(ms(0), 1, false);
        for second in 1..100 {
            let verdict = watchdog.observe(ms(second * 1_000), 0, false);
            assert_eq!(verdict, WatchdogVerdict::Leave { until: None });
        }
        // The time without work does not count.
        assert!(matches!(watchdog.observe(ms(100_000), 1, false), WatchdogVerdict::Leave { .. }));
    }

    #[test]
    fn an_agent_that_decides_slowly_but_steadily_is_left_alone() {
        let mut watchdog = Watchdog::new(Watchdog::THREADS);
        for round in 0..100 {
            let verdict = watchdog.observe(ms(round * 15), 100, true);
            assert!(matches!(verdict, WatchdogVerdict::Leave { .. }), "{round}");
        }
    }
}
