//! One network, one guest in it, and its questions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{Answer, ServiceContext};
use crate::packet::{Mac, Parsed, parse};
use crate::spec::SubnetSpec;

pub const GATEWAY_MAC: Mac = Mac([2, 0x5d, 0, 0, 0, 1]);
pub const GUEST_MAC: Mac = Mac([2, 0x5d, 0, 0, 0, 2]);
pub const OTHER_MAC: Mac = Mac([2, 0x5d, 0, 0, 0, 3]);
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
pub const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
pub const OTHER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);
pub const DNS: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 53)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x53)),
    IpAddr::V4(Ipv4Addr::new(10, 0, 1, 53)),
];
pub const MTU: u16 = 1450;
pub const LEASE: u32 = 3600;

pub type Service = fn(&ServiceContext<'_>, &Parsed, &[u8]) -> Answer;

/// Runs `test` as the network of the guest with 10.0.0.2/16 and fd00::2/64.
pub fn with_context<T>(test: impl FnOnce(&ServiceContext<'_>) -> T) -> T {
    let subnets = [
        SubnetSpec { prefix: "10.0.0.0/16".parse().unwrap(), gateway: GATEWAY.into() },
        SubnetSpec { prefix: "fd00::/64".parse().unwrap(), gateway: GATEWAY6.into() },
    ];
    let addresses = [GUEST.into(), GUEST6.into()];
    let neighbor = |address: IpAddr| {
        let known = [
            (IpAddr::from(GATEWAY), GATEWAY_MAC),
            (GATEWAY6.into(), GATEWAY_MAC),
            (GATEWAY_MAC.link_local().into(), GATEWAY_MAC),
            (GUEST.into(), GUEST_MAC),
            (GUEST6.into(), GUEST_MAC),
            (OTHER.into(), OTHER_MAC),
            (OTHER6.into(), OTHER_MAC),
        ];
        known.iter().find(|(has, _)| *has == address).map(|(_, mac)| *mac)
    };
    test(&ServiceContext {
        gateway_mac: GATEWAY_MAC,
        subnets: &subnets,
        mtu: MTU,
        dns: &DNS,
        lease: LEASE,
        mac: GUEST_MAC,
        addresses: &addresses,
        neighbor: &neighbor,
    })
}

/// What the service answers to a frame that parses.
pub fn ask(service: Service, frame: &[u8]) -> Answer {
    with_context(|context| service(context, &parse(frame, frame.len()).unwrap(), frame))
}

/// The service is given the frames with bytes changed and ends cut off. What it answers is a frame that parses.
pub fn hostile(service: Service, context: &ServiceContext<'_>, frames: &[Vec<u8>]) {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let input =
        (prop::sample::select(frames.to_vec()), changes, prop::option::weighted(0.2, any::<prop::sample::Index>()));
    TestRunner::new(Config { cases: 4000, failure_persistence: None, ..Config::default() })
        .run(&input, |(mut frame, changes, end)| {
            for (at, byte) in changes {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            if let Some(end) = end {
                frame.truncate(end.index(frame.len()));
            }
            let Ok(parsed) = parse(&frame, frame.len()) else { return Ok(()) };
            if let Ok(Some(reply)) = service(context, &parsed, &frame) {
                prop_assert!(parse(&reply, reply.len()).is_ok());
            }
            Ok(())
        })
        .unwrap();
}

/// An ICMPv6 message from the guest, with its checksum.
pub fn icmp6(source: Ipv6Addr, destination: Ipv6Addr, hop_limit: u8, mut message: Vec<u8>) -> Vec<u8> {
    let to = destination.octets();
    let to_mac = if destination.is_multicast() { [0x33, 0x33, to[12], to[13], to[14], to[15]] } else { GATEWAY_MAC.0 };
    let header = etherparse::Icmpv6Type::Unknown {
        type_u8: message[0],
        code_u8: message[1],
        bytes5to8: message[4..8].try_into().unwrap(),
    };
    let sum = header.calc_checksum(source.octets(), to, &message[8..]).unwrap();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = [&to_mac[..], &GUEST_MAC.0, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    frame.extend_from_slice(&(message.len() as u16).to_be_bytes());
    frame.extend_from_slice(&[58, hop_limit]);
    frame.extend_from_slice(&source.octets());
    frame.extend_from_slice(&to);
    frame.extend_from_slice(&message);
    frame
}

/// An ICMPv6 answer with right lengths and checksum: its IP header, and the message.
pub fn icmp6_of(frame: &[u8]) -> (etherparse::Ipv6Header, Vec<u8>) {
    let sliced = etherparse::SlicedPacket::from_ethernet(frame).unwrap();
    let Some(etherparse::NetSlice::Ipv6(ip)) = sliced.net else { panic!() };
    let Some(etherparse::TransportSlice::Icmpv6(icmp)) = sliced.transport else { panic!() };
    let header = ip.header().to_header();
    assert!(icmp.is_checksum_valid(header.source, header.destination));
    (header, icmp.slice().to_vec())
}
