//! Looks on, and compares what happens with what was promised.

use std::collections::BTreeMap;
use std::fmt;

use softdpu_sched::{Decision, Nanos, QueueId, Share, TenantId, Weighted};

use super::scenario::{Manner, Scenario};
use crate::node::{Queue, Ran, Watch};

/// What a policy promises, beside what all do: to grant what is there, and to say something that ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promises {
    /// A core does not idle while anything may run that no limit and no back end holds.
    pub conserves: bool,
    /// Who asks for less than its share waits for one grant, and one of each that is before it.
    pub light_waits: bool,
    /// Who always has work has its weight's part of the cost.
    pub shares: bool,
    /// Limits hold over every span of time.
    pub limits: bool,
    /// A back end has no more than its depth.
    pub depth: bool,
    /// What was ready is run in the end.
    pub drains: bool,
}

impl Promises {
    /// What a policy of a name promises (`docs/scheduling.md`).
    pub fn of(name: &str) -> Promises {
        let none = Promises::default();
        match name {
            "weighted" => {
                Promises { conserves: true, light_waits: true, shares: true, limits: true, depth: true, drains: true }
            }
            "fcfs" | "mtda" => Promises { conserves: true, drains: true, ..none },
            "ipipe" | "fairnic" | "lognic" => Promises { drains: true, ..none },
            _ => none,
        }
    }
}

/// Something that is not as promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When, nanoseconds of simulated time.
    pub now: u64,
    /// What was promised.
    pub promise: &'static str,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:.6} ms: {}: {}", self.now as f64 / 1e6, self.promise, self.what)
    }
}

/// The length of a span over which shares are compared.
const SPAN: u64 = 4_000_000;

/// A core, as far as it is compared.
#[derive(Debug, Default)]
struct Watched {
    /// The longest grant yet, in price.
    longest: u64,
    /// Since when shares are compared.
    since: u64,
    /// By tenant: price since then, and whether it had work all the time.
    had: Vec<(u64, bool)>,
    /// When the policy was told to decide on the grant that runs.
    decided: Nanos,
    /// By tenant: units of its limit that are left, in 10^-9, and when that was.
    buckets: BTreeMap<u16, (u128, u64)>,
    /// What back ends have of it; none once a queue came or went while they had something.
    pending: Option<u32>,
}

/// Everything that is looked at.
pub(super) struct Examiner<S> {
    promises: Promises,
    audit: fn(&S, usize) -> Option<String>,
    shares: Vec<Share>,
    manners: Vec<Manner>,
    /// Tenants of which a fault changed what they are.
    is_changed: Vec<bool>,
    depth: u32,
    cores: Vec<Watched>,
    price: Weighted,
    sharing: bool,
    pub grants: u64,
    pub violation: Option<Violation>,
}

const BILLION: u128 = 1_000_000_000;

impl<S> Examiner<S> {
    pub fn new(scenario: &Scenario, promises: Promises, audit: fn(&S, usize) -> Option<String>) -> Examiner<S> {
        let tenants = scenario.tenants.len();
        let core = || Watched { had: vec![(0, true); tenants], pending: Some(0), ..Watched::default() };
        let mut is_changed = vec![false; tenants];
        for (_, fault) in &scenario.faults {
            // A source has the number of its queue.
            if let crate::node::Fault::Flood { source, .. } = fault {
                is_changed[usize::from(scenario.plan.queues[*source].id.tenant.0)] = true;
            }
        }
        let depth = scenario.plan.queues.iter().find_map(|queue| queue.placement.back_end).map_or(0, |end| end.depth);
        Examiner {
            promises,
            audit,
            shares: scenario.plan.shares.clone(),
            manners: scenario.tenants.clone(),
            is_changed,
            depth,
            cores: (0..scenario.plan.cores).map(|_| core()).collect(),
            price: Weighted::default(),
            sharing: true,
            grants: 0,
            violation: None,
        }
    }

    fn violate(&mut self, now: u64, promise: &'static str, what: String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { now, promise, what });
        }
    }

    /// Sources stop: who had work all the time soon has none.
    pub fn stop_sharing(&mut self) {
        self.sharing = false;
    }

    /// Something still waits at the end.
    pub fn left_over(&mut self, now: u64, queue: QueueId, units: usize) {
        if self.promises.drains {
            self.violate(now, "what was ready is run", format!("{units} units of queue {queue} wait for ever"));
        }
    }

    /// Whether there is work on a core that may run, whatever its limits and back ends.
    fn runnable<'a>(&self, core: usize, queues: &'a [Queue]) -> Option<&'a Queue> {
        queues.iter().find(|queue| {
            let tenant = usize::from(queue.plan.id.tenant.0);
            let is_free = match queue.plan.placement.back_end {
                // One that holds nothing of this core holds nobody up.
                Some(_) => self.cores[core].pending == Some(0),
                None => self.manners[tenant] != Manner::Limited,
            };
            queue.plan.core == core && !queue.waiting.is_empty() && is_free
        })
    }

    fn check_limit(&mut self, ran: &Ran) {
        let tenant = ran.grant.queue.tenant;
        let Some(limit) = self.shares[usize::from(tenant.0)].limits.requests else { return };
        // In the time that the policy is told, which may jump: what time went back over earns nothing twice. Burst and the rate's
        // share of the time and of a microsecond (docs/scheduling.md), rounded up.
        let most = u128::from(limit.burst) * BILLION + u128::from(limit.rate) * 1_100 + BILLION;
        // A grant that was decided on before that counts from then.
        let told = ran.told.max(self.cores[ran.core].decided).0;
        let (left, last) = self.cores[ran.core].buckets.get(&tenant.0).copied().unwrap_or((most, told));
        let earned = u128::from(told.saturating_sub(last)) * u128::from(limit.rate);
        let left = (left + earned).min(most);
        let takes = u128::from(ran.cost.units) * BILLION;
        if takes > left {
            let what = format!("tenant {} ran {} units where {} were left", tenant.0, ran.cost.units, left / BILLION);
            self.violate(ran.end, "limits hold over every span", what);
        }
        self.cores[ran.core].buckets.insert(tenant.0, (left.saturating_sub(takes), last.max(told)));
    }

    /// Tenants that had work all the time since the last look have had the same, by weight.
    fn compare_shares(&mut self, now: u64, index: usize) {
        let core = &self.cores[index];
        let busy: Vec<usize> = (0..core.had.len()).filter(|at| core.had[*at].1).collect();
        let mut wrong = None;
        for (&one, &other) in busy.iter().flat_map(|one| busy.iter().map(move |other| (one, other))) {
            let weight = |at: usize| f64::from(self.shares[at].weight);
            let had = |at: usize| core.had[at].0 as f64 / weight(at);
            // Tags are exact, slots order them to 32 µs of a tenant's own cost at the least weight of its class, and each
            // may be a grant ahead: at the beginning and at the end.
            let slack = |at: usize| {
                let class = f64::from(1_u32 << self.shares[at].weight.ilog2());
                Weighted::CARRY.0 as f64 / class + core.longest as f64 / weight(at)
            };
            if had(one) > had(other) + 2.0 * (slack(one) + slack(other)) {
                wrong = Some(format!(
                    "in {:.1} ms on core {index} tenant {one} had {:.0} us for each of its weight, tenant {other} {:.0}",
                    (now - core.since) as f64 / 1e6,
                    had(one) / 1e3,
                    had(other) / 1e3
                ));
            }
        }
        if let Some(what) = wrong {
            self.violate(now, "shares are weights", what);
        }
        let core = &mut self.cores[index];
        core.since = now;
        core.had.iter_mut().for_each(|had| *had = (0, true));
    }
}

impl<S> Watch<S> for Examiner<S> {
    fn decided(&mut self, now: u64, told: Nanos, core: usize, policy: &S, decision: Decision, queues: &[Queue]) {
        if let Some(what) = (self.audit)(policy, self.shares.len()) {
            self.violate(now, "credits add up", what);
        }
        if self.promises.shares && self.sharing {
            for tenant in 0..self.shares.len() {
                let has = queues.iter().any(|queue| {
                    usize::from(queue.plan.id.tenant.0) == tenant
                        && queue.plan.core == core
                        && !queue.waiting.is_empty()
                });
                let is_free = self.manners[tenant] == Manner::Flood;
                self.cores[core].had[tenant].1 &= has && is_free;
            }
        }
        let is_idle = match decision {
            Decision::Run(_) => {
                self.cores[core].decided = told;
                false
            }
            // Asked again at once.
            Decision::IdleUntil(at) => at > told,
            Decision::Idle => true,
        };
        if is_idle
            && self.promises.conserves
            && let Some(queue) = self.runnable(core, queues)
        {
            let what = format!("core {core} idles, queue {} has {}", queue.plan.id, queue.waiting.len());
            self.violate(now, "work is conserved", what);
        }
    }

    fn ran(&mut self, ran: &Ran) {
        self.grants += 1;
        let tenant = usize::from(ran.grant.queue.tenant.0);
        let price = self.price.price(ran.cost);
        let core = &mut self.cores[ran.core];
        core.longest = core.longest.max(price);
        core.had[tenant].0 += price;
        core.pending = core.pending.map(|pending| pending + ran.cost.pending);
        let (pending, longest) = (core.pending, core.longest);
        if self.promises.depth && ran.cost.pending > 0 && pending.is_some_and(|pending| pending > self.depth) {
            let what = format!("{} units of a depth of {}", pending.unwrap_or(0), self.depth);
            self.violate(ran.end, "a back end has no more than its depth", what);
        }
        if self.promises.limits {
            self.check_limit(ran);
        }
        if self.promises.light_waits && self.manners[tenant] == Manner::Light && !self.is_changed[tenant] {
            let waited = ran.start.saturating_sub(ran.since);
            // The grant that runs, and one of each of the others, each with the decision before it.
            let bound = (longest + 1_000) * (self.shares.len() as u64 + 1);
            if waited > bound {
                let what = format!("tenant {tenant} waited {waited} ns, where {bound} ns is the bound");
                self.violate(ran.end, "light tenants hardly wait", what);
            }
        }
        if self.promises.shares && self.sharing && ran.end >= self.cores[ran.core].since + SPAN {
            self.compare_shares(ran.end, ran.core);
        }
    }

    fn completed(&mut self, _now: u64, core: usize, _queue: QueueId) {
        let pending = &mut self.cores[core].pending;
        *pending = pending.map(|pending| pending.saturating_sub(1));
    }

    fn moved(&mut self, now: u64, _queue: QueueId) {
        // There, it and those beside it have another share.
        self.is_changed.fill(true);
        for core in &mut self.cores {
            // What is on its way when a queue goes is told to the core that it left.
            if core.pending != Some(0) {
                core.pending = None;
            }
            core.since = now;
            core.had.iter_mut().for_each(|had| *had = (0, true));
        }
    }

    fn cancelled(&mut self, _now: u64, tenant: TenantId, _units: usize) {
        for core in &mut self.cores {
            core.had[usize::from(tenant.0)].1 = false;
        }
    }

    fn broke(&mut self, now: u64, what: String) {
        self.violate(now, "a policy grants what there is, and ends", what);
    }
}
