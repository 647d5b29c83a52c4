//! MTDA's credits and its traffic-aware scheduler (Huang et al., IEEE TSC 17(6), 2024, §III-C and §III-D), to the
//! letter and repaired.
//!
//! Algorithm 2 visits tenants in order; each may dispatch a request per credit. When a tenant with requests has no
//! credit left (EXHAUSTED), Algorithm 1 allocates credits anew; when the last tenant was visited (EXPIRED), it renews
//! them as they were. [`Mtda::printed`] allocates by equation (7) and begins again with the first tenant, as printed.
//! [`Mtda::repaired`] has four changes, R1 to R4 below, and no more.

use crate::fifo::Fifo;
use crate::{Cost, Decision, DeferredWork, Grant, Nanos, Preemption, QueueId, Share, TenantId, TenantScheduler, Work};

/// What the credits stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// All credits (CREDIT). The paper gives no value.
    pub credit: u64,
    /// Programmable processors (CM).
    pub cores: u32,
    /// Hardware accelerators (M).
    pub accelerators: u32,
}

impl Default for System {
    fn default() -> Self {
        System { credit: 1_024, cores: 8, accelerators: 0 }
    }
}

/// What a tenant uses of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Processors (CM_i; Algorithm 1 takes whole numbers).
    pub cores: u32,
    /// Accelerators that it relies on (the sum of ACC_t^i over t).
    pub accelerators: u32,
}

impl Default for Occupancy {
    fn default() -> Self {
        Occupancy { cores: 1, accelerators: 0 }
    }
}

#[derive(Debug, Default)]
struct Tenant {
    channel: Fifo,
    occupancy: Occupancy,
    credit: u64,
    current: u64,
}

/// MTDA's scheduler, see the [module](self).
#[derive(Debug)]
pub struct Mtda {
    system: System,
    is_repaired: bool,
    tenants: Vec<Tenant>,
    /// The tenant that Algorithm 2 visits.
    cursor: usize,
    waiting: u64,
    renewals: u64,
    /// Renewals that were allocations.
    reallocations: u64,
    /// Tenants whose need is not met yet, in the repaired allocation. Kept between calls, so that no memory is
    /// allocated.
    unmet: Vec<usize>,
}

/// When an allocation gave no tenant a credit, the printed algorithm allocates again for ever. It is asked again after
/// this.
const SPIN: Nanos = Nanos(10_000);

impl Mtda {
    /// The algorithms as printed.
    ///
    /// Its flaws are the paper's: an integer credit of equation (7) is 0 for a tenant with few requests, and a tenant
    /// that always has requests and exhausts its credits is served for ever if it comes before the others.
    pub fn printed(system: System) -> Mtda {
        Mtda {
            system,
            is_repaired: false,
            tenants: Vec::new(),
            cursor: 0,
            waiting: 0,
            renewals: 0,
            reallocations: 0,
            unmet: Vec::new(),
        }
    }

    /// The algorithms with these changes:
    ///
    /// - **R1, normalised.** Equation (7)'s numerators do not add up to its denominator, so most of CREDIT is given to
    ///   no tenant. Here the credits of tenants that have requests add up to CREDIT, and each gets at least one.
    /// - **R2, in proportion.** `e^CM_i` makes four cores worth twenty times as much as one, and overflows. A tenant's
    ///   part is in proportion to its cores and accelerators, `CM_i + ΣACC_i`.
    /// - **R3, requests are a need, not a bid.** `Req_i` is added to what a tenant gets, so a flood gets more. Here it
    ///   is the most that a tenant gets; what that leaves is for the others ("considering the actual resource demands",
    ///   §III-B).
    /// - **R4, the next one is next.** Algorithm 2 returns at the first exhausted tenant and begins again with the
    ///   first. Here it goes on with the tenant after it.
    pub fn repaired(system: System) -> Mtda {
        Mtda { is_repaired: true, ..Mtda::printed(system) }
    }

    /// Sets what a tenant uses.
    pub fn occupy(&mut self, tenant: TenantId, occupancy: Occupancy) {
        self.tenant(tenant).occupancy = occupancy;
    }

    /// A tenant's credits of the last allocation.
    pub fn credit(&self, tenant: TenantId) -> u64 {
        self.tenants.get(usize::from(tenant.0)).map_or(0, |tenant| tenant.credit)
    }

    /// How often credits were allocated or renewed: what a tenant was granted since is no more than its credit.
    pub fn renewals(&self) -> u64 {
        self.renewals
    }

    /// How often credits were allocated anew: Algorithm 1, EXHAUSTED.
    pub fn reallocations(&self) -> u64 {
        self.reallocations
    }

    fn tenant(&mut self, tenant: TenantId) -> &mut Tenant {
        let index = usize::from(tenant.0);
        if self.tenants.len() <= index {
            self.tenants.resize_with(index + 1, Tenant::default);
        }
        &mut self.tenants[index]
    }

    /// Algorithm 1, EXHAUSTED.
    fn allocate(&mut self) {
        self.reallocations += 1;
        if self.is_repaired {
            self.allocate_by_need();
        } else {
            self.allocate_by_equation_7();
        }
        self.renew();
    }

    /// Algorithm 1, EXPIRED.
    fn renew(&mut self) {
        self.renewals += 1;
        for tenant in &mut self.tenants {
            tenant.current = tenant.credit;
        }
    }

    fn allocate_by_equation_7(&mut self) {
        let System { credit, cores, accelerators } = self.system;
        let requests = |tenant: &Tenant| tenant.channel.waiting() as f64;
        let all =
            f64::from(accelerators).exp() * f64::from(cores).exp() + self.tenants.iter().map(requests).sum::<f64>();
        for tenant in &mut self.tenants {
            let Occupancy { cores, accelerators } = tenant.occupancy;
            let own = f64::from(accelerators).exp() * f64::from(cores).exp() + requests(tenant);
            // Credits are integers (Algorithm 1). What is no number is 0.
            tenant.credit = (own / all * credit as f64) as u64;
        }
    }

    /// R1 to R3: credits in proportion to what each tenant uses, up to its requests; what that leaves goes to the
    /// others.
    fn allocate_by_need(&mut self) {
        self.unmet.clear();
        for (index, tenant) in self.tenants.iter_mut().enumerate() {
            tenant.credit = 0;
            if tenant.channel.waiting() > 0 {
                self.unmet.push(index);
            }
        }
        let part = |tenant: &Tenant| u64::from(tenant.occupancy.cores + tenant.occupancy.accelerators).max(1);
        let mut left = self.system.credit.max(1);
        // Each pass meets the need of a tenant or is the last.
        while !self.unmet.is_empty() && left > 0 {
            let parts: u64 = self.unmet.iter().map(|&index| part(&self.tenants[index])).sum();
            let per_part = left / parts;
            let before = self.unmet.len();
            let tenants = &mut self.tenants;
            self.unmet.retain(|&index| {
                let tenant = &mut tenants[index];
                let needs = tenant.channel.waiting();
                if needs > per_part.saturating_mul(part(tenant)) {
                    return true;
                }
                tenant.credit = needs;
                left = left.saturating_sub(needs);
                false
            });
            if self.unmet.len() == before {
                for &index in &self.unmet {
                    let tenant = &mut self.tenants[index];
                    tenant.credit = (per_part * part(tenant)).max(1);
                }
                return;
            }
        }
        for &index in &self.unmet {
            self.tenants[index].credit = 1;
        }
    }
}

impl Preemption for Mtda {}
impl DeferredWork for Mtda {}

impl TenantScheduler for Mtda {
    /// Weights are not MTDA's: a tenant's part comes from what it [occupies](Mtda::occupy), of which a share may say
    /// the cores.
    fn configure(&mut self, tenant: TenantId, share: Share) {
        let tenant = self.tenant(tenant);
        if share.cores > 0 {
            tenant.occupancy.cores = share.cores.into();
        }
    }

    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        self.waiting += u64::from(work.units);
        self.tenant(queue.tenant).channel.push(now, queue, work.units);
    }

    fn decide(&mut self, now: Nanos) -> Decision {
        if self.waiting == 0 {
            return Decision::Idle;
        }
        // Algorithm 2. Two passes over all tenants, with an allocation between, find a tenant that may run if there is
        // one.
        for _ in 0..self.tenants.len() * 3 {
            let tenant = &mut self.tenants[self.cursor];
            if tenant.channel.waiting() == 0 {
                self.cursor += 1;
                if self.cursor == self.tenants.len() {
                    self.renew();
                    self.cursor = 0;
                }
                continue;
            }
            if tenant.current == 0 {
                self.allocate();
                self.cursor = if self.is_repaired { (self.cursor + 1) % self.tenants.len() } else { 0 };
                continue;
            }
            let most = u32::try_from(tenant.current).unwrap_or(u32::MAX).min(crate::Fcfs::BATCH);
            let Some((grant, _)) = tenant.channel.pop(most) else { break };
            tenant.current -= u64::from(grant.units);
            self.waiting -= u64::from(grant.units);
            return Decision::Run(grant);
        }
        Decision::IdleUntil(now + SPIN)
    }

    fn charge(&mut self, _now: Nanos, _grant: Grant, _cost: Cost) {}

    fn cancel(&mut self, _now: Nanos, queue: QueueId) {
        self.tenant(queue.tenant).channel.cancel(queue);
        self.waiting = self.tenants.iter().map(|tenant| tenant.channel.waiting()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Arrivals, Client, Driver};

    const MS: u64 = 1_000_000;

    /// Two cores, each tenant on one: e / (e² + ΣReq) of 1024.
    const SMALL: System = System { credit: 1_024, cores: 2, accelerators: 0 };

    #[test]
    fn equation_7_is_as_printed() {
        let mut mtda = Mtda::printed(SMALL);
        for (tenant, requests) in [(0, 30), (1, 10)] {
            let queue = QueueId { tenant: TenantId(tenant), index: tenant.into() };
            mtda.ready(Nanos(0), queue, Work { units: requests, bytes: 0 });
        }
        mtda.allocate();
        let of = |requests: f64| ((1_f64.exp() + requests) / (2_f64.exp() + 40.0) * 1_024.0) as u64;
        assert_eq!([mtda.credit(TenantId(0)), mtda.credit(TenantId(1))], [of(30.0), of(10.0)]);
        assert!(mtda.credit(TenantId(0)) > 2 * mtda.credit(TenantId(1)), "the longer queue gets more");
    }

    #[test]
    fn printed_a_few_requests_are_worth_no_credit() {
        let mut mtda = Mtda::printed(System::default());
        let queue = QueueId { tenant: TenantId(0), index: 0 };
        mtda.ready(Nanos(0), queue, Work { units: 0, bytes: 0 });
        mtda.ready(Nanos(0), queue, Work { units: 1, bytes: 0 });
        assert_eq!(mtda.decide(Nanos(0)), Decision::Run(Grant { queue, units: 1 }));
        let mut large = Mtda::printed(System { cores: 16, ..System::default() });
        large.ready(Nanos(0), queue, Work { units: 1, bytes: 0 });
        assert!(matches!(large.decide(Nanos(0)), Decision::IdleUntil(_)), "never served");
    }

    #[test]
    fn printed_a_first_tenant_that_floods_starves_the_others() {
        let clients =
            [Client::flood(0, 0, 1_000), Client::new(1, 1, 1_000, Arrivals::Open { units: 1, every: 100_000 })];
        let mut driver = Driver::new(Mtda::printed(SMALL), &clients);
        driver.run(100 * MS);
        assert_eq!(driver.units_of(1, 0), 0, "not once in a thousand requests");
    }

    #[test]
    fn repaired_no_tenant_starves_and_equal_tenants_have_equal_numbers() {
        let clients: Vec<Client> = (0..4).map(|at| Client::flood(at, at.into(), 1_000)).collect();
        let mut driver = Driver::new(Mtda::repaired(SMALL), &clients);
        driver.run(400 * MS);
        for tenant in 0..4 {
            let part = driver.units_of(tenant, 0) as f64 / 400_000.0;
            assert!((part - 0.25).abs() < 0.005, "{part}");
        }
        let clients =
            [Client::flood(0, 0, 1_000), Client::new(1, 1, 1_000, Arrivals::Open { units: 1, every: 100_000 })];
        let mut driver = Driver::new(Mtda::repaired(SMALL), &clients);
        driver.run(100 * MS);
        assert!(driver.units_of(1, 0) >= 990, "{}", driver.units_of(1, 0));
    }

    #[test]
    fn a_tenant_served_on_more_cores_has_more_credits() {
        let mut mtda = Mtda::repaired(System { credit: 900, cores: 2, accelerators: 0 });
        for (tenant, cores) in [(0, 2), (1, 1)] {
            mtda.configure(TenantId(tenant), Share { cores, ..Share::default() });
            let queue = QueueId { tenant: TenantId(tenant), index: tenant.into() };
            mtda.ready(Nanos(0), queue, Work { units: 5_000, bytes: 0 });
        }
        mtda.allocate();
        assert_eq!([0, 1].map(|tenant| mtda.credit(TenantId(tenant))), [600, 300]);
        // A share that names no cores changes nothing.
        mtda.configure(TenantId(0), Share::default());
        mtda.allocate();
        assert_eq!(mtda.credit(TenantId(0)), 600);
    }

    #[test]
    fn repaired_credits_add_up_and_are_in_proportion_to_cores() {
        let mut mtda = Mtda::repaired(System { credit: 1_000, cores: 8, accelerators: 0 });
        for (tenant, cores, requests) in [(0, 4, 5_000), (1, 1, 5_000), (2, 3, 10)] {
            mtda.occupy(TenantId(tenant), Occupancy { cores, accelerators: 0 });
            let queue = QueueId { tenant: TenantId(tenant), index: tenant.into() };
            mtda.ready(Nanos(0), queue, Work { units: requests, bytes: 0 });
        }
        mtda.allocate();
        assert_eq!([0, 1, 2].map(|tenant| mtda.credit(TenantId(tenant))), [792, 198, 10]);
    }
}
