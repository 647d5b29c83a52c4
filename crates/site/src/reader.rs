//! Reads one table: asks for keys by name, checks types and ranges, and reports everything that is wrong rather than
//! the first thing.
//!
//! A key exists because a reading function asks for it, and nowhere else: a key that was not asked for by the time the
//! function returns is unknown. So a reading function asks for all its keys whatever the values are. [`keys_of`] and
//! [`schema`](super::schema) run the same functions over nothing to learn which keys there are.
//!
//! Every getter gives `None` both for a key that is absent and for one that is wrong; the wrong one has been reported,
//! so the caller goes on with a default and finds the remaining mistakes too.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Display;
use std::hash::Hash;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::LazyLock;

use super::diagnostic::{Problem, Spans, alternatives, nearest};
use super::schema::{self, Section};
use super::value::{Data, Table, Value};

/// So many problems of one text are kept: a text of some MiB could have millions.
pub(super) const MOST_PROBLEMS: usize = 10_000;

/// Most items of a list.
const MOST_ITEMS: usize = 100_000;

/// What is shared by all readers of one text.
pub(super) struct Context<'a> {
    /// What relative paths are relative to; where there is none, they are refused.
    pub(super) base: Option<&'a Path>,
    pub(super) problems: RefCell<Vec<Problem>>,
    pub(super) spans: RefCell<Spans>,
    /// The sections, such as `network.acl`, that unknown keys were most likely meant to be.
    pub(super) misspelt: RefCell<Vec<String>>,
    /// The sections that were read, where they are what is wanted: then every table is taken to be there, and empty.
    survey: Option<RefCell<Vec<Section>>>,
}

impl<'a> Context<'a> {
    pub(super) fn new(base: Option<&'a Path>) -> Context<'a> {
        Context {
            base,
            problems: RefCell::default(),
            spans: RefCell::default(),
            misspelt: RefCell::default(),
            survey: None,
        }
    }

    pub(super) fn report(&self, problem: Problem) {
        let mut problems = self.problems.borrow_mut();
        if problems.len() < MOST_PROBLEMS {
            problems.push(problem);
        }
    }
}

/// The sections that `read` asks for, the outermost last; a section that is read in several places is there once.
pub(super) fn survey<T>(title: &'static str, base: &Path, read: impl FnOnce(&Reader<'_>) -> T) -> Vec<Section> {
    let survey = Some(RefCell::default());
    let context = Context { survey, ..Context::new(Some(base)) };
    Reader::read(&context, title, String::new(), 0..0, &Table::new(), read);
    context.survey.map(RefCell::into_inner).unwrap_or_default()
}

/// The keys that `read` asks its table for.
pub(super) fn keys_of<T>(title: &'static str, read: impl FnOnce(&Reader<'_>) -> T) -> Vec<&'static str> {
    survey(title, Path::new("/"), read).pop().map(|section| section.keys).unwrap_or_default()
}

pub(super) struct Reader<'a> {
    context: &'a Context<'a>,
    /// How messages call the table.
    title: &'static str,
    /// Path of the table, such as `volume[0].file`.
    pub(super) path: String,
    span: Range<usize>,
    table: &'a Table,
    /// The keys that were asked for: all that the table may have.
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Reader<'a> {
    /// Has `read` read `table`, which messages call `title`, and reports the keys that `read` did not ask for.
    pub(super) fn read<T>(
        context: &'a Context<'a>,
        title: &'static str,
        path: String,
        span: Range<usize>,
        table: &'a Table,
        read: impl FnOnce(&Reader<'_>) -> T,
    ) -> T {
        context.spans.borrow_mut().insert(path.clone(), span.clone());
        for (key, value) in table {
            context.spans.borrow_mut().insert(join(&path, &key.name), value.span.clone());
        }
        let reader = Reader { context, title, path, span, table, asked: RefCell::default() };
        let value = read(&reader);
        reader.report_unknown_keys();
        if let Some(survey) = &context.survey {
            let section = Section { title, keys: reader.asked.into_inner() };
            let known = survey.borrow().iter().position(|known| known.title == title);
            match known {
                Some(known) => debug_assert_eq!(survey.borrow()[known], section, "one title, two sections"),
                None => survey.borrow_mut().push(section),
            }
        }
        value
    }

    fn report_unknown_keys(&self) {
        let keys = self.asked.borrow();
        for (key, _) in self.table {
            if keys.contains(&key.name.as_str()) {
                continue;
            }
            let problem = Problem::error(join(&self.path, &key.name), format!("unknown key in {}", self.title))
                .found(format!("`{}`", key.name))
                .expected(alternatives(keys.iter().copied()))
                .at(key.span.clone());
            let inner = self.inner_tables_with(&key.name);
            self.context.report(match nearest(&key.name, keys.iter().copied()) {
                _ if !inner.is_empty() => problem.help(format!("it is a key of {}", alternatives(inner))),
                Some(near) => {
                    self.context.misspelt.borrow_mut().push(join(self.section(), near));
                    problem.help(format!("did you mean `{near}`?"))
                }
                None => problem,
            });
        }
    }

    /// The table's name without brackets; empty for the file.
    fn section(&self) -> &'static str {
        if self.title == schema::ROOT { "" } else { self.title.trim_matches(['[', ']']) }
    }

    /// The tables inside this one that may have `key`: those that are there, if any is, or all.
    fn inner_tables_with(&self, key: &str) -> Vec<&'static str> {
        static SECTIONS: LazyLock<Vec<Section>> = LazyLock::new(schema::sections);
        if self.section().is_empty() {
            return Vec::new();
        }
        let inner = |section: &&Section| {
            let name = section.title.trim_matches(['[', ']']).strip_prefix(self.section())?.strip_prefix('.')?;
            (!name.contains('.') && section.keys.contains(&key)).then_some(name)
        };
        let all: Vec<(&str, &str)> =
            SECTIONS.iter().filter_map(|section| Some((section.title, inner(&section)?))).collect();
        let is_there = |(_, name): &&(&str, &str)| self.table.iter().any(|(present, _)| present.name == *name);
        let there: Vec<_> = all.iter().filter(is_there).map(|(title, _)| *title).collect();
        if there.is_empty() { all.iter().map(|(title, _)| *title).collect() } else { there }
    }

    /// The value of `key`, if it is there.
    pub(super) fn value(&self, key: &'static str) -> Option<&'a Value> {
        let mut asked = self.asked.borrow_mut();
        if !asked.contains(&key) {
            asked.push(key);
        }
        self.table.iter().find(|(present, _)| present.name == key).map(|(_, value)| value)
    }

    pub(super) fn report(&self, problem: Problem) {
        self.context.report(problem);
    }

    /// A problem with the value of `key`.
    pub(super) fn wrong(&self, key: &str, value: &Value, expected: impl Into<String>) -> Problem {
        Problem::error(join(&self.path, key), format!("`{key}` in {}", self.title))
            .found(value.describe())
            .expected(expected)
            .at(value.span.clone())
    }

    /// Reports that `key` has to be there.
    pub(super) fn missing(&self, key: &str, example: &str) {
        self.report(
            Problem::error(self.path.clone(), format!("`{key}` is missing in {}", self.title))
                .at(self.span.clone())
                .help(format!("add `{example}`")),
        );
    }

    pub(super) fn string(&self, key: &'static str) -> Option<(&'a str, &'a Value)> {
        let value = self.value(key)?;
        match &value.data {
            Data::String(text) => Some((text, value)),
            _ => {
                self.report(self.wrong(key, value, "a string"));
                None
            }
        }
    }

    pub(super) fn boolean(&self, key: &'static str) -> Option<bool> {
        let value = self.value(key)?;
        match value.data {
            Data::Boolean(flag) => Some(flag),
            _ => {
                self.report(self.wrong(key, value, "true or false"));
                None
            }
        }
    }

    pub(super) fn integer<T: TryFrom<i64> + Display + Copy + Into<i64>>(
        &self,
        key: &'static str,
        range: RangeInclusive<T>,
    ) -> Option<T> {
        let value = self.value(key)?;
        let bounds: RangeInclusive<i64> = (*range.start()).into()..=(*range.end()).into();
        let number = match value.data {
            Data::Integer(number) if bounds.contains(&number) => T::try_from(number).ok(),
            _ => None,
        };
        if number.is_none() {
            let expected = format!("a whole number from {} to {}", range.start(), range.end());
            self.report(self.wrong(key, value, expected));
        }
        number
    }

    /// A string that `T` can be read from; `what` describes it.
    pub(super) fn parsed<T>(&self, key: &'static str, what: &str) -> Option<T>
    where
        T: FromStr<Err: Display>,
    {
        self.converted(key, what, |text| text.parse().map_err(|error: T::Err| error.to_string()))
    }

    /// A string that `convert` takes; `what` describes it. The conversion's own message becomes the help.
    pub(super) fn converted<T>(
        &self,
        key: &'static str,
        what: &str,
        convert: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.value(key)?;
        let Data::String(text) = &value.data else {
            self.report(self.wrong(key, value, what));
            return None;
        };
        match convert(text) {
            Ok(converted) => Some(converted),
            Err(help) => {
                let problem = self.wrong(key, value, what);
                self.report(if what.contains(&help) || help.is_empty() { problem } else { problem.help(help) });
                None
            }
        }
    }

    /// A string or a list of strings, at least one, that `convert` takes; none may be there twice.
    pub(super) fn one_or_more<T: Eq + Hash + Clone>(
        &self,
        key: &'static str,
        what: &str,
        convert: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let value = self.value(key)?;
        let list = format!("{what}, or a list of them");
        let items = match &value.data {
            Data::Array(items) if !items.is_empty() => items.as_slice(),
            Data::String(_) => std::slice::from_ref(value),
            _ => {
                self.report(self.wrong(key, value, list));
                return None;
            }
        };
        if items.len() > MOST_ITEMS {
            let found = format!("{} items", items.len());
            self.report(self.wrong(key, value, format!("at most {MOST_ITEMS}")).found(found));
            return None;
        }
        let (mut taken, mut seen) = (Vec::new(), HashSet::new());
        for (index, item) in items.iter().enumerate() {
            self.context.spans.borrow_mut().insert(format!("{}[{index}]", join(&self.path, key)), item.span.clone());
            let Data::String(text) = &item.data else {
                self.report(self.wrong(key, item, what));
                continue;
            };
            match convert(text) {
                Ok(converted) if !seen.insert(converted.clone()) => {
                    let message = format!("{text} is listed twice in `{key}`");
                    self.report(Problem::error(join(&self.path, key), message).at(item.span.clone()));
                }
                Ok(converted) => taken.push(converted),
                Err(help) => {
                    let problem = self.wrong(key, item, what);
                    self.report(if help.is_empty() { problem } else { problem.help(help) });
                }
            }
        }
        Some(taken)
    }

    /// One of the words in `choices`. `planned` are words that will mean something in a later release.
    pub(super) fn choice<T: Copy>(
        &self,
        key: &'static str,
        choices: &[(&'static str, T)],
        planned: &[&'static str],
    ) -> Option<T> {
        let (text, value) = self.string(key)?;
        if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
            return Some(*choice);
        }
        let expected = alternatives(choices.iter().map(|(name, _)| *name));
        let mut problem = self.wrong(key, value, expected.clone());
        if planned.contains(&text) {
            problem.message = format!("`{key} = {text:?}` is planned but does not work yet");
            problem.help = Some(format!("only {expected} works in this release"));
            problem.found = None;
            problem.expected = None;
        } else if let Some(near) = nearest(text, choices.iter().map(|(name, _)| *name)) {
            problem = problem.help(format!("did you mean `{near}`?"));
        }
        self.report(problem);
        None
    }

    /// A path, made absolute.
    pub(super) fn path(&self, key: &'static str) -> Option<PathBuf> {
        let (text, value) = self.string(key)?;
        if text.is_empty() || text.contains('\0') {
            self.report(self.wrong(key, value, "a path"));
            return None;
        }
        let path = Path::new(text);
        match self.context.base {
            Some(base) => Some(base.join(path)),
            None if path.is_absolute() => Some(path.to_owned()),
            None => {
                self.report(self.wrong(key, value, "an absolute path"));
                None
            }
        }
    }

    /// What relative paths are relative to; `None` where they are refused.
    pub(super) fn base(&self) -> Option<&'a Path> {
        self.context.base
    }

    /// A path as given by default, made absolute as a written one would be.
    pub(super) fn default_path(&self, path: &Path) -> PathBuf {
        self.context.base.map_or_else(|| path.to_owned(), |base| base.join(path))
    }

    /// A name: what can stand in a metric label, a file name and a command line without quoting.
    pub(super) fn name(&self, key: &'static str) -> Option<String> {
        let (text, value) = self.string(key)?;
        if is_name(text) {
            return Some(text.to_owned());
        }
        self.report(self.wrong(
            key,
            value,
            "1 to 63 letters, digits, `.`, `_` or `-`, beginning with a letter or digit",
        ));
        None
    }

    /// A list of CPU numbers: at least one, none twice.
    pub(super) fn cores(&self, key: &'static str) -> Option<Vec<u32>> {
        /// One more than the largest CPU number Linux can be built for (NR_CPUS on x86-64).
        const MOST_CPUS: i64 = 8192;
        let value = self.value(key)?;
        let expected = "a list of CPU numbers such as [1, 2]";
        let Data::Array(items) = &value.data else {
            self.report(self.wrong(key, value, expected));
            return None;
        };
        if items.is_empty() {
            self.report(self.wrong(key, value, expected));
            return None;
        }
        let mut cores = Vec::new();
        for item in items {
            match item.data {
                Data::Integer(number) if (0..MOST_CPUS).contains(&number) => {
                    let core = number as u32;
                    if cores.contains(&core) {
                        let message = format!("CPU {core} is listed twice in `{key}`");
                        self.report(Problem::error(join(&self.path, key), message).at(item.span.clone()));
                    } else {
                        cores.push(core);
                    }
                }
                _ => self.report(self.wrong(key, item, format!("a CPU number from 0 to {}", MOST_CPUS - 1))),
            }
        }
        Some(cores)
    }

    /// What `read` makes of the table under `key`; `Some(None)`: it is null, as only JSON can say.
    pub(super) fn table_or_null<T>(
        &self,
        key: &'static str,
        title: &'static str,
        read: impl FnOnce(&Reader<'_>) -> T,
    ) -> Option<Option<T>> {
        match self.value(key) {
            Some(Value { data: Data::Null, .. }) => Some(None),
            _ => self.table(key, title, read).map(Some),
        }
    }

    /// What `read` makes of the table under `key`, which messages call `title`.
    pub(super) fn table<T>(
        &self,
        key: &'static str,
        title: &'static str,
        read: impl FnOnce(&Reader<'_>) -> T,
    ) -> Option<T> {
        let value = self.value(key);
        if self.context.survey.is_some() {
            return Some(Reader::read(self.context, title, join(&self.path, key), 0..0, &Table::new(), read));
        }
        let value = value?;
        match &value.data {
            Data::Table(table) => {
                Some(Reader::read(self.context, title, join(&self.path, key), value.span.clone(), table, read))
            }
            _ => {
                let keys = keys_of(title, read);
                self.report(self.wrong(key, value, format!("a table with {}", alternatives(keys))));
                None
            }
        }
    }

    /// What `read` makes of each of the tables under `[[key]]`, which messages call `title`.
    pub(super) fn tables<T>(&self, key: &'static str, title: &'static str, read: impl Fn(&Reader<'_>) -> T) -> Vec<T> {
        let value = self.value(key);
        if self.context.survey.is_some() {
            return vec![Reader::read(self.context, title, join(&self.path, key), 0..0, &Table::new(), read)];
        }
        let Some(value) = value else { return Vec::new() };
        let Data::Array(items) = &value.data else {
            self.report(self.wrong(key, value, format!("a list: write [[{key}]] with two pairs of brackets")));
            return Vec::new();
        };
        let mut values = Vec::new();
        for (index, item) in items.iter().enumerate() {
            match &item.data {
                Data::Table(table) => {
                    let path = format!("{}[{index}]", join(&self.path, key));
                    values.push(Reader::read(self.context, title, path, item.span.clone(), table, &read));
                }
                _ => self.report(self.wrong(key, item, "a table")),
            }
        }
        values
    }

    /// Which of `keys` is there: exactly one has to be.
    pub(super) fn exactly_one(&self, keys: &[&'static str], example: &str) -> Option<&'static str> {
        let present: Vec<(&'static str, &Value)> =
            keys.iter().filter_map(|key| self.value(key).map(|value| (*key, value))).collect();
        match present[..] {
            [] => {
                let message = format!("{} needs one of {}", self.title, alternatives(keys.iter().copied()));
                let problem = Problem::error(self.path.clone(), message).at(self.span.clone());
                self.report(problem.help(format!("add `{example}`")));
                None
            }
            [(key, _)] => Some(key),
            [(first, _), ..] => {
                for (key, value) in &present[1..] {
                    let message = format!("{} has both `{first}` and `{key}`", self.title);
                    let problem = Problem::error(join(&self.path, key), message).at(value.span.clone());
                    self.report(problem.help("keep one of them"));
                }
                None
            }
        }
    }
}

/// Whether `text` can name a tenant, volume, network, device or domain.
pub fn is_name(text: &str) -> bool {
    /// As long as a host name's label (RFC 1123 §2.1): a domain is often named after its guest's host name.
    const LONGEST_NAME: usize = 63;
    (1..=LONGEST_NAME).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && text.as_bytes()[0].is_ascii_alphanumeric()
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
