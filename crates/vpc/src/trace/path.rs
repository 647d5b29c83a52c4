//! A packet's way through the tiers: what was looked up, what was found, what was done (Zephyrus §7.1).
//!
//! ```text
//!   ingress: identifier ─► switch-before ─► flow ─► software ─► switch-after ─► verdict
//!                               └── Step ────┴── Step ──┴── Step ────┴──► Watch, which has the clock
//! ```
//!
//! Steps are recorded where they happen, by the code that forwards. For packets that are not traced that code is
//! another copy ([`Untraced`]), in which no step is left.

use std::fmt;
use std::str::FromStr;

use crate::id::PortId;
use crate::verdict::reasons;

reasons! {
    /// A tier of the datapath (Zephyrus §3.2).
    enum Tier;
    /// Switch tier, before the flow tier: parse, classify, network, routes.
    Before = "switch-before",
    /// Flow tier: what was decided for the flow before.
    Flow = "flow",
    /// Software tier: policies, connections, services.
    Software = "software",
    /// Switch tier, after the flow tier: next hop, rewriting, encapsulation.
    After = "switch-after",
}

reasons! {
    /// What was looked up or asked.
    enum Table;
    /// What the frame is.
    Frame = "frame",
    /// What is at a port.
    Ports = "ports",
    /// Networks by VNI, and their tunnels.
    Tunnels = "tunnels",
    /// Whether the source has the addresses that it states.
    Sources = "sources",
    /// Owners of addresses, exact.
    Addresses = "addresses",
    /// Route tables of sources.
    PolicyRoutes = "policy-routes",
    /// Routes, longest prefix.
    Routes = "routes",
    /// ECMP groups.
    Ecmp = "ecmp",
    /// Networks that reach each other.
    Peerings = "peerings",
    /// Flows.
    Flows = "flows",
    /// Access control lists.
    Acls = "acls",
    /// Connections.
    Connections = "connections",
    /// Rules of security groups.
    SecurityGroups = "security-groups",
    /// Translations at exits.
    Translations = "translations",
    /// How often the software tier runs for a port.
    Limits = "limits",
    /// Services of the network, ICMP errors, fragments.
    Services = "services",
    /// Meters.
    Meters = "meters",
    /// Next hops.
    Hops = "hops",
    /// The packet as it leaves.
    Packet = "packet",
}

reasons! {
    /// What came of a step.
    enum Outcome;
    /// It was there.
    Hit = "hit",
    /// It was not.
    Miss = "miss",
    /// It was there, and computed from something that has changed.
    Stale = "stale",
    /// The packet goes on.
    Pass = "pass",
    /// Another tier is asked.
    Ask = "ask",
    /// The packet is dropped.
    Drop = "drop",
    /// Something was kept for the packets that follow.
    Kept = "kept",
    /// The packet leaves, or was answered.
    Done = "done",
}

/// A version that was compared (Zephyrus §4.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The object.
    pub object: String,
    /// What the flow was computed from.
    pub stored: u64,
    /// What is in force.
    pub current: u64,
}

/// One step of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Where.
    pub tier: Tier,
    /// What was asked.
    pub table: Table,
    /// What came of it.
    pub outcome: Outcome,
    /// What it was asked for; empty: nothing.
    pub key: String,
    /// What was found, or done.
    pub found: String,
    /// Versions that were compared, or kept.
    pub versions: Vec<Version>,
}

impl Step {
    /// A step without versions.
    pub fn new(tier: Tier, table: Table, outcome: Outcome, key: impl Into<String>, found: impl Into<String>) -> Step {
        Step { tier, table, outcome, key: key.into(), found: found.into(), versions: Vec::new() }
    }

    pub(crate) fn with(mut self, versions: Vec<Version>) -> Step {
        self.versions = versions;
        self
    }
}

/// Between the parts of a step on a line.
const BETWEEN: &str = " | ";
/// Between versions.
const AND: &str = "; ";

impl fmt::Display for Step {
    /// On a line, from which it is [read](FromStr) again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { tier, table, outcome, key, found, versions } = self;
        write!(f, "{tier}{BETWEEN}{table}{BETWEEN}{outcome}{BETWEEN}{key}{BETWEEN}{found}{BETWEEN}")?;
        for (at, version) in versions.iter().enumerate() {
            let and = if at == 0 { "" } else { AND };
            write!(f, "{and}{version}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.object, self.stored, self.current)
    }
}

/// A line that is no step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a step of a packet's way")]
pub struct NotAStep;

impl FromStr for Version {
    type Err = NotAStep;

    fn from_str(text: &str) -> Result<Version, NotAStep> {
        let (object, numbers) = text.rsplit_once(' ').ok_or(NotAStep)?;
        let (stored, current) = numbers.split_once('/').ok_or(NotAStep)?;
        let number = |text: &str| text.parse().map_err(|_| NotAStep);
        Ok(Version { object: object.to_owned(), stored: number(stored)?, current: number(current)? })
    }
}

impl FromStr for Step {
    type Err = NotAStep;

    fn from_str(line: &str) -> Result<Step, NotAStep> {
        let parts: Vec<&str> = line.splitn(6, BETWEEN).collect();
        let &[tier, table, outcome, key, found, versions] = parts.as_slice() else { return Err(NotAStep) };
        fn named<T: Copy>(all: &[T], word: impl Fn(T) -> &'static str, text: &str) -> Result<T, NotAStep> {
            all.iter().copied().find(|one| word(*one) == text).ok_or(NotAStep)
        }
        let versions = versions.split(AND).filter(|text| !text.is_empty()).map(str::parse);
        Ok(Step {
            tier: named(Tier::ALL, Tier::word, tier)?,
            table: named(Table::ALL, Table::word, table)?,
            outcome: named(Outcome::ALL, Outcome::word, outcome)?,
            key: key.to_owned(),
            found: found.to_owned(),
            versions: versions.collect::<Result<_, _>>()?,
        })
    }
}

/// Takes the trace steps of packets of a batch.
pub trait Watch {
    /// The identifier that packet `at` of the batch was given at ingress; 0: it is not traced.
    fn identifier(&self, at: usize) -> u32;
    /// A step of packet `at` of the batch, in its order.
    fn step(&mut self, at: usize, step: Step);
    /// What people call a port.
    fn port(&self, port: PortId) -> String {
        format!("port {}", port.0)
    }
}

/// Names of ports.
pub type Names<'a> = &'a dyn Fn(PortId) -> String;

/// Records the steps of the code that forwards, which is compiled for each tracer.
pub(crate) trait Tracer {
    /// Steps are recorded.
    const TRACES: bool;
    /// Nothing may change: it is only asked what would happen.
    const REHEARSES: bool;

    fn record<S: IntoIterator<Item = Step>>(&mut self, at: usize, steps: impl FnOnce(Names<'_>) -> S);
}

/// Records nothing.
pub(crate) struct Untraced;

impl Tracer for Untraced {
    const TRACES: bool = false;
    const REHEARSES: bool = false;

    #[inline(always)]
    fn record<S: IntoIterator<Item = Step>>(&mut self, _at: usize, _steps: impl FnOnce(Names<'_>) -> S) {}
}

/// Records the steps of some packets, of a batch that is forwarded or, with `REHEARSES`, is not.
pub(crate) struct TraceTo<'a, const REHEARSES: bool>(pub &'a mut dyn Watch);

impl<const REHEARSES: bool> Tracer for TraceTo<'_, REHEARSES> {
    const TRACES: bool = true;
    const REHEARSES: bool = REHEARSES;

    fn record<S: IntoIterator<Item = Step>>(&mut self, at: usize, steps: impl FnOnce(Names<'_>) -> S) {
        if self.0.identifier(at) == 0 {
            return;
        }
        let watch = &*self.0;
        let steps: Vec<Step> = steps(&|port| watch.port(port)).into_iter().collect();
        steps.into_iter().for_each(|step| self.0.step(at, step));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_comes_back_from_its_line() {
        let version = |object: &str, stored, current| Version { object: object.into(), stored, current };
        let plain = Step::new(Tier::Flow, Table::Flows, Outcome::Miss, "10.0.0.2 > 10.0.0.3", "");
        let versions = vec![version("routes of red", 3, 4), version("endpoint 10.0.0.2 of red", 1, 1)];
        let stale = Step { outcome: Outcome::Stale, ..plain.clone() }.with(versions);
        for step in [plain, stale] {
            assert_eq!(step.to_string().parse(), Ok(step.clone()), "{step}");
        }
        assert_eq!("flow | flows | miss".parse::<Step>(), Err(NotAStep));
        assert_eq!("dropped: acl".parse::<Step>(), Err(NotAStep));
    }
}
