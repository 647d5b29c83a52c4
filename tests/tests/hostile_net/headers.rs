//! Offload fields of the header before a frame (virtio 1.3 §5.1.6.2) that lie.

use softdpu_device::net::abi::header::{F_DATA_VALID, F_NEEDS_CSUM, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, SIZE};
use softdpu_frontend::Station;

use crate::nic::{Nic, OFFLOADS, Settings};
use crate::packets::*;
use crate::scene::Abuse;
use crate::scene::Expect::{self, Drops, Harmless};

const OFFLOADING: Settings = Settings { features: OFFLOADS, ..Settings::PLAIN };
/// Fields of the transport checksums, from where their header begins.
const TCP_SUM: u16 = 16;
const UDP_SUM: u16 = 6;
const IP: u16 = AT_IP as u16;
const TRANSPORT: u16 = AT_TRANSPORT as u16;
const TRANSPORT6: u16 = AT_TRANSPORT6 as u16;
const BAD: Expect = Drops("bad-offload");

/// A header that says everything.
#[derive(Clone, Copy, Default)]
struct Header {
    flags: u8,
    gso: u8,
    headers: u16,
    size: u16,
    start: u16,
    offset: u16,
    buffers: u16,
}

impl Header {
    fn bytes(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..2].copy_from_slice(&[self.flags, self.gso]);
        let fields = [self.headers, self.size, self.start, self.offset, self.buffers];
        for (field, value) in bytes[2..].chunks_mut(2).zip(fields) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }
}

/// A partial checksum.
fn partial(start: u16, offset: u16) -> Header {
    Header { flags: F_NEEDS_CSUM, start, offset, ..Header::default() }
}

/// A TCP frame to be cut up, as it has to be.
fn cut(gso: u8, size: u16) -> Header {
    let start = if gso & !GSO_ECN == GSO_TCPV6 { TRANSPORT6 } else { TRANSPORT };
    Header { gso, size, headers: start + 20, ..partial(start, TCP_SUM) }
}

/// A UDP frame to be cut up.
fn cut_udp(size: u16) -> Header {
    Header { gso: GSO_UDP_L4, size, headers: TRANSPORT + 8, ..partial(TRANSPORT, UDP_SUM) }
}

/// Sends frames behind headers; how many.
fn send(nic: &mut Nic, frames: &[(Header, Vec<u8>)]) -> Result<u64, softdpu_tests::Failure> {
    for (header, frame) in frames {
        nic.send(header.bytes(), frame)?;
    }
    Ok(frames.len() as u64)
}

fn abuse(name: &'static str, expect: Expect, frames: fn() -> Vec<(Header, Vec<u8>)>) -> Abuse {
    Abuse::new(name, OFFLOADING, expect, move |nic| send(nic, &frames()))
}

/// 4,000 bytes of TCP for a guest.
fn large(to: Station) -> Vec<u8> {
    tcp_to(to, &[7; 4000])
}

pub fn abuses() -> Vec<Abuse> {
    [checksums(), segmentation(), hints()].into_iter().flatten().collect()
}

fn checksums() -> Vec<Abuse> {
    vec![
        abuse("csum_start beyond the frame", BAD, || {
            [200, 0x7fff, 0xffff].map(|start| (partial(start, UDP_SUM), udp_to(B, &[0; 64]))).into()
        }),
        abuse("csum_offset beyond the frame", BAD, || {
            [200, 0x7fff, 0xffff].map(|offset| (partial(TRANSPORT, offset), udp_to(B, &[0; 64]))).into()
        }),
        abuse("a checksum of which a byte is in the frame", BAD, || {
            let frame = udp_to(B, &[0; 64]);
            vec![(partial(frame.len() as u16 - 1, 0), frame.clone()), (partial(0, frame.len() as u16 - 1), frame)]
        }),
        abuse("a checksum over the Ethernet header", BAD, || {
            [(0, 0), (0, 6), (6, 6), (12, 0), (0, 12)].map(|(s, o)| (partial(s, o), udp_to(B, &[0; 64]))).into()
        }),
        abuse("a checksum over the addresses", BAD, || {
            [(IP, 10), (IP, 12), (IP, 16), (0, 26), (30, 0)].map(|(s, o)| (partial(s, o), udp_to(B, &[0; 64]))).into()
        }),
        abuse("a checksum over the ports", BAD, || {
            [0, 2, 4].map(|offset| (partial(TRANSPORT, offset), udp_to(B, &[0; 64]))).into()
        }),
        abuse("a checksum in padding", BAD, || {
            let frame = [udp_to(B, &[]), vec![0; 18]].concat();
            vec![(partial(46, 0), frame)]
        }),
        abuse("a checksum of a fragment", BAD, || {
            vec![(partial(TRANSPORT, UDP_SUM), with(udp_to(B, &[0; 64]), AT_IP + 6, &[0x20, 0]))]
        }),
        abuse("a checksum of ARP", BAD, || {
            vec![
                (partial(14, 0), arp(1, MALLORY.mac, MALLORY.address, GATEWAY)),
                (cut(GSO_TCPV4, 100), arp(1, MALLORY.mac, MALLORY.address, GATEWAY)),
            ]
        }),
        Abuse::new("a partial checksum that was not negotiated", Settings::PLAIN, BAD, |nic| {
            send(nic, &[(partial(TRANSPORT, UDP_SUM), udp_to(B, &[0; 64]))])
        }),
        abuse("all flags", BAD, || vec![(Header { flags: 0xff, ..Header::default() }, udp_to(B, &[0; 64]))]),
    ]
}

fn segmentation() -> Vec<Abuse> {
    vec![
        abuse("segmentation without a checksum", BAD, || {
            let without = |header: Header| Header { flags: 0, ..header };
            vec![
                (without(cut(GSO_TCPV4, 1000)), large(B)),
                (Header { flags: F_DATA_VALID, ..cut(GSO_TCPV4, 1000) }, large(B)),
                (without(cut_udp(1000)), udp_to(B, &[0; 4000])),
            ]
        }),
        abuse("unknown gso_type", BAD, || {
            [2, 3, 6, 0x10, 0x40, 0x7f, 0x80, 0x82, 0xff].map(|gso| (cut(gso, 1000), large(B))).into()
        }),
        abuse("gso_size 0", BAD, || {
            vec![
                (cut(GSO_TCPV4, 0), large(B)),
                (cut(GSO_TCPV4 | GSO_ECN, 0), large(B)),
                (cut(GSO_TCPV6, 0), tcp6_to(B, 0xb, &[0; 4000])),
                (cut_udp(0), udp_to(B, &[0; 4000])),
            ]
        }),
        abuse("segments of a byte", BAD, || {
            let frame = tcp_to(B, &vec![0; 65_000]);
            vec![(cut(GSO_TCPV4, 1), frame.clone()), (cut(GSO_TCPV4, 7), frame), (cut_udp(1), udp_to(B, &[0; 1400]))]
        }),
        abuse("segmentation as what it is not", BAD, || {
            vec![
                (cut(GSO_TCPV6, 1000), large(B)),
                (Header { start: TRANSPORT, ..cut(GSO_TCPV6, 1000) }, large(B)),
                (Header { gso: GSO_UDP_L4, ..cut(GSO_TCPV4, 1000) }, large(B)),
                (cut(GSO_TCPV4, 1000), udp_to(B, &[0; 4000])),
                (Header { gso: GSO_TCPV4, ..cut_udp(1000) }, udp_to(B, &[0; 4000])),
                (Header { start: TRANSPORT6, ..cut(GSO_TCPV4, 1000) }, tcp6_to(B, 0xb, &[0; 4000])),
            ]
        }),
        abuse("congestion marks on UDP", BAD, || {
            vec![(Header { gso: GSO_UDP_L4 | GSO_ECN, ..cut_udp(1000) }, udp_to(B, &[0; 4000]))]
        }),
        abuse("segmentation with the checksum elsewhere", BAD, || {
            vec![
                (Header { offset: 18, ..cut(GSO_TCPV4, 1000) }, large(B)),
                (Header { start: TRANSPORT + 20, offset: 0, ..cut(GSO_TCPV4, 1000) }, large(B)),
            ]
        }),
        abuse("segmentation of a fragment", BAD, || {
            vec![(cut(GSO_TCPV4, 1000), with(large(B), AT_IP + 6, &[0x20, 0]))]
        }),
        abuse("segmentation of a cut-off TCP header", Drops("truncated"), || {
            let mut frame = tcp_to(B, &[]);
            frame[AT_TRANSPORT + 12] = 0xf0;
            vec![(cut(GSO_TCPV4, 1000), frame)]
        }),
        Abuse::new("segmentation that was not negotiated", Settings::PLAIN, BAD, |nic| {
            send(nic, &[(cut(GSO_TCPV4, 1000), large(B)), (cut_udp(1000), udp_to(B, &[0; 4000]))])
        }),
        abuse("segments larger than the path takes", Drops("path-mtu"), || {
            vec![(cut(GSO_TCPV4, 2000), uncut(large(B))), (cut(GSO_TCPV4, 0xffff), uncut(tcp_to(B, &vec![0; 60_000])))]
        }),
    ]
}

/// What the device must not take for more than a hint, on frames that are right otherwise.
fn hints() -> Vec<Abuse> {
    vec![
        abuse("hdr_len nonsense", Harmless, || {
            [0, 1, 54, 4000, 0x7fff, 0xffff]
                .map(|headers| (Header { headers, ..cut(GSO_TCPV4, 1000) }, large(SINK)))
                .into()
        }),
        abuse("num_buffers nonsense", Harmless, || {
            [0, 2, 256, 0xffff].map(|buffers| (Header { buffers, ..Header::default() }, udp_to(SINK, &[0; 64]))).into()
        }),
        abuse("segmentation fields without a type", Harmless, || {
            vec![(
                Header { headers: 9, size: 0xffff, start: 0xffff, offset: 0xffff, ..Header::default() },
                udp_to(SINK, &[0; 64]),
            )]
        }),
        abuse("a frame to be cut up that is one segment, or none", Harmless, || {
            vec![
                (cut(GSO_TCPV4, 1000), tcp_to(SINK, &[0; 1000])),
                (cut(GSO_TCPV4, 1000), tcp_to(SINK, &[0; 1])),
                (cut(GSO_TCPV4, 1000), tcp_to(SINK, &[])),
                (cut_udp(1000), udp_to(SINK, &[])),
            ]
        }),
    ]
}
