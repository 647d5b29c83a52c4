//! `node.steering`: on which cores packets from tunnels are worked on.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use softdpu_vpc::steer::{FiveTuple, Match, RULES};

use super::diagnostic::Problem;
use super::network::{Protocol, Vni};
use super::read::socket_address;
use super::reader::Reader;
use super::site::Site;
use super::value::Data;

const WHAT_END: &str = "an address and a port such as \"10.0.0.2:4000\" or \"[2001:db8::2]:4000\"";

/// `node.steering`: which core works on what comes by a tunnel, where that is not the one that reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Steering {
    /// How the core is chosen that works on a tunnel's packets.
    #[serde(default)]
    pub mode: SteeringMode,
    /// The CPUs over which flows are spread by hash; none: they stay where they are read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<u32>,
    /// What goes to a core of its own whatever its hash.
    #[serde(default, rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<SteerRule>,
}

/// How the core is chosen that works on a tunnel's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SteeringMode {
    /// Not at all: each packet is worked on where it is read.
    Off,
    /// `cores` and the rules.
    #[default]
    Manual,
    /// These, and the data plane: it moves flows from a busy core to one that is not.
    Auto,
}

impl SteeringMode {
    const CHOICES: &[(&str, SteeringMode)] =
        &[("off", SteeringMode::Off), ("manual", SteeringMode::Manual), ("auto", SteeringMode::Auto)];

    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            SteeringMode::Off => "off",
            SteeringMode::Manual => "manual",
            SteeringMode::Auto => "auto",
        }
    }
}

/// `[[node.steering.rule]]`: packets that match all that it says go to a core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SteerRule {
    /// Of this network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
    /// Of this flow: all three are there, or none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The source address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SocketAddr>,
    /// The destination address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<SocketAddr>,
    /// The CPU.
    pub core: u32,
}

impl SteerRule {
    /// Which packets it takes. None: it says nothing, which no rule that was read does.
    pub fn what(&self) -> Option<Match> {
        let vni = self.vni;
        match (self.protocol, self.source, self.destination) {
            (Some(protocol), Some(from), Some(to)) => {
                let protocol = if protocol == Protocol::Tcp { 6 } else { 17 };
                let (source, destination) = (from.ip(), to.ip());
                let flow = FiveTuple { source, destination, protocol, ports: [from.port(), to.port()] };
                Some(Match::Flow(vni, flow))
            }
            _ => vni.map(Match::Vni),
        }
    }

    fn is_for_the_same(&self, other: &SteerRule) -> bool {
        self.what() == other.what()
    }
}

impl fmt::Display for SteerRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what() {
            Some(what) => what.fmt(f),
            None => f.write_str("nothing"),
        }
    }
}

/// A change of `node.steering` on a running daemon. What is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SteeringChange {
    /// How it is chosen from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SteeringMode>,
    /// Over which CPUs flows are spread from now on; an empty list: they stay where they are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<Vec<u32>>,
    /// Rules that come, each in the place of one for the same packets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<SteerRule>,
    /// Rules that go, before those come; what they say of a core does not matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<SteerRule>,
}

impl SteeringChange {
    /// Makes it.
    pub fn apply(&self, steering: &mut Steering) {
        steering.mode = self.mode.unwrap_or(steering.mode);
        if let Some(cores) = &self.cores {
            steering.cores.clone_from(cores);
        }
        steering.rules.retain(|rule| !self.remove.iter().any(|gone| gone.is_for_the_same(rule)));
        for rule in &self.add {
            match steering.rules.iter_mut().find(|known| known.is_for_the_same(rule)) {
                Some(known) => known.core = rule.core,
                None => steering.rules.push(rule.clone()),
            }
        }
    }

    /// Both, this one first.
    pub fn then(&mut self, later: &SteeringChange) {
        self.mode = later.mode.or(self.mode);
        if later.cores.is_some() {
            self.cores.clone_from(&later.cores);
        }
        for gone in &later.remove {
            self.add.retain(|rule| !rule.is_for_the_same(gone));
            if !self.remove.iter().any(|known| known.is_for_the_same(gone)) {
                self.remove.push(gone.clone());
            }
        }
        for rule in &later.add {
            self.add.retain(|known| !known.is_for_the_same(rule));
            self.add.push(rule.clone());
        }
    }

    /// The first rule that is to go and is not there.
    pub fn stranger<'a>(&'a self, steering: &Steering) -> Option<&'a SteerRule> {
        self.remove.iter().find(|gone| !steering.rules.iter().any(|rule| rule.is_for_the_same(gone)))
    }
}

pub(super) fn steering(reader: &Reader<'_>) -> Steering {
    let mode = reader.choice("mode", SteeringMode::CHOICES, &[]).unwrap_or_default();
    let cores = reader.cores("cores").unwrap_or_default();
    let rules = reader.tables("rule", "[[node.steering.rule]]", |table| rule(table, true));
    Steering { mode, cores, rules }
}

/// The parameters of `network.steer`.
pub(super) fn change(reader: &Reader<'_>) -> SteeringChange {
    let mode = reader.choice("mode", SteeringMode::CHOICES, &[]);
    let cores = match reader.value("cores") {
        None => None,
        Some(value) if matches!(&value.data, Data::Array(items) if items.is_empty()) => Some(Vec::new()),
        Some(_) => reader.cores("cores"),
    };
    let add = reader.tables("add", "[[node.steering.rule]]", |table| rule(table, true));
    let remove = reader.tables("remove", "[[node.steering.rule]]", |table| rule(table, false));
    let change = SteeringChange { mode, cores, add, remove };
    if change == SteeringChange::default() {
        let problem = Problem::error("", "nothing is to be changed");
        reader.report(problem.expected("one of `mode`, `cores`, `add` and `remove`"));
    }
    change
}

fn rule(reader: &Reader<'_>, needs_core: bool) -> SteerRule {
    let vni = reader.integer("vni", Vni::MIN..=Vni::MAX).and_then(Vni::new);
    let protocol = reader.choice("protocol", &[("tcp", Protocol::Tcp), ("udp", Protocol::Udp)], &[]);
    let source: Option<SocketAddr> = reader.converted("source", WHAT_END, |text| socket_address(text, 4000));
    let destination: Option<SocketAddr> = reader.converted("destination", WHAT_END, |text| socket_address(text, 4000));
    let core = reader.integer("core", 0..=8191_u32);
    if needs_core && reader.value("core").is_none() {
        reader.missing("core", "core = 2");
    }
    let is_there = |key| reader.value(key).is_some();
    let flow = [("protocol", "\"udp\""), ("source", "\"10.0.0.2:4000\""), ("destination", "\"10.0.0.3:53\"")];
    let any = flow.iter().any(|(key, _)| is_there(*key));
    for (key, example) in flow.iter().filter(|(key, _)| any && !is_there(*key)) {
        reader.missing(key, &format!("{key} = {example}"));
    }
    if !any && !is_there("vni") {
        let problem = Problem::error(reader.path.clone(), "the rule takes no packets");
        reader.report(problem.help("add `vni = 5001`, or `protocol`, `source` and `destination` of a flow"));
    }
    if let (Some(from), Some(to)) = (source, destination)
        && from.is_ipv4() != to.is_ipv4()
    {
        let problem = Problem::error(reader.path.clone(), "`source` and `destination` are not of one family");
        reader.report(problem.found(format!("{from} and {to}")).expected("both IPv4, or both IPv6"));
    }
    SteerRule { vni, protocol, source, destination, core: core.unwrap_or_default() }
}

pub(super) fn check_steering(site: &Site, problems: &mut Vec<Problem>) {
    let Steering { cores, rules, .. } = &site.node.steering;
    let known = &site.node.dataplane.cores;
    let named = cores.iter().map(|core| ("node.steering.cores".to_owned(), *core));
    let ruled = rules.iter().enumerate().map(|(at, rule)| (format!("node.steering.rule[{at}].core"), rule.core));
    for (place, core) in named.chain(ruled).filter(|(_, core)| !known.contains(core)) {
        problems.push(
            Problem::error(place, format!("CPU {core} is not one of the data plane's"))
                .expected(format!("only CPUs of node.dataplane.cores = {known:?}")),
        );
    }
    for (at, rule) in rules.iter().enumerate() {
        if let Some(first) = rules[..at].iter().position(|other| other.is_for_the_same(rule)) {
            problems.push(
                Problem::error(format!("node.steering.rule[{at}]"), format!("two rules are for {rule}"))
                    .help(format!("remove it, or rule[{first}]")),
            );
        }
    }
    if rules.len() > RULES {
        problems.push(
            Problem::error("node.steering.rule", "too many rules")
                .found(format!("{} rules", rules.len()))
                .expected(format!("at most {RULES}")),
        );
    }
    if site.node.underlay.is_none() && site.node.steering != Steering::default() {
        problems.push(
            Problem::warning("node.steering", "it is for what comes by tunnels, and this node has none")
                .help("add [node.underlay]"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<SteeringChange, String> {
        let problems = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        crate::steering_change_from_json(&serde_json::from_str(json).unwrap()).map_err(problems)
    }

    const FLOW: &str = r#""protocol": "udp", "source": "10.0.0.2:4000", "destination": "10.0.0.3:53""#;

    #[test]
    fn changes_one_after_the_other_are_as_the_change_that_both_make() {
        let changes = [
            r#"{"mode": "auto", "add": [{"vni": 5, "core": 1}, {"vni": 6, "core": 1}]}"#.to_owned(),
            format!(r#"{{"add": [{{{FLOW}, "core": 2}}], "cores": [1, 2]}}"#),
            r#"{"remove": [{"vni": 5}], "add": [{"vni": 6, "core": 2}]}"#.to_owned(),
            r#"{"cores": [], "remove": [{"vni": 7}], "add": [{"vni": 5, "core": 2}]}"#.to_owned(),
        ];
        let before = SteerRule { vni: Vni::new(7), protocol: None, source: None, destination: None, core: 1 };
        let begin = Steering { rules: vec![before], ..Steering::default() };
        let (mut one_by_one, mut merged) = (begin.clone(), SteeringChange::default());
        for change in changes {
            let change = read(&change).unwrap();
            assert_eq!(change.stranger(&one_by_one), None);
            change.apply(&mut one_by_one);
            merged.then(&change);
            let mut at_once = begin.clone();
            merged.apply(&mut at_once);
            let sorted = |steering: &Steering| {
                let mut rules: Vec<String> =
                    steering.rules.iter().map(|rule| format!("{rule} {}", rule.core)).collect();
                rules.sort();
                (steering.mode, steering.cores.clone(), rules)
            };
            assert_eq!(sorted(&at_once), sorted(&one_by_one));
        }
        assert_eq!(one_by_one.rules.len(), 3);
        assert!(read(r#"{"remove": [{"vni": 7}]}"#).unwrap().stranger(&one_by_one).is_some());
        let text = serde_json::to_string(&merged).unwrap();
        assert_eq!(serde_json::from_str::<SteeringChange>(&text).unwrap(), merged);
    }

    #[test]
    fn wrong_rules_are_told_with_what_to_do() {
        for (json, wanted) in [
            ("{}", "nothing is to be changed"),
            (r#"{"mode": "fast"}"#, "off"),
            (r#"{"add": [{"vni": 5}]}"#, "`core` is missing"),
            (r#"{"add": [{"core": 1}]}"#, "takes no packets"),
            (r#"{"add": [{"core": 1, "vni": 0}]}"#, "from 1 to 16777215"),
            (r#"{"add": [{"core": 1, "protocol": "udp", "source": "10.0.0.2:1"}]}"#, "`destination` is missing"),
            (r#"{"add": [{"core": 1, "protocol": "icmp"}]}"#, "tcp"),
            (
                r#"{"add": [{"core": 1, "protocol": "udp", "source": "10.0.0.2:1", "destination": "[::1]:1"}]}"#,
                "not of one family",
            ),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(wanted), "{json}: {error}");
        }
    }
}
