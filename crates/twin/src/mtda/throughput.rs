//! Figs. 4 and 5: how much is done. Fig. 1: that it is less with more tenants.

use softdpu_plot::Panel;

use super::compare::{Values, beside_mtda, label, lines, most_gain, sweep, trend};
use super::run::{self, Case, System};
use super::setup::{SIZES, TENANTS};
use super::{Figure, Scope, setup};
use crate::figure::{above, within};

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
    figure.notes = setup::assumptions(&scope.constants);
    (figure, values)
}

/// What §V-B says of both figures.
fn orderings(figure: &mut Figure, values: &Values) {
    let alone = SIZES.iter().flat_map(|&size| System::OTHERS.map(|other| (size, other)));
    let alone = alone.map(|(size, other)| {
        let ratio = values[&(other, 1, size)] / values[&(System::Mtda, 1, size)];
        within(format!("{}, {size} B", other.title()), (ratio - 1.0).abs() * 100.0, 5.0, "pp")
    });
    figure.order("one tenant: MTDA's throughput is similar to the others' (§V-B; here within 5 %)", alone.collect());
    let rises = "throughput rises with the packet size (§V-B, \"generally\"; here from 256 to 1500 B)";
    figure.order(rises, trend(values, &TENANTS, 1.0));
    figure.order("several tenants: MTDA is above the other four (§V-B)", beside_mtda(values, 1.0));
    let mut ipipe = beside_mtda(values, 1.0);
    ipipe.retain(|margin| margin.label.starts_with(System::Ipipe.title()));
    figure.order("iPipe is below MTDA: migration takes resources (§V-B)", ipipe);
}

/// The packet size of Fig. 4(c)'s example. **Assumed**: §V-D does not say which; Fig. 10, which shows the same index,
/// is of 1024 B.
pub(super) const EXAMPLE_SIZE: u32 = 1_024;

/// Fig. 4.
pub(super) fn balanced(scope: &Scope) -> Figure {
    let (mut figure, values) = common("mtda-fig4", "Fig. 4: throughput of balanced workload", true, scope);
    orderings(&mut figure, &values);
    let falls = SIZES.map(|size| {
        let value = |tenants| values[&(System::Dpdk, tenants, size)];
        above(format!("{size} B"), value(8), value(1), -1.0)
    });
    figure.order("DPDK's throughput plummets as tenants increase, 1 to 8 (Fig. 1, §II-C)", falls.into());
    // The worked example of §V-D is of Fig. 4(c), whose panels are the numbers of tenants: (c) is 4. Which packet size
    // is not said.
    let example = [(System::Dpdk, [4.349, 3.284, 3.273, 4.439]), (System::Mtda, [5.288, 5.342, 5.343, 5.045])];
    let case = Case::new(4, true, EXAMPLE_SIZE, &scope.constants);
    for (system, paper) in example {
        let measured = run::run(system, &case, scope);
        for (tenant, paper) in paper.into_iter().enumerate() {
            let application = case.tenants[tenant].0.name();
            let what = format!("Fig. 4(c), §V-D: {}, tenant {} ({application})", system.title(), tenant + 1);
            figure.state(what, "Gbit/s", paper, measured.throughput(tenant) / 1e9);
        }
        let what = format!("Fig. 4(c), §V-D: {}, all four tenants", system.title());
        figure.state(what, "Gbit/s", paper.iter().sum(), measured.total() / 1e9);
        if system == System::Dpdk {
            figure.stated.iter_mut().for_each(|stated| stated.is_calibrated |= stated.what.contains("all four"));
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
    let key = |size| (System::FairNic, 4, size);
    let worse = SIZES.map(|size| above(label(4, size), values[&key(size)], even[&key(size)], -1.0));
    figure.order("FairNIC does worse with unbalanced than with balanced load (§V-B)", worse.into());
    figure
}
