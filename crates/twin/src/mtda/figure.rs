//! What an experiment found: figures beside what the paper states, orderings that hold or do not, lines to draw.

use softdpu_plot::Panel;

use super::System;

/// A figure that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The policy's name.
    pub subject: String,
    /// Of what.
    pub case: String,
    /// What it is.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The value.
    pub value: f64,
}

/// A value that the paper's text states, and what the twin has in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Stated {
    /// What is said, and where.
    pub what: String,
    /// The unit of both.
    pub unit: &'static str,
    /// The paper's value.
    pub paper: f64,
    /// The twin's.
    pub twin: f64,
}

/// An ordering or a trend that the paper's text states.
#[derive(Clone, Debug, PartialEq)]
pub struct Ordering {
    /// What is said, and where.
    pub what: String,
    /// Whether it is so in the twin.
    pub holds: bool,
    /// What was seen: where it is not, where not.
    pub seen: String,
}

/// What an experiment found.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows.
    pub title: String,
    /// Every figure.
    pub points: Vec<Point>,
    /// Beside the paper's.
    pub stated: Vec<Stated>,
    /// And what it says of their order.
    pub orderings: Vec<Ordering>,
    /// What there is to say beside it.
    pub notes: Vec<String>,
    /// What can be drawn.
    pub panels: Vec<Panel>,
}

impl Figure {
    /// One without any content.
    pub(super) fn new(name: &'static str, title: impl Into<String>) -> Figure {
        Figure {
            name,
            title: title.into(),
            points: Vec::new(),
            stated: Vec::new(),
            orderings: Vec::new(),
            notes: Vec::new(),
            panels: Vec::new(),
        }
    }

    pub(super) fn point(
        &mut self,
        system: System,
        case: impl Into<String>,
        metric: &'static str,
        unit: &'static str,
        value: f64,
    ) {
        let subject = system.name().to_owned();
        self.points.push(Point { subject, case: case.into(), metric, unit, value });
    }

    pub(super) fn state(&mut self, what: impl Into<String>, unit: &'static str, paper: f64, twin: f64) {
        self.stated.push(Stated { what: what.into(), unit, paper, twin });
    }

    /// Notes an ordering: it holds if there is nothing against it.
    pub(super) fn order(&mut self, what: impl Into<String>, against: &[String]) {
        let seen = match against {
            [] => String::new(),
            few if few.len() <= 3 => few.join("; "),
            many => format!("{}; and {} more", many[..3].join("; "), many.len() - 3),
        };
        self.orderings.push(Ordering { what: what.into(), holds: against.is_empty(), seen });
    }

    /// One JSON object a line, as every `bench` and `twin` command prints: bench, subject, case, metric, unit, value.
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
        for Point { subject, case, metric, unit, value } in &self.points {
            line(subject, case, metric, unit, *value);
        }
        for Stated { what, unit, paper, twin } in &self.stated {
            line("paper", what, "stated", unit, *paper);
            line("twin", what, "stated", unit, *twin);
        }
        for Ordering { what, holds, .. } in &self.orderings {
            line("twin", what, "holds", "1", f64::from(u8::from(*holds)));
        }
        lines
    }

    /// The points as comma-separated values with a heading (RFC 4180).
    pub fn csv(&self) -> String {
        let mut lines = "subject,case,metric,unit,value\n".to_owned();
        for Point { subject, case, metric, unit, value } in &self.points {
            lines.push_str(&format!("{subject},\"{case}\",{metric},{unit},{value}\n"));
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
        let mut text = format!("{}\n", self.title);
        if self.stated.is_empty() {
            text.push_str("\nThe paper's text states no value for this: below is the shape.\n");
        } else {
            let width = self.stated.iter().map(|stated| stated.what.chars().count()).max().unwrap_or(0);
            text.push_str(&format!("\n{:width$}  {:>10} {:>10} {:>11}\n", "STATED", "paper", "twin", "difference"));
            for Stated { what, unit, paper, twin } in &self.stated {
                let unit = if *unit == "1" { "" } else { unit };
                let difference = twin - paper;
                text.push_str(&format!("{what:width$}  {paper:>10.3} {twin:>10.3} {difference:>+11.3} {unit}\n"));
            }
        }
        if !self.orderings.is_empty() {
            text.push_str("\nORDER\n");
            for Ordering { what, holds, seen } in &self.orderings {
                let holds = if *holds { "holds         " } else { "does not hold " };
                text.push_str(&format!("{holds} {what}"));
                if !seen.is_empty() {
                    text.push_str(&format!(": {seen}"));
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

    /// A table for each metric: cases down, subjects across.
    fn matrix(&self) -> String {
        let mut text = String::new();
        let mut metrics: Vec<(&str, &str)> = Vec::new();
        for point in &self.points {
            if !metrics.contains(&(point.metric, point.unit)) {
                metrics.push((point.metric, point.unit));
            }
        }
        for (metric, unit) in metrics {
            let points: Vec<&Point> = self.points.iter().filter(|point| point.metric == metric).collect();
            let (mut subjects, mut cases): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
            for point in &points {
                if !subjects.contains(&point.subject.as_str()) {
                    subjects.push(&point.subject);
                }
                if !cases.contains(&point.case.as_str()) {
                    cases.push(&point.case);
                }
            }
            let width = cases.iter().map(|case| case.chars().count()).max().unwrap_or(0).max(8);
            let heading = if unit == "1" { metric.to_owned() } else { format!("{metric}, {unit}") };
            text.push_str(&format!("\n{heading}\n{:width$}", ""));
            for subject in &subjects {
                text.push_str(&format!(" {subject:>12}"));
            }
            for case in cases {
                text.push_str(&format!("\n{case:width$}"));
                for subject in &subjects {
                    let found = points.iter().find(|point| point.subject == *subject && point.case == case);
                    match found {
                        Some(point) => text.push_str(&format!(" {:>12.3}", point.value)),
                        None => text.push_str(&format!(" {:>12}", "-")),
                    }
                }
            }
            text.push('\n');
        }
        text
    }
}
