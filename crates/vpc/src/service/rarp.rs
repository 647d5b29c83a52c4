//! RARP (RFC 903): how a guest that has moved is announced. No answer is expected: switches and tunnel end points that
//! learn where an address is from the frames they see learn it from this one.

use crate::packet::Mac;
use crate::packet::parse::ETHERTYPE_IPV4;

/// EtherType (RFC 903, §2).
const ETHERTYPE_RARP: u16 = 0x8035;
/// Hardware type (RFC 826).
const ETHERNET: u16 = 1;
/// "request reverse" (RFC 903, §2).
const REQUEST_REVERSE: u16 = 3;
/// The least that is sent on Ethernet, without frame check sequence (IEEE 802.3 §4.2.3.3).
const LEAST: usize = 60;

/// The frame by which `mac` is announced: the one that QEMU sends for a guest after a migration (`announce_self_create`
/// in its net/announce.c), and DPDK's vhost library for SEND_RARP, so that packet filters know it.
pub fn announcement(mac: Mac) -> Vec<u8> {
    let mut frame = Vec::with_capacity(LEAST);
    frame.extend_from_slice(&Mac::BROADCAST.0);
    frame.extend_from_slice(&mac.0);
    for word in [ETHERTYPE_RARP, ETHERNET, ETHERTYPE_IPV4] {
        frame.extend_from_slice(&word.to_be_bytes());
    }
    frame.extend_from_slice(&[6, 4]);
    frame.extend_from_slice(&REQUEST_REVERSE.to_be_bytes());
    for _sender_then_target in 0..2 {
        frame.extend_from_slice(&mac.0);
        frame.extend_from_slice(&[0; 4]);
    }
    frame.resize(LEAST, 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_announcement_is_the_one_that_others_send() {
        let mac = Mac([2, 0x5d, 0, 0, 0, 7]);
        let mut expected = [&[0xff; 6][..], &mac.0, &[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]].concat();
        expected.extend([&mac.0[..], &[0; 4], &mac.0, &[0; 4], &[0; 18]].concat());
        assert_eq!(announcement(mac), expected);
    }
}
