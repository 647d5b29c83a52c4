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
