//! What is kept of a function outside the cores: their reports, what it counted however often it changed,
//! and where its records go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use softdpu_engine::{CoreIndex, FunctionReport};
use softdpu_functions::analytics::{AnalyticsCounts, AnalyticsSpec, Dimension, Item, Key, WindowReport, merge};
use softdpu_functions::firewall::{self, FirewallCounts, FirewallSpec, Rules, Tally};
use softdpu_functions::monitor::{MonitorCounts, MonitorSpec};
use softdpu_functions::{Counts, FunctionSpec, Output, Way};
use softdpu_sys::clock;
use softdpu_vpc::trace::Filter;

use super::export::{Export, Sent};
use crate::policy;
use softdpu_api::status::{AnalyticsStatus, FirewallStatus, FunctionStatus, MonitorStatus, RuleStatus};
use softdpu_api::status::{TopItem, TopStatus, WindowStatus};
use softdpu_site::{self as config, Direction, FunctionKind};

/// What is kept of a function.
pub(super) struct FunctionState {
    pub(super) kind: KindState,
    /// The first incarnation that has these settings.
    since: u32,
    /// Until the last of those before has sent its last report.
    former: Option<Former>,
    /// A firewall's rules, in words.
    rules: Vec<String>,
    /// What those incarnations counted that have ended.
    before: Counts,
    /// What the others have, by incarnation and core.
    counts: BTreeMap<(u32, CoreIndex), Counts>,
    sent: Sent,
    lost: Arc<AtomicU64>,
}

/// What is kept of a function by its kind.
pub(super) enum KindState {
    Monitor(Export),
    Analytics { config: config::AnalyticsSettings, windows: Windows },
    Firewall(Arc<Rules>),
}

/// What a function was before it was given other settings.
struct Former {
    since: u32,
    /// Where its records go, if they go elsewhere.
    export: Option<Export>,
    /// Of each of its rules: which it is now, if it is one still.
    rules: Vec<Option<usize>>,
}

/// Reports of cores on the last windows of an analysis, by their numbers.
type Windows = BTreeMap<u64, Vec<WindowReport>>;

/// How long after the end of a window the last core has reported it: they do so ten times a second, also those that
/// sleep; a busy one checks for it every thousand rounds.
const LATE: u64 = 600_000_000;

/// What cores do for a function, and what is kept of it here.
/// `before`: what was kept of it until now.
pub(super) fn prepare(
    config: &config::Function,
    before: Option<&KindState>,
) -> Result<(FunctionSpec, KindState), String> {
    Ok(match &config.kind {
        FunctionKind::Monitor(monitor) => {
            let spec = MonitorSpec {
                active: monitor.active_timeout.nanos(),
                idle: monitor.idle_timeout.nanos(),
                flows: monitor.flows as usize,
            };
            (FunctionSpec::Monitor(spec), KindState::Monitor(Export::new(monitor.collector, monitor.domain)))
        }
        FunctionKind::Analytics(analytics) => {
            let dimension =
                |word: &String| Dimension::ALL.iter().find(|(known, _)| known == word).map(|(_, dimension)| *dimension);
            let spec = AnalyticsSpec {
                filter: match &analytics.filter {
                    Some(filter) => Some(filter.parse::<Filter>().map_err(|error| format!("filter: {error}"))?),
                    None => None,
                },
                by: analytics.by.iter().filter_map(dimension).collect(),
                weight: analytics.rank.into(),
                window: analytics.window.nanos(),
                entries: analytics.entries.into(),
            };
            (FunctionSpec::Analytics(spec), KindState::Analytics { config: analytics.clone(), windows: Windows::new() })
        }
        FunctionKind::Firewall(firewall) => {
            let rule = |one: &config::FirewallRule| {
                let way = one.direction.map(|direction| match direction {
                    // As the interface sees it: what goes to it leaves the network.
                    Direction::Ingress => Way::Out,
                    Direction::Egress => Way::In,
                });
                Ok::<_, String>(firewall::FirewallRule { way, rule: policy::rule(&one.rule)? })
            };
            let spec = FirewallSpec {
                rules: firewall.rules.iter().map(rule).collect::<Result<_, _>>()?,
                default: policy::action(firewall.default),
                connections: firewall.stateful.then_some(firewall.connections as usize),
            };
            let rules = match before {
                Some(KindState::Firewall(before)) => before.succeed(&spec),
                _ => Rules::build(&spec),
            };
            let rules = Arc::new(rules.map_err(|error| error.to_string())?);
            (FunctionSpec::Firewall(Arc::clone(&rules)), KindState::Firewall(rules))
        }
    })
}

/// A firewall's rules, in words.
fn texts(config: &config::Function) -> Vec<String> {
    match &config.kind {
        FunctionKind::Firewall(settings) => settings.rules.iter().map(describe).collect(),
        FunctionKind::Monitor(_) | FunctionKind::Analytics(_) => Vec::new(),
    }
}

impl KindState {
    /// Nothing was counted.
    fn nothing(&self, rules: usize) -> Counts {
        match self {
            KindState::Monitor(_) => Counts::Monitor(MonitorCounts::default()),
            KindState::Analytics { .. } => Counts::Analytics(AnalyticsCounts::default()),
            KindState::Firewall(_) => {
                Counts::Firewall(FirewallCounts { rules: vec![Tally::default(); rules], ..FirewallCounts::default() })
            }
        }
    }
}

impl FunctionState {
    /// Of a function that no core has had yet.
    pub(super) fn new(config: &config::Function, kind: KindState, lost: Arc<AtomicU64>) -> FunctionState {
        let rules = texts(config);
        FunctionState {
            before: kind.nothing(rules.len()),
            kind,
            since: 0,
            former: None,
            rules,
            counts: BTreeMap::new(),
            sent: Sent::default(),
            lost,
        }
    }

    /// It has other settings from this incarnation on. What was counted goes on, also by those of a firewall's rules
    /// that stay.
    pub(super) fn replace(&mut self, config: &config::Function, kind: KindState, since: u32) {
        let rules = texts(config);
        let place = |text: &String| rules.iter().position(|other| other == text);
        let moved: Vec<Option<usize>> = self.rules.iter().map(place).collect();
        let mut before = kind.nothing(rules.len());
        add(&mut before, &self.before, Some(&moved));
        let mut export = None;
        match (&mut self.kind, kind) {
            // The collector is to see one stream of records.
            (KindState::Monitor(old), KindState::Monitor(new)) if old.is_same(&new) => {}
            (KindState::Monitor(old), KindState::Monitor(new)) => export = Some(std::mem::replace(old, new)),
            (old, new) => *old = new,
        }
        self.former = Some(Former { since: self.since, export, rules: moved });
        (self.since, self.rules, self.before) = (since, rules, before);
    }

    /// All reports of its former incarnations were taken.
    pub(super) fn settle(&mut self) {
        self.former = None;
    }

    /// Takes a report of a core.
    pub(super) fn take(&mut self, report: FunctionReport) {
        let FunctionReport { id, core, outputs, is_last, .. } = report;
        let is_former = id.incarnation < self.since;
        for output in outputs {
            match (output, &mut self.kind) {
                (Output::Counts(counts), _) if is_last => {
                    self.counts.remove(&(id.incarnation, core));
                    let mut before = self.before.clone();
                    add(&mut before, &counts, self.moved(id.incarnation));
                    self.before = before;
                }
                (Output::Counts(counts), _) => drop(self.counts.insert((id.incarnation, core), counts)),
                (Output::Flows(records), KindState::Monitor(export)) => {
                    let former = self.former.as_mut().and_then(|former| former.export.as_mut());
                    former.filter(|_| is_former).unwrap_or(export).send(&records, &mut self.sent);
                }
                (Output::Window(report), KindState::Analytics { config, windows }) if !is_former => {
                    windows.entry(report.window).or_default().push(report);
                    if let Some(whole) = whole(windows, config.window.nanos(), clock::now()) {
                        *windows = windows.split_off(&whole);
                    }
                }
                (Output::Flows(_) | Output::Window(_), _) => {}
            }
        }
    }

    /// Which its rules are now that an incarnation had; None: the same.
    fn moved(&self, incarnation: u32) -> Option<&[Option<usize>]> {
        let is_former = incarnation < self.since;
        // Rules before the former ones are forgotten.
        let former = || self.former.as_ref().filter(|it| incarnation >= it.since).map_or(&[][..], |it| &it.rules);
        is_former.then(former)
    }

    /// What it has counted.
    fn totals(&self) -> Counts {
        let mut totals = self.before.clone();
        for ((incarnation, _), counts) in &self.counts {
            add(&mut totals, counts, self.moved(*incarnation));
        }
        totals
    }

    pub(super) fn status(&self, config: &config::Function, devices: Vec<String>) -> FunctionStatus {
        let mut status = FunctionStatus { devices, lost: self.lost.load(Relaxed), ..FunctionStatus::declared(config) };
        match (&self.kind, self.totals()) {
            (KindState::Monitor(export), Counts::Monitor(counts)) => {
                status.monitor = Some(self.monitor(export, &counts))
            }
            (KindState::Analytics { config, windows }, Counts::Analytics(counts)) => {
                status.analytics = Some(FunctionState::analytics(config, windows, &counts));
            }
            (KindState::Firewall(rules), Counts::Firewall(counts)) => {
                status.firewall = Some(self.firewall(rules, &counts))
            }
            // A function keeps its kind.
            _ => {}
        }
        status
    }

    fn monitor(&self, export: &Export, counts: &MonitorCounts) -> MonitorStatus {
        MonitorStatus {
            collector: export.collector.to_string(),
            flows: counts.flows,
            packets: counts.packets,
            bytes: counts.octets,
            others: counts.others,
            records: counts.records,
            early: counts.early,
            exported: self.sent.exported,
            messages: self.sent.messages,
            dropped: self.sent.dropped,
            error: self.sent.error.clone(),
        }
    }

    fn analytics(config: &config::AnalyticsSettings, windows: &Windows, counts: &AnalyticsCounts) -> AnalyticsStatus {
        let last = whole(windows, config.window.nanos(), clock::now());
        let last = last.and_then(|number| Some((number, windows.get(&number)?)));
        AnalyticsStatus {
            filter: config.filter.clone(),
            rank: match config.rank {
                config::Rank::Bytes => "bytes".to_owned(),
                config::Rank::Packets => "packets".to_owned(),
            },
            window_s: config.window.0.as_secs_f64(),
            packets: counts.packets,
            bytes: counts.octets,
            matched: counts.matched,
            matched_bytes: counts.matched_octets,
            last: last.map(|(number, reports)| window_status(config, number, reports)),
        }
    }

    fn firewall(&self, rules: &Rules, counts: &FirewallCounts) -> FirewallStatus {
        let status = |rule: String, tally: &Tally| RuleStatus { rule, packets: tally.packets, bytes: tally.octets };
        let of = |tally: &Tally| status(String::new(), tally);
        let texts = self.rules.iter().cloned().enumerate();
        let tally = |at: usize| counts.rules.get(at).copied().unwrap_or_default();
        FirewallStatus {
            connections: rules.connections() as u64,
            rules: texts.map(|(at, text)| status(text, &tally(at))).collect(),
            default: of(&counts.default),
            established: of(&counts.established),
            refused: of(&counts.refused),
            no_room: of(&counts.no_room),
            dropped: of(&counts.dropped),
        }
    }
}

/// Adds counts to others of the same kind; those of rules by what each of them is now, if it is not the same.
fn add(to: &mut Counts, counts: &Counts, rules: Option<&[Option<usize>]>) {
    match (to, counts) {
        (Counts::Monitor(to), Counts::Monitor(counts)) => {
            let MonitorCounts { flows, packets, octets, others, records, early } = counts;
            to.flows += flows;
            to.packets += packets;
            to.octets += octets;
            to.others += others;
            to.records += records;
            to.early += early;
        }
        (Counts::Analytics(to), Counts::Analytics(counts)) => {
            let AnalyticsCounts { packets, octets, matched, matched_octets } = counts;
            to.packets += packets;
            to.octets += octets;
            to.matched += matched;
            to.matched_octets += matched_octets;
        }
        (Counts::Firewall(to), Counts::Firewall(counts)) => {
            let FirewallCounts { rules: by_rule, default, established, refused, no_room, dropped } = counts;
            for (at, tally) in by_rule.iter().enumerate() {
                let place = rules.map_or(Some(at), |rules| rules.get(at).copied().flatten());
                if let Some(rule) = place.and_then(|place| to.rules.get_mut(place)) {
                    *rule += *tally;
                }
            }
            to.default += *default;
            to.established += *established;
            to.refused += *refused;
            to.no_room += *no_room;
            to.dropped += *dropped;
        }
        _ => {}
    }
}

/// A rule, for people: `ingress 100 allow tcp to 10.0.0.0/8 port 22`.
fn describe(rule: &config::FirewallRule) -> String {
    let config::FirewallRule { direction, rule } = rule;
    let mut text = String::new();
    if let Some(direction) = direction {
        text += if *direction == Direction::Ingress { "ingress " } else { "egress " };
    }
    text += &format!("{} {}", rule.priority, rule.action.word());
    if let Some(protocol) = &rule.protocol {
        text += &format!(" {}", protocol.word());
    }
    if let Some(source) = rule.source {
        text += &format!(" from {source}");
    }
    if let Some(ports) = rule.source_ports {
        text += &format!(" port {ports}");
    }
    if let Some(destination) = rule.destination {
        text += &format!(" to {destination}");
    }
    if let Some(ports) = rule.ports {
        text += &format!(" to port {ports}");
    }
    text
}

/// The last of the windows of so many nanoseconds that every core has reported at `now`.
fn whole(windows: &Windows, length: u64, now: u64) -> Option<u64> {
    let is_whole = |number: &&u64| (**number + 1).saturating_mul(length).saturating_add(LATE) <= now;
    windows.keys().rev().find(is_whole).copied()
}

fn window_status(config: &config::AnalyticsSettings, number: u64, reports: &[WindowReport]) -> WindowStatus {
    let end = (number + 1).saturating_mul(config.window.nanos());
    let sum = |of: fn(&WindowReport) -> u64| reports.iter().map(of).sum::<u64>();
    let top = |(at, by): (usize, &String)| {
        let parts = reports.iter().filter_map(|report| report.summaries.get(at));
        let parts: Vec<_> = parts.map(|(items, bound)| (items.as_slice(), *bound)).collect();
        let items = merge(&parts, config.top.into()).into_iter();
        let item = |it: Item<Key>| TopItem { key: it.key.to_string(), weight: it.weight, error: it.error };
        TopStatus { by: by.clone(), items: items.map(item).collect() }
    };
    WindowStatus {
        ended_s: clock::now().saturating_sub(end) as f64 / 1e9,
        packets: sum(|report| report.packets),
        bytes: sum(|report| report.octets),
        top: config.by.iter().enumerate().map(top).collect(),
    }
}
