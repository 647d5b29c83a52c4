//! Sweeps over seeds with injected faults: a policy on a simulated node, and everything that it promises checked at
//! every step.
//!
//! A seed makes a [scenario](scenario): cores, tenants of several kinds, back ends, and what goes wrong and when. An
//! [examiner](examiner) looks on and compares what happens with [what the policy promises](Promises). The first thing
//! that is not as promised ends the run; the same seed and policy show it again.

pub mod broken;
mod examiner;
#[cfg(test)]
mod golden;
mod scenario;
pub mod yielding;

use softdpu_sched::{Mtda, Policy, System, TenantId, TenantScheduler, UnknownPolicy};

use crate::node::Node;
use broken::{Broken, BrokenCredits, How};
use examiner::Examiner;
pub use examiner::{Promises, Violation};
use scenario::Scenario;

/// What a run of a seed was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explored {
    /// The scenario in a line.
    pub scenario: String,
    /// Grants that ran; of a policy of [yielding], slices.
    pub grants: u64,
    /// What was not as promised, if anything.
    pub violation: Option<Violation>,
}

/// A policy to explore: one of [`Policy::NAMES`], of [yielding], or one that is broken on purpose ([`How::NAMES`]).
///
/// # Errors
/// [`UnknownPolicy`].
pub fn check(name: &str) -> Result<(), UnknownPolicy> {
    if How::named(name).is_some() || yielding::is_yielding(name) { Ok(()) } else { Policy::named(name).map(|_| ()) }
}

/// Runs a seed's scenario with a policy.
///
/// # Errors
/// [`UnknownPolicy`].
pub fn explore(name: &str, seed: u64) -> Result<Explored, UnknownPolicy> {
    if let Some(explored) = yielding::explore(name, seed) {
        return Ok(explored);
    }
    let scenario = Scenario::of(seed);
    let occupied = scenario.occupied.clone();
    let mtda = |mut mtda: Mtda| {
        (0..).zip(&occupied).for_each(|(tenant, occupied)| mtda.occupy(TenantId(tenant), *occupied));
        mtda
    };
    Ok(match (name, How::named(name)) {
        (_, Some(how @ (How::Overspends | How::Mints))) => {
            run(seed, scenario, Promises::of("mtda"), || BrokenCredits::new(how, &occupied), has_credits)
        }
        (_, Some(how)) => run(seed, scenario, Promises::of("weighted"), || Broken::new(how), has_none),
        ("mtda", _) => run(seed, scenario, Promises::of(name), || mtda(Mtda::repaired(System::default())), has_credits),
        ("mtda-printed", _) => {
            run(seed, scenario, Promises::of(name), || mtda(Mtda::printed(System::default())), has_credits)
        }
        _ => {
            let policy = Policy::named(name)?;
            run(seed, scenario, Promises::of(name), || policy.build(), has_none)
        }
    })
}

/// A policy of credits.
trait Credits {
    /// A tenant's, of the last allocation.
    fn credit(&self, tenant: TenantId) -> u64;
    /// How often they were allocated or renewed.
    fn renewals(&self) -> u64;
}

impl Credits for Mtda {
    fn credit(&self, tenant: TenantId) -> u64 {
        Mtda::credit(self, tenant)
    }

    fn renewals(&self) -> u64 {
        Mtda::renewals(self)
    }
}

/// The credits of a policy, if it has any.
type Purse<S> = fn(&S) -> Option<&dyn Credits>;

fn has_credits<S: Credits>(policy: &S) -> Option<&dyn Credits> {
    Some(policy)
}

fn has_none<S>(_: &S) -> Option<&dyn Credits> {
    None
}

fn run<S: TenantScheduler>(
    seed: u64,
    scenario: Scenario,
    promises: Promises,
    mut make: impl FnMut() -> S,
    purse: Purse<S>,
) -> Explored {
    let examiner = Examiner::new(&scenario, promises, purse);
    let mut node = Node::new(scenario.plan.clone(), |_| make(), examiner, seed);
    for (at, fault) in &scenario.faults {
        node.plan_fault(*at, *fault);
    }
    // In steps, so that what is wrong ends it soon.
    let mut at = 0;
    while at < scenario.span && node.watch.violation.is_none() {
        at += 1_000_000;
        node.run(at.min(scenario.span));
    }
    node.watch.stop_sharing();
    node.stop_sources();
    let is_left = |node: &Node<S, Examiner<S>>| node.queues().iter().any(|queue| queue.units() > 0);
    while promises.drains && is_left(&node) && at < scenario.span + scenario.drain && node.watch.violation.is_none() {
        at += 1_000_000;
        node.run(at);
    }
    let left = node.queues().iter().find(|queue| queue.units() > 0).map(|queue| (queue.plan.id, queue.units()));
    let (now, scenario) = (node.now(), scenario.about);
    if let Some((queue, units)) = left {
        node.watch.left_over(now, queue, units);
    }
    let (_, examiner) = node.into_parts();
    Explored { scenario, grants: examiner.grants, violation: examiner.violation }
}

#[cfg(test)]
mod tests;
