//! Outer headers: VXLAN over UDP over IPv4 or IPv6 (RFC 7348 §5), ECN across them (RFC 6040).

use std::net::{IpAddr, Ipv4Addr};

use crate::id::{NetworkId, TunnelId, Vni};
use crate::packet::checksum::Sum;
use crate::packet::parse::{ETHERNET, ETHERTYPE_IPV4, IPV4, IPV6, UDP, protocol};
use crate::packet::vxlan::{OVERHEAD_V6, VALID_VNI, VXLAN, vni};
use crate::packet::{Checksum, Layer4, Packet, parse};
use crate::spec::UnderlaySpec;
use crate::tables::{Tables, Tunnel};
use crate::verdict::DropReason;

/// First of the source ports: the dynamic ports (RFC 7348 §5, RFC 6335 §6).
const FIRST_PORT: u16 = 49_152;
/// ECN: congestion experienced; capable, either way (RFC 3168 §5).
const CE: u8 = 3;
const ECT_1: u8 = 1;
const NOT_ECT: u8 = 0;
/// IPv4: more fragments, and the fragment's offset.
const FRAGMENT: u16 = 0x3fff;

/// What the outer headers of a frame say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outer {
    pub network: NetworkId,
    pub tunnel: TunnelId,
    /// Bytes of them.
    pub len: u16,
    /// Bytes of the inner frame.
    pub inner: usize,
    pub ecn: u8,
    /// What is left to do of the inner frame's checksum. A peer on this machine (a kernel's VXLAN device behind a veth
    /// pair) leaves inner segments whole as well: the packet's segmentation is then that of the inner frame, and
    /// checked with it.
    pub checksum: Checksum,
}

/// Parses and verifies the outer headers of a frame from the underlay. Whatever is not from a node that has something
/// of the network, to this node's tunnel end point, is not a tunnel's. The outer UDP checksum is left to the engine,
/// which received it.
#[inline]
pub(crate) fn outer(tables: &Tables, underlay: &UnderlaySpec, packet: &Packet) -> Result<Outer, DropReason> {
    let bytes = packet.head.bytes();
    let parsed = parse(bytes, packet.len())?;
    let ip = parsed.ip().ok_or(DropReason::UnknownTunnel)?;
    let is_ours = parsed.destination == underlay.mac
        && parsed.vlan.is_none()
        && ip.fragment.is_none()
        && matches!(ip.layer4, Layer4::Udp { destination, .. } if destination == underlay.udp_port)
        && underlay.addresses.contains(&ip.destination);
    if !is_ours {
        return Err(DropReason::UnknownTunnel);
    }
    let vxlan_at = usize::from(ip.transport) + UDP;
    let len = vxlan_at + VXLAN;
    let inner = (ip.end as usize).checked_sub(len).ok_or(DropReason::Truncated)?;
    let vxlan: [u8; VXLAN] =
        bytes.get(vxlan_at..len).and_then(|bytes| bytes.try_into().ok()).ok_or(DropReason::Headers)?;
    if vxlan[0] & VALID_VNI == 0 {
        return Err(DropReason::Malformed);
    }
    let (network, tunnel) = belongs(tables, vni(&vxlan), ip.source)?;
    let checksum = inner_checksum(packet, len);
    Ok(Outer { network, tunnel, len: len as u16, inner, ecn: ip.traffic_class & 3, checksum })
}

/// The network with a VNI, and the tunnel to the node with the end point `source`, which has something of it.
#[inline]
fn belongs(tables: &Tables, vni: Vni, source: IpAddr) -> Result<(NetworkId, TunnelId), DropReason> {
    let network = tables.network_of(vni).ok_or(DropReason::UnknownNetwork)?;
    let unknown = || match tables.network(network) {
        Some(network) if network.loads_members => DropReason::Unresolved,
        _ => DropReason::UnknownTunnel,
    };
    let tunnel = tables.member(network, source).ok_or_else(unknown)?;
    Ok((network, tunnel))
}

/// What is left to do of the checksum of a frame behind `len` bytes of outer headers, which end with those of UDP and
/// VXLAN.
#[inline(always)]
fn inner_checksum(packet: &Packet, len: usize) -> Checksum {
    match packet.checksum {
        // Of the inner frame: its sender is on this node's own kernel.
        Checksum::Partial { start, offset } if usize::from(start) >= len => {
            Checksum::Partial { start: start - len as u16, offset }
        }
        // The outer checksum covers the inner frame, if there is one.
        Checksum::Valid => {
            let sum_at = len - VXLAN - 2;
            let summed = packet.head.bytes().get(sum_at..sum_at + 2).is_some_and(|sum| sum != [0, 0]);
            if summed { Checksum::Valid } else { Checksum::Complete }
        }
        Checksum::Partial { .. } | Checksum::Complete => Checksum::Complete,
    }
}

/// Where the last frame of a batch belonged: many come from one node, of one network.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Last {
    /// VNI and source.
    key: (Vni, u32),
    /// Network and tunnel; None: there was no such frame.
    found: Option<(NetworkId, TunnelId)>,
}

/// As [`outer`], and quicker, for headers over IPv4 without options.
#[inline(always)]
pub(crate) fn outer_plain(tables: &Tables, underlay: &UnderlaySpec, packet: &Packet, last: &mut Last) -> Option<Outer> {
    const LEN: usize = ETHERNET + IPV4 + UDP + VXLAN;
    let head: &[u8; LEN] = packet.head.bytes().first_chunk()?;
    let (ethernet, rest) = head.split_first_chunk::<ETHERNET>()?;
    let (ip, rest) = rest.split_first_chunk::<IPV4>()?;
    let (udp, rest) = rest.split_first_chunk::<UDP>()?;
    let vxlan: &[u8; VXLAN] = rest.first_chunk()?;
    let word = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    let is_plain = ethernet[..6] == underlay.mac.0
        && word(ethernet[12], ethernet[13]) == ETHERTYPE_IPV4
        && ip[0] == 0x45
        && word(ip[6], ip[7]) & FRAGMENT == 0
        && ip[9] == protocol::UDP
        && word(udp[2], udp[3]) == underlay.udp_port
        && vxlan[0] & VALID_VNI != 0;
    let end = ETHERNET + usize::from(word(ip[2], ip[3]));
    let inner = end.checked_sub(LEN)?;
    let datagram = usize::from(word(udp[4], udp[5]));
    if !is_plain || end > packet.len() || datagram < UDP || ETHERNET + IPV4 + datagram > end {
        return None;
    }
    let [_, _, _, _, _, _, _, _, _, _, _, _, a, b, c, d, to @ ..] = *ip;
    let source = Ipv4Addr::new(a, b, c, d);
    let key = (vni(vxlan), source.to_bits());
    let (network, tunnel) = match last.found {
        Some(found) if last.key == key => found,
        _ => {
            let found = belongs(tables, key.0, source.into()).ok()?;
            *last = Last { key, found: Some(found) };
            found
        }
    };
    let is_ours = underlay.addresses.contains(&IpAddr::V4(to.into()));
    let checksum = inner_checksum(packet, LEN);
    is_ours.then_some(Outer { network, tunnel, len: LEN as u16, inner, ecn: ip[1] & 3, checksum })
}

/// The outer headers of a frame, if it came by the underlay and belongs to a tunnel of this node.
#[inline(always)]
pub(crate) fn outer_at_underlay(tables: &Tables, packet: &Packet, last: &mut Last) -> Option<Outer> {
    let underlay = tables.underlay().filter(|underlay| underlay.port == packet.port)?;
    outer_plain(tables, underlay, packet, last).or_else(|| outer(tables, underlay, packet).ok())
}

/// The inner packet's ECN once the outer headers are off (RFC 6040 §4.2, figure 4).
#[inline]
pub(super) fn decapsulated_ecn(inner: u8, outer: u8) -> Result<u8, DropReason> {
    match (inner, outer) {
        (NOT_ECT, CE) => Err(DropReason::Congestion),
        (NOT_ECT, _) => Ok(NOT_ECT),
        (_, CE) => Ok(CE),
        (CE, _) => Ok(CE),
        (_, ECT_1) => Ok(ECT_1),
        (inner, _) => Ok(inner),
    }
}

/// Writes the outer headers of a frame of `inner` bytes to `headers`, as many as the tunnel has. The traffic class is
/// the inner packet's, DSCP and ECN (RFC 6040 §4.1, normal mode). Lengths that do not fit their fields are those of
/// something that will be cut up. The UDP checksum is 0.
#[inline(always)]
pub(crate) fn encapsulate(
    headers: &mut [u8],
    tunnel: &Tunnel,
    vni: Vni,
    hash: u32,
    inner: usize,
    traffic_class: u8,
    id: u16,
) {
    let datagram = (UDP + VXLAN + inner).min(usize::from(u16::MAX) - IPV4) as u16;
    let rest = match tunnel.host {
        IpAddr::V4(_) => {
            let Some((outer, rest)) = headers.split_first_chunk_mut::<{ ETHERNET + IPV4 }>() else { return };
            *outer = tunnel.begin();
            let len = datagram + IPV4 as u16;
            outer[ETHERNET + 1] = traffic_class;
            outer[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&len.to_be_bytes());
            // An identification means something only where the packet can be cut up (RFC 6864 §4).
            let id = if outer[ETHERNET + 6] == 0 { id } else { 0 };
            outer[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&id.to_be_bytes());
            let sum = tunnel.sum().word(traffic_class.into()).word(len).word(id).checksum();
            outer[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
            rest
        }
        IpAddr::V6(_) => {
            let Some((outer, rest)) = headers.split_first_chunk_mut::<{ ETHERNET + IPV6 }>() else { return };
            *outer = tunnel.begin();
            outer[ETHERNET] |= traffic_class >> 4;
            outer[ETHERNET + 1] = traffic_class << 4;
            outer[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&datagram.to_be_bytes());
            rest
        }
    };
    let Some(udp) = rest.first_chunk_mut() else { return };
    *udp = tunnel.end();
    udp[..2].copy_from_slice(&(FIRST_PORT | hash as u16 & !FIRST_PORT).to_be_bytes());
    udp[4..6].copy_from_slice(&datagram.to_be_bytes());
    udp[UDP + 4..UDP + 7].copy_from_slice(&vni.to_bytes());
}

/// Completes the UDP checksum of a whole outer frame over IPv6, which must have one (RFC 8200 §8.1).
pub(crate) fn complete_udp6(frame: &mut [u8]) {
    let udp = ETHERNET + IPV6;
    if frame.len() < OVERHEAD_V6 {
        return;
    }
    let addresses = Sum::ZERO.bytes(&frame[ETHERNET + 8..udp]);
    let pseudo = addresses.bytes(&((frame.len() - udp) as u32).to_be_bytes()).word(u16::from(protocol::UDP));
    let sum = pseudo.bytes(&frame[udp..]).transport_checksum();
    frame[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
}
