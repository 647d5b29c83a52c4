//! `[[network.security-group]]` and `[[network.acl]]`: which guests may exchange packets.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::Network;
use super::file::changed;
use super::read::prefix;
use crate::diagnostic::Problem;
use crate::function::FirewallRule;
use crate::read::name;
use crate::reader::{Reader, is_name, join};
use crate::rules::{MOST_PROBLEMS, dangling};
use crate::value::Data;

/// Most groups that an interface is in, and most rules of a list.
const MOST_GROUPS: usize = 16;
const MOST_RULES: usize = 10_000;

const WHAT_PREFIX: &str = "a prefix such as \"10.0.0.0/16\"";
const WHAT_PORTS: &str = "a port such as 443, or a range of them such as \"8000-8099\"";
const WHAT_GROUP: &str = "the name of a security group";

/// `[[network.security-group]]`: what may be sent to its members and by them. Rules only allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecurityGroup {
    /// Its name, unique in the network.
    pub name: String,
    /// What is allowed. Without an egress rule, members may send what they like.
    #[serde(default, rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<GroupRule>,
}

/// `[[network.security-group.rule]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupRule {
    /// Which way connections are opened that it allows.
    pub direction: Direction,
    /// Any where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Destination ports; any where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,
    /// The other side: addresses,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<IpNet>,
    /// or members of a group of the same network; any address where both are absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// Which way a connection is opened, as a member sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// To it.
    Ingress,
    /// By it.
    Egress,
}

const DIRECTIONS: &[(&str, Direction)] = &[("ingress", Direction::Ingress), ("egress", Direction::Egress)];

/// A protocol that rules ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP, over IPv4.
    Icmp,
    /// ICMPv6.
    Icmpv6,
}

const PROTOCOLS: &[(&str, Protocol)] =
    &[("tcp", Protocol::Tcp), ("udp", Protocol::Udp), ("icmp", Protocol::Icmp), ("icmpv6", Protocol::Icmpv6)];

/// Ports from a first to a last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PortRange {
    /// The first.
    pub first: u16,
    /// The last; not before the first.
    pub last: u16,
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl From<PortRange> for String {
    fn from(ports: PortRange) -> String {
        ports.to_string()
    }
}

impl TryFrom<String> for PortRange {
    type Error = String;
    fn try_from(text: String) -> Result<PortRange, String> {
        text.parse()
    }
}

impl FromStr for PortRange {
    type Err = String;
    fn from_str(text: &str) -> Result<PortRange, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(PortRange { first, last }),
            (Ok(_), Ok(_)) => Err("the first is after the last".to_owned()),
            _ => Err(String::new()),
        }
    }
}

/// `[[network.acl]]`: rules by priority, the first that matches decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acl {
    /// Its name, unique in the network.
    pub name: String,
    /// What is done with packets that no rule matches.
    pub default: AclAction,
    /// Its rules, in any order.
    #[serde(default, rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<AclRule>,
}

/// `[[network.acl.rule]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AclRule {
    /// The least is tried first; of two with the same, the one written first.
    pub priority: u32,
    /// What is done with packets that it matches first.
    pub action: AclAction,
    /// Any where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Where packets are from; anywhere where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpNet>,
    /// Where they go; anywhere where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<IpNet>,
    /// Source ports; any where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ports: Option<PortRange>,
    /// Destination ports; any where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,
}

/// What is done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AclAction {
    /// It goes on.
    Allow,
    /// It is dropped.
    Deny,
}

const ACTIONS: &[(&str, AclAction)] = &[("allow", AclAction::Allow), ("deny", AclAction::Deny)];

impl AclAction {
    /// Its word in site files.
    pub fn word(self) -> &'static str {
        ACTIONS.iter().find(|(_, action)| *action == self).map_or("", |(word, _)| word)
    }
}

impl Protocol {
    /// Its word in site files.
    pub fn word(self) -> &'static str {
        PROTOCOLS.iter().find(|(_, protocol)| *protocol == self).map_or("", |(word, _)| word)
    }
}

/// All groups and lists of a network: what `network.policy` puts in the place of those before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// The network.
    pub network: String,
    /// Its groups from now on.
    #[serde(default, rename = "security-group", skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<SecurityGroup>,
    /// Its lists from now on.
    #[serde(default, rename = "acl", skip_serializing_if = "Vec::is_empty")]
    pub acls: Vec<Acl>,
}

/// The parameters of `network.policy`; the network's name is under `key`.
pub(super) fn change(reader: &Reader<'_>, key: &'static str) -> PolicyChange {
    PolicyChange { network: changed(reader, key), security_groups: security_groups(reader), acls: acls(reader) }
}

/// `[[network.security-group]]`
pub(super) fn security_groups(reader: &Reader<'_>) -> Vec<SecurityGroup> {
    reader.tables("security-group", "[[network.security-group]]", security_group)
}

/// `[[network.acl]]`
pub(super) fn acls(reader: &Reader<'_>) -> Vec<Acl> {
    reader.tables("acl", "[[network.acl]]", acl)
}

/// The key `security-groups` of an interface.
pub(super) fn memberships(reader: &Reader<'_>) -> Vec<String> {
    let named = |text: &str| if is_name(text) { Ok(text.to_owned()) } else { Err(String::new()) };
    reader.one_or_more("security-groups", WHAT_GROUP, named).unwrap_or_default()
}

fn security_group(reader: &Reader<'_>) -> SecurityGroup {
    SecurityGroup {
        name: name(reader, "web"),
        rules: reader.tables("rule", "[[network.security-group.rule]]", group_rule),
    }
}

fn group_rule(reader: &Reader<'_>) -> GroupRule {
    if reader.value("direction").is_none() {
        reader.missing("direction", "direction = \"ingress\"");
    }
    if let (Some(_), Some(value)) = (reader.value("cidr"), reader.value("group")) {
        let message = "a rule has both `cidr` and `group`";
        let problem = Problem::error(join(&reader.path, "group"), message).at(value.span.clone());
        reader.report(problem.help("write two rules: what either allows is allowed"));
    }
    let protocol = reader.choice("protocol", PROTOCOLS, &[]);

    GroupRule {
        direction: reader.choice("direction", DIRECTIONS, &[]).unwrap_or(Direction::Ingress),
        protocol,
        ports: ports(reader, "ports", protocol),
        cidr: reader.converted("cidr", WHAT_PREFIX, prefix),
        group: reader.name("group"),
    }
}

fn acl(reader: &Reader<'_>) -> Acl {
    Acl {
        name: name(reader, "edge"),
        default: reader.choice("default", ACTIONS, &[]).unwrap_or(AclAction::Allow),
        rules: reader.tables("rule", "[[network.acl.rule]]", acl_rule),
    }
}

fn acl_rule(reader: &Reader<'_>) -> AclRule {
    rule(reader)
}

/// `[[function.firewall.rule]]`
pub(crate) fn firewall_rule(reader: &Reader<'_>) -> FirewallRule {
    let direction = reader.choice("direction", DIRECTIONS, &[]);

    FirewallRule { direction, rule: rule(reader) }
}

/// What rules of lists and of firewalls have in common.
fn rule(reader: &Reader<'_>) -> AclRule {
    for (key, example) in [("priority", "priority = 100"), ("action", "action = \"allow\"")] {
        if reader.value(key).is_none() {
            reader.missing(key, example);
        }
    }
    let protocol = reader.choice("protocol", PROTOCOLS, &[]);
    AclRule {
        priority: reader.integer("priority", 0..=u32::MAX).unwrap_or_default(),
        action: reader.choice("action", ACTIONS, &[]).unwrap_or(AclAction::Deny),
        protocol,
        source: reader.converted("source", WHAT_PREFIX, prefix),
        destination: reader.converted("destination", WHAT_PREFIX, prefix),
        source_ports: ports(reader, "source-ports", protocol),
        ports: ports(reader, "ports", protocol),
    }
}

fn ports(reader: &Reader<'_>, key: &'static str, protocol: Option<Protocol>) -> Option<PortRange> {
    let value = reader.value(key)?;
    let range = match &value.data {
        Data::Integer(port) => {
            u16::try_from(*port).map(|port| PortRange { first: port, last: port }).map_err(|_| String::new())
        }
        Data::String(text) => text.parse(),
        _ => Err(String::new()),
    };
    if !matches!(protocol, Some(Protocol::Tcp | Protocol::Udp))
        && reader.value("protocol").is_none_or(|_| protocol.is_some())
    {
        let message = format!("`{key}` means nothing without `protocol = \"tcp\"` or \"udp\"");
        reader.report(Problem::error(join(&reader.path, key), message).at(value.span.clone()));
    }
    match range {
        Ok(range) => Some(range),
        Err(help) => {
            let problem = reader.wrong(key, value, WHAT_PORTS);
            reader.report(if help.is_empty() { problem } else { problem.help(help) });
            None
        }
    }
}

impl Network {
    /// Groups and lists from now on.
    pub fn change_policy(&mut self, change: &PolicyChange) {
        self.security_groups.clone_from(&change.security_groups);
        self.acls.clone_from(&change.acls);
    }
}

pub(super) fn check_policies(place: &str, network: &Network, problems: &mut Vec<Problem>) {
    let twice = |place: String, what: &str, name: &str| {
        Problem::error(place, format!("the network has a second {what} `{name}`")).help("give each a name of its own")
    };
    let (named, mut seen) = (Policies::of(network), HashSet::new());
    for (at, group) in network.security_groups.iter().enumerate() {
        let place = format!("{place}.security-group[{at}]");
        if !group.name.is_empty() && !seen.insert(&group.name) {
            problems.push(twice(format!("{place}.name"), "security group", &group.name));
        }
        check_count(&place, group.rules.len(), problems);
        for (number, rule) in group.rules.iter().enumerate() {
            if problems.len() >= MOST_PROBLEMS {
                return;
            }
            let place = format!("{place}.rule[{number}]");
            if let Some(group) = &rule.group {
                named.check_group(format!("{place}.group"), group, problems);
            }
            check_family(&place, "cidr", rule.protocol, rule.cidr, problems);
        }
    }
    seen.clear();
    for (at, acl) in network.acls.iter().enumerate() {
        let place = format!("{place}.acl[{at}]");
        if !acl.name.is_empty() && !seen.insert(&acl.name) {
            problems.push(twice(format!("{place}.name"), "ACL", &acl.name));
        }
        check_count(&place, acl.rules.len(), problems);
        for (number, rule) in acl.rules.iter().enumerate() {
            if problems.len() >= MOST_PROBLEMS {
                return;
            }
            check_rule(&format!("{place}.rule[{number}]"), rule, problems);
        }
    }
}

/// The groups and lists of a network by their names: as many interfaces ask for them as the network has.
pub(super) struct Policies<'a> {
    network: &'a Network,
    groups: HashSet<&'a str>,
    acls: HashSet<&'a str>,
}

impl Policies<'_> {
    pub(super) fn of(network: &Network) -> Policies<'_> {
        Policies {
            network,
            groups: network.security_groups.iter().map(|group| group.name.as_str()).collect(),
            acls: network.acls.iter().map(|acl| acl.name.as_str()).collect(),
        }
    }

    /// An interface's groups and list are there.
    pub(super) fn check_membership(
        &self,
        place: &str,
        groups: &[String],
        acl: Option<&str>,
        problems: &mut Vec<Problem>,
    ) {
        for (at, name) in groups.iter().enumerate() {
            if problems.len() >= MOST_PROBLEMS {
                return;
            }
            self.check_group(format!("{place}.security-groups[{at}]"), name, problems);
        }
        if groups.len() > MOST_GROUPS {
            problems.push(
                Problem::error(format!("{place}.security-groups"), "an interface in too many security groups")
                    .found(groups.len().to_string())
                    .expected(format!("at most {MOST_GROUPS}")),
            );
        }
        if let Some(name) = acl.filter(|name| !self.acls.contains(name)) {
            let names = self.network.acls.iter().map(|acl| acl.name.as_str());
            problems.extend(dangling(format!("{place}.acl"), "network.acl", name, names));
        }
    }

    fn check_group(&self, place: String, name: &str, problems: &mut Vec<Problem>) {
        if !self.groups.contains(name) {
            let names = self.network.security_groups.iter().map(|group| group.name.as_str());
            problems.extend(dangling(place, "network.security-group", name, names));
        }
    }
}

/// The rules of a firewall, in the table called `place`.
pub(crate) fn check_firewall(place: &str, rules: &[FirewallRule], problems: &mut Vec<Problem>) {
    check_count(place, rules.len(), problems);
    for (number, rule) in rules.iter().enumerate() {
        check_rule(&format!("{place}.rule[{number}]"), &rule.rule, problems);
    }
}

/// Some packet can match.
fn check_rule(place: &str, rule: &AclRule, problems: &mut Vec<Problem>) {
    check_family(place, "source", rule.protocol, rule.source, problems);
    check_family(place, "destination", rule.protocol, rule.destination, problems);
    if let (Some(source), Some(destination)) = (rule.source, rule.destination)
        && source.addr().is_ipv4() != destination.addr().is_ipv4()
    {
        let message = format!("{source} and {destination} are not of one address family");
        let problem = Problem::error(format!("{place}.destination"), message);
        problems.push(problem.help("no packet can match: leave one out, or write two rules"));
    }
}

fn check_count(place: &str, rules: usize, problems: &mut Vec<Problem>) {
    if rules > MOST_RULES {
        let problem = Problem::error(format!("{place}.rule"), "too many rules").found(rules.to_string());
        problems.push(problem.expected(format!("at most {MOST_RULES}")));
    }
}

/// ICMP is IPv4's, ICMPv6 is IPv6's.
fn check_family(place: &str, key: &str, protocol: Option<Protocol>, cidr: Option<IpNet>, problems: &mut Vec<Problem>) {
    let (Some(protocol), Some(cidr)) = (protocol, cidr) else { return };
    let is_wrong = match (protocol, cidr.addr()) {
        (Protocol::Icmp, IpAddr::V6(_)) | (Protocol::Icmpv6, IpAddr::V4(_)) => true,
        (Protocol::Tcp | Protocol::Udp | Protocol::Icmp | Protocol::Icmpv6, _) => false,
    };
    if is_wrong {
        let message = format!("no packet can match: {cidr} is not of the address family of the rule's protocol");
        problems.push(Problem::error(format!("{place}.{key}"), message).help("icmp is for IPv4, icmpv6 for IPv6"));
    }
}
