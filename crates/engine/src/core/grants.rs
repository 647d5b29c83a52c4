//! What a core runs because its scheduler granted it, what that cost, and when a grant ends early.

use softdpu_sched::{Cost, Decision, Grant, Nanos, TenantId, TenantScheduler, Work};
use softdpu_sys::clock;

use super::{Core, Intake, LONGEST_TURN_NS, WORK_PER_LOOK};
use crate::queue::{Role, RunningQueue};

/// What a unit is charged where nothing is to depend on time, nanoseconds.
const NOMINAL: u64 = 100;

/// How long a grant was, of what was granted. What a shorter one did not come to is ready again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Cut {
    #[default]
    Whole,
    /// It took long.
    Late,
    /// One of the urgent queues has something that goes before the rest.
    Called,
    /// Any queue has, or else the round has to go on, and it was time to look.
    Awaited,
}

/// While a grant runs: when it is to be looked whether somebody has come who goes before the rest of it, if ever.
pub(super) struct Lookout {
    /// Time between two looks, nanoseconds; 0: nobody looks.
    pub(super) every: u64,
    pub(super) next: u64,
}

impl Lookout {
    pub(super) fn is_needed(&self) -> bool {
        self.every > 0
    }
}

impl<S: TenantScheduler> Core<S> {
    /// Runs what the scheduler grants until nothing may run, or until it is time to look for new work: what a tenant has just
    /// brought is not known to the scheduler before. `round`: when the round began. Whether there was anything to run.
    pub(super) fn run_grants(&mut self, round: u64, intake: Intake) -> bool {
        let started = intake.ended.unwrap_or_else(clock::now);
        // What was taken in is charged to whose it is. What is left is for looking at rings where nothing was.
        let looked = started.saturating_sub(round).saturating_sub(intake.charged);
        let turn = self.scheduler.turn(Nanos(started)).0.max((looked * WORK_PER_LOOK).min(LONGEST_TURN_NS));
        let until = started.saturating_add(turn);
        let (mut now, mut any) = (started, false);
        loop {
            match self.scheduler.decide(Nanos(now)) {
                Decision::Run(grant) => {
                    now = self.run_grant(grant, now);
                    self.accounting.counters.grants.add(1);
                    any = true;
                    match std::mem::take(&mut self.cut) {
                        Cut::Called => {
                            let mut at = 0;
                            while let Some(&number) = self.urgent.get(at) {
                                self.take_in(number, Nanos(now), &mut None);
                                at += 1;
                            }
                            now = clock::now();
                            continue;
                        }
                        Cut::Awaited => {
                            self.resume = 0;
                            return true;
                        }
                        Cut::Whole | Cut::Late => {}
                    }
                    if self.channels.total() == 0 {
                        self.resume = u64::MAX;
                        return true;
                    }
                    if now >= until && self.turns_are_timed {
                        self.resume = 0;
                        return true;
                    }
                }
                Decision::IdleUntil(at) => {
                    self.resume = at.0;
                    // It may only want to be asked again.
                    return any || at.0 <= now;
                }
                Decision::Idle => {
                    self.resume = u64::MAX;
                    return any;
                }
            }
        }
    }

    /// Runs what the scheduler granted at `started` and tells it the cost. The time now.
    fn run_grant(&mut self, grant: Grant, started: u64) -> u64 {
        let number = grant.queue.index;
        let Some(queue) = self.queues.get_mut(number) else { return started };
        self.channels.look(grant.queue.tenant, Nanos(started));
        if !matches!(queue.spec.role, Role::Block { .. }) {
            let (units, bytes) = self.transmit(number, grant.units as usize);
            self.complete_touched();
            let ended = self.charge(grant, started, Cost { units: units as u32, bytes, ..Cost::default() });
            self.give_rest_back(grant, units as u32, ended);
            if self.turns_are_timed
                && let Some(queue) = self.queues.get_mut(number)
                && let Role::Transmit(transmit) = &mut queue.spec.role
            {
                transmit.ran(units, Nanos(ended.saturating_sub(started)));
            }
            return ended;
        }
        let did = self.run_requests(number, grant, started);
        // Whoever waits for it does not wait for other tenants' grants.
        self.complete_touched();
        if did.pending > 0 {
            self.accounting.submitted(number, did.pending);
        }
        let ended = self.charge(grant, started, did);
        self.give_rest_back(grant, did.units, ended);
        ended
    }

    /// What a grant that was cut short did not come to is ready again.
    #[inline]
    fn give_rest_back(&mut self, grant: Grant, ran: u32, now: u64) {
        if self.cut == Cut::Whole || ran >= grant.units {
            return;
        }
        let Some(queue) = self.queues.get(grant.queue.index) else { return };
        let rest = &queue.waiting[..queue.waiting.len().min((grant.units - ran) as usize)];
        let bytes = rest.iter().map(|chain| chain.buffer.len()).sum();
        self.scheduler.ready(Nanos(now), grant.queue, Work { units: rest.len() as u32, bytes });
    }

    /// Tells the scheduler and the tenant's account what running a grant since `started` cost: what it `did`, and the time,
    /// and returns what time it is.
    fn charge(&mut self, grant: Grant, started: u64, did: Cost) -> u64 {
        let ended = clock::now();
        let mut took = match self.turns_are_timed {
            true => self.accounting.cpu_time(started, ended),
            false => NOMINAL * u64::from(did.units),
        };
        let number = grant.queue.index;
        if self.turns_are_timed
            && let Some(queue) = self.queues.get_mut(number)
        {
            took += queue.take_instalment(did.units);
        }
        let cost = Cost { time: Nanos(took), ..did };
        self.scheduler.charge(Nanos(ended), grant, cost);
        if let Some(tenant) = self.accounting.tenant(grant.queue.tenant) {
            tenant.served.add(u64::from(cost.units));
            tenant.bytes.add(cost.bytes);
            tenant.core_ns.add(cost.time.0);
        }
        if let Some(queue) = self.queues.get(number) {
            queue.spec.counters.core_ns.add(cost.time.0);
        }
        ended
    }

    /// Whether a grant of `running` is to end: somebody who would go before it has come. That is noted in `cut`.
    #[inline]
    pub(super) fn is_called(&mut self, running: TenantId) -> bool {
        let Core { urgent, queues, scheduler, .. } = self;
        let is_called = urgent.iter().any(|&number| {
            queues.get(number).is_some_and(|queue| {
                queue.spec.tenant != running
                    && queue.is_active()
                    && queue.spec.ring.has_work()
                    && scheduler.wakeup_preempt(queue.spec.tenant)
                    && !queue.is_backpressured()
                    && !queue.is_rate_limited(Nanos(clock::now()))
            })
        });
        if is_called {
            self.cut = Cut::Called;
        }
        is_called
    }

    /// For a grant that began at `started`.
    #[inline]
    pub(super) fn lookout(&self, started: u64) -> Lookout {
        let every = if self.turns_are_timed { self.scheduler.tick().map_or(0, |every| every.0) } else { 0 };
        Lookout { every, next: started.saturating_add(every) }
    }

    /// Whether it is time to look at `now`, and a grant of the queue `number` is to end: for somebody who has come, or for what comes with
    /// each round alone, which are others' interrupts, back ends, sockets and other cores. That is noted in `cut`.
    pub(super) fn is_awaited(&mut self, number: u32, running: TenantId, lookout: &mut Lookout, now: u64) -> bool {
        if !lookout.is_needed() || now < lookout.next {
            return false;
        }
        let Core { queues, scheduler, .. } = self;
        let is_round_due = self.disk.outstanding() > 0
            || !self.net.sockets.is_empty()
            || self.inbox.posted()
            || self.interrupts.iter().any(|other| *other != number);
        let is_awaited = is_round_due
            || queues.iter().any(|queue| {
                queue.spec.tenant != running
                    && scheduler.tick_preempt(queue.spec.tenant)
                    && queue.is_polled()
                    && queue.spec.ring.has_work()
                    && !queue.is_backpressured()
                    && !queue.is_rate_limited(Nanos(now))
            });
        if is_awaited {
            self.cut = Cut::Awaited;
        } else {
            // A core of a thousand idle rings does not spend its time on them.
            let ended = clock::now();
            lookout.next = ended.saturating_add(lookout.every.max(ended.saturating_sub(now) * WORK_PER_LOOK));
        }
        is_awaited
    }

    /// Another share of a tenant, or another queue: which are urgent is found anew.
    pub(super) fn find_urgent(&mut self) {
        let Core { urgent, queues, is_urgent, scheduler, .. } = self;
        urgent.clear();
        if !scheduler.can_preempt() {
            return;
        }
        let is_urgent = |queue: &&RunningQueue| {
            let is_urgent = is_urgent.get(usize::from(queue.spec.tenant.0)).is_some_and(|is| *is);
            is_urgent && !matches!(queue.spec.role, Role::Receive(_))
        };
        urgent.extend(queues.iter().filter(is_urgent).map(|queue| queue.key.number));
    }
}
