//! How cores forward, for `status`.

use softdpu_engine::{Counter, ForwardingCounters};
use softdpu_sched::Nanos;
use softdpu_sys::clock;
use softdpu_vpc::{HeavyFlow, Vni};

use crate::networks::Networks;
use softdpu_api::status::{FlowTableStatus, HeavyFlowStatus, PathCounts, WayCounts};

/// The heavy flows of a second are reported for this long; a core that sleeps has none.
const FRESH: Nanos = Nanos(3_000_000_000);

pub(super) fn paths(counters: &ForwardingCounters) -> PathCounts {
    let ways = |[switch, fast, software]: &[Counter; 3]| WayCounts {
        switch: switch.get(),
        fast: fast.get(),
        software: software.get(),
    };
    let [port, tunnel, transit] = &counters.paths;
    PathCounts { port: ways(port), tunnel: ways(tunnel), transit: ways(transit) }
}

pub(super) fn flows(counters: &ForwardingCounters) -> FlowTableStatus {
    FlowTableStatus {
        known: counters.flows.get(),
        capacity: counters.capacity.get(),
        unkept: counters.unkept.get(),
        revalidated: counters.revalidated.get(),
        recomputed: counters.recomputed.get(),
        policy: counters.policy.get(),
    }
}

pub(super) fn heavy(counters: &ForwardingCounters, networks: &Networks) -> Vec<HeavyFlowStatus> {
    let (ended, flows) = counters.heavy();
    if clock::now().saturating_sub(ended.0) > FRESH.0 {
        return Vec::new();
    }
    let named = |vni: Vni| networks.iter().find(|network| network.vni == vni).map(|network| network.name.as_str());
    let status = |flow: &HeavyFlow| {
        let [from, to] = flow.ports;
        HeavyFlowStatus {
            device: networks.port_name(flow.port).unwrap_or_default().to_owned(),
            network: flow.vni.and_then(named).unwrap_or_default().to_owned(),
            vni: flow.vni.map(Vni::get),
            protocol: match flow.protocol {
                6 => "tcp".to_owned(),
                17 => "udp".to_owned(),
                other => other.to_string(),
            },
            source: std::net::SocketAddr::new(flow.source, from).to_string(),
            destination: std::net::SocketAddr::new(flow.destination, to).to_string(),
            packets_per_s: flow.packets,
            bytes_per_s: flow.bytes,
            share: flow.share,
            elephant: flow.is_elephant,
        }
    };
    flows.iter().map(status).collect()
}
