//! What makes a packet one of a flow, read from fixed places of the common shapes: Ethernet without a tag, IPv4 without
//! options or IPv6 without extension headers, not a fragment, TCP that acknowledges and sets nothing up, or UDP.

use std::num::NonZeroU16;

use crate::hash::{MIX, folded_multiply};
use crate::id::{ObjectId, PortId};
use crate::packet::parse::{ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4, IPV6, UDP, protocol};
use crate::packet::{Checksum, Packet};

/// Bytes of a TCP header without options.
const TCP: usize = 20;
/// TCP flag: a SYN's options may have to be changed.
const SYN: u8 = 0x02;
/// TCP flag: all but the first segment have it, and what has it not may be no segment at all.
const ACK: u8 = 0x10;
/// TCP flags that end a connection.
const FIN: u8 = 0x01;
const RST: u8 = 0x04;
/// Where a TCP header has its flags.
const FLAGS: usize = 13;
/// Where transport headers keep their checksum.
const TCP_CHECKSUM: u16 = 16;
const UDP_CHECKSUM: u16 = 6;
/// IPv4: more fragments, and the fragment's offset.
const FRAGMENT: u16 = 0x3fff;

/// Port, source MAC address and 5-tuple; of what came by a tunnel the network instead of the source MAC address, which
/// is not trusted. The destination MAC address is not in it: nothing depends on it but whether it is a group's, and of
/// such packets no flows are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key {
    /// Addresses (of IPv6 the last eight bytes of the destination), ports and port, source MAC address with protocol
    /// and family.
    pub first: [u64; 3],
    /// IPv6: the rest of the addresses.
    pub more: [u64; 3],
}

impl Key {
    /// Its hash, keyed by `seed`: tenants choose what is in keys, so every factor that they choose is hidden by a
    /// secret.
    #[inline(always)]
    pub fn hash(&self, seed: [u64; 2]) -> u64 {
        let [a, b, c] = self.first;
        let mut mixed = folded_multiply(a ^ seed[0], b ^ seed[1]) ^ c;
        // IPv4 has nothing there.
        let [d, e, f] = self.more;
        if self.is_ipv6() {
            mixed ^= folded_multiply(d ^ seed[0].rotate_left(21), e ^ seed[1].rotate_left(42))
                ^ folded_multiply(f ^ seed[1].rotate_left(13), MIX[2]);
        }
        folded_multiply(mixed ^ seed[0], MIX[2] ^ seed[1])
    }

    #[inline(always)]
    pub fn is_ipv6(&self) -> bool {
        self.first[2] & V6 != 0
    }

    /// By which port its packets come.
    #[inline(always)]
    pub fn port(&self) -> PortId {
        PortId((self.first[1] >> 32) as u32)
    }

    fn protocol(&self) -> u8 {
        (self.first[2] >> PROTOCOL) as u8
    }

    /// Of what came by a tunnel: the object that is the routes of its network.
    #[inline(always)]
    pub fn tunnelled(&self) -> Option<ObjectId> {
        (self.first[2] & TUNNEL != 0).then_some(ObjectId::new(self.first[2] as u32))
    }
}

/// Where the protocol is in the third word of a key.
const PROTOCOL: u32 = 48;
/// Set in the third word of an IPv6 key.
const V6: u64 = 1 << 63;
/// Set in the third word of the key of what came by a tunnel.
const TUNNEL: u64 = 1 << 62;

/// A packet that may be in a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub key: Key,
    /// Behind the IP packet's last byte.
    pub end: NonZeroU16,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

impl Seen {
    /// Bytes of its frame without padding.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.end.get().into()
    }
}

#[inline(always)]
fn u16_at<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(half(bytes, at)) | u64::from(half(bytes, at + 4)) << 32
}

#[inline(always)]
fn half<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Source MAC address, and what follows IP.
#[inline(always)]
fn sender<const N: usize>(bytes: &[u8; N], protocol: u8) -> u64 {
    let end = u16::from_le_bytes([bytes[10], bytes[11]]);
    u64::from(half(bytes, 6)) | u64::from(end) << 32 | u64::from(protocol) << PROTOCOL
}

/// Whether a TCP segment behind `outer` bytes of outer headers may end its connection. `seen` is the packet's.
pub(crate) fn may_end(packet: &Packet, seen: &Seen, outer: usize) -> bool {
    let transport = outer + ETHERNET + if seen.key.is_ipv6() { IPV6 } else { IPV4 };
    let is_tcp = seen.key.protocol() == protocol::TCP;
    is_tcp && packet.head.bytes().get(transport + FLAGS).is_none_or(|flags| flags & (FIN | RST) != 0)
}

/// The packet's key, where it is of a shape that flows are made of. Nothing about it is wrong then that
/// [`parse`](crate::packet::parse()) or the check of its offload would have found.
pub(crate) fn see(packet: &Packet) -> Option<Seen> {
    see_ipv4(packet).or_else(|| see_ipv6(packet))
}

/// A frame, or the one in a tunnel's.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a> {
    /// Its first.
    pub head: &'a [u8],
    /// How many it has.
    pub len: usize,
    /// What is left to do of its checksum.
    pub checksum: &'a Checksum,
    /// By which port it came.
    pub port: PortId,
    /// Of a frame from a tunnel: the object that is the routes of its network.
    pub routes: Option<ObjectId>,
}

impl<'a> Bytes<'a> {
    #[inline(always)]
    fn of(packet: &'a Packet) -> Option<Bytes<'a>> {
        let Packet { head, checksum, port, .. } = packet;
        let bytes = Bytes { head: head.bytes(), len: packet.len(), checksum, port: *port, routes: None };
        packet.segmentation.is_none().then_some(bytes)
    }

    /// The first of them, if it may be in a flow, as far as its family does not matter.
    #[inline(always)]
    fn begin<const N: usize>(&self) -> Option<&'a [u8; N]> {
        let first: &[u8; N] = self.head.first_chunk()?;
        (first[0] & 1 == 0).then_some(first)
    }

    /// The source MAC address and the protocol.
    #[inline(always)]
    fn sender<const N: usize>(&self, first: &[u8; N], protocol: u8) -> u64 {
        match self.routes {
            None => sender(first, protocol),
            Some(routes) => u64::from(routes.number()) | u64::from(protocol) << PROTOCOL | TUNNEL,
        }
    }
}

/// As [`see`], for IPv4.
#[inline(always)]
pub(crate) fn see_ipv4(packet: &Packet) -> Option<Seen> {
    ipv4(&Bytes::of(packet)?)
}

/// As [`see`], for IPv6.
#[inline(never)]
pub(crate) fn see_ipv6(packet: &Packet) -> Option<Seen> {
    ipv6(&Bytes::of(packet)?)
}

/// As [`see`], for a frame that is not to be cut up.
#[inline(always)]
pub(crate) fn see_bytes(frame: &Bytes<'_>) -> Option<Seen> {
    ipv4(frame).or_else(|| other(frame))
}

#[inline(never)]
fn other(frame: &Bytes<'_>) -> Option<Seen> {
    ipv6(frame)
}

#[inline(always)]
fn ipv4(frame: &Bytes<'_>) -> Option<Seen> {
    // All fixed places, up to UDP's length.
    const TRANSPORT: usize = ETHERNET + IPV4;
    let first: &[u8; TRANSPORT + UDP] = frame.begin()?;
    // Ethernet's type, and the version and length of an IPv4 header, at once.
    if half(first, 12) & SHAPE != PLAIN_IPV4 || u16_at(first, 20) & FRAGMENT != 0 {
        return None;
    }
    let end = u16_at(first, 16).checked_add(ETHERNET as u16)?;
    if usize::from(end) > frame.len {
        return None;
    }
    transported(frame, TRANSPORT, end.into(), first[23], u16_at(first, 38))?;
    let ports = u64::from(half(first, 34)) | u64::from(frame.port.0) << 32;
    let key = Key { first: [word(first, 26), ports, frame.sender(first, first[23])], more: [0; 3] };
    let (hop_limit, traffic_class) = (first[22], first[15]);
    Some(Seen { key, end: NonZeroU16::new(end)?, hop_limit, traffic_class })
}

#[inline(always)]
fn ipv6(frame: &Bytes<'_>) -> Option<Seen> {
    const TRANSPORT: usize = ETHERNET + IPV6;
    let first: &[u8; TRANSPORT + UDP] = frame.begin()?;
    if u16_at(first, 12) != ETHERTYPE_IPV6 || first[14] >> 4 != 6 {
        return None;
    }
    let end = u16_at(first, 18).checked_add(TRANSPORT as u16)?;
    if usize::from(end) > frame.len {
        return None;
    }
    transported(frame, TRANSPORT, end.into(), first[20], u16_at(first, 58))?;
    let ports = u64::from(half(first, 54)) | u64::from(frame.port.0) << 32;
    let [a, b, c, d] = [22, 30, 38, 46].map(|at| word(first, at));
    let key = Key { first: [d, ports, frame.sender(first, first[20]) | V6], more: [a, b, c] };
    let (hop_limit, traffic_class) = (first[21], first[14] << 4 | first[15] >> 4);
    Some(Seen { key, end: NonZeroU16::new(end)?, hop_limit, traffic_class })
}

/// The first three of four bytes.
const SHAPE: u32 = 0x00ff_ffff;
/// What an IPv4 packet without options has there, from its Ethernet type on.
const PLAIN_IPV4: u32 = (ETHERTYPE_IPV4 as u32).swap_bytes() >> 16 | 0x45 << 16;

/// Whether a whole transport header is there with right lengths, which sets nothing up, and with a checksum that is
/// left to others in no other place than its own.
#[inline(always)]
fn transported(frame: &Bytes<'_>, transport: usize, end: usize, protocol: u8, udp_len: u16) -> Option<()> {
    let field = match protocol {
        protocol::UDP => {
            // A whole header at the least; one comparison for both ends of the range.
            let rest = end.checked_sub(transport + UDP)?;
            (usize::from(udp_len).wrapping_sub(UDP) <= rest).then_some(UDP_CHECKSUM)?
        }
        protocol::TCP => {
            let fixed: &[u8; TCP] = frame.head.get(transport..transport + TCP)?.first_chunk()?;
            let header = usize::from(fixed[12] >> 4) * 4;
            let is_whole = header >= TCP && transport + header <= end;
            (is_whole && fixed[13] & (SYN | ACK) == ACK).then_some(TCP_CHECKSUM)?
        }
        _ => return None,
    };
    match frame.checksum {
        Checksum::Complete | Checksum::Valid => Some(()),
        Checksum::Partial { start, offset } => (usize::from(*start) == transport && *offset == field).then_some(()),
    }
}
