//! What an experiment finds with one seed: figures beside what a paper states, margins of orderings, lines to draw.
//! A [`Summary`](crate::summary::Summary) is of several seeds.

use softdpu_plot::Panel;

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
    /// The twin's. None: it would be a percentage of a value near zero.
    pub twin: Option<f64>,
    /// A constant was calibrated on it: it is not reproduced.
    pub is_calibrated: bool,
}

/// By how much one pair of values is in the order that the paper states; negative: in the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Margin {
    /// Of what.
    pub label: String,
    /// `%`: of the other value; `pp`: percentage points; otherwise the unit of the values.
    pub unit: &'static str,
    /// How much.
    pub value: f64,
}

/// An ordering or a trend that the paper's text states.
#[derive(Clone, Debug, PartialEq)]
pub struct Ordering {
    /// What is said, and where.
    pub what: String,
    /// The margins of all pairs that it is about.
    pub margins: Vec<Margin>,
}

/// What an experiment found with one seed.
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
    pub(crate) fn new(name: &'static str, title: impl Into<String>) -> Figure {
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

    pub(crate) fn point(
        &mut self,
        subject: impl AsRef<str>,
        case: impl Into<String>,
        metric: &'static str,
        unit: &'static str,
        value: f64,
    ) {
        let subject = subject.as_ref().to_owned();
        self.points.push(Point { subject, case: case.into(), metric, unit, value });
    }

    pub(crate) fn state(&mut self, what: impl Into<String>, unit: &'static str, paper: f64, twin: f64) {
        self.state_if_any(what, unit, paper, Some(twin));
    }

    /// The same where the twin may have no such value.
    pub(crate) fn state_if_any(&mut self, what: impl Into<String>, unit: &'static str, paper: f64, twin: Option<f64>) {
        self.stated.push(Stated { what: what.into(), unit, paper, twin, is_calibrated: false });
    }

    /// An ordering. It holds if the margins are above zero, see [`Verdict`](crate::summary::Verdict).
    pub(crate) fn order(&mut self, what: impl Into<String>, margins: Vec<Margin>) {
        self.orderings.push(Ordering { what: what.into(), margins });
    }
}

/// How far a value is above another, in percent of that: positive where `sign` is 1 and it is more, or -1 and less.
pub(crate) fn above(label: impl Into<String>, value: f64, other: f64, sign: f64) -> Margin {
    let value = if other.abs() < 1e-12 { 0.0 } else { (value / other - 1.0) * 100.0 * sign };
    Margin { label: label.into(), unit: "%", value }
}

/// How far `value` is below `most`, both in `unit`.
pub(crate) fn within(label: impl Into<String>, value: f64, most: f64, unit: &'static str) -> Margin {
    Margin { label: label.into(), unit, value: most - value }
}
