//! `softdpu plan`: what a demand takes of a server, and costs beside a DPU.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use softdpu_plot::{Lines, Panel, Table};
use softdpu_site::{BitsPerSecond, BytesPerSecond};
use softdpu_twin::plan::{Demand, Metric, Need, Plan, Prices, Rates, Resources, Service, ServicePlan, plan, price_of};

use crate::output;

/// Columns of the table.
const WIDTH: usize = 100;

/// Points of a line of a plot.
const POINTS: u32 = 24;

/// `softdpu plan`
#[derive(Debug, Args)]
pub struct PlanOptions {
    /// Small packets a second, such as 6M
    #[arg(long, value_name = "N", value_parser = amount)]
    packets: Option<f64>,
    /// What the network carries, such as "38 Gbit/s"
    #[arg(long, value_name = "RATE")]
    network_bandwidth: Option<BitsPerSecond>,
    /// New connections a second, such as 200k
    #[arg(long, value_name = "N", value_parser = amount)]
    connections: Option<f64>,
    /// Connections that live at a time, such as 4M
    #[arg(long, value_name = "N", value_parser = amount)]
    live_connections: Option<f64>,
    /// Requests of 4 KiB to disks a second, such as 550k
    #[arg(long, value_name = "N", value_parser = amount)]
    iops: Option<f64>,
    /// What disks read and write, such as "4 GB/s"
    #[arg(long, value_name = "RATE")]
    disk_bandwidth: Option<BytesPerSecond>,

    /// Use rates measured on a host, from the output of `softdpu bench … --json`, in place of the paper's
    #[arg(long, value_name = "FILE")]
    rates: Option<PathBuf>,
    /// The price of a logical core
    #[arg(long, value_name = "PRICE", default_value_t = Prices::PAPER.core, value_parser = price)]
    core_price: f64,
    /// The price of a GB of memory
    #[arg(long, value_name = "PRICE", default_value_t = Prices::PAPER.memory, value_parser = price)]
    memory_price: f64,
    /// What a DPU costs beyond a plain network card
    #[arg(long, value_name = "PRICE", default_value_t = Prices::PAPER.dpu, value_parser = price)]
    dpu_price: f64,
    /// The share of a DPU that is used, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = Prices::PAPER.dpu_share, value_parser = share)]
    dpu_share: f64,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Draw prices by demand into FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// A count with an optional factor: k, M or G.
fn amount(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.trim_end_matches(['k', 'M', 'G']) {
        number if number.len() == text.len() => (number, 1.0),
        number if text.len() - number.len() == 1 => (
            number,
            match text.as_bytes().last() {
                Some(b'k') => 1e3,
                Some(b'M') => 1e6,
                _ => 1e9,
            },
        ),
        _ => (text, f64::NAN),
    };
    let amount = number.trim().parse::<f64>().unwrap_or(f64::NAN) * factor;
    if (0.0..=1e15).contains(&amount) {
        Ok(amount)
    } else {
        Err("expected a number up to 10^15 such as 250000, 550k or 6M".to_owned())
    }
}

fn price(text: &str) -> Result<f64, String> {
    let price = text.parse::<f64>().unwrap_or(f64::NAN);
    if (0.0..=1e12).contains(&price) { Ok(price) } else { Err("expected a price, such as 95 or 3.5".to_owned()) }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().unwrap_or(f64::NAN);
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("expected a share from 0 to 1, such as 0.6".to_owned()) }
}

/// Runs the command.
pub fn execute(options: &PlanOptions) -> Result<(), String> {
    let demand = options.demand();
    if demand.is_empty() {
        return Err("nothing is asked for: add --packets, --network-bandwidth, --connections, --live-connections, --iops or --disk-bandwidth".to_owned());
    }
    let rates = options.rates()?;
    let prices = options.prices();
    let plan = plan(&demand, &rates, &prices).map_err(|error| error.to_string())?;
    output::print(&if options.json { format!("{}\n", object(&plan, &rates)) } else { text(&plan, &rates) })?;
    match &options.plot {
        Some(path) => {
            draw(&plan, &rates, &prices, path).map_err(|error| format!("writing {}: {error}", path.display()))
        }
        None => Ok(()),
    }
}

impl PlanOptions {
    fn demand(&self) -> Demand {
        let mut demand = Demand::default();
        let asked = [
            (Metric::Packets, self.packets),
            (Metric::NetworkBits, self.network_bandwidth.map(|rate| rate.0 as f64)),
            (Metric::Connections, self.connections),
            (Metric::LiveConnections, self.live_connections),
            (Metric::Requests, self.iops),
            (Metric::DiskBytes, self.disk_bandwidth.map(|rate| rate.0 as f64)),
        ];
        for (metric, amount) in asked {
            demand.ask(metric, amount.unwrap_or(0.0));
        }
        demand
    }

    fn rates(&self) -> Result<Rates, String> {
        let Some(path) = &self.rates else { return Ok(Rates::paper()) };
        let lines = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = format!("{}, medians, one core", path.display());
        Rates::measured(&lines, &name).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn prices(&self) -> Prices {
        Prices {
            core: self.core_price,
            memory: self.memory_price,
            dpu: self.dpu_price,
            dpu_share: self.dpu_share,
            ..Prices::PAPER
        }
    }
}

/// A plan for people.
fn text(plan: &Plan, rates: &Rates) -> String {
    let mut table = Table::new(["SERVICE", "CORES>", "MEMORY>", "PRICE>", "WITH CONTROL>", "HALF A DPU>", "RATIO>"]);
    for service in &plan.services {
        table.row(vec![
            service.service.name().to_owned(),
            service.resources.cores.to_string(),
            memory(service.resources),
            money(service.price),
            money(service.total),
            money(service.dpu),
            if service.dpu > 0.0 { format!("{:.0} %", service.ratio() * 100.0) } else { "-".to_owned() },
        ]);
    }
    table.row(vec![
        "control plane".to_owned(),
        plan.control.cores.to_string(),
        memory(plan.control),
        money(plan.control_price),
        String::new(),
        String::new(),
        String::new(),
    ]);
    let mut needs = Table::new(["DEMAND", "CORES>", "CHEAPER THAN HALF A DPU", "A DPU STOPS AT"]);
    for need in plan.services.iter().flat_map(|service| &service.needs) {
        needs.row(vec![
            quantity(need.metric, need.wanted),
            if need.metric == Metric::LiveConnections { "memory".to_owned() } else { format!("{:.2}", need.cores) },
            break_even(need),
            need.dpu_limit.map_or_else(|| "-".to_owned(), |limit| quantity(need.metric, limit)),
        ]);
    }
    let mut text = format!("{}\n{}\nrates: {}\n", table.fit(WIDTH), needs.fit(WIDTH), rates.source);
    for need in plan.services.iter().flat_map(|service| &service.needs) {
        if let Some(limit) = need.dpu_limit.filter(|limit| need.wanted > *limit) {
            let (wanted, limit) = (quantity(need.metric, need.wanted), quantity(need.metric, limit));
            let _ = writeln!(text, "one DPU does not reach {wanted}: it stops at {limit}");
        }
    }
    text
}

fn break_even(need: &Need) -> String {
    match need.break_even {
        None => "never".to_owned(),
        Some(at) if at.is_infinite() => "always".to_owned(),
        Some(at) => format!("up to {}", quantity(need.metric, at)),
    }
}

fn memory(resources: Resources) -> String {
    format!("{:.0} GB", resources.memory.ceil())
}

fn money(amount: f64) -> String {
    format!("${amount:.0}")
}

/// An amount with three digits and its unit.
fn quantity(metric: Metric, amount: f64) -> String {
    let (scaled, prefix) = scaled(amount);
    format!("{scaled} {}", unit(metric, prefix))
}

/// The unit with a prefix: of bits and bytes one word, of what is counted two.
fn unit(metric: Metric, prefix: &str) -> String {
    match metric {
        Metric::NetworkBits | Metric::DiskBytes => format!("{prefix}{}", metric.unit()),
        _ if prefix.is_empty() => metric.unit().to_owned(),
        _ => format!("{prefix} {}", metric.unit()),
    }
}

fn scaled(amount: f64) -> (String, &'static str) {
    let (value, prefix) = match amount {
        amount if amount >= 1e9 => (amount / 1e9, "G"),
        amount if amount >= 1e6 => (amount / 1e6, "M"),
        amount if amount >= 1e3 => (amount / 1e3, "k"),
        amount => (amount, ""),
    };
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text };
    (text, prefix)
}

/// A plan for programs.
fn object(plan: &Plan, rates: &Rates) -> Value {
    let resources = |of: Resources| json!({ "cores": of.cores, "memory_gb": of.memory });
    let need = |need: &Need| {
        json!({
            "unit": need.metric.unit(), "wanted": need.wanted, "cores": need.cores,
            // JSON has no infinity; cores and memory cost nothing then.
            "break_even": need.break_even.filter(|at| at.is_finite()), "dpu_limit": need.dpu_limit,
        })
    };
    let service = |service: &ServicePlan| {
        json!({
            "service": service.service.name(), "data_plane": resources(service.resources), "price": service.price,
            "price_with_control": service.total, "half_dpu_price": service.dpu,
            "needs": service.needs.iter().map(need).collect::<Vec<_>>(),
        })
    };
    json!({
        "rates": rates.source,
        "control_plane": resources(plan.control),
        "control_plane_price": plan.control_price,
        "services": plan.services.iter().map(service).collect::<Vec<_>>(),
    })
}

/// Price by demand, a panel for each demand: a service for it alone, in fractions of cores, beside half a DPU.
fn draw(plan: &Plan, rates: &Rates, prices: &Prices, path: &Path) -> Result<(), String> {
    let mut panels = Vec::new();
    for service in &plan.services {
        for need in &service.needs {
            let break_even = need.break_even.filter(|at| at.is_finite()).unwrap_or(0.0);
            let end = 1.5 * need.wanted.max(break_even);
            // Two digits of an axis are left of the point.
            let units = [("G", 1e9), ("M", 1e6), ("k", 1e3)];
            let (prefix, scale) = units.into_iter().find(|(_, unit)| end >= 10.0 * unit).unwrap_or(("", 1.0));
            let (mut cores, mut dpu) = (Vec::new(), Vec::new());
            for point in 0..=POINTS {
                let amount = end * f64::from(point) / f64::from(POINTS);
                let price = price_of(need.metric, amount, rates, prices).map_err(|error| error.to_string())?;
                cores.push((amount / scale, price));
                if need.dpu_limit.is_none_or(|limit| amount <= limit) {
                    dpu.push((amount / scale, service.dpu));
                }
            }
            let lines = Lines::from([("softdpu".to_owned(), cores), ("half a DPU, as far as it goes".to_owned(), dpu)]);
            let title = format!(
                "Price of {}",
                match service.service {
                    Service::Network => "the network",
                    Service::Storage => "disks",
                }
            );
            panels.push(Panel::new(title, unit(need.metric, prefix), lines, money));
        }
    }
    softdpu_plot::draw(&panels, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_a_factor_or_none_and_nothing_else() {
        for (text, expected) in [("6M", 6e6), ("550k", 550e3), ("1.5 G", 1.5e9), ("250000", 250e3), ("0", 0.0)] {
            assert_eq!(amount(text), Ok(expected), "{text}");
        }
        for text in ["", "M", "6MM", "6kM", "-1", "nan", "inf", "6 packets", "1e16", "2000000G"] {
            assert!(amount(text).is_err(), "{text}");
        }
        assert_eq!(share("0.6"), Ok(0.6));
        assert!(share("1.1").is_err() && price("-1").is_err() && price("NaN").is_err());
    }

    #[test]
    fn the_papers_example_is_a_table() {
        let mut demand = Demand::default();
        demand.ask(Metric::Packets, 6e6);
        let rates = Rates::paper();
        let plan = plan(&demand, &rates, &Prices::PAPER).unwrap();
        assert_eq!(
            text(&plan, &rates),
            "SERVICE        CORES  MEMORY  PRICE  WITH CONTROL  HALF A DPU  RATIO\n\
             network            4    8 GB   $412          $515        $750   69 %\n\
             control plane      2    4 GB   $206\n\
             \n\
             DEMAND         CORES  CHEAPER THAN HALF A DPU  A DPU STOPS AT\n\
             6 M packets/s   4.00  up to 9.42 M packets/s   22 M packets/s\n\
             \n\
             rates: ZOC §6, Intel Ice Lake\n"
        );
    }

    #[test]
    fn what_one_dpu_does_not_reach_is_said() {
        let mut demand = Demand::default();
        demand.ask(Metric::Requests, 1.06e6);
        demand.ask(Metric::LiveConnections, 16e6);
        let rates = Rates::paper();
        let plan = plan(&demand, &rates, &Prices::PAPER).unwrap();
        let text = text(&plan, &rates);
        assert!(text.contains("one DPU does not reach 1.06 M IOPS: it stops at 500 k IOPS"), "{text}");
        assert!(
            text.contains("one DPU does not reach 16 M live connections: it stops at 4 M live connections"),
            "{text}"
        );
        let object = object(&plan, &rates);
        assert_eq!(object["services"][1]["data_plane"]["cores"], 8.0, "{object}");
    }
}
