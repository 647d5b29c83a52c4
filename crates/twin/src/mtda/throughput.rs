//! Figs. 4 and 5: how much is done. Fig. 1: that it is less with more tenants.

use softdpu_plot::Panel;

use super::compare::{NOISE, Values, against_mtda, against_trend, label, lines, most_gain, sweep};
use super::run::{self, Case, System};
use super::setup::{SIZES, TENANTS};
use super::{Figure, Scope, setup};

fn gigabits(value: f64) -> String {
    format!("{value:.0} Gbit/s")
}

fn common(name: &'static str, title: &str, is_balanced: bool, scope: &Scope) -> (Figure, Values) {
    let mut figure = Figure::new(name, title);
    let values = sweep(&TENANTS, &SIZES, is_balanced, scope, |measured| measured.total() / 1e9);
    for count in TENANTS {
        for size in SIZES {
            for system in System::ALL {
                let value = values[&(system, count, size)];
                figure.point(system, label(count, size), "throughput", "Gbit/s", value);
            }
        }
        let title = format!("throughput, {count} tenants");
        figure.panels.push(Panel::new(title, "bytes of a packet", lines(&values, count, 1.0), gigabits));
    }
    figure.notes = setup::assumptions();
    (figure, values)
}

/// What §V-B says of both figures.
fn orderings(figure: &mut Figure, values: &Values) {
    let alone: Vec<String> = SIZES
        .iter()
        .flat_map(|&size| System::OTHERS.map(|other| (size, other)))
        .filter_map(|(size, other)| {
            let ratio = values[&(other, 1, size)] / values[&(System::Mtda, 1, size)];
            ((ratio - 1.0).abs() > 0.05).then(|| format!("{} at {size} B: {ratio:.2} times MTDA", other.title()))
        })
        .collect();
    figure.order("one tenant: MTDA's throughput is similar to the others' (§V-B; here within 5 %)", &alone);
    figure.order("throughput rises with the packet size (§V-B, \"generally\")", &against_trend(values, &TENANTS, 1.0));
    figure.order("several tenants: MTDA is above the other four (§V-B)", &against_mtda(values, 1.0));
    let ipipe: Vec<String> = [2, 4, 8]
        .into_iter()
        .flat_map(|count| SIZES.map(|size| (count, size)))
        .filter(|&(count, size)| {
            let own = values[&(System::Ipipe, count, size)];
            own > values[&(System::Mtda, count, size)] * (1.0 - NOISE)
        })
        .map(|(count, size)| label(count, size))
        .collect();
    figure.order("iPipe is below MTDA: migration takes resources (§V-B)", &ipipe);
}

/// Fig. 4.
pub(super) fn balanced(scope: &Scope) -> Figure {
    let (mut figure, values) = common("mtda-fig4", "Fig. 4: throughput of balanced workload", true, scope);
    orderings(&mut figure, &values);
    let falls: Vec<String> = SIZES
        .iter()
        .filter(|&&size| values[&(System::Dpdk, 8, size)] > values[&(System::Dpdk, 1, size)] * (1.0 - NOISE))
        .map(|size| format!("{size} B"))
        .collect();
    figure.order("DPDK's throughput plummets as tenants increase, 1 to 8 (Fig. 1, §II-C)", &falls);
    // The worked example of §V-D is of Fig. 4(c), whose panels are the numbers of tenants: (c) is 4. Which packet size
    // is not said.
    let example = [(System::Dpdk, [4.349, 3.284, 3.273, 4.439]), (System::Mtda, [5.288, 5.342, 5.343, 5.045])];
    let case = Case::new(4, true, 1024);
    for (system, paper) in example {
        let measured = run::run(system, &case, scope);
        for (tenant, paper) in paper.into_iter().enumerate() {
            let application = case.tenants[tenant].0.name();
            let what = format!("Fig. 4(c), §V-D: {}, tenant {} ({application})", system.title(), tenant + 1);
            figure.state(what, "Gbit/s", paper, measured.throughput(tenant) / 1e9);
        }
    }
    figure.notes.push(
        "Fig. 4(c): the paper does not say which packet size its example is of; the twin's is 1024 B.".to_owned(),
    );
    figure
}

/// Fig. 5.
pub(super) fn unbalanced(scope: &Scope) -> Figure {
    let (mut figure, values) = common("mtda-fig5", "Fig. 5: throughput of unbalanced workload", false, scope);
    for (other, paper) in System::OTHERS.into_iter().zip([101.2, 143.2, 36.1, 41.7]) {
        let what = format!("Fig. 5(c), §V-B: MTDA above {}, up to", other.title());
        figure.state(what, "%", paper, most_gain(&values, other, 4));
    }
    orderings(&mut figure, &values);
    let even = sweep(&[4], &SIZES, true, scope, |measured| measured.total() / 1e9);
    let worse: Vec<String> = SIZES
        .iter()
        .filter(|&&size| values[&(System::FairNic, 4, size)] > even[&(System::FairNic, 4, size)] * (1.0 - NOISE))
        .map(|size| label(4, *size))
        .collect();
    figure.order("FairNIC does worse with unbalanced than with balanced load (§V-B)", &worse);
    figure
}
