//! Turns of grants: running them, charging them, and preempting them.

use softdpu_sched::{Cost, Dispatch, Grant, Nanos, PreemptReason, PreemptionTick, TenantScheduler, Work};
use softdpu_sys::clock;

use super::{Core, Intake};
use crate::queue::{Role, RunningQueue};

/// What a unit is charged where nothing is to depend on time, nanoseconds.
const NOMINAL: u64 = 100;

impl<S: TenantScheduler> Core<S> {
    /// Runs grants for a turn, as the [dispatcher](softdpu_sched::Dispatcher) says. `round`: when the round began.
    /// Returns whether there was anything to run.
    pub(super) fn run_grants(&mut self, round: u64, intake: Intake) -> bool {
        let started = intake.ended.unwrap_or_else(clock::now);
        // Polling queues that brought work is charged to them.
        let polled = started.saturating_sub(round).saturating_sub(intake.charged);
        self.dispatcher.begin_turn(Nanos(started), Nanos(polled));
        let (mut now, mut any) = (started, false);
        loop {
            match self.dispatcher.next(Nanos(now), self.channels.total() > 0) {
                Dispatch::Run(grant) => {
                    now = self.run_grant(grant, now);
                    self.accounting.counters.grants.add(1);
                    any = true;
                }
                Dispatch::PollUrgent => {
                    let mut at = 0;
                    while let Some(&number) = self.urgent.get(at) {
                        self.take_in(number, Nanos(now), &mut None);
                        at += 1;
                    }
                    now = clock::now();
                }
                Dispatch::EndTurn => return true,
                // The policy may only want to be asked again.
                Dispatch::Idle(until) => return any || until.is_some_and(|until| until.0 <= now),
            }
        }
    }

    /// Runs a grant that was given at `started`, and charges it. Returns the time now.
    fn run_grant(&mut self, grant: Grant, started: u64) -> u64 {
        let number = grant.queue.index;
        let Some(queue) = self.queues.get_mut(number) else { return started };
        self.channels.look(grant.queue.tenant, Nanos(started));
        if !matches!(queue.spec.role, Role::Block { .. }) {
            let (units, bytes) = self.transmit(number, grant.units as usize);
            self.complete_touched();
            let ended = self.charge(grant, started, Cost { units: units as u32, bytes, ..Cost::default() });
            if self.dispatcher.is_timed()
                && let Some(queue) = self.queues.get_mut(number)
                && let Role::Transmit(transmit) = &mut queue.spec.role
            {
                transmit.ran(units, Nanos(ended.saturating_sub(started)));
            }
            return ended;
        }
        let did = self.run_requests(number, grant, started);
        // Its driver does not wait for other tenants' grants.
        self.complete_touched();
        if did.pending > 0 {
            self.accounting.submitted(number, did.pending);
        }
        self.charge(grant, started, did)
    }

    /// Charges a grant that began at `started`: what it `did`, and the core's time. Returns the time now.
    fn charge(&mut self, grant: Grant, started: u64, did: Cost) -> u64 {
        let ended = clock::now();
        let mut took = match self.dispatcher.is_timed() {
            true => self.accounting.cpu_time(started, ended),
            false => NOMINAL * u64::from(did.units),
        };
        let number = grant.queue.index;
        if self.dispatcher.is_timed()
            && let Some(queue) = self.queues.get_mut(number)
        {
            took += queue.take_instalment(did.units);
        }
        let cost = Cost { time: Nanos(took), ..did };
        let Core { dispatcher, queues, .. } = self;
        dispatcher.charge(Nanos(ended), cost, |left| {
            let waiting = queues.get(number).map_or(&[][..], |queue| &queue.waiting[..]);
            let rest = &waiting[..waiting.len().min(left as usize)];
            Work { units: rest.len() as u32, bytes: rest.iter().map(|chain| chain.buffer.len()).sum() }
        });
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

    /// Preempts the running grant if work has arrived for an urgent queue that may. Returns whether it did.
    #[inline]
    pub(super) fn preempt_at_wakeup(&mut self) -> bool {
        let Core { urgent, queues, dispatcher, .. } = self;
        let preempts = urgent.iter().any(|&number| {
            queues.get(number).is_some_and(|queue| {
                queue.is_active()
                    && queue.spec.ring.has_work()
                    && dispatcher.wakeup_preempts(queue.spec.tenant)
                    && !queue.is_backpressured()
                    && !queue.is_rate_limited(Nanos(clock::now()))
            })
        });
        if preempts {
            dispatcher.preempt(PreemptReason::Wakeup);
        }
        preempts
    }

    /// If a tick is due at `now`: preempts the running grant, of the queue `number`, if work has arrived that may, or
    /// if anything waits that a core does once a round, which is interrupts of other queues, back ends, sockets and
    /// messages of other cores. Returns whether it did.
    pub(super) fn preempt_at_tick(&mut self, number: u32, tick: &mut PreemptionTick, now: u64) -> bool {
        if !tick.is_due(Nanos(now)) {
            return false;
        }
        let Core { queues, dispatcher, .. } = self;
        let is_round_due = self.disk.outstanding() > 0
            || !self.net.sockets.is_empty()
            || self.inbox.posted()
            || self.interrupts.iter().any(|other| *other != number);
        let preempts = is_round_due
            || queues.iter().any(|queue| {
                dispatcher.tick_preempts(queue.spec.tenant)
                    && queue.is_polled()
                    && queue.spec.ring.has_work()
                    && !queue.is_backpressured()
                    && !queue.is_rate_limited(Nanos(now))
            });
        if preempts {
            dispatcher.preempt(PreemptReason::Tick);
        } else {
            tick.restart(Nanos(now), Nanos(clock::now()));
        }
        preempts
    }

    /// Finds the urgent queues: a queue came or went, or a tenant has another share.
    pub(super) fn find_urgent(&mut self) {
        let Core { urgent, queues, dispatcher, .. } = self;
        let is_urgent = |queue: &&RunningQueue| {
            dispatcher.is_urgent(queue.spec.tenant) && !matches!(queue.spec.role, Role::Receive(_))
        };
        urgent.clear();
        urgent.extend(queues.iter().filter(is_urgent).map(|queue| queue.key.number));
    }
}
