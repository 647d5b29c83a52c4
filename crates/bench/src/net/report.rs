//! What was measured of frames, for people and for programs.

use std::fmt;
use std::path::Path;

use softdpu_frontend::load::Waiting;
use softdpu_frontend::load::frames::Outcome;
use softdpu_frontend::{Format, Frames};
use softdpu_plot::{Lines, Panel, Scale};

use crate::SetupError;
use crate::plot::draw_panels;
use crate::side_by_side::{self, Work, rate, spread};

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
    /// Bytes received a second, round by round.
    pub bytes: Vec<f64>,
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
pub type Measurement = side_by_side::Measurement<Carried>;
/// Everything that was measured.
pub type Report = side_by_side::Report<Carried>;

impl Carried {
    /// Median of the rounds' bytes a second.
    pub fn throughput(&self) -> f64 {
        spread(&self.bytes).0
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
    type Outcome = Outcome;

    const BENCH: &'static str = "net";
    const RATE: [&'static str; 4] = ["frames", "frames-min", "frames-max", "frames-ratio"];
    const CASE_WIDTH: usize = 38;
    const COLUMNS: &'static [(&'static str, usize)] = &[
        ("frames", 10),
        ("min - max", 23),
        ("throughput", 12),
        ("ratio", 7),
        ("loss", 9),
        ("client", 8),
        ("batch", 6),
        ("kicks", 7),
        ("2 hops", 7),
    ];

    fn rate(outcome: &Outcome) -> f64 {
        outcome.frames as f64 / outcome.elapsed.as_secs_f64()
    }

    fn client(outcome: &Outcome) -> Option<(f64, f64)> {
        let frames = outcome.frames.max(1) as f64;
        Some((outcome.busy?.as_nanos() as f64 / frames, frames / outcome.batches.max(1) as f64))
    }

    fn add(&mut self, outcome: &Outcome) {
        self.bytes.push(outcome.bytes as f64 / outcome.elapsed.as_secs_f64());
        self.lost += outcome.lost;
        self.sent += outcome.sent;
        self.kicks += outcome.kicks;
        self.interrupts += outcome.interrupts;
        self.received += outcome.frames;
    }

    fn figures(measurement: &Measurement) -> Vec<(&'static str, &'static str, f64)> {
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

    fn cells(measurement: &Measurement, ratio: String) -> Vec<String> {
        let work = &measurement.work;
        let mut cells = vec![
            rate(measurement.spread().0),
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

impl Report {
    /// Draws frames and bytes a second over the mean length of frames to `path`, as SVG or PNG.
    ///
    /// # Errors
    /// [`SetupError::Output`], also where the name ends in neither `.svg` nor `.png`.
    pub fn draw(&self, path: &Path) -> Result<(), SetupError> {
        let (mut frames, mut bytes) = (Lines::new(), Lines::new());
        for measurement in &self.measurements {
            let Case { route, frames: which, format, client } = &measurement.case;
            let format = if *format == Format::Packed { ", packed" } else { "" };
            let route = if *route == Route::Underlay { ", to underlay" } else { "" };
            let name = format!("{}, {client}{format}{route}", measurement.subject);
            let mean = which.mean();
            frames.entry(name.clone()).or_default().push((mean, measurement.spread().0));
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

    use super::*;
    use crate::calibration::Calibration;
    use crate::turns::Around;

    const STEADY: Around = Around { hops: 100.0, is_steady: true };

    fn outcome(frames: u64, lost: u64) -> Outcome {
        let (bytes, sent, elapsed) = (frames * 60, frames + lost, Duration::from_secs(1));
        Outcome { frames, bytes, lost, sent, elapsed, batches: 1, ..Outcome::default() }
    }

    fn report() -> Report {
        let case =
            Case { route: Route::Guest, frames: Frames::Smallest, format: Format::Split, client: Waiting::Polling };
        let mut measurements = Vec::new();
        for (subject, factor) in [("softdpu", 3), ("testpmd", 1)] {
            let mut measurement = Measurement::new(subject, case.clone());
            for frames in [100, 300, 200] {
                measurement.add(&outcome(frames * factor, 50), STEADY);
            }
            measurement.add(&Outcome { busy: Some(Duration::from_nanos(2000)), ..outcome(100, 0) }, STEADY);
            measurements.push(measurement);
        }
        let calibration = Calibration { two_hops: 100.0, clock: 10.0 };
        Report { calibration, measurements, disturbed: 0, left_out: Vec::new() }
    }

    #[test]
    fn figures_are_medians_and_ratios_are_to_the_last_subject() {
        let report = report();
        let [softdpu, testpmd] = &report.measurements[..] else { panic!("two subjects") };
        assert_eq!((softdpu.spread(), softdpu.work.throughput()), ((600.0, 300.0, 900.0), 36_000.0));
        assert_eq!((report.ratio(softdpu), report.ratio(testpmd)), (Some(3.0), None));
        assert_eq!(testpmd.work.loss(), 150.0 / 750.0);
        assert_eq!(testpmd.client, Some((20.0, 100.0)));
    }

    #[test]
    fn a_ratio_is_of_rounds_and_not_of_medians() {
        // Twice as fast in the last two rounds, where the CPUs are next to each other, and in one of which they moved.
        let case = report().measurements[0].case.clone();
        let measured = |subject, rates: [u64; 5]| {
            let mut measurement = Measurement::new(subject, case.clone());
            for (round, frames) in rates.into_iter().enumerate() {
                measurement.add(&outcome(frames, 0), Around { is_steady: round != 4, ..STEADY });
            }
            measurement
        };
        let (ours, theirs) = (measured("one", [110, 110, 110, 220, 900]), measured("other", [100, 100, 220, 200, 100]));
        let mut report = Report { measurements: vec![ours, theirs], ..report() };
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
