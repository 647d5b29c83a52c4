//! What is left to encrypt and decrypt of requests that were granted before: pieces that back ends have read, and the later pieces of long requests.
//!
//! A grant encrypts what it hands over, so that is in its cost. The rest comes when back ends answer, and is no grant's: here it has turns
//! beside the grants, when and in which order the policy says, and its tenant is charged as it goes.

use softdpu_sched::{Nanos, Precedence, TenantId, TenantScheduler};
use softdpu_sys::clock;

use super::Core;
use crate::ids::QueueKey;

/// Queues that are compared for a turn: the others come up as those have had theirs.
const COMPARED: usize = 64;

/// Turns between two looks at everything else, where time does not tell.
const TURNS: u32 = 16;

/// For so long, nanoseconds, what is next is put off for grants at the most, whatever the policy says: nobody's requests wait for ever.
const PUT_OFF: u64 = 1_000_000;

/// Who has the next turn.
struct Next {
    line: u32,
    tenant: TenantId,
    key: QueueKey,
}

impl<S: TenantScheduler> Core<S> {
    fn next_to_encrypt(&mut self) -> Option<Next> {
        let Core { io, flights, scheduler, .. } = self;
        let candidates = io.next_turns().take(COMPARED).filter_map(|(line, token)| {
            let flight = flights.get(token)?;
            let tenant = flight.grant.queue.tenant;
            Some((scheduler.deferred_rank(tenant), Next { line, tenant, key: flight.key }))
        });
        candidates.min_by_key(|(rank, _)| *rank).map(|(_, next)| next)
    }

    /// Whether something is to be encrypted or decrypted before anything is granted.
    #[inline]
    pub(super) fn is_encrypting_first(&mut self) -> bool {
        self.io.has_turns()
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
            let Some(Next { line, tenant, key }) = self.next_to_encrypt() else { break };
            if are_others && self.channels.total() > 0 && self.scheduler.deferred_precedence(tenant) == Precedence::Last
            {
                let since = *self.put_off.get_or_insert(now);
                if now.saturating_sub(since) < PUT_OFF {
                    break;
                }
            }
            self.put_off = None;
            self.io.take_turn(line, &mut self.done);
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
        self.io.flush();
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
