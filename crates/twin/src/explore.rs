//! Sweeps over seeds with injected faults: a policy on a simulated node, and everything that it promises checked at every step.
//!
//! A seed makes a [scenario](scenario): cores, tenants of several kinds, back ends, and what goes wrong and when. An
//! [examiner](examiner) looks on and compares what happens with [what the policy promises](Promises). The first thing that is not
//! as promised ends the run; the same seed and policy show it again.

pub mod broken;
mod examiner;
mod scenario;

use softdpu_sched::{Mtda, Policy, System, TenantId, TenantScheduler, UnknownPolicy};

use crate::node::Node;
use broken::{Broken, How};
use examiner::Examiner;
pub use examiner::{Promises, Violation};
use scenario::Scenario;

/// What a run of a seed was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explored {
    /// The scenario in a line.
    pub scenario: String,
    /// Grants that ran.
    pub grants: u64,
    /// What was not as promised, if anything.
    pub violation: Option<Violation>,
}

/// A policy to explore: one of [`Policy::NAMES`], or one of [`How::NAMES`] that is broken on purpose.
///
/// # Errors
/// [`UnknownPolicy`].
pub fn check(name: &str) -> Result<(), UnknownPolicy> {
    if How::named(name).is_some() { Ok(()) } else { Policy::named(name).map(|_| ()) }
}

/// Runs a seed's scenario with a policy.
///
/// # Errors
/// [`UnknownPolicy`].
pub fn explore(name: &str, seed: u64) -> Result<Explored, UnknownPolicy> {
    if let Some(how) = How::named(name) {
        return Ok(run(seed, Promises::of("weighted"), || Broken::new(how), |_, _| None));
    }
    let promises = Promises::of(name);
    match name {
        "mtda" => Ok(run(seed, promises, || Mtda::repaired(System::default()), credits_add_up)),
        "mtda-printed" => Ok(run(seed, promises, || Mtda::printed(System::default()), credits_add_up)),
        _ => {
            let policy = Policy::named(name)?;
            Ok(run(seed, promises, || policy.build(), |_, _| None))
        }
    }
}

/// MTDA gives out no more than CREDIT, or one to each.
fn credits_add_up(mtda: &Mtda, tenants: usize) -> Option<String> {
    let given: u64 = (0..tenants).map(|tenant| mtda.credit(TenantId(tenant as u16))).sum();
    let all = System::default().credit.max(tenants as u64);
    (given > all).then(|| format!("{given} credits were given out of {all}"))
}

fn run<S: TenantScheduler>(
    seed: u64,
    promises: Promises,
    mut make: impl FnMut() -> S,
    audit: fn(&S, usize) -> Option<String>,
) -> Explored {
    let scenario = Scenario::of(seed);
    let examiner = Examiner::new(&scenario, promises, audit);
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
