//! Figs. 10 and 11: Fair1 (equation (1)) and Fair2 (equations (2) and (3)).

use std::collections::BTreeMap;

use softdpu_plot::{Lines, Panel};
use softdpu_sched as sched;

use super::run::{self, Case, Measured, System};
use super::setup::SIZES;
use super::{Figure, Scope, setup};
use crate::figure::{Margin, within};

/// A Fair1 of less is as good as none: percentages of it are not given.
const NEAR_ZERO: f64 = 0.02;

/// A Fair2 of less is of tenants that are hardly served: percentages of it are not given.
const UNFAIR: f64 = 0.1;

fn plain(value: f64) -> String {
    format!("{value:.2}")
}

fn throughputs(measured: &Measured, tenants: usize) -> Vec<f64> {
    (0..tenants).map(|tenant| measured.throughput(tenant)).collect()
}

/// Fig. 10.
pub(super) fn fair1(scope: &Scope) -> Figure {
    let mut figure = Figure::new("mtda-fig10", "Fig. 10: Fair1, balanced workload, 1024 B (less is fairer)");
    let counts = [2, 3, 4, 8];
    let mut values: BTreeMap<(System, usize), f64> = BTreeMap::new();
    let mut drawn = Lines::new();
    for count in counts {
        let case = Case::new(count, true, 1024, &scope.constants);
        for system in System::ALL {
            let measured = run::run(system, &case, scope);
            let value = sched::fair1(&vec![1.0; count], &throughputs(&measured, count));
            values.insert((system, count), value);
            figure.point(system, format!("{count} tenants"), "Fair1", "1", value);
            drawn.entry(system.name().to_owned()).or_default().push((count as f64, value));
        }
    }
    figure.panels.push(Panel::new("Fair1, balanced, 1024 B", "tenants", drawn, plain));
    // Of an index near zero a percentage says nothing.
    let better = |other: System, count: usize| {
        let (own, others) = (values[&(System::Mtda, count)], values[&(other, count)]);
        (others > NEAR_ZERO).then(|| (1.0 - own / others) * 100.0)
    };
    let most = |other: System| counts.into_iter().filter_map(|count| better(other, count)).reduce(f64::max);
    for (other, paper) in [(System::Dpdk, 98.8), (System::Ipipe, 99.0), (System::LogNic, 98.4)] {
        let what = format!("Fig. 10, §V-D: MTDA fairer than {}, up to", other.title());
        figure.state_if_any(what, "%", paper, most(other));
    }
    for (count, paper) in [(3, 98.3), (4, 82.3)] {
        let what = format!("Fig. 10, §V-D: MTDA fairer than FairNIC, {count} tenants");
        figure.state_if_any(what, "%", paper, better(System::FairNic, count));
    }
    // The example of §V-D is of Fig. 4(c): four tenants. Its equation is checked in the tests.
    figure.state("§V-D: Fair1 of DPDK, four tenants", "1", 0.145, values[&(System::Dpdk, 4)]);
    figure.state("§V-D: Fair1 of MTDA, four tenants", "1", 0.02, values[&(System::Mtda, 4)]);
    let margin = |label: String, value: f64| Margin { label, unit: "1", value };
    let mut less_fair = Vec::new();
    for system in System::PAPER {
        let grows = values[&(system, 8)] - values[&(system, 2)];
        less_fair.push(margin(format!("{}, 2 to 8", system.title()), grows));
    }
    figure.order("less fair with more tenants (§V-D, \"gradually\"; here from 2 to 8)", less_fair);
    let mut fairest = Vec::new();
    for count in counts {
        for other in System::OTHERS.into_iter().filter(|other| !(*other == System::FairNic && count == 2)) {
            let lead = values[&(other, count)] - values[&(System::Mtda, count)];
            fairest.push(margin(format!("{}, {count} tenants", other.title()), lead));
        }
    }
    figure.order("MTDA is the fairest (§V-D)", fairest);
    let (own, fairnic) = (values[&(System::Mtda, 2)], values[&(System::FairNic, 2)]);
    let apart = vec![within("Fair1", (own - fairnic).abs(), 0.02, "1")];
    figure.order("two tenants: FairNIC's is similar to MTDA's (§V-D; here within 0.02)", apart);
    figure.notes = setup::assumptions(&scope.constants);
    figure
}

/// Fig. 11.
pub(super) fn fair2(scope: &Scope) -> Figure {
    let mut figure = Figure::new("mtda-fig11", "Fig. 11: Fair2 of four tenants (more is fairer)");
    let mut values: BTreeMap<(System, bool, u32), f64> = BTreeMap::new();
    for (is_balanced, which) in [(true, "balanced"), (false, "unbalanced")] {
        let mut drawn = Lines::new();
        for size in SIZES {
            for system in System::ALL {
                let case = Case::new(4, is_balanced, size, &scope.constants);
                let shared = run::run(system, &case, scope);
                let shared: Vec<f64> = (0..4).map(|tenant| shared.mean(tenant)).collect();
                // Alone: on the same system, with the same cores, without the others.
                let alone = |only| run::run(system, &Case { alone: Some(only), ..case.clone() }, scope).mean(only);
                let alone: Vec<f64> = (0..4).map(alone).collect();
                let value = sched::fair2(&alone, &shared);
                values.insert((system, is_balanced, size), value);
                figure.point(system, format!("{which}, {size} B"), "Fair2", "1", value);
                drawn.entry(system.name().to_owned()).or_default().push((f64::from(size), value));
            }
        }
        figure.panels.push(Panel::new(format!("Fair2, {which}"), "bytes of a packet", drawn, plain));
        for (other, paper) in System::OTHERS.into_iter().zip([29.6, 44.4, 26.3, 21.4]) {
            let value = |system, size| values[&(system, is_balanced, size)];
            let gain = |size| {
                let others = value(other, size);
                (others > UNFAIR).then(|| (value(System::Mtda, size) / others - 1.0) * 100.0)
            };
            let what = format!("Fig. 11, §V-D: MTDA above {}, up to; {which}", other.title());
            figure.state_if_any(what, "%", paper, SIZES.into_iter().filter_map(gain).reduce(f64::max));
        }
        let mut margins = Vec::new();
        for other in System::OTHERS {
            for size in SIZES {
                let lead = values[&(System::Mtda, is_balanced, size)] - values[&(other, is_balanced, size)];
                margins.push(Margin { label: format!("{}, {size} B", other.title()), unit: "1", value: lead });
            }
        }
        figure.order(format!("MTDA's Fair2 is the highest (§V-D), {which}"), margins);
    }
    figure.notes = setup::assumptions(&scope.constants);
    figure
        .notes
        .push("The paper does not say whether this is of balanced or unbalanced load: both are here.".to_owned());
    figure
}
