//! What the gateway's tables and tiers are to reach, each on one core.

use super::report::CaseMeasurement;

/// A figure that is to be reached.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// The case that it is of.
    pub case: &'static str,
    /// Its figure: `rate`, that of the case itself (1/s), or one of its others.
    pub metric: &'static str,
    /// What is wanted.
    pub wanted: Wanted,
    /// What the figure is called in a sentence, and the number by which it is divided there.
    unit: (&'static str, f64),
}

/// Which figures are good.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// So much or more.
    AtLeast(f64),
    /// So much or less.
    AtMost(f64),
}

/// What became of a bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// Reached, by this figure.
    Met(f64),
    /// Not reached.
    Missed(f64),
    /// Its case did not run.
    NotMeasured,
}

const MILLION: (&str, f64) = ("M/s", 1e6);
const MICROSECOND: (&str, f64) = ("us", 1e3);

const fn at_least(case: &'static str, metric: &'static str, least: f64, unit: (&'static str, f64)) -> Bar {
    Bar { case, metric, wanted: Wanted::AtLeast(least), unit }
}

const fn at_most(case: &'static str, metric: &'static str, most: f64, unit: (&'static str, f64)) -> Bar {
    Bar { case, metric, wanted: Wanted::AtMost(most), unit }
}

/// All of them. A packet's time in the tiers is what counts of flows, not what filling its head with a frame takes the
/// bench.
pub const BARS: &[Bar] = &[
    at_least("flow: hit, 64 k flows", "hit-rate", 40e6, MILLION),
    at_least("flow: hit and meter, 64 k flows", "hit-rate", 40e6, MILLION),
    at_least("flow: hit, 4 M flows", "hit-rate", 25e6, MILLION),
    at_least("flow: hit and meter, 4 M flows", "hit-rate", 25e6, MILLION),
    at_least("flow: Zipf over 4 M flows through 1000 rules", "off-software", 99.0, ("%", 1.0)),
    at_least("flow: new ones through 1000 rules", "new-rate", 1e6, MILLION),
    at_most("flow: hit, 16 M flows", "bytes for a flow's entry", 128.0, ("B", 1.0)),
    at_most("flow: hit, 16 M flows", "memory", 2.5 * 1024.0, ("MiB", 1.0)),
    at_least("exact: load 8 M VM-to-node entries, each", "rate", 2e6, MILLION),
    at_least("lpm: find, 1 M IPv4, as the Internet's, uniform", "rate", 50e6, MILLION),
    at_least("lpm: find, 1 M IPv4, a provider's, uniform", "rate", 50e6, MILLION),
    at_most("lpm: add or delete, 1 M IPv4, as the Internet's", "add, p99", 10_000.0, MICROSECOND),
    at_most("lpm: add or delete, 1 M IPv4, as the Internet's", "delete, p99", 10_000.0, MICROSECOND),
    at_most("lpm: add or delete, 1 M IPv4, a provider's", "add, p99", 10_000.0, MICROSECOND),
    at_most("lpm: add or delete, 1 M IPv4, a provider's", "delete, p99", 10_000.0, MICROSECOND),
    at_most("changes: 1 M loaded routes, 64 guests here", "add, p99", 2e6, MICROSECOND),
    at_most("changes: 1 M loaded routes, 64 guests here", "delete, p99", 2e6, MICROSECOND),
    at_most("changes: 1 M loaded guests, 64 guests here", "delete, p99", 10e6, MICROSECOND),
    at_most("lpm: find, 10000 x 100 IPv4, a provider's, uniform", "memory", 512.0, ("MiB", 1.0)),
];

/// Of a flow's case: how its packets' time compares with that of a loop that does nothing else, on the same machine at
/// the same time.
const OVER_BARE: &str = "times the bare loop's";

/// A figure of a case that was measured.
fn figure_of(measurements: &[CaseMeasurement], case: &str, metric: &str) -> Option<f64> {
    let found = measurements.iter().find(|found| found.case == case)?;
    match metric {
        "rate" => Some(1e9 / found.nanos.median()),
        name => found.figures.iter().find(|(metric, ..)| *metric == name).map(|(.., value)| *value),
    }
}

impl Bar {
    /// What became of it.
    pub fn outcome(&self, measurements: &[CaseMeasurement]) -> Outcome {
        match (figure_of(measurements, self.case, self.metric), self.wanted) {
            (None, _) => Outcome::NotMeasured,
            (Some(figure), Wanted::AtLeast(least)) if figure >= least => Outcome::Met(figure),
            (Some(figure), Wanted::AtMost(most)) if figure <= most => Outcome::Met(figure),
            (Some(figure), _) => Outcome::Missed(figure),
        }
    }

    /// A line for people.
    pub fn line(&self, measurements: &[CaseMeasurement]) -> String {
        let (unit, divisor) = self.unit;
        let (sign, bound) = match self.wanted {
            Wanted::AtLeast(least) => ("≥", least),
            Wanted::AtMost(most) => ("≤", most),
        };
        let became = match self.outcome(measurements) {
            Outcome::Met(figure) => format!("met: {:.1} {unit}", figure / divisor),
            Outcome::Missed(figure) => format!("MISSED: {:.1} {unit}", figure / divisor),
            Outcome::NotMeasured => "not measured".to_owned(),
        };
        let over_bare = (self.metric == "hit-rate").then(|| figure_of(measurements, self.case, OVER_BARE)).flatten();
        let over_bare = over_bare.map_or(String::new(), |times| format!(", {times:.2} times the bare loop's time"));
        let what = format!("{}: {}", self.case, self.metric);
        format!("{what:<68} {sign} {:>6} {unit:<4} {became}{over_bare}", bound / divisor)
    }
}

#[cfg(test)]
mod tests {
    use super::super::TOPICS;
    use super::*;

    #[test]
    fn every_bar_is_of_a_case_that_there_is() {
        let cases: Vec<String> = TOPICS.iter().flat_map(|topic| (topic.cases)()).map(|case| case.name()).collect();
        for bar in BARS {
            assert!(cases.iter().any(|case| case == bar.case), "{}: {cases:#?}", bar.case);
        }
    }

    #[test]
    fn a_bar_is_met_missed_or_not_measured() {
        let bar = at_least("a", "rate", 2e6, MILLION);
        let of = |nanos| {
            vec![CaseMeasurement {
                case: "a".into(),
                nanos: [nanos].into_iter().collect(),
                figures: vec![("b", "1", 3.0)],
            }]
        };
        assert_eq!(bar.outcome(&of(250.0)), Outcome::Met(4e6));
        assert_eq!(bar.outcome(&of(1000.0)), Outcome::Missed(1e6));
        assert_eq!(bar.outcome(&[]), Outcome::NotMeasured);
        assert_eq!(at_most("a", "b", 3.0, ("", 1.0)).outcome(&of(1.0)), Outcome::Met(3.0));
        assert!(bar.line(&of(1000.0)).contains("MISSED: 1.0 M/s"), "{}", bar.line(&of(1000.0)));
        let hit = at_least("a", "hit-rate", 4e7, MILLION);
        let figures = vec![("hit-rate", "1/s", 5e7), (OVER_BARE, "x", 1.5)];
        let line = hit.line(&[CaseMeasurement { case: "a".into(), nanos: [20.0].into_iter().collect(), figures }]);
        assert!(line.ends_with("met: 50.0 M/s, 1.50 times the bare loop's time"), "{line}");
    }
}
