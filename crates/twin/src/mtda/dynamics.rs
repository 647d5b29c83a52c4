//! Figs. 12 and 13: what happens over time.

use std::sync::Arc;

use softdpu_plot::{Lines, Panel, Scale};

use super::balancing::Balanced;
use super::run::{self, Case, System};
use super::{Figure, Scope, setup};
use crate::arrivals::{self, Arrivals};
use crate::figure::{Margin, above};
use crate::histogram::Histogram;

/// Windows that time is divided into.
const WINDOWS: u64 = 45;

/// A tenant with so much less than the tenant with most has less: "a notable drop" (§V-E) is no more exact.
const DROP: f64 = 5.0;

/// Fig. 12. The paper's 45 s are 45 windows here; how long one is does not matter to a load that does not change.
pub(super) fn stability(scope: &Scope) -> Figure {
    let mut figure = Figure::new("mtda-fig12", "Fig. 12: throughput of three tenants over time, balanced, 1024 B");
    let case = Case::new(3, true, 1024, &scope.constants);
    let mut spreads: Vec<(System, Vec<f64>, Vec<f64>)> = Vec::new();
    for system in System::ALL {
        let mut node = run::started(system, &case, scope);
        let (window, from) = (scope.span / WINDOWS, scope.span / 4);
        node.watch.window = window;
        node.run(from + window * WINDOWS - 1);
        let (mut drawn, mut means, mut varies) = (Lines::new(), Vec::new(), Vec::new());
        for (tenant, tally) in node.watch.tenants.iter().enumerate() {
            let bytes = |at: u64| tally.windows.get(at as usize).map_or(0, |seen| seen.bytes);
            let of = |at: u64| bytes(at) as f64 * 8.0 / window as f64;
            let series: Vec<f64> = (0..WINDOWS).map(of).collect();
            let mean = series.iter().sum::<f64>() / WINDOWS as f64;
            let variance = series.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / WINDOWS as f64;
            let name = format!("tenant {} ({})", tenant + 1, case.tenants[tenant].0.name());
            let variation = variance.sqrt() / mean.max(f64::MIN_POSITIVE) * 100.0;
            figure.point(system, name.clone(), "throughput", "Gbit/s", mean);
            figure.point(system, name.clone(), "variation", "%", variation);
            drawn.insert(name, (1_u32..).map(f64::from).zip(series).collect());
            means.push(mean);
            varies.push(variation);
        }
        let title = format!("{}: throughput by window of time", system.title());
        figure.panels.push(Panel::new(title, "window", drawn, |value| format!("{value:.0} Gbit/s")));
        spreads.push((system, means, varies));
    }
    let of = |system: System| spreads.iter().find(|(which, ..)| *which == system);
    let most = |system: System| of(system).map_or(0.0, |(_, _, varies)| varies.iter().copied().fold(0.0, f64::max));
    for fluctuating in [System::Dpdk, System::Ipipe] {
        let more = [System::FairNic, System::LogNic, System::Mtda].map(|stable| Margin {
            label: stable.title().to_owned(),
            unit: "pp",
            value: most(fluctuating) - most(stable),
        });
        figure.order(
            format!("{} fluctuates more than FairNIC, LogNIC and MTDA (§V-E)", fluctuating.title()),
            more.into(),
        );
    }
    let uneven = |system: System| {
        let means = of(system).map_or(&[][..], |(_, means, _)| means.as_slice());
        let most = means.iter().copied().fold(0.0, f64::max);
        (1.0 - means.iter().copied().fold(f64::MAX, f64::min) / most.max(f64::MIN_POSITIVE)) * 100.0
    };
    for system in [System::FairNic, System::LogNic] {
        let drop = Margin { label: "the least beside the most".to_owned(), unit: "pp", value: uneven(system) - DROP };
        let what = format!("{}: one tenant has less than the others (§V-E; here by 5 % at least)", system.title());
        figure.order(what, vec![drop]);
    }
    let total: f64 = of(System::Mtda).map_or(0.0, |(_, means, _)| means.iter().sum());
    let line = case.line_rate() * f64::from(case.size) * 8.0 / 1e9;
    figure.order("MTDA: nearly line rate (§V-E; here at least 95 %)", vec![above("all", total, 0.95 * line, 1.0)]);
    figure.notes = setup::assumptions(&scope.constants);
    figure.notes.push("Table IV has no three tenants: they are assumed to be rta, fm and router.".to_owned());
    figure
}

/// Seconds of the figure, and that at which the burst begins (§V-E).
const SECONDS: u64 = 30;
const BURST: u64 = 8;
/// The second from which on the burst is judged: until then what holds tenants up may act on it.
const SETTLED: u64 = 20;

/// Fig. 13. A second of the paper's is a window here.
///
/// Before the burst all tenants send as much. In it they send at Table IV's rates, so that the first needs more cores
/// than it had, and others too. Nothing that is static learns of that. The balancer of the systems that have one is
/// asked each second, as a daemon's is; equation (7) gives credits where tenants then share cores.
pub(super) fn burst(scope: &Scope) -> Figure {
    let constants = &scope.constants;
    let mut figure = Figure::new("mtda-fig13", "Fig. 13: p99 latency of four tenants, a burst from the 8th second on");
    let mut case = Case::new(4, true, constants.burst_size as u32, constants);
    // Cores and parts are those of the light load: the burst is not known.
    case.load = constants.burst_before;
    let rates = Case { load: constants.burst, ..Case::new(4, false, case.size, constants) };
    let mut settled: Vec<(System, f64)> = Vec::new();
    let mut drawn = Lines::new();
    for system in System::ALL {
        let second = scope.span / 15;
        let from = scope.span / 4;
        let steps = |tenant: usize| -> Arc<[(u64, u64)]> {
            [(0, arrivals::gap(case.rate(tenant))), (from + BURST * second, arrivals::gap(rates.rate(tenant)))].into()
        };
        let mut node = run::started_with(system, &case, scope, |tenant| Arrivals::Steps(steps(tenant)));
        node.watch.window = second;
        let mut balanced = Balanced::new(node, case.tenants.len());
        balanced.run(from);
        for _ in 0..SECONDS {
            balanced.run(second);
            if matches!(system, System::Mtda | System::MtdaPrinted | System::Weighted) {
                balanced.balance(second);
            }
        }
        let moved = balanced.moved();
        let node = balanced.into_node();
        let reallocated = node.reallocations();
        let mut series = vec![Histogram::default(); SECONDS as usize];
        for tally in &node.watch.tenants {
            series.iter_mut().zip(&tally.windows).for_each(|(all, window)| all.merge(&window.latency));
        }
        let tails: Vec<f64> = series.iter().map(|window| window.quantile(0.99) as f64 / 1e3).collect();
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
        let before = mean(&tails[..BURST as usize]);
        let begins = mean(&tails[BURST as usize..BURST as usize + 3]);
        let after = mean(&tails[SETTLED as usize..]);
        figure.point(system, "before", "latency-p99", "us", before);
        figure.point(system, "first 3 seconds of the burst", "latency-p99", "us", begins);
        figure.point(system, "in the burst, from the 20th second", "latency-p99", "us", after);
        figure.point(system, "whole run", "queues moved", "1", moved as f64);
        figure.point(system, "whole run", "credits reallocated", "1", reallocated as f64);
        settled.push((system, after));
        drawn.insert(system.name().to_owned(), (1_u32..).map(f64::from).zip(tails).collect());
    }
    let panel = Panel::new("p99 latency of all tenants", "second of the paper's, a window here", drawn, |v| {
        format!("{v:.0} us")
    });
    figure.panels.push(panel.scales(Scale::Linear, Scale::Log));
    let of = |system: System| settled.iter().find(|found| found.0 == system).map_or(0.0, |found| found.1);
    let static_ones = [System::Dpdk, System::FairNic, System::LogNic];
    for other in static_ones {
        let margin = above(other.title(), of(System::Mtda), of(other), -1.0);
        figure.order(format!("in the burst {}'s tail is above MTDA's (§V-E)", other.title()), vec![margin]);
    }
    let ipipe = static_ones.map(|other| above(other.title(), of(System::Ipipe), of(other), -1.0));
    figure.order("in the burst iPipe's tail is below DPDK's, FairNIC's and LogNIC's (§V-E)", ipipe.into());
    let margin = above("iPipe", of(System::Mtda), of(System::Ipipe), -1.0);
    figure.order("in the burst iPipe's tail is above MTDA's: migration (§V-E)", vec![margin]);
    figure.notes = setup::assumptions(constants);
    figure.notes.push(format!(
        "assumed: {} of the line, all tenants alike, then {}, at Table IV's rates; {} B. MTDA's balancer and weighted's \
         is asked each second.",
        constants.burst_before, constants.burst, case.size
    ));
    figure
}
