//! The control thread's part in steering: which table the cores use, and what changes it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use softdpu_sched::{BucketLoad, Elephant, Nanos, Order, Pinned, Spreader};
use softdpu_vpc::steer::{BUCKETS, FiveTuple, Match, RULES, Rule, SteerError, Steering};
use softdpu_vpc::{HeavyFlow, PortId, Vni};
use thiserror::Error;

use crate::counters::CoreCounters;
use crate::engine::Engine;
use crate::ids::CoreIndex;
use crate::message::ToCore;

/// What decides which core forwards which packets from tunnels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SteeringMode {
    /// They are forwarded where they are read, whatever rules there are.
    Off,
    /// The spread and the rules.
    #[default]
    Manual,
    /// The engine, behind the rules: it moves buckets and elephants from a busy core to one that is not.
    Auto,
}

/// Which core is to forward which packets from tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SteeringSpec {
    /// What decides.
    pub mode: SteeringMode,
    /// The cores over which flows are spread by hash; none: they stay where they are read.
    pub spread: Vec<CoreIndex>,
    /// Packets that a core forwards whatever their hash.
    pub rules: Vec<(Match, CoreIndex)>,
}

/// Why a [`SteeringSpec`] is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SteeringError {
    /// There is no such core.
    #[error("there is no core {0}; the node has cores 0 to {1}")]
    Core(usize, usize),
    /// The rules do not fit a table.
    #[error(transparent)]
    Table(#[from] SteerError),
}

/// A rule, as it is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleReport {
    /// The packets that it takes.
    pub what: Match,
    /// The core that forwards them.
    pub core: CoreIndex,
    /// Whether the engine made it, for an elephant.
    pub is_automatic: bool,
    /// Packets that it took.
    pub packets: u64,
}

/// Which core forwards which packets from tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SteeringReport {
    /// What decides.
    pub mode: SteeringMode,
    /// Buckets of each core.
    pub buckets: Vec<usize>,
    /// Buckets of packets that stay where they are read.
    pub staying: usize,
    /// Rules that are in force.
    pub rules: Vec<RuleReport>,
    /// Buckets and elephants that the engine has moved.
    pub moved: u64,
}

/// The rule that a number stands for, under which cores count its packets.
#[derive(Clone, Debug)]
struct RuleSlot {
    what: Match,
    /// What cores had counted under the number before.
    before: u64,
}

/// A flow that the engine pins to a core: of a network, as others may have the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TunnelFlow {
    vni: Vni,
    tuple: FiveTuple,
}

impl TunnelFlow {
    /// A heavy flow, if its network is known.
    fn of(heavy: &HeavyFlow) -> Option<TunnelFlow> {
        let HeavyFlow { source, destination, protocol, ports, .. } = *heavy;
        Some(TunnelFlow { vni: heavy.vni?, tuple: FiveTuple { source, destination, protocol, ports } })
    }

    fn what(self) -> Match {
        Match::Flow(Some(self.vni), self.tuple)
    }

    /// Whether a rule takes its packets.
    fn is_in(self, what: &Match) -> bool {
        match what {
            Match::Vni(vni) => *vni == self.vni,
            Match::Flow(vni, tuple) => *tuple == self.tuple && vni.is_none_or(|vni| vni == self.vni),
        }
    }
}

/// Steering, as the control thread knows it.
pub(crate) struct SteeringControl {
    spec: SteeringSpec,
    table: Arc<Steering>,
    slots: [Option<RuleSlot>; RULES],
    /// Elephants that are pinned to a core.
    pinned: BTreeMap<TunnelFlow, CoreIndex>,
    spreader: Spreader<TunnelFlow>,
    /// When loads were last measured, and what each core had counted then.
    measured: Nanos,
    seen: Vec<CoreCounts>,
    /// Cores count packets by bucket and rule, so that loads are known.
    counts: bool,
    moved: u64,
}

/// What a core had counted when loads were last measured.
#[derive(Clone)]
struct CoreCounts {
    busy_ns: u64,
    worked_ns: u64,
    /// By bucket, and by rule.
    packets: [u64; BUCKETS + RULES],
}

impl Default for CoreCounts {
    fn default() -> Self {
        CoreCounts { busy_ns: 0, worked_ns: 0, packets: [0; BUCKETS + RULES] }
    }
}

impl Default for SteeringControl {
    fn default() -> Self {
        SteeringControl {
            spec: SteeringSpec::default(),
            table: Arc::default(),
            slots: std::array::from_fn(|_| None),
            pinned: BTreeMap::new(),
            spreader: Spreader::default(),
            measured: Nanos(0),
            seen: Vec::new(),
            counts: false,
            moved: 0,
        }
    }
}

/// How busy a core has to be before packets from tunnels are counted, in thousandths of its time.
const WORTH_COUNTING: u32 = 500;

impl Engine {
    /// Steers packets from tunnels by `spec` from now on, each flow's in order. What was moved automatically before
    /// goes where the spread puts it.
    ///
    /// # Errors
    /// [`SteeringError`]; nothing has changed then.
    pub fn set_steering(&mut self, spec: SteeringSpec) -> Result<(), SteeringError> {
        let cores = self.data_plane().len();
        let named = spec.spread.iter().chain(spec.rules.iter().map(|(_, core)| core));
        if let Some(core) = named.into_iter().find(|core| core.0 >= cores) {
            return Err(SteeringError::Core(core.0, cores - 1));
        }
        let mut buckets = Steering::default();
        if spec.mode != SteeringMode::Off {
            buckets.spread(&spec.spread.iter().map(|core| core.0).collect::<Vec<_>>());
        }
        let rules = if spec.mode == SteeringMode::Off { &[][..] } else { &spec.rules };
        let rules: Vec<(Match, CoreIndex)> = rules.to_vec();
        // Whether it can be is asked before anything is forgotten.
        self.check_rules(&rules)?;
        self.steering.pinned.clear();
        self.steering.counts = false;
        self.steering.spec = spec;
        self.put_into_force(buckets, &rules)
    }

    /// What was asked for last.
    pub(crate) fn steering_spec(&self) -> &SteeringSpec {
        &self.steering.spec
    }

    /// The cores that packets from tunnels are steered to.
    pub(crate) fn steered_to(&self) -> HashSet<usize> {
        let table = &self.steering.table;
        let buckets = (0..BUCKETS).filter_map(|bucket| table.core_of(bucket));
        buckets.chain(table.rules().map(|rule| rule.core)).collect()
    }

    /// The counters of all cores, whether they have a CPU now or not: what they have counted stays counted.
    fn counters(&self) -> impl Iterator<Item = &CoreCounters> {
        self.cores.iter().map(|core| &*core.counters)
    }

    fn check_rules(&self, rules: &[(Match, CoreIndex)]) -> Result<(), SteerError> {
        let numbered =
            rules.iter().enumerate().map(|(number, (what, core))| Rule { number, what: *what, core: core.0 });
        let numbered: Vec<Rule> = numbered.collect();
        Steering::default().with_rules(&numbered).map(drop)
    }

    /// Gives the cores these buckets and rules, by which they count where that is wanted.
    fn put_into_force(&mut self, buckets: Steering, rules: &[(Match, CoreIndex)]) -> Result<(), SteeringError> {
        let counted = |engine: &Engine, number: usize| -> u64 {
            engine.counters().filter_map(|core| core.steering.rules.get(number)).map(|counter| counter.get()).sum()
        };
        for slot in &mut self.steering.slots {
            if slot.as_ref().is_some_and(|slot| !rules.iter().any(|(what, _)| *what == slot.what)) {
                *slot = None;
            }
        }
        let mut numbered = Vec::with_capacity(rules.len());
        for (what, core) in rules {
            let of = |slot: &Option<RuleSlot>| slot.as_ref().is_some_and(|slot| slot.what == *what);
            let known = self.steering.slots.iter().position(of);
            let number = known.or_else(|| self.steering.slots.iter().position(Option::is_none));
            let Some(number) = number else { return Err(SteerError::TooMany(rules.len()).into()) };
            if known.is_none() {
                let before = counted(self, number);
                self.steering.slots[number] = Some(RuleSlot { what: *what, before });
            }
            numbered.push(Rule { number, what: *what, core: core.0 });
        }
        let table = Arc::new(buckets.with_rules(&numbered)?.counting(self.steering.counts));
        if table != self.steering.table {
            for core in &self.cores {
                core.mailbox.send(ToCore::Steering(Arc::clone(&table)));
            }
            self.steering.table = table;
        }
        Ok(())
    }

    /// Which core forwards which packets from tunnels.
    pub fn steering(&self) -> SteeringReport {
        let SteeringControl { spec, table, slots, pinned, moved, .. } = &self.steering;
        let mut buckets = vec![0; self.data_plane().len()];
        let places: Vec<usize> = (0..BUCKETS).filter_map(|bucket| table.core_of(bucket)).collect();
        for place in &places {
            if let Some(count) = buckets.get_mut(*place) {
                *count += 1;
            }
        }
        let report = |rule: &Rule| {
            let counted: u64 = self
                .counters()
                .filter_map(|core| core.steering.rules.get(rule.number))
                .map(|counter| counter.get())
                .sum();
            let before = slots.get(rule.number).and_then(Option::as_ref).map_or(0, |slot| slot.before);
            // A flow with a rule of the configuration is not pinned.
            let is_automatic = matches!(
                rule.what, Match::Flow(Some(vni), tuple) if pinned.contains_key(&TunnelFlow { vni, tuple })
            );
            let (what, core) = (rule.what, CoreIndex(rule.core));
            RuleReport { what, core, is_automatic, packets: counted.saturating_sub(before) }
        };
        SteeringReport {
            mode: spec.mode,
            buckets,
            staying: BUCKETS - places.len(),
            rules: table.rules().map(report).collect(),
            moved: *moved,
        }
    }

    /// Moves buckets and elephants of the port `underlay` by the cores' loads since the last call, where the engine
    /// decides. Returns how many were moved.
    pub fn balance_tunnels(&mut self, now: Nanos, underlay: Option<PortId>) -> usize {
        let passed = now.since(std::mem::replace(&mut self.steering.measured, now)).0;
        if self.steering.spec.mode != SteeringMode::Auto || self.data_plane().len() < 2 || passed == 0 {
            return 0;
        }
        let Some(underlay) = underlay else { return 0 };
        let CoreLoads { busy, loads } = self.measure(passed);
        let counts = busy.iter().any(|busy| *busy >= WORTH_COUNTING);
        let was_counting = std::mem::replace(&mut self.steering.counts, counts);
        let moved = if was_counting { self.plan(now, underlay, &busy, &loads) } else { SteeringPlan::default() };
        if moved.orders == 0 && was_counting == counts {
            return 0;
        }
        self.steering.moved += moved.orders as u64;
        let rules = self.rules_in_force();
        if let Err(error) = self.put_into_force(moved.buckets.unwrap_or_else(|| (*self.steering.table).clone()), &rules)
        {
            tracing::error!(%error, "flows were not moved");
        }
        moved.orders
    }

    /// Those of the configuration, and those of elephants.
    fn rules_in_force(&self) -> Vec<(Match, CoreIndex)> {
        let SteeringControl { spec, pinned, .. } = &self.steering;
        spec.rules.iter().copied().chain(pinned.iter().map(|(flow, core)| (flow.what(), *core))).collect()
    }

    fn plan(&mut self, now: Nanos, underlay: PortId, busy: &[u32], loads: &UnitLoads) -> SteeringPlan {
        let mut elephants = Vec::new();
        for (_, core) in self.cores() {
            let (ended, flows) = core.forwarding.heavy();
            let is_news = now.since(ended) < Nanos(2 * Nanos::SECOND.0);
            let heavy = flows.iter().filter(|flow| is_news && flow.is_elephant && flow.port == underlay);
            for flow in heavy.filter_map(TunnelFlow::of) {
                // A rule of the configuration for it, or for its network, goes first.
                if !self.steering.spec.rules.iter().any(|(what, _)| flow.is_in(what)) {
                    elephants.push(Elephant { flow, bucket: flow.tuple.bucket() });
                }
            }
        }
        let SteeringControl { table, pinned, spreader, slots, spec, .. } = &mut self.steering;
        let room = RULES.saturating_sub(spec.rules.len());
        let load_of = |flow: &TunnelFlow| {
            let what = flow.what();
            let number = slots.iter().position(|slot| slot.as_ref().is_some_and(|slot| slot.what == what));
            number.and_then(|number| loads.rules.get(number).copied()).unwrap_or(0)
        };
        let known: Vec<Pinned<TunnelFlow>> =
            pinned.iter().map(|(flow, core)| Pinned { flow: *flow, core: core.0, load: load_of(flow) }).collect();
        let orders = spreader.plan(now, busy, &loads.buckets, &elephants, &known);
        let mut buckets = (**table).clone();
        let mut count = 0;
        for order in orders {
            match order {
                Order::Move { bucket, to } => buckets.put(bucket, Some(to)),
                Order::Pin { flow, core } if pinned.contains_key(&flow) || pinned.len() < room => {
                    pinned.insert(flow, CoreIndex(core));
                }
                Order::Pin { .. } => continue,
                Order::Unpin { flow } => {
                    pinned.remove(&flow);
                }
            }
            count += 1;
        }
        SteeringPlan { orders: count, buckets: Some(buckets) }
    }

    /// What cores did since loads were last measured, in `passed` nanoseconds.
    fn measure(&mut self, passed: u64) -> CoreLoads {
        let count = self.data_plane().len();
        let mut seen = std::mem::take(&mut self.steering.seen);
        seen.resize(count, CoreCounts::default());
        let thousandths = |ns: u64| (ns.saturating_mul(1_000) / passed).min(1_000) as u32;
        let mut busy = Vec::with_capacity(count);
        let mut worked = Vec::with_capacity(count);
        // Packets by unit and by the core that read them.
        let mut packets = vec![[0_u64; BUCKETS + RULES]; count];
        for (((_, core), seen), packets) in self.cores().zip(&mut seen).zip(&mut packets) {
            let grown = |now: u64, before: &mut u64| now.saturating_sub(std::mem::replace(before, now));
            busy.push(thousandths(grown(core.busy_ns.get(), &mut seen.busy_ns)));
            worked.push(thousandths(grown(core.steering.worked_ns.get(), &mut seen.worked_ns)));
            let counters = core.steering.buckets.iter().chain(&core.steering.rules);
            for ((counter, seen), packets) in counters.zip(&mut seen.packets).zip(packets) {
                *packets = grown(counter.get(), seen);
            }
        }
        self.steering.seen = seen;
        CoreLoads { busy, loads: self.loads(&packets, &worked) }
    }

    /// What each bucket and each rule takes of the core that forwards it, by its packets.
    fn loads(&self, packets: &[[u64; BUCKETS + RULES]], worked: &[u32]) -> UnitLoads {
        let table = &self.steering.table;
        let mut at = [None; BUCKETS + RULES];
        for (bucket, at) in at.iter_mut().enumerate().take(BUCKETS) {
            *at = table.core_of(bucket);
        }
        for rule in table.rules() {
            if let Some(at) = at.get_mut(BUCKETS + rule.number) {
                *at = Some(rule.core);
            }
        }
        // By core and unit: packets forwarded there.
        let mut units = vec![[0_u64; BUCKETS + RULES]; packets.len()];
        for (reader, counts) in packets.iter().enumerate() {
            for (unit, count) in counts.iter().enumerate() {
                if let Some(units) = units.get_mut(at[unit].unwrap_or(reader)) {
                    units[unit] += count;
                }
            }
        }
        let mut loads = UnitLoads { buckets: Vec::new(), rules: [0; RULES] };
        for (core, units) in units.iter().enumerate() {
            let all: u64 = units.iter().sum();
            let worked = u64::from(worked.get(core).copied().unwrap_or(0));
            for (unit, count) in units.iter().enumerate().filter(|(_, count)| **count > 0) {
                // Rounded up: what has packets has some load.
                let load = (count * worked).div_ceil(all.max(1)) as u32;
                match unit.checked_sub(BUCKETS) {
                    None => loads.buckets.push(BucketLoad { bucket: unit, core, load }),
                    Some(number) => loads.rules[number] += load,
                }
            }
        }
        loads
    }
}

/// The loads of cores.
struct CoreLoads {
    busy: Vec<u32>,
    loads: UnitLoads,
}

/// The loads of buckets and rules, in thousandths of the core that forwards them.
struct UnitLoads {
    buckets: Vec<BucketLoad>,
    /// By number.
    rules: [u32; RULES],
}

/// The moves that are to be made.
#[derive(Default)]
struct SteeringPlan {
    orders: usize,
    buckets: Option<Steering>,
}
