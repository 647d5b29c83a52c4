//! The same work, decided on by another policy.

use std::collections::{BTreeMap, VecDeque};

use softdpu_sched::record::{Decoder, Event, Header};
use softdpu_sched::{
    Cost, Decision, Dispatch, Dispatcher, Grant, Nanos, Policy, PreemptReason, QueueId, TenantScheduler, Work,
    YieldedSlice,
};

use super::{Ending, Grants, ReplayError, events, policy_of};
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
    /// The recording's header.
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
/// Work comes when it came, and each unit of a queue, in order, costs what it cost then, at its back end too. It came
/// when the core took it in: how long that had let it wait in its ring is in those times. What cannot be known is left
/// as it was: a client that waits for its requests would have sent the next ones earlier, or later.
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
    /// The calls of the policy with their times, without those that depend on decisions.
    calls: Vec<(u64, Event)>,
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

/// The requests of a queue of the recorded core.
#[derive(Debug, Default)]
struct Backlog {
    ready: VecDeque<Batch>,
    /// Granted and not run: the grant was preempted. What becomes ready next is this, before it is anything that has
    /// come.
    remainder: VecDeque<Batch>,
    /// Core time of grants that ran nothing: what runs next has it.
    time: u64,
}

/// The recorded core, while its past is read.
#[derive(Debug, Default)]
struct Reading {
    backlogs: BTreeMap<QueueId, Backlog>,
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
                | Event::Cancel { now, .. }
                | Event::Yielded(YieldedSlice { now, .. }) => Some(now.0),
                Event::Configure { .. } | Event::Place { .. } | Event::Yielding(_) | Event::Stopped => None,
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
        for (queue, backlog) in reading.backlogs {
            let left = count(&backlog.ready) + count(&backlog.remainder);
            past.fared.entry(queue.tenant.0).or_default().left += left;
        }
        Ok(past)
    }

    /// The grant that ran has come to its end, after so many units; none: it was not charged, and had all.
    fn has_run(&mut self, reading: &mut Reading, units: Option<u32>) {
        let Some((grant, decided, mut had)) = reading.running.take() else { return };
        let ran = take(&mut had, units.unwrap_or(grant.units));
        let fared = self.fared.entry(grant.queue.tenant.0).or_default();
        for (since, units) in ran {
            // Units of one arrival waited equally; a hostile file may say that there are very many.
            (0..units.min(4_096)).for_each(|_| fared.waited(decided.saturating_sub(since)));
        }
        if let Some(backlog) = reading.backlogs.get_mut(&grant.queue) {
            backlog.remainder.append(&mut had);
        }
    }

    fn see(&mut self, clock: u64, event: &Event, reading: &mut Reading) {
        match *event {
            Event::Configure { .. } | Event::Stopped | Event::Again { .. } => {}
            // A core that yields polls as soon as there is work: it changes nothing here.
            Event::Yielding(_) | Event::Yielded(_) => return,
            Event::Place { queue, .. } | Event::Cancel { queue, .. } => {
                reading.backlogs.remove(&queue);
            }
            Event::Ready { queue, work, now } if work.units > 0 => {
                self.fared.entry(queue.tenant.0).or_default();
                let backlog = reading.backlogs.entry(queue).or_default();
                let mut back = take(&mut backlog.remainder, work.units);
                // What it is short of was given up.
                backlog.remainder.clear();
                let came = work.units - count(&back) as u32;
                back.append(&mut backlog.ready);
                backlog.ready = back;
                if came == 0 {
                    return;
                }
                backlog.ready.push_back((clock, came));
                let bytes = (u128::from(work.bytes) * u128::from(came) / u128::from(work.units)) as u64;
                self.calls.push((clock, Event::Ready { queue, work: Work { units: came, bytes }, now }));
                return;
            }
            Event::Ready { .. } => {}
            Event::Decide { decision: Decision::Run(grant), .. } => {
                self.has_run(reading, None);
                let ready = reading.backlogs.get_mut(&grant.queue).map(|backlog| take(&mut backlog.ready, grant.units));
                reading.running = Some((grant, clock, ready.unwrap_or_default()));
                self.fared.entry(grant.queue.tenant.0).or_default();
                return;
            }
            Event::Decide { .. } => return,
            Event::Charge { grant, cost, .. } => {
                self.has_run(reading, Some(cost.units));
                let fared = self.fared.entry(grant.queue.tenant.0).or_default();
                fared.time = fared.time.saturating_add(cost.time.0);
                let backlog = reading.backlogs.entry(grant.queue).or_default();
                let time = cost.time.0.saturating_add(std::mem::take(&mut backlog.time));
                if cost.units == 0 {
                    backlog.time = time;
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
        self.calls.push((clock, *event));
    }
}

struct Waiting {
    since: u64,
    cost: UnitCost,
}

enum Happens {
    Call(usize),
    Ended { queue: QueueId, since: u64, bytes: u64 },
}

/// Decisions after which it ends in any case: a damaged file may have its work years apart, and a policy that asks
/// again and again.
const STEPS: u64 = 200_000_000;

/// Lets a policy decide anew on a core that has the recorded work.
fn decide_anew(past: &Past, policy: &Policy) -> Fared {
    let mut core = Core::new(past, policy.build());
    core.run();
    let Core { waiting, mut fared, .. } = core;
    for (queue, left) in waiting {
        fared.entry(queue.tenant.0).or_default().left += left.len() as u64;
    }
    fared
}

/// A core that has the recorded work, and decides anew. It polls after each grant: what the recorded core's turns held
/// up is in the times at which work came.
struct Core<'a, S> {
    past: &'a Past,
    dispatcher: Dispatcher<S>,
    fared: Fared,
    agenda: Agenda<Happens>,
    /// What the units of each queue cost that are still to come.
    costs: BTreeMap<QueueId, VecDeque<UnitCost>>,
    /// What back ends take for units that have not gone there yet.
    back_ends: BTreeMap<QueueId, VecDeque<u64>>,
    waiting: BTreeMap<QueueId, VecDeque<Waiting>>,
    /// Units of all queues that wait.
    backlog: u64,
    /// The first recorded event that has not happened yet.
    next_call: usize,
    /// Units that back ends have.
    pending: u64,
    now: u64,
}

impl<'a, S: TenantScheduler> Core<'a, S> {
    fn new(past: &'a Past, policy: S) -> Core<'a, S> {
        let mut agenda = Agenda::default();
        for (at, (time, _)) in past.calls.iter().enumerate() {
            agenda.enter(*time, Happens::Call(at));
        }
        Core {
            past,
            dispatcher: Dispatcher::new(policy),
            fared: past.fared.keys().map(|tenant| (*tenant, TenantWaits::default())).collect(),
            agenda,
            costs: past.costs.iter().map(|(queue, costs)| (*queue, costs.iter().copied().collect())).collect(),
            back_ends: past.back_ends.iter().map(|(queue, times)| (*queue, times.iter().copied().collect())).collect(),
            waiting: BTreeMap::new(),
            backlog: 0,
            next_call: 0,
            pending: 0,
            now: past.first,
        }
    }

    /// Up to the last recorded event.
    fn run(&mut self) {
        for _ in 0..STEPS {
            self.poll();
            if self.now >= self.past.last {
                break;
            }
            let is_backlogged = self.backlog > 0;
            let now = Nanos(self.now);
            self.dispatcher.begin_turn(now, Nanos(0));
            // Without work the policy is not asked.
            let next = if is_backlogged { self.dispatcher.next(now, is_backlogged) } else { Dispatch::Idle(None) };
            let next = match next {
                Dispatch::Run(grant) => {
                    self.run_grant(grant);
                    continue;
                }
                Dispatch::Idle(Some(at)) => at.0.max(self.now + 1),
                _ => self.past.last,
            };
            let next = self.agenda.first().map_or(next, |first| first.min(next));
            self.now = next.max(self.now + 1).min(self.past.last);
        }
    }

    /// Tells the policy what has come by now, and what back ends have ended.
    fn poll(&mut self) {
        while let Some((at, event)) = self.agenda.next(self.now) {
            match event {
                Happens::Call(index) => {
                    self.next_call = index + 1;
                    self.call(at, &self.past.calls[index].1);
                }
                Happens::Ended { queue, since, bytes } => {
                    let cost = Cost { units: 1, time: Nanos(at.saturating_sub(since)), bytes, pending: 0 };
                    self.pending -= 1;
                    self.dispatcher.complete(Nanos(self.now), Grant { queue, units: 1 }, cost);
                }
            }
        }
    }

    /// Makes a recorded call, which happened at `at`.
    fn call(&mut self, at: u64, event: &Event) {
        let Core { past, dispatcher, costs, waiting, backlog, now, .. } = self;
        let mut forget = |queue| *backlog -= waiting.remove(&queue).map_or(0, |units| units.len() as u64);
        let now = Nanos((*now).max(at));
        match *event {
            Event::Configure { tenant, share } => dispatcher.configure(tenant, share),
            Event::Place { queue, placement } => {
                dispatcher.place(queue, placement);
                forget(queue);
            }
            Event::Ready { queue, work, .. } => {
                // What the model holds at most of an arrival.
                let work = Work { units: work.units.min(1 << 16), ..work };
                dispatcher.ready(now, queue, work);
                let known = costs.entry(queue).or_default();
                let mut each = |_: u32| {
                    let cost = known.pop_front().unwrap_or_else(|| usual(past, queue));
                    Waiting { since: at, cost }
                };
                waiting.entry(queue).or_default().extend((0..work.units).map(&mut each));
                *backlog += u64::from(work.units);
            }
            Event::Cancel { queue, .. } => {
                dispatcher.cancel(now, queue);
                forget(queue);
            }
            // These follow from decisions.
            Event::Decide { .. }
            | Event::Again { .. }
            | Event::Charge { .. }
            | Event::Complete { .. }
            | Event::Yielding(_)
            | Event::Yielded(_)
            | Event::Stopped => {}
        }
    }

    fn run_grant(&mut self, grant: Grant) {
        let Core { past, dispatcher, fared, agenda, back_ends, waiting, backlog, next_call, pending, now, .. } = self;
        let start = *now;
        let units = waiting.entry(grant.queue).or_default();
        let count = (grant.units as usize).min(units.len());
        let times = units.range(..count).map(|unit| unit.cost.time);
        let arriving = Arriving { calls: &past.calls[*next_call..], is_pending: *pending > 0 };
        let preempted = arriving.preempt(dispatcher, start, times);
        let ran = preempted.map_or(count, |(ran, _)| ran);
        *backlog -= ran as u64;
        let tenant = fared.entry(grant.queue.tenant.0).or_default();
        // Of more than there is, the policy believes that it ran.
        let charged = if preempted.is_some() { ran as u32 } else { grant.units };
        let mut cost = Cost { units: charged, ..Cost::default() };
        for unit in units.drain(..ran) {
            tenant.waited(start.saturating_sub(unit.since));
            cost.time = cost.time + Nanos(unit.cost.time);
            cost.bytes = cost.bytes.saturating_add(unit.cost.bytes);
            if unit.cost.is_pending {
                cost.pending += 1;
                *pending += 1;
                let takes = back_ends.entry(grant.queue).or_default().pop_front().unwrap_or(0);
                let at = start.saturating_add(takes.max(unit.cost.time));
                let (queue, bytes) = (grant.queue, unit.cost.bytes);
                agenda.enter(at, Happens::Ended { queue, since: start, bytes });
            }
        }
        tenant.time = tenant.time.saturating_add(cost.time.0);
        *now = now.saturating_add(cost.time.0.max(1));
        if let Some((_, reason)) = preempted {
            dispatcher.preempt(reason);
        }
        dispatcher.charge(Nanos(*now), cost, |_| {
            let left = units.range(..count - ran).map(|unit| unit.cost.bytes);
            Work { units: (count - ran) as u32, bytes: left.fold(0, u64::saturating_add) }
        });
    }
}

/// What comes while a grant runs.
struct Arriving<'a> {
    /// Recorded calls that have not happened yet, by time.
    calls: &'a [(u64, Event)],
    /// A back end has something, which the core polls for once a round.
    is_pending: bool,
}

impl Arriving<'_> {
    /// After how many of a grant's units, which take these times, it is preempted and why, if it is before its last.
    fn preempt<S: TenantScheduler>(
        &self,
        dispatcher: &Dispatcher<S>,
        start: u64,
        times: impl ExactSizeIterator<Item = u64>,
    ) -> Option<(usize, PreemptReason)> {
        let (count, mut tick) = (times.len(), dispatcher.tick(Nanos(start)));
        if !tick.is_on() && !dispatcher.policy().can_preempt() {
            return None;
        }
        let (mut now, mut seen) = (start, 0);
        let (mut at_tick, mut at_once) = (self.is_pending, false);
        for (ran, takes) in (1..).zip(times).take(count.saturating_sub(1)) {
            now = now.saturating_add(takes);
            while let Some((at, event)) = self.calls.get(seen)
                && *at <= now
            {
                seen += 1;
                if let Event::Ready { queue, .. } = event {
                    at_tick |= dispatcher.tick_preempts(queue.tenant);
                    at_once |= dispatcher.is_urgent(queue.tenant) && dispatcher.wakeup_preempts(queue.tenant);
                }
            }
            let is_due = tick.is_due(Nanos(now));
            if at_once {
                return Some((ran, PreemptReason::Wakeup));
            }
            if is_due && at_tick {
                return Some((ran, PreemptReason::Tick));
            }
            if is_due {
                tick.restart(Nanos(now), Nanos(now));
            }
        }
        None
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
