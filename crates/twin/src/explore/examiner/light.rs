//! What light tenants wait (`docs/scheduling-design.md`, "The bound").
//!
//! A wait has two parts. Up to the next poll the policy does not know of what has come: a turn, and the grant with
//! which it ends, have a bound each. From then on, a tenant in a lane waits for its own earlier work, and a grant for
//! each of those, and one more, of each other tenant that may be in a lane. A flood may not: no grant of one begins
//! meanwhile.
//!
//! It is checked where tenants are light: they have [settled](Scenario::settles_in), beside a flood, so that the core
//! is never idle.

use std::collections::{BTreeMap, VecDeque};

use softdpu_sched::{LatencyClass, QueueId, Share, TenantId, Tuning, Weighted};

use super::super::scenario::{Manner, Scenario};
use crate::node::{Fault, Ran};

/// Grants of a core that are remembered: more than any wait has.
const GRANTS: usize = 8_192;
/// A grant longer than this is more than what a tenant that came meanwhile has saved up for.
const LONG: u64 = 16_000;

/// Which of the two parts was longer than promised, and how.
type Wrong = (&'static str, String);

/// For how long after several had work grants are surely short, nanoseconds: most of [`Tuning::memory`].
const MIXED: u64 = 9_000_000;

/// A grant that ran.
#[derive(Clone, Copy, Debug)]
struct Past {
    tenant: usize,
    /// When it was decided, and when it ended.
    began: u64,
    ended: u64,
    /// What a unit took, on average.
    unit: u64,
    /// Another tenant had work that waited. What a tenant has alone is not more than its share.
    is_contested: bool,
    /// It was long, as the policy did not know yet what a unit costs.
    is_dear: bool,
}

impl Past {
    fn took(&self) -> u64 {
        self.ended - self.began
    }
}

#[derive(Debug, Default)]
struct Core {
    grants: VecDeque<Past>,
    /// By queue, what a unit of its last grant took.
    units: BTreeMap<QueueId, u64>,
    /// The turns that began last: when, and how long they are.
    turns: [(u64, u64); 8],
    /// From and to when several tenants had work that could run, without as long a pause as ends it.
    mixed: Option<(u64, u64)>,
    /// When the clock jumped the last time.
    jumped: u64,
    /// By tenant, what its grants took, while others had work as well, since it could have saved something up.
    had: Vec<u64>,
    has_flood: bool,
}

/// All light tenants.
#[derive(Debug)]
pub(super) struct Lights {
    shares: Vec<Share>,
    manners: Vec<Manner>,
    /// By tenant, what of its core's time is the others', at least a little.
    others: Vec<f64>,
    scenario: Scenario,
    /// By tenant, from when on it is light.
    settled: Vec<u64>,
    cores: Vec<Core>,
    switch: u64,
    decision: u64,
    is_over: bool,
}

impl Lights {
    pub fn new(scenario: &Scenario) -> Lights {
        let plan = &scenario.plan;
        let tenants = scenario.tenants.len();
        let mut home = vec![0; tenants];
        let mut starts = vec![0; tenants];
        for (queue, source) in plan.queues.iter().zip(&plan.sources) {
            let tenant = usize::from(queue.id.tenant.0);
            home[tenant] = queue.core;
            starts[tenant] = source.start;
        }
        let has_flood = |core: usize| (0..tenants).any(|at| home[at] == core && scenario.tenants[at] == Manner::Flood);
        let core = |core| Core { had: vec![0; tenants], has_flood: has_flood(core), ..Core::default() };
        let weights =
            |core: usize| -> u32 { (0..tenants).filter(|at| home[*at] == core).map(|at| plan.shares[at].weight).sum() };
        let others = |at: usize| 1.0 - f64::from(plan.shares[at].weight) / f64::from(weights(home[at]));
        // A tenant that was alone with it has not left it anything to save up.
        let all_began =
            |core: usize| (0..tenants).filter(|at| home[*at] == core).map(|at| starts[at]).max().unwrap_or(0);
        let settled = |at: usize| match scenario.tenants[at] {
            Manner::Light => all_began(home[at]) + scenario.settles_in(at, 0, Weighted::CARRY.0),
            _ => u64::MAX,
        };
        let mut settled: Vec<u64> = (0..tenants).map(settled).collect();
        for (_, fault) in &scenario.faults {
            // A source has the number of its queue.
            if let Fault::Flood { source, .. } = fault {
                settled[usize::from(plan.queues[*source].id.tenant.0)] = u64::MAX;
            }
        }
        Lights {
            shares: plan.shares.clone(),
            manners: scenario.tenants.clone(),
            others: (0..tenants).map(others).collect(),
            scenario: scenario.clone(),
            settled,
            cores: (0..plan.cores).map(core).collect(),
            switch: plan.switch,
            decision: plan.decision,
            is_over: false,
        }
    }

    /// No tenant is known to be light from now on.
    pub fn give_up(&mut self) {
        self.is_over = true;
    }

    /// What a tenant had was given up: it may save up anew, as at the beginning, and so have the light ones to.
    pub fn cancelled(&mut self, now: u64, tenant: TenantId) {
        for core in &mut self.cores {
            core.had[usize::from(tenant.0)] = 0;
        }
        for (light, settled) in self.settled.iter_mut().enumerate().filter(|(_, settled)| **settled != u64::MAX) {
            *settled = (*settled).max(now) + self.scenario.settles_in(light, 0, Weighted::CARRY.0);
        }
    }

    /// A clock that jumps may be the end of the time for which grants are short.
    pub fn jumped(&mut self, now: u64, core: usize) {
        let core = &mut self.cores[core];
        (core.mixed, core.jumped) = (None, now);
    }

    pub fn polled(&mut self, now: u64, core: usize, turn: u64) {
        let turns = &mut self.cores[core].turns;
        turns.rotate_left(1);
        turns[7] = (now, turn);
    }

    /// A grant ran.
    pub fn ran(&mut self, ran: &Ran) -> Option<Wrong> {
        let tenant = usize::from(ran.grant.queue.tenant.0);
        let wrong = if self.is_over || self.shares[tenant].class == LatencyClass::Background {
            None
        } else {
            self.check(ran, tenant)
        };
        let core = &mut self.cores[ran.core];
        let began = ran.start - ran.decision;
        let is_other = core.grants.back().is_some_and(|last| last.tenant != tenant);
        let switch = if is_other { self.switch } else { 0 };
        let unit = (ran.end - ran.start).saturating_sub(switch) / u64::from(ran.cost.units.max(1));
        let is_new = core.units.insert(ran.grant.queue, unit).is_none_or(|before| 2 * unit > 3 * before);
        let is_dear = is_new && ran.end - ran.start > LONG;
        // What could have run when is not known here of tenants with a limit or a back end.
        let could_run = !matches!(self.manners[tenant], Manner::Limited | Manner::Disk);
        for past in core.grants.iter_mut().rev().take_while(|past| could_run && past.began >= ran.known) {
            if past.tenant != tenant && !std::mem::replace(&mut past.is_contested, true) {
                core.had[past.tenant] += past.took();
                let began = past.began;
                core.mixed = match core.mixed {
                    _ if began <= core.jumped => core.mixed,
                    Some((from, to)) if began.saturating_sub(to) < MIXED => Some((from.min(began), to.max(began))),
                    _ => Some((began, began)),
                };
            }
        }
        core.grants.push_back(Past { tenant, began, ended: ran.end, unit, is_contested: false, is_dear });
        if core.grants.len() > GRANTS {
            core.grants.pop_front();
        }
        wrong
    }

    fn check(&mut self, ran: &Ran, tenant: usize) -> Option<Wrong> {
        let core = &self.cores[ran.core];
        if !core.has_flood || self.manners[tenant] != Manner::Light {
            return None;
        }
        // A grant that is longer than the policy could know keeps it from being light for a while.
        let waited = core.grants.iter().rev().take_while(|past| past.ended > ran.since);
        let dear = waited.filter(|past| past.is_dear).map(|past| past.ended - past.began.max(ran.since)).max();
        if let Some(lost) = dear
            && self.settled[tenant] != u64::MAX
        {
            let settles = self.scenario.settles_in(tenant, lost, 0);
            self.settled[tenant] = self.settled[tenant].max(ran.end) + settles;
        }
        if ran.since < self.settled[tenant] {
            return None;
        }
        self.check_seen(ran, tenant).or_else(|| self.check_wait(ran, tenant))
    }

    /// From coming to being known: a turn, and the grant with which it ends.
    fn check_seen(&self, ran: &Ran, tenant: usize) -> Option<Wrong> {
        let core = &self.cores[ran.core];
        let Tuning { grant, alone, .. } = Tuning::default();
        let (since, known) = (ran.since, ran.known);
        let while_it_waited = move || core.grants.iter().rev().take_while(move |past| past.ended > since);
        let during = move || while_it_waited().filter(move |past| past.began < known);
        if during().any(|past| past.is_dear) {
            return None;
        }
        // Where no other tenant had work for a while, grants are long, and so are turns.
        let is_mixed = core.mixed.is_some_and(|(from, to)| from <= ran.since && ran.since.saturating_sub(to) < MIXED);
        let turn = core.turns.iter().rfind(|(began, _)| *began <= ran.since);
        // The one that was going on when it came may no longer be remembered.
        let is_short = |began: u64| is_mixed && core.mixed.is_some_and(|(from, _)| from < began);
        let turn = match turn {
            Some((began, turn)) if is_short(*began) => (*turn).min(grant.0),
            Some((_, turn)) => (*turn).min(alone.0),
            None => alone.0,
        };
        // Units are not alike: up to 2.4 times as long as they are on average.
        let unit = during().map(|past| past.unit).max().unwrap_or(0) * 12 / 5;
        let longest = if is_mixed { grant.0 } else { alone.0 };
        let bound = turn + longest + unit + 2 * (self.switch + self.decision) + 1_000;
        let seen = ran.known - ran.since;
        (seen > bound).then(|| {
            let what = format!("tenant {tenant} came {seen} ns before the core looked, where {bound} ns is the bound");
            ("what comes is seen soon", what)
        })
    }

    /// From being known to its grant: its own earlier work, and those that may go first as well.
    fn check_wait(&self, ran: &Ran, tenant: usize) -> Option<Wrong> {
        let core = &self.cores[ran.core];
        let known = ran.known;
        let between = move || core.grants.iter().rev().take_while(move |past| past.began >= known);
        let turns = between().filter(|past| past.tenant == tenant).count() as u64 + 1;
        let mut theirs: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for past in between().filter(|past| past.tenant != tenant) {
            let (sum, longest) = theirs.entry(past.tenant).or_default();
            *sum += past.took();
            *longest = (*longest).max(past.took());
        }
        for (other, (sum, longest)) in theirs {
            let allowed = match (self.lane(other), self.lane(tenant)) {
                // Nothing bounds those of a class before it but their own shares.
                (theirs, own) if theirs < own => sum,
                (theirs, own) if theirs == own && self.may_go_first(core, other) => turns * longest,
                _ => 0,
            };
            if sum > allowed {
                let waited = ran.start - ran.known;
                let what = format!(
                    "tenant {tenant} waited {waited} ns, {sum} of them for tenant {other}, where {allowed} ns are the bound"
                );
                return Some(("light tenants hardly wait", what));
            }
        }
        None
    }

    /// Lanes, the first one first. What is owed to one of the last class goes with those of the middle.
    fn lane(&self, tenant: usize) -> LatencyClass {
        self.shares[tenant].class.min(LatencyClass::Normal)
    }

    /// Whether a tenant may be in a lane: it has no work now and then, or is owed a guarantee. A flood has saved up
    /// only what it had before it began, unless it is shallow: while all its work is in a grant, virtual time goes on
    /// by what others have, as far as they are few.
    fn may_go_first(&self, core: &Core, tenant: usize) -> bool {
        let share = &self.shares[tenant];
        let saved = if share.class == LatencyClass::Background { 0.0 } else { 2.0 * Weighted::CARRY.0 as f64 };
        let is_new = (core.had[tenant] as f64) * self.others[tenant] < saved;
        self.manners[tenant] != Manner::Flood || self.scenario.is_shallow || share.guarantee > 0 || is_new
    }
}
