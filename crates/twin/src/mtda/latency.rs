//! Figs. 6 to 9: how long a packet takes.

use softdpu_plot::Panel;

use super::compare::{Values, beside_mtda, label, lines, most_saving, sweep, trend};
use super::run::{self, Case, System};
use super::setup::{SIZES, TENANTS};
use super::{Figure, Scope, setup};
use crate::figure::above;

fn micros(value: f64) -> String {
    format!("{value:.0} us")
}

fn common(name: &'static str, title: &str, is_balanced: bool, scope: &Scope) -> (Figure, Values) {
    let mut figure = Figure::new(name, title);
    let values = sweep(&TENANTS, &SIZES, is_balanced, scope, |measured| measured.latency().mean() / 1e3);
    for count in TENANTS {
        for size in SIZES {
            for system in System::ALL {
                figure.point(system, label(count, size), "latency-mean", "us", values[&(system, count, size)]);
            }
        }
        let title = format!("mean latency, {count} tenants");
        figure.panels.push(Panel::new(title, "bytes of a packet", lines(&values, count, 1.0), micros));
    }
    figure.order("latency falls as packets grow, 256 to 1500 B (§V-C)", trend(&values, &[4], -1.0));
    figure.order("MTDA's latency is the lowest throughout (§V-C)", beside_mtda(&values, -1.0));
    figure.notes = setup::assumptions(&scope.constants);
    figure.notes.push("Latency is from the wire to the wire, of packets that were not lost.".to_owned());
    (figure, values)
}

/// Fig. 6.
pub(super) fn balanced(scope: &Scope) -> Figure {
    common("mtda-fig6", "Fig. 6: latency of balanced workload", true, scope).0
}

/// Fig. 7.
pub(super) fn unbalanced(scope: &Scope) -> Figure {
    let (mut figure, values) = common("mtda-fig7", "Fig. 7: latency of unbalanced workload", false, scope);
    for (other, paper) in System::OTHERS.into_iter().zip([50.3, 58.9, 26.6, 29.4]) {
        let what = format!("Fig. 7, §V-C: MTDA below {}, four tenants, up to", other.title());
        figure.state(what, "%", paper, most_saving(&values, other, 4));
    }
    figure
}

/// "balanced" or "unbalanced": Figs. 8 and 9 do not say which they are of.
const BOTH: [(bool, &str); 2] = [(true, "balanced"), (false, "unbalanced")];
const NOT_SAID: &str = "The paper does not say whether this is of balanced or unbalanced load: both are here.";

/// Fig. 8.
pub(super) fn tail_of_each(scope: &Scope) -> Figure {
    let mut figure = Figure::new("mtda-fig8", "Fig. 8: p99 latency of each of four tenants, 1024 B");
    for (is_balanced, which) in BOTH {
        let case = Case::new(4, is_balanced, 1024, &scope.constants);
        let mut rows: Vec<(System, Vec<f64>)> = Vec::new();
        for system in System::ALL {
            let measured = run::run(system, &case, scope);
            rows.push((system, (0..4).map(|tenant| measured.p99(tenant) / 1e3).collect()));
        }
        let of = |system: System| rows.iter().find(|row| row.0 == system).map_or(&[][..], |row| row.1.as_slice());
        let mut drawn = softdpu_plot::Lines::new();
        for (system, tails) in &rows {
            for (tenant, tail) in tails.iter().enumerate() {
                let name = format!("{which}, tenant {} ({})", tenant + 1, case.tenants[tenant].0.name());
                figure.point(*system, name, "latency-p99", "us", *tail);
                drawn.entry(system.name().to_owned()).or_default().push((tenant as f64 + 1.0, *tail));
            }
        }
        figure.panels.push(Panel::new(format!("p99 latency of each tenant, {which}"), "tenant", drawn, micros));
        let saving = |other: System| {
            let pairs = of(System::Mtda).iter().zip(of(other));
            pairs.map(|(own, others)| (1.0 - own / others) * 100.0).fold(f64::MIN, f64::max)
        };
        for (other, paper) in System::OTHERS.into_iter().zip([36.8, 20.0, 36.4, 21.2]) {
            let what = format!("Fig. 8, §V-C: MTDA below {}, up to; {which}", other.title());
            figure.state(what, "%", paper, saving(other));
        }
        let mut margins = Vec::new();
        for other in System::OTHERS {
            for (tenant, (own, others)) in of(System::Mtda).iter().zip(of(other)).enumerate() {
                margins.push(above(format!("{}, tenant {}", other.title(), tenant + 1), *own, *others, -1.0));
            }
        }
        figure.order(format!("MTDA's tail is the lowest for each tenant (§V-C), {which}"), margins);
    }
    figure.notes = setup::assumptions(&scope.constants);
    figure.notes.push(NOT_SAID.to_owned());
    figure
}

/// Fig. 9.
pub(super) fn tail_of_all(scope: &Scope) -> Figure {
    let mut figure = Figure::new("mtda-fig9", "Fig. 9: p99 latency of all packets of four tenants");
    for (is_balanced, which) in BOTH {
        let values = sweep(&[4], &SIZES, is_balanced, scope, |measured| measured.latency().quantile(0.99) as f64 / 1e3);
        for size in SIZES {
            for system in System::ALL {
                figure.point(system, format!("{which}, {size} B"), "latency-p99", "us", values[&(system, 4, size)]);
            }
        }
        figure.panels.push(Panel::new(
            format!("p99 latency, {which}"),
            "bytes of a packet",
            lines(&values, 4, 1.0),
            micros,
        ));
        for (other, paper) in System::OTHERS.into_iter().zip([23.5, 14.5, 16.7, 15.4]) {
            let what = format!("Fig. 9, §V-C: MTDA below {}, up to; {which}", other.title());
            figure.state(what, "%", paper, most_saving(&values, other, 4));
        }
        figure.order(format!("MTDA's tail is the lowest at each size (§V-C), {which}"), beside_mtda(&values, -1.0));
    }
    figure.notes = setup::assumptions(&scope.constants);
    figure.notes.push(NOT_SAID.to_owned());
    figure
}
