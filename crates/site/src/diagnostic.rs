//! What is wrong with a configuration, and how that is shown.
//!
//! A [`Problem`] is found by the reader (which knows the exact place in the text) or by the rules over a whole site
//! (which know only the path of the key, such as `volume[0].file.size`). A [`Report`] joins problems with the text and
//! renders them as a compiler does: `error: …`, `--> site.toml:12:3`, the line, a mark under what is wrong, help.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use serde::Serialize;

use super::site::Site;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The site cannot run.
    Error,
    /// The site can run, though perhaps not on this machine or not as meant.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        })
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// Path of the key it is about, such as `volume[0].file.size`; empty for the whole file.
    pub place: String,
    /// Bytes of the text it is about, where the finder knows them.
    pub span: Option<Range<usize>>,
    /// What is wrong, without found and expected.
    pub message: String,
    /// What is written there.
    pub found: Option<String>,
    /// What could be written there.
    pub expected: Option<String>,
    /// What to do about it.
    pub help: Option<String>,
    /// Path of the key that says the same for the first time, where this is a repetition.
    pub first: Option<String>,
    /// The section that declares no item of the name that stands there, such as `network`.
    pub undeclared: Option<&'static str>,
}

impl Problem {
    /// An error at `place`.
    pub fn error(place: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem {
            severity: Severity::Error,
            place: place.into(),
            span: None,
            message: message.into(),
            found: None,
            expected: None,
            help: None,
            first: None,
            undeclared: None,
        }
    }

    /// A warning at `place`.
    pub fn warning(place: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem { severity: Severity::Warning, ..Problem::error(place, message) }
    }

    /// With what is written there.
    pub fn found(mut self, found: impl Into<String>) -> Problem {
        self.found = Some(found.into());
        self
    }

    /// With what could be written there.
    pub fn expected(mut self, expected: impl Into<String>) -> Problem {
        self.expected = Some(expected.into());
        self
    }

    /// With what to do about it.
    pub fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(help.into());
        self
    }

    /// With the key that says the same for the first time.
    pub fn first(mut self, place: impl Into<String>) -> Problem {
        self.first = Some(place.into());
        self
    }

    /// With the section that does not declare what is named.
    pub fn undeclared(mut self, section: &'static str) -> Problem {
        self.undeclared = Some(section);
        self
    }

    /// The same for people who do not see the text: with the names of items in `site` instead of their indexes, as in
    /// "device `web`, `tenant`" for `device[6].tenant`.
    #[must_use]
    pub fn named_in(mut self, site: &Site) -> Problem {
        let named = || {
            let (section, rest) = self.place.split_once('[')?;
            let (index, rest) = rest.split_once(']')?;
            let name = site.name_of(section, index.parse().ok()?).filter(|name| !name.is_empty())?;
            let key = rest.strip_prefix('.').map(|key| format!(", `{key}`")).unwrap_or_default();
            Some(format!("{section} `{name}`{key}"))
        };
        if let Some(place) = named() {
            self.place = place;
        }
        self
    }

    /// With its exact place in the text.
    pub fn at(mut self, span: Range<usize>) -> Problem {
        self.span = Some(span);
        self
    }

    /// With the line that says the same for the first time.
    pub(super) fn with_first_line(mut self, line: usize) -> Problem {
        let first = format!("the first is in line {line}");
        self.help = Some(self.help.map_or(first.clone(), |help| format!("{first}; {help}")));
        self
    }

    /// The message with what was found and what was expected, in one line.
    pub fn sentence(&self) -> String {
        match (&self.found, &self.expected) {
            (Some(found), Some(expected)) => format!("{}: found {found}, expected {expected}", self.message),
            (Some(found), None) => format!("{}: found {found}", self.message),
            (None, Some(expected)) => format!("{}: expected {expected}", self.message),
            (None, None) => self.message.clone(),
        }
    }
}

impl fmt::Display for Problem {
    /// One line, for where there is no text to point into: the management API.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.sentence())?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}

/// Where each key that was read stands in the text, by its path.
pub(super) type Spans = HashMap<String, Range<usize>>;

/// The span of `place`, or of the nearest table around it: what is wrong with a default is shown where it could be set.
pub(super) fn span_of(spans: &Spans, place: &str) -> Range<usize> {
    let mut place = place;
    loop {
        if let Some(span) = spans.get(place) {
            return span.clone();
        }
        match place.rfind(['.', '[']) {
            Some(end) => place = &place[..end],
            None => return 0..0,
        }
    }
}

/// A problem with its place in the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The column after its last character on that line.
    pub end_column: usize,
    /// Path of the key, such as `volume[0].file.size`.
    pub place: String,
    /// What is wrong, in one line.
    pub message: String,
    /// What is written there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// What could be written there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// The line of the text.
    #[serde(skip)]
    pub source: String,
    /// There is a text to point into: the file could be read.
    #[serde(skip)]
    pub has_text: bool,
}

/// Everything that is wrong with one file, in the order of its lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The file, as it was named by whoever asked.
    pub file: String,
    /// What is wrong with it.
    pub diagnostics: Vec<Diagnostic>,
}

impl Report {
    pub(super) fn new(file: &str, text: &str, problems: Vec<Problem>, spans: &Spans) -> Report {
        let mut placed: Vec<(Range<usize>, Problem)> = problems
            .into_iter()
            .map(|problem| {
                let first = problem.first.as_ref().and_then(|first| spans.get(first));
                let problem = match first.map(|span| line_of(text, span.start)) {
                    Some(line) => problem.with_first_line(line),
                    None => problem,
                };
                (problem.span.clone().unwrap_or_else(|| span_of(spans, &problem.place)), problem)
            })
            .collect();
        placed.sort_by_key(|(span, problem)| (span.start, problem.severity));
        placed.dedup();
        let diagnostics = placed.into_iter().map(|(span, problem)| locate(text, span, problem)).collect();
        Report { file: file.to_owned(), diagnostics }
    }

    /// That the file cannot be read.
    pub(super) fn unread(file: &str, problem: Problem) -> Report {
        let mut report = Report::new(file, "", vec![problem], &Spans::default());
        for diagnostic in &mut report.diagnostics {
            diagnostic.has_text = false;
        }
        report
    }

    /// Whether anything keeps the site from running.
    pub fn has_errors(&self) -> bool {
        self.count(Severity::Error) > 0
    }

    /// How many problems are this bad.
    pub fn count(&self, severity: Severity) -> usize {
        self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity).count()
    }
}

/// The line of a byte of the text, from 1.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Turns byte offsets into a line and columns. Offsets outside the text, or inside a character, are moved into it.
fn locate(text: &str, span: Range<usize>, problem: Problem) -> Diagnostic {
    let floor = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let start = floor(span.start);
    let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
    let end = floor(span.end).clamp(start, line_end.max(start));
    let column = text[line_start..start].chars().count() + 1;
    Diagnostic {
        severity: problem.severity,
        line: line_of(text, start),
        column,
        end_column: column + text[start..end].chars().count().max(1),
        message: problem.sentence(),
        place: problem.place,
        found: problem.found,
        expected: problem.expected,
        help: problem.help,
        source: text[line_start..line_end].trim_end_matches('\r').to_owned(),
        has_text: true,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let renderer = Renderer::plain();
        for diagnostic in &self.diagnostics {
            writeln!(f, "{}\n", renderer.render(&[diagnostic.annotated(&self.file)]))?;
        }
        let (errors, warnings) = (self.count(Severity::Error), self.count(Severity::Warning));
        match (errors, warnings) {
            (0, 0) => Ok(()),
            (0, _) => writeln!(f, "{}: {}", self.file, counted(warnings, "warning")),
            (_, 0) => writeln!(f, "{}: {}", self.file, counted(errors, "error")),
            _ => writeln!(f, "{}: {}, {}", self.file, counted(errors, "error"), counted(warnings, "warning")),
        }
    }
}

impl Diagnostic {
    /// As a compiler shows it: the message, the place in `file`, its line with a mark under what is wrong, and the
    /// help.
    fn annotated<'a>(&'a self, file: &'a str) -> Group<'a> {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let byte = |column: usize| self.source.char_indices().nth(column - 1).map_or(self.source.len(), |(at, _)| at);
        let span = byte(self.column)..byte(self.end_column);
        let title = level.primary_title(self.message.as_str());
        if !self.has_text {
            return title.element(Origin::path(file));
        }
        let snippet = Snippet::source(&self.source).line_start(self.line).path(file);
        let group = title.element(snippet.annotation(AnnotationKind::Primary.span(span)));
        match &self.help {
            Some(help) => group.element(Level::HELP.message(help.as_str())),
            None => group,
        }
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

impl std::error::Error for Report {}

/// The candidate that `found` was most likely meant to be, if any is close enough to be worth saying.
pub fn nearest<'a>(found: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(found, candidate), candidate))
        .filter(|(distance, candidate)| {
            // Two names of one letter have nothing in common.
            let shares = *distance < candidate.chars().count().max(found.chars().count());
            shares && *distance <= (candidate.chars().count() / 3).clamp(1, 4) || {
                // A forgotten prefix or suffix (`mode` for `socket-mode`) is further away than a typing error.
                found.len() >= 4 && candidate.split('-').any(|part| part == found)
            }
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `a, b or c`, each in backquotes.
pub fn alternatives<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        None => "nothing".to_owned(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}
