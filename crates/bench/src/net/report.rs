//! What was measured between guests, for people and for programs.

use std::fmt::{self, Write as _};
use std::io;
use std::path::Path;

use softdpu_ring::Format;

use super::frames::Frames;
use super::load::Outcome;
use crate::SetupError;
use crate::calibration::Calibration;
use crate::load::Waiting;
use crate::plot::{Lines, Panel, draw_panels};
use crate::report::{Figure, median, rate};

/// What is held equal between subjects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Case {
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
        write!(f, "guest-guest {} {format} {}", self.frames, self.client)
    }
}

/// One subject's figures in one case.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Who.
    pub subject: String,
    /// What.
    pub case: Case,
    /// Frames received a second, round by round.
    pub frames: Vec<f64>,
    /// Bytes received a second, round by round.
    pub bytes: Vec<f64>,
    /// Two bare cross-core hops just before and after, nanoseconds, round by round.
    pub hops: Vec<f64>,
    /// Frames sent and never received, of all rounds.
    pub lost: u64,
    /// Frames sent, of all rounds.
    pub sent: u64,
    /// Kicks of all rounds.
    kicks: u64,
    /// Notifications slept for, of all rounds.
    interrupts: u64,
    received: u64,
    /// Time the client itself takes for a frame, sending and receiving it, nanoseconds, and frames in a batch.
    pub client: Option<(f64, f64)>,
}

impl Measurement {
    pub(super) fn new(subject: &str, case: Case) -> Measurement {
        Measurement {
            subject: subject.to_owned(),
            case,
            frames: Vec::new(),
            bytes: Vec::new(),
            hops: Vec::new(),
            lost: 0,
            sent: 0,
            kicks: 0,
            interrupts: 0,
            received: 0,
            client: None,
        }
    }

    pub(super) fn add(&mut self, outcome: &Outcome, hops: f64) {
        let frames = outcome.frames as f64;
        if let Some(busy) = outcome.busy {
            let frames = frames.max(1.0);
            self.client = Some((busy.as_nanos() as f64 / frames, frames / outcome.batches.max(1) as f64));
            return;
        }
        self.frames.push(frames / outcome.elapsed.as_secs_f64());
        self.bytes.push(outcome.bytes as f64 / outcome.elapsed.as_secs_f64());
        self.hops.push(hops);
        self.lost += outcome.lost;
        self.sent += outcome.sent;
        self.kicks += outcome.kicks;
        self.interrupts += outcome.interrupts;
        self.received += outcome.frames;
    }

    /// Median, least, largest of the rounds' frames a second.
    pub fn spread(&self) -> (f64, f64, f64) {
        spread(&self.frames)
    }

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

fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (least, most) = (sorted.first().copied().unwrap_or_default(), sorted.last().copied().unwrap_or_default());
    (median(&sorted), least, most)
}

/// Everything that was measured.
#[derive(Clone, Debug)]
pub struct Report {
    /// The machine alone.
    pub calibration: Calibration,
    /// Case by case, and in each subject by subject.
    pub measurements: Vec<Measurement>,
    /// Rounds in which the distance of the two CPUs changed. They were repeated, three times at the most.
    pub disturbed: usize,
    /// Who could not be measured in which case, and why.
    pub left_out: Vec<(String, Case, String)>,
}

impl Report {
    /// Median of the frames a second of `measurement` over that of the last other subject of its case; none where it is
    /// alone, or that other.
    pub fn ratio(&self, measurement: &Measurement) -> Option<f64> {
        let peer = self.measurements.iter().rev().find(|other| other.case == measurement.case)?;
        if peer.subject == measurement.subject {
            return None;
        }
        Some(measurement.spread().0 / peer.spread().0)
    }

    /// One JSON object a line.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        let mut line = |subject, case: String, metric, unit, value| {
            Figure { bench: "net", subject, case, metric, unit, value }.write(to)
        };
        line("machine", "calibration".to_owned(), "two-hops", "ns", self.calibration.two_hops)?;
        line("machine", "calibration".to_owned(), "clock-reading", "ns", self.calibration.clock)?;
        line("machine", "calibration".to_owned(), "disturbed-rounds", "1", self.disturbed as f64)?;
        for measurement in &self.measurements {
            let (subject, case) = (measurement.subject.as_str(), measurement.case.to_string());
            let (median, least, most) = measurement.spread();
            line(subject, case.clone(), "frames", "1/s", median)?;
            line(subject, case.clone(), "frames-min", "1/s", least)?;
            line(subject, case.clone(), "frames-max", "1/s", most)?;
            line(subject, case.clone(), "throughput", "B/s", measurement.throughput())?;
            line(subject, case.clone(), "loss", "1", measurement.loss())?;
            line(subject, case.clone(), "two-hops", "ns", spread(&measurement.hops).0)?;
            line(subject, case.clone(), "kicks-per-frame", "1", measurement.per_frame(measurement.kicks))?;
            line(subject, case.clone(), "notifications-per-frame", "1", measurement.per_frame(measurement.interrupts))?;
            if let Some((busy, batch)) = measurement.client {
                line(subject, case.clone(), "client-time-per-frame", "ns", busy)?;
                line(subject, case.clone(), "frames-per-batch", "1", batch)?;
            }
            if let Some(ratio) = self.ratio(measurement) {
                line(subject, case.clone(), "frames-ratio", "1", ratio)?;
            }
        }
        Ok(())
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "two bare cross-core hops {:.0} ns, a clock reading {:.1} ns\n",
            self.calibration.two_hops, self.calibration.clock
        );
        let _ = writeln!(
            out,
            "{:<34} {:<20} {:>10} {:>23} {:>12} {:>7} {:>9} {:>8} {:>6} {:>7} {:>7}",
            "case",
            "subject",
            "frames",
            "min - max",
            "throughput",
            "ratio",
            "loss",
            "client",
            "batch",
            "kicks",
            "2 hops"
        );
        let mut previous = None;
        for measurement in &self.measurements {
            let (median, least, most) = measurement.spread();
            let case = measurement.case.to_string();
            let shown = if previous.as_ref() == Some(&case) { "" } else { &case };
            let (busy, batch) = measurement.client.map_or((String::from("-"), String::from("-")), |(busy, batch)| {
                (format!("{busy:.1} ns"), format!("{batch:.1}"))
            });
            let _ = writeln!(
                out,
                "{shown:<34} {:<20} {:>10} {:>23} {:>12} {:>7} {:>9} {:>8} {:>6} {:>7.4} {:>7}",
                measurement.subject,
                rate(median),
                format!("{} - {}", rate(least), rate(most)),
                throughput(measurement.throughput()),
                self.ratio(measurement).map_or(String::from("-"), |ratio| format!("{ratio:.2}")),
                loss(measurement),
                busy,
                batch,
                measurement.per_frame(measurement.kicks),
                format!("{:.0} ns", spread(&measurement.hops).0),
            );
            previous = Some(case);
        }
        for (subject, case, why) in &self.left_out {
            let _ = writeln!(out, "\n{case}: {subject} was left out: {why}");
        }
        if self.disturbed > 0 {
            let _ = writeln!(
                out,
                "\n{} rounds were disturbed: the distance between the CPUs changed (a virtual machine's CPUs were moved?); they \
                 were repeated where possible",
                self.disturbed
            );
        }
        out
    }

    /// Draws frames and bytes a second over the mean length of frames to `path`, an SVG file.
    ///
    /// # Errors
    /// [`SetupError::Output`], also where the name does not end in `.svg`.
    pub fn draw(&self, path: &Path) -> Result<(), SetupError> {
        let (mut frames, mut bytes) = (Lines::new(), Lines::new());
        for measurement in &self.measurements {
            let Case { frames: which, format, client } = &measurement.case;
            let format = if *format == Format::Packed { ", packed" } else { "" };
            let name = format!("{}, {client}{format}", measurement.subject);
            let mean = which.mean();
            frames.entry(name.clone()).or_default().push((mean, measurement.spread().0));
            bytes.entry(name).or_default().push((mean, measurement.throughput()));
        }
        for points in frames.values_mut().chain(bytes.values_mut()) {
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
        }
        let axis = "mean bytes of a frame";
        draw_panels(
            [
                Panel { title: "frames received a second over their length", axis, lines: frames, label: rate },
                Panel { title: "bytes received a second over frame length", axis, lines: bytes, label: throughput },
            ],
            path,
        )
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

fn loss(measurement: &Measurement) -> String {
    match measurement.loss() {
        0.0 => "none".to_owned(),
        share => format!("{:.4}%", share * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn outcome(frames: u64, lost: u64) -> Outcome {
        let (bytes, sent, elapsed) = (frames * 60, frames + lost, Duration::from_secs(1));
        Outcome { frames, bytes, lost, sent, elapsed, batches: 1, ..Outcome::default() }
    }

    fn report() -> Report {
        let case = Case { frames: Frames::Smallest, format: Format::Split, client: Waiting::Polling };
        let mut measurements = Vec::new();
        for (subject, factor) in [("softdpu", 3), ("testpmd", 1)] {
            let mut measurement = Measurement::new(subject, case.clone());
            for frames in [100, 300, 200] {
                measurement.add(&outcome(frames * factor, 50), 100.0);
            }
            measurement.add(&Outcome { busy: Some(Duration::from_nanos(2000)), ..outcome(100, 0) }, 100.0);
            measurements.push(measurement);
        }
        let calibration = Calibration { two_hops: 100.0, clock: 10.0 };
        Report { calibration, measurements, disturbed: 0, left_out: Vec::new() }
    }

    #[test]
    fn figures_are_medians_and_ratios_are_to_the_last_subject() {
        let report = report();
        let [softdpu, testpmd] = &report.measurements[..] else { panic!("two subjects") };
        assert_eq!((softdpu.spread(), softdpu.throughput()), ((600.0, 300.0, 900.0), 36_000.0));
        assert_eq!((report.ratio(softdpu), report.ratio(testpmd)), (Some(3.0), None));
        assert_eq!(testpmd.loss(), 150.0 / 750.0);
        assert_eq!(testpmd.client, Some((20.0, 100.0)));
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
