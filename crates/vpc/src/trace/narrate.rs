//! The trace steps of a packet: what the tiers found, in words. Only of packets that are traced.

use std::sync::Arc;

use softdpu_sched::Colour;

use super::describe::Ends;
use super::path::{Names, Outcome, Step, Table, Tier, Version};
use super::{Description, Subject};
use crate::flow::Seen;
use crate::id::{EcmpId, EndpointId, HopId};
use crate::nat::{Crossing, Rewrite, Way};
use crate::packet::{Ip, Layer4, Packet, Parsed, parse};
use crate::policy::acl::{Action, Decision};
use crate::policy::connections::{Note, Passage};
use crate::policy::group::{Admission, RuleDirection};
use crate::policy::meter::{Colours, NodeMeter};
use crate::software::policy::PolicyStep;
use crate::stamp::{SOURCES, Stamp};
use crate::switch::{Ask, Frame, Metadata, RouteWalk, Stop, walk};
use crate::tables::{Attachment, EcmpChoice, Egress, Hop, Tables, Target};
use crate::verdict::{DropReason, Reply, Verdict};

/// Where a TCP header has its options.
const TCP_OPTIONS: usize = 20;

/// What a stamp is of, in words.
fn object(tables: &Tables, stamp: Stamp) -> String {
    tables.stamp_name(stamp).unwrap_or_else(|| format!("object {}, which is no more", stamp.number()))
}

/// A next hop in words.
fn next_hop(tables: &Tables, hop: HopId) -> String {
    // What was loaded by file has no stamps of its own.
    match tables.hop(hop) {
        Some(Hop { egress: Egress::Tunnel(tunnel), network, .. }) if hop.is_loaded() => {
            let host = tables.tunnel(tunnel).map_or_else(|| "?".to_owned(), |tunnel| tunnel.host.to_string());
            format!("loaded entry of {} on {host}", tables.network_name(network))
        }
        _ => object(tables, tables.hop_stamp(hop)),
    }
}

/// What a stop of a packet comes to.
fn stopped(stop: &Stop) -> (Outcome, String) {
    match stop {
        Stop::Drop(reason) => (Outcome::Drop, reason.word().to_owned()),
        Stop::Ask(ask) => (Outcome::Ask, asked(*ask)),
    }
}

fn asked(ask: Ask) -> String {
    match ask {
        Ask::Arp => "an ARP request".to_owned(),
        Ask::Announce => "it says where it is: so is everybody told who learns that".to_owned(),
        Ask::Neighbor => "a neighbour solicitation".to_owned(),
        Ask::Router => "a router solicitation".to_owned(),
        Ask::Dhcp4 => "DHCP".to_owned(),
        Ask::Dhcp6 => "DHCPv6".to_owned(),
        Ask::Echo => "an echo to the gateway".to_owned(),
        Ask::NoPort => "nothing listens at the gateway's port".to_owned(),
        Ask::NoRoute => "no route: the sender is told".to_owned(),
        Ask::HopLimit => "the hop limit is used up: the sender is told".to_owned(),
        Ask::PathMtu(mtu) => format!("longer than the {mtu} bytes of the path: the sender is told"),
        Ask::Fragment(mtu) => format!("longer than the {mtu} bytes of the path: it goes on in fragments"),
    }
}

/// The frame at ingress.
pub(crate) fn ingress(tables: &Tables, packet: &Packet, names: Names<'_>) -> Step {
    let subject = Subject::at(tables, packet.port, packet.head.bytes(), packet.len());
    let found = format!("{} bytes, {}", packet.len(), Description(subject));
    Step::new(Tier::Before, Table::Frame, Outcome::Pass, names(packet.port), found)
}

/// The look-up in the flow tier that found nothing, or for which there was nothing to look up.
pub(crate) fn no_flow(tables: &Tables, packet: &Packet, seen: Option<&Seen>, names: Names<'_>) -> Step {
    match seen {
        Some(_) => Step::new(Tier::Flow, Table::Flows, Outcome::Miss, flow_key(tables, packet, names), ""),
        None => Step::new(Tier::Flow, Table::Flows, Outcome::Pass, "", "not of a shape that flows are made of"),
    }
}

/// The port, the source MAC address, or of what came by a tunnel the VNI, and the 5-tuple.
fn flow_key(tables: &Tables, packet: &Packet, names: Names<'_>) -> String {
    let Subject { packet: parsed, outer, vni, .. } =
        Subject::at(tables, packet.port, packet.head.bytes(), packet.len());
    let Some((parsed, ip)) = parsed.as_ref().and_then(|parsed| Some((parsed, parsed.ip()?))) else {
        return names(packet.port);
    };
    let (from, to) = ip.ports().unwrap_or_default();
    let (source, destination) = (ip.source, ip.destination);
    let sender = match (outer, vni) {
        (Some(_), Some(vni)) => format!("VNI {vni}"),
        _ => parsed.source.to_string(),
    };
    format!("{} {sender} {source}.{from} > {destination}.{to} {}", names(packet.port), ip.protocol)
}

/// A flow that was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownFlow {
    pub sources: [Stamp; SOURCES],
    pub hop: HopId,
    pub is_stale: bool,
    /// It was compared with tables that are new to it.
    pub is_compared: bool,
}

/// The look-up in the flow tier that found a flow.
pub(crate) fn flow(tables: &Tables, packet: &Packet, known: &KnownFlow, names: Names<'_>) -> Step {
    let KnownFlow { sources, hop, is_stale, is_compared } = known;
    let (outcome, found) = match (is_stale, is_compared) {
        (true, _) => (Outcome::Stale, "computed from what has changed".to_owned()),
        (false, true) => {
            (Outcome::Hit, format!("next hop {hop}; compared with new tables: nothing that it uses changed"))
        }
        (false, false) => (Outcome::Hit, format!("next hop {hop}")),
    };
    let step = Step::new(Tier::Flow, Table::Flows, outcome, flow_key(tables, packet, names), found);
    step.with(versions(tables, sources))
}

fn versions(tables: &Tables, sources: &[Stamp; SOURCES]) -> Vec<Version> {
    let mut all: Vec<Stamp> = sources.iter().copied().filter(|stamp| *stamp != Stamp::default()).collect();
    all.dedup();
    let version = |stamp: Stamp| Version {
        object: object(tables, stamp),
        stored: stamp.version(),
        current: tables.current(stamp).version(),
    };
    all.into_iter().map(version).collect()
}

/// A flow that was found does not decide this packet.
pub(crate) fn not_by_flow() -> Step {
    let found = "this packet needs a decision of its own";
    Step::new(Tier::Flow, Table::Flows, Outcome::Pass, "", found)
}

/// What came in was classified, or not.
pub(crate) fn classified(
    tables: &Tables,
    packet: &Packet,
    result: Result<(&Frame, &Metadata), &Stop>,
    names: Names<'_>,
) -> Vec<Step> {
    let at_port = match tables.attachment(packet.port) {
        Attachment::Nothing => (Outcome::Miss, "nothing is there".to_owned()),
        Attachment::Underlay => (Outcome::Hit, "the underlay".to_owned()),
        Attachment::Endpoint(id) => (Outcome::Hit, object(tables, tables.stamp(id))),
    };
    let mut steps = vec![Step::new(Tier::Before, Table::Ports, at_port.0, names(packet.port), at_port.1)];
    let is_tunnel = matches!(tables.attachment(packet.port), Attachment::Underlay);
    let step = match result {
        Err(stop) => {
            let (outcome, found) = stopped(stop);
            let table = if is_tunnel { Table::Tunnels } else { Table::Sources };
            Step::new(Tier::Before, table, outcome, "", found)
        }
        Ok((frame, metadata)) => match metadata.tunnel() {
            Some(tunnel) => {
                let subject = Subject::at(tables, packet.port, packet.head.bytes(), packet.len());
                let host = tables.tunnel(tunnel).map(|tunnel| tunnel.host.to_string()).unwrap_or_default();
                let key = format!("VNI {} from {host}", subject.vni.unwrap_or_default());
                let found = format!("network {}, tunnel {tunnel}", tables.network_name(metadata.network));
                Step::new(Tier::Before, Table::Tunnels, Outcome::Hit, key, found)
            }
            None => {
                let source = frame.parsed.ip().map(|ip| ip.source.to_string()).unwrap_or_default();
                let key = format!("{source} {}", frame.parsed.source);
                let found = format!("network {}, routing {}", tables.network_name(metadata.network), metadata.network);
                Step::new(Tier::Before, Table::Sources, Outcome::Pass, key, found)
            }
        },
    };
    steps.push(step);
    steps
}

/// Where it goes was found, or not.
pub(crate) fn found(tables: &Tables, frame: &Frame, metadata: &Metadata, result: Result<&(), &Stop>) -> Vec<Step> {
    let Some(ip) = frame.parsed.ip() else { return Vec::new() };
    let key = format!("{} in {}", ip.destination, tables.network_name(metadata.network));
    let exact = tables.resolve(metadata.network, ip.destination);
    let owner = |hop: Option<HopId>| match hop {
        Some(hop) => format!("{}, next hop {hop}", next_hop(tables, hop)),
        None => "the gateway".to_owned(),
    };
    let mut steps = vec![match exact {
        Some(found) => Step::new(Tier::Before, Table::Addresses, Outcome::Hit, key.clone(), owner(found.hop())),
        None => Step::new(Tier::Before, Table::Addresses, Outcome::Miss, key.clone(), ""),
    }];
    if exact.is_none() {
        steps.extend(routed(tables, frame, metadata, key, owner));
    }
    if let Err(stop) = result {
        let (outcome, found) = stopped(stop);
        steps.push(Step::new(Tier::Before, Table::Addresses, outcome, "", found));
    }
    steps
}

/// The steps of a destination that is looked up among routes. `owner` tells what a next hop is.
fn routed(
    tables: &Tables,
    frame: &Frame,
    metadata: &Metadata,
    key: String,
    owner: impl Fn(Option<HopId>) -> String,
) -> Vec<Step> {
    let Some(ip) = frame.parsed.ip() else { return Vec::new() };
    let RouteWalk { lookup, target, choice } = walk(tables, metadata.network, metadata.hash, ip);
    let mut steps = Vec::new();
    if let Some(table) = lookup.table.and_then(|table| tables.route_table(table)) {
        let (outcome, found) = if lookup.is_policy_route {
            (Outcome::Hit, format!("route table {}", table.name))
        } else {
            (Outcome::Miss, format!("route table {} has no route: the network's decide", table.name))
        };
        let source = format!("{} in {}", ip.source, tables.network_name(metadata.network));
        steps.push(Step::new(Tier::Before, Table::PolicyRoutes, outcome, source, found));
    }
    let route = |outcome, found| Step::new(Tier::Before, Table::Routes, outcome, key.clone(), found);
    match target {
        None => steps.push(route(Outcome::Miss, String::new())),
        Some(Target::Connected) => steps.push(route(Outcome::Miss, "a subnet, where nobody has it".to_owned())),
        Some(Target::Blackhole) => steps.push(route(Outcome::Miss, "not known how it is reached".to_owned())),
        Some(Target::Hop(hop)) => steps.push(route(Outcome::Hit, owner(Some(hop)))),
        Some(Target::Ecmp(group)) => {
            let name = tables.ecmp_group(group).map_or("?", |group| &group.name);
            steps.push(route(Outcome::Hit, format!("ECMP group {name}")));
            steps.extend(choice.map(|(_, choice)| chosen(tables, group, name, choice)));
        }
        Some(Target::Peer(peer)) => {
            let name = tables.network_name(peer);
            steps.push(route(Outcome::Hit, format!("peer {name}")));
            let key = format!("{} in {name}", ip.destination);
            steps.push(match tables.resolve(peer, ip.destination).and_then(|entry| entry.hop()) {
                Some(hop) => Step::new(Tier::Before, Table::Peerings, Outcome::Hit, key, owner(Some(hop))),
                None => Step::new(Tier::Before, Table::Peerings, Outcome::Miss, key, "nobody has it"),
            });
        }
    }
    steps
}

fn chosen(tables: &Tables, group: EcmpId, name: &str, choice: EcmpChoice) -> Step {
    let members = tables.ecmp_group(group).map(|group| group.members()).unwrap_or_default();
    let key = format!("{name}, bucket {}", choice.bucket);
    match choice.member.and_then(|(at, hop)| Some((members.get(at)?, hop))) {
        Some((member, hop)) => {
            let zone = member.zone.as_deref().map(|zone| format!(", zone {zone}")).unwrap_or_default();
            let found = format!("{}, weight {}{zone}, next hop {hop}", member.via, member.weight);
            Step::new(Tier::Before, Table::Ecmp, Outcome::Hit, key, found)
        }
        None => Step::new(Tier::Before, Table::Ecmp, Outcome::Miss, key, "no member may have it"),
    }
}

/// What policies found on the way to an answer.
pub(crate) fn policy(tables: &Tables, found: &PolicyStep) -> Step {
    match *found {
        PolicyStep::Acl { endpoint, decision } => acl(tables, endpoint, decision),
        PolicyStep::Connection(Note::Group { of, direction, admission }) => group(tables, of, direction, admission),
        PolicyStep::Connection(Note::Tracked { is_reply, is_admitted }) => {
            let direction = if is_reply { "a reply" } else { "of the side that opened it" };
            let rules = if is_admitted { "" } else { "; the rules have changed since it began" };
            let found = format!("{direction}{rules}");
            Step::new(Tier::Software, Table::Connections, Outcome::Hit, "", found)
        }
        PolicyStep::Connection(Note::New) => {
            let found = "the first packet of a connection";
            Step::new(Tier::Software, Table::Connections, Outcome::Miss, "", found)
        }
        PolicyStep::Connection(Note::Untracked { is_related }) => {
            let found = if is_related { "an error about a known connection" } else { "of no connection" };
            let outcome = if is_related { Outcome::Hit } else { Outcome::Miss };
            Step::new(Tier::Software, Table::Connections, outcome, "", found)
        }
    }
}

fn acl(tables: &Tables, id: EndpointId, Decision { action, rule }: Decision) -> Step {
    let name = tables.endpoint(id).and_then(|endpoint| endpoint.acl.as_deref()).unwrap_or("?");
    let key = format!("{name} of {}", object(tables, tables.stamp(id)));
    let (outcome, verb) = match action {
        Action::Allow => (Outcome::Pass, "allows"),
        Action::Deny => (Outcome::Drop, "denies"),
    };
    let found = match rule {
        Some(rule) => format!("rule {} {verb} it", rule + 1),
        None => format!("no rule matches: the default {verb} it"),
    };
    Step::new(Tier::Software, Table::Acls, outcome, key, found)
}

fn group(tables: &Tables, of: Stamp, direction: RuleDirection, admission: Admission) -> Step {
    let endpoint = of.object().and_then(|object| tables.endpoint_with(object));
    let groups = endpoint.map(|(_, endpoint)| &endpoint.groups[..]).unwrap_or_default();
    let name = |group: u32| {
        let id = groups.get(group as usize).copied();
        id.and_then(|id| tables.group_name(id)).unwrap_or("?").to_owned()
    };
    let (outcome, found) = match admission {
        Admission::Rule { group, rule } => {
            (Outcome::Pass, format!("group {}, {direction} rule {} allows it", name(group), rule + 1))
        }
        Admission::Unrestricted => (Outcome::Pass, format!("no group restricts {direction}")),
        Admission::Denied => {
            let all: Vec<String> = (0..groups.len() as u32).map(name).collect();
            (Outcome::Drop, format!("no {direction} rule of {} allows it", all.join(", ")))
        }
    };
    Step::new(Tier::Software, Table::SecurityGroups, outcome, object(tables, of), found)
}

/// What the software tier answered.
pub(crate) fn asked_policies(result: Result<&Passage, &DropReason>) -> Option<Step> {
    match result {
        Ok(_) => None,
        Err(reason) => Some(Step::new(Tier::Software, Table::Connections, Outcome::Drop, "", reason.word())),
    }
}

/// The next hop, and whether the packet can go there.
pub(crate) fn hop(tables: &Tables, id: Option<HopId>, result: Result<(), &Stop>, names: Names<'_>) -> Vec<Step> {
    let found = id.and_then(|id| tables.hop(id)).map(|hop| {
        let egress = match hop.egress {
            Egress::Port(port) => names(port),
            Egress::Tunnel(tunnel) => match tables.tunnel(tunnel) {
                Some(tunnel) if tunnel.resolved => format!("VXLAN {} to {}", hop.vni, tunnel.host),
                Some(tunnel) => format!("VXLAN {} to {}, whose MAC address is not known", hop.vni, tunnel.host),
                None => "no tunnel".to_owned(),
            },
        };
        format!("{egress}, {}, MTU {}", hop.mac, hop.mtu)
    });
    let outcome = if found.is_some() { Outcome::Hit } else { Outcome::Miss };
    let mut steps = vec![Step::new(Tier::After, Table::Hops, outcome, number(id), found.unwrap_or_default())];
    if let Err(stop) = result {
        let (outcome, found) = stopped(stop);
        steps.push(Step::new(Tier::After, Table::Hops, outcome, "", found));
    }
    steps
}

/// A next hop's number.
fn number(hop: Option<HopId>) -> String {
    hop.map(|hop| hop.to_string()).unwrap_or_default()
}

/// A flow was kept, or could not be.
pub(crate) fn kept(tables: &Tables, metadata: &Metadata, is_kept: bool) -> Step {
    let hop = number(metadata.hop);
    let (outcome, found) = match (is_kept, metadata.connection) {
        (true, None) => (Outcome::Kept, format!("next hop {hop}")),
        (true, Some(_)) => (Outcome::Kept, format!("next hop {hop}, as long as its connection lives")),
        (false, _) => (Outcome::Miss, "the table is full".to_owned()),
    };
    Step::new(Tier::Flow, Table::Flows, outcome, "", found).with(versions(tables, &metadata.sources))
}

/// The colours that the meters of `endpoint` gave a packet, one after the other. It is dropped if it is red behind the
/// last.
pub(crate) fn metered(tables: &Tables, endpoint: Option<EndpointId>, colours: &Colours) -> Vec<Step> {
    let ids = endpoint.map_or_else(Default::default, |endpoint| tables.meters_of(endpoint));
    let meters: Vec<&Arc<NodeMeter>> = ids.iter().filter_map(|id| tables.meters().get(id)).collect();
    let is_last = |at| at + 1 == meters.len();
    let step = |(at, (meter, colour)): (usize, (&&Arc<NodeMeter>, &Colour))| {
        let (outcome, found) = match colour {
            Colour::Green => (Outcome::Pass, "green".to_owned()),
            Colour::Yellow => (Outcome::Pass, "yellow".to_owned()),
            Colour::Red if is_last(at) => (Outcome::Drop, format!("red: {}", DropReason::Metered.word())),
            Colour::Red => (Outcome::Pass, "red".to_owned()),
        };
        Step::new(Tier::Flow, Table::Meters, outcome, meter.spec.name.as_str(), found)
    };
    meters.iter().zip(colours).enumerate().map(step).collect()
}

/// The software tier is asked too often.
pub(crate) fn limited(packet: &Packet, names: Names<'_>) -> Step {
    let reason = DropReason::RateLimited.word();
    Step::new(Tier::Software, Table::Limits, Outcome::Drop, names(packet.port), reason)
}

/// The packet leaves: what it was is in `before`.
pub(crate) fn leaves(before: &Packet, frame_outer: usize, after: &Packet, verdict: &Verdict, names: Names<'_>) -> Step {
    let (to, overhead) = match *verdict {
        Verdict::Local { port, .. } => (names(port), 0),
        Verdict::Underlay { port, overhead, .. } => (names(port), usize::from(overhead)),
        Verdict::Software => {
            return Step::new(Tier::Software, Table::Services, Outcome::Ask, "", "");
        }
        Verdict::Consumed => return Step::new(Tier::Software, Table::Services, Outcome::Done, "", ""),
        Verdict::Drop(reason) => {
            return Step::new(Tier::After, Table::Packet, Outcome::Drop, "", reason.word());
        }
    };
    let mut changes = Vec::new();
    if frame_outer > 0 {
        changes.push("outer headers off".to_owned());
    }
    let inner = |packet: &Packet, outer: usize| {
        let bytes = packet.head.bytes().get(outer..).unwrap_or_default().to_vec();
        let parsed = parse(&bytes, packet.len().saturating_sub(outer)).ok();
        (bytes, parsed)
    };
    let ((old, was), (new, is)) = (inner(before, frame_outer), inner(after, overhead));
    if let (Some(was), Some(is)) = (was, is) {
        rewritten(&was, &is, &mut changes);
        let options = |bytes: &[u8], parsed: &Parsed| {
            let of = |ip: &Ip| match ip.layer4 {
                Layer4::Tcp { header, .. } => {
                    Some(usize::from(ip.transport)..usize::from(ip.transport) + usize::from(header))
                }
                _ => None,
            };
            let header = bytes.get(parsed.ip().and_then(of)?)?;
            header.get(TCP_OPTIONS..).map(<[u8]>::to_vec)
        };
        if options(&old, &was) != options(&new, &is) {
            changes.push("TCP MSS clamped".to_owned());
        }
    }
    if overhead > 0 {
        let subject = Subject::on_wire(after.head.bytes(), after.len(), 0);
        let outer =
            subject.packet.as_ref().and_then(Parsed::ip).map(|ip| format!("{} > {}", ip.source, ip.destination));
        changes.push(format!("VXLAN headers {}", outer.unwrap_or_default()));
    }
    Step::new(Tier::After, Table::Packet, Outcome::Done, format!("to {to}"), changes.join(", "))
}

/// What becomes of the ends of a packet that crosses an exit.
pub(crate) fn translated(tables: &Tables, crossing: Crossing, result: Result<&Rewrite, &DropReason>) -> Step {
    let way = match crossing.way {
        Way::Inward => "inward",
        Way::Outward => "outward",
        Way::Hairpin => "from inside to inside",
    };
    let exit = tables.nat(crossing.nat).map(|nat| format!("exit {} of {}, {way}", nat.exit, nat.network));
    let (outcome, found) = match result {
        Ok(Rewrite { source, destination, ports }) => {
            (Outcome::Pass, Ends(*source, *destination, ports.map(|[from, to]| (from, to))).to_string())
        }
        Err(reason) => (Outcome::Drop, reason.word().to_owned()),
    };
    Step::new(Tier::Software, Table::Translations, outcome, exit.unwrap_or_default(), found)
}

fn rewritten(was: &Parsed, is: &Parsed, changes: &mut Vec<String>) {
    if (was.source, was.destination) != (is.source, is.destination) {
        changes.push(format!("Ethernet {} > {}", is.source, is.destination));
    }
    if let (Some(was), Some(is)) = (was.ip(), is.ip()) {
        let ends = |ip: &Ip| Ends(ip.source, ip.destination, ip.ports()).to_string();
        if ends(was) != ends(is) {
            changes.push(format!("{} to {}", ends(was), ends(is)));
        }
        if was.hop_limit != is.hop_limit {
            changes.push(format!("hop limit {} to {}", was.hop_limit, is.hop_limit));
        }
        if was.traffic_class != is.traffic_class {
            changes.push(format!("ECN {} to {}", was.traffic_class & 3, is.traffic_class & 3));
        }
    }
}

/// What the software tier did with a whole frame: `verdict`, and what it sends.
pub fn served(tables: &Tables, verdict: &Verdict, replies: &[Reply], names: Names<'_>) -> Vec<Step> {
    let answer = |reply: &Reply| {
        let subject = Subject::at(tables, reply.port, &reply.frame, reply.frame.len());
        let found = format!("{} bytes, {}", reply.frame.len(), Description(subject));
        Step::new(Tier::Software, Table::Services, Outcome::Done, format!("to {}", names(reply.port)), found)
    };
    let mut steps: Vec<Step> = replies.iter().map(answer).collect();
    match verdict {
        Verdict::Drop(reason) => {
            steps.push(Step::new(Tier::Software, Table::Services, Outcome::Drop, "", reason.word()));
        }
        _ if steps.is_empty() => {
            steps.push(Step::new(Tier::Software, Table::Services, Outcome::Done, "", "nobody is answered"));
        }
        _ => {}
    }
    steps
}
