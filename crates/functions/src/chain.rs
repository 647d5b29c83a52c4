//! The kinds of functions, and what comes out of them.

use std::sync::Arc;

use softdpu_vpc::Packet;

use crate::Observation;
use crate::analytics::{Analytics, AnalyticsCounts, AnalyticsSpec, WindowReport};
use crate::firewall::{Firewall, FirewallCounts, Rules};
use crate::monitor::{FlowRecord, Monitor, MonitorCounts, MonitorSpec};

/// What a function is to do.
#[derive(Clone, Debug)]
pub enum FunctionSpec {
    /// Flow records.
    Monitor(MonitorSpec),
    /// The keys with the most.
    Analytics(AnalyticsSpec),
    /// What may pass. All cores share its connections.
    Firewall(Arc<Rules>),
}

/// A function on a core.
#[derive(Debug)]
pub enum Function {
    /// Flow records.
    Monitor(Box<Monitor>),
    /// The keys with the most.
    Analytics(Box<Analytics>),
    /// What may pass.
    Firewall(Box<Firewall>),
}

/// What a function counts on a core, since it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Of a monitor.
    Monitor(MonitorCounts),
    /// Of an analysis.
    Analytics(AnalyticsCounts),
    /// Of a firewall.
    Firewall(FirewallCounts),
}

/// What a function has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Flows that are over, or have gone on for long enough.
    Flows(Vec<FlowRecord>),
    /// A window that is over.
    Window(WindowReport),
    /// What it has counted so far.
    Counts(Counts),
}

impl Output {
    /// Records and entries in it, by which a bounded box counts it.
    pub fn size(&self) -> usize {
        match self {
            Output::Flows(records) => records.len(),
            Output::Window(report) => 1 + report.summaries.iter().map(|(items, _)| items.len()).sum::<usize>(),
            Output::Counts(_) => 1,
        }
    }
}

impl Function {
    /// A core's instance.
    pub fn new(spec: &FunctionSpec) -> Function {
        match spec {
            FunctionSpec::Monitor(spec) => Function::Monitor(Box::new(Monitor::new(spec.clone()))),
            FunctionSpec::Analytics(spec) => Function::Analytics(Box::new(Analytics::new(spec.clone()))),
            FunctionSpec::Firewall(rules) => Function::Firewall(Box::new(Firewall::new(Arc::clone(rules)))),
        }
    }

    /// Decides which of the frames may go on, at this `place` of the chain. A frame and what is seen of it have the
    /// same place in `packets` and `observations`.
    #[inline]
    pub fn judge(&mut self, now: u64, packets: &[Packet], observations: &mut [Observation], place: usize) {
        match self {
            Function::Monitor(_) | Function::Analytics(_) => {}
            Function::Firewall(firewall) => firewall.judge(now, packets, observations, place),
        }
    }

    /// The frames are done with: they are counted.
    #[inline]
    pub fn note(&mut self, now: u64, observations: &[Observation], place: usize) {
        match self {
            Function::Monitor(monitor) => monitor.note(now, observations, place),
            Function::Analytics(analytics) => analytics.note(now, observations, place),
            Function::Firewall(firewall) => firewall.note(observations, place),
        }
    }

    /// Whether so much waits to be taken that it is time for a [turn](Self::turn).
    pub fn is_full(&self) -> bool {
        match self {
            Function::Monitor(monitor) => monitor.is_full(),
            Function::Analytics(_) | Function::Firewall(_) => false,
        }
    }

    /// Does what is due at `now`, and appends what there is to say to `out`, but for counts. To be called every second
    /// or more often.
    pub fn turn(&mut self, now: u64, out: &mut Vec<Output>) {
        match self {
            Function::Monitor(monitor) => {
                monitor.turn(now);
                take_flows(monitor, out);
            }
            Function::Analytics(analytics) => {
                analytics.turn(now);
                out.extend(analytics.take().into_iter().map(Output::Window));
            }
            Function::Firewall(firewall) => firewall.turn(now),
        }
    }

    /// When a [turn](Self::turn) is due even if no frame comes, nanoseconds; None: whenever.
    pub fn due(&self) -> Option<u64> {
        match self {
            Function::Monitor(monitor) => monitor.due(),
            Function::Analytics(analytics) => analytics.due(),
            // Room that is found again a second later is found soon enough.
            Function::Firewall(_) => None,
        }
    }

    /// Appends what is not said yet to `out`: it ends.
    pub fn finish(&mut self, out: &mut Vec<Output>) {
        if let Function::Monitor(monitor) = self {
            monitor.flush();
            take_flows(monitor, out);
        }
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        match self {
            Function::Monitor(monitor) => Counts::Monitor(monitor.counts()),
            Function::Analytics(analytics) => Counts::Analytics(analytics.counts()),
            Function::Firewall(firewall) => Counts::Firewall(firewall.counts().clone()),
        }
    }
}

fn take_flows(monitor: &mut Monitor, out: &mut Vec<Output>) {
    let records = monitor.take();
    if !records.is_empty() {
        out.push(Output::Flows(records));
    }
}
