//! For disks: IOPS over depth and latency over depth.

use std::path::Path;

use softdpu_plot::{Lines, Panel, Scale};

use crate::SetupError;
use crate::report::{BlockReport, QUANTILES, time};
use crate::side_by_side::rate;

/// Draws `report` to `path`, as SVG or PNG.
///
/// # Errors
/// [`SetupError::Output`], also where the name ends in neither `.svg` nor `.png`.
pub fn draw(report: &BlockReport, path: &Path) -> Result<(), SetupError> {
    let (mut iops, mut latency) = (Lines::new(), Lines::new());
    for measurement in &report.measurements {
        let depth = measurement.case.depth as f64;
        let name = format!("{}, {}", measurement.subject, measurement.case.client);
        iops.entry(name.clone()).or_default().push((depth, measurement.rates.median()));
        for (quantile, label) in QUANTILES {
            let label = label.trim_start_matches("latency-");
            let nanos = measurement.work.latency_at(quantile) as f64;
            latency.entry(format!("{name}, {label}")).or_default().push((depth, nanos));
        }
    }
    let axis = "requests in flight";
    let panel = |title: &str, lines, label| Panel::new(title, axis, lines, label).scales(Scale::Log, Scale::Log);
    let latency = panel("latency over depth", latency, |nanos| time(nanos as u64));
    draw_panels(&[panel("requests a second over depth", iops, rate), latency], path)
}

/// Draws panels to `path`, as SVG or PNG.
///
/// # Errors
/// As [`draw`].
pub(crate) fn draw_panels(panels: &[Panel], path: &Path) -> Result<(), SetupError> {
    softdpu_plot::draw(panels, path).map_err(|reason| SetupError::Output { path: path.to_owned(), reason })
}
