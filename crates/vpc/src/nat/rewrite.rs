//! Addresses and ports of a packet in place, with all checksums over them brought up to date (RFC 1624), and those of
//! the packet that an ICMP error quotes (RFC 5508 §4.2).

use std::net::IpAddr;

use crate::packet::parse::{ETHERNET, IPV4, IPV6, protocol};
use crate::packet::{Checksum, Ip, checksum};

/// What a packet's addresses and ports become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rewrite {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Of TCP and UDP: both ports. Of an echo: the identifier, twice. None: they stay, or there are none.
    pub ports: Option<[u16; 2]>,
}

/// Where a packet has what is changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Where its IP header begins.
    header: usize,
    /// Where its transport header begins.
    transport: usize,
    protocol: u8,
    is_ipv6: bool,
    /// The transport header is there: it is no later fragment.
    has_transport: bool,
}

/// Bytes of an ICMP header, behind which errors have the packet they are about.
const ICMP: usize = 8;
/// Where an echo has its identifier.
const ECHO_ID: usize = 4;

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

fn set(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    Some(())
}

impl Layout {
    /// Of a packet with these headers.
    pub fn of(ip: &Ip) -> Layout {
        Layout {
            header: ip.header.into(),
            transport: ip.transport.into(),
            protocol: ip.protocol,
            is_ipv6: ip.is_ipv6(),
            has_transport: ip.fragment.is_none_or(|part| part.offset == 0),
        }
    }

    /// Of a frame such as flows are made of.
    pub fn plain(frame: &[u8], is_ipv6: bool) -> Option<Layout> {
        let (len, next) = if is_ipv6 { (IPV6, 6) } else { (IPV4, 9) };
        let protocol = *frame.get(ETHERNET + next)?;
        Some(Layout { header: ETHERNET, transport: ETHERNET + len, protocol, is_ipv6, has_transport: true })
    }

    /// Of the packet that an ICMP error at `transport` is about.
    fn quoted(&self, frame: &[u8]) -> Option<Layout> {
        let header = self.transport + ICMP;
        let first = *frame.get(header)?;
        let (len, next) = if self.is_ipv6 { (IPV6, 6) } else { (usize::from(first & 15) * 4, 9) };
        let protocol = *frame.get(header + next)?;
        (len >= IPV4).then_some(Layout { header, transport: header + len, protocol, has_transport: true, ..*self })
    }

    /// Where the transport's checksum is, and whether the addresses are in it.
    fn transport_checksum(&self) -> Option<(usize, bool)> {
        let (at, has_addresses) = match self.protocol {
            protocol::TCP => (16, true),
            protocol::UDP => (6, true),
            protocol::ICMP if !self.is_ipv6 => (2, false),
            protocol::ICMPV6 if self.is_ipv6 => (2, true),
            _ => return None,
        };
        self.has_transport.then_some((self.transport + at, has_addresses))
    }

    fn addresses(&self) -> std::ops::Range<usize> {
        if self.is_ipv6 { self.header + 8..self.header + 40 } else { self.header + 12..self.header + 20 }
    }

    /// The ports, or the identifier.
    fn ports(&self) -> std::ops::Range<usize> {
        match self.protocol {
            protocol::TCP | protocol::UDP => self.transport..self.transport + 4,
            _ => self.transport + ECHO_ID..self.transport + ECHO_ID + 2,
        }
    }
}

impl Rewrite {
    /// Both addresses as they stand in a header.
    fn octets(&self) -> ([u8; 32], usize) {
        let mut all = [0; 32];
        match (self.source, self.destination) {
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                all[..16].copy_from_slice(&source.octets());
                all[16..].copy_from_slice(&destination.octets());
                (all, 32)
            }
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                all[..4].copy_from_slice(&source.octets());
                all[4..8].copy_from_slice(&destination.octets());
                (all, 8)
            }
            _ => (all, 0),
        }
    }

    /// Changes a frame of which the first bytes, all headers among them, are in `frame`. `sum` says what is left to do
    /// of its checksum. None, and it is not to be sent, where a header goes on behind them.
    pub fn apply(&self, frame: &mut [u8], layout: &Layout, sum: Checksum) -> Option<()> {
        let is_partial = matches!(sum, Checksum::Partial { start, .. } if usize::from(start) == layout.transport);
        let (new, len) = self.octets();
        let new = &new[..len];
        let old: [u8; 32] = {
            let mut old = [0; 32];
            old.get_mut(..len)?.copy_from_slice(frame.get(layout.addresses()).filter(|old| old.len() == len)?);
            old
        };
        let old = &old[..len];
        let mut both = [0; 4];
        let (ports, old_ports) = match self.ports.filter(|_| layout.has_transport) {
            None => (0..0, [0; 4]),
            Some([first, second]) => {
                let range = layout.ports();
                both[..2].copy_from_slice(&first.to_be_bytes());
                both[2..].copy_from_slice(&second.to_be_bytes());
                let mut old = [0; 4];
                old[..range.len()].copy_from_slice(frame.get(range.clone())?);
                (range, old)
            }
        };
        let new_ports = &both[..ports.len()];
        if let Some((at, has_addresses)) = layout.transport_checksum()
            && let Some(before) = word(frame, at)
            && !(layout.protocol == protocol::UDP && before == 0 && !is_partial)
        {
            // Of a partial one the field holds the pseudo header's sum, which ports are not in.
            let after = match (has_addresses, is_partial) {
                (true, true) => checksum::update_partial(before, old, new),
                (true, false) => checksum::update_bytes(before, old, new),
                (false, _) => before,
            };
            let after = match is_partial {
                true => after,
                false => checksum::update_bytes(after, &old_ports[..ports.len()], new_ports),
            };
            // 0 would be none.
            let is_none = layout.protocol == protocol::UDP && after == 0 && !is_partial;
            set(frame, at, if is_none { 0xffff } else { after })?;
        }
        if !layout.is_ipv6 {
            let at = layout.header + 10;
            let after = checksum::update_bytes(word(frame, at)?, old, new);
            set(frame, at, after)?;
        }
        frame.get_mut(layout.addresses())?.copy_from_slice(new);
        frame.get_mut(ports)?.copy_from_slice(new_ports);
        Some(())
    }

    /// Changes the packet that an ICMP error, which `frame` begins with, is about, and the error's checksum with it.
    pub fn apply_quoted(&self, frame: &mut [u8], error: &Layout) -> Option<()> {
        let layout = error.quoted(frame)?;
        // Up to the end of the longest transport header without options.
        let end = (layout.transport + 20).min(frame.len());
        let mut old = [0; 60 + 20];
        let covered = layout.header..end;
        let old = old.get_mut(..covered.len())?;
        old.copy_from_slice(frame.get(covered.clone())?);
        self.apply(frame, &layout, Checksum::Complete)?;
        let at = error.transport + 2;
        let after = checksum::update_bytes(word(frame, at)?, old, frame.get(covered)?);
        set(frame, at, after)
    }
}
