//! Policies that are broken on purpose: that each is found out shows that exploring looks.

use softdpu_sched::{
    Cost, Decision, Grant, Limits, Nanos, Placement, QueueId, Share, TenantId, TenantScheduler, Weighted, Work,
};

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
}

impl How {
    /// All of them, by name.
    pub const NAMES: [(&'static str, How); 7] = [
        ("broken-idles", How::Idles),
        ("broken-loses", How::Loses),
        ("broken-unlimited", How::Unlimited),
        ("broken-unweighted", How::Unweighted),
        ("broken-favours", How::Favours),
        ("broken-overfills", How::Overfills),
        ("broken-invents", How::Invents),
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
