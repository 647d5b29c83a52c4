//! One case on one system.

use softdpu_sched::{
    LogNic, Move, Nanos, Occupancy, Placement, Policy, Profile, QueueId, QueueLoad, Scheduler, TenantId, Thresholds,
    Tuning, whole_cores,
};

use super::setup::{self, Application, CORES, FRAMING, LINE};
use super::{Constants, Scope};
use crate::arrivals::Arrivals;
use crate::node::{Node, Plan, QueuePlan, Source, Tally};
use crate::station::{Link, Station};

/// The systems that are compared. All run on the same node, with the same channels and the same cost of switching and
/// deciding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum System {
    /// Native DPDK: cores that all share, first come, first served.
    Dpdk,
    /// iPipe: such cores, and round robin beyond a tail latency.
    Ipipe,
    /// FairNIC: as many cores for each, whatever it needs.
    FairNic,
    /// LogNIC: parts of cores that a model found beforehand.
    LogNic,
    /// MTDA to the letter.
    MtdaPrinted,
    /// MTDA, repaired.
    Mtda,
    /// softdpu's default, on cores assigned as MTDA's.
    Weighted,
}

impl AsRef<str> for System {
    fn as_ref(&self) -> &str {
        self.name()
    }
}

impl System {
    /// All, the paper's first.
    pub const ALL: [System; 7] = [
        System::Dpdk,
        System::Ipipe,
        System::FairNic,
        System::LogNic,
        System::Mtda,
        System::MtdaPrinted,
        System::Weighted,
    ];
    /// Those that the paper compares MTDA with, in its order.
    pub const OTHERS: [System; 4] = [System::Dpdk, System::Ipipe, System::FairNic, System::LogNic];
    /// The paper's five.
    pub const PAPER: [System; 5] = [System::Dpdk, System::Ipipe, System::FairNic, System::LogNic, System::Mtda];

    /// The policy's name.
    pub fn name(self) -> &'static str {
        match self {
            System::Dpdk => "fcfs",
            System::Ipipe => "ipipe",
            System::FairNic => "fairnic",
            System::LogNic => "lognic",
            System::MtdaPrinted => "mtda-printed",
            System::Mtda => "mtda",
            System::Weighted => "weighted",
        }
    }

    /// As the paper writes it.
    pub fn title(self) -> &'static str {
        match self {
            System::Dpdk => "DPDK",
            System::Ipipe => "iPipe",
            System::FairNic => "FairNIC",
            System::LogNic => "LogNIC",
            System::MtdaPrinted => "MTDA to the letter",
            System::Mtda => "MTDA",
            System::Weighted => "softdpu's weighted",
        }
    }
}

/// Which cores serve a tenant.
pub(super) type Assignment = Vec<Vec<usize>>;

/// What is run.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Application and part of the rate, by tenant.
    pub tenants: Vec<(Application, f64)>,
    /// Bytes of a packet.
    pub size: u32,
    /// Of what the line carries.
    pub load: f64,
    /// Only this tenant sends.
    pub alone: Option<usize>,
    /// What is assumed.
    pub constants: Constants,
}

impl Case {
    pub fn new(tenants: usize, is_balanced: bool, size: u32, constants: &Constants) -> Case {
        let table = setup::table_4(tenants);
        let all: u32 = table.iter().map(|(_, rate)| rate).sum();
        let part = |rate: u32| if is_balanced { 1.0 / tenants as f64 } else { f64::from(rate) / f64::from(all) };
        let tenants = table.into_iter().map(|(application, rate)| (application, part(rate))).collect();
        Case { tenants, size, load: constants.load, alone: None, constants: *constants }
    }

    /// Packets a second that a tenant sends.
    pub fn rate(&self, tenant: usize) -> f64 {
        self.load * self.tenants[tenant].1 * self.line_rate()
    }

    /// Packets a second that the line carries.
    pub fn line_rate(&self) -> f64 {
        LINE / 8.0 / f64::from(self.size + FRAMING)
    }

    /// Nanoseconds that a packet of a tenant takes.
    pub fn service(&self, tenant: usize) -> f64 {
        let service = self.tenants[tenant].0.service(&self.constants);
        service.unit as f64 + service.byte as f64 / 1_024.0 * f64::from(self.size)
    }

    /// Packets that one of a tenant's queues holds; it has one for each core.
    pub fn queue(&self) -> usize {
        (self.constants.channel as usize / CORES).max(1)
    }

    /// What a decision takes, nanoseconds.
    pub fn decision(&self) -> u64 {
        self.constants.decision_ns.round() as u64
    }

    /// The applications that need an accelerator: each has one of its own (ACC_t), which its tenants share.
    fn accelerated(&self) -> Vec<Application> {
        let mut kinds: Vec<Application> = Vec::new();
        for (application, _) in &self.tenants {
            if application.accelerator(&self.constants).is_some() && !kinds.contains(application) {
                kinds.push(*application);
            }
        }
        kinds
    }

    /// The accelerator of a tenant (ACC_t^i), by its place in [`accelerated`](Self::accelerated).
    fn accelerator(&self, tenant: usize) -> Option<usize> {
        self.accelerated().iter().position(|application| *application == self.tenants[tenant].0)
    }

    /// Cores that a tenant's load needs, in thousandths of one.
    fn demand(&self, tenant: usize) -> u32 {
        (self.rate(tenant) * self.service(tenant) / 1e6) as u32
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Counts, by tenant.
    pub tally: Tally,
    /// Nanoseconds that were counted.
    pub span: u64,
}

impl Measured {
    /// Bits a second of a tenant's packets that were done.
    pub fn throughput(&self, tenant: usize) -> f64 {
        self.tally.tenants[tenant].bytes as f64 * 8e9 / self.span as f64
    }

    /// And of all.
    pub fn total(&self) -> f64 {
        (0..self.tally.tenants.len()).map(|tenant| self.throughput(tenant)).sum()
    }

    /// Of all packets that were done, nanoseconds.
    pub fn latency(&self) -> crate::histogram::Histogram {
        let mut all = crate::histogram::Histogram::default();
        self.tally.tenants.iter().for_each(|tenant| all.merge(&tenant.latency));
        all
    }

    /// A tenant's mean latency, nanoseconds.
    pub fn mean(&self, tenant: usize) -> f64 {
        self.tally.tenants[tenant].latency.mean()
    }

    /// A tenant's 99th percentile, nanoseconds.
    pub fn p99(&self, tenant: usize) -> f64 {
        self.tally.tenants[tenant].latency.quantile(0.99) as f64
    }
}

pub(super) type Running = Node<Scheduler, Tally>;

/// Which cores serve which tenant on a system.
pub(super) fn assignment(system: System, case: &Case) -> Assignment {
    let tenants = case.tenants.len();
    match system {
        // All share all.
        System::Dpdk | System::Ipipe | System::LogNic => vec![(0..CORES).collect(); tenants],
        // Strict parts, equal as far as that goes: 3, 3 and 2 for three.
        System::FairNic => {
            let own = |tenant| (0..CORES).filter(|core| core * tenants / CORES == tenant).collect();
            (0..tenants).map(own).collect()
        }
        System::Mtda | System::MtdaPrinted | System::Weighted => balanced(case),
    }
}

/// Cores of tenants' own (§III-C), by what their loads need, however much that is: no tenant is to wait for
/// another's work. A daemon's balancer gives them so as long as they suffice.
fn balanced(case: &Case) -> Assignment {
    let tenants = case.tenants.len();
    let mut queues: Vec<QueueLoad> = Vec::new();
    for tenant in 0..tenants {
        for core in 0..CORES {
            let queue = QueueId { tenant: TenantId(tenant as u16), index: (tenant * CORES + core) as u32 };
            queues.push(QueueLoad { queue, core, load: (case.demand(tenant) / CORES as u32).max(1), is_fixed: false });
        }
    }
    let weight = |tenant: TenantId| case.demand(usize::from(tenant.0)).max(1);
    for Move { queue, to } in whole_cores(CORES, &queues, weight) {
        queues[queue.index as usize].core = to;
    }
    let mut cores: Assignment = vec![Vec::new(); tenants];
    for load in queues {
        cores[usize::from(load.queue.tenant.0)].push(load.core);
    }
    for own in &mut cores {
        own.sort_unstable();
        own.dedup();
    }
    cores
}

/// A system's policy, as every core of it runs it.
fn policy(system: System, case: &Case, cores: &Assignment) -> Policy {
    let occupied = || {
        let accelerators = |tenant| u32::from(case.accelerator(tenant).is_some());
        let occupancy = |(tenant, own): (usize, &Vec<usize>)| Occupancy {
            cores: own.len() as u32,
            accelerators: accelerators(tenant),
        };
        cores.iter().enumerate().map(occupancy).collect()
    };
    let constants = &case.constants;
    let accelerators = case.accelerated().len() as u32;
    let credits = softdpu_sched::System { credit: constants.credit as u64, cores: CORES as u32, accelerators };
    match system {
        System::Dpdk => Policy::Fcfs,
        System::Ipipe => {
            let micros = |value: f64| Nanos((value * 1e3) as u64);
            let (tail, quantum) = (micros(constants.ipipe_tail_us), micros(constants.ipipe_quantum_us));
            let migration = micros(constants.ipipe_migration_us);
            Policy::Ipipe(Thresholds { tail, migration, quantum, ..Thresholds::default() })
        }
        System::FairNic => Policy::FairNic,
        System::LogNic => {
            let rate = case.load * case.line_rate() / case.tenants.len() as f64 / CORES as f64;
            let capacity = case.queue() as u32;
            let profile = |tenant| Profile { rate, service: case.service(tenant), capacity };
            let profiles: Vec<Profile> = (0..case.tenants.len()).map(profile).collect();
            Policy::LogNic(LogNic::plan(&profiles).parts)
        }
        System::MtdaPrinted => Policy::MtdaPrinted(credits, occupied()),
        System::Mtda => Policy::Mtda(credits, occupied()),
        System::Weighted => Policy::Weighted(Tuning::default()),
    }
}

/// A node for a case. Each tenant has a queue for each of the node's cores, spread over those that serve it.
fn node(
    policy: &Policy,
    case: &Case,
    cores: &Assignment,
    decision: u64,
    scope: &Scope,
    arrivals: impl Fn(usize) -> Arrivals,
) -> Running {
    let buffer = (case.constants.link_buffer_us * 1e3) as u64;
    let mut plan = Plan {
        cores: CORES,
        ingress: Some(Link::new(LINE, FRAMING, buffer)),
        egress: Some(Link::new(LINE, FRAMING, buffer)),
        switch: case.constants.switch_ns.round() as u64,
        decision,
        ..Plan::default()
    };
    for application in case.accelerated() {
        let service = application.accelerator(&case.constants).unwrap_or(0);
        plan.stations.push(Station { servers: 1, service, spread: case.constants.service_spread.round() as u64 });
    }
    for (tenant, own) in cores.iter().enumerate() {
        let station = case.accelerator(tenant);
        let first = plan.queues.len();
        for at in 0..CORES {
            let id = QueueId { tenant: TenantId(tenant as u16), index: (first + at) as u32 };
            let placement = Placement { device: tenant as u32, kind: softdpu_sched::WorkKind::Packets, back_end: None };
            let core = own[at % own.len()];
            plan.queues.push(QueuePlan { id, core, placement, capacity: case.queue(), station, deferred: None });
        }
        if case.alone.is_none_or(|only| only == tenant) {
            plan.sources.push(Source {
                arrivals: arrivals(tenant),
                start: 0,
                bytes: case.size,
                service: case.tenants[tenant].0.service(&case.constants),
                queues: (first..first + CORES).collect(),
            });
        }
    }
    Node::new(plan, |_| policy.build(), Tally::new(case.tenants.len(), scope.span / 4), scope.seed)
}

/// Runs a case on a system.
pub(super) fn run(system: System, case: &Case, scope: &Scope) -> Measured {
    let cores = assignment(system, case);
    run_on(&policy(system, case, &cores), case, &cores, case.decision(), scope)
}

/// Runs a case with a policy on an assignment of cores.
pub(super) fn run_on(policy: &Policy, case: &Case, cores: &Assignment, decision: u64, scope: &Scope) -> Measured {
    let mut node = node(policy, case, cores, decision, scope, |tenant| Arrivals::poisson(case.rate(tenant)));
    node.run(scope.span / 4 + scope.span);
    Measured { tally: node.watch, span: scope.span }
}

/// A node of a system, to be run step by step.
pub(super) fn started(system: System, case: &Case, scope: &Scope) -> Running {
    started_with(system, case, scope, |tenant| Arrivals::poisson(case.rate(tenant)))
}

/// The same with other arrivals than the case's, for which cores and parts are found nevertheless.
pub(super) fn started_with(
    system: System,
    case: &Case,
    scope: &Scope,
    arrivals: impl Fn(usize) -> Arrivals,
) -> Running {
    let cores = assignment(system, case);
    node(&policy(system, case, &cores), case, &cores, case.decision(), scope, arrivals)
}
