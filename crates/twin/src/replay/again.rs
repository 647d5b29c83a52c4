//! The same work, decided on by another policy.

use std::collections::{BTreeMap, VecDeque};

use softdpu_sched::record::{Decoder, Event, Header};
use softdpu_sched::{Cost, Decision, Grant, Nanos, Policy, QueueId, TenantScheduler, Work};

use super::{Ending, Grants, ReplayError, events, policy_of, tell};
use crate::agenda::Agenda;
use crate::histogram::Histogram;

/// How a tenant fared.
#[derive(Clone, Debug, Default)]
pub struct TenantWaits {
    /// From being ready to being granted, nanoseconds; each unit once.
    pub waits: Histogram,
    /// The longest of them.
    pub longest: u64,
    /// Core time, nanoseconds.
    pub time: u64,
    /// Units that were granted.
    pub units: u64,
    /// Units that became ready and were not, up to the end.
    pub left: u64,
}

impl TenantWaits {
    fn waited(&mut self, wait: u64) {
        self.waits.add(wait);
        self.longest = self.longest.max(wait);
        self.units += 1;
    }
}

/// By tenant.
pub type Fared = BTreeMap<u16, TenantWaits>;

/// A recording beside what policies make of the same work.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Whose recording it is.
    pub header: Header,
    /// How it ends.
    pub ending: Ending,
    /// From the first event to the last, nanoseconds.
    pub span: u64,
    /// As it was recorded.
    pub recorded: Fared,
    /// The policy that was recorded, deciding anew: how near the model is to the core that was recorded.
    pub modelled: Fared,
    /// The other policy, deciding anew.
    pub other: Fared,
}

/// Lets a policy decide anew on the work of a recording.
///
/// Work comes when it came, and each unit of a queue, in order, costs what it cost then, at its back end too. It came when the core took it in: how
/// long that had let it wait in its ring is in those times. What cannot be known is left as it was: a client that waits for its requests would have sent the next ones earlier, or later.
///
/// # Errors
/// [`ReplayError`].
pub fn compare(file: &[u8], other: &Policy) -> Result<Comparison, ReplayError> {
    let (header, decoder) = Decoder::new(file)?;
    let own = policy_of(&header)?;
    let (events, ending) = events(decoder)?;
    let past = Past::of(&events)?;
    let span = past.last.saturating_sub(past.first);
    let modelled = decide_anew(&past, &own);
    let other = decide_anew(&past, other);
    Ok(Comparison { header, ending, span, recorded: past.fared, modelled, other })
}

/// What a unit cost.
#[derive(Clone, Copy, Debug)]
struct UnitCost {
    time: u64,
    bytes: u64,
    /// It went to a back end.
    is_pending: bool,
}

/// What was recorded.
#[derive(Debug, Default)]
struct Past {
    first: u64,
    last: u64,
    fared: Fared,
    /// What was told, with its time, but for what depends on decisions.
    told: Vec<(u64, Event)>,
    costs: BTreeMap<QueueId, Vec<UnitCost>>,
    /// What back ends took, from grant to end, in the order in which they ended.
    back_ends: BTreeMap<QueueId, Vec<u64>>,
}

/// So many units since when they are ready.
type Batch = (u64, u32);

/// Takes the first `units` out.
fn take(from: &mut VecDeque<Batch>, units: u32) -> VecDeque<Batch> {
    let (mut left, mut taken) = (units, VecDeque::new());
    while left > 0
        && let Some(first) = from.front_mut()
    {
        let part = left.min(first.1);
        taken.push_back((first.0, part));
        left -= part;
        first.1 -= part;
        if first.1 == 0 {
            from.pop_front();
        }
    }
    taken
}

fn count(batches: &VecDeque<Batch>) -> u64 {
    batches.iter().map(|(_, units)| u64::from(*units)).sum()
}

/// What a queue of the recorded core had.
#[derive(Debug, Default)]
struct Line {
    ready: VecDeque<Batch>,
    /// Granted and not run: the grant was cut short. The next that is told to be ready is this, before it is anything that has come.
    cut: VecDeque<Batch>,
    /// Core time of grants that ran nothing: what runs next has it.
    time: u64,
}

/// The recorded core, while its past is read.
#[derive(Debug, Default)]
struct Reading {
    lines: BTreeMap<QueueId, Line>,
    /// The grant that runs: when it was decided, and what it has.
    running: Option<(Grant, u64, VecDeque<Batch>)>,
}

impl Past {
    fn of(events: &[Event]) -> Result<Past, ReplayError> {
        let mut past = Past::default();
        let mut reading = Reading::default();
        let (mut grants, mut clock) = (Grants::default(), None::<u64>);
        for (number, event) in (0_u64..).zip(events) {
            grants.see(number, event)?;
            let now = match *event {
                Event::Ready { now, .. }
                | Event::Decide { now, .. }
                | Event::Again { now, .. }
                | Event::Charge { now, .. }
                | Event::Complete { now, .. }
                | Event::Cancel { now, .. } => Some(now.0),
                Event::Configure { .. } | Event::Place { .. } | Event::Stopped => None,
            };
            // A core's calls may tell an earlier time than the one before; time itself does not go back.
            clock = now.map_or(clock, |now| Some(clock.map_or(now, |clock: u64| clock.max(now))));
            if let (Some(clock), 0) = (clock, past.first) {
                past.first = clock;
            }
            past.see(clock.unwrap_or(0), event, &mut reading);
        }
        past.last = clock.unwrap_or(0);
        past.has_run(&mut reading, None);
        for (queue, line) in reading.lines {
            let left = count(&line.ready) + count(&line.cut);
            past.fared.entry(queue.tenant.0).or_default().left += left;
        }
        Ok(past)
    }

    /// The grant that ran has come to its end, after so many units; none: nobody said so, and it had all.
    fn has_run(&mut self, reading: &mut Reading, units: Option<u32>) {
        let Some((grant, decided, mut had)) = reading.running.take() else { return };
        let ran = take(&mut had, units.unwrap_or(grant.units));
        let fared = self.fared.entry(grant.queue.tenant.0).or_default();
        for (since, units) in ran {
            // Units of one arrival waited equally; a hostile file may say that there are very many.
            (0..units.min(4_096)).for_each(|_| fared.waited(decided.saturating_sub(since)));
        }
        if let Some(line) = reading.lines.get_mut(&grant.queue) {
            line.cut.append(&mut had);
        }
    }

    fn see(&mut self, clock: u64, event: &Event, reading: &mut Reading) {
        match *event {
            Event::Configure { .. } | Event::Stopped | Event::Again { .. } => {}
            Event::Place { queue, .. } | Event::Cancel { queue, .. } => {
                reading.lines.remove(&queue);
            }
            Event::Ready { queue, work, now } if work.units > 0 => {
                self.fared.entry(queue.tenant.0).or_default();
                let line = reading.lines.entry(queue).or_default();
                let mut back = take(&mut line.cut, work.units);
                // What it is short of was given up.
                line.cut.clear();
                let came = work.units - count(&back) as u32;
                back.append(&mut line.ready);
                line.ready = back;
                if came == 0 {
                    return;
                }
                line.ready.push_back((clock, came));
                let bytes = (u128::from(work.bytes) * u128::from(came) / u128::from(work.units)) as u64;
                self.told.push((clock, Event::Ready { queue, work: Work { units: came, bytes }, now }));
                return;
            }
            Event::Ready { .. } => {}
            Event::Decide { decision: Decision::Run(grant), .. } => {
                self.has_run(reading, None);
                let ready = reading.lines.get_mut(&grant.queue).map(|line| take(&mut line.ready, grant.units));
                reading.running = Some((grant, clock, ready.unwrap_or_default()));
                self.fared.entry(grant.queue.tenant.0).or_default();
                return;
            }
            Event::Decide { .. } => return,
            Event::Charge { grant, cost, .. } => {
                self.has_run(reading, Some(cost.units));
                let fared = self.fared.entry(grant.queue.tenant.0).or_default();
                fared.time = fared.time.saturating_add(cost.time.0);
                let line = reading.lines.entry(grant.queue).or_default();
                let time = cost.time.0.saturating_add(std::mem::take(&mut line.time));
                if cost.units == 0 {
                    line.time = time;
                    return;
                }
                let units = u64::from(cost.units.min(4_096));
                let each = UnitCost { time: time / units, bytes: cost.bytes / units, is_pending: false };
                let of_queue = self.costs.entry(grant.queue).or_default();
                of_queue.extend((0..units).map(|at| UnitCost { is_pending: at < u64::from(cost.pending), ..each }));
                return;
            }
            Event::Complete { grant, cost, .. } => {
                let units = cost.units.clamp(1, 4_096) as usize;
                self.back_ends.entry(grant.queue).or_default().extend(std::iter::repeat_n(cost.time.0, units));
                return;
            }
        }
        self.told.push((clock, *event));
    }
}

struct Waiting {
    since: u64,
    cost: UnitCost,
}

enum Happens {
    Told(usize),
    Ended { queue: QueueId, since: u64, bytes: u64 },
}

/// Decisions after which it ends in any case: a damaged file may have its work years apart, and a policy that asks again and again.
const STEPS: u64 = 200_000_000;

/// One core, the recorded work, and a policy.
fn decide_anew(past: &Past, policy: &Policy) -> Fared {
    let mut policy = policy.build();
    let mut fared: Fared = past.fared.keys().map(|tenant| (*tenant, TenantWaits::default())).collect();
    let mut agenda = Agenda::default();
    for (at, (time, _)) in past.told.iter().enumerate() {
        agenda.enter(*time, Happens::Told(at));
    }
    let mut costs: BTreeMap<QueueId, VecDeque<UnitCost>> =
        past.costs.iter().map(|(queue, costs)| (*queue, costs.iter().copied().collect())).collect();
    let mut back_ends: BTreeMap<QueueId, VecDeque<u64>> =
        past.back_ends.iter().map(|(queue, times)| (*queue, times.iter().copied().collect())).collect();
    let mut waiting: BTreeMap<QueueId, VecDeque<Waiting>> = BTreeMap::new();
    // What was not told yet, and units that back ends have.
    let (mut next_told, mut pending) = (0, 0_u64);
    let mut now = past.first;
    for _ in 0..STEPS {
        while let Some((at, event)) = agenda.next(now) {
            match event {
                Happens::Told(index) => {
                    next_told = index + 1;
                    let event = &past.told[index].1;
                    tell_at(&mut policy, Nanos(now.max(at)), event);
                    match *event {
                        Event::Ready { queue, work, .. } => {
                            let known = costs.entry(queue).or_default();
                            let mut each = |_: u32| {
                                let cost = known.pop_front().unwrap_or_else(|| usual(past, queue));
                                Waiting { since: at, cost }
                            };
                            waiting.entry(queue).or_default().extend((0..work.units.min(1 << 16)).map(&mut each));
                        }
                        Event::Cancel { queue, .. } | Event::Place { queue, .. } => {
                            waiting.remove(&queue);
                        }
                        _ => {}
                    }
                }
                Happens::Ended { queue, since, bytes } => {
                    let cost = Cost { units: 1, time: Nanos(at.saturating_sub(since)), bytes, pending: 0 };
                    pending -= 1;
                    policy.complete(Nanos(now), Grant { queue, units: 1 }, cost);
                }
            }
        }
        if now >= past.last {
            break;
        }
        let next = match policy.decide(Nanos(now)) {
            Decision::Run(grant) => {
                let start = now;
                let units = waiting.entry(grant.queue).or_default();
                let count = (grant.units as usize).min(units.len());
                let costs = units.range(..count).map(|unit| unit.cost.time);
                let come = Come { told: &past.told[next_told..], pending: pending > 0 };
                let ran = come.units_that_run(&policy, grant, start, costs);
                let tenant = fared.entry(grant.queue.tenant.0).or_default();
                // Of more than there is, the policy believes that it ran.
                let told = if ran < count { ran as u32 } else { grant.units };
                let mut cost = Cost { units: told, ..Cost::default() };
                for unit in units.drain(..ran) {
                    tenant.waited(start.saturating_sub(unit.since));
                    cost.time = cost.time + Nanos(unit.cost.time);
                    cost.bytes = cost.bytes.saturating_add(unit.cost.bytes);
                    if unit.cost.is_pending {
                        cost.pending += 1;
                        pending += 1;
                        let takes = back_ends.entry(grant.queue).or_default().pop_front().unwrap_or(0);
                        let at = start.saturating_add(takes.max(unit.cost.time));
                        let (queue, bytes) = (grant.queue, unit.cost.bytes);
                        agenda.enter(at, Happens::Ended { queue, since: start, bytes });
                    }
                }
                tenant.time = tenant.time.saturating_add(cost.time.0);
                now = now.saturating_add(cost.time.0.max(1));
                policy.charge(Nanos(now), grant, cost);
                if ran < count {
                    let bytes = units.range(..count - ran).map(|unit| unit.cost.bytes).fold(0, u64::saturating_add);
                    policy.ready(Nanos(now), grant.queue, Work { units: (count - ran) as u32, bytes });
                }
                continue;
            }
            Decision::IdleUntil(at) => at.0.max(now + 1),
            Decision::Idle => past.last,
        };
        now = agenda.first().map_or(next, |first| first.min(next)).max(now + 1).min(past.last);
    }
    for (queue, left) in waiting {
        fared.entry(queue.tenant.0).or_default().left += left.len() as u64;
    }
    fared
}

/// What comes while a grant runs.
struct Come<'a> {
    /// Not told yet, by time.
    told: &'a [(u64, Event)],
    /// A back end has something, which the core looks for in each of its rounds.
    pending: bool,
}

impl Come<'_> {
    /// How many units of a grant run, of those that take these times: up to the first after which the core ends it for somebody who has
    /// come, as the engine does.
    fn units_that_run(
        &self,
        policy: &impl TenantScheduler,
        grant: Grant,
        start: u64,
        takes: impl ExactSizeIterator<Item = u64>,
    ) -> usize {
        let (count, looks) = (takes.len(), policy.tick());
        let is_urgent = policy.can_preempt();
        if looks.is_none() && !is_urgent {
            return count;
        }
        let mut next = looks.map_or(u64::MAX, |every| start.saturating_add(every.0));
        let (mut now, mut seen) = (start, 0);
        let (mut is_awaited, mut is_called) = (self.pending, false);
        for (ran, takes) in (1..).zip(takes) {
            now = now.saturating_add(takes);
            while let Some((at, event)) = self.told.get(seen)
                && *at <= now
            {
                seen += 1;
                if let Event::Ready { queue, .. } = event
                    && queue.tenant != grant.queue.tenant
                {
                    is_awaited |= policy.tick_preempt(queue.tenant);
                    is_called |= policy.wakeup_preempt(queue.tenant);
                }
            }
            if is_called || is_awaited && now >= next {
                return ran;
            }
            if now >= next {
                next = now.saturating_add(looks.map_or(u64::MAX, |every| every.0));
            }
        }
        count
    }
}

/// What a unit of a queue costs that was never run: the mean of those that were.
fn usual(past: &Past, queue: QueueId) -> UnitCost {
    let known = past.costs.get(&queue).map_or(&[][..], Vec::as_slice);
    let count = known.len().max(1) as u64;
    let sum = |of: fn(&UnitCost) -> u64| known.iter().map(of).fold(0, u64::saturating_add) / count;
    let time = if known.is_empty() { 1_000 } else { sum(|cost| cost.time) };
    UnitCost { time, bytes: sum(|cost| cost.bytes), is_pending: known.iter().any(|cost| cost.is_pending) }
}

/// Makes the call of an event, at another time.
fn tell_at(policy: &mut impl TenantScheduler, now: Nanos, event: &Event) {
    match *event {
        // What the model holds at most of an arrival.
        Event::Ready { queue, work, .. } => policy.ready(now, queue, Work { units: work.units.min(1 << 16), ..work }),
        Event::Cancel { queue, .. } => policy.cancel(now, queue),
        ref other => tell(policy, other),
    }
}
