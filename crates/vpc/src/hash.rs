//! Hashes: of a 5-tuple, which keeps a flow's packets in order (one queue, one outer source port) and spreads flows
//! over both (RFC 7348 §4.1, RFC 6438); and the two mixing functions that the crate's tables use.

use std::net::IpAddr;

use crate::packet::Ip;

/// Odd constants with about as many ones as zeros.
pub(crate) const MIX: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db];

/// Both halves of the product of two words, combined by XOR (wyhash's `mum`).
#[inline]
pub(crate) fn folded_multiply(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// Bits of a counter that look random (the finalizer of SplitMix64: Steele, Lea, Flood 2014).
pub(crate) fn splitmix64(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[inline]
fn words(address: IpAddr) -> (u64, u64) {
    match address {
        IpAddr::V4(address) => (0, address.to_bits().into()),
        IpAddr::V6(address) => ((address.to_bits() >> 64) as u64, address.to_bits() as u64),
    }
}

/// The hash of a packet's 5-tuple. All fragments of a packet have the one of its addresses and protocol: only the first
/// has ports (RFC 6438 §3).
#[inline]
pub(crate) fn five_tuple_hash(ip: &Ip) -> u32 {
    let (from, to) = if ip.fragment.is_none() { ip.ports().unwrap_or_default() } else { (0, 0) };
    hash_of_tuple(ip.source, ip.destination, ip.protocol, [from, to])
}

/// The hash of a 5-tuple of a packet that is no fragment.
#[inline]
pub(crate) fn hash_of_tuple(source: IpAddr, destination: IpAddr, protocol: u8, [from, to]: [u16; 2]) -> u32 {
    let (source_high, source) = words(source);
    let (destination_high, destination) = words(destination);
    let rest = u64::from(from) << 32 | u64::from(to) << 16 | u64::from(protocol);
    let addresses = folded_multiply(source ^ MIX[0], destination ^ MIX[1])
        ^ folded_multiply(source_high ^ MIX[1], destination_high ^ MIX[2]);
    (folded_multiply(addresses ^ rest, MIX[2]) >> 16) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::packet::{Fragment, Layer4};

    #[test]
    fn flows_differ_and_fragments_of_one_packet_do_not() {
        let hashes: HashSet<u32> = (0..1000).map(|port| five_tuple_hash(&Ip::datagram(port))).collect();
        assert!(hashes.len() > 990, "{}", hashes.len());
        let spread: HashSet<u32> = hashes.iter().map(|hash| hash % 16).collect();
        assert_eq!(spread.len(), 16);
        let first = Ip { fragment: Some(Fragment { offset: 0, more: true, id: 1 }), ..Ip::datagram(9) };
        let last =
            Ip { fragment: Some(Fragment { offset: 8, more: false, id: 1 }), layer4: Layer4::Other, ..Ip::datagram(9) };
        assert_eq!(five_tuple_hash(&first), five_tuple_hash(&last));
    }
}
