//! Looks on, and compares what happens with what was promised.

mod light;

use std::collections::BTreeMap;
use std::fmt;

use softdpu_sched::{Decision, Nanos, QueueId, Rate, Share, System, TenantId, Weighted, WorkKind};

use super::scenario::{Manner, Scenario};
use super::{Credits, Purse};
use crate::node::{Queue, Ran, Watch};
use light::Lights;

/// What a policy promises, beside what all do: to grant what is there, and to say something that ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promises {
    /// A core does not idle while anything may run that no limit and no back end holds.
    pub conserves: bool,
    /// A tenant that asks for less than its share is seen after a turn and a grant, and then waits for those alone that
    /// may go first as well.
    pub light_waits: bool,
    /// A tenant that always has work has its weight's part of the cost, and no less than its guarantee.
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
    /// When the policy decided on the grant that runs, by its clock.
    decided: Nanos,
    /// By tenant and limit: what is left of it, in 10^-9, and when that was.
    buckets: BTreeMap<(u16, usize), (i128, u64)>,
    /// By tenant: since when it always had work, and the price of what it had since then.
    all: Vec<(Option<u64>, u64)>,
    /// The clock jumped, or a queue moved: what was had before is no measure of what is owed.
    is_uneven: bool,
    /// How far the policy's clock is ahead of time.
    skew: Option<u64>,
    /// What each tenant was granted since its credits were renewed for the last time, and how often they were.
    granted: Vec<u64>,
    renewals: u64,
    /// What back ends have of it; none once a queue came or went while they had something.
    pending: Option<u32>,
}

/// Everything that is looked at.
pub(super) struct Examiner<S> {
    promises: Promises,
    purse: Purse<S>,
    shares: Vec<Share>,
    manners: Vec<Manner>,
    kinds: Vec<WorkKind>,
    lights: Lights,
    depth: u32,
    cores: Vec<Watched>,
    price: Weighted,
    sharing: bool,
    pub grants: u64,
    pub violation: Option<Violation>,
}

const BILLION: i128 = 1_000_000_000;

impl<S> Examiner<S> {
    pub fn new(scenario: &Scenario, promises: Promises, purse: Purse<S>) -> Examiner<S> {
        let tenants = scenario.tenants.len();
        let core = || Watched {
            had: vec![(0, true); tenants],
            granted: vec![0; tenants],
            all: vec![(None, 0); tenants],
            pending: Some(0),
            ..Watched::default()
        };
        let depth = scenario.plan.queues.iter().find_map(|queue| queue.placement.back_end).map_or(0, |end| end.depth);
        Examiner {
            promises,
            purse,
            shares: scenario.plan.shares.clone(),
            manners: scenario.tenants.clone(),
            kinds: scenario.plan.queues.iter().map(|queue| queue.placement.kind).collect(),
            lights: Lights::new(scenario),
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

    /// Sources stop: tenants that had work all the time soon have none.
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
                // One that holds nothing of this core holds no queue up.
                Some(_) => self.cores[core].pending == Some(0),
                None => self.manners[tenant] != Manner::Limited,
            };
            queue.plan.core == core && !queue.waiting.is_empty() && is_free
        })
    }

    fn check_limits(&mut self, ran: &Ran) {
        let limits = self.shares[usize::from(ran.grant.queue.tenant.0)].limits;
        let (units, bytes) = (u64::from(ran.cost.units), ran.cost.bytes);
        let is_packets = self.kinds.get(ran.grant.queue.index as usize) == Some(&WorkKind::Packets);
        let counted = [
            (limits.requests, "requests", if is_packets { 0 } else { units }),
            (limits.bytes, "bytes", bytes),
            (limits.packets, "packets", if is_packets { units } else { 0 }),
        ];
        for (at, (limit, what, takes)) in counted.into_iter().enumerate() {
            if let Some(limit) = limit
                && takes > 0
            {
                self.check_limit(ran, at, limit, what, takes);
            }
        }
    }

    fn check_limit(&mut self, ran: &Ran, at: usize, limit: Rate, what: &str, takes: u64) {
        let tenant = ran.grant.queue.tenant.0;
        // In the time of the policy's clock, which may jump: what time went back over earns nothing twice. Burst and
        // the rate's share of the time and of a microsecond (docs/scheduling.md), rounded up.
        let most = i128::from(limit.burst) * BILLION + i128::from(limit.rate) * 1_100 + BILLION;
        let core = &mut self.cores[ran.core];
        // A grant that was decided on before that counts from then.
        let now = ran.policy_end.max(core.decided).0;
        let (left, last) = core.buckets.get(&(tenant, at)).copied().unwrap_or((most, now));
        let earned = i128::from(now.saturating_sub(last)) * i128::from(limit.rate);
        let before = (left + earned).min(most);
        let after = before - i128::from(takes) * BILLION;
        core.buckets.insert((tenant, at), (after, last.max(now)));
        // Of bytes, those of the last grant are waited for before the next.
        let is_over = if what == "bytes" { before < 0 } else { after < 0 };
        if is_over {
            let what = format!("tenant {tenant} ran {takes} {what} where {} were left", before / BILLION);
            self.violate(ran.end, "limits hold over every span", what);
        }
    }

    /// What a policy of credits gives out, and that no more is granted.
    fn check_credits(&mut self, now: u64, core: usize, credits: &dyn Credits, decision: Decision) {
        let tenants = self.shares.len();
        let credit = |tenant: usize| credits.credit(TenantId(tenant as u16));
        let given: u64 = (0..tenants).map(credit).sum();
        // A tenant with requests has one at the least.
        let all = System::default().credit + tenants as u64;
        if given > all {
            self.violate(now, "credits add up", format!("{given} credits were given out of {all}"));
        }
        let Watched { granted, renewals, .. } = &mut self.cores[core];
        if *renewals != credits.renewals() {
            *renewals = credits.renewals();
            granted.fill(0);
        }
        if let Decision::Run(grant) = decision
            && let Some(granted) = granted.get_mut(usize::from(grant.queue.tenant.0))
        {
            *granted += u64::from(grant.units);
            let (granted, credit) = (*granted, credit(usize::from(grant.queue.tenant.0)));
            if granted > credit {
                let what = format!("tenant {} was granted {granted} of a credit of {credit}", grant.queue.tenant.0);
                self.violate(now, "no more is granted than credits are for", what);
            }
        }
    }

    /// Tenants that had work all the time since the last look have had the same, by weight.
    fn compare_shares(&mut self, now: u64, index: usize) {
        let core = &self.cores[index];
        let busy: Vec<usize> = (0..core.had.len()).filter(|at| core.had[*at].1).collect();
        let mut wrong = None;
        // A guarantee comes before weights: its tenant may have more than its own say.
        let by_weight: Vec<usize> = busy.iter().copied().filter(|at| self.shares[*at].guarantee == 0).collect();
        for (&one, &other) in by_weight.iter().flat_map(|one| by_weight.iter().map(move |other| (one, other))) {
            let weight = |at: usize| f64::from(self.shares[at].weight);
            let had = |at: usize| core.had[at].0 as f64 / weight(at);
            // Tags are exact, slots order them to 32 µs of a tenant's own cost at the least weight of its class, and
            // each may be a grant ahead: at the beginning and at the end.
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
        // What a tenant had when others had nothing counts as well.
        let short = (0..core.all.len()).find_map(|at| {
            let (Some(began), had) = core.all[at] else { return None };
            let due = (now - began) * u64::from(self.shares[at].guarantee) / 1_000;
            // A grant ahead at the beginning, and one behind at the end.
            let most = had + 2 * (core.longest + Weighted::CARRY.0) + due / 20;
            let is_short = !core.is_uneven && most < due;
            is_short.then(|| format!("tenant {at} had {} us of {} us on core {index}", had / 1_000, due / 1_000))
        });
        if let Some(what) = wrong {
            self.violate(now, "shares are weights", what);
        }
        if let Some(what) = short {
            self.violate(now, "guarantees are had", what);
        }
        let core = &mut self.cores[index];
        core.since = now;
        core.had.iter_mut().for_each(|had| *had = (0, true));
    }
}

impl<S> Watch<S> for Examiner<S> {
    fn polled(&mut self, now: u64, core: usize, turn: Nanos) {
        self.lights.polled(now, core, turn.0);
    }

    fn decided(&mut self, now: u64, told: Nanos, core: usize, policy: &S, decision: Decision, queues: &[Queue]) {
        if let Some(credits) = (self.purse)(policy) {
            self.check_credits(now, core, credits, decision);
        }
        let skew = told.0.wrapping_sub(now);
        if self.cores[core].skew.replace(skew).is_some_and(|before| before != skew) {
            self.lights.jumped(now, core);
            self.cores[core].is_uneven = true;
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
                if has && is_free {
                    self.cores[core].all[tenant].0.get_or_insert(now);
                }
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
        core.all[tenant].1 += if core.all[tenant].0.is_some() { price } else { 0 };
        core.pending = core.pending.map(|pending| pending + ran.cost.pending);
        let pending = core.pending;
        if self.promises.depth && ran.cost.pending > 0 && pending.is_some_and(|pending| pending > self.depth) {
            let what = format!("{} units of a depth of {}", pending.unwrap_or(0), self.depth);
            self.violate(ran.end, "a back end has no more than its depth", what);
        }
        if self.promises.limits {
            self.check_limits(ran);
        }
        if self.promises.light_waits
            && let Some((promise, what)) = self.lights.ran(ran)
        {
            self.violate(ran.end, promise, what);
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
        self.lights.give_up();
        for core in &mut self.cores {
            core.is_uneven = true;
            // What is on its way when a queue goes is told to the core that it left.
            if core.pending != Some(0) {
                core.pending = None;
            }
            core.since = now;
            core.had.iter_mut().for_each(|had| *had = (0, true));
        }
    }

    fn cancelled(&mut self, now: u64, tenant: TenantId, _units: usize) {
        self.lights.cancelled(now, tenant);
        for core in &mut self.cores {
            core.had[usize::from(tenant.0)].1 = false;
        }
    }

    fn broke(&mut self, now: u64, what: String) {
        self.violate(now, "a policy grants what there is, and ends", what);
    }
}
