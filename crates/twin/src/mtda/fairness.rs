//! Figs. 10 and 11: Fair1 (equation (1)) and Fair2 (equations (2) and (3)).

use std::collections::BTreeMap;

use softdpu_plot::{Lines, Panel};
use softdpu_sched as sched;

use super::run::{self, Case, Measured, System};
use super::setup::SIZES;
use super::{Figure, Scope, setup};

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
        let case = Case::new(count, true, 1024);
        for system in System::ALL {
            let measured = run::run(system, &case, scope);
            let value = sched::fair1(&vec![1.0; count], &throughputs(&measured, count));
            values.insert((system, count), value);
            figure.point(system, format!("{count} tenants"), "Fair1", "1", value);
            drawn.entry(system.name().to_owned()).or_default().push((count as f64, value));
        }
    }
    figure.panels.push(Panel::new("Fair1, balanced, 1024 B", "tenants", drawn, plain));
    let better = |other: System, count: usize| (1.0 - values[&(System::Mtda, count)] / values[&(other, count)]) * 100.0;
    let most = |other: System| counts.into_iter().map(|count| better(other, count)).fold(f64::MIN, f64::max);
    for (other, paper) in [(System::Dpdk, 98.8), (System::Ipipe, 99.0), (System::LogNic, 98.4)] {
        figure.state(format!("Fig. 10, §V-D: MTDA fairer than {}, up to", other.title()), "%", paper, most(other));
    }
    for (count, paper) in [(3, 98.3), (4, 82.3)] {
        let what = format!("Fig. 10, §V-D: MTDA fairer than FairNIC, {count} tenants");
        figure.state(what, "%", paper, better(System::FairNic, count));
    }
    // The example of §V-D is of Fig. 4(c): four tenants. Its equation is checked in the tests.
    figure.state("§V-D: Fair1 of DPDK, four tenants", "1", 0.145, values[&(System::Dpdk, 4)]);
    figure.state("§V-D: Fair1 of MTDA, four tenants", "1", 0.02, values[&(System::Mtda, 4)]);
    let mut against = Vec::new();
    for system in System::PAPER {
        for pair in counts.windows(2) {
            let (few, more) = (values[&(system, pair[0])], values[&(system, pair[1])]);
            if more < few - 0.005 {
                against.push(format!("{}, {} to {}: {few:.3} to {more:.3}", system.title(), pair[0], pair[1]));
            }
        }
    }
    figure.order("less fair with more tenants (§V-D, \"gradually\")", &against);
    let mut unfair = Vec::new();
    for count in counts {
        for other in System::OTHERS {
            let (own, others) = (values[&(System::Mtda, count)], values[&(other, count)]);
            if own > others + 0.005 && !(other == System::FairNic && count == 2) {
                unfair.push(format!("{}, {count} tenants: {others:.3}, MTDA {own:.3}", other.title()));
            }
        }
    }
    figure.order("MTDA is the fairest (§V-D)", &unfair);
    let (own, fairnic) = (values[&(System::Mtda, 2)], values[&(System::FairNic, 2)]);
    let apart = if (own - fairnic).abs() > 0.02 { vec![format!("{fairnic:.3}, MTDA {own:.3}")] } else { Vec::new() };
    figure.order("two tenants: FairNIC's is similar to MTDA's (§V-D; here within 0.02)", &apart);
    figure.notes = setup::assumptions();
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
                let case = Case::new(4, is_balanced, size);
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
            let gain = |size| (value(System::Mtda, size) / value(other, size) - 1.0) * 100.0;
            let what = format!("Fig. 11, §V-D: MTDA above {}, up to; {which}", other.title());
            figure.state(what, "%", paper, SIZES.into_iter().map(gain).fold(f64::MIN, f64::max));
        }
        let mut against = Vec::new();
        for other in System::OTHERS {
            for size in SIZES {
                let (own, others) = (values[&(System::Mtda, is_balanced, size)], values[&(other, is_balanced, size)]);
                if own < others - 0.01 {
                    against.push(format!("{}, {size} B: {others:.3}, MTDA {own:.3}", other.title()));
                }
            }
        }
        figure.order(format!("MTDA's Fair2 is the highest (§V-D), {which}"), &against);
    }
    figure.notes = setup::assumptions();
    figure
        .notes
        .push("The paper does not say whether this is of balanced or unbalanced load: both are here.".to_owned());
    figure
}
