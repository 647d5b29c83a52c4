//! Frames for tests.

use softdpu_vpc::{Checksum, Head, Packet, PortId, Vni};

use crate::{FrameDirection, Observation};

/// The network that frames are of.
pub const VNI: Vni = Vni::new(5001).unwrap();

/// A frame as a port brings it.
pub fn packet(frame: &[u8]) -> Packet {
    let head = Head::of(frame);
    let tail = (frame.len() - head.len()) as u32;
    Packet { head, tail, checksum: Checksum::Complete, segmentation: None, port: PortId(0) }
}

fn ipv4(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Packet {
    let len = (20 + payload.len()) as u16;
    let ethernet = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let mut frame = ethernet.to_vec();
    frame.extend([0x45, 0]);
    frame.extend(len.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(source);
    frame.extend(destination);
    frame.extend(payload);
    packet(&frame)
}

/// A datagram with so many bytes.
pub fn udp(source: [u8; 4], from: u16, destination: [u8; 4], to: u16, bytes: usize) -> Packet {
    ipv4(source, destination, 17, &datagram(from, to, bytes))
}

fn datagram(from: u16, to: u16, bytes: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    payload.extend(from.to_be_bytes());
    payload.extend(to.to_be_bytes());
    payload.extend(((8 + bytes) as u16).to_be_bytes());
    payload.extend([0, 0]);
    payload.extend(vec![0; bytes]);
    payload
}

/// A datagram over IPv6, between addresses that end in these bytes.
pub fn udp6(source: u8, from: u16, destination: u8, to: u16, bytes: usize) -> Packet {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0];
    frame.extend(((8 + bytes) as u16).to_be_bytes());
    frame.extend([17, 64]);
    for last in [source, destination] {
        frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    frame.extend(datagram(from, to, bytes));
    packet(&frame)
}

/// A datagram of 1,600 bytes in two fragments.
pub fn fragments(source: [u8; 4], from: u16, destination: [u8; 4], to: u16, id: u8) -> [Packet; 2] {
    let whole = datagram(from, to, 1600);
    [(0x2000_u16, &whole[..800]), (100, &whole[800..])].map(|(part, payload)| {
        let mut packet = ipv4(source, destination, 17, payload);
        let header = &mut packet.head.bytes_mut()[18..22];
        header.copy_from_slice(&[&[0, id][..], &part.to_be_bytes()].concat());
        packet
    })
}

/// An ICMPv6 message with no more than its header, between addresses that end in these bytes.
pub fn icmp6(source: u8, destination: u8, kind: u8) -> Packet {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 58, 255];
    for last in [source, destination] {
        frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    frame.extend([kind, 0, 0, 0]);
    frame.extend([0; 20]);
    packet(&frame)
}

/// A segment with these flags and so many bytes.
pub fn tcp(source: [u8; 4], from: u16, destination: [u8; 4], to: u16, flags: u8, bytes: usize) -> Packet {
    let mut payload = Vec::new();
    payload.extend(from.to_be_bytes());
    payload.extend(to.to_be_bytes());
    // A SYN-ACK acknowledges the SYN.
    payload.extend([0, 0, 0, 1, 0, 0, 0, if flags == 0x12 { 2 } else { 1 }, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    payload.extend(vec![0; bytes]);
    ipv4(source, destination, 6, &payload)
}

/// An ICMP message.
pub fn icmp(source: [u8; 4], destination: [u8; 4], kind: u8, code: u8) -> Packet {
    ipv4(source, destination, 1, &[kind, code, 0, 0, 0, 1, 0, 1])
}

/// An ARP request.
pub fn arp() -> Packet {
    let mut frame = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    frame.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    packet(&frame)
}

/// What functions see of it, on its way in by network 5001.
pub fn seen(packet: &Packet) -> Observation {
    Observation::of(packet, FrameDirection::In, VNI)
}
