//! Queues come to a core, move on, break and end.

use std::os::fd::AsFd;
use std::time::Duration;

use softdpu_sched::{Nanos, Stalls, TenantScheduler, Work};
use softdpu_sys::clock;

use super::Core;
use crate::ids::{CoreIndex, QueueKey};
use crate::message::{FromCore, PendingStop, ToCore};
use crate::queue::{Role, RunningQueue};

impl<S: TenantScheduler> Core<S> {
    /// A queue comes to this core.
    pub(super) fn adopt(&mut self, mut queue: Box<RunningQueue>) {
        let (key, number) = (queue.key, queue.key.number);
        self.directory.expect(key);
        let problem = self.attach(&mut queue).err();
        let unwatched = queue.spec.kick.as_ref().and_then(|kick| self.sleep.watch(number, kick.as_fd()).err());
        let problem =
            problem.or_else(|| unwatched.map(|error| format!("its kick descriptor cannot be waited for: {error}")));
        if !queue.is_broken() {
            queue.spec.ring.disarm();
        }
        self.queues.insert(queue);
        self.queues_changed();
        if let Some(queue) = self.queues.get(number) {
            if let Some(placement) = queue.placement {
                self.work.dispatcher.place(queue.id(), placement);
            }
            if !queue.waiting.is_empty() {
                let bytes = queue.spec.role.bytes(&queue.waiting);
                let waiting = Work { units: queue.waiting.len() as u32, bytes };
                self.work.enqueue(queue.id(), waiting, Nanos(clock::now()));
            }
        }
        if let Some(reason) = problem {
            self.break_queue(number, reason);
        }
        for message in self.directory.arrived(key) {
            self.handle(message);
        }
    }

    /// Attaches a queue's volumes to this core.
    fn attach(&mut self, queue: &mut RunningQueue) -> Result<(), String> {
        queue.namespaces.clear();
        for (nsid, volume) in queue.spec.role.volumes() {
            let attachment =
                self.disk.attach(volume).map_err(|error| format!("volume '{}': {error}", volume.name()))?;
            queue.attachment.get_or_insert(attachment);
            queue.namespaces.push((nsid, attachment));
        }
        Ok(())
    }

    /// Hands a queue to another core. What is in flight stays.
    pub(super) fn send_away(&mut self, key: QueueKey, to: CoreIndex) {
        if to == self.links.index {
            return;
        }
        self.publish();
        // Before any frame that its next core sends to another core.
        self.frames.send_to_other_cores(&mut self.queues);
        let Some(mut queue) = self.take_out(key.number) else { return };
        if self.disk.holds_any_of(key) && !queue.former_cores.contains(&self.links.index) {
            queue.former_cores.push(self.links.index);
        }
        self.directory.departed(key, to);
        self.links.send(to, ToCore::Adopt(queue));
    }

    /// Settles what queues have made the core wait for.
    #[inline]
    pub(super) fn settle_stalls(&mut self) {
        while let Some((key, time)) = self.queues.next_stall() {
            self.settle_stall(key, time);
        }
    }

    /// A queue made the core wait for `time` nanoseconds. On the slow core it rests. Its tenant pays for it here, where
    /// the time is missing.
    #[cold]
    fn settle_stall(&mut self, key: QueueKey, time: u64) {
        let Some(queue) = self.queues.find(key).filter(|_| self.work.dispatcher.is_timed()) else { return };
        let now = clock::now();
        queue.spec.counters.stalls.add(1);
        queue.spec.counters.stalled_ns.add(time);
        if self.links.is_slow() {
            queue.rests_until = queue.rests_until.max(now + Stalls::rest(Nanos(time)).0);
        }
        let is_over = queue.stalls.add(Nanos(now), Nanos(time));
        let (tenant, owed) = (queue.spec.tenant, std::mem::take(&mut queue.uncharged));
        self.charge_deferred(key, tenant, now, owed);
        if is_over && let Some(slow) = self.links.slow {
            self.links.report(FromCore::Stalled { key, time: Duration::from_nanos(time) });
            self.send_away(key, slow);
        }
    }

    /// Removes a queue from this core's tables.
    fn take_out(&mut self, number: u32) -> Option<Box<RunningQueue>> {
        let mut queue = self.queues.remove(number)?;
        self.queues_changed();
        if let Some(kick) = &queue.spec.kick {
            self.sleep.forget(kick.as_fd());
        }
        self.work.cancel(&queue);
        queue.attachment = None;
        queue.namespaces.clear();
        if let Role::Transmit(transmit) = &mut queue.spec.role {
            transmit.backpressure = None;
        }
        Some(queue)
    }

    /// A queue came or went.
    fn queues_changed(&mut self) {
        self.work.find_urgent(&self.queues);
        self.accounting.counters.queues.set(self.queues.len() as u64);
    }

    /// A stopped queue leaves, with nothing in flight or with what a back end would not give back in time. Its stop is
    /// reported when no core has a request left that would touch the guest's memory when it completes.
    pub(super) fn end_queue(&mut self, number: u32) {
        let Some(mut queue) = self.take_out(number) else { return };
        let key = queue.key;
        self.abandon(key);
        let is_lent = queue.can_rewind() && !queue.is_quiescent();
        if is_lent {
            // A core that answers is done with the frames that it was sent before it was asked.
            self.frames.send_to_other_cores(&mut self.queues);
            queue.former_cores = (0..self.links.peers.len()).map(CoreIndex).collect();
        }
        if queue.can_rewind() {
            queue.in_flight = 0;
        }
        let abandoned = u16::try_from(queue.in_flight).unwrap_or(u16::MAX);
        if abandoned > 0 {
            tracing::warn!(
                device = %queue.spec.device, queue = queue.spec.index, abandoned,
                "stopped with requests that the volume did not finish in time"
            );
        }
        queue.spec.counters.in_flight.set(0);
        let position = queue.spec.ring.retire();
        queue.former_cores.retain(|core| *core != self.links.index);
        if queue.former_cores.is_empty() || (abandoned == 0 && !is_lent) {
            self.links.report(FromCore::Stopped { key, position, abandoned });
            return;
        }
        let stop = PendingStop { key, position, abandoned, unanswered: queue.former_cores.len() };
        self.directory.ask_to_give_up(stop, queue.former_cores, &self.links);
    }

    /// Abandons the requests of a queue that ended. To its tenant they are done.
    pub(super) fn abandon(&mut self, key: QueueKey) {
        let now = Nanos(clock::now());
        let Core { disk, work, .. } = self;
        disk.abandon(key, |flight| work.dispatcher.complete(now, flight.grant, flight.cost(now)));
    }

    /// Breaks a queue, and settles its accounts.
    pub(super) fn break_queue(&mut self, number: u32, reason: String) {
        self.queues.break_queue(number, reason);
        self.settle_broken();
    }

    /// Settles the accounts of queues that their drivers have broken, reports them, and ends those that are being
    /// stopped.
    #[inline]
    pub(super) fn settle_broken(&mut self) {
        while let Some((key, reason)) = self.queues.next_broken() {
            self.settle_broken_queue(key, reason);
        }
    }

    #[cold]
    fn settle_broken_queue(&mut self, key: QueueKey, reason: String) {
        let Some(queue) = self.queues.find(key) else { return };
        // Zeroes where the ring was make no sense; this is why they are there.
        let reason = queue.truncated_file().map_or(reason, str::to_owned);
        tracing::warn!(device = %queue.spec.device, queue = queue.spec.index, reason, "queue broken by its driver");
        // What is left is at back ends, which still read and write the guest's memory.
        queue.in_flight = queue.in_flight.saturating_sub((queue.finished.len() + queue.waiting.len()) as u32);
        queue.finished.clear();
        self.work.cancel(queue);
        queue.waiting.clear();
        queue.waiting.release();
        let is_settled = queue.in_flight == 0 || queue.can_rewind();
        let ends = queue.stop_deadline().is_some() && is_settled;
        let started = clock::now();
        self.completions.signal_error(queue);
        self.accounting.signalled_error(&mut self.queues, key.number, started);
        self.links.report(FromCore::Broken { key, reason });
        if ends {
            self.end_queue(key.number);
        }
    }
}
