//! What an experiment found with several seeds: medians with intervals, and verdicts on orderings.

use std::collections::BTreeMap;

use softdpu_plot::{Lines, Panel};

use crate::figure::{Figure, Margin, Ordering, Point, Stated};
use crate::statistics::Estimate;

/// What is found of an ordering or of one pair of it. The margins of a pair are differences within a seed: both systems
/// had the same arrivals. Their interval decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The interval is above zero (relative margins: above [`LEVEL`]).
    Holds,
    /// It includes zero: seeds do not tell.
    Undecided,
    /// It is below zero (relative margins: below minus [`LEVEL`]).
    Reversed,
}

/// A relative margin of no more is none, percent: systems that are all at line rate differ by what is in flight.
pub const LEVEL: f64 = 0.1;

impl Verdict {
    fn of(unit: &str, estimate: &Estimate) -> Verdict {
        let level = if unit == "%" { LEVEL } else { 0.0 };
        match () {
            () if estimate.low > level => Verdict::Holds,
            () if estimate.high < -level => Verdict::Reversed,
            () => Verdict::Undecided,
        }
    }
}

/// A pair of an ordering over several seeds.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Of what.
    pub label: String,
    /// The margin's unit.
    pub unit: &'static str,
    /// The margin.
    pub margin: Estimate,
    /// What comes of it.
    pub verdict: Verdict,
}

/// An ordering over several seeds.
#[derive(Clone, Debug)]
pub struct Ordered {
    /// What is said, and where.
    pub what: String,
    /// Its pairs.
    pub pairs: Vec<Pair>,
}

impl Ordered {
    /// The whole ordering's: that of its worst pair.
    pub fn verdict(&self) -> Verdict {
        self.pairs.iter().map(|pair| pair.verdict).max().unwrap_or(Verdict::Undecided)
    }

    /// Whether every pair is as stated.
    pub fn holds(&self) -> bool {
        self.verdict() == Verdict::Holds
    }

    /// "holds", or of how many pairs it does.
    pub fn told(&self) -> String {
        let count = |verdict| self.pairs.iter().filter(|pair| pair.verdict == verdict).count();
        if self.holds() {
            return "holds".to_owned();
        }
        let (holds, all) = (count(Verdict::Holds), self.pairs.len());
        format!("does not: {holds} of {all} hold, {} reversed", count(Verdict::Reversed))
    }

    /// The worst pairs, where there are any against it.
    fn against(&self) -> String {
        let mut against: Vec<&Pair> = self.pairs.iter().filter(|pair| pair.verdict != Verdict::Holds).collect();
        against.sort_by(|a, b| a.margin.median.total_cmp(&b.margin.median));
        let write = |pair: &&Pair| {
            let digits = if pair.unit == "1" { 3 } else { 1 };
            format!("{} {}", pair.label, written(&pair.margin, pair.unit, digits))
        };
        let mut seen: Vec<String> = against.iter().take(3).map(write).collect();
        if against.len() > 3 {
            seen.push(format!("and {} more", against.len() - 3));
        }
        seen.join("; ")
    }
}

/// A value that the paper states, beside what the twin has.
#[derive(Clone, Debug)]
pub struct Compared {
    /// What is said, and where.
    pub what: String,
    /// The unit of both.
    pub unit: &'static str,
    /// The paper's value.
    pub paper: f64,
    /// The twin's; None where it would be a percentage of a value near zero.
    pub twin: Option<Estimate>,
    /// A constant was calibrated on it.
    pub is_calibrated: bool,
}

impl Compared {
    /// How far the twin is from the paper, with its unit: of percentages, percentage points.
    pub fn difference(&self) -> String {
        match self.twin {
            _ if self.is_calibrated => "calibrated".to_owned(),
            None => "near zero".to_owned(),
            Some(twin) => format!("{:+.3}{}", twin.median - self.paper, unit_of_difference(self.unit)),
        }
    }
}

fn unit_of_difference(unit: &str) -> String {
    match unit {
        "1" => String::new(),
        "%" => " pp".to_owned(),
        other => format!(" {other}"),
    }
}

/// A median and its interval, as tables write it.
fn written(estimate: &Estimate, unit: &str, digits: usize) -> String {
    let Estimate { median, low, high } = estimate;
    let unit = if unit == "1" { String::new() } else { format!(" {unit}") };
    format!("{median:.digits$} [{low:.digits$}, {high:.digits$}]{unit}")
}

/// What an experiment found with several seeds.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows.
    pub title: String,
    /// How many seeds there were.
    pub seeds: usize,
    /// Every figure: what it is of, and its median over seeds. The point's value is the first seed's.
    pub points: Vec<(Point, Estimate)>,
    /// Beside the paper's.
    pub stated: Vec<Compared>,
    /// And what it says of their order.
    pub orderings: Vec<Ordered>,
    /// What there is to say beside it.
    pub notes: Vec<String>,
    /// What can be drawn: medians.
    pub panels: Vec<Panel>,
}

impl Summary {
    /// Of the same experiment's figures with several seeds. None where there is none.
    pub fn of(mut figures: Vec<Figure>) -> Option<Summary> {
        let estimate = |values: &dyn Fn(&Figure) -> Option<f64>| {
            Estimate::of(&figures.iter().filter_map(values).collect::<Vec<f64>>())
        };
        let first = figures.first()?;
        let point = |(at, point): (usize, &Point)| {
            (point.clone(), estimate(&|figure| figure.points.get(at).map(|point| point.value)))
        };
        let points = first.points.iter().enumerate().map(point).collect();
        let compared = |(at, stated): (usize, &Stated)| {
            // A percentage that some seeds cannot have is none.
            let has = figures.iter().all(|figure| figure.stated.get(at).is_some_and(|stated| stated.twin.is_some()));
            let twin = has.then(|| estimate(&|figure| figure.stated.get(at)?.twin));
            let Stated { what, unit, paper, is_calibrated, .. } = stated.clone();
            Compared { what, unit, paper, twin, is_calibrated }
        };
        let stated = first.stated.iter().enumerate().map(compared).collect();
        let ordered = |(at, ordering): (usize, &Ordering)| {
            let pair = |(number, margin): (usize, &Margin)| {
                let of = |figure: &Figure| Some(figure.orderings.get(at)?.margins.get(number)?.value);
                let (label, unit, margin) = (margin.label.clone(), margin.unit, estimate(&of));
                Pair { label, unit, margin, verdict: Verdict::of(unit, &margin) }
            };
            Ordered { what: ordering.what.clone(), pairs: ordering.margins.iter().enumerate().map(pair).collect() }
        };
        let orderings = first.orderings.iter().enumerate().map(ordered).collect();
        let panels = first.panels.iter().enumerate().map(|(at, panel)| median_panel(at, panel, &figures)).collect();
        let seeds = figures.len();
        let Figure { name, title, notes, .. } = figures.swap_remove(0);
        Some(Summary { name, title, seeds, points, stated, orderings, notes, panels })
    }

    /// One JSON object a line, as every `bench` and `twin` command prints: bench, subject, case, metric, unit, value.
    /// The ends of an interval are the metrics `METRIC-low` and `METRIC-high`.
    pub fn json(&self) -> String {
        let bench = format!("twin-{}", self.name);
        let mut lines = String::new();
        let mut line = |subject: &str, case: &str, metric: &str, unit: &str, value: f64| {
            let object = serde_json::json!({
                "bench": bench, "subject": subject, "case": case, "metric": metric, "unit": unit, "value": value,
            });
            lines.push_str(&object.to_string());
            lines.push('\n');
        };
        let ends = |estimate: &Estimate| [("", estimate.median), ("-low", estimate.low), ("-high", estimate.high)];
        for (Point { subject, case, metric, unit, .. }, estimate) in &self.points {
            for (end, value) in ends(estimate) {
                line(subject, case, &format!("{metric}{end}"), unit, value);
            }
        }
        for Compared { what, unit, paper, twin, .. } in &self.stated {
            line("paper", what, "stated", unit, *paper);
            for (end, value) in twin.iter().flat_map(ends) {
                line("twin", what, &format!("stated{end}"), unit, value);
            }
        }
        for ordered in &self.orderings {
            line("twin", &ordered.what, "holds", "1", f64::from(u8::from(ordered.holds())));
        }
        lines
    }

    /// The points as comma-separated values with a heading (RFC 4180).
    pub fn csv(&self) -> String {
        let mut lines = "subject,case,metric,unit,median,low,high\n".to_owned();
        for (Point { subject, case, metric, unit, .. }, Estimate { median, low, high }) in &self.points {
            lines.push_str(&format!("{subject},\"{case}\",{metric},{unit},{median},{low},{high}\n"));
        }
        lines
    }

    /// Draws it to `path`, as SVG or PNG.
    ///
    /// # Errors
    /// A sentence.
    pub fn draw(&self, path: &std::path::Path) -> Result<(), String> {
        softdpu_plot::draw(&self.panels, path)
    }

    /// For people: the paper's values beside the twin's, the orderings, and every figure.
    pub fn table(&self) -> String {
        let mut text = format!("{}\nmedians of {} seeds, with 95 % intervals\n", self.title, self.seeds);
        if self.stated.is_empty() {
            text.push_str("\nThe paper's text states no value for this: below is the shape.\n");
        } else {
            let width = self.stated.iter().map(|stated| stated.what.chars().count()).max().unwrap_or(0);
            text.push_str(&format!("\n{:width$}  {:>9}  {:26} difference\n", "STATED", "paper", "twin"));
            for stated in &self.stated {
                let twin = stated.twin.map_or("-".to_owned(), |twin| written(&twin, stated.unit, 3));
                let (what, paper) = (&stated.what, stated.paper);
                text.push_str(&format!("{what:width$}  {paper:>9.3}  {twin:26} {}\n", stated.difference()));
            }
        }
        if !self.orderings.is_empty() {
            text.push_str("\nORDER, by the interval of differences within a seed\n");
            for ordered in &self.orderings {
                text.push_str(&format!("{}: {}", ordered.what, ordered.told()));
                if !ordered.holds() {
                    text.push_str(&format!(": {}", ordered.against()));
                }
                text.push('\n');
            }
        }
        text.push_str(&self.matrix());
        for note in &self.notes {
            text.push_str(&format!("\n{note}"));
        }
        text.push('\n');
        text
    }

    /// Rows of a Markdown table: figure, what is stated, paper, twin with its interval, difference or verdict.
    pub fn markdown(&self) -> String {
        let figure = self.name.split_once('-').map_or(self.name, |(_, figure)| figure);
        let mut rows = String::new();
        for stated in &self.stated {
            let twin = stated.twin.map_or("-".to_owned(), |twin| written(&twin, stated.unit, 2));
            let unit = if stated.unit == "1" { String::new() } else { format!(" {}", stated.unit) };
            let (what, paper, difference) = (&stated.what, stated.paper, stated.difference());
            rows.push_str(&format!("| {figure} | {what} | {paper}{unit} | {twin} | {difference} |\n"));
        }
        for ordered in &self.orderings {
            let against = if ordered.holds() { String::new() } else { ordered.against() };
            rows.push_str(&format!("| {figure} | {} | | {against} | {} |\n", ordered.what, ordered.told()));
        }
        rows
    }

    /// A table for each metric: cases down, subjects across.
    fn matrix(&self) -> String {
        let mut text = String::new();
        let mut metrics: Vec<(&str, &str)> = Vec::new();
        for (point, _) in &self.points {
            if !metrics.contains(&(point.metric, point.unit)) {
                metrics.push((point.metric, point.unit));
            }
        }
        for (metric, unit) in metrics {
            let of_metric = self.points.iter().filter(|(point, _)| point.metric == metric);
            let mut subjects: Vec<&str> = Vec::new();
            let mut cases: Vec<(&str, BTreeMap<&str, &Estimate>)> = Vec::new();
            for (point, estimate) in of_metric {
                if !subjects.contains(&point.subject.as_str()) {
                    subjects.push(&point.subject);
                }
                match cases.iter_mut().find(|(case, _)| *case == point.case) {
                    Some((_, row)) => {
                        row.insert(&point.subject, estimate);
                    }
                    None => cases.push((&point.case, [(point.subject.as_str(), estimate)].into())),
                }
            }
            let width = cases.iter().map(|(case, _)| case.chars().count()).max().unwrap_or(0).max(8);
            let heading = if unit == "1" { metric.to_owned() } else { format!("{metric}, {unit}") };
            text.push_str(&format!("\n{heading}\n{:width$}", ""));
            for subject in &subjects {
                text.push_str(&format!(" {subject:>24}"));
            }
            for (case, row) in cases {
                text.push_str(&format!("\n{case:width$}"));
                for subject in &subjects {
                    let cell = row.get(subject).map_or("-".to_owned(), |estimate| written(estimate, "1", 2));
                    text.push_str(&format!(" {cell:>24}"));
                }
            }
            text.push('\n');
        }
        text
    }
}

/// Runs an experiment with so many seeds, at least one, from `first` on; as many at a time as there are CPUs.
pub fn over_seeds(first: u64, seeds: u64, run: impl Fn(u64) -> Figure + Sync) -> Summary {
    let seeds = seeds.max(1);
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let of = |own: u64| -> Vec<(u64, Figure)> {
        (own..seeds).step_by(threads as usize).map(|at| (at, run(first + at))).collect()
    };
    let mut figures: Vec<(u64, Figure)> = std::thread::scope(|scope| {
        let started: Vec<_> = (1..threads)
            .map(|own| {
                scope.spawn({
                    let of = &of;
                    move || of(own)
                })
            })
            .collect();
        let own = of(0);
        own.into_iter().chain(started.into_iter().flat_map(|thread| thread.join().unwrap_or_default())).collect()
    });
    figures.sort_by_key(|(at, _)| *at);
    let figures = figures.into_iter().map(|(_, figure)| figure).collect();
    Summary::of(figures).unwrap_or_else(|| unreachable!("there is a first seed"))
}

/// The panel of a place in all figures: the medians of its points.
fn median_panel(at: usize, panel: &Panel, figures: &[Figure]) -> Panel {
    let mut lines = Lines::new();
    for (name, line) in &panel.lines {
        let median = |(number, &(x, _)): (usize, &(f64, f64))| {
            let of = |figure: &Figure| Some(figure.panels.get(at)?.lines.get(name)?.get(number)?.1);
            (x, Estimate::of(&figures.iter().filter_map(of).collect::<Vec<f64>>()).median)
        };
        lines.insert(name.clone(), line.iter().enumerate().map(median).collect());
    }
    let mut panel = panel.clone();
    panel.lines = lines;
    panel
}
