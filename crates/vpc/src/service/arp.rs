//! ARP (RFC 826) answered for all endpoints: a VPC does not flood, so the network itself resolves addresses.

use super::{Answer, ServiceContext, build};
use crate::packet::parse::ETHERTYPE_ARP;
use crate::packet::{Parsed, Payload};
use crate::verdict::DropReason;

/// Operation codes (RFC 826).
mod operation {
    pub const REQUEST: u16 = 1;
    pub const REPLY: u16 = 2;
}

/// What a message for IPv4 (0x0800, addresses of 4 bytes) over Ethernet (1, addresses of 6 bytes) begins with.
const IPV4_OVER_ETHERNET: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Answers a request for the address of the gateway or of another endpoint with its MAC address.
///
/// Never answered are announcements, and requests for an address of the sender's own: to a probe (RFC 5227 §2.1.1) that
/// answer would say that another host has it. A probe for another endpoint's address is answered, as its owner would.
///
/// # Errors
/// [`DropReason::SpoofedNeighbor`] where the sender named in the message is not the frame's, [`DropReason::Service`]
/// for operations other than request and reply and for frames that are not ARP.
pub fn answer(context: &ServiceContext<'_>, parsed: &Parsed, _frame: &[u8]) -> Answer {
    let Payload::Arp(arp) = parsed.payload else { return Err(DropReason::Service) };
    if arp.sender_mac != parsed.source || !parsed.source.is_station() {
        return Err(DropReason::SpoofedNeighbor);
    }
    match arp.operation {
        operation::REQUEST => {}
        operation::REPLY => return Ok(None),
        _ => return Err(DropReason::Service),
    }
    let target = arp.target.into();
    if arp.sender == arp.target || context.addresses.contains(&target) {
        return Ok(None);
    }
    let Some(mac) = (context.neighbor)(target).filter(|mac| *mac != arp.sender_mac && *mac != context.mac) else {
        return Ok(None);
    };
    let mut reply = build::ethernet(parsed, arp.sender_mac, mac, ETHERTYPE_ARP);
    reply.extend_from_slice(&IPV4_OVER_ETHERNET);
    reply.extend_from_slice(&operation::REPLY.to_be_bytes());
    reply.extend_from_slice(&mac.0);
    reply.extend_from_slice(&arp.target.octets());
    reply.extend_from_slice(&arp.sender_mac.0);
    reply.extend_from_slice(&arp.sender.octets());
    Ok(Some(reply))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{GATEWAY_MAC, GUEST_MAC, OTHER_MAC, ask, hostile, with_context};
    use super::*;
    use crate::packet::Mac;

    fn message(from: Mac, operation: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let mut frame = [Mac::BROADCAST.0, from.0].concat();
        frame.extend_from_slice(&[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, operation]);
        frame.extend_from_slice(&from.0);
        frame.extend_from_slice(&sender);
        frame.extend_from_slice(&[0; 6]);
        frame.extend_from_slice(&target);
        frame
    }

    #[test]
    fn the_gateway_and_the_neighbours_are_answered_for() {
        for (target, mac) in [([10, 0, 0, 1], GATEWAY_MAC), ([10, 0, 0, 3], OTHER_MAC)] {
            for sender in [[10, 0, 0, 2], [0, 0, 0, 0]] {
                let reply = ask(answer, &message(GUEST_MAC, 1, sender, target)).unwrap().unwrap();
                let expected = [
                    &GUEST_MAC.0[..],
                    &mac.0,
                    &[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2],
                    &mac.0,
                    &target,
                    &GUEST_MAC.0,
                    &sender,
                ];
                assert_eq!(reply, expected.concat());
            }
        }
    }

    #[test]
    fn a_vlan_is_answered_in_the_vlan() {
        let mut frame = message(GUEST_MAC, 1, [10, 0, 0, 2], [10, 0, 0, 1]);
        frame.splice(12..12, [0x81, 0, 0, 7]);
        let reply = ask(answer, &frame).unwrap().unwrap();
        assert_eq!(reply[12..18], [0x81, 0, 0, 7, 8, 6]);
    }

    #[test]
    fn nobody_hears_of_a_duplicate_of_itself() {
        for sender in [[10, 0, 0, 2], [0, 0, 0, 0]] {
            assert_eq!(ask(answer, &message(GUEST_MAC, 1, sender, [10, 0, 0, 2])), Ok(None));
        }
        assert_eq!(ask(answer, &message(GUEST_MAC, 1, [10, 0, 0, 1], [10, 0, 0, 1])), Ok(None), "an announcement");
        assert_eq!(ask(answer, &message(OTHER_MAC, 1, [0; 4], [10, 0, 0, 3])), Ok(None), "behind the same port");
    }

    #[test]
    fn what_nobody_has_and_what_is_no_question_stay_unanswered() {
        assert_eq!(ask(answer, &message(GUEST_MAC, 1, [10, 0, 0, 2], [10, 0, 0, 99])), Ok(None));
        assert_eq!(ask(answer, &message(GUEST_MAC, 2, [10, 0, 0, 2], [10, 0, 0, 1])), Ok(None));
        assert_eq!(ask(answer, &message(GUEST_MAC, 3, [10, 0, 0, 2], [10, 0, 0, 1])), Err(DropReason::Service));
        let mut spoofed = message(GUEST_MAC, 1, [10, 0, 0, 2], [10, 0, 0, 1]);
        spoofed[22] ^= 1;
        assert_eq!(ask(answer, &spoofed), Err(DropReason::SpoofedNeighbor));
    }

    #[test]
    fn nothing_hostile_panics() {
        with_context(|context| hostile(answer, context, &[message(GUEST_MAC, 1, [10, 0, 0, 2], [10, 0, 0, 1])]));
    }
}
