//! Frames as they go onto a wire: segmentation and checksums that the sender left for others to do (TSO, USO), in
//! software.
//!
//! ```text
//!   head                                              tail
//!   ├ outer headers ┼ Ethernet IP TCP ┼ payload ───────┼──────────────────────────────┤
//!   └────────── headers ──────────────┘└── size ──┴── size ──┴── size ──┴─ the rest ─┘
//!                       │                             │
//!         each frame:   headers, set anew       +     its piece, copied once, summed where it was copied to
//! ```
//!
//! The sender reserves room for each frame and has it written there: the ring of a socket, a guest's buffer. The
//! same is done for a guest that did not negotiate offloads, without outer headers.
//!
//! A tunnel's UDP checksum is not computed from the payload a second time where the inner one is known: a transport
//! segment sums up to the complement of its pseudo header (Linux `networking/checksum-offloads.rst`, "LCO").

#[cfg(test)]
mod tests;

use thiserror::Error;

use super::checksum::{self, Sum};
use super::parse::{ETHERNET, IPV4, IPV6, UDP, protocol};
use super::{Checksum, Ip, Layer4, Packet, SegmentationKind, Tail, TailError, parse};
use crate::verdict::DropReason;

/// Protocol number of an IPv6 routing header (RFC 8200 §4.4).
const ROUTING: u8 = 43;

/// Least payload of a TCP segment: the smallest segment that Linux sends (`TCP_MIN_SND_MSS`, 48) less the most options
/// (40). A sender that asks for less asks for thousands of frames at the price of one.
pub const MIN_TCP_SIZE: u16 = 8;
/// Most TCP segments that one frame stands for: 64 KiB of those of 64 bytes. The core writes them all before it does
/// anything else.
pub const MAX_TCP_SEGMENTS: usize = 1024;
/// Most datagrams that one frame stands for (Linux `UDP_MAX_SEGMENTS`).
pub const MAX_UDP_SEGMENTS: usize = 128;
/// Most bytes that an IP packet has: its length has 16 bits (RFC 791 §3.1).
const MAX_PACKET: usize = 65_535;

/// TCP flags (RFC 9293 §3.1).
mod flag {
    /// No more data.
    pub const FIN: u8 = 0x01;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// Congestion window reduced (RFC 3168 §6.1.2).
    pub const CWR: u8 = 0x80;
}

/// A frame was not written.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WriteError {
    /// There is no such frame.
    #[error("frame {index} of {segments}")]
    Index {
        /// Which was asked for.
        index: usize,
        /// How many there are.
        segments: usize,
    },
    /// The room is less than the frame's length.
    #[error("a frame of {wanted} bytes does not fit into {room}")]
    NoRoom {
        /// The frame's length.
        wanted: usize,
        /// What there was.
        room: usize,
    },
    /// The tail is shorter than the packet says.
    #[error(transparent)]
    Tail(#[from] TailError),
}

/// One packet, as the frames that leave.
#[derive(Clone, Debug)]
pub struct Segmenter<'a> {
    head: &'a [u8],
    overhead: usize,
    outer: Option<Outer>,
    inner: Inner,
    /// Bytes from the start of the head that every frame begins with.
    headers: usize,
    /// Bytes behind them, in the head and in the tail.
    payload: usize,
    /// Payload bytes in every frame but the last.
    size: usize,
    segments: usize,
}

/// The tunnel's headers: Ethernet, IP without extension headers, UDP, and what follows up to the inner frame.
#[derive(Clone, Copy, Debug)]
struct Outer {
    v6: bool,
    udp: usize,
}

/// What is to be set anew in the inner frame.
#[derive(Clone, Copy, Debug)]
enum Inner {
    /// Nothing but perhaps the checksum.
    Whole { partial: Option<(u16, u16)> },
    /// Lengths, checksums and what differs from segment to segment.
    Segments { layout: Layout, ecn: bool },
}

/// Where the headers of the inner frame lie, from its first byte.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// IPv6, or IPv4.
    v6: bool,
    /// The IP header.
    l3: usize,
    /// The transport header.
    l4: usize,
    /// UDP, or TCP.
    udp: bool,
}

impl<'a> Segmenter<'a> {
    /// The frames that `packet` stands for. The first `overhead` bytes of its head are a tunnel's headers
    /// ([`Verdict::Underlay`](crate::verdict::Verdict::Underlay)); 0 where there is none. `max_len` is the most bytes
    /// that a frame may have, all headers included.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`] where segmentation or checksum do not fit the frame's headers,
    /// [`DropReason::TooLong`] where a frame would have more than `max_len` bytes, [`DropReason::Truncated`] or
    /// [`DropReason::Malformed`] where the headers end before they should or contradict themselves.
    pub fn new(packet: &'a Packet, overhead: usize, max_len: usize) -> Result<Self, DropReason> {
        let head = packet.head.bytes();
        let inner = head.get(overhead..).ok_or(DropReason::Truncated)?;
        let inner_len = packet.len() - overhead;
        let outer = if overhead > 0 { Some(Outer::of(&head[..overhead])?) } else { None };
        let mut segmenter = match packet.segmentation {
            None => {
                let partial = match packet.checksum {
                    Checksum::Partial { start, offset } => {
                        checksum::check_partial(inner, inner_len, start, offset)?;
                        Some((start, offset))
                    }
                    Checksum::Complete | Checksum::Valid => None,
                };
                let (payload, inner) = (packet.len(), Inner::Whole { partial });
                Segmenter { head, overhead, outer, inner, headers: 0, payload, size: payload, segments: 1 }
            }
            Some(segmentation) => {
                let (layout, headers) = cut(inner, inner_len, segmentation.kind, packet.checksum)?;
                let (headers, size) = (overhead + headers, usize::from(segmentation.size));
                let (payload, inner) = (packet.len() - headers, Inner::Segments { layout, ecn: segmentation.ecn });
                let segments = if size == 0 { 0 } else { payload.div_ceil(size).max(1) };
                let bounded = match segmentation.kind {
                    SegmentationKind::TcpV4 | SegmentationKind::TcpV6 => {
                        segmentation.size >= MIN_TCP_SIZE && segments <= MAX_TCP_SEGMENTS
                    }
                    SegmentationKind::Udp => (1..=MAX_UDP_SEGMENTS).contains(&segments),
                };
                if !bounded {
                    return Err(DropReason::BadOffload);
                }
                Segmenter { head, overhead, outer, inner, headers, payload, size, segments }
            }
        };
        segmenter.size = segmenter.size.min(segmenter.payload);
        let longest = segmenter.len(0);
        if longest > max_len || outer.is_some() && longest - ETHERNET > MAX_PACKET {
            return Err(DropReason::TooLong);
        }
        Ok(segmenter)
    }

    /// How many frames there are; at least 1.
    #[inline]
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Bytes of frame `index`, outer headers included: the same for all but the last. 0 where there is no such frame.
    #[inline]
    pub fn len(&self, index: usize) -> usize {
        if index < self.segments { self.headers + self.piece(index) } else { 0 }
    }

    /// Whether there is nothing to send: never.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.segments == 0
    }

    /// Payload bytes of an existing frame.
    #[inline]
    fn piece(&self, index: usize) -> usize {
        self.size.min(self.payload - index * self.size)
    }

    /// Writes frame `index` to the first [`len(index)`](Self::len) bytes of `out`, complete in every respect. Any frame
    /// can be written at any time, more than once.
    ///
    /// # Errors
    /// [`WriteError`]; what is in `out` is then of no use.
    pub fn write<T: Tail + ?Sized>(&self, index: usize, tail: &T, out: &mut [u8]) -> Result<(), WriteError> {
        if index >= self.segments {
            return Err(WriteError::Index { index, segments: self.segments });
        }
        let (wanted, room) = (self.len(index), out.len());
        let frame = out.get_mut(..wanted).ok_or(WriteError::NoRoom { wanted, room })?;
        let (headers, piece) = frame.split_at_mut(self.headers);
        headers.copy_from_slice(&self.head[..self.headers]);
        self.copy(index * self.size, piece, tail)?;
        let summed = self.inner.finish(index, self, &mut frame[self.overhead..]);
        if let Some(outer) = self.outer {
            outer.finish(index, frame, summed.map(|(at, sum)| (self.overhead + at, sum)));
        }
        Ok(())
    }

    /// Copies payload from `offset`: what of it is in the head from there, the rest from the tail.
    #[inline]
    fn copy<T: Tail + ?Sized>(&self, offset: usize, to: &mut [u8], tail: &T) -> Result<(), TailError> {
        let near = &self.head[self.headers..];
        let from_near = near.len().saturating_sub(offset).min(to.len());
        let (first, rest) = to.split_at_mut(from_near);
        if from_near > 0 {
            first.copy_from_slice(&near[offset..offset + from_near]);
        }
        if rest.is_empty() { Ok(()) } else { tail.read(offset + from_near - near.len(), rest) }
    }
}

/// Where the headers of a frame that is to be cut up lie, and how many bytes they have.
fn cut(head: &[u8], len: usize, kind: SegmentationKind, checksum: Checksum) -> Result<(Layout, usize), DropReason> {
    let parsed = parse(head, len)?;
    let ip = parsed.ip().ok_or(DropReason::BadOffload)?;
    let (transport, field) = match (kind, ip.layer4) {
        (SegmentationKind::TcpV4, Layer4::Tcp { header, .. }) if !ip.is_ipv6() => (usize::from(header), 16),
        (SegmentationKind::TcpV6, Layer4::Tcp { header, .. }) if ip.is_ipv6() => (usize::from(header), 16),
        (SegmentationKind::Udp, Layer4::Udp { .. }) => (UDP, 6),
        _ => return Err(DropReason::BadOffload),
    };
    let own = match checksum {
        Checksum::Partial { start, offset } => start == ip.transport && offset == field,
        Checksum::Complete | Checksum::Valid => true,
    };
    if !own || ip.fragment.is_some() || ip.end as usize != len || has_routing(ip, head) {
        return Err(DropReason::BadOffload);
    }
    let layout = Layout {
        v6: ip.is_ipv6(),
        l3: usize::from(ip.header),
        l4: usize::from(ip.transport),
        udp: ip.protocol == protocol::UDP,
    };
    let headers = layout.l4 + transport;
    if headers > head.len() { Err(DropReason::Headers) } else { Ok((layout, headers)) }
}

/// Whether there is a routing header (RFC 8200 §4.4): the checksum is then that of an address which is not in the IP
/// header (§8.1). The extension headers are inside the head: it was parsed.
fn has_routing(ip: &Ip, head: &[u8]) -> bool {
    let (mut at, end) = (usize::from(ip.header) + IPV6, usize::from(ip.transport));
    let mut next = if ip.is_ipv6() { head[at - IPV6 + 6] } else { ip.protocol };
    while at < end && next != ROUTING && ip.is_ipv6() {
        next = head[at];
        at += (usize::from(head[at + 1]) + 1) * 8;
    }
    at < end && next == ROUTING
}

impl Inner {
    /// Sets headers and checksum of the inner `frame` number `index`. Where a sum over the frame's end is known
    /// afterwards, returns where it begins and what it is.
    fn finish(&self, index: usize, all: &Segmenter<'_>, frame: &mut [u8]) -> Option<(usize, Sum)> {
        match *self {
            Inner::Whole { partial: None } => None,
            Inner::Whole { partial: Some((start, offset)) } => {
                checksum::complete(frame, start, offset).ok().map(|sum| (usize::from(start), sum))
            }
            Inner::Segments { layout, ecn } => {
                let pseudo = ip(index, layout, frame);
                let last = index + 1 == all.segments;
                let transport = &mut frame[layout.l4..];
                let field = if layout.udp {
                    put(transport, 4, transport.len() as u16);
                    6
                } else {
                    tcp(index, index * all.size, last, ecn, transport);
                    16
                };
                put(transport, field, 0);
                let sum = pseudo.bytes(transport);
                put(transport, field, if layout.udp { sum.transport_checksum() } else { sum.checksum() });
                Some((layout.l4, Sum::ZERO.word(!pseudo.fold())))
            }
        }
    }
}

/// Sets length, identification and checksum of an inner IP header; the sum of the pseudo header.
fn ip(index: usize, layout: Layout, frame: &mut [u8]) -> Sum {
    let transport = frame.len() - layout.l4;
    let header = &mut frame[layout.l3..layout.l4];
    let addresses = if layout.v6 {
        put(header, 4, (header.len() - IPV6 + transport) as u16);
        &header[8..40]
    } else {
        ipv4(index, header.len() + transport, header);
        &header[12..20]
    };
    let protocol = if layout.udp { protocol::UDP } else { protocol::TCP };
    Sum::ZERO.bytes(addresses).word(u16::from(protocol)).word(transport as u16)
}

/// Sets what differs from frame to frame in an IPv4 header (RFC 791 §3.1) of a packet of `total` bytes.
fn ipv4(index: usize, total: usize, header: &mut [u8]) {
    let identification = u16::from_be_bytes([header[4], header[5]]).wrapping_add(index as u16);
    put(header, 2, total as u16);
    put(header, 4, identification);
    put(header, 10, 0);
    let sum = checksum::checksum(header);
    put(header, 10, sum);
}

/// Sets what differs from segment to segment in a TCP header.
fn tcp(index: usize, offset: usize, last: bool, ecn: bool, header: &mut [u8]) {
    let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]).wrapping_add(offset as u32);
    header[4..8].copy_from_slice(&sequence.to_be_bytes());
    if !last {
        header[13] &= !(flag::FIN | flag::PSH);
    }
    if ecn && index > 0 {
        header[13] &= !flag::CWR;
    }
}

impl Outer {
    /// The tunnel's headers. Their lengths are those of the frame before it was cut up, and not looked at.
    fn of(headers: &[u8]) -> Result<Outer, DropReason> {
        let version = headers.get(ETHERNET).ok_or(DropReason::Truncated)? >> 4;
        let field = |at: usize| headers.get(ETHERNET + at).copied().ok_or(DropReason::Truncated);
        let (v6, header, next) = match version {
            4 => (false, usize::from(field(0)? & 0x0f) * 4, field(9)?),
            6 => (true, IPV6, field(6)?),
            _ => return Err(DropReason::Malformed),
        };
        if header < IPV4 || next != protocol::UDP {
            return Err(DropReason::Malformed);
        }
        let udp = ETHERNET + header;
        if udp + UDP > headers.len() { Err(DropReason::Truncated) } else { Ok(Outer { v6, udp }) }
    }

    /// Sets lengths and checksums of frame number `index`. `summed` is where in the frame a known sum up to its end
    /// begins.
    fn finish(&self, index: usize, frame: &mut [u8], summed: Option<(usize, Sum)>) {
        let len = frame.len() - self.udp;
        let (ip, udp) = frame[ETHERNET..].split_at_mut(self.udp - ETHERNET);
        put(udp, 4, len as u16);
        put(udp, 6, 0);
        match self.v6 {
            // The tunnel needs none (RFC 7348 §5): the inner frame has its own.
            false => ipv4(index, ip.len() + len, ip),
            true => {
                put(ip, 4, len as u16);
                let sum = Sum::ZERO.bytes(&ip[8..40]).word(u16::from(protocol::UDP)).word(len as u16);
                let sum = match summed.map(|(at, sum)| (at - self.udp, sum)) {
                    Some((at, known)) if at % 2 == 0 => sum.bytes(&udp[..at]).plus(known),
                    _ => sum.bytes(udp),
                };
                put(udp, 6, sum.transport_checksum());
            }
        }
    }
}

/// Stores a word in network order.
#[inline]
fn put(header: &mut [u8], at: usize, word: u16) {
    header[at..at + 2].copy_from_slice(&word.to_be_bytes());
}
