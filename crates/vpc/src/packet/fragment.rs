//! IPv4 packets in pieces that a narrower path takes (RFC 791 §2.3, §3.2), where their sender does not forbid it.
//! Nothing else is ever cut up like this: not IPv6 (RFC 8200 §5), and no tunnel's own packet.

use super::parse::IPV4;
use super::{Ip, checksum};

/// Fragments are counted in units of so many bytes (RFC 791 §3.1, Fragment Offset).
const UNIT: usize = 8;
/// More fragments follow (RFC 791 §3.1).
const MORE: u16 = 0x2000;
/// The bits of the offset.
const OFFSET: u16 = 0x1fff;
/// Where a header has total length, flags and offset, and checksum.
const TOTAL_LENGTH: usize = 2;
const FLAGS: usize = 6;
const CHECKSUM: usize = 10;

/// Options (RFC 791 §3.1): the end of the list, one byte of padding, and the flag of those that go into every fragment.
mod option {
    pub const END: u8 = 0;
    pub const NOP: u8 = 1;
    pub const COPIED: u8 = 0x80;
}

/// The frames that carry an IPv4 packet's fragments, in order. Each has the Ethernet header of the whole frame.
#[derive(Clone, Debug)]
pub struct Fragments<'a> {
    /// Ethernet header.
    link: &'a [u8],
    /// The IP header of the next fragment, as far as it does not depend on which it is.
    header: Vec<u8>,
    /// The IP header of all fragments but the first.
    later: Vec<u8>,
    /// What is still to be sent; None once all is.
    payload: Option<&'a [u8]>,
    /// Flags and offset of the next fragment, if it were the last.
    flags: u16,
    mtu: usize,
}

impl<'a> Fragments<'a> {
    /// The fragments of the packet in `frame`, with the headers `ip`, that fit a path which takes packets of `mtu`
    /// bytes. The frame is whole, and its checksums are complete. A packet that fits is its own only fragment.
    ///
    /// None where it must not be cut up (DF, IPv6) or cannot: not even the smallest piece fits.
    pub fn new(frame: &'a [u8], ip: &Ip, mtu: usize) -> Option<Fragments<'a>> {
        let (start, transport) = (usize::from(ip.header), usize::from(ip.transport));
        let (link, header) = (frame.get(..start)?, frame.get(start..transport)?);
        let payload = frame.get(transport..ip.end as usize)?;
        if ip.is_ipv6() || ip.dont_fragment || header.len() < IPV4 || header.len() + UNIT > mtu {
            return None;
        }
        let flags = u16::from_be_bytes([header[FLAGS], header[FLAGS + 1]]);
        Some(Fragments { link, header: header.to_vec(), later: later(header), payload: Some(payload), flags, mtu })
    }
}

impl Iterator for Fragments<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let payload = self.payload?;
        let room = self.mtu - self.header.len();
        let is_last = payload.len() <= room;
        let len = if is_last { payload.len() } else { room / UNIT * UNIT };
        let (piece, rest) = payload.split_at(len);
        let flags = if is_last { self.flags } else { self.flags | MORE };
        let mut frame = [self.link, &self.header, piece].concat();
        let header = &mut frame[self.link.len()..self.link.len() + self.header.len()];
        for (at, word) in [(TOTAL_LENGTH, (self.header.len() + len) as u16), (FLAGS, flags), (CHECKSUM, 0)] {
            header[at..at + 2].copy_from_slice(&word.to_be_bytes());
        }
        let sum = checksum::checksum(header);
        header[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        let offset = (self.flags & OFFSET).wrapping_add((len / UNIT) as u16) & OFFSET;
        (self.payload, self.flags) = ((!is_last).then_some(rest), self.flags & !OFFSET | offset);
        self.header.clone_from(&self.later);
        Some(frame)
    }
}

/// The header of a fragment that is not the first: with those options only that are copied.
fn later(header: &[u8]) -> Vec<u8> {
    let (fixed, mut options) = header.split_at(IPV4);
    let mut later = fixed.to_vec();
    while let [kind, rest @ ..] = options {
        let length = match (*kind, rest.first()) {
            (option::END, _) => break,
            (option::NOP, _) => 1,
            (_, Some(&length)) if length >= 2 => usize::from(length),
            _ => break,
        };
        let Some(whole) = options.get(..length) else { break };
        if kind & option::COPIED != 0 {
            later.extend_from_slice(whole);
        }
        options = &options[length..];
    }
    later.resize(later.len().next_multiple_of(4), option::END);
    later[0] = later[0] & 0xf0 | (later.len() / 4) as u8;
    later
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::parse;
    use super::*;

    const ETHERNET: usize = 14;

    /// A frame with this header of IPv4 options, flags and offset, and payload of an unknown protocol.
    fn frame(options: &[u8], flags: u16, payload: &[u8]) -> Vec<u8> {
        let mut header = vec![0x45, 0x28, 0, 0, 0xab, 0xcd, 0, 0, 64, 253, 0, 0, 10, 0, 0, 2, 10, 0, 0, 3];
        header.extend_from_slice(options);
        header[0] = 0x40 | (header.len() / 4) as u8;
        let total = (header.len() + payload.len()) as u16;
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[6..8].copy_from_slice(&flags.to_be_bytes());
        let sum = checksum::checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        [&[2, 0x5d, 0, 0, 0, 3, 2, 0x5d, 0, 0, 0, 2, 8, 0], &header[..], payload].concat()
    }

    fn fragments(frame: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
        let parsed = parse(frame, frame.len()).unwrap();
        Some(Fragments::new(frame, parsed.ip().unwrap(), mtu)?.collect())
    }

    #[test]
    fn what_fits_is_left_as_it_is() {
        let frame = frame(&[], 0, &[7; 100]);
        assert_eq!(fragments(&frame, 120).unwrap(), [frame]);
        let empty = super::tests::frame(&[], 0, &[]);
        assert_eq!(fragments(&empty, 120).unwrap(), [empty]);
    }

    #[test]
    fn what_must_not_be_cut_up_is_not() {
        assert_eq!(fragments(&frame(&[], 0x4000, &[7; 100]), 60), None, "DF");
        assert_eq!(fragments(&frame(&[], 0, &[7; 100]), 27), None, "no room for eight bytes");
    }

    #[test]
    fn only_copied_options_are_in_later_fragments() {
        // A NOP, a record route (7, not copied) and a router alert (148, copied: RFC 2113).
        let options = [1, 7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0];
        let all = fragments(&frame(&options, 0, &[7; 100]), 64).unwrap();
        assert_eq!(all[0][ETHERNET..][20..32], options);
        for later in &all[1..] {
            assert_eq!((later[ETHERNET], &later[ETHERNET..][20..24]), (0x46, &options[8..]));
        }
        // An option that goes on behind the header is none.
        let all = fragments(&frame(&[148, 9, 0, 0], 0, &[7; 100]), 64).unwrap();
        assert_eq!(all[1][ETHERNET], 0x45);
    }

    proptest! {
        #[test]
        fn what_is_put_together_again_is_what_was_cut_up(
            payload in prop::collection::vec(any::<u8>(), 1..6000),
            options in prop::collection::vec(any::<u8>(), 0..10),
            (offset, more) in (0_u16..1000, any::<bool>()),
            mtu in 68_usize..2000,
        ) {
            let options: Vec<_> = options.iter().flat_map(|option| [0x80 | option, 4, 1, 2]).take(options.len() / 4 * 4).collect();
            let flags = offset | if more { MORE } else { 0 };
            let whole = frame(&options, flags, &payload);
            let mut together = Vec::new();
            let all = fragments(&whole, mtu).unwrap();
            for (number, fragment) in all.iter().enumerate() {
                let parsed = parse(fragment, fragment.len()).unwrap();
                let ip = parsed.ip().unwrap();
                prop_assert!(ip.len() <= mtu && ip.end as usize == fragment.len());
                prop_assert_eq!(checksum::checksum(&fragment[ETHERNET..usize::from(ip.transport)]), 0);
                let (at, follows) = ip.fragment.map_or((0, false), |part| (usize::from(part.offset), part.more));
                prop_assert_eq!(at, usize::from(offset) * 8 + together.len(), "none is missing, none is twice");
                prop_assert_eq!(follows, more || number + 1 < all.len());
                // Type of service, identification, time to live, protocol, addresses.
                for same in [1..2, 4..6, 8..10, 12..20] {
                    prop_assert_eq!(&fragment[ETHERNET..][same.clone()], &whole[ETHERNET..][same]);
                }
                together.extend_from_slice(&fragment[usize::from(ip.transport)..]);
            }
            prop_assert_eq!(together, payload);
            // No more than needed: all but the last are as long as they can be.
            for fragment in &all[..all.len() - 1] {
                prop_assert!(fragment.len() - ETHERNET + UNIT > mtu);
            }
        }
    }
}
