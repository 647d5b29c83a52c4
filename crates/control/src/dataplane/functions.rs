//! Functions of the site: what cores have to do, what they say, and where that goes.
//!
//! ```text
//!   cores ──▶ FunctionBox ──▶ thread ──▶ IPFIX over UDP
//!                               └──────▶ what `status` shows
//! ```

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softdpu_engine::{CoreIndex, Engine, FunctionBox, FunctionPlan};
use softdpu_functions::analytics::{AnalyticsSpec, Dimension, Item, Key, WindowReport, merge};
use softdpu_functions::firewall::{self, FirewallSpec, Rules, Tally};
use softdpu_functions::ipfix::{Exporter, Instant};
use softdpu_functions::monitor::{FlowRecord, MonitorSpec};
use softdpu_functions::{Counts, FunctionSpec, Output, Way};
use softdpu_sys::clock;
use softdpu_vpc::PortId;
use softdpu_vpc::trace::Filter;

use super::policy;
use crate::config::{self, Direction, FunctionKind};
use crate::status::{AnalyticsStatus, FirewallStatus, FunctionStatus, MonitorStatus, RuleStatus};
use crate::status::{TopItem, TopStatus, WindowStatus};

/// How long the thread waits for cores, at most: then it looks whether it is to end.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The functions of this data plane.
pub(super) struct Functions {
    configs: Vec<config::Function>,
    plan: Option<FunctionPlan>,
    /// What is known of each.
    states: Arc<Mutex<Vec<State>>>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What is known of a function.
struct State {
    kind: Kind,
    lost: u64,
    counts: BTreeMap<CoreIndex, Counts>,
}

enum Kind {
    Monitor(Export),
    Analytics { config: config::AnalyticsSettings, windows: Windows },
    Firewall(Arc<Rules>),
}

/// What cores said of the last windows of an analysis, by their numbers.
type Windows = BTreeMap<u64, Vec<WindowReport>>;

/// How long after the end of a window the last core has said what it saw: they do so ten times a second, and when they wake up.
const LATE: u64 = 1_200_000_000;

/// A monitor's way to its collector.
struct Export {
    collector: SocketAddr,
    exporter: Exporter,
    socket: Option<UdpSocket>,
    exported: u64,
    messages: u64,
    dropped: u64,
    error: Option<String>,
}

impl Functions {
    /// No functions.
    pub fn none() -> Functions {
        Functions { configs: Vec::new(), plan: None, states: Arc::default(), ending: Arc::default(), thread: None }
    }

    /// Of this site. Cores begin with them where they are [attached](Self::attach).
    ///
    /// # Errors
    /// Why there are none.
    pub fn start(configs: &[config::Function], engine: &Engine) -> Result<Functions, String> {
        let mut functions = Functions { configs: configs.to_vec(), ..Functions::none() };
        if configs.is_empty() {
            return Ok(functions);
        }
        let (mut specs, mut states) = (Vec::new(), Vec::new());
        for config in configs {
            let (spec, kind) = prepare(config).map_err(|error| format!("function '{}': {error}", config.name))?;
            specs.push(spec);
            states.push(State { kind, lost: 0, counts: BTreeMap::new() });
        }
        let (plan, inbox) = engine.functions(specs).map_err(|error| error.to_string())?;
        *lock(&functions.states) = states;
        let (states, ending) = (Arc::clone(&functions.states), Arc::clone(&functions.ending));
        let thread = std::thread::Builder::new().name("functions".to_owned()).spawn(move || {
            while !ending.load(Relaxed) {
                wait(&inbox);
                take(&inbox, &states);
            }
            // The cores have ended: this is the rest.
            take(&inbox, &states);
        });
        functions.thread = Some(thread.map_err(|error| error.to_string())?);
        functions.plan = Some(plan);
        Ok(functions)
    }

    /// The frames of a port of the network with this VNI pass these functions from now on.
    ///
    /// # Errors
    /// A function is not there: its interface is not to be served without it.
    pub fn attach(&self, engine: &Engine, port: PortId, vni: u32, names: &[String]) -> Result<(), String> {
        let number = |name: &String| {
            let known = self.configs.iter().position(|config| config.name == *name);
            known.ok_or_else(|| format!("there is no function '{name}' in the running node"))
        };
        let numbers: Vec<usize> = names.iter().map(number).collect::<Result<_, _>>()?;
        if let Some(plan) = &self.plan {
            let states = lock(&self.states);
            for state in numbers.iter().filter_map(|number| states.get(*number)) {
                if let Kind::Firewall(rules) = &state.kind {
                    rules.attach(port.0);
                }
            }
            engine.attach_functions(plan, port, vni, &numbers);
        }
        Ok(())
    }

    /// The port is no more: who gets its number next begins with nothing.
    pub fn detach(&self, port: PortId) {
        for state in lock(&self.states).iter() {
            if let Kind::Firewall(rules) = &state.kind {
                rules.detach(port.0);
            }
        }
    }

    /// For `status`; `users` tells the devices that have a function.
    pub fn statuses(&self, users: impl Fn(&str) -> Vec<String>) -> Vec<FunctionStatus> {
        let states = lock(&self.states);
        let status = |(config, state): (&config::Function, &State)| state.status(config, users(&config.name));
        self.configs.iter().zip(states.iter()).map(status).collect()
    }

    /// Exports what there is. The cores have ended.
    pub fn finish(&mut self) {
        self.ending.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // One that panicked has ended the process.
            let _ = thread.join();
        }
    }
}

fn lock(states: &Mutex<Vec<State>>) -> MutexGuard<'_, Vec<State>> {
    // Whole after every step.
    states.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a core has said something.
fn wait(inbox: &FunctionBox) {
    if inbox.prepare_wait() {
        // EINTR is a wake-up like any other.
        let _ = poll(&mut [PollFd::from_borrowed_fd(inbox.bell(), PollFlags::IN)], Some(&PAUSE));
        inbox.waited();
    }
}

/// Takes what cores have said.
fn take(inbox: &FunctionBox, states: &Mutex<Vec<State>>) {
    while let Some(report) = inbox.take() {
        if let Some(state) = lock(states).get_mut(report.function) {
            state.lost = inbox.lost(report.function);
            report.outputs.into_iter().for_each(|output| state.take(report.core, output));
        }
    }
}

/// What cores do for a function, and what is kept of it here.
fn prepare(config: &config::Function) -> Result<(FunctionSpec, Kind), String> {
    Ok(match &config.kind {
        FunctionKind::Monitor(monitor) => {
            let spec = MonitorSpec {
                active: monitor.active_timeout.nanos(),
                idle: monitor.idle_timeout.nanos(),
                flows: monitor.flows as usize,
            };
            (FunctionSpec::Monitor(spec), Kind::Monitor(Export::new(monitor.collector, monitor.domain)))
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
            (FunctionSpec::Analytics(spec), Kind::Analytics { config: analytics.clone(), windows: Windows::new() })
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
            let rules = Arc::new(Rules::build(&spec).map_err(|error| error.to_string())?);
            (FunctionSpec::Firewall(Arc::clone(&rules)), Kind::Firewall(rules))
        }
    })
}

impl State {
    fn take(&mut self, core: CoreIndex, output: Output) {
        match (output, &mut self.kind) {
            (Output::Counts(counts), _) => drop(self.counts.insert(core, counts)),
            (Output::Flows(records), Kind::Monitor(export)) => export.send(&records),
            (Output::Window(report), Kind::Analytics { config, windows }) => {
                windows.entry(report.window).or_default().push(report);
                if let Some(whole) = whole(windows, config.window.nanos(), clock::now()) {
                    *windows = windows.split_off(&whole);
                }
            }
            (Output::Flows(_) | Output::Window(_), _) => {}
        }
    }

    fn status(&self, config: &config::Function, devices: Vec<String>) -> FunctionStatus {
        let mut status = FunctionStatus {
            name: config.name.clone(),
            tenant: config.tenant.clone(),
            kind: config.kind.name().to_owned(),
            devices,
            lost: self.lost,
            ..FunctionStatus::default()
        };
        match &self.kind {
            Kind::Monitor(export) => status.monitor = Some(self.monitor(export)),
            Kind::Analytics { config, windows } => status.analytics = Some(self.analytics(config, windows)),
            Kind::Firewall(rules) => {
                let texts = match &config.kind {
                    FunctionKind::Firewall(settings) => settings.rules.iter().map(describe).collect(),
                    FunctionKind::Monitor(_) | FunctionKind::Analytics(_) => Vec::new(),
                };
                status.firewall = Some(self.firewall(rules, texts));
            }
        }
        status
    }

    fn monitor(&self, export: &Export) -> MonitorStatus {
        let mut status = MonitorStatus {
            collector: export.collector.to_string(),
            exported: export.exported,
            messages: export.messages,
            dropped: export.dropped,
            error: export.error.clone(),
            ..MonitorStatus::default()
        };
        for counts in self.counts.values() {
            if let Counts::Monitor(core) = counts {
                status.flows += core.flows;
                status.packets += core.packets;
                status.bytes += core.octets;
                status.others += core.others;
                status.records += core.records;
                status.early += core.early;
            }
        }
        status
    }

    fn analytics(&self, config: &config::AnalyticsSettings, windows: &Windows) -> AnalyticsStatus {
        let last = whole(windows, config.window.nanos(), clock::now());
        let last = last.and_then(|number| Some((number, windows.get(&number)?)));
        let mut status = AnalyticsStatus {
            filter: config.filter.clone(),
            rank: match config.rank {
                config::Rank::Bytes => "bytes".to_owned(),
                config::Rank::Packets => "packets".to_owned(),
            },
            window_s: config.window.0.as_secs_f64(),
            last: last.map(|(number, reports)| window_status(config, number, reports)),
            ..AnalyticsStatus::default()
        };
        for counts in self.counts.values() {
            if let Counts::Analytics(core) = counts {
                status.packets += core.packets;
                status.bytes += core.octets;
                status.matched += core.matched;
                status.matched_bytes += core.matched_octets;
            }
        }
        status
    }

    fn firewall(&self, rules: &Rules, texts: Vec<String>) -> FirewallStatus {
        let mut status = FirewallStatus { connections: rules.connections() as u64, ..FirewallStatus::default() };
        status.rules = texts.into_iter().map(|rule| RuleStatus { rule, ..RuleStatus::default() }).collect();
        let add = |to: &mut RuleStatus, tally: &Tally| {
            to.packets += tally.packets;
            to.bytes += tally.octets;
        };
        for counts in self.counts.values() {
            if let Counts::Firewall(core) = counts {
                status.rules.iter_mut().zip(&core.rules).for_each(|(rule, tally)| add(rule, tally));
                add(&mut status.default, &core.default);
                add(&mut status.established, &core.established);
                add(&mut status.refused, &core.refused);
                add(&mut status.dropped, &core.dropped);
            }
        }
        status
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

/// The last of the windows of so many nanoseconds of which every core has said what it saw, at `now`.
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

impl Export {
    fn new(collector: SocketAddr, domain: Option<u32>) -> Export {
        Export {
            collector,
            exporter: Exporter::new(domain),
            socket: None,
            exported: 0,
            messages: 0,
            dropped: 0,
            error: None,
        }
    }

    /// Sends records. What the kernel does not take at once is dropped, and counted: the collector sees it by the sequence.
    fn send(&mut self, records: &[FlowRecord]) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Instant { clock: clock::now(), unix_ms: unix.as_millis() as u64 };
        for message in self.exporter.encode(now, records) {
            match self.send_message(&message.bytes) {
                Ok(()) => {
                    self.exported += u64::from(message.records);
                    self.messages += 1;
                }
                Err(error) => {
                    self.exporter.was_lost(&message);
                    self.dropped += u64::from(message.records);
                    self.error = Some(error.to_string());
                }
            }
        }
    }

    fn send_message(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => {
                let any: SocketAddr = if self.collector.is_ipv4() {
                    (Ipv4Addr::UNSPECIFIED, 0).into()
                } else {
                    (Ipv6Addr::UNSPECIFIED, 0).into()
                };
                let socket = UdpSocket::bind(any)?;
                socket.set_nonblocking(true)?;
                socket
            }
        };
        let sent = socket.send_to(bytes, self.collector);
        self.socket = Some(socket);
        sent.map(drop)
    }
}
