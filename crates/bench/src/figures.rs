//! Tables of figures in documentation, written from raw results.
//!
//! ```text
//!  docs/results/RUN.jsonl       what a run measured: the lines that tables show, one object a line
//!  docs/results/TABLE.md        a table, with references in braces where figures go
//!  README.md, docs/**/*.md      <!-- figures: TABLE --> the table, with figures in it <!-- end -->
//! ```
//!
//! A reference is `{RUN / SUBJECT / CASE / METRIC / FORMAT}`; `*` in a subject, case or metric stands for any
//! characters. It has to match one line of the run. Others summarise:
//!
//! | reference | is replaced by |
//! |---|---|
//! | `{RUN / … / METRIC / FORMAT}` | the figure |
//! | `{least RUN / … / FORMAT}`, `{most …}` | the smallest, the largest of all figures that match |
//! | `{verdict RUN / … / METRIC >= 2; RUN / … <= 1}` | `met`, or how many of the figures that match miss their bars |
//! | `{change RUN / … / METRIC; RUN / … / METRIC}` | how far the first figure is from the second, in per cent |
//! | `{about RUN}` | how and where the run was done |
//!
//! A format is a number of decimals after a unit: `2` as it is, `M1` in millions (`k0` and `G2` likewise), `%1` of a
//! share, `us1` and `ms1` of nanoseconds, `MiB0` of bytes; or `si`, which chooses between k and M.
//!
//! Another run is `instructions`: the counts of `lab/instructions.baseline`, of subject `softdpu` and metric
//! `instructions`.
//!
//! `make figures` writes the tables; a test of this crate fails while one is not as it would be written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Where raw results and tables are, from the repository's root.
pub const RESULTS: &str = "docs/results";

/// What `make instructions` counted: a name and a number a line.
const INSTRUCTIONS: &str = "lab/instructions.baseline";

const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end -->";

/// Why a table cannot be written.
#[derive(Debug, Error)]
pub enum FiguresError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line of raw results is not what benches print.
    #[error("{run}.jsonl, line {line}: {source}")]
    Line {
        /// The run.
        run: String,
        /// From 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A reference in a table stands for no figure.
    #[error("{{{reference}}}: {what}")]
    Reference {
        /// What is between the braces.
        reference: String,
        /// What is wrong.
        what: String,
    },
    /// A page's marker.
    #[error("{}: {what}", page.display())]
    Marker {
        /// The page.
        page: PathBuf,
        /// What is wrong.
        what: String,
    },
}

type Result<T> = std::result::Result<T, FiguresError>;

/// A figure, as benches print it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Line {
    bench: String,
    subject: String,
    case: String,
    metric: String,
    unit: String,
    value: f64,
}

/// How and where a run was done: the first line of its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct About {
    about: String,
}

/// What a run measured.
#[derive(Clone, Debug, Default)]
struct Run {
    about: String,
    lines: Vec<Line>,
}

/// A reference's part: subject, case and metric as patterns.
#[derive(Debug)]
struct Wanted<'a> {
    run: &'a str,
    subject: &'a str,
    case: &'a str,
    metric: &'a str,
}

impl Wanted<'_> {
    fn matches(&self, line: &Line) -> bool {
        matches(self.subject, &line.subject) && matches(self.case, &line.case) && matches(self.metric, &line.metric)
    }
}

impl Run {
    fn read(name: &str, text: &str) -> Result<Run> {
        let mut run = Run::default();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let at = |source| FiguresError::Line { run: name.to_owned(), line: index + 1, source };
            match serde_json::from_str::<About>(line) {
                Ok(about) => run.about = about.about,
                Err(_) => run.lines.push(serde_json::from_str(line).map_err(at)?),
            }
        }
        Ok(run)
    }

    /// What `lab/instructions.sh --write` has written.
    fn instructions(text: &str) -> Run {
        let words = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' '));
        let counts = words.filter_map(|(case, count)| Some((case, count.trim().parse().ok()?)));
        let lines = counts.map(|(case, value)| Line {
            bench: "instructions".into(),
            subject: "softdpu".into(),
            case: case.into(),
            metric: "instructions".into(),
            unit: "1".into(),
            value,
        });
        Run { about: "`make instructions`".into(), lines: lines.collect() }
    }

    fn write(&self) -> String {
        let about = serde_json::to_string(&About { about: self.about.clone() });
        let lines = self.lines.iter().map(serde_json::to_string);
        std::iter::once(about).chain(lines).map(|line| line.expect("strings and numbers are JSON") + "\n").collect()
    }

    /// Puts what another run measured in the place of the same figures here. Gives how many there were.
    fn renew(&mut self, from: &Run) -> usize {
        let mut renewed = 0;
        for line in &mut self.lines {
            let same = |other: &&Line| {
                (&other.bench, &other.subject, &other.case, &other.metric)
                    == (&line.bench, &line.subject, &line.case, &line.metric)
            };
            if let Some(found) = from.lines.iter().find(same) {
                *line = found.clone();
                renewed += 1;
            }
        }
        renewed
    }
}

/// Whether a pattern with `*` for any characters is a text's.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, mut rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    while let Some((part, after)) = rest.split_once('*') {
        let Some(found) = text.find(part) else { return false };
        text = &text[found + part.len()..];
        rest = after;
    }
    text.ends_with(rest)
}

/// A figure in a format: a unit and a number of decimals.
fn format(value: f64, format: &str) -> Option<String> {
    if format == "si" {
        return Some(match value {
            value if value >= 1e6 => format!("{:.2} M", value / 1e6),
            value => format!("{:.0} k", value / 1e3),
        });
    }
    let unit = format.trim_end_matches(|char: char| char.is_ascii_digit());
    let decimals = format[unit.len()..].parse().ok()?;
    let divisor = match unit {
        "" => 1.0,
        "k" | "us" => 1e3,
        "M" | "ms" => 1e6,
        "G" => 1e9,
        "%" => 0.01,
        "MiB" => 1024.0 * 1024.0,
        _ => return None,
    };
    Some(format!("{:.decimals$}", value / divisor))
}

/// Raw results and tables of a repository.
#[derive(Debug, Default)]
pub struct Figures {
    runs: BTreeMap<String, Run>,
    tables: BTreeMap<String, String>,
}

impl Figures {
    /// Reads those of the repository at `root`.
    ///
    /// # Errors
    /// A file that cannot be read, or a line of results that is none.
    pub fn read(root: &Path) -> Result<Figures> {
        let mut figures = Figures::default();
        let instructions = Run::instructions(&read(&root.join(INSTRUCTIONS))?);
        figures.runs.insert("instructions".into(), instructions);
        for path in files(&root.join(RESULTS))? {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("jsonl") => drop(figures.runs.insert(name.clone(), Run::read(&name, &read(&path)?)?)),
                Some("md") if name != "README" => drop(figures.tables.insert(name, read(&path)?)),
                _ => {}
            }
        }
        Ok(figures)
    }

    /// Renews the runs that are named with what the `*.jsonl` of a folder say, as `make bench` leaves them, and writes
    /// them. Gives a sentence for each run.
    ///
    /// # Errors
    /// A file, a line of results, or a name that is no run's.
    pub fn renew(&mut self, root: &Path, from: &Path, names: &[String]) -> Result<Vec<String>> {
        let mut measured = Run::default();
        for path in files(from)?.into_iter().filter(|path| path.extension().is_some_and(|end| end == "jsonl")) {
            let run = Run::read(&path.display().to_string(), &read(&path)?)?;
            measured.lines.extend(run.lines);
            measured.about.push_str(&run.about);
        }
        let mut told = Vec::new();
        for name in names {
            let unknown = || FiguresError::Reference { reference: name.clone(), what: "there is no such run".into() };
            let run = self.runs.get_mut(name).ok_or_else(unknown)?;
            let (renewed, all) = (run.renew(&measured), run.lines.len());
            if renewed == all {
                run.about.clone_from(&measured.about);
            } else if renewed > 0 {
                run.about = format!("{} ({renewed} of {all} figures; the others: {})", measured.about, run.about);
            }
            told.push(format!("{name}: {renewed} of {all} figures are renewed"));
            write(&root.join(RESULTS).join(format!("{name}.jsonl")), &run.write())?;
        }
        Ok(told)
    }

    /// The pages under `root` that have tables of figures, each with its text as it is and as it should be.
    ///
    /// # Errors
    /// A file, a marker or a reference.
    pub fn pages(&self, root: &Path) -> Result<Vec<(PathBuf, String, String)>> {
        let mut pages = vec![root.join("README.md")];
        let mut folders = vec![root.join("docs")];
        while let Some(folder) = folders.pop() {
            for path in files(&folder)? {
                match path {
                    path if path.is_dir() && path != root.join(RESULTS) => folders.push(path),
                    path if path.extension().is_some_and(|end| end == "md") => pages.push(path),
                    _ => {}
                }
            }
        }
        let texts = pages.into_iter().map(|path| Ok((read(&path)?, path)));
        let marked = texts.filter(|page| page.as_ref().map_or(true, |(text, _)| text.contains(BEGIN)));
        marked
            .map(|page| {
                let (text, path) = page?;
                let filled = self.fill(&path, &text)?;
                Ok((path, text, filled))
            })
            .collect()
    }

    /// A page with its tables.
    fn fill(&self, page: &Path, text: &str) -> Result<String> {
        let wrong = |what: String| FiguresError::Marker { page: page.to_owned(), what };
        let mut parts = text.split(BEGIN);
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = part.split_once(" -->").ok_or_else(|| wrong("a marker has no end".into()))?;
            let (_, rest) = rest.split_once(END).ok_or_else(|| wrong(format!("table {name} has no `{END}`")))?;
            let table = self.tables.get(name).ok_or_else(|| wrong(format!("there is no table {name}.md")))?;
            filled.push_str(&format!("{BEGIN}{name} -->\n{}\n{END}{rest}", self.expand(table)?.trim_end()));
        }
        Ok(filled)
    }

    /// A table with figures in the place of references.
    fn expand(&self, table: &str) -> Result<String> {
        let mut parts = table.split('{');
        let mut expanded = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let wrong = |what: &str| FiguresError::Reference { reference: part.to_owned(), what: what.into() };
            let (reference, rest) = part.split_once('}').ok_or_else(|| wrong("it has no closing brace"))?;
            expanded.push_str(&self.figure(reference)?);
            expanded.push_str(rest);
        }
        Ok(expanded)
    }

    /// What a reference is replaced by.
    fn figure(&self, reference: &str) -> Result<String> {
        let wrong = |what: String| FiguresError::Reference { reference: reference.to_owned(), what };
        if let Some(name) = reference.strip_prefix("about ") {
            let run = self.runs.get(name).ok_or_else(|| wrong("there is no such run".into()))?;
            return Ok(run.about.clone());
        }
        if let Some(bars) = reference.strip_prefix("verdict ") {
            return self.verdict(bars).map_err(wrong);
        }
        if let Some(pair) = reference.strip_prefix("change ") {
            let (one, other) = pair.split_once("; ").ok_or_else(|| wrong("it needs two figures".into()))?;
            let (one, other) = (self.value(one).map_err(wrong)?, self.value(other).map_err(wrong)?);
            return Ok(format!("{:+.1} %", (one / other - 1.0) * 100.0));
        }
        let (summary, rest) = match reference.split_once(' ') {
            Some((word @ ("least" | "most"), rest)) => (word, rest),
            _ => ("", reference),
        };
        let (wanted, shape) = rest.rsplit_once(" / ").ok_or_else(|| wrong("it has no format".into()))?;
        let value = match summary {
            "least" => self.values(wanted).map_err(wrong)?.into_iter().fold(f64::INFINITY, f64::min),
            "most" => self.values(wanted).map_err(wrong)?.into_iter().fold(f64::NEG_INFINITY, f64::max),
            _ => self.value(wanted).map_err(wrong)?,
        };
        format(value, shape).ok_or_else(|| wrong(format!("there is no format {shape}")))
    }

    /// What becomes of bars, each `REFERENCE >= NUMBER` or `<=`.
    fn verdict(&self, bars: &str) -> std::result::Result<String, String> {
        let (mut all, mut missed) = (0, 0);
        for bar in bars.split("; ") {
            let (wanted, bound, is_least) = match (bar.split_once(" >= "), bar.split_once(" <= ")) {
                (Some((wanted, bound)), None) => (wanted, bound, true),
                (None, Some((wanted, bound))) => (wanted, bound, false),
                _ => return Err(format!("\"{bar}\" has no bar: >= or <= and a number")),
            };
            let bound: f64 = bound.trim().parse().map_err(|error| format!("{bound}: {error}"))?;
            for value in self.values(wanted)? {
                all += 1;
                missed += usize::from(if is_least { value < bound } else { value > bound });
            }
        }
        Ok(match missed {
            0 => "met".into(),
            missed if missed == all => "**missed**".into(),
            missed => format!("**{missed} of {all} missed**"),
        })
    }

    /// The only figure that `RUN / SUBJECT / CASE / METRIC` matches.
    fn value(&self, wanted: &str) -> std::result::Result<f64, String> {
        match self.values(wanted)?[..] {
            [value] => Ok(value),
            ref values => Err(format!("it matches {} lines", values.len())),
        }
    }

    /// The figures that `RUN / SUBJECT / CASE / METRIC` matches: one at least.
    fn values(&self, wanted: &str) -> std::result::Result<Vec<f64>, String> {
        let parts: Vec<&str> = wanted.split(" / ").map(str::trim).collect();
        let [run, subject, case, metric] = parts[..] else {
            return Err(format!("\"{wanted}\" is not RUN / SUBJECT / CASE / METRIC"));
        };
        let wanted = Wanted { run, subject, case, metric };
        let run = self.runs.get(wanted.run).ok_or_else(|| format!("there is no run {}", wanted.run))?;
        let found: Vec<f64> = run.lines.iter().filter(|line| wanted.matches(line)).map(|line| line.value).collect();
        if found.is_empty() { Err(format!("no line of {}.jsonl is so", wanted.run)) } else { Ok(found) }
    }
}

/// What is in a folder, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let at = |source| FiguresError::File { path: folder.to_owned(), source };
    let entries = std::fs::read_dir(folder).map_err(at)?.map(|entry| Ok(entry.map_err(at)?.path()));
    let mut paths = entries.collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|source| FiguresError::File { path: path.to_owned(), source })
}

/// Writes a file.
///
/// # Errors
/// The system's.
pub fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|source| FiguresError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: &str = r#"{"about":"`make bench` here"}
{"bench":"block","subject":"softdpu","case":"null 4k qd1","metric":"iops","unit":"1/s","value":841000.0}
{"bench":"block","subject":"softdpu","case":"null 4k qd1","metric":"ratio","unit":"1","value":3.334}
{"bench":"block","subject":"softdpu","case":"null 4k qd32","metric":"ratio","unit":"1","value":1.25}
"#;

    fn figures() -> Figures {
        let mut figures = Figures::default();
        figures.runs.insert("run".into(), Run::read("run", RAW).unwrap());
        figures
    }

    #[test]
    fn references_become_figures_in_their_formats() {
        let told = |text: &str| figures().expand(text).unwrap();
        assert_eq!(told("| {run / softdpu / null * qd1 / ratio / 2} |"), "| 3.33 |");
        assert_eq!(told("{run / softdpu / null 4k qd1 / iops / si}"), "841 k");
        assert_eq!(told("{run / softdpu / null 4k qd1 / iops / M1}"), "0.8");
        assert_eq!(told("{least run / * / * / ratio / 2} to {most run / * / * / ratio / 2}"), "1.25 to 3.33");
        assert_eq!(told("{change run / * / *qd1 / ratio; run / * / *qd32 / ratio}"), "+166.7 %");
        assert_eq!(told("{about run}"), "`make bench` here");
    }

    #[test]
    fn counts_of_instructions_are_a_run() {
        let run = Run::instructions("# made with rustc 1.95.0\nnet-64-split      932.7\n");
        let [line] = &run.lines[..] else { panic!("{run:?}") };
        assert_eq!((line.case.as_str(), line.value), ("net-64-split", 932.7));
    }

    #[test]
    fn verdicts_hold_every_figure_against_its_bar() {
        let told = |text: &str| figures().expand(text).unwrap();
        assert_eq!(told("{verdict run / softdpu / * / ratio >= 1.2}"), "met");
        assert_eq!(told("{verdict run / softdpu / * / ratio >= 2}"), "**1 of 2 missed**");
        let each = "{verdict run / softdpu / *qd1 / ratio >= 2; run / softdpu / *qd32 / ratio <= 1.3}";
        assert_eq!(told(each), "met");
        assert_eq!(told("{verdict run / softdpu / *qd32 / ratio >= 1.3}"), "**missed**");
    }

    #[test]
    fn references_that_stand_for_no_figure_are_errors() {
        let wrong = |text: &str| figures().expand(text).unwrap_err().to_string();
        assert!(wrong("{run / softdpu / null 4k qd8 / ratio / 2}").contains("no line of run.jsonl"));
        assert!(wrong("{run / softdpu / * / ratio / 2}").contains("it matches 2 lines"));
        assert!(wrong("{other / softdpu / * / ratio / 2}").contains("no run other"));
        assert!(wrong("{run / softdpu / null 4k qd1 / ratio / x2}").contains("no format x2"));
        assert!(wrong("{run / softdpu").contains("no closing brace"));
    }

    #[test]
    fn a_page_gets_its_tables_and_keeps_the_rest() {
        let mut figures = figures();
        figures.tables.insert("ratios".into(), "| {run / * / *qd1 / ratio / 1} |\n".into());
        let page = "before\n<!-- figures: ratios -->\nold\n<!-- end -->\nafter\n";
        let filled = figures.fill(Path::new("page.md"), page).unwrap();
        assert_eq!(filled, "before\n<!-- figures: ratios -->\n| 3.3 |\n<!-- end -->\nafter\n");
        assert_eq!(figures.fill(Path::new("page.md"), &filled).unwrap(), filled);
        let open = "<!-- figures: ratios -->\n";
        assert!(figures.fill(Path::new("page.md"), open).unwrap_err().to_string().contains("has no `<!-- end -->`"));
    }

    #[test]
    fn what_was_measured_again_takes_the_place_of_the_same_figure() {
        let mut run = Run::read("run", RAW).unwrap();
        let again = r#"{"bench":"block","subject":"softdpu","case":"null 4k qd1","metric":"ratio","unit":"1","value":4.0}
{"bench":"block","subject":"peer","case":"null 4k qd1","metric":"ratio","unit":"1","value":5.0}"#;
        assert_eq!(run.renew(&Run::read("again", again).unwrap()), 1);
        assert_eq!(run.lines.iter().map(|line| line.value).collect::<Vec<_>>(), [841_000.0, 4.0, 1.25]);
        assert_eq!(Run::read("written", &run.write()).unwrap().lines, run.lines);
    }

    #[test]
    fn patterns_stand_for_whole_texts() {
        assert!(matches("a*c", "abc") && matches("*", "") && matches("a*b*c", "a1b2c") && matches("abc", "abc"));
        assert!(!matches("a*c", "abcd") && !matches("ab", "abc") && !matches("a*ba", "aba "));
    }
}
