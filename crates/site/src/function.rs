//! `[[function]]`: what a tenant puts in the path of its interfaces' frames.

use std::collections::HashMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use softdpu_functions::analytics::{Dimension, Weight};
use softdpu_vpc::trace::Filter;

use super::diagnostic::Problem;
use super::network::{AclAction, AclRule, Direction, NetworkPort, firewall_rule};
use super::read::{name, socket_address};
use super::reader::{Reader, is_name};
use super::rules::dangling;
use super::site::{DEFAULT_TENANT, Device, Site};
use super::units::Span;

/// Most functions of an interface.
const MOST_CHAINED: usize = softdpu_functions::CHAIN;
/// Most functions of a node: each core has an instance of every one.
const MOST_FUNCTIONS: usize = 64;
/// The largest flow table of a core; some 200 bytes a flow.
const MOST_FLOWS: u32 = 1 << 20;
const DEFAULT_FLOWS: u32 = 16_384;
/// The largest summary; some 200 bytes an entry.
const MOST_ENTRIES: u16 = 4096;
const DEFAULT_ENTRIES: u16 = 256;
const MOST_TOP: u16 = 100;
const DEFAULT_TOP: u16 = 10;
/// The largest connection table; some 220 bytes a connection.
const MOST_CONNECTIONS: u32 = 1 << 20;
const DEFAULT_CONNECTIONS: u32 = 16_384;
/// What stands in for a collector that was reported as missing or wrong.
const NO_COLLECTOR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 4739);

const WHAT_COLLECTOR: &str = "an address and a port such as \"192.0.2.9:4739\"";
const WHAT_SPAN: &str = "a time with a unit such as \"60 s\"";
const WHAT_FILTER: &str = "a filter such as \"tcp port 80\"";
const WHAT_FUNCTION: &str = "the name of a function";
const WHAT_DIMENSION: &str = "source, destination, source-port, destination-port, protocol or flow";

/// `[[function]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Its name, unique among functions.
    pub name: String,
    /// The only tenant whose devices may have it; any where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What it does: exactly one of the keys `monitor`, `analytics`, `firewall`.
    #[serde(flatten)]
    pub kind: FunctionKind,
}

/// Other settings of a function, in the place of all that it has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionChange {
    /// The function.
    pub name: String,
    /// What it does from now on: the key that it has, and that alone.
    #[serde(flatten)]
    pub kind: FunctionKind,
}

/// The kinds of functions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FunctionKind {
    /// Flow records.
    Monitor(MonitorSettings),
    /// The largest flows, hosts or ports.
    Analytics(AnalyticsSettings),
    /// What may pass.
    Firewall(FirewallSettings),
}

impl FunctionKind {
    /// The key that selects it in a site file.
    pub fn name(&self) -> &'static str {
        match self {
            FunctionKind::Monitor(_) => "monitor",
            FunctionKind::Analytics(_) => "analytics",
            FunctionKind::Firewall(_) => "firewall",
        }
    }
}

/// `function.monitor`: flow records, exported as IPFIX.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MonitorSettings {
    /// Where records are sent, over UDP.
    pub collector: SocketAddr,
    /// The observation domain of all records; their networks' VNIs where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<u32>,
    /// A flow that goes on is reported after so long.
    pub active_timeout: Span,
    /// A flow of which nothing was seen for so long is over.
    pub idle_timeout: Span,
    /// Most flows that each core keeps.
    pub flows: u32,
}

/// `function.analytics`: counts, and the largest entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AnalyticsSettings {
    /// Which frames; all where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// What entries are kept for: words of [`Dimension`].
    pub by: Vec<String>,
    /// What is heavy.
    pub rank: Rank,
    /// How many of the heaviest are shown.
    pub top: u16,
    /// How long a window is.
    pub window: Span,
    /// Counters of a core for each of `by`.
    pub entries: u16,
}

/// What is heavy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rank {
    /// By bytes.
    #[default]
    Bytes,
    /// By packets.
    Packets,
}

impl From<Rank> for Weight {
    fn from(rank: Rank) -> Weight {
        match rank {
            Rank::Bytes => Weight::Octets,
            Rank::Packets => Weight::Packets,
        }
    }
}

/// `function.firewall`: rules, and the connections that they allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FirewallSettings {
    /// What is done with packets that no rule matches.
    pub default: AclAction,
    /// Replies of what is allowed pass by themselves.
    pub stateful: bool,
    /// Most connections, of all interfaces together.
    pub connections: u32,
    /// Its rules, in any order.
    #[serde(default, rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<FirewallRule>,
}

/// `[[function.firewall.rule]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirewallRule {
    /// For packets to the interface (ingress) or from it (egress); both where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// What it asks for, and what is done.
    #[serde(flatten)]
    pub rule: AclRule,
}

/// `[[function]]`
pub(super) fn function(reader: &Reader<'_>) -> Function {
    let name = name(reader, "acme-flows");
    let tenant = reader.name("tenant");
    let kind = kind(reader);
    Function { name, tenant, kind }
}

/// The parameters of `function.set`.
pub(super) fn function_change(reader: &Reader<'_>) -> FunctionChange {
    FunctionChange { name: name(reader, "acme-flows"), kind: kind(reader) }
}

fn kind(reader: &Reader<'_>) -> FunctionKind {
    // Every table is read, so that mistakes in a second one are found too.
    let monitor = reader.table("monitor", "function.monitor", monitor);
    let analytics = reader.table("analytics", "function.analytics", analytics);
    let firewall = reader.table("firewall", "function.firewall", firewall);
    reader.exactly_one(&["monitor", "analytics", "firewall"], "monitor = { collector = \"192.0.2.9:4739\" }");
    (monitor.map(FunctionKind::Monitor))
        .or(analytics.map(FunctionKind::Analytics))
        .or(firewall.map(FunctionKind::Firewall))
        .unwrap_or(FunctionKind::Firewall(FirewallSettings {
            default: AclAction::Allow,
            stateful: false,
            connections: DEFAULT_CONNECTIONS,
            rules: Vec::new(),
        }))
}

fn monitor(reader: &Reader<'_>) -> MonitorSettings {
    if reader.value("collector").is_none() {
        reader.missing("collector", "collector = \"192.0.2.9:4739\"");
    }

    MonitorSettings {
        collector: reader
            .converted("collector", WHAT_COLLECTOR, |text| socket_address(text, 4739))
            .unwrap_or(NO_COLLECTOR),
        domain: reader.integer("domain", 1..=u32::MAX),
        active_timeout: span(reader, "active-timeout", Span::from_secs(60)),
        idle_timeout: span(reader, "idle-timeout", Span::from_secs(15)),
        flows: reader.integer("flows", 1..=MOST_FLOWS).unwrap_or(DEFAULT_FLOWS),
    }
}

fn analytics(reader: &Reader<'_>) -> AnalyticsSettings {
    let filter = reader.converted("filter", WHAT_FILTER, |text| {
        text.parse::<Filter>().map(|_| text.to_owned()).map_err(|error| error.to_string())
    });
    let dimension = |text: &str| {
        let is_known = Dimension::ALL.iter().any(|(word, _)| *word == text);
        if is_known { Ok(text.to_owned()) } else { Err(String::new()) }
    };
    let ranks = [("bytes", Rank::Bytes), ("packets", Rank::Packets)];

    AnalyticsSettings {
        filter,
        by: reader
            .one_or_more("by", WHAT_DIMENSION, dimension)
            .unwrap_or_else(|| vec!["source".to_owned(), "destination".to_owned(), "flow".to_owned()]),
        rank: reader.choice("rank", &ranks, &[]).unwrap_or_default(),
        top: reader.integer("top", 1..=MOST_TOP).unwrap_or(DEFAULT_TOP),
        window: span(reader, "window", Span::from_secs(10)),
        entries: reader.integer("entries", 1..=MOST_ENTRIES).unwrap_or(DEFAULT_ENTRIES),
    }
}

pub(super) fn firewall(reader: &Reader<'_>) -> FirewallSettings {
    let actions = [("allow", AclAction::Allow), ("deny", AclAction::Deny)];

    FirewallSettings {
        default: reader.choice("default", &actions, &[]).unwrap_or(AclAction::Deny),
        stateful: reader.boolean("stateful").unwrap_or(true),
        connections: reader.integer("connections", 1..=MOST_CONNECTIONS).unwrap_or(DEFAULT_CONNECTIONS),
        rules: reader.tables("rule", "[[function.firewall.rule]]", firewall_rule),
    }
}

/// A time of at least a second.
fn span(reader: &Reader<'_>, key: &'static str, default: Span) -> Span {
    let least = Span::from_secs(1);
    let read = reader.converted(key, WHAT_SPAN, |text| {
        let span: Span = text.parse().map_err(|error: super::units::UnitError| error.to_string())?;
        if span.0 >= least.0 { Ok(span) } else { Err("one second is the least".to_owned()) }
    });
    read.unwrap_or(default)
}

/// The key `functions` of an interface.
pub(super) fn attached(reader: &Reader<'_>) -> Vec<String> {
    let named = |text: &str| if is_name(text) { Ok(text.to_owned()) } else { Err(String::new()) };
    reader.one_or_more("functions", WHAT_FUNCTION, named).unwrap_or_default()
}

pub(super) fn check_functions(site: &Site, problems: &mut Vec<Problem>) {
    if site.functions.len() > MOST_FUNCTIONS {
        let problem = Problem::error("function", "too many functions").found(site.functions.len().to_string());
        problems.push(problem.expected(format!("at most {MOST_FUNCTIONS}")));
    }
    for (at, function) in site.functions.iter().enumerate() {
        if let Some(tenant) =
            function.tenant.as_ref().filter(|tenant| site.tenant(tenant).is_none() && **tenant != DEFAULT_TENANT)
        {
            let names = site.tenants.iter().map(|tenant| tenant.name.as_str());
            problems.extend(dangling(format!("function[{at}].tenant"), "tenant", tenant, names));
        }
        if let FunctionKind::Firewall(firewall) = &function.kind {
            super::network::check_firewall(&format!("function[{at}].firewall"), &firewall.rules, problems);
        }
    }
    for (at, device) in site.devices.iter().enumerate() {
        if let Some(port) = device.port() {
            check_chain(site, &format!("device[{at}].{}.functions", device.kind.name()), device, port, problems);
        }
    }
}

fn check_chain(site: &Site, place: &str, device: &Device, port: &NetworkPort, problems: &mut Vec<Problem>) {
    if port.functions.len() > MOST_CHAINED {
        let problem = Problem::error(place, "an interface with too many functions");
        let problem = problem.found(port.functions.len().to_string());
        problems.push(problem.expected(format!("at most {MOST_CHAINED}")));
    }
    for (at, name) in port.functions.iter().enumerate() {
        if port.functions[..at].contains(name) {
            let problem = Problem::error(place, format!("function `{name}` is named twice"));
            problems.push(problem.help("a frame passes a function once: name it once"));
        }
    }
    let functions: HashMap<&str, &Function> = site.functions.iter().map(|it| (it.name.as_str(), it)).collect();
    for name in &port.functions {
        match functions.get(name.as_str()) {
            None => {
                let names = site.functions.iter().map(|function| function.name.as_str());
                problems.extend(dangling(place.to_owned(), "function", name, names));
            }
            Some(Function { tenant: Some(tenant), .. }) if *tenant != device.tenant => problems.push(
                Problem::error(place, format!("function `{name}` is only for tenant `{tenant}`"))
                    .found(format!("a device of tenant `{}`", device.tenant))
                    .expected(format!("one of tenant `{tenant}`")),
            ),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::*;

    const NETWORK: &str = "[[network]]\nname = \"vpc\"\nvni = 5001\ncidr = \"10.0.0.0/16\"\n";

    fn check(text: &str) -> Loaded {
        parse(&format!("{NETWORK}{text}"), "site.toml", Path::new("/srv/site"), None)
    }

    fn site(text: &str) -> Site {
        let loaded = check(text);
        loaded.site.unwrap_or_else(|| panic!("{}", loaded.report))
    }

    const COMPLETE: &str = r#"
[[tenant]]
name = "acme"
[[function]]
name = "flows"
tenant = "acme"
monitor = { collector = "[2001:db8::9]:4739", domain = 7, active-timeout = "2 min", idle-timeout = "1 s", flows = 100 }
[[function]]
name = "top"
analytics = { filter = "tcp port 80", by = ["flow", "protocol"], rank = "packets", top = 3, window = "5 s", entries = 9 }
[[function]]
name = "guard"
[function.firewall]
default = "allow"
stateful = false
connections = 5
[[function.firewall.rule]]
direction = "ingress"
priority = 10
action = "deny"
protocol = "tcp"
source = "10.0.0.0/8"
ports = "80-90"
[[device]]
name = "nic"
tenant = "acme"
virtio-net = { network = "vpc", address = "10.0.0.2", functions = ["flows", "top", "guard"] }
"#;

    #[test]
    fn functions_have_defaults_for_everything_but_the_collector() {
        let site = site(
            "[[function]]\nname = \"a\"\nmonitor = { collector = \"192.0.2.1:1\" }\n\
             [[function]]\nname = \"b\"\nanalytics = {}\n[[function]]\nname = \"c\"\nfirewall = {}\n",
        );
        let FunctionKind::Monitor(monitor) = &site.function("a").unwrap().kind else { panic!() };
        assert_eq!((monitor.active_timeout, monitor.idle_timeout), (Span::from_secs(60), Span::from_secs(15)));
        assert_eq!((monitor.flows, monitor.domain), (16_384, None));
        let FunctionKind::Analytics(analytics) = &site.function("b").unwrap().kind else { panic!() };
        assert_eq!((analytics.top, analytics.entries, analytics.rank), (10, 256, Rank::Bytes));
        assert_eq!(
            (analytics.window, &*analytics.by),
            (Span::from_secs(10), &["source", "destination", "flow"].map(String::from)[..])
        );
        let FunctionKind::Firewall(firewall) = &site.function("c").unwrap().kind else { panic!() };
        assert_eq!((firewall.default, firewall.stateful, firewall.rules.len()), (AclAction::Deny, true, 0));
    }

    #[test]
    fn a_site_with_functions_is_the_same_after_it_was_handed_on() {
        let site = site(COMPLETE);
        let FunctionKind::Firewall(firewall) = &site.function("guard").unwrap().kind else { panic!() };
        assert_eq!(firewall.rules[0].direction, Some(Direction::Ingress));
        assert_eq!(firewall.rules[0].rule.ports, Some(PortRange { first: 80, last: 90 }));
        let text = serde_json::to_string(&site).unwrap();
        assert_eq!(serde_json::from_str::<Site>(&text).unwrap(), site);
        let line = summary(&site);
        assert!(line.contains("function    flows: monitor, 1 device(s), only for acme"), "{line}");
    }

    #[test]
    fn mistakes_are_found() {
        let device = |functions: &str, more: &str| {
            format!(
                "{more}[[device]]\nname = \"nic\"\nvirtio-net = {{ network = \"vpc\", address = \"10.0.0.2\", functions = {functions} }}\n"
            )
        };
        let function = |what: &str| format!("[[function]]\nname = \"f\"\n{what}\n");
        for (text, expected) in [
            (function(""), "monitor"),
            (function("monitor = { collector = \"192.0.2.1\" }"), "an address and a port such as \"192.0.2.9:4739\""),
            (function("monitor = { collector = \"192.0.2.1:1\", idle-timeout = \"1 ms\" }"), "one second is the least"),
            (function("analytics = { by = \"sauce\" }"), "source, destination, source-port"),
            (function("analytics = { filter = \"tcp prt 80\" }"), "column 5"),
            (function("firewall = { rule = [{ action = \"deny\" }] }"), "priority = 100"),
            (
                function(
                    "firewall = { rule = [{ priority = 1, action = \"deny\", source = \"10.0.0.0/8\", destination = \"fd00::/8\" }] }",
                ),
                "are not of one address family",
            ),
            (function("tenant = \"acme\"\nfirewall = {}"), "there is no tenant `acme`"),
            (function("firewall = {}") + &function("firewall = {}"), "function `f` exists already"),
            (device("\"g\"", &function("firewall = {}")), "there is no function `g`"),
            (
                device(
                    "\"f\"",
                    &("[[tenant]]\nname = \"acme\"\n".to_owned() + &function("tenant = \"acme\"\nfirewall = {}")),
                ),
                "function `f` is only for tenant `acme`",
            ),
        ] {
            let loaded = check(&text);
            let report = loaded.report.to_string();
            assert!(loaded.site.is_none() && report.contains(expected), "{text}\n{report}");
        }
    }
}
