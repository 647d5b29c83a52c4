//! Deferred work: what is left to encrypt and decrypt of requests that were granted before.
//!
//! A grant encrypts the first piece of what it submits, so that is in its cost. The later pieces of long requests, and
//! what back ends have read, have turns of their own beside the grants.

use softdpu_sched::{Nanos, TenantId, TenantScheduler};
use softdpu_sys::clock;

use super::Core;
use crate::ids::QueueKey;

impl<S: TenantScheduler> Core<S> {
    /// Whether deferred work goes before all grants.
    #[inline]
    pub(super) fn deferred_goes_first(&mut self) -> bool {
        let Core { disk, dispatcher, .. } = self;
        disk.has_deferred() && dispatcher.deferred_goes_first(disk.deferred().map(|next| next.tenant))
    }

    /// Runs deferred work for a turn. `is_contended`: grants have run in this round or were put off, so there may be
    /// more that go first.
    pub(super) fn run_deferred(&mut self, is_contended: bool) {
        let mut now = clock::now();
        let mut turn = self.dispatcher.begin_deferred(Nanos(now), is_contended && self.channels.total() > 0);
        loop {
            let Core { disk, dispatcher, .. } = self;
            let candidates = disk.deferred().map(|next| (next.tenant, next));
            let Some((tenant, next)) = dispatcher.next_deferred(&mut turn, Nanos(now), candidates) else { break };
            disk.run_deferred(next.channel);
            self.accounting.submitted(next.key.number, 1);
            self.finish_ended();
            let ended = clock::now();
            if self.dispatcher.is_timed() {
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
    fn charge_deferred(&mut self, key: QueueKey, tenant: TenantId, now: u64, took: u64) {
        let is_charged = self.dispatcher.charge_deferred(Nanos(now), tenant, Nanos(took));
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
