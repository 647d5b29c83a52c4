//! What was measured of frames, for people and for programs.

use std::fmt;
use std::path::Path;

use softdpu_frontend::load::Waiting;
use softdpu_frontend::load::frames::FrameOutcome;
use softdpu_frontend::{Format, Frames};
use softdpu_plot::{Lines, Panel, Scale};

use crate::SetupError;
use crate::plot::draw_panels;
use crate::samples::Samples;
use crate::side_by_side::{self, Work, client, rate};

/// Where frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// To another guest of the server.
    Guest,
    /// Out of an interface, to another host.
    Underlay,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Route::Guest => "guest-guest",
            Route::Underlay => "guest-underlay",
        })
    }
}

/// What is held equal between subjects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// Where they go.
    pub route: Route,
    /// Frames.
    pub frames: Frames,
    /// Ring layout.
    pub format: Format,
    /// How the client waits.
    pub client: Waiting,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = match self.format {
            Format::Split => "split",
            Format::Packed => "packed",
        };
        write!(f, "{} {} {format} {}", self.route, self.frames, self.client)
    }
}

/// Frames of all rounds.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// Bytes received a second.
    pub bytes: Samples,
    /// Frames sent and never received.
    pub lost: u64,
    /// Frames sent.
    pub sent: u64,
    received: u64,
    kicks: u64,
    /// Notifications slept for.
    interrupts: u64,
}

/// One subject's figures in one case.
pub type NetMeasurement = side_by_side::Measurement<Carried>;
/// Everything that was measured.
pub type NetReport = side_by_side::Report<Carried>;

impl Carried {
    /// Median of the rounds' bytes a second.
    pub fn throughput(&self) -> f64 {
        self.bytes.median()
    }

    /// Share of the frames sent that never arrived.
    pub fn loss(&self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }

    fn per_frame(&self, count: u64) -> f64 {
        count as f64 / self.received.max(1) as f64
    }
}

impl Work for Carried {
    type Case = Case;
    type Outcome = FrameOutcome;

    const BENCH: &'static str = "net";
    const RATE: [&'static str; 4] = ["frames", "frames-min", "frames-max", "frames-ratio"];
    const COLUMNS: &'static [&'static str] =
        &["frames>", "min - max>", "throughput>", "ratio>", "loss>", "client>", "batch>", "kicks>", "2 hops>"];

    fn rate(outcome: &FrameOutcome) -> f64 {
        outcome.received.rate()
    }

    fn client(outcome: &FrameOutcome) -> Option<(f64, f64)> {
        client(&outcome.received)
    }

    fn add(&mut self, outcome: &FrameOutcome) {
        let FrameOutcome { received, bytes, lost, sent } = outcome;
        self.bytes.push(*bytes as f64 / received.elapsed.as_secs_f64());
        self.lost += lost;
        self.sent += sent;
        self.kicks += received.kicks;
        self.interrupts += received.interrupts;
        self.received += received.requests;
    }

    fn figures(measurement: &NetMeasurement) -> Vec<(&'static str, &'static str, f64)> {
        let work = &measurement.work;
        let mut figures = vec![
            ("throughput", "B/s", work.throughput()),
            ("loss", "1", work.loss()),
            ("two-hops", "ns", measurement.two_hops()),
            ("kicks-per-frame", "1", work.per_frame(work.kicks)),
            ("notifications-per-frame", "1", work.per_frame(work.interrupts)),
        ];
        if let Some((busy, batch)) = measurement.client {
            figures.extend([("client-time-per-frame", "ns", busy), ("frames-per-batch", "1", batch)]);
        }
        figures
    }

    fn cells(measurement: &NetMeasurement, ratio: String) -> Vec<String> {
        let work = &measurement.work;
        let mut cells = vec![
            rate(measurement.rates.median()),
            measurement.range_cell(),
            throughput(work.throughput()),
            ratio,
            match work.loss() {
                0.0 => "none".to_owned(),
                share => format!("{:.4}%", share * 100.0),
            },
        ];
        cells.extend(measurement.client_cells(1));
        cells.push(format!("{:.4}", work.per_frame(work.kicks)));
        cells.push(format!("{:.0} ns", measurement.two_hops()));
        cells
    }
}

/// Draws frames and bytes a second over the mean length of frames to `path`, as SVG or PNG.
///
/// # Errors
/// [`SetupError::Output`], also where the name ends in neither `.svg` nor `.png`.
pub fn draw(report: &NetReport, path: &Path) -> Result<(), SetupError> {
    let (mut frames, mut bytes) = (Lines::new(), Lines::new());
    for measurement in &report.measurements {
        let Case { route, frames: which, format, client } = &measurement.case;
        let format = if *format == Format::Packed { ", packed" } else { "" };
        let route = if *route == Route::Underlay { ", to underlay" } else { "" };
        let name = format!("{}, {client}{format}{route}", measurement.subject);
        let mean = which.mean();
        frames.entry(name.clone()).or_default().push((mean, measurement.rates.median()));
        bytes.entry(name).or_default().push((mean, measurement.work.throughput()));
    }
    for points in frames.values_mut().chain(bytes.values_mut()) {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    let axis = "mean bytes of a frame";
    let panels = [
        Panel::new("frames received a second over their length", axis, frames, rate),
        Panel::new("bytes received a second over frame length", axis, bytes, throughput),
    ];
    draw_panels(&panels.map(|panel| panel.scales(Scale::Log, Scale::Log)), path)
}

/// Bytes a second with three or four digits.
fn throughput(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{:.2} GB/s", value / 1e9),
        value if value >= 1e6 => format!("{:.1} MB/s", value / 1e6),
        value => format!("{:.1} kB/s", value / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use softdpu_frontend::load::Outcome;

    use super::*;
    use crate::calibration::Calibration;
    use crate::samples::Spread;
    use crate::turns::Conditions;

    const STEADY: Conditions = Conditions { hops: 100.0, is_steady: true };

    fn outcome(frames: u64, lost: u64) -> FrameOutcome {
        let elapsed = Duration::from_secs(1);
        let mut received = Outcome::default();
        (received.requests, received.elapsed, received.batches) = (frames, elapsed, 1);
        FrameOutcome { received, bytes: frames * 60, lost, sent: frames + lost }
    }

    fn report() -> NetReport {
        let case =
            Case { route: Route::Guest, frames: Frames::Smallest, format: Format::Split, client: Waiting::Polling };
        let mut measurements = Vec::new();
        for (subject, factor) in [("softdpu", 3), ("testpmd", 1)] {
            let mut measurement = NetMeasurement::new(subject, case.clone());
            for frames in [100, 300, 200] {
                measurement.add(&outcome(frames * factor, 50), STEADY);
            }
            let mut profiled = outcome(100, 0);
            profiled.received.busy = Some(Duration::from_nanos(2000));
            measurement.add(&profiled, STEADY);
            measurements.push(measurement);
        }
        let calibration = Calibration { two_hops: 100.0, clock: 10.0 };
        NetReport { calibration, measurements, disturbed: 0, left_out: Vec::new() }
    }

    #[test]
    fn figures_are_medians_and_ratios_are_to_the_last_subject() {
        let report = report();
        let [softdpu, testpmd] = &report.measurements[..] else { panic!("two subjects") };
        let spread = Spread { median: 600.0, least: 300.0, most: 900.0 };
        assert_eq!((softdpu.rates.spread(), softdpu.work.throughput()), (spread, 36_000.0));
        assert_eq!((report.ratio(softdpu), report.ratio(testpmd)), (Some(3.0), None));
        assert_eq!(testpmd.work.loss(), 150.0 / 750.0);
        assert_eq!(testpmd.client, Some((20.0, 100.0)));
    }

    #[test]
    fn a_ratio_is_of_rounds_and_not_of_medians() {
        // Twice as fast in the last two rounds, where the CPUs are next to each other, and in one of which they moved.
        let case = report().measurements[0].case.clone();
        let measured = |subject, rates: [u64; 5]| {
            let mut measurement = NetMeasurement::new(subject, case.clone());
            for (round, frames) in rates.into_iter().enumerate() {
                measurement.add(&outcome(frames, 0), Conditions { is_steady: round != 4, ..STEADY });
            }
            measurement
        };
        let (ours, theirs) = (measured("one", [110, 110, 110, 220, 900]), measured("other", [100, 100, 220, 200, 100]));
        let mut report = NetReport { measurements: vec![ours, theirs], ..report() };
        assert_eq!(report.ratio(&report.measurements[0]), Some(1.1));
        // Where they never stay, all rounds are what there is.
        report.measurements[0] = measured("one", [50; 5]);
        report.measurements[1] = measured("other", [100, 100, 100, 200, 200]);
        assert_eq!(report.ratio(&report.measurements[0]), Some(0.5));
    }

    #[test]
    fn json_is_an_object_a_line_in_the_documented_order() {
        let mut json = Vec::new();
        report().write_json(&mut json).unwrap();
        let text = String::from_utf8(json).unwrap();
        assert!(text.lines().any(|line| line
            == "{\"bench\":\"net\",\"subject\":\"softdpu\",\"case\":\"guest-guest 64 split polling\",\
                \"metric\":\"frames-ratio\",\"unit\":\"1\",\"value\":3.0}"));
    }
}
