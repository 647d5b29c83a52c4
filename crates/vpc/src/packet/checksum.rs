//! The Internet checksum (RFC 1071), its incremental update (RFC 1624) and the pseudo headers it covers (RFC 9293 §3.1,
//! RFC 768, RFC 8200 §8.1).
//!
//! A sum of 16-bit words in ones' complement does not depend on the order of the bytes in a word (RFC 1071 §2 (B)):
//! [`Sum`] adds words as the machine reads them, many at a time, and turns the bytes around once at the end.

use super::parse;
use super::parse::protocol;
use crate::verdict::DropReason;

/// A sum of 16-bit words in ones' complement, as it grows.
///
/// What is added is taken to begin at an even offset of what is summed: only the last piece may have an odd length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

/// Where UDP has its checksum (RFC 768).
const UDP_CHECKSUM: usize = 6;

/// Bytes of one round of [`Sum::bytes`]: enough that the additions of a round do not wait for each other.
const ROUND: usize = 64;

/// `sum + word` in ones' complement: a carry out of the top comes back in at the bottom.
#[inline]
const fn end_around(sum: u64, word: u64) -> u64 {
    let (sum, carry) = sum.overflowing_add(word);
    sum + carry as u64
}

impl Sum {
    /// Nothing yet.
    pub const ZERO: Sum = Sum(0);

    /// Adds bytes; an odd one at the end counts as the high half of a word (RFC 1071 §1).
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Sum {
        // Words of 32 bits in lanes of 64: a lane overflows after 2^32 rounds only, and the compiler sees a plain sum
        // of vectors without carries between them.
        let mut lanes = [0_u64; ROUND / 4];
        let mut rounds = bytes.chunks_exact(ROUND);
        for round in &mut rounds {
            for (lane, word) in lanes.iter_mut().zip(round.chunks_exact(4)) {
                *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
            }
        }
        let mut sum = self.0;
        // Headers have no whole round.
        if bytes.len() >= ROUND {
            sum = lanes.iter().fold(sum, |sum, lane| end_around(sum, *lane));
        }
        let mut words = rounds.remainder().chunks_exact(4);
        for word in &mut words {
            sum = end_around(sum, u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]])));
        }
        let last = match *words.remainder() {
            [a] => [a, 0, 0, 0],
            [a, b] => [a, b, 0, 0],
            [a, b, c] => [a, b, c, 0],
            _ => return Sum(sum),
        };
        Sum(end_around(sum, u64::from(u32::from_ne_bytes(last))))
    }

    /// Adds one word.
    #[inline]
    #[must_use]
    pub fn word(self, word: u16) -> Sum {
        Sum(end_around(self.0, u64::from(word.to_be())))
    }

    /// Adds another sum.
    #[inline]
    #[must_use]
    pub fn plus(self, other: Sum) -> Sum {
        Sum(end_around(self.0, other.0))
    }

    /// The pseudo header of a transport over IPv4 (RFC 9293 §3.1): `len` is that of the transport header and its
    /// payload.
    #[inline]
    pub fn pseudo_v4(source: [u8; 4], destination: [u8; 4], protocol: u8, len: u16) -> Sum {
        Sum::ZERO.bytes(&source).bytes(&destination).word(u16::from(protocol)).word(len)
    }

    /// The pseudo header of a transport over IPv6 (RFC 8200 §8.1): `len` is that of the transport header and its
    /// payload.
    #[inline]
    pub fn pseudo_v6(source: [u8; 16], destination: [u8; 16], next: u8, len: u32) -> Sum {
        let sum = Sum::ZERO.bytes(&source).bytes(&destination);
        sum.bytes(&len.to_be_bytes()).word(u16::from(next))
    }

    /// The sum itself, in 16 bits, not complemented.
    #[inline]
    pub fn fold(self) -> u16 {
        let sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        u16::from_be(sum as u16)
    }

    /// The checksum: the complement of the sum.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.fold()
    }

    /// The checksum of a transport: never 0, which in UDP means that there is none (RFC 768); 0xffff is the same
    /// number.
    #[inline]
    pub fn transport_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            checksum => checksum,
        }
    }

    /// Whether what was summed, its checksum included, is undamaged.
    #[inline]
    pub fn is_right(self) -> bool {
        self.fold() == 0xffff
    }
}

/// The checksum of `bytes` (RFC 1071), in which the checksum field must be 0.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::ZERO.bytes(bytes).checksum()
}

/// `checksum` after a word it covers has changed from `old` to `new` (RFC 1624 §3, equation 3).
///
/// A UDP checksum of 0 covers nothing and must be left alone; a transport checksum that becomes 0 is right in TCP, and
/// to be stored as 0xffff in UDP.
#[inline]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::ZERO.word(!checksum).word(!old).word(new).checksum()
}

/// `checksum` after bytes it covers, at an even offset, have changed from `old` to `new` (RFC 1624 §3, equation 3): an
/// address, say. Only as many bytes as both have count; an odd one at the end is the high half of a word.
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    let len = old.len().min(new.len());
    let removed = Sum::ZERO.bytes(&old[..len]).fold();
    Sum::ZERO.word(!checksum).word(!removed).bytes(&new[..len]).checksum()
}

/// The same for the field of a [`Checksum::Partial`](super::Checksum::Partial), which holds a sum and not its
/// complement.
pub fn update_partial(sum: u16, old: &[u8], new: &[u8]) -> u16 {
    !update_bytes(!sum, old, new)
}

/// Completes a [`Checksum::Partial`](super::Checksum::Partial) in a whole frame (virtio 1.3 §5.1.6.2.1): adds the bytes
/// from `start` to the end, among them the pseudo header's sum in the field `offset` behind `start`, and stores the
/// checksum there. Returns the sum of the bytes from `start` as they are afterwards, where the caller sums them once
/// more with others.
///
/// It does not ask where the field lies: [`check_partial`] does, and a guest's offsets go through it first. A field
/// where UDP has its checksum is never made 0, which would be none; those of others are what the sum is.
///
/// # Errors
/// [`DropReason::BadOffload`] where the field is not inside the frame; the frame is unchanged.
pub fn complete(frame: &mut [u8], start: u16, offset: u16) -> Result<Sum, DropReason> {
    let (start, offset) = (usize::from(start), usize::from(offset));
    let covered = frame.get_mut(start..).ok_or(DropReason::BadOffload)?;
    let field = covered.get(offset..offset + 2).ok_or(DropReason::BadOffload)?;
    let seed = u16::from_be_bytes([field[0], field[1]]);
    let sum = Sum::ZERO.bytes(covered);
    let checksum = match offset {
        UDP_CHECKSUM => sum.transport_checksum(),
        // The field does not lie on a word: its bytes trade places in the sum (RFC 1071 §2 (B)).
        _ if offset % 2 != 0 => sum.checksum().swap_bytes(),
        _ => sum.checksum(),
    };
    covered[offset..offset + 2].copy_from_slice(&checksum.to_be_bytes());
    // What was added up is now the complement of the seed: everything else cancels out.
    let after = if offset % 2 == 0 { !seed } else { (!seed).swap_bytes() };
    Ok(Sum::ZERO.word(after))
}

/// Whether a [`Checksum::Partial`](super::Checksum::Partial) fits the frame that begins with `head` and has `len`
/// bytes: the field is the checksum of its TCP, UDP or ICMP header, or lies behind what the datapath looks at. A guest
/// that could put the field anywhere would rewrite its addresses and ports after they were checked.
///
/// # Errors
/// [`DropReason::BadOffload`], and what [`parse`] has to say about the headers.
pub fn check_partial(head: &[u8], len: usize, start: u16, offset: u16) -> Result<(), DropReason> {
    let (start, offset) = (usize::from(start), usize::from(offset));
    let parsed = parse(head, len)?;
    let ip = parsed.ip().ok_or(DropReason::BadOffload)?;
    let (field, transport) = (start + offset, usize::from(ip.transport));
    let own = match ip.protocol {
        protocol::TCP => Some((16, 20)),
        protocol::UDP => Some((6, 8)),
        protocol::ICMP | protocol::ICMPV6 => Some((2, 8)),
        _ => None,
    };
    let fits = match own {
        Some((at, header)) => {
            (start == transport && offset == at) || (start >= transport && field >= transport + header)
        }
        None => start >= transport,
    };
    if fits && ip.fragment.is_none() && field + 2 <= len { Ok(()) } else { Err(DropReason::BadOffload) }
}

/// Whether the checksum of a transport segment (header and payload) over IPv4, or over IPv6 (`v6`), is right. `pseudo`
/// is the sum of its pseudo header; ICMP over IPv4 has none. A UDP checksum of 0 over IPv4 is none, and right (RFC
/// 768); over IPv6 it is wrong (RFC 8200 §8.1), except where the caller knows a tunnel that may leave it out (RFC
/// 6935).
pub fn verify(v6: bool, protocol: u8, pseudo: Sum, segment: &[u8]) -> bool {
    if protocol == protocol::UDP && segment.get(6..8) == Some(&[0, 0]) {
        return !v6;
    }
    let sum = if protocol == protocol::ICMP { Sum::ZERO } else { pseudo };
    sum.bytes(segment).is_right()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071 §4.1, word by word.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn the_example_of_rfc_1071() {
        assert_eq!(Sum::ZERO.bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).fold(), 0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624() {
        // §4: equation 3 gives 0x0000 where RFC 1141's gives 0xffff.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn carries_come_back_in() {
        let ones = [0xff; 65_535];
        assert_eq!(Sum::ZERO.bytes(&ones[..65_534]).fold(), 0xffff);
        assert_eq!(Sum::ZERO.bytes(&ones).fold(), naive(&ones));
        assert_eq!(Sum(u64::MAX).bytes(&ones).fold(), naive(&ones));
    }

    #[test]
    fn a_field_outside_the_frame_is_refused() {
        let mut frame = [0_u8; 10];
        for (start, offset) in [(11, 0), (0, 9), (10, 0), (u16::MAX, u16::MAX), (4, 5)] {
            assert_eq!(complete(&mut frame, start, offset).unwrap_err(), DropReason::BadOffload);
        }
        assert_eq!(frame, [0; 10]);
    }

    #[test]
    fn a_checksum_of_0_is_0_but_in_udp() {
        for (offset, expected) in [(16, 0), (6, 0xffff), (2, 0)] {
            let mut frame = [0_u8; 20];
            frame[18..].copy_from_slice(&[0xff, 0xff]);
            complete(&mut frame, 0, offset).unwrap();
            let field = [frame[usize::from(offset)], frame[usize::from(offset) + 1]];
            assert_eq!(u16::from_be_bytes(field), expected, "the field at {offset}");
        }
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_its_words(bytes: Vec<u8>, more in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(Sum::ZERO.bytes(&bytes).fold(), naive(&bytes));
            prop_assert_eq!(Sum::ZERO.bytes(&more).fold(), naive(&more));
            let even = more.len() & !1;
            let both = [&more[..even], &bytes].concat();
            prop_assert_eq!(Sum::ZERO.bytes(&more[..even]).bytes(&bytes).fold(), naive(&both));
            prop_assert_eq!(Sum::ZERO.bytes(&more[..even]).plus(Sum::ZERO.bytes(&bytes)).fold(), naive(&both));
        }

        #[test]
        fn an_update_is_a_new_sum(mut bytes in prop::collection::vec(any::<u8>(), 8..100), at: u8, new: [u8; 4]) {
            bytes[0] |= 1;
            let before = checksum(&bytes);
            let partial = Sum::ZERO.bytes(&bytes).fold();
            let at = (usize::from(at) % (bytes.len() - 5)).max(2) & !1;
            let old: [u8; 4] = bytes[at..at + 4].try_into().unwrap();
            bytes[at..at + 4].copy_from_slice(&new);
            prop_assert_eq!(update_bytes(before, &old, &new), checksum(&bytes));
            prop_assert_eq!(update_partial(partial, &old, &new), Sum::ZERO.bytes(&bytes).fold());
            let word = |b: &[u8]| u16::from_be_bytes([b[0], b[1]]);
            let step = update(update(before, word(&old), word(&new)), word(&old[2..]), word(&new[2..]));
            prop_assert_eq!(step, checksum(&bytes));
        }

        #[test]
        fn what_was_completed_verifies(
            mut frame in prop::collection::vec(any::<u8>(), 40..300), start in 0_u16..20, offset in 0_u16..18,
        ) {
            let field = usize::from(start + offset);
            let seed = Sum::pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], protocol::TCP, (frame.len() - usize::from(start)) as u16);
            let seed = if offset % 2 == 0 { seed.fold() } else { seed.fold().swap_bytes() };
            frame[field..field + 2].copy_from_slice(&seed.to_be_bytes());
            let after = complete(&mut frame, start, offset).unwrap();
            let covered = &frame[usize::from(start)..];
            let pseudo = Sum::pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], protocol::TCP, covered.len() as u16);
            prop_assert!(verify(false, protocol::TCP, pseudo, covered));
            prop_assert_eq!(after.fold() % 0xffff, naive(covered) % 0xffff);
            prop_assert!(usize::from(offset) != UDP_CHECKSUM || frame[field..field + 2] != [0, 0]);
        }
    }
}
