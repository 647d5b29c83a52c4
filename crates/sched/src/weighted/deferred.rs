//! Deferred work: what was granted before and goes on when a back end has answered, as where a core decrypts what was
//! read.
//!
//! It is in no list of what is ready. The caller asks which tenant's goes on first, and whether before what is ready,
//! and charges it: so it has the same share as granted work.

use super::Weighted;
use super::calendar::{SCALE, SLOT};
use super::index::{Table, TenantIndex};
use super::list::{List, READY};
use super::tenant::{State, Tenant};
use crate::{DeferredWork, LatencyClass, Nanos, Precedence, TenantId};

/// For how long after deferred work a tenant is taken to have more of it.
const LATELY: Nanos = Nanos::MILLI;

/// How far the grants of others can move virtual time before a backlogged tenant has its turn: a slot, and a grant that
/// began at its end.
const WAITED: u64 = 2 * SLOT * SCALE;

/// By tenant, when it was last charged for deferred work. Empty where none ever was.
#[derive(Debug, Default)]
pub(super) struct LastDeferred(Table<TenantIndex, Nanos>);

impl LastDeferred {
    /// The state of a tenant without ready work.
    #[inline]
    pub(super) fn idle(&self, index: TenantIndex) -> State {
        if self.0.get(index).is_none_or(|last| last.0 == 0) { State::Idle } else { State::Deferred }
    }

    /// The most lag of a tenant that may have `saved` while it has no work.
    pub(super) fn saves(&self, now: Nanos, index: TenantIndex, saved: u64) -> u64 {
        match self.0.get(index) {
            Some(last) if last.0 > 0 && now.since(*last).0 < LATELY.0 => saved + WAITED,
            _ => saved,
        }
    }

    fn set(&mut self, now: Nanos, index: TenantIndex) {
        self.0.grow_to(index, || Nanos(0));
        self.0[index] = now;
    }
}

impl Weighted {
    /// The tag of a tenant, with its lag bounded.
    #[inline]
    fn clamped_tag(&self, index: TenantIndex, tenant: &Tenant) -> u64 {
        let saved = match tenant.latency() {
            LatencyClass::Background => 0,
            LatencyClass::Latency | LatencyClass::Normal => tenant.saves(Self::CARRY.0 * SCALE),
        };
        let saved = self.deferred.saves(self.last, index, saved);
        tenant.tag.max(self.calendar.now().saturating_sub(saved))
    }

    pub(super) fn rank_of_deferred(&self, tenant: TenantId) -> u64 {
        match self.tenants.get(tenant.into()) {
            Some(record) if !record.is_owed(self.last) => self.clamped_tag(tenant.into(), record),
            _ => 0,
        }
    }

    /// First where the tenant is behind virtual time. In turn with tenants that go first where it goes first itself,
    /// and in turn with grants where those are its own as well: they move its tag on with virtual time, which may never
    /// pass it.
    pub(super) fn precedence_of_deferred(&self, tenant: TenantId) -> Precedence {
        let own = TenantIndex::from(tenant);
        let Some(record) = self.tenants.get(own) else { return Precedence::InTurn };
        let tag = self.clamped_tag(own, record);
        let is_first = record.is_owed(self.last) || record.was_in_lane && tag < self.calendar.now();
        // Its own ready work goes first by the same right.
        let is_other =
            |lane: &List<TenantIndex, READY>| lane.has_several() || lane.front().is_some_and(|first| first != own);
        match (self.lanes.iter().any(is_other), is_first) {
            (true, true) => Precedence::InTurn,
            (false, true) => Precedence::First,
            (false, false) if tag <= self.calendar.virtual_time() => Precedence::First,
            (false, false) if self.is_granted(own, record) && tag <= self.ahead_by_grants(record) => Precedence::InTurn,
            _ => Precedence::Last,
        }
    }

    /// Whether a tenant has work that is granted when its turn is.
    fn is_granted(&self, index: TenantIndex, tenant: &Tenant) -> bool {
        self.bypass.as_ref().is_some_and(|bypass| bypass.tenant() == index)
            || matches!(tenant.state, State::Calendar | State::Solo | State::Running)
    }

    /// How far the tag of a tenant may be that was granted something last.
    fn ahead_by_grants(&self, tenant: &Tenant) -> u64 {
        self.calendar.virtual_time().saturating_add(tenant.saves(WAITED))
    }

    /// Charges deferred work as if it had been granted.
    pub(super) fn spend_deferred(&mut self, now: Nanos, tenant: TenantId, time: u64) {
        let index = TenantIndex::from(tenant);
        match &mut self.bypass {
            Some(bypass) if bypass.tenant() == index => {
                if bypass.charge(time, 0) {
                    self.charge_bypassed();
                }
                return;
            }
            Some(_) => self.end_bypass(now),
            None => {}
        }
        if self.tenants.get(index).is_none() {
            return;
        }
        // The tenant is one beside those with work.
        if let Some(other) = self.solo.take_if(|other| *other != index) {
            self.end_solo(now, other);
        }
        if self.runnable > 0 {
            self.contended = now + self.tuning.memory;
        }
        let tenant = &self.tenants[index];
        let (weight, class, is_waiting) = (tenant.weight(), tenant.class(), tenant.state == State::Calendar);
        let counts = !matches!(tenant.state, State::Idle | State::Deferred | State::Throttled);
        let is_idle = tenant.state == State::Idle;
        self.deferred.set(now, index);
        if is_waiting {
            self.calendar.remove(&mut self.tenants, index);
        }
        if !counts {
            self.clamp_lag(now, index);
            self.calendar.enter(weight);
            if is_idle {
                self.tenants[index].state = State::Deferred;
            }
        }
        let tenant = &mut self.tenants[index];
        let is_first = tenant.is_owed(now) || tenant.was_in_lane && tenant.tag < self.calendar.now();
        let before = tenant.tag;
        tenant.charge(now, time, SCALE, self.calendar.latest(class));
        if self.runnable > 0 {
            self.calendar.pass(time, (!is_first).then_some((tenant.tag, class)));
        } else {
            // Other deferred work is not known here, but this was the first: virtual time is where it was.
            self.calendar.advance(before, class);
            self.calendar.tick(time);
        }
        if !counts {
            self.calendar.leave(weight);
        }
        if is_waiting {
            self.calendar.insert(&mut self.tenants, index);
        }
    }
}

impl DeferredWork for Weighted {
    #[inline]
    fn deferred_rank(&self, tenant: TenantId) -> u64 {
        self.rank_of_deferred(tenant)
    }

    #[inline]
    fn deferred_precedence(&self, tenant: TenantId) -> Precedence {
        self.precedence_of_deferred(tenant)
    }

    fn charge_deferred(&mut self, now: Nanos, tenant: TenantId, time: Nanos) -> bool {
        self.spend_deferred(now, tenant, time.0);
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Cost, Decision, DeferredWork, Grant, Nanos, Placement, Precedence, Preemption, QueueId, Share, TenantId,
        TenantScheduler, Weighted, Work,
    };

    const UNIT: u64 = 2_000;
    const PIECE: u64 = 50_000;

    /// A core on which tenants that always have something go on beside grants, others always have grants, and a light
    /// one comes now and then.
    struct Sim {
        policy: Weighted,
        now: u64,
        had: Vec<u64>,
    }

    impl Sim {
        fn new(shares: &[u32]) -> Sim {
            let mut policy = Weighted::default();
            for (tenant, &weight) in shares.iter().enumerate() {
                let queue = QueueId { tenant: TenantId(tenant as u16), index: tenant as u32 };
                policy.configure(queue.tenant, Share { weight, ..Share::default() });
                policy.place(queue, Placement { device: queue.index, ..Placement::default() });
            }
            Sim { policy, now: 0, had: vec![0; shares.len()] }
        }

        fn ready(&mut self, tenant: u16, units: u32) {
            let queue = QueueId { tenant: TenantId(tenant), index: tenant.into() };
            self.policy.ready(Nanos(self.now), queue, Work { units, bytes: 0 });
        }

        /// Grants for a turn; who had one, in order.
        fn grants(&mut self) -> Vec<u16> {
            let until = self.now + self.policy.turn(Nanos(self.now)).0;
            let mut ran = Vec::new();
            while let Decision::Run(Grant { queue, units }) = self.policy.decide(Nanos(self.now)) {
                let time = UNIT * u64::from(units);
                self.now += time;
                self.had[usize::from(queue.tenant.0)] += time;
                let cost = Cost { units, time: Nanos(time), ..Cost::default() };
                self.policy.charge(Nanos(self.now), Grant { queue, units }, cost);
                ran.extend(std::iter::repeat_n(queue.tenant.0, units as usize));
                if self.now >= until {
                    break;
                }
            }
            ran
        }

        /// The first of what goes on beside them, and whether that is before them.
        fn next(&self, tenants: &[u16]) -> (TenantId, Precedence) {
            let rank = |&&tenant: &&u16| self.policy.deferred_rank(TenantId(tenant));
            let next = TenantId(tenants.iter().min_by_key(rank).copied().unwrap_or_default());
            (next, self.policy.deferred_precedence(next))
        }

        /// A round: grants, unless something is first, then what goes on, of these tenants, unless it is last. Who had
        /// grants, in order.
        fn round(&mut self, tenants: &[u16]) -> Vec<u16> {
            let ran = if self.next(tenants).1 == Precedence::First { Vec::new() } else { self.grants() };
            let (next, order) = self.next(tenants);
            if ran.is_empty() || order != Precedence::Last {
                self.now += PIECE;
                self.had[usize::from(next.0)] += PIECE;
                assert!(self.policy.charge_deferred(Nanos(self.now), next, Nanos(PIECE)));
            }
            ran
        }
    }

    /// Whether each of some tenants has its weight's part of the time, to a tenth of that.
    fn is_by_weight(sim: &Sim, weights: &[u32]) -> bool {
        let (all, weight): (u64, u32) = (sim.had.iter().sum(), weights.iter().sum());
        let part = |had: u64, of: u32| had as f64 / all as f64 / (f64::from(of) / f64::from(weight));
        sim.had.iter().zip(weights).all(|(&had, &of)| (0.9..1.1).contains(&part(had, of)))
    }

    #[test]
    fn what_goes_on_beside_grants_has_its_share_beside_a_flood_of_grants() {
        for (weights, has_grants) in [([1, 1], false), ([8, 1], false), ([1, 8], true), ([3, 2], true), ([8, 1], true)]
        {
            let mut sim = Sim::new(&weights);
            while sim.now < 400_000_000 {
                sim.ready(1, 64);
                if has_grants {
                    sim.ready(0, 1);
                }
                // Its grants, which hand over what goes on later, cost next to nothing.
                sim.round(&[0]);
            }
            assert!(is_by_weight(&sim, &weights), "{:?} of {weights:?}", sim.had);
        }
    }

    #[test]
    fn what_goes_on_is_not_put_off_for_ever_by_grants_of_its_own() {
        for weights in [[3, 5], [1, 1], [8, 3]] {
            let mut sim = Sim::new(&weights);
            let (mut last, mut longest) = (0, 0);
            while sim.now < 400_000_000 {
                sim.ready(0, 64);
                sim.ready(1, 64);
                let before = sim.had[0] + sim.had[1];
                let granted: u64 = sim.round(&[0]).len() as u64 * UNIT;
                if sim.had[0] + sim.had[1] - before > granted {
                    last = sim.now;
                }
                longest = longest.max(sim.now - last);
            }
            assert!(longest < 5_000_000, "nothing went on for {longest} ns, {weights:?}");
            assert!(is_by_weight(&sim, &weights), "{:?} of {weights:?}", sim.had);
        }
    }

    #[test]
    fn two_that_only_go_on_share_by_weight() {
        let weights = [1, 4, 2];
        let mut sim = Sim::new(&weights);
        while sim.now < 400_000_000 {
            sim.round(&[0, 1, 2]);
        }
        assert!(is_by_weight(&sim, &weights), "{:?}", sim.had);
    }

    #[test]
    fn a_light_tenant_goes_first_whatever_goes_on_beside_grants() {
        let mut sim = Sim::new(&[1, 1, 1]);
        while sim.now < 100_000_000 {
            sim.ready(1, 64);
            // Meanwhile the light one comes, each time after it has saved up.
            let came = sim.now;
            sim.ready(2, 1);
            let ran = sim.round(&[0]);
            assert!(ran.first() == Some(&2) || came < 1_000_000, "it goes before all that floods");
            while sim.now < came + 300_000 {
                sim.ready(1, 64);
                sim.round(&[0]);
            }
        }
    }
}
