//! First packets of flows: through the switch tier, a list of rules, and into the table, where they take the places of flows that nobody
//! has seen for a second.

use softdpu_sys::clock;
use softdpu_vpc::Verdict;

use super::super::{Case, Load};
use super::core::{BURST, Core};
use super::traffic::{Order, Site, Way};

/// Flows that there is room for.
const ROOM: u32 = 1 << 21;

/// A case.
pub(super) struct First {
    /// How many rules there are.
    pub rules: u32,
}

impl Case for First {
    fn name(&self) -> String {
        match self.rules {
            0 => "flow: new ones".to_owned(),
            rules => format!("flow: new ones through {rules} rules"),
        }
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let site = Site { rules: self.rules, ..Site::plain(Way::Beside, ROOM) };
        Ok(Box::new(Meeting { core: Core::new(site, Order::Elephant.of(1, 1))?, next: 0, dropped: 0 }))
    }
}

struct Meeting {
    core: Core,
    next: u32,
    dropped: u64,
}

impl Load for Meeting {
    fn run(&mut self, operations: u64) -> u64 {
        let bursts = operations.div_ceil(BURST as u64);
        for _ in 0..bursts {
            let next = self.next;
            // Each number once, in no order.
            self.core.fill(|at| next.wrapping_add(at as u32).wrapping_mul(0x9e37_79b1));
            self.next = next.wrapping_add(BURST as u32);
            self.core.forward();
            self.dropped +=
                self.core.verdicts.iter().filter(|verdict| !matches!(verdict, Verdict::Local { .. })).count() as u64;
        }
        bursts * BURST as u64
    }

    fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        let (nanos, packets) = (self.core.chunks.median(), self.core.chunks.packets as f64);
        let stats = self.core.vpc.stats();
        let share = |count: u64| count as f64 / packets * 100.0;
        let mut figures = vec![
            ("new", "ns", nanos),
            ("new-rate", "1/s", 1e9 / nanos),
            ("kept", "%", 100.0 - share(stats.unkept + stats.cached + self.dropped)),
            ("asked", "%", share(stats.policy)),
        ];
        figures.extend(clock::ticks_per_nanosecond().map(|ticks| ("cycles a new flow", "1", nanos * ticks)));
        figures
    }
}
