//! What Algorithm 2 does as it is printed: it returns at the first exhausted tenant and begins again with the first, so
//! a first tenant that floods is the only one that is served.

use softdpu_plot::{Lines, Panel};
use softdpu_sched::{Nanos, Placement, Policy, QueueId, TenantId, WorkKind};

use super::run::System;
use super::{Figure, Scope};
use crate::arrivals::Arrivals;
use crate::figure::Margin;
use crate::node::{Node, Plan, QueuePlan, Service, Source, Tally};

/// One core, and four tenants of it: the first sends without end, the others a packet each 100 µs.
fn node(system: System, scope: &Scope) -> Node<softdpu_sched::Scheduler, Tally> {
    let mut plan = Plan { cores: 1, ..Plan::default() };
    for tenant in 0..4_u16 {
        let id = QueueId { tenant: TenantId(tenant), index: tenant.into() };
        let placement = Placement { device: 0, kind: WorkKind::Packets, back_end: None };
        plan.queues.push(QueuePlan { id, core: 0, placement, capacity: 1_024, station: None, deferred: None });
        let arrivals =
            if tenant == 0 { Arrivals::Closed { depth: 256, think: 1 } } else { Arrivals::Poisson(100_000 << 10) };
        plan.sources.push(Source {
            arrivals,
            start: 0,
            bytes: 1_024,
            service: Service { unit: 1_000, byte: 0, spread: 25 },
            queues: vec![tenant.into()],
        });
    }
    // Two processors, each tenant's being one: with more, equation (7) gives no credit at all.
    let credits = softdpu_sched::System { credit: 1_024, cores: 2, accelerators: 0 };
    let policy = match system {
        System::MtdaPrinted => Policy::MtdaPrinted(credits, Vec::new()),
        System::Mtda => Policy::Mtda(credits, Vec::new()),
        System::Weighted => Policy::Weighted(softdpu_sched::Tuning::default()),
        _ => Policy::Fcfs,
    };
    Node::new(plan, |_| policy.build(), Tally::new(4, 0), scope.seed)
}

/// The demonstration.
pub(super) fn starvation(scope: &Scope) -> Figure {
    let title = "Algorithm 2 as printed: one core, a first tenant that floods, three that send a packet each 100 us";
    let mut figure = Figure::new("mtda-starvation", title);
    let span = Nanos(scope.span.max(10_000_000) * 2);
    let mut drawn = Lines::new();
    for system in [System::Dpdk, System::MtdaPrinted, System::Mtda, System::Weighted] {
        let mut node = node(system, scope);
        node.run(span.0);
        for (tenant, tally) in node.watch.tenants.iter().enumerate() {
            let served = tally.latency.count();
            let case = if tenant == 0 { "tenant 1, floods".to_owned() } else { format!("tenant {}", tenant + 1) };
            let percent = served as f64 / tally.arrived.max(1) as f64 * 100.0;
            figure.point(system, case.clone(), "served", "packets", served as f64);
            figure.point(system, case.clone(), "served-of-sent", "%", percent);
            figure.point(system, case, "latency-p99", "us", tally.latency.quantile(0.99) as f64 / 1e3);
            drawn.entry(system.name().to_owned()).or_default().push((tenant as f64 + 1.0, percent));
        }
    }
    figure.panels.push(Panel::new("packets served of those sent", "tenant", drawn, |value| format!("{value:.0} %")));
    let served: Vec<(String, String, f64)> = figure
        .points
        .iter()
        .filter(|point| point.metric == "served" && !point.case.contains("floods"))
        .map(|point| (point.subject.clone(), point.case.clone(), point.value))
        .collect();
    let of = |name: &str, sign: f64, offset: f64| -> Vec<Margin> {
        let own = served.iter().filter(|(subject, ..)| subject == name);
        own.map(|(_, case, value)| Margin { label: case.clone(), unit: "packets", value: value * sign + offset })
            .collect()
    };
    // Fewer than one.
    figure.order("printed: the other three are never served", of("mtda-printed", -1.0, 1.0));
    figure.order("repaired: all are served", of("mtda", 1.0, 0.0));
    figure.order("weighted: all are served", of("weighted", 1.0, 0.0));
    figure
}
