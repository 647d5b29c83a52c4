//! The turns of deferred work.

use super::Dispatcher;
use crate::{Nanos, Precedence, TenantId, TenantScheduler};

/// For how long the next deferred work is put off for grants at the most, whatever the policy says: no request waits
/// for ever.
pub const LONGEST_DEFERRAL: Nanos = Nanos(1_000_000);

/// Candidates that are compared for a piece of deferred work. The others come up as those have had theirs.
const COMPARED: usize = 64;

/// Pieces of deferred work in a turn, for cores on which turns do not end by time.
const PIECES: u32 = 16;

/// A turn of deferred work.
#[derive(Clone, Copy, Debug)]
pub struct DeferredTurn {
    began: Nanos,
    length: Nanos,
    pieces: u32,
    /// Grants have run in this round or were put off, so that there may be more that go first.
    is_contended: bool,
}

impl<S: TenantScheduler> Dispatcher<S> {
    /// Whether the next deferred work, of those of these tenants, goes before all grants.
    #[inline]
    pub fn deferred_goes_first(&self, candidates: impl Iterator<Item = TenantId>) -> bool {
        let next = self.pick(candidates.map(|tenant| (tenant, ())));
        next.is_some_and(|(tenant, ())| self.policy.deferred_precedence(tenant) == Precedence::First)
    }

    /// Begins a turn of deferred work at `now`, as long as one of grants. `is_contended`: grants have run in this round
    /// or were put off for deferred work, and there are more.
    #[inline]
    pub fn begin_deferred(&mut self, now: Nanos, is_contended: bool) -> DeferredTurn {
        DeferredTurn { began: now, length: self.policy.turn(now), pieces: 0, is_contended }
    }

    /// The deferred work to run next at `now`, of one piece for each of these tenants' queues, in the order in which
    /// they take turns. None: the turn is over, there is none, or it is put off for grants.
    #[inline]
    pub fn next_deferred<T>(
        &mut self,
        turn: &mut DeferredTurn,
        now: Nanos,
        candidates: impl Iterator<Item = (TenantId, T)>,
    ) -> Option<(TenantId, T)> {
        let is_over = self.is_timed && now.0.wrapping_sub(turn.began.0) >= turn.length.0;
        if turn.pieces > 0 && is_over || turn.pieces >= PIECES {
            return None;
        }
        let (tenant, next) = self.pick(candidates)?;
        if turn.is_contended && self.policy.deferred_precedence(tenant) == Precedence::Last {
            let since = *self.deferred_since.get_or_insert(now);
            // A clock that went back ends it, too.
            if now.0.wrapping_sub(since.0) < LONGEST_DEFERRAL.0 {
                return None;
            }
        }
        self.deferred_since = None;
        turn.pieces += 1;
        Some((tenant, next))
    }

    /// A piece of deferred work of `tenant` took `time` of the core. Whether the policy has charged it; otherwise it is
    /// to be in the cost of the tenant's next grants.
    #[inline]
    pub fn charge_deferred(&mut self, now: Nanos, tenant: TenantId, time: Nanos) -> bool {
        self.policy.charge_deferred(now, tenant, time)
    }

    /// The candidate of the least rank, the first among equals.
    #[inline]
    fn pick<T>(&self, candidates: impl Iterator<Item = (TenantId, T)>) -> Option<(TenantId, T)> {
        candidates.take(COMPARED).min_by_key(|(tenant, _)| self.policy.deferred_rank(*tenant))
    }
}

/// What a queue pays, with a grant of which `ran` units ran, of the core time that it `owed`: what was spent on it
/// outside grants and not charged yet. Its part, by the units that are still `waiting`; all of it where none are.
#[inline]
pub fn instalment(owed: Nanos, ran: u32, waiting: u64) -> Nanos {
    match waiting {
        0 => owed,
        _ => Nanos(owed.0 * u64::from(ran) / (u64::from(ran) + waiting)),
    }
}
