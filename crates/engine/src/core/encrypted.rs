//! What is left to encrypt and decrypt of requests that were granted before: pieces that back ends have read, and the later pieces of long requests.
//!
//! A grant encrypts what it hands over, so that is in its cost. The rest comes when back ends answer, and is no grant's: here it has turns
//! beside the grants, when and in which order the policy says, and its tenant is charged as it goes.

use softdpu_sched::{Nanos, Precedence, TenantId, TenantScheduler};
use softdpu_sys::clock;

use super::Core;
use crate::disk::DeferredRequest;
use crate::ids::QueueKey;

/// Queues that are compared for a turn: the others come up as those have had theirs.
const COMPARED: usize = 64;

/// Turns between two looks at everything else, where time does not tell.
const TURNS: u32 = 16;

/// For so long, nanoseconds, what is next is put off for grants at the most, whatever the policy says: nobody's requests wait for ever.
const PUT_OFF: u64 = 1_000_000;

impl<S: TenantScheduler> Core<S> {
    fn next_to_encrypt(&mut self) -> Option<DeferredRequest> {
        let Core { disk, scheduler, .. } = self;
        let candidates = disk.deferred().take(COMPARED);
        candidates.min_by_key(|next| scheduler.deferred_rank(next.tenant))
    }

    /// Whether something is to be encrypted or decrypted before anything is granted.
    #[inline]
    pub(super) fn is_encrypting_first(&mut self) -> bool {
        self.disk.has_deferred()
            && self
                .next_to_encrypt()
                .is_some_and(|next| self.scheduler.deferred_precedence(next.tenant) == Precedence::First)
    }

    /// Encrypts and decrypts for as long as grants go on. `are_others`: grants have run in this round, or were put off, so there may be more that are
    /// to go first.
    pub(super) fn go_on_encrypting(&mut self, are_others: bool) {
        let mut now = clock::now();
        let until = now.saturating_add(self.scheduler.turn(Nanos(now)).0);
        for _ in 0..TURNS {
            let Some(DeferredRequest { channel, tenant, key }) = self.next_to_encrypt() else { break };
            if are_others && self.channels.total() > 0 && self.scheduler.deferred_precedence(tenant) == Precedence::Last
            {
                let since = *self.put_off.get_or_insert(now);
                if now.saturating_sub(since) < PUT_OFF {
                    break;
                }
            }
            self.put_off = None;
            self.disk.run_deferred(channel);
            self.accounting.submitted(key.number, 1);
            self.finish_ended();
            let ended = clock::now();
            if self.turns_are_timed {
                let took = self.accounting.cpu_time(now, ended);
                self.charge_beside(key, tenant, ended, took);
            }
            now = ended;
            if now >= until && self.turns_are_timed {
                break;
            }
        }
        if !self.accounting.has_submitted() {
            return;
        }
        let started = clock::now();
        self.disk.flush();
        self.accounting.charge_submitted(&mut self.queues, started, clock::now());
    }

    /// A tenant is charged with time that it had outside of its grants: at once, or where its policy does not know that, with the queue's next grants.
    fn charge_beside(&mut self, key: QueueKey, tenant: TenantId, now: u64, took: u64) {
        let is_charged = self.scheduler.charge_deferred(Nanos(now), tenant, Nanos(took));
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
