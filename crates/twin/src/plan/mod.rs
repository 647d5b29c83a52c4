//! What a demand takes of a server, and what that costs beside a DPU (ZOC §6.1).
//!
//! ```text
//!   Demand ──┐
//!   Rates ───┼─▶ plan ─▶ Plan: a ServicePlan each of network and storage, and the control plane's half in each
//!   Prices ──┘
//! ```
//!
//! A service needs as many cores as the greatest of its demands. Its memory is in proportion to its cores, or what its
//! live connections need where that is more. The price of cores and memory is linear, as in the paper.

mod price;
mod rates;
#[cfg(test)]
mod tests;

pub use price::{Prices, Resources};
pub use rates::{Curve, Rates, RatesError};

/// What a demand is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Packets a second, small ones.
    Packets,
    /// Bits a second of the network.
    NetworkBits,
    /// New connections a second.
    Connections,
    /// Connections that live at a time.
    LiveConnections,
    /// Requests of 4 KiB a second, at random places of disks.
    Requests,
    /// Bytes a second of disks.
    DiskBytes,
}

/// Which half of a DPU does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// The VPC's data plane.
    Network,
    /// Disks.
    Storage,
}

impl Service {
    /// Both.
    pub const ALL: [Service; 2] = [Service::Network, Service::Storage];

    /// Its name, one word.
    pub fn name(self) -> &'static str {
        match self {
            Service::Network => "network",
            Service::Storage => "storage",
        }
    }
}

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 6] = [
        Metric::Packets,
        Metric::NetworkBits,
        Metric::Connections,
        Metric::LiveConnections,
        Metric::Requests,
        Metric::DiskBytes,
    ];

    /// The service that it is asked of.
    pub fn service(self) -> Service {
        match self {
            Metric::Packets | Metric::NetworkBits | Metric::Connections | Metric::LiveConnections => Service::Network,
            Metric::Requests | Metric::DiskBytes => Service::Storage,
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::Packets => "packets/s",
            Metric::NetworkBits => "bit/s",
            Metric::Connections => "connections/s",
            Metric::LiveConnections => "live connections",
            Metric::Requests => "IOPS",
            Metric::DiskBytes => "B/s",
        }
    }
}

/// What is asked of a server: each metric at most once, in its unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demand {
    wanted: Vec<(Metric, f64)>,
}

impl Demand {
    /// Asks for so much, in place of what was asked for of this metric. Zero asks for nothing.
    pub fn ask(&mut self, metric: Metric, amount: f64) {
        self.wanted.retain(|(other, _)| *other != metric);
        if amount > 0.0 {
            self.wanted.push((metric, amount));
        }
    }

    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    fn of(&self, service: Service) -> impl Iterator<Item = (Metric, f64)> + '_ {
        self.wanted.iter().copied().filter(move |(metric, _)| metric.service() == service)
    }
}

/// What one of its demands takes of a service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Need {
    /// Which.
    pub metric: Metric,
    /// How much of it is asked for, in its unit.
    pub wanted: f64,
    /// The cores that it takes, not rounded; 0 of what takes memory alone.
    pub cores: f64,
    /// Where a service for this metric alone costs what its half of a DPU does, in its unit. Less is cheaper without a
    /// DPU. `None`: it costs more from the first.
    pub break_even: Option<f64>,
    /// Where a DPU stops, in the metric's unit, if that is known.
    pub dpu_limit: Option<f64>,
}

/// What a service takes.
#[derive(Clone, Debug, PartialEq)]
pub struct ServicePlan {
    /// Which.
    pub service: Service,
    /// Its data plane: whole cores.
    pub resources: Resources,
    /// The price of these.
    pub price: f64,
    /// The same with half of the control plane.
    pub total: f64,
    /// Half of a DPU's price.
    pub dpu: f64,
    /// What each of its demands takes, the one that takes the most cores first.
    pub needs: Vec<Need>,
}

impl ServicePlan {
    /// Its price over that of its half of a DPU.
    pub fn ratio(&self) -> f64 {
        self.total / self.dpu
    }
}

/// What a demand takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Each service that anything is asked of.
    pub services: Vec<ServicePlan>,
    /// The control plane. Each service bears half of its price.
    pub control: Resources,
    /// Its price.
    pub control_price: f64,
}

/// What `demand` takes at these rates, and costs at these prices.
///
/// # Errors
/// The rate of something that is asked for is not known.
pub fn plan(demand: &Demand, rates: &Rates, prices: &Prices) -> Result<Plan, RatesError> {
    let control_price = prices.of(prices.control);
    let mut services = Vec::new();
    for service in Service::ALL {
        let mut needs = Vec::new();
        for (metric, wanted) in demand.of(service) {
            needs.push(Need {
                metric,
                wanted,
                cores: rates.cores(metric, wanted)?,
                break_even: break_even(metric, rates, prices)?,
                dpu_limit: rates.dpu_limit(metric),
            });
        }
        if needs.is_empty() {
            continue;
        }
        needs.sort_by(|one, other| other.cores.total_cmp(&one.cores));
        // Rates are measured to a few digits: what is within a thousandth of a whole core is that.
        let most = needs.iter().map(|need| need.cores).fold(0.0, f64::max);
        let cores = (most - 0.001).ceil().max(1.0);
        let live = needs.iter().filter(|need| need.metric == Metric::LiveConnections).map(|need| need.wanted);
        let memory = rates.memory(cores, live.sum());
        let resources = Resources { cores, memory };
        let price = prices.of(resources);
        services.push(ServicePlan {
            service,
            resources,
            price,
            total: price + control_price / 2.0,
            dpu: prices.dpu() / 2.0,
            needs,
        });
    }
    Ok(Plan { services, control: prices.control, control_price })
}

/// What a service for a metric alone costs at `amount`, in fractions of cores.
pub fn price_of(metric: Metric, amount: f64, rates: &Rates, prices: &Prices) -> Result<f64, RatesError> {
    let cores = rates.cores(metric, amount)?;
    let live = if metric == Metric::LiveConnections { amount } else { 0.0 };
    Ok(prices.of(Resources { cores, memory: rates.memory(cores, live) }) + prices.of(prices.control) / 2.0)
}

/// Where [`price_of`] reaches the price of half a DPU.
fn break_even(metric: Metric, rates: &Rates, prices: &Prices) -> Result<Option<f64>, RatesError> {
    let is_cheaper = |amount| price_of(metric, amount, rates, prices).map(|price| price < prices.dpu() / 2.0);
    if !is_cheaper(0.0)? {
        return Ok(None);
    }
    let (mut least, mut most) = (0.0, 1.0);
    while is_cheaper(most)? {
        (least, most) = (most, most * 2.0);
        if most > 1e15 {
            // Cores and memory cost nothing.
            return Ok(Some(f64::INFINITY));
        }
    }
    for _ in 0..64 {
        let middle = (least + most) / 2.0;
        if is_cheaper(middle)? { least = middle } else { most = middle }
    }
    Ok(Some(least))
}
