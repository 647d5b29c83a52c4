//! Files with what networks are to have from now on: policies, routing, or translation, of one network or of several
//! (docs/networks.md, "While it runs"). Errors name their lines even where only the whole site shows them.

use std::fmt;

use super::{NatChange, Network, PolicyChange, RoutingChange, nat, policy, routing};
use crate::diagnostic::{Diagnostic, Problem, Report, Spans, span_of};
use crate::reader::{Context, MOST_PROBLEMS, Reader, join, keys_of};
use crate::site::Site;
use crate::value::{self, Data, Table};
use crate::{alternatives, syntax};

/// So many problems of a file are listed.
const MOST_LISTED: usize = 10;

/// Most tables and lists of a file: what is read takes far more memory than the text, most where the tables are empty.
/// Routes take 40 bytes each, so [`LARGEST_FILE`](crate::LARGEST_FILE) has room for fewer.
const MOST_TABLES: usize = 500_000;

/// What a file is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkPart {
    /// Security groups and lists.
    Policy,
    /// Routes, ECMP groups, route tables and peers.
    Routing,
    /// Rules of translation.
    Nat,
}

impl NetworkPart {
    const ALL: [NetworkPart; 3] = [NetworkPart::Policy, NetworkPart::Routing, NetworkPart::Nat];

    /// The method that changes it.
    pub fn method(self) -> &'static str {
        match self {
            NetworkPart::Policy => "network.policy",
            NetworkPart::Routing => "network.routing",
            NetworkPart::Nat => "network.nat",
        }
    }

    /// What the method of that name changes.
    pub fn of_method(method: &str) -> Option<NetworkPart> {
        NetworkPart::ALL.into_iter().find(|part| part.method() == method)
    }
}

/// What networks are to have from now on, in the place of all that they have of it: made of all of them, or of none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkChanges {
    /// Each network once.
    Policy(Vec<PolicyChange>),
    /// Each network once.
    Routing(Vec<RoutingChange>),
    /// Each network once.
    Nat(Vec<NatChange>),
}

impl NetworkChanges {
    /// The networks that it changes, by name.
    pub fn networks(&self) -> Vec<&str> {
        match self {
            NetworkChanges::Policy(changes) => changes.iter().map(NetworkChange::network).collect(),
            NetworkChanges::Routing(changes) => changes.iter().map(NetworkChange::network).collect(),
            NetworkChanges::Nat(changes) => changes.iter().map(NetworkChange::network).collect(),
        }
    }
}

/// What a network is to have from now on, in the place of all that it has of it.
pub trait NetworkChange {
    /// The network's name.
    fn network(&self) -> &str;

    /// Makes the change of its network.
    fn apply(&self, network: &mut Network);

    /// Makes `changes`. Networks that are not there are left out.
    fn apply_all(changes: &[Self], networks: &mut [Network])
    where
        Self: Sized,
    {
        for network in networks {
            if let Some(change) = changes.iter().find(|change| change.network() == network.name) {
                change.apply(network);
            }
        }
    }
}

impl NetworkChange for PolicyChange {
    fn network(&self) -> &str {
        &self.network
    }

    fn apply(&self, network: &mut Network) {
        network.change_policy(self);
    }
}

impl NetworkChange for RoutingChange {
    fn network(&self) -> &str {
        &self.network
    }

    fn apply(&self, network: &mut Network) {
        network.change_routing(self);
    }
}

impl NetworkChange for NatChange {
    fn network(&self) -> &str {
        &self.network
    }

    fn apply(&self, network: &mut Network) {
        network.nats.clone_from(&self.nats);
    }
}

/// Where a file says what of which network.
#[derive(Clone, PartialEq)]
pub struct Places {
    part: NetworkPart,
    /// What messages call the file.
    name: String,
    text: String,
    spans: Spans,
    /// Networks, in order; whether each is a `[[network]]` of its own.
    networks: Vec<String>,
    are_several: bool,
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Places").field("name", &self.name).field("networks", &self.networks).finish_non_exhaustive()
    }
}

impl Places {
    /// The file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is wrong with a site of which this is a part, one line for each problem: with file, line and column where
    /// it is about what is written in the file, with its place in the site otherwise.
    pub fn tell(&self, site: &Site, problems: &[Problem]) -> String {
        let (mut in_file, mut elsewhere) = (Vec::new(), Vec::new());
        for problem in problems {
            match self.place(site, &problem.place) {
                Some(place) => {
                    let first = problem.first.as_ref().and_then(|first| self.place(site, first));
                    in_file.push(Problem { place, first, ..problem.clone() });
                }
                None => elsewhere.push(problem.clone().named_in(site).to_string()),
            }
        }
        self.lines(in_file, elsewhere)
    }

    /// The place in the file of a place in the site.
    fn place(&self, site: &Site, place: &str) -> Option<String> {
        let (index, rest) = place.strip_prefix("network[")?.split_once(']')?;
        let network = site.networks.get(index.parse::<usize>().ok()?)?;
        let at = self.networks.iter().position(|name| *name == network.name)?;
        let rest = rest.trim_start_matches('.');
        // What a file cannot have, as an endpoint, is nowhere in it, for all that it may be wrong because of the file.
        let key = rest.split(['.', '[']).next().unwrap_or_default();
        let is_in_file = rest.is_empty() || keys(self.part).contains(&key);
        is_in_file.then(|| if rest.is_empty() { self.root(at) } else { join(&self.root(at), rest) })
    }

    /// The table of the network of that number.
    fn root(&self, at: usize) -> String {
        if self.are_several { format!("network[{at}]") } else { String::new() }
    }

    /// What is wrong with the name of the network of that number, with file, line and column.
    pub fn tell_name(&self, at: usize, message: String) -> String {
        let key = if self.are_several { "name" } else { "network" };
        self.lines(vec![Problem::error(join(&self.root(at), key), message)], Vec::new())
    }

    fn lines(&self, mut in_file: Vec<Problem>, elsewhere: Vec<String>) -> String {
        let count = in_file.len() + elsewhere.len();
        for problem in &mut in_file {
            problem.span.get_or_insert_with(|| span_of(&self.spans, &problem.place));
        }
        in_file.sort_by_key(|problem| problem.span.as_ref().map(|span| span.start));
        // To find a line all before it is counted.
        in_file.truncate(MOST_LISTED);
        let report = Report::new(&self.name, &self.text, in_file, &self.spans);
        let line = |diagnostic: &Diagnostic| {
            let Diagnostic { line, column, message, help, .. } = diagnostic;
            let help = help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
            format!("{}:{line}:{column}: {message}{help}", self.name)
        };
        let mut lines: Vec<String> = report.diagnostics.iter().map(line).chain(elsewhere).take(MOST_LISTED).collect();
        if count > MOST_LISTED {
            // Beyond so many they are not kept.
            let more = if count >= MOST_PROBLEMS { " or" } else { "" };
            lines.push(format!("{}{more} more are not listed", count - MOST_LISTED));
        }
        lines.join("\n")
    }
}

/// Reads a file, called `name` in messages. It may have one network or several.
///
/// # Errors
/// What is wrong with it, a line for each problem.
pub fn networks_file(part: NetworkPart, text: String, name: &str) -> Result<(NetworkChanges, Places), String> {
    let (file, problems, places) = read(part, text, name);
    match file {
        Some(file) if problems.is_empty() => Ok((file, places)),
        _ => Err(places.lines(problems, Vec::new())),
    }
}

/// The same, with all that is wrong shown in the text.
///
/// # Errors
/// Everything that is wrong.
pub(crate) fn from_text(part: NetworkPart, text: &str, name: &str) -> Result<NetworkChanges, Report> {
    let (file, problems, places) = read(part, text.to_owned(), name);
    match file {
        Some(file) if problems.is_empty() => Ok(file),
        _ => Err(Report::new(name, text, problems, &places.spans)),
    }
}

/// The parameters of a method that has the shape of a file, as `changes` reads them.
pub(crate) fn from_json<T>(
    part: NetworkPart,
    parameters: &serde_json::Value,
    changes: fn(&Context<'_>, &Table) -> Vec<T>,
) -> Result<Vec<T>, Vec<Problem>> {
    let value = value::from_json(parameters);
    let Data::Table(table) = &value.data else {
        let keys = alternatives(keys(part));
        let problem = Problem::error("", "the parameters").found(value.describe());
        return Err(vec![problem.expected(format!("an object with {keys}"))]);
    };
    let context = Context::new(None);
    let file = changes(&context, table);
    let problems = context.problems.into_inner();
    if problems.is_empty() { Ok(file) } else { Err(problems) }
}

/// What parameters that are about one network may have.
fn keys(part: NetworkPart) -> Vec<&'static str> {
    match part {
        NetworkPart::Policy => keys_of(part.method(), |reader| policy::change(reader, "network")),
        NetworkPart::Routing => keys_of(part.method(), |reader| routing::change(reader, "network")),
        NetworkPart::Nat => keys_of(part.method(), |reader| nat::change(reader, "network")),
    }
}

fn read(part: NetworkPart, text: String, name: &str) -> (Option<NetworkChanges>, Vec<Problem>, Places) {
    let mut places =
        Places { part, name: name.to_owned(), text, spans: Spans::default(), networks: Vec::new(), are_several: false };
    let tables = places.text.bytes().filter(|byte| matches!(byte, b'{' | b'[')).count();
    if tables > MOST_TABLES {
        let problem = Problem::error("", "too many tables and lists").found(tables.to_string());
        return (None, vec![problem.expected(format!("at most {MOST_TABLES}"))], places);
    }
    let (document, errors) = toml::de::DeTable::parse_recoverable(&places.text);
    if !errors.is_empty() {
        let problems = syntax::problems(&places.text, &errors);
        drop(document);
        return (None, problems, places);
    }
    let context = Context::new(None);
    let root = value::from_toml_table(document.into_inner());
    let file = changes(part, &context, &root);
    places.are_several = has_several(&root);
    places.networks = file.networks().into_iter().map(str::to_owned).collect();
    places.spans = context.spans.into_inner();
    (Some(file), context.problems.into_inner(), places)
}

/// Whether there is a `[[network]]` for each, not one that is named.
fn has_several(root: &Table) -> bool {
    root.iter().any(|(key, value)| key.name == "network" && matches!(value.data, Data::Array(_)))
}

fn changes(part: NetworkPart, context: &Context<'_>, root: &Table) -> NetworkChanges {
    match part {
        NetworkPart::Policy => NetworkChanges::Policy(policies(context, root)),
        NetworkPart::Routing => NetworkChanges::Routing(routings(context, root)),
        NetworkPart::Nat => NetworkChanges::Nat(nats(context, root)),
    }
}

/// What `network.policy` has.
pub(crate) fn policies(context: &Context<'_>, root: &Table) -> Vec<PolicyChange> {
    of_each(NetworkPart::Policy, "[[network]] of network.policy", context, root, policy::change)
}

/// What `network.routing` has.
pub(crate) fn routings(context: &Context<'_>, root: &Table) -> Vec<RoutingChange> {
    of_each(NetworkPart::Routing, "[[network]] of network.routing", context, root, routing::change)
}

/// What `network.nat` has.
pub(crate) fn nats(context: &Context<'_>, root: &Table) -> Vec<NatChange> {
    of_each(NetworkPart::Nat, "[[network]] of network.nat", context, root, nat::change)
}

/// The name of the network that a change is of, which is under `key`.
pub(super) fn changed(reader: &Reader<'_>, key: &'static str) -> String {
    if reader.value(key).is_none() {
        reader.missing(key, &format!("{key} = \"acme-vpc\""));
    }
    reader.name(key).unwrap_or_default()
}

fn of_each<T: NetworkChange>(
    part: NetworkPart,
    each: &'static str,
    context: &Context<'_>,
    root: &Table,
    read: fn(&Reader<'_>, &'static str) -> T,
) -> Vec<T> {
    if !has_several(root) {
        let one = |reader: &Reader<'_>| read(reader, "network");
        return vec![Reader::read(context, part.method(), String::new(), 0..0, root, one)];
    }
    let several = |reader: &Reader<'_>| reader.tables("network", each, |reader| read(reader, "name"));
    let changes = Reader::read(context, "a change of several networks", String::new(), 0..0, root, several);
    if changes.is_empty() {
        context.report(Problem::error("network", "there is no network in the list"));
    }
    let names: Vec<&str> = changes.iter().map(NetworkChange::network).collect();
    let mut seen = std::collections::HashSet::new();
    for (at, name) in names.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
        if !seen.insert(name) {
            let place = format!("network[{at}].name");
            let span = span_of(&context.spans.borrow(), &place);
            let problem = Problem::error(place, format!("network `{name}` is there twice")).at(span);
            context.report(problem.help("write all that it is to have in one place"));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(part: NetworkPart, text: &str) -> Result<(NetworkChanges, Places), String> {
        networks_file(part, text.to_owned(), "/srv/f.toml")
    }

    #[test]
    fn a_file_is_about_one_network_or_about_each_of_several_once() {
        let (one, _) = file(NetworkPart::Routing, "network = \"a\"\npeer = \"b\"\n").unwrap();
        let (two, _) =
            file(NetworkPart::Routing, "[[network]]\nname = \"a\"\npeer = \"b\"\n[[network]]\nname = \"b\"\n").unwrap();
        assert_eq!((one.networks(), two.networks()), (vec!["a"], vec!["a", "b"]));
        let wrong = |text: &str| file(NetworkPart::Routing, text).unwrap_err();
        let twice = wrong("[[network]]\nname = \"a\"\n[[network]]\nname = \"a\"\n");
        assert!(twice.starts_with("/srv/f.toml:4:8: network `a` is there twice"), "{twice}");
        let both = wrong("peer = \"c\"\n[[network]]\nname = \"a\"\n");
        assert!(both.starts_with("/srv/f.toml:1:1: unknown key in a change of several networks"), "{both}");
        assert!(wrong("network = []\n").contains("there is no network in the list"));
    }

    #[test]
    fn of_many_mistakes_the_first_are_told_with_their_lines() {
        let text = "network = \"a\"\n[[acl]]\nname = \"x\"\nrule = [\n".to_owned()
            + &"  { priority = 1 },\n".repeat(5000)
            + "]\n";
        let error = file(NetworkPart::Policy, &text).unwrap_err();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!((lines.len(), lines[MOST_LISTED]), (MOST_LISTED + 1, "4990 more are not listed"));
        assert!(lines[0].starts_with("/srv/f.toml:5:3: `action` is missing"), "{}", lines[0]);
    }
}
