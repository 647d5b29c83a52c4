//! What a seed makes: a node, its tenants, and what goes wrong.

use softdpu_sched::{BackEnd, LatencyClass, Limits, Occupancy, Placement, QueueId, Rate, Share, TenantId, WorkKind};

use crate::arrivals::Arrivals;
use crate::node::{Fault, Plan, QueuePlan, Service, Source};
use crate::random::Random;
use crate::station::Station;

/// What a tenant does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// It always has work.
    Flood,
    /// It asks for less than its share, evenly: for a fortieth of it, for four fifths, or for something between.
    Light,
    /// Bursts and pauses.
    Burst,
    /// Requests to a back end that others use, too.
    Disk,
    /// It would flood, and has a limit: of requests, of bytes or of packets.
    Limited,
}

/// A node and what happens to it.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub plan: Plan,
    pub tenants: Vec<Manner>,
    /// By tenant: its share of its core, and what it asks for of that; 0: as much as it can have.
    pub asks: Vec<(f64, f64)>,
    /// By tenant: what it has of MTDA's eight cores. Together they are eight.
    pub occupied: Vec<Occupancy>,
    pub faults: Vec<(u64, Fault)>,
    /// How long sources send, and how long what is left may take then, nanoseconds.
    pub span: u64,
    pub drain: u64,
    pub about: String,
    /// Floods have no more at once than a grant or so: what is in it is all their work.
    pub is_shallow: bool,
}

const MILLI: u64 = 1_000_000;

impl Scenario {
    pub fn of(seed: u64) -> Scenario {
        let mut random = Random::new(seed ^ 0x7477_696e);
        let cores = random.between(1, 3) as usize;
        let count = random.between(2, 6) as usize;
        let all = [Manner::Flood, Manner::Light, Manner::Burst, Manner::Disk, Manner::Limited];
        // One tenant floods: without that there is nothing to be unfair about.
        let tenants: Vec<Manner> =
            (0..count).map(|at| if at == 0 { Manner::Flood } else { random.one(&all) }).collect();
        let mut scenario = Scenario {
            plan: Plan { cores, switch: random.below(500), decision: random.below(100), ..Plan::default() },
            tenants: tenants.clone(),
            asks: vec![(0.0, 0.0); count],
            occupied: occupied(&mut random, count),
            faults: Vec::new(),
            span: 24 * MILLI,
            drain: 20_000 * MILLI,
            about: String::new(),
            is_shallow: seed % 4 == 3,
        };
        scenario.plan.stations =
            vec![Station { servers: random.between(1, 8) as u32, service: random.between(10_000, 90_000), spread: 50 }];
        let depth = random.between(4, 32) as u32;
        for manner in &tenants {
            let rate = Rate { rate: random.between(20_000, 200_000), burst: random.between(10, 200) };
            // A unit has at most 8 KiB.
            let bytes = Rate { rate: rate.rate * 4_096, burst: rate.burst * 8_192 };
            let limits = match (manner, random.below(3)) {
                (Manner::Limited, 0) => Limits { requests: Some(rate), ..Limits::default() },
                (Manner::Limited, 1) => Limits { bytes: Some(bytes), ..Limits::default() },
                (Manner::Limited, _) => Limits { packets: Some(rate), ..Limits::default() },
                _ => Limits::default(),
            };
            let class = match random.below(6) {
                0 => LatencyClass::Latency,
                1 => LatencyClass::Background,
                _ => LatencyClass::Normal,
            };
            let left = 900 - scenario.plan.shares.iter().map(|share| u64::from(share.guarantee)).sum::<u64>();
            let guarantee = if random.percent(30) { random.between(20, 450).min(left) as u16 } else { 0 };
            scenario.plan.shares.push(Share {
                weight: random.between(1, 16) as u32,
                guarantee,
                class,
                limits,
                ..Share::default()
            });
        }
        let home: Vec<usize> = tenants.iter().map(|_| random.below(cores as u64) as usize).collect();
        for (tenant, manner) in tenants.iter().enumerate() {
            let weights = |at: usize| u64::from(scenario.plan.shares[at].weight);
            let beside: u64 = (0..count).filter(|at| home[*at] == home[tenant]).map(weights).sum();
            let guaranteed = |at: usize| u64::from(scenario.plan.shares[at].guarantee);
            let all: u64 = (0..count).filter(|at| home[*at] == home[tenant]).map(guaranteed).sum();
            // Of what is left beside guarantees, its weight of all weights there.
            let part = (weights(tenant) * (1_000 - all), beside * 1_000);
            scenario.add_tenant(&mut random, tenant, *manner, home[tenant], part, depth);
        }
        scenario.add_faults(&mut random);
        let names: Vec<String> = tenants.iter().map(|manner| format!("{manner:?}").to_lowercase()).collect();
        let mut wrong: Vec<String> = Vec::new();
        for (at, fault) in &scenario.faults {
            wrong.push(format!("{:.1} ms {fault:?}", *at as f64 / 1e6));
        }
        scenario.about = format!("{cores} cores; tenants {}; {}", names.join(", "), wrong.join(", "));
        scenario
    }

    fn add_tenant(
        &mut self,
        random: &mut Random,
        tenant: usize,
        manner: Manner,
        core: usize,
        part: (u64, u64),
        depth: u32,
    ) {
        let cost = random.between(300, 4_000);
        let queues = if manner == Manner::Light { 1 } else { random.between(1, 3) };
        for at in 0..queues {
            let index = self.plan.queues.len();
            let id = QueueId { tenant: TenantId(tenant as u16), index: index as u32 };
            let (back_end, station) = match manner {
                Manner::Disk => (Some(BackEnd { index: 0, depth }), Some(0)),
                _ => (None, None),
            };
            let device = if random.percent(50) { 0 } else { at as u32 };
            let kind =
                if self.plan.shares[tenant].limits.packets.is_some() { WorkKind::Packets } else { WorkKind::Requests };
            let placement = Placement { device, kind, back_end };
            let bytes = random.between(64, 8_192) as u32;
            self.plan.queues.push(QueuePlan { id, core, placement, capacity: 4_096, station, deferred: None });
            let arrivals = match manner {
                Manner::Flood | Manner::Limited => {
                    let depth = random.between(200, 500);
                    Arrivals::Closed { depth: if self.is_shallow { depth / 8 } else { depth } as u32, think: 1 }
                }
                // Of its share of the core, in the time that is not the scheduler's own. What a byte counts as is in
                // it.
                Manner::Light => {
                    let each = cost + self.plan.switch + self.plan.decision + u64::from(bytes) / 48;
                    let times = random.between(125, 4_000);
                    self.asks[tenant] = (part.0 as f64 / part.1 as f64, 100.0 / times as f64);
                    Arrivals::Paced((each * part.1 * times / 100 / part.0) << 10)
                }
                Manner::Burst => Arrivals::OnOff {
                    on: random.between(50_000, 2 * MILLI),
                    off: random.between(100_000, 4 * MILLI),
                    gap: random.between(cost / 2, cost * 8) << 10,
                },
                Manner::Disk => {
                    Arrivals::Closed { depth: random.between(8, 100) as u32, think: random.between(1, 50_000) }
                }
            };
            self.plan.sources.push(Source {
                arrivals,
                start: random.below(MILLI),
                bytes,
                service: Service { unit: cost, byte: 0, spread: random.below(40) },
                queues: vec![index],
            });
        }
    }

    /// The time in which a light tenant makes up for what it missed in `lost` nanoseconds and, then, saves up what it
    /// may (`docs/scheduling.md`), nanoseconds.
    pub fn settles_in(&self, tenant: usize, lost: u64, carry: u64) -> u64 {
        let (share, part) = self.asks[tenant];
        ((lost as f64 * part + carry as f64 / share) / (1.0 - part)) as u64
    }

    fn add_faults(&mut self, random: &mut Random) {
        for _ in 0..random.below(6) {
            let at = random.between(2 * MILLI, self.span - 2 * MILLI);
            let queue = random.below(self.plan.queues.len() as u64) as usize;
            let lasts = random.between(100_000, 5 * MILLI);
            let manner = self.tenants[usize::from(self.plan.queues[queue].id.tenant.0)];
            let fault = match random.below(7) {
                0 => Fault::Stall { station: 0, lasts },
                1 => Fault::Errors { station: 0, lasts },
                2 => Fault::Flood { source: queue, factor: random.between(2, 50) },
                3 => Fault::Cancel { queue },
                4 => Fault::Move { queue, core: random.below(self.plan.cores as u64) as usize },
                5 if random.percent(50) => Fault::Jump { by: random.between(1, 50 * MILLI) as i64 },
                5 => Fault::Jump { by: -(random.between(1, 5 * MILLI) as i64) },
                // A light tenant whose work gets dearer is none; and a grant of 64 stays below a millisecond, beyond
                // which `weighted` forgives.
                _ if manner == Manner::Light => continue,
                _ => {
                    let most = (MILLI / 64 / self.plan.sources[queue].service.unit / 2).max(2);
                    Fault::Cost { source: queue, factor: random.between(2, most.max(2)) }
                }
            };
            self.faults.push((at, fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }
}

/// Eight cores among so many tenants, one each at least.
fn occupied(random: &mut Random, tenants: usize) -> Vec<Occupancy> {
    let mut all = vec![Occupancy { cores: 1, accelerators: 0 }; tenants];
    for _ in tenants..8 {
        all[random.below(tenants as u64) as usize].cores += 1;
    }
    all
}
