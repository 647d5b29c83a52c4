//! Grants: running them, charging them, and preempting them; and the work that is deferred beside them.

use softdpu_ring::Chain;
use softdpu_sched::{
    Cost, Dispatch, Grant, Nanos, Placement, PreemptReason, PreemptionTick, QueueId, TenantId, TenantScheduler, Work,
    WorkKind,
};
use softdpu_storage::Attachment;
use softdpu_sys::clock;

use super::{Core, Intake};
use crate::ids::QueueKey;
use crate::net::IngressBill;
use crate::queue::{BURST, Backpressure, Loan, Role, RunningQueue, Transmit};
use crate::steal::Spent;

/// What a unit is charged where nothing is to depend on time, nanoseconds.
const NOMINAL: u64 = 100;

/// How often in a grant with ticks the clock is read, about, where it is not known how long its requests take: after
/// each request where they are few.
const CLOCK_READINGS: usize = 8;

/// A grant of frames that has taken this long ends with the burst, nanoseconds.
const LONG_NS: u64 = 50_000;

/// The device that a tenant's backlog of frames from wires counts as: none that the engine numbers.
const BACKLOG_DEVICE: u32 = u32::MAX;

/// Frames of a burst where work may arrive that does not wait for a whole one.
const SMALL_BURST: usize = 8;

/// How many frames of a backlog are forwarded at a time: as many as take a few microseconds, which others wait for.
#[derive(Debug, Default)]
pub(super) struct IngressBurst {
    /// What a frame took of late, nanoseconds.
    each: u64,
}

impl IngressBurst {
    /// What a burst is meant to take, nanoseconds: less than most requests take.
    const TIME: u64 = 4_000;

    fn frames(&self) -> usize {
        let frames = IngressBurst::TIME.checked_div(self.each).unwrap_or(BURST as u64);
        (frames as usize).clamp(1, BURST)
    }

    fn ran(&mut self, frames: u32, time: Nanos) {
        let each = time.0 / u64::from(frames.max(1));
        self.each = (3 * self.each + each).div_ceil(4);
    }
}

impl<S: TenantScheduler> Core<S> {
    /// Runs grants for a turn, as the [dispatcher](softdpu_sched::Dispatcher) says. `round`: when the round began.
    /// Returns whether there was anything to run.
    pub(super) fn run_grants(&mut self, round: u64, intake: Intake) -> bool {
        let started = intake.ended.unwrap_or_else(clock::now);
        // Polling queues that brought work is charged to them.
        let polled = started.saturating_sub(round).saturating_sub(intake.charged);
        self.work.dispatcher.begin_turn(Nanos(started), Nanos(polled));
        let (mut now, mut any) = (started, false);
        self.work.forget_granted(started);
        let mut left = self.turn_grants;
        if left == 0 {
            return true;
        }
        loop {
            match self.work.dispatcher.next(Nanos(now), self.work.channels.total() > 0) {
                Dispatch::Run(grant) => {
                    self.work.granted_to(grant.queue.tenant);
                    now = self.run_grant(grant, now);
                    self.accounting.counters.grants.add(1);
                    any = true;
                    left -= 1;
                    if left == 0 {
                        return true;
                    }
                }
                Dispatch::PollUrgent => {
                    let mut place = 0;
                    while let Some(number) = self.work.urgent_at(place) {
                        self.take_in(number, Nanos(now), &mut None);
                        place += 1;
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
        let Some(queue) = self.queues.get_mut(number) else { return self.run_backlog(grant, started) };
        self.work.channels.update(grant.queue.tenant, Nanos(started));
        if !queue.spec.role.is_disk() {
            let (units, bytes) = self.transmit(number, grant.units as usize);
            self.complete_touched();
            let ended = self.charge(grant, started, Cost { units: units as u32, bytes, ..Cost::default() });
            if self.work.dispatcher.is_timed()
                && let Some(queue) = self.queues.get_mut(number)
                && let Role::Transmit(transmit) = &mut queue.spec.role
            {
                transmit.ran(units, Nanos(ended.saturating_sub(started)));
            }
            return ended;
        }
        let is_suspect = queue.suspect > 0;
        let cost = self.run_requests(number, grant, started);
        if is_suspect {
            // Within its grant, so that what the kernel does with its memory is not others' as well.
            self.disk.flush();
        }
        // Its driver does not wait for other tenants' grants.
        self.complete_touched();
        if cost.pending > 0 {
            self.accounting.submitted(number, cost.pending);
        }
        self.charge(grant, started, cost)
    }

    /// Charges a grant that began at `started`: its `cost`, and the core's time. Returns the time now.
    fn charge(&mut self, grant: Grant, started: u64, cost: Cost) -> u64 {
        let ended = clock::now();
        let Core { work, queues, accounting, frames, .. } = self;
        let is_timed = work.dispatcher.is_timed();
        let spent = match is_timed {
            true => accounting.spent(started, ended),
            false => Spent { time: NOMINAL * u64::from(cost.units), has_waited: false },
        };
        let (number, mut took) = (grant.queue.index, spent.time);
        if spent.has_waited && queues.get(number).is_some_and(|queue| queue.spec.role.is_disk()) {
            queues.stalled(number, took);
        }
        if is_timed && let Some(queue) = queues.get_mut(number) {
            took += queue.take_instalment(cost.units);
        }
        let cost = Cost { time: Nanos(took), ..cost };
        work.dispatcher.charge(Nanos(ended), cost, |left| {
            let Some(queue) = queues.get(number) else { return frames.backlog_work(grant.queue.tenant, left as usize) };
            let rest = &queue.waiting[..queue.waiting.len().min(left as usize)];
            Work { units: rest.len() as u32, bytes: queue.spec.role.bytes(rest) }
        });
        if let Some(tenant) = accounting.tenant(grant.queue.tenant) {
            tenant.served.add(u64::from(cost.units));
            tenant.bytes.add(cost.bytes);
            tenant.core_ns.add(cost.time.0);
        }
        if let Some(queue) = queues.get(number) {
            queue.spec.counters.core_ns.add(cost.time.0);
        }
        ended
    }

    /// Runs a grant of frames that a wire has brought, which wait in their tenant's backlog. Returns the time now.
    #[inline(never)]
    fn run_backlog(&mut self, grant: Grant, started: u64) -> u64 {
        let (number, tenant) = (grant.queue.index, grant.queue.tenant);
        if !self.frames.is_backlog(grant.queue) {
            return started;
        }
        self.work.channels.update(tenant, Nanos(started));
        let units = grant.units as usize;
        let most = self.ingress_burst.frames().min(if self.work.has_urgent() { SMALL_BURST } else { BURST });
        let mut tick = self.work.dispatcher.tick(Nanos(started));
        let (mut cost, mut began) = (Cost::default(), started);
        while (cost.units as usize) < units {
            if cost.units > 0 && self.is_burst_last(number, &mut tick, started) {
                break;
            }
            let burst = most.min(units - cost.units as usize);
            let ran = self.frames.forward_backlog(&mut self.queues, tenant, burst);
            // To hand them to the kernel is their tenant's cost, too.
            self.frames.flush_sockets(&self.sleep);
            self.settle_broken();
            if ran.units == 0 {
                break;
            }
            cost.units += ran.units;
            cost.bytes += ran.bytes;
            if self.work.dispatcher.is_timed() {
                let now = clock::now();
                self.ingress_burst.ran(ran.units, Nanos(now.saturating_sub(began)));
                began = now;
            }
        }
        self.work.leave(tenant, cost.units as usize);
        if let Some(tenant) = self.accounting.tenant(tenant) {
            tenant.ingress_frames.add(cost.units.into());
        }
        self.complete_touched();
        self.charge(grant, started, cost)
    }

    /// Whether a grant of frames, which began at `started`, ends before its next burst.
    fn is_burst_last(&mut self, number: u32, tick: &mut PreemptionTick, started: u64) -> bool {
        let now = clock::now();
        if self.work.dispatcher.is_timed() && now.saturating_sub(started) > LONG_NS {
            self.work.dispatcher.preempt(PreemptReason::Slice);
            return true;
        }
        self.work.preempt_at_wakeup(&self.queues) || self.preempt_at_tick(number, tick, now)
    }

    /// Enters into the books what frames from wires have come to outside of grants.
    #[inline]
    pub(super) fn settle_ingress(&mut self) {
        while let Some((queue, bill)) = self.frames.next_bill() {
            self.settle_bill(queue, bill);
        }
    }

    #[inline(never)]
    fn settle_bill(&mut self, queue: QueueId, bill: IngressBill) {
        let now = Nanos(clock::now());
        let Core { work, accounting, .. } = self;
        if bill.is_first {
            let placement = Placement { device: BACKLOG_DEVICE, kind: WorkKind::Received, back_end: None };
            work.dispatcher.place(queue, placement);
        }
        if bill.queued.units > 0 {
            work.enqueue(queue, bill.queued, now);
            work.dispatcher.wake();
        }
        if bill.left > 0 {
            work.leave(queue.tenant, bill.left as usize);
        }
        let took = if work.dispatcher.is_timed() { bill.time } else { NOMINAL * u64::from(bill.forwarded.units) };
        if took > 0 {
            // Policies that do not charge it give every tenant its grants as though it had cost nothing.
            work.dispatcher.charge_deferred(now, queue.tenant, Nanos(took));
        }
        if let Some(tenant) = accounting.tenant(queue.tenant) {
            tenant.served.add(bill.forwarded.units.into());
            tenant.bytes.add(bill.forwarded.bytes);
            tenant.core_ns.add(took);
            tenant.ingress_frames.add(bill.forwarded.units.into());
            tenant.ingress_dropped.add(bill.dropped.into());
            tenant.ingress_limited.add(bill.limited.into());
        }
    }

    /// If a tick is due at `now`: preempts the running grant, of the queue `number`, if work has arrived that may, or
    /// if anything waits that a core does once a round, which is interrupts of other queues, back ends, sockets and
    /// messages of other cores. Returns whether it did.
    fn preempt_at_tick(&mut self, number: u32, tick: &mut PreemptionTick, now: u64) -> bool {
        if !tick.is_due(Nanos(now)) {
            return false;
        }
        let is_round_due = self.disk.outstanding() > 0
            || self.frames.has_sockets()
            || self.inbox.is_posted()
            || self.completions.has_interrupts_besides(number);
        self.work.preempt_at_tick(&self.queues, is_round_due, tick, now)
    }

    /// Runs the requests of a disk that the scheduler granted at `started`. Returns what it cost, but the time.
    ///
    /// Where a volume answers each request while it is submitted, one after the other, the driver sees each answer
    /// before the next request is run, so that it can go on meanwhile. Its interrupt comes once, with the last.
    fn run_requests(&mut self, number: u32, grant: Grant, started: u64) -> Cost {
        let Some(queue) = self.queues.get(number) else { return Cost::default() };
        let Some(attachment) = queue.attachment else { return Cost::default() };
        let units = (grant.units as usize).min(queue.waiting.len());
        let singly = self.disk.answers_singly(attachment);
        let mut tick = self.work.dispatcher.tick(Nanos(started));
        let between = (units / CLOCK_READINGS).max(1);
        let is_single = singly || self.work.has_urgent();
        let (mut left, mut cost, mut unmeasured) = (units, Cost { units: units as u32, ..Cost::default() }, 0);
        let mut now = started;
        while left > 0 {
            let piece = match (is_single, tick.is_on()) {
                (true, _) => 1,
                (false, true) => self
                    .queues
                    .get(number)
                    .and_then(|queue| queue.requests_in(tick.next().0.saturating_sub(now)))
                    .unwrap_or(between),
                (false, false) => units,
            };
            let piece = piece.min(left);
            let (moved, pending) = self.run_piece(number, attachment, grant, started, piece);
            cost.pending += pending;
            let Some(moved) = moved else { break };
            cost.bytes += moved;
            left -= piece;
            unmeasured += piece;
            let reads_clock = tick.is_on() && (!is_single || left > 0 && unmeasured >= between);
            if reads_clock {
                unmeasured = 0;
                let ended = clock::now();
                if let Some(queue) = self.queues.get_mut(number) {
                    queue.request_ns = Some(ended.saturating_sub(now) / piece as u64).filter(|_| !is_single);
                }
                now = ended;
            }
            if left > 0 && self.work.preempt_at_wakeup(&self.queues)
                || left > 0 && reads_clock && self.preempt_at_tick(number, &mut tick, now)
            {
                cost.units = (units - left) as u32;
                break;
            }
            if left > 0 && singly {
                self.completions.complete(&mut self.queues, number, &self.accounting, &self.links);
                self.settle_broken();
            }
        }
        cost
    }

    /// Submits the first `units` waiting requests to the volume. Returns their bytes, none where the queue has ended or
    /// its driver has broken it, and how many of them the back end still has.
    fn run_piece(
        &mut self,
        number: u32,
        attachment: Attachment,
        grant: Grant,
        started: u64,
        units: usize,
    ) -> (Option<u64>, u32) {
        let Some((queue, unpublished)) = self.queues.get_to_finish(number) else { return (None, 0) };
        if queue.waiting.len() < units {
            return (None, 0);
        }
        self.work.leave(queue.spec.tenant, units);
        let submitted = match queue.spec.role {
            Role::Nvme(_) => Ok(self.disk.submit_commands(queue, unpublished, (grant, started), units)),
            _ => self.disk.submit(queue, unpublished, attachment, (grant, started), units),
        };
        let (bytes, pending) = match submitted {
            Ok(submitted) => (Some(submitted.bytes), submitted.pending),
            Err(error) => {
                self.break_queue(number, error.to_string());
                (None, 0)
            }
        };
        self.give_back(None);
        (bytes, pending)
    }

    /// Gives back what back ends have completed since they were last polled, and tells the policy what that cost them.
    pub(super) fn give_back_completed(&mut self) {
        if self.disk.has_completed() {
            self.work.dispatcher.wake();
            self.give_back(Some(Nanos(clock::now())));
        }
    }

    /// Gives completed requests back to their queues, on whichever core those are now. A request that a back end
    /// completed at `back_ends` has a cost of its own; the others were completed within their grant, which is charged
    /// for them.
    fn give_back(&mut self, back_ends: Option<Nanos>) {
        let Core { disk, queues, work, directory, .. } = self;
        disk.give_back(
            queues,
            |flight| {
                if let Some(now) = back_ends {
                    work.dispatcher.complete(now, flight.grant, flight.cost(now));
                }
            },
            |key, completed| directory.forward_completed(key, completed),
        );
    }

    /// Sends up to `units` frames that wait in a transmit queue's channel. Returns how many went, and their bytes.
    fn transmit(&mut self, number: u32, units: usize) -> (usize, u64) {
        let Some(queue) = self.queues.get_mut(number) else { return (0, 0) };
        if let Role::Transmit(Transmit { backpressure: Some(held), .. }) = &mut queue.spec.role {
            // By a grant before this one: what this one is for waits with the rest.
            held.units += units as u32;
            return (0, 0);
        }
        let units = units.min(queue.waiting.len());
        let tenant = queue.spec.tenant;
        std::mem::swap(&mut self.batch, &mut queue.waiting);
        let batch = std::mem::take(&mut self.batch);
        let Role::Transmit(transmit) = &queue.spec.role else { return (0, 0) };
        let first = Loan { core: self.links.index, key: queue.key, number: transmit.loans.next() };
        let (mut done, mut bytes, mut frames) = (0, 0, 0);
        let mut held = None;
        let is_broken = |core: &Self| core.queues.get(number).is_none_or(RunningQueue::is_broken);
        let full = if self.work.has_urgent() { SMALL_BURST } else { BURST };
        let mut most = transmit.burst.min(full);
        let started = clock::now();
        let mut tick = self.work.dispatcher.tick(Nanos(started));
        while done < units && held.is_none() && !is_broken(self) {
            if done > 0 && self.is_burst_last(number, &mut tick, started) {
                break;
            }
            let burst: &[Chain] = &batch[done..units.min(done + most)];
            let loan = Loan { number: first.number + done as u64, ..first };
            let outcome = self.frames.transmit_burst(&mut self.queues, number, burst, loan);
            self.settle_broken();
            done += outcome.done;
            bytes += outcome.bytes;
            frames += outcome.frames;
            held = outcome.backpressure;
            most = if held.is_some() { 1 } else { (2 * most).min(full) };
        }
        self.batch = batch;
        let queue = self.queues.get_to_finish(number).filter(|(queue, _)| !queue.is_broken());
        let Some((queue, unpublished)) = queue else {
            // When it broke, its queue was empty: everything that waited is in the batch.
            self.work.leave(tenant, self.batch.len());
            self.batch.clear();
            self.batch.release();
            return (done, bytes);
        };
        self.work.leave(tenant, done);
        let used = self.batch.take(done).iter().map(|chain| chain.used(0));
        match &mut queue.spec.role {
            Role::Transmit(transmit) if !transmit.loans.is_settled() => {
                transmit.loans.settle(used, &mut queue.finished);
            }
            _ => queue.finished.extend(used),
        }
        if !queue.finished.is_empty() {
            unpublished.add(queue);
        }
        std::mem::swap(&mut self.batch, &mut queue.waiting);
        queue.release_old_view();
        if let Role::Transmit(transmit) = &mut queue.spec.role {
            transmit.backpressure = held.map(|port| Backpressure { port, units: (units - done) as u32 });
            transmit.burst = most;
            transmit.sent(frames, bytes);
        }
        (done, bytes)
    }

    /// Publishes what a grant has finished.
    fn complete_touched(&mut self) {
        self.completions.complete_touched(&mut self.queues, &self.accounting, &self.links);
        self.settle_broken();
    }

    /// Whether deferred work goes before all grants: encryption and decryption of requests that were granted before. A
    /// grant encrypts the first piece of what it submits, so that is in its cost. The later pieces of long requests,
    /// and what back ends have read, have turns of their own beside the grants.
    #[inline]
    pub(super) fn deferred_goes_first(&mut self) -> bool {
        let Core { disk, work, .. } = self;
        disk.has_deferred() && work.dispatcher.deferred_goes_first(disk.deferred().map(|next| next.tenant))
    }

    /// Runs deferred work for a turn. `is_contended`: grants have run in this round or were put off, so there may be
    /// more that go first.
    pub(super) fn run_deferred(&mut self, is_contended: bool) {
        let mut now = clock::now();
        let is_contended = is_contended && self.work.is_waiting();
        let mut turn = self.work.dispatcher.begin_deferred(Nanos(now), is_contended);
        loop {
            let Core { disk, work, .. } = self;
            let candidates = disk.deferred().map(|next| (next.tenant, next));
            let next = work.dispatcher.next_deferred(&mut turn, Nanos(now), candidates);
            let Some((tenant, next)) = next else { break };
            disk.run_deferred(next.channel);
            self.accounting.submitted(next.key.number, 1);
            self.give_back_completed();
            let ended = clock::now();
            if self.work.dispatcher.is_timed() {
                let took = self.accounting.cpu_time(now, ended);
                self.charge_deferred(next.key, tenant, ended, took);
            }
            now = ended;
        }
        if !self.accounting.has_submitted() {
            return;
        }
        let started = clock::now();
        self.disk.flush();
        self.accounting.charge_submitted(&mut self.queues, started, clock::now());
    }

    /// Charges a tenant with deferred work: at once, or where its policy does not charge it, with the queue's next
    /// grants.
    pub(super) fn charge_deferred(&mut self, key: QueueKey, tenant: TenantId, now: u64, took: u64) {
        let is_charged = self.work.dispatcher.charge_deferred(Nanos(now), tenant, Nanos(took));
        let queue = self.queues.find(key);
        if !is_charged {
            if let Some(queue) = queue {
                queue.uncharged += took;
            }
            return;
        }
        if let Some(queue) = queue {
            queue.spec.counters.core_ns.add(took);
        }
        if let Some(tenant) = self.accounting.tenant(tenant) {
            tenant.core_ns.add(took);
        }
    }
}
