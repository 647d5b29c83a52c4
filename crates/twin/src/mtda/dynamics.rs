//! Figs. 12 and 13: what happens over time.

use std::sync::Arc;

use softdpu_plot::{Lines, Panel, Scale};

use super::run::{self, Case, System};
use super::{Figure, Scope, setup};
use crate::arrivals::{self, Arrivals};

/// Windows that time is divided into.
const WINDOWS: u64 = 45;

/// Fig. 12. The paper's 45 s are 45 windows here; how long one is does not matter to a load that does not change.
pub(super) fn stability(scope: &Scope) -> Figure {
    let mut figure = Figure::new("mtda-fig12", "Fig. 12: throughput of three tenants over time, balanced, 1024 B");
    let case = Case::new(3, true, 1024);
    let mut spreads: Vec<(System, Vec<f64>, Vec<f64>)> = Vec::new();
    for system in System::ALL {
        let mut node = run::started(system, &case, scope);
        let (window, from) = (scope.span / WINDOWS, scope.span / 4);
        node.watch.window = window;
        node.run(from + window * WINDOWS - 1);
        let (mut drawn, mut means, mut varies) = (Lines::new(), Vec::new(), Vec::new());
        for (tenant, tally) in node.watch.tenants.iter().enumerate() {
            let of = |at: u64| tally.windows.get(at as usize).map_or(0, |seen| seen.bytes) as f64 * 8.0 / window as f64;
            let series: Vec<f64> = (0..WINDOWS).map(of).collect();
            let mean = series.iter().sum::<f64>() / WINDOWS as f64;
            let variance = series.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / WINDOWS as f64;
            let name = format!("tenant {} ({})", tenant + 1, case.tenants[tenant].0.name());
            figure.point(system, name.clone(), "throughput", "Gbit/s", mean);
            figure.point(system, name.clone(), "variation", "%", variance.sqrt() / mean * 100.0);
            drawn.insert(name, (1_u32..).map(f64::from).zip(series).collect());
            means.push(mean);
            varies.push(variance.sqrt() / mean * 100.0);
        }
        let title = format!("{}: throughput by window of time", system.title());
        figure.panels.push(Panel::new(title, "window", drawn, |value| format!("{value:.0} Gbit/s")));
        spreads.push((system, means, varies));
    }
    let of = |system: System| spreads.iter().find(|(which, ..)| *which == system);
    let most = |system: System| of(system).map_or(0.0, |(_, _, varies)| varies.iter().copied().fold(0.0, f64::max));
    for fluctuating in [System::Dpdk, System::Ipipe] {
        let mut against = Vec::new();
        for stable in [System::FairNic, System::LogNic, System::Mtda] {
            if most(fluctuating) <= most(stable) {
                against.push(format!("{:.2} %, {} {:.2} %", most(fluctuating), stable.title(), most(stable)));
            }
        }
        figure.order(format!("{} fluctuates more than FairNIC, LogNIC and MTDA (§V-E)", fluctuating.title()), &against);
    }
    let uneven = |system: System| {
        let means = of(system).map_or(&[][..], |(_, means, _)| means.as_slice());
        let most = means.iter().copied().fold(0.0, f64::max);
        means.iter().copied().fold(f64::MAX, f64::min) / most
    };
    for system in [System::FairNic, System::LogNic] {
        let even = if uneven(system) > 0.95 {
            vec![format!("the least is {:.2} of the most", uneven(system))]
        } else {
            vec![]
        };
        figure.order(format!("{}: one tenant has less than the others (§V-E)", system.title()), &even);
    }
    let total: f64 = of(System::Mtda).map_or(0.0, |(_, means, _)| means.iter().sum());
    let line = case.line_rate() * f64::from(case.size) * 8.0 / 1e9;
    let below = if total < 0.95 * line { vec![format!("{total:.1} of {line:.1} Gbit/s")] } else { vec![] };
    figure.order("MTDA: nearly line rate (§V-E; here at least 95 %)", &below);
    figure.notes = setup::assumptions();
    figure.notes.push("Table IV has no three tenants: they are assumed to be rta, fm and router.".to_owned());
    figure
}

/// **Assumed**: of the line, before and after the 8th second. The paper says "lightweight" and "intensify".
const LOADS: (f64, f64) = (0.3, 0.85);
/// Seconds of the figure, and that at which the burst begins (§V-E).
const SECONDS: u64 = 30;
const BURST: u64 = 8;

/// Fig. 13. A second of the paper's is a window here.
pub(super) fn burst(scope: &Scope) -> Figure {
    let mut figure = Figure::new("mtda-fig13", "Fig. 13: p99 latency of four tenants, a burst from the 8th second on");
    let mut case = Case::new(4, true, 1024);
    let mut rises: Vec<(System, f64, f64)> = Vec::new();
    let mut drawn = Lines::new();
    for system in System::ALL {
        // Cores and parts are those of the light load: the burst is not known.
        case.load = LOADS.0;
        let second = scope.span / 15;
        let from = scope.span / 4;
        let gap = |load: f64, tenant: usize| arrivals::gap(load * case.tenants[tenant].1 * case.line_rate());
        let steps = |tenant: usize| -> Arc<[(u64, u64)]> {
            [(0, gap(LOADS.0, tenant)), (from + BURST * second, gap(LOADS.1, tenant))].into()
        };
        let mut node = run::started_with(system, &case, scope, |tenant| Arrivals::Steps(steps(tenant)));
        node.watch.window = second;
        node.run(from + SECONDS * second - 1);
        let mut series = vec![crate::histogram::Histogram::default(); SECONDS as usize];
        for tally in &node.watch.tenants {
            series.iter_mut().zip(&tally.windows).for_each(|(all, window)| all.merge(&window.latency));
        }
        let tails: Vec<f64> = series.iter().map(|window| window.quantile(0.99) as f64 / 1e3).collect();
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
        let (before, after) = (mean(&tails[..BURST as usize]), mean(&tails[BURST as usize + 2..]));
        figure.point(system, "before", "latency-p99", "us", before);
        figure.point(system, "in the burst", "latency-p99", "us", after);
        figure.point(system, "in the burst over before", "rise", "1", after / before);
        rises.push((system, before, after));
        drawn.insert(system.name().to_owned(), (1_u32..).map(f64::from).zip(tails).collect());
    }
    let panel = Panel::new("p99 latency of all tenants", "second of the paper's, a window here", drawn, |v| {
        format!("{v:.0} us")
    });
    figure.panels.push(panel.scales(Scale::Linear, Scale::Log));
    let of = |system: System| rises.iter().find(|rise| rise.0 == system).map_or(0.0, |rise| rise.2);
    for other in [System::Dpdk, System::FairNic, System::LogNic] {
        let against = if of(other) < of(System::Mtda) {
            vec![format!("{:.0} us, MTDA {:.0}", of(other), of(System::Mtda))]
        } else {
            vec![]
        };
        figure.order(format!("in the burst {}'s tail is above MTDA's (§V-E)", other.title()), &against);
    }
    let worse: Vec<String> = [System::Dpdk, System::FairNic, System::LogNic]
        .into_iter()
        .filter(|other| of(*other) < of(System::Ipipe))
        .map(|other| format!("{} {:.0} us, iPipe {:.0}", other.title(), of(other), of(System::Ipipe)))
        .collect();
    figure.order("in the burst iPipe's tail is below DPDK's, FairNIC's and LogNIC's (§V-E)", &worse);
    figure.notes = setup::assumptions();
    figure.notes.push(format!(
        "assumed: {} of the line, then {}; MTDA's cores are those of the light load: its balancer is not asked again.",
        LOADS.0, LOADS.1
    ));
    figure
}
