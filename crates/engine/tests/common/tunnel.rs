//! The underlay of a node and what comes by it from another one.

use softdpu_vpc::PortId;
use softdpu_vpc::packet::Mac;
use softdpu_vpc::spec::{NeighborSpec, UnderlaySpec};

pub const UNDERLAY: PortId = PortId(9);
pub const NAME: &str = "underlay";
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// The address of a node's tunnel end point: this one has 1.
pub fn end_point(last: u8) -> std::net::IpAddr {
    [192, 0, 2, last].into()
}

pub fn underlay() -> UnderlaySpec {
    UnderlaySpec {
        port: UNDERLAY,
        addresses: vec![end_point(1)],
        mac: Mac(OWN),
        udp_port: 4789,
        mtu: 1500,
        dont_fragment: true,
    }
}

/// Node 2, on the same link.
pub fn neighbor() -> NeighborSpec {
    NeighborSpec { host: end_point(2), mac: Mac([2, 0, 0, 0, 0, 2]) }
}

/// Writes an IPv4 header's checksum, which is 0.
pub fn checksum(header: &mut [u8]) {
    let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// A frame of a network in its tunnel from node 2.
pub fn encapsulated(vni: u32, inner: &[u8]) -> Vec<u8> {
    let length = |more: usize| ((inner.len() + more) as u16).to_be_bytes();
    let mut ip = vec![0x45, 0];
    ip.extend(length(20 + 8 + 8));
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 2, 192, 0, 2, 1]);
    checksum(&mut ip);
    let mut frame = [&OWN[..], &[2, 0, 0, 0, 0, 2], &[8, 0], &ip].concat();
    // All by one outer port: nothing but what is inside tells flows apart.
    frame.extend([0xc0, 1, 0x12, 0xb5]);
    frame.extend(length(8 + 8));
    frame.extend([0, 0, 8, 0, 0, 0]);
    frame.extend((vni << 8).to_be_bytes());
    frame.extend(inner);
    frame
}
