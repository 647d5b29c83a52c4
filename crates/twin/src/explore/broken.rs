//! Policies that are broken on purpose: that each is found out shows that exploring checks its promises.

use std::collections::BTreeMap;

use softdpu_sched::{
    Cost, Decision, DeferredWork, Grant, LatencyClass, Limits, Mtda, Nanos, Occupancy, Placement, Precedence,
    Preemption, QueueId, Share, System, TenantId, TenantScheduler, Weighted, Work,
};

use super::Credits;

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Idles now and then, though there is work.
    Idles,
    /// Forgets now and then that something became ready.
    Loses,
    /// Knows no limits.
    Unlimited,
    /// Knows no weights.
    Unweighted,
    /// Does not charge the first tenant.
    Favours,
    /// Puts no bound on back ends.
    Overfills,
    /// Grants more than there is.
    Invents,
    /// Lets no tenant go first: all work waits for its turn.
    NoLanes,
    /// Preempts no grant.
    Stays,
    /// Knows no guarantees.
    Unguaranteed,
    /// MTDA that grants more than a tenant has credits.
    Overspends,
    /// MTDA that gives out more credits than there are.
    Mints,
}

impl How {
    /// All of them, by name.
    pub const NAMES: [(&'static str, How); 12] = [
        ("broken-idles", How::Idles),
        ("broken-loses", How::Loses),
        ("broken-unlimited", How::Unlimited),
        ("broken-unweighted", How::Unweighted),
        ("broken-favours", How::Favours),
        ("broken-overfills", How::Overfills),
        ("broken-invents", How::Invents),
        ("broken-no-lanes", How::NoLanes),
        ("broken-stays", How::Stays),
        ("broken-unguaranteed", How::Unguaranteed),
        ("broken-overspends", How::Overspends),
        ("broken-mints", How::Mints),
    ];

    /// The one of a name.
    pub fn named(name: &str) -> Option<How> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, how)| *how)
    }
}

/// [`Weighted`], broken.
#[derive(Debug)]
pub struct Broken {
    policy: Weighted,
    how: How,
    calls: u64,
}

impl Broken {
    /// A policy that is broken so.
    pub fn new(how: How) -> Broken {
        Broken { policy: Weighted::default(), how, calls: 0 }
    }

    /// One call in so many.
    fn one_in(&mut self, many: u64) -> bool {
        self.calls += 1;
        self.calls.is_multiple_of(many)
    }
}

impl TenantScheduler for Broken {
    fn configure(&mut self, tenant: TenantId, share: Share) {
        let share = match self.how {
            How::Unlimited => Share { limits: Limits::default(), ..share },
            How::Unweighted => Share { weight: 1, ..share },
            How::NoLanes => Share { class: LatencyClass::Background, ..share },
            How::Unguaranteed => Share { guarantee: 0, ..share },
            _ => share,
        };
        self.policy.configure(tenant, share);
    }

    fn place(&mut self, queue: QueueId, placement: Placement) {
        let back_end = if self.how == How::Overfills { None } else { placement.back_end };
        self.policy.place(queue, Placement { back_end, ..placement });
    }

    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        if self.how == How::Loses && self.one_in(500) {
            return;
        }
        self.policy.ready(now, queue, work);
    }

    fn decide(&mut self, now: Nanos) -> Decision {
        if self.how == How::Idles && self.one_in(300) {
            return Decision::IdleUntil(Nanos(now.0 + 5_000));
        }
        match self.policy.decide(now) {
            Decision::Run(grant) if self.how == How::Invents && self.one_in(200) => {
                Decision::Run(Grant { units: grant.units + 5_000, ..grant })
            }
            decision => decision,
        }
    }

    fn charge(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        let cost = match self.how {
            How::Favours if grant.queue.tenant.0 == 0 => Cost { time: Nanos(0), bytes: 0, ..cost },
            _ => cost,
        };
        self.policy.charge(now, grant, cost);
    }

    fn complete(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        self.policy.complete(now, grant, cost);
    }

    fn cancel(&mut self, now: Nanos, queue: QueueId) {
        self.policy.cancel(now, queue);
    }
}

impl Preemption for Broken {
    fn turn(&self, now: Nanos) -> Nanos {
        self.policy.turn(now)
    }

    fn can_preempt(&self) -> bool {
        self.how != How::Stays
    }

    fn wakeup_preempt(&self, tenant: TenantId) -> bool {
        self.how != How::Stays && self.policy.wakeup_preempt(tenant)
    }

    fn tick(&self) -> Option<Nanos> {
        if self.how == How::Stays { None } else { self.policy.tick() }
    }

    fn tick_preempt(&self, tenant: TenantId) -> bool {
        // Without lanes it would preempt no grant; that is not what is to be found out.
        self.how == How::NoLanes || self.policy.tick_preempt(tenant)
    }
}

impl DeferredWork for Broken {
    fn deferred_rank(&self, tenant: TenantId) -> u64 {
        self.policy.deferred_rank(tenant)
    }

    fn deferred_precedence(&self, tenant: TenantId) -> Precedence {
        self.policy.deferred_precedence(tenant)
    }

    fn charge_deferred(&mut self, now: Nanos, tenant: TenantId, time: Nanos) -> bool {
        self.policy.charge_deferred(now, tenant, time)
    }
}

/// [`Mtda::repaired`], broken.
#[derive(Debug)]
pub struct BrokenCredits {
    policy: Mtda,
    how: How,
    /// Units that it was not told of, by queue.
    hidden: BTreeMap<QueueId, u32>,
}

impl BrokenCredits {
    /// A policy that is broken so.
    pub fn new(how: How, occupied: &[Occupancy]) -> BrokenCredits {
        let honest = System::default();
        let credit = if how == How::Mints { 4 * honest.credit } else { honest.credit };
        let mut policy = Mtda::repaired(System { credit, ..honest });
        (0..).zip(occupied).for_each(|(tenant, occupied)| policy.occupy(TenantId(tenant), *occupied));
        BrokenCredits { policy, how, hidden: BTreeMap::new() }
    }
}

impl Credits for BrokenCredits {
    fn credit(&self, tenant: TenantId) -> u64 {
        self.policy.credit(tenant)
    }

    fn renewals(&self) -> u64 {
        self.policy.renewals()
    }
}

impl Preemption for BrokenCredits {}
impl DeferredWork for BrokenCredits {}

impl TenantScheduler for BrokenCredits {
    fn configure(&mut self, tenant: TenantId, share: Share) {
        self.policy.configure(tenant, share);
    }

    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        // Half of it costs no credit.
        let hidden = if self.how == How::Overspends { work.units / 2 } else { 0 };
        *self.hidden.entry(queue).or_default() += hidden;
        self.policy.ready(now, queue, Work { units: work.units - hidden, ..work });
    }

    fn decide(&mut self, now: Nanos) -> Decision {
        let decision = self.policy.decide(now);
        let Decision::Run(grant) = decision else { return decision };
        let hidden = self.hidden.entry(grant.queue).or_default();
        let more = grant.units.min(*hidden);
        *hidden -= more;
        Decision::Run(Grant { units: grant.units + more, ..grant })
    }

    fn charge(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        self.policy.charge(now, grant, cost);
    }

    fn complete(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        self.policy.complete(now, grant, cost);
    }

    fn cancel(&mut self, now: Nanos, queue: QueueId) {
        self.hidden.remove(&queue);
        self.policy.cancel(now, queue);
    }
}
