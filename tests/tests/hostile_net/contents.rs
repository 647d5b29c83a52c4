//! Frames that contradict themselves, and frames in another guest's name. What must not arrive is sent to a guest that
//! verifies everything it gets.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::nic::Settings;
use crate::packets::*;
use crate::scene::Abuse;
use crate::scene::Expect::{self, Drops, Harmless};

type Frames = fn() -> Vec<Vec<u8>>;

fn abuse(name: &'static str, expect: Expect, frames: Frames) -> Abuse {
    Abuse::new(name, Settings::PLAIN, expect, move |nic| nic.send_all(&frames()))
}

pub fn abuses() -> Vec<Abuse> {
    [names(), neighbours(), ethernet(), internet(), transport()].into_iter().flatten().collect()
}

/// A UDP packet to [`B`] from an address.
fn from(source: Ipv4Addr) -> Vec<u8> {
    ether(B.mac, IPV4, &ipv4(source, B.address, UDP, &udp(9, 9, &[0; 18])))
}

fn from6(source: Ipv6Addr) -> Vec<u8> {
    ether(B.mac, IPV6, &ipv6(source, six(0xb), UDP, &udp(9, 9, &[0; 18])))
}

fn names() -> Vec<Abuse> {
    vec![
        abuse("a forged MAC address", Drops("spoofed-mac"), || {
            [A.mac, B.mac, SINK.mac, [0; 6], BROADCAST, ALL_NODES, [1, 0, 0x5e, 0, 0, 1]]
                .map(|mac| with(udp_to(B, &[0; 18]), 6, &mac))
                .into()
        }),
        abuse("a forged MAC address in ARP's Ethernet header", Drops("spoofed-mac"), || {
            vec![with(arp(1, MALLORY.mac, MALLORY.address, GATEWAY), 6, &A.mac)]
        }),
        abuse("a forged IPv4 address", Drops("spoofed-address"), || {
            [
                A.address,
                B.address,
                SINK.address,
                GATEWAY,
                NOBODY,
                Ipv4Addr::UNSPECIFIED,
                Ipv4Addr::LOCALHOST,
                Ipv4Addr::BROADCAST,
                Ipv4Addr::new(224, 0, 0, 1),
                Ipv4Addr::new(8, 8, 8, 8),
                Ipv4Addr::new(169, 254, 1, 1),
            ]
            .map(from)
            .into()
        }),
        abuse("a forged IPv6 address", Drops("spoofed-address"), || {
            [
                six(0xa),
                six(0xb),
                six(1),
                six(0x99),
                Ipv6Addr::UNSPECIFIED,
                Ipv6Addr::LOCALHOST,
                Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
                MALLORY.address.to_ipv6_mapped(),
                Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x66),
            ]
            .map(from6)
            .into()
        }),
        abuse("a forged address behind options", Drops("spoofed-address"), || {
            let mut packet = ipv4(A.address, B.address, UDP, &[&[1; 40][..], &udp(9, 9, &[0; 18])].concat());
            packet[0] = 0x4f;
            vec![ether(B.mac, IPV4, &packet)]
        }),
        abuse("a forged address in a fragment", Drops("spoofed-address"), || {
            [[0x20, 0], [0, 9], [0x20, 9]].map(|fragment| with(from(A.address), AT_IP + 6, &fragment)).into()
        }),
        abuse("DHCP in another's name", Drops("spoofed-address"), || {
            let request = udp(68, 67, &[1; 240]);
            vec![ether(BROADCAST, IPV4, &ipv4(A.address, Ipv4Addr::BROADCAST, UDP, &request))]
        }),
    ]
}

/// A neighbour solicitation for an address, and its source link-layer option.
fn solicitation(from: Ipv6Addr, target: Ipv6Addr, mac: [u8; 6]) -> Vec<u8> {
    let to = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, target.segments()[7]);
    icmp6(from, to, 135, &[&[0; 4][..], &target.octets(), &[1, 1], &mac].concat())
}

fn neighbours() -> Vec<Abuse> {
    vec![
        abuse("ARP in another's name", Drops("spoofed-neighbor"), || {
            vec![
                arp(1, MALLORY.mac, A.address, B.address),
                arp(1, MALLORY.mac, GATEWAY, B.address),
                arp(1, A.mac, MALLORY.address, B.address),
                arp(2, MALLORY.mac, A.address, B.address),
                arp(2, A.mac, A.address, B.address),
                // Gratuitous: a host asks for its own address.
                arp(1, MALLORY.mac, A.address, A.address),
                arp(2, MALLORY.mac, GATEWAY, GATEWAY),
            ]
        }),
        abuse("unsolicited ARP answers", Drops("service"), || {
            vec![arp(2, MALLORY.mac, MALLORY.address, B.address), arp(9, MALLORY.mac, MALLORY.address, B.address)]
        }),
        abuse("ARP of other lengths and kinds", Drops("malformed"), || {
            let good = arp(1, MALLORY.mac, MALLORY.address, B.address);
            [(14, 1), (15, 6), (16, 0x86), (18, 8), (19, 16), (19, 0)]
                .map(|(at, value)| with(good.clone(), at, &[value]))
                .into()
        }),
        abuse("ARP cut off", Drops("truncated"), || {
            let good = arp(1, MALLORY.mac, MALLORY.address, B.address);
            (14..good.len()).map(|len| good[..len].to_vec()).collect()
        }),
        abuse("solicitations in another's name", Drops("spoofed-neighbor"), || {
            vec![solicitation(six(0xa), six(0xb), MALLORY.mac), solicitation(six(1), six(0xb), MALLORY.mac)]
        }),
        abuse("unsolicited advertisements", Drops("service"), || {
            let body = |target: Ipv6Addr| [&[0xe0, 0, 0, 0][..], &target.octets(), &[2, 1], &MALLORY.mac].concat();
            [six(0xa), six(1), six(0x66)].map(|target| icmp6(six(0x66), six(0xb), 136, &body(target))).into()
        }),
        abuse("router advertisements and redirects", Drops("spoofed-neighbor"), || {
            let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x66);
            vec![
                icmp6(
                    link_local,
                    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
                    134,
                    &[64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0],
                ),
                icmp6(six(0x66), six(0xb), 134, &[0; 12]),
                icmp6(six(0x66), six(0xb), 137, &[0; 36]),
            ]
        }),
        abuse("a solicitation in fragments", Drops("spoofed-neighbor"), || {
            let inner = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &six(0xb).octets()].concat();
            let fragment = [&[ICMP6, 0, 0, 1, 0, 0, 0, 1][..], &inner].concat();
            vec![ether(ALL_NODES, IPV6, &ipv6(six(0x66), six(0xb), FRAGMENT, &fragment))]
        }),
    ]
}

fn ethernet() -> Vec<Abuse> {
    vec![
        abuse("a VLAN tag", Drops("vlan"), || {
            let inner = udp_to(B, &[0; 18]);
            [0u16, 1, 0xfff, 0xffff]
                .map(|tag| [&inner[..12], &[0x81, 0], &tag.to_be_bytes(), &inner[12..]].concat())
                .into()
        }),
        abuse("two VLAN tags", Drops("vlan"), || {
            let inner = udp_to(B, &[0; 18]);
            vec![[&inner[..12], &[0x81, 0, 0, 1, 0x81, 0, 0, 2], &inner[12..]].concat()]
        }),
        abuse("other protocols", Drops("ether-type"), || {
            [0x88a8, 0x9100, 0x88cc, 0x8847, 0x8863, 0x0026, 0x05ff, 0x0000, 0xffff]
                .map(|kind| ether(B.mac, kind, &[0; 64]))
                .into()
        }),
        abuse("broadcasts and multicasts", Drops("multicast"), || {
            vec![
                with(udp_to(B, &[0; 18]), 0, &BROADCAST),
                with(udp_to(B, &[0; 18]), 0, &[1, 0, 0x5e, 0, 0, 0xfb]),
                ether(B.mac, IPV4, &ipv4(MALLORY.address, Ipv4Addr::BROADCAST, UDP, &udp(9, 9, &[]))),
                ether(B.mac, IPV4, &ipv4(MALLORY.address, Ipv4Addr::new(224, 0, 0, 251), UDP, &udp(9, 9, &[]))),
                ether(
                    B.mac,
                    IPV6,
                    &ipv6(six(0x66), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb), UDP, &udp(9, 9, &[])),
                ),
            ]
        }),
    ]
}

/// Options to [`B`], one extension header of 8 bytes each.
fn extensions(kinds: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (at, _) in kinds.iter().enumerate() {
        payload.extend([*kinds.get(at + 1).unwrap_or(&UDP), 0, 1, 4, 0, 0, 0, 0]);
    }
    payload.extend(udp(9, 9, &[0; 18]));
    ether(B.mac, IPV6, &ipv6(six(0x66), six(0xb), kinds[0], &payload))
}

fn internet() -> Vec<Abuse> {
    vec![
        abuse("IPv4 headers that contradict themselves", Drops("malformed"), || {
            let good = udp_to(B, &[0; 18]);
            let version = [0x05, 0x35, 0x65, 0x40, 0x44].map(|byte| with(good.clone(), AT_IP, &[byte]));
            let total = [0u16, 1, 19].map(|total| with(good.clone(), AT_IP + 2, &total.to_be_bytes()));
            [version.to_vec(), total.to_vec(), vec![with(with(good, AT_IP, &[0x4f]), AT_IP + 3, &[40])]].concat()
        }),
        abuse("IPv4 longer than its frame", Drops("truncated"), || {
            let good = udp_to(B, &[0; 18]);
            let len = (good.len() - AT_IP) as u16;
            [len + 1, 1500, 0xffff].map(|total| with(good.clone(), AT_IP + 2, &total.to_be_bytes())).into()
        }),
        abuse("IPv6 longer than its frame", Drops("truncated"), || {
            let good = from6(six(0x66));
            [27u16, 1500, 0xffff].map(|len| with(good.clone(), AT_IP + 4, &len.to_be_bytes())).into()
        }),
        abuse("IPv6 of another version", Drops("malformed"), || {
            [0x00, 0x40, 0x50, 0xf0].map(|byte| with(from6(six(0x66)), AT_IP, &[byte])).into()
        }),
        abuse("extension headers without end", Drops("malformed"), || {
            vec![
                extensions(&[DESTINATION; 9]),
                extensions(&[DESTINATION; 100]),
                extensions(&[
                    ROUTING,
                    DESTINATION,
                    ROUTING,
                    DESTINATION,
                    ROUTING,
                    DESTINATION,
                    ROUTING,
                    DESTINATION,
                    ROUTING,
                ]),
            ]
        }),
        abuse("hop-by-hop options in the middle", Drops("malformed"), || {
            vec![extensions(&[HOP_BY_HOP, HOP_BY_HOP]), extensions(&[DESTINATION, HOP_BY_HOP])]
        }),
        abuse("two fragment headers", Drops("malformed"), || {
            let payload =
                [&[FRAGMENT, 0, 0, 1, 0, 0, 0, 1][..], &[UDP, 0, 0, 1, 0, 0, 0, 2], &udp(9, 9, &[0; 18])].concat();
            vec![ether(B.mac, IPV6, &ipv6(six(0x66), six(0xb), FRAGMENT, &payload))]
        }),
        abuse("a routing header of type 0", Drops("malformed"), || {
            let payload = [&[UDP, 2, 0, 1, 0, 0, 0, 0][..], &six(0xa).octets(), &udp(9, 9, &[0; 18])].concat();
            vec![ether(B.mac, IPV6, &ipv6(six(0x66), six(0xb), ROUTING, &payload))]
        }),
        abuse("an extension header beyond the packet", Drops("truncated"), || {
            let good = extensions(&[DESTINATION]);
            vec![with(good.clone(), AT_TRANSPORT6 + 1, &[5]), with(good, AT_TRANSPORT6 + 1, &[255])]
        }),
        abuse("headers that go on for ever", Drops("headers"), || {
            let options = |count: usize| {
                let mut payload = Vec::new();
                for index in 0..count {
                    let next = if index + 1 == count { UDP } else { DESTINATION };
                    payload.extend([next, 20]);
                    payload.extend([0; 166]);
                }
                payload.extend(udp(9, 9, &[0; 18]));
                ether(B.mac, IPV6, &ipv6(six(0x66), six(0xb), DESTINATION, &payload))
            };
            vec![options(2), options(8)]
        }),
        abuse("a fragment beyond 64 KiB", Drops("malformed"), || {
            [[0x1f, 0xff], [0x3f, 0xff]].map(|field| with(udp_to(B, &[0; 18]), AT_IP + 6, &field)).into()
        }),
        abuse("a first fragment that hides its ports", Drops("truncated"), || {
            let packet = ipv4(MALLORY.address, B.address, TCP, &tcp(&[])[..8]);
            vec![with(ether(B.mac, IPV4, &packet), AT_IP + 6, &[0x20, 0])]
        }),
        abuse("fragments of nothing", Harmless, || {
            let fragment = |field: [u8; 2], id: u8| {
                let frame = ether(SINK.mac, IPV4, &ipv4(MALLORY.address, SINK.address, UDP, &[id; 8]));
                with(frame, AT_IP + 4, &[id, id, field[0], field[1]])
            };
            (1..=200).map(|id| fragment([0x20, id], id)).collect()
        }),
        abuse("packets to no guest", Drops("no-route"), || {
            let to = |address| ether(B.mac, IPV4, &ipv4(MALLORY.address, address, UDP, &udp(9, 9, &[0; 18])));
            vec![to(NOBODY), to(MALLORY.address), to(Ipv4Addr::new(8, 8, 8, 8)), to(Ipv4Addr::new(10, 0, 1, 11))]
        }),
        abuse("packets larger than the MTU", Drops("path-mtu"), || {
            vec![uncut(udp_to(B, &[0; 1473])), uncut(udp_to(B, &[0; 9000]))]
        }),
    ]
}

fn transport() -> Vec<Abuse> {
    vec![
        abuse("UDP longer than its packet", Drops("truncated"), || {
            [27u16, 0xffff].map(|len| with(udp_to(B, &[0; 18]), AT_TRANSPORT + 4, &len.to_be_bytes())).into()
        }),
        abuse("UDP shorter than its header", Drops("malformed"), || {
            [0u16, 7].map(|len| with(udp_to(B, &[0; 18]), AT_TRANSPORT + 4, &len.to_be_bytes())).into()
        }),
        abuse("a TCP header shorter than one", Drops("malformed"), || {
            [0, 0x10, 0x40].map(|offset| with(tcp_to(B, &[0; 18]), AT_TRANSPORT + 12, &[offset])).into()
        }),
        abuse("a TCP header longer than its packet", Drops("truncated"), || {
            vec![with(tcp_to(B, &[0; 18]), AT_TRANSPORT + 12, &[0xf0])]
        }),
        abuse("transport headers cut off", Drops("truncated"), || {
            let cut =
                |protocol, payload: &[u8]| ether(B.mac, IPV4, &ipv4(MALLORY.address, B.address, protocol, payload));
            vec![
                cut(TCP, &[0; 19]),
                cut(TCP, &[]),
                cut(UDP, &[0; 7]),
                cut(UDP, &[]),
                cut(ICMP, &[8, 0, 0]),
                cut(ICMP, &[]),
            ]
        }),
        abuse("DHCP that is none", Drops("service"), || {
            let ask = |body: &[u8]| {
                ether(BROADCAST, IPV4, &ipv4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, UDP, &udp(68, 67, body)))
            };
            vec![ask(&[]), ask(&[1, 1, 6, 0]), ask(&[0xff; 300]), ask(&[0; 240])]
        }),
        abuse("DHCPv6 that is none", Drops("service"), || {
            let servers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
            let ask = |body: &[u8]| ether(ALL_NODES, IPV6, &ipv6(six(0x66), servers, UDP, &udp(546, 547, body)));
            vec![ask(&[]), ask(&[1, 0, 0]), ask(&[0xff; 300])]
        }),
        abuse("DHCP to one guest", Drops("malformed"), || {
            let request = udp(68, 67, &[1; 240]);
            vec![ether(B.mac, IPV4, &ipv4(MALLORY.address, Ipv4Addr::BROADCAST, UDP, &request))]
        }),
        abuse("the gateway's other ports", Harmless, || {
            let to = |protocol, payload: &[u8]| ether(B.mac, IPV4, &ipv4(MALLORY.address, GATEWAY, protocol, payload));
            vec![
                to(UDP, &udp(9, 53, &[0; 18])),
                to(TCP, &tcp(&[])),
                to(ICMP, &[8, 0, 0, 0, 0, 0, 0, 0]),
                to(50, &[0; 8]),
            ]
        }),
    ]
}
