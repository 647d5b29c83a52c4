//! Networks and ports, for `status`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use softdpu_engine::{Counter, PortCounters};
use softdpu_vpc::policy::ecmp::BUCKETS;
use softdpu_vpc::spec::MemberVia;
use softdpu_vpc::tables::Conflict;
use softdpu_vpc::{DropReason, tables};

use crate::networks::{Attached, Networks};
use crate::underlay::PacketIo;
use crate::underlay::bfd::SessionStatus;
use softdpu_api::status::{
    BfdStatus, EcmpMemberStatus, EcmpStatus, LookupBy, MemberState, NatStatus, NetworkStatus, PortCounts, PortStatus,
    RouteLookup, RoutesOf, UnderlayAbsence, UnderlayPath, UnderlayStatus,
};
use softdpu_site as config;

pub(super) fn statuses(networks: &Networks) -> Vec<NetworkStatus> {
    let sessions = networks.bfd_status();
    let status = |network: &config::Network| {
        let mtu = networks.mtu(&network.name).unwrap_or_default();
        let entries = networks.entries(&network.name);
        let names_it = |peer: &str| networks.iter().any(|it| it.name == *peer && it.peers.contains(&network.name));
        let peers = |both| network.peers.iter().filter(|peer| names_it(peer) == both).cloned().collect();
        NetworkStatus {
            loaded_endpoints: entries.endpoints,
            loaded_routes: entries.routes,
            lookups: lookups(networks, &network.name),
            ecmp: groups(networks, network, &sessions),
            nat: exits(networks, &network.name),
            peers: peers(true),
            pending_peers: peers(false),
            ..NetworkStatus::new(network, mtu, networks.ports_of(&network.name))
        }
    };
    networks.iter().map(status).collect()
}

/// The exits of a network that translate.
fn exits(networks: &Networks, network: &str) -> Vec<NatStatus> {
    let of = |exit: tables::Exit<'_>| {
        let tables::Exit { address, translations, exhausted, .. } = exit;
        NatStatus { exit: address.to_string(), translations, exhausted }
    };
    let all = networks.tables().map(|tables| tables.exits().filter(|exit| exit.network == network).map(of).collect());
    all.unwrap_or_default()
}

/// How a network's routes in force are looked up.
fn lookups(networks: &Networks, network: &str) -> Vec<RouteLookup> {
    let status = |lookup: tables::LookupMethod<'_>| {
        let (of, table) = match lookup.of {
            tables::RoutesOf::Network => (RoutesOf::Network, None),
            tables::RoutesOf::Loaded => (RoutesOf::Loaded, None),
            tables::RoutesOf::Table(name) => (RoutesOf::RouteTable, Some(name.to_owned())),
        };
        let conflict = lookup.exact.err();
        RouteLookup {
            of,
            table,
            family: if lookup.is_ipv6 { "ipv6" } else { "ipv4" }.to_owned(),
            by: if conflict.is_some() { LookupBy::Lpm } else { LookupBy::Exact },
            because: conflict.map(|conflict| conflict.to_string()),
            overlapping: conflict.and_then(|conflict| match conflict {
                Conflict::Nested { wide, narrow } => Some([wide, narrow].map(|prefix| prefix.to_string())),
                Conflict::Lengths(_) | Conflict::Added => None,
            }),
        }
    };
    networks.tables().map(|tables| tables.lookups(network).into_iter().map(status).collect()).unwrap_or_default()
}

/// The ECMP groups of a network as the cores take them.
fn groups(
    networks: &Networks,
    network: &config::Network,
    sessions: &BTreeMap<IpAddr, SessionStatus>,
) -> Vec<EcmpStatus> {
    let group = |(name, members): (String, Vec<tables::MemberStatus>)| {
        let configured = network.ecmp.iter().find(|group| group.name == name);
        let member = |member: tables::MemberStatus| {
            let (MemberVia::Endpoint(address) | MemberVia::Host(address)) = member.via;
            let session = match member.via {
                MemberVia::Host(host) if configured.is_some_and(|group| group.bfd) => sessions.get(&host),
                MemberVia::Host(_) | MemberVia::Endpoint(_) => None,
            };
            let is_set_down =
                configured.is_none_or(|group| group.members.iter().any(|of| of.via() == address && of.down));
            EcmpMemberStatus {
                member: address.to_string(),
                weight: member.weight,
                zone: member.zone,
                state: match (member.is_up, member.is_resolved) {
                    (false, _) if is_set_down => MemberState::Down,
                    (false, _) => MemberState::BfdDown,
                    (true, false) => MemberState::Unresolved,
                    (true, true) => MemberState::Up,
                },
                bfd: session.map(session_status),
                share_permille: (member.buckets * 1000 / BUCKETS) as u32,
                packets: member.packets,
                bytes: member.bytes,
            }
        };
        EcmpStatus { name, members: members.into_iter().map(member).collect() }
    };
    networks.ecmp_groups(&network.name).into_iter().map(group).collect()
}

fn session_status(session: &SessionStatus) -> BfdStatus {
    BfdStatus {
        state: session.state.as_str().to_owned(),
        diagnostic: session.diagnostic.to_string(),
        multihop: session.multihop,
    }
}

pub(super) fn underlay(networks: &Networks) -> Option<UnderlayStatus> {
    let underlay = networks.underlay()?;
    let now = Instant::now();
    let absence = underlay.absence().map(|absence| UnderlayAbsence {
        reason: absence.reason.clone(),
        for_s: now.saturating_duration_since(absence.since).as_secs(),
        attempts: absence.attempts,
        next_in_s: absence.next.saturating_duration_since(now).as_secs(),
    });
    Some(UnderlayStatus {
        interface: underlay.interface().to_owned(),
        path: underlay.packet_io().map(|packet_io| match packet_io {
            PacketIo::AfPacket => UnderlayPath { backend: "af-packet".to_owned(), ..UnderlayPath::default() },
            PacketIo::AfXdp { queues, zero_copy } => UnderlayPath {
                backend: "af-xdp".to_owned(),
                mode: Some(if zero_copy { "zero-copy" } else { "copy" }.to_owned()),
                queues: Some(queues),
            },
        }),
        absence,
        counts: sum(&underlay.counters),
    })
}

pub(super) fn port(port: &Attached, networks: &Networks) -> PortStatus {
    let settings = &port.settings;
    PortStatus {
        network: settings.network.clone(),
        addresses: settings.addresses.iter().map(ToString::to_string).collect(),
        mac: settings.mac.to_string(),
        mtu: settings.mtu.or_else(|| networks.mtu(&settings.network)).unwrap_or_default(),
        counts: sum(&port.counters),
    }
}

fn sum(cores: &[Arc<PortCounters>]) -> PortCounts {
    let of = |pick: fn(&PortCounters) -> &Counter| cores.iter().map(|core| pick(core).get()).sum();
    PortCounts {
        frames_in: of(|c| &c.frames_in),
        bytes_in: of(|c| &c.bytes_in),
        frames_out: of(|c| &c.frames_out),
        bytes_out: of(|c| &c.bytes_out),
        software: of(|c| &c.software),
        held: of(|c| &c.held),
        copied_bytes: of(|c| &c.copied),
        copied_heads_bytes: of(|c| &c.copied_heads),
        copied_again_bytes: of(|c| &c.copied_again),
        dropped_in: drops(cores, |c| &c.dropped_in),
        dropped_out: drops(cores, |c| &c.dropped_out),
    }
}

/// Drops by reason, those that happened.
fn drops(cores: &[Arc<PortCounters>], pick: impl Fn(&PortCounters) -> &[Counter]) -> BTreeMap<String, u64> {
    let count = |reason: &DropReason| cores.iter().map(|core| pick(core)[*reason as usize].get()).sum::<u64>();
    let all = DropReason::ALL.iter().map(|reason| (reason.word().to_owned(), count(reason)));
    all.filter(|(_, count)| *count > 0).collect()
}
