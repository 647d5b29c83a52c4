//! Packets of flows that are known.

use softdpu_sys::clock;
use softdpu_vpc::Part;

use super::super::{Case, Load};
use super::bare;
use super::core::{BURST, Chunks, Core};
use super::traffic::{FEW, ORDER, Order, Site, Tunnels};

/// Where first packets count, how often so many packets as there are flows come before they do. By then one packet
/// in 300 of Zipf's is of a new flow, as with a table that has forgotten none.
const LAPS_BEFORE: u64 = 32;

/// A case.
#[derive(Clone, Copy)]
pub(super) struct Hit {
    name: &'static str,
    order: Order,
    site: Site,
}

impl Hit {
    pub const fn new(flows: u32, name: &'static str, order: Order, tunnels: Tunnels) -> Hit {
        Hit { name, order, site: Site::plain(tunnels, flows) }
    }

    /// With everything that a packet of a flow can meet: a meter, and a look at whether it is traced.
    pub const fn metered(flows: u32, name: &'static str) -> Hit {
        let site = Site { has_meters: true, ..Site::plain(Tunnels::Local, flows) };
        Hit { name, order: Order::Uniform, site }
    }

    /// Where a flow's first packet is put to a list of so many rules.
    pub const fn through_rules(flows: u32, name: &'static str, order: Order, rules: u32) -> Hit {
        Hit { name, order, site: Site { rules, ..Site::plain(Tunnels::Local, flows) } }
    }
}

impl Case for Hit {
    fn name(&self) -> String {
        format!("flow: {}", self.name)
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let Hit { order, site, .. } = *self;
        let flows = if site.flows == 0 { FEW } else { site.flows };
        let order_of = order.of(flows, 1);
        let bare = bare::nanos(flows, &order_of)?;
        let mut core = Core::new(site, order_of)?;
        let mut laps = 1;
        let mut first_lap = None;
        if site.rules == 0 {
            core.learn()?;
        } else {
            // Flows become known as their packets come, and what is measured has some of which none has come.
            while laps <= LAPS_BEFORE {
                core.lap();
                let stats = core.vpc.stats();
                first_lap.get_or_insert(100.0 - (stats.policy + stats.software) as f64 / ORDER as f64 * 100.0);
                laps += 1;
                core.set_order(order.of(flows, laps));
            }
            core.chunks = Chunks::default();
        }
        let has_parts = site.flows != 0 && !site.tunnels.decapsulates();
        let parts = has_parts.then(|| [Part::Key, Part::Index, Part::Entry].map(|part| core.part(part)));
        let stats = core.vpc.stats();
        let before = (stats.cached, stats.policy + stats.software);
        Ok(Box::new(Hitting { core, order, before, parts, bare, first_lap, laps }))
    }
}

struct Hitting {
    core: Core,
    order: Order,
    /// Packets that flows decided before, and those that the software tier had.
    before: (u64, u64),
    /// Nanoseconds a packet as far as its key, the index and its entry.
    parts: Option<[f64; 3]>,
    /// Nanoseconds a packet of the bare loop, a moment before.
    bare: f64,
    /// Of the first [`ORDER`] packets, with an empty table, those that the software tier did not have (%).
    first_lap: Option<f64>,
    laps: u64,
}

impl Load for Hitting {
    fn run(&mut self, operations: u64) -> u64 {
        let bursts = operations.div_ceil(BURST as u64);
        for _ in 0..bursts {
            self.core.burst();
            // Where a first packet costs more, they are to be others: so many flows do not come in one lap.
            if self.core.at == 0 && self.core.site.rules != 0 {
                self.laps += 1;
                self.core.set_order(self.order.of(self.core.site.flows, self.laps));
            }
        }
        bursts * BURST as u64
    }

    fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        let (nanos, packets) = (self.core.chunks.median(), self.core.chunks.packets as f64);
        let stats = self.core.vpc.stats();
        let share = |count: u64| count as f64 / packets * 100.0;
        let (entries, index) = self.core.vpc.flow_bytes();
        let flows = self.core.vpc.flow_capacity().max(1) as f64;
        let mut figures = vec![
            ("hit", "ns", nanos),
            ("hit-rate", "1/s", 1e9 / nanos),
            ("bare loop, rate", "1/s", 1e9 / self.bare),
            ("times the bare loop's", "x", nanos / self.bare),
            ("by-flow", "%", share(stats.cached - self.before.0)),
            ("off-software", "%", 100.0 - share(stats.policy + stats.software - self.before.1)),
            ("bytes for a flow's entry", "B", entries as f64 / flows),
            ("memory", "MiB", (entries + index) as f64 / f64::from(1 << 20)),
        ];
        figures.extend(self.first_lap.map(|share| ("off-software, first 4 M packets", "%", share)));
        if let Some(ticks) = clock::ticks_per_nanosecond() {
            figures.push(("hit-cycles", "1", nanos * ticks));
            figures.push(("bare loop, cycles", "1", self.bare * ticks));
            // What is fetched ahead is waited for by the part that uses it.
            let parts = self.parts.iter().flat_map(|&[key, index, entry]| {
                [
                    ("cycles: flow tier, key and hash", key),
                    ("cycles: flow tier, index", index - key),
                    ("cycles: flow tier, entry and version", entry - index),
                    ("cycles: switch tier after, counters", nanos - entry),
                ]
            });
            figures.extend(parts.map(|(metric, nanos)| (metric, "1", nanos * ticks)));
        }
        figures
    }
}
