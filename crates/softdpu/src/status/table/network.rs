//! Networks, their ports, and what was dropped.

use std::collections::BTreeMap;

use super::{elapsed, layout, short, size};
use softdpu_api::status::{LookupBy, NatStatus, NetworkStatus, NodeStatus, PortCounts, RoutesOf};

/// What the underlay is called where a port's name is wanted.
pub(in crate::status) const UNDERLAY: &str = "(underlay)";

/// The networks, a line each.
pub fn network_table(networks: &[NetworkStatus]) -> String {
    let rows = networks.iter().map(|network| {
        vec![
            network.name.clone(),
            network.tenant.clone().unwrap_or_else(|| "-".to_owned()),
            network.vni.to_string(),
            network.mtu.to_string(),
            network.ports.to_string(),
            (u64::from(network.remote_endpoints) + network.loaded_endpoints).to_string(),
            network.subnets.join(" "),
        ]
    });
    layout(&["NETWORK", "TENANT", "VNI>", "MTU>", "HERE>", "ELSEWHERE>", "SUBNETS"], rows.collect())
}

/// Members of ECMP groups, a line each.
pub fn ecmp_table(networks: &[NetworkStatus]) -> String {
    let groups = networks.iter().flat_map(|network| network.ecmp.iter().map(move |group| (network, group)));
    let rows: Vec<_> = groups
        .flat_map(|(network, group)| group.members.iter().map(move |member| (network, group, member)))
        .map(|(network, group, member)| {
            vec![
                network.name.clone(),
                group.name.clone(),
                member.member.clone(),
                member.state.word().to_owned(),
                member.weight.to_string(),
                member.zone.clone().unwrap_or_else(|| "-".to_owned()),
                format!("{}.{} %", member.share_permille / 10, member.share_permille % 10),
                short(member.packets),
                size(member.bytes),
            ]
        })
        .collect();
    let header = ["NETWORK", "ECMP", "MEMBER", "STATE", "WEIGHT>", "ZONE", "SHARE>", "PACKETS>", "BYTES>"];
    layout(&header, rows)
}

/// Exits with translation, a line each.
pub fn nat_table(networks: &[NetworkStatus]) -> String {
    let all = networks.iter().flat_map(|network| network.nat.iter().map(move |exit| (network, exit)));
    let row = |(network, exit): (&NetworkStatus, &NatStatus)| {
        vec![network.name.clone(), exit.exit.clone(), short(exit.translations), short(exit.exhausted)]
    };
    layout(&["NETWORK", "EXIT", "TRANSLATIONS>", "NO PORT>"], all.map(row).collect())
}

/// Routes that are looked up by longest prefix match, and what keeps them from an exact match, a line for each family.
pub fn lookup_table(networks: &[NetworkStatus]) -> String {
    let all = networks.iter().flat_map(|network| network.lookups.iter().map(move |lookup| (network, lookup)));
    let rows = all.filter(|(_, lookup)| lookup.by == LookupBy::Lpm).map(|(network, lookup)| {
        let of = match (lookup.of, &lookup.table) {
            (RoutesOf::Network, _) => "network".to_owned(),
            (RoutesOf::Loaded, _) => "loaded".to_owned(),
            (RoutesOf::RouteTable, table) => format!("table {}", table.as_deref().unwrap_or_default()),
        };
        let because = lookup.because.clone().unwrap_or_default();
        vec![network.name.clone(), of, lookup.family.clone(), "longest prefix".to_owned(), because]
    });
    layout(&["NETWORK", "ROUTES OF", "FAMILY", "LOOKED UP BY", "AS"], rows.collect())
}

/// Name, network, addresses and counts of every port, the underlay's last.
fn each(status: &NodeStatus) -> impl Iterator<Item = (&str, &str, String, &PortCounts)> {
    let devices = status.devices.iter().filter_map(|device| {
        let port = device.port.as_ref()?;
        Some((device.name.as_str(), port.network.as_str(), port.addresses.join(" "), &port.counts))
    });
    devices.chain(status.underlay.as_ref().map(|underlay| (UNDERLAY, "-", "-".to_owned(), &underlay.counts)))
}

/// How frames get to the underlay's interface and from it, while it can be used.
pub(super) fn underlay(status: &NodeStatus) -> String {
    let row = status.underlay.as_ref().and_then(|underlay| {
        let path = underlay.path.as_ref()?;
        Some(vec![
            underlay.interface.clone(),
            path.backend.clone(),
            path.mode.clone().unwrap_or_else(|| "-".to_owned()),
            path.queues.map_or_else(|| "-".to_owned(), |queues| queues.to_string()),
        ])
    });
    layout(&["UNDERLAY", "BACKEND", "MODE", "QUEUES>"], row.into_iter().collect())
}

/// What passed through the ports, a line each.
pub(super) fn ports(status: &NodeStatus) -> String {
    let sum = |drops: &BTreeMap<String, u64>| drops.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
    let rows = each(status).map(|(name, network, addresses, counts)| {
        vec![
            name.to_owned(),
            network.to_owned(),
            addresses,
            short(counts.frames_in),
            size(counts.bytes_in),
            short(counts.frames_out),
            size(counts.bytes_out),
            short(sum(&counts.dropped_in)),
            short(sum(&counts.dropped_out)),
        ]
    });
    let header = ["PORT", "NETWORK", "ADDRESS", "IN>", "BYTES>", "OUT>", "BYTES>", "DROP IN>", "DROP OUT>"];
    layout(&header, rows.collect())
}

/// Why frames were dropped, a line for each port and reason.
pub(super) fn drops(status: &NodeStatus) -> String {
    let rows = each(status).flat_map(|(name, _, _, counts)| {
        let one = move |direction: &'static str| {
            move |(reason, count): (&String, &u64)| {
                vec![name.to_owned(), direction.to_owned(), reason.clone(), short(*count)]
            }
        };
        counts.dropped_in.iter().map(one("in")).chain(counts.dropped_out.iter().map(one("out")))
    });
    layout(&["DROPPED AT", "WAY", "REASON", "FRAMES>"], rows.collect())
}

/// Packet traces, a line each.
pub(super) fn traces(status: &NodeStatus) -> String {
    let rows = status.traces.iter().map(|trace| {
        vec![
            trace.id.to_string(),
            if trace.ports.is_empty() { "all".to_owned() } else { trace.ports.join(" ") },
            trace.filter.clone().unwrap_or_else(|| "-".to_owned()),
            short(trace.captured),
            short(trace.lost),
            elapsed(trace.for_s),
        ]
    });
    layout(&["TRACE>", "PORTS", "FILTER", "CAPTURED>", "LOST>", "FOR>"], rows.collect())
}
