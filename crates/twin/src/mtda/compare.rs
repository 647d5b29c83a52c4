//! What several experiments have in common: sweeps over cases, gains, margins of orderings.

use std::collections::BTreeMap;

use softdpu_plot::Lines;

use super::run::{self, Case, Measured, System};
use super::{Scope, setup};
use crate::figure::{Margin, above};

/// A value for each system in each case.
pub(super) type Values = BTreeMap<(System, usize, u32), f64>;

/// Runs all systems with so many tenants and each packet size.
pub(super) fn sweep(
    tenants: &[usize],
    sizes: &[u32],
    is_balanced: bool,
    scope: &Scope,
    of: impl Fn(&Measured) -> f64,
) -> Values {
    let mut values = Values::new();
    for &count in tenants {
        for &size in sizes {
            let case = Case::new(count, is_balanced, size, &scope.constants);
            for system in System::ALL {
                values.insert((system, count, size), of(&run::run(system, &case, scope)));
            }
        }
    }
    values
}

/// "4 tenants, 1024 B".
pub(super) fn label(tenants: usize, size: u32) -> String {
    let s = if tenants == 1 { "" } else { "s" };
    format!("{tenants} tenant{s}, {size} B")
}

/// The lines of a panel: a line a system, the packet size along the lower edge.
pub(super) fn lines(values: &Values, tenants: usize, scale: f64) -> Lines {
    let mut lines = Lines::new();
    for (&(system, count, size), value) in values {
        if count == tenants {
            lines.entry(system.name().to_owned()).or_default().push((f64::from(size), value * scale));
        }
    }
    lines
}

/// The most by which MTDA is more than another system, in percent, with so many tenants.
pub(super) fn most_gain(values: &Values, other: System, tenants: usize) -> f64 {
    let of = |size: &u32| {
        let value = |system| values[&(system, tenants, *size)];
        (value(System::Mtda) / value(other) - 1.0) * 100.0
    };
    setup::SIZES.iter().map(of).fold(f64::MIN, f64::max)
}

/// The most by which MTDA is less than another system, in percent of that.
pub(super) fn most_saving(values: &Values, other: System, tenants: usize) -> f64 {
    let of = |size: &u32| {
        let value = |system| values[&(system, tenants, *size)];
        (1.0 - value(System::Mtda) / value(other)) * 100.0
    };
    setup::SIZES.iter().map(of).fold(f64::MIN, f64::max)
}

/// How far MTDA is better than each of the paper's others, `sign` being 1 where more is better and -1 where less is.
pub(super) fn beside_mtda(values: &Values, sign: f64) -> Vec<Margin> {
    let mut margins = Vec::new();
    for (&(system, count, size), value) in values {
        if count > 1 && System::OTHERS.contains(&system) {
            let own = values[&(System::Mtda, count, size)];
            margins.push(above(format!("{}, {}", system.title(), label(count, size)), own, *value, sign));
        }
    }
    margins
}

/// How far each system's value rises (`sign` 1) or falls (-1) from the least packet size to the largest.
pub(super) fn trend(values: &Values, tenants: &[usize], sign: f64) -> Vec<Margin> {
    let (least, most) = (setup::SIZES[0], setup::SIZES[setup::SIZES.len() - 1]);
    let mut margins = Vec::new();
    for &count in tenants {
        for system in System::PAPER {
            let value = |size| values[&(system, count, size)];
            let s = if count == 1 { "" } else { "s" };
            margins.push(above(format!("{}, {count} tenant{s}", system.title()), value(most), value(least), sign));
        }
    }
    margins
}
