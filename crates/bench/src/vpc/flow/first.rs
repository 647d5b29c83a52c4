//! First packets of flows: through the switch tier, a list of rules, and into the table, where they take the places of
//! flows without a packet for a second.

use softdpu_sys::clock;
use softdpu_vpc::{Stats, Verdict};

use super::super::{Case, Load};
use super::core::{BURST, Chunks, Core};
use super::traffic::{Order, Site, Tunnels};

/// Flows that there is room for.
const ROOM: u32 = 1 << 21;
/// How fast time goes on: as at a million packets a second. When there is no room left, half of the flows are old
/// enough to go.
const PACE: u64 = BURST as u64 * 1_000;

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
        let site = Site { rules: self.rules, ..Site::plain(Tunnels::Local, ROOM) };
        let mut core = Core::new(site, Order::Elephant.of(1, 1))?;
        core.pace = PACE;
        let mut meeting = Meeting { core, next: 0, dropped: 0, before: Stats::default() };
        // Memory that is touched for the first time is zeroed by the kernel: that is not what is measured.
        meeting.run(u64::from(ROOM + ROOM / 8));
        meeting.core.chunks = Chunks::default();
        meeting.before = meeting.core.vpc.stats().clone();
        meeting.dropped = 0;
        Ok(Box::new(meeting))
    }
}

struct Meeting {
    core: Core,
    next: u32,
    dropped: u64,
    /// What was counted when the table was full.
    before: Stats,
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
        let (stats, before) = (self.core.vpc.stats(), &self.before);
        let share = |count: u64| count as f64 / packets * 100.0;
        let mut figures = vec![
            ("new", "ns", nanos),
            ("new-rate", "1/s", 1e9 / nanos),
            ("kept", "%", 100.0 - share(stats.unkept - before.unkept + stats.cached - before.cached + self.dropped)),
            ("asked", "%", share(stats.policy - before.policy)),
        ];
        figures.extend(clock::ticks_per_nanosecond().map(|ticks| ("cycles a new flow", "1", nanos * ticks)));
        figures
    }
}
