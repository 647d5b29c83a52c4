//! Fig. 14: MTDA beside the best partition that could be found by hand.

use softdpu_plot::{Lines, Panel};
use softdpu_sched::Policy;

use super::run::{self, Assignment, Case, Measured, System};
use super::setup::CORES;
use super::{Figure, Scope, setup};
use crate::figure::within;

/// All ways to give each of so many tenants cores of its own.
fn partitions(tenants: usize) -> Vec<Assignment> {
    fn divide(first: usize, tenants: usize, done: &mut Assignment, all: &mut Vec<Assignment>) {
        if tenants == 1 {
            done.push((first..CORES).collect());
            all.push(done.clone());
            done.pop();
            return;
        }
        for next in first + 1..=CORES - (tenants - 1) {
            done.push((first..next).collect());
            divide(next, tenants - 1, done, all);
            done.pop();
        }
    }
    let mut all = Vec::new();
    divide(0, tenants, &mut Vec::new(), &mut all);
    all
}

/// Partitions whose throughput differs by less do as much, as a share of it.
const NOISE: f64 = 0.01;

/// The partition that does most, and among those that do as much, the one with the least latency. A core of one tenant
/// decides nothing.
fn by_hand(case: &Case, scope: &Scope) -> Measured {
    // A quarter of the time tells them apart; the best is run in full.
    let short = Scope { span: scope.span / 4, ..*scope };
    let tried = partitions(case.tenants.len()).into_iter().map(|cores| {
        let measured = run::run_on(&Policy::Fcfs, case, &cores, 0, &short);
        (measured.total(), measured.latency().mean(), cores)
    });
    let tried: Vec<(f64, f64, Assignment)> = tried.collect();
    let most = tried.iter().map(|(total, ..)| *total).fold(0.0, f64::max);
    let best = tried.into_iter().filter(|(total, ..)| *total >= most * (1.0 - NOISE));
    let best = best.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(_, _, cores)| cores).unwrap_or_default();
    run::run_on(&Policy::Fcfs, case, &best, 0, scope)
}

/// Fig. 14.
pub(super) fn overhead(scope: &Scope) -> Figure {
    let mut figure = Figure::new("mtda-fig14", "Fig. 14: MTDA beside partitions tuned by hand, balanced, 512 B");
    let (mut loss, mut rise, mut share) = (f64::MIN, f64::MIN, Vec::new());
    let mut drawn = [Lines::new(), Lines::new()];
    for count in [2, 3, 4] {
        let case = Case::new(count, true, 512, &scope.constants);
        let hand = by_hand(&case, scope);
        let own = run::run(System::Mtda, &case, scope);
        let deciding = own.tally.decisions as f64 / (own.span as f64 * CORES as f64) * 100.0;
        let label = format!("{count} tenants");
        for (name, measured) in [("by-hand", &hand), ("mtda", &own)] {
            let values = [measured.total() / 1e9, measured.latency().mean() / 1e3];
            for ((metric, unit), value) in [("throughput", "Gbit/s"), ("latency-mean", "us")].into_iter().zip(values) {
                let (subject, case) = (name.to_owned(), label.clone());
                figure.points.push(super::Point { subject, case, metric, unit, value });
            }
            for (lines, value) in drawn.iter_mut().zip(values) {
                lines.entry(name.to_owned()).or_default().push((count as f64, value));
            }
        }
        figure.point(System::Mtda, label, "cores-deciding", "%", deciding);
        loss = loss.max((1.0 - own.total() / hand.total()) * 100.0);
        rise = rise.max((own.latency().mean() / hand.latency().mean() - 1.0) * 100.0);
        share.push(deciding);
    }
    let [throughput, latency] = drawn;
    figure.panels.push(Panel::new("throughput", "tenants", throughput, |value| format!("{value:.0} Gbit/s")));
    figure.panels.push(Panel::new("mean latency", "tenants", latency, |value| format!("{value:.0} us")));
    figure.state("Fig. 14(a), §V-F: throughput below tuning by hand, less than", "%", 4.9, loss);
    figure.state("Fig. 14(b), §V-F: latency above tuning by hand, no more than", "%", 5.2, rise);
    let mean = share.iter().sum::<f64>() / share.len() as f64;
    figure.state("Fig. 14(c), §V-F: cores' time for it, on average", "%", 3.3, mean);
    figure.order("throughput is less than 4.9 % below tuning by hand (§V-F)", vec![within("worst", loss, 4.9, "pp")]);
    figure.order("latency is no more than 5.2 % above tuning by hand (§V-F)", vec![within("worst", rise, 5.2, "pp")]);
    figure.notes = setup::assumptions(&scope.constants);
    figure.notes.push(format!(
        "By hand: the best of all partitions into whole cores, without any decision. MTDA's cost of deciding is the \
         {} ns that are assumed. The twin has no model of memory (the paper: 1.4 %).",
        scope.constants.decision_ns
    ));
    figure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_gives_every_core_once_and_everybody_one() {
        for (tenants, ways) in [(2, 7), (3, 21), (4, 35)] {
            let all = partitions(tenants);
            assert_eq!(all.len(), ways);
            for cores in all {
                assert!(cores.iter().all(|own| !own.is_empty()));
                assert_eq!(cores.concat(), (0..CORES).collect::<Vec<_>>());
            }
        }
    }
}
