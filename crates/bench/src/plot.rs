//! Two panels of lines as one SVG: for disks IOPS over depth and latency over depth.

use std::collections::BTreeMap;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::SetupError;
use crate::report::{QUANTILES, Report, time};
use crate::side_by_side::rate;

/// One panel.
const PANEL: (u32, u32) = (820, 430);
/// Told apart also by those who see few colours (Okabe and Ito's set).
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
];

/// Lines by name, each with its points.
pub(crate) type Lines = BTreeMap<String, Vec<(f64, f64)>>;

/// Draws `report` to `path`, an SVG file.
///
/// # Errors
/// [`SetupError::Output`], also where the name does not end in `.svg`.
pub fn draw(report: &Report, path: &Path) -> Result<(), SetupError> {
    let (mut iops, mut latency) = (Lines::new(), Lines::new());
    for measurement in &report.measurements {
        let depth = measurement.case.depth as f64;
        let name = format!("{}, {}", measurement.subject, measurement.case.client);
        iops.entry(name.clone()).or_default().push((depth, measurement.spread().0));
        for (quantile, label) in QUANTILES {
            let label = label.trim_start_matches("latency-");
            let nanos = measurement.work.latency_at(quantile) as f64;
            latency.entry(format!("{name}, {label}")).or_default().push((depth, nanos));
        }
    }
    let axis = "requests in flight";
    let iops = Panel { title: "requests a second over depth", axis, lines: iops, label: rate };
    let latency = Panel { title: "latency over depth", axis, lines: latency, label: |nanos| time(nanos as u64) };
    draw_panels([iops, latency], path)
}

/// A chart.
pub(crate) struct Panel {
    /// What it shows.
    pub title: &'static str,
    /// What is along its lower edge.
    pub axis: &'static str,
    /// What is in it; every coordinate is at least 1.
    pub lines: Lines,
    /// How its values are written.
    pub label: fn(f64) -> String,
}

/// Draws two panels to `path`, an SVG file.
///
/// # Errors
/// As [`draw`].
pub(crate) fn draw_panels(panels: [Panel; 2], path: &Path) -> Result<(), SetupError> {
    let failed = |reason: String| SetupError::Output { path: path.to_owned(), reason };
    if path.extension().is_none_or(|extension| extension != "svg") {
        return Err(failed("plots are drawn as SVG: give the file a name that ends in .svg".to_owned()));
    }
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (PANEL.0, 2 * PANEL.1)).into_drawing_area();
        area.fill(&WHITE).map_err(|error| failed(error.to_string()))?;
        let (top, bottom) = area.split_vertically(PANEL.1);
        for (area, panel) in [top, bottom].iter().zip(&panels) {
            draw_panel(area, panel).map_err(failed)?;
        }
        area.present().map_err(|error| failed(error.to_string()))?;
    }
    std::fs::write(path, svg).map_err(|error| failed(error.to_string()))
}

fn draw_panel(area: &DrawingArea<SVGBackend<'_>, Shift>, panel: &Panel) -> Result<(), String> {
    let Panel { title, axis, lines, label } = panel;
    let text = |error: DrawingAreaErrorKind<_>| error.to_string();
    let points = || lines.values().flatten();
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (least, most) = values.fold((f64::MAX, 1.0f64), |(least, most), value| (least.min(value), most.max(value)));
        // Both axes are logarithmic, so the margin is a factor and nothing is below one.
        (least.min(most).max(1.0) * 0.8)..(most * 1.25)
    };
    let x = range(&mut points().map(|point| point.0));
    let y = range(&mut points().map(|point| point.1));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(84)
        .build_cartesian_2d(x.log_scale(), y.log_scale())
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc(*axis)
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| label(*value))
        .draw()
        .map_err(text)?;
    for (index, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        // Beyond the colours, width tells lines apart.
        let style = colour.stroke_width(2 + (index / COLOURS.len()) as u32 * 2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))
            .map_err(text)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.4)).draw().map_err(text)
}
