//! The virtio header of a packet.

use softdpu_device::net::RxHeader;
use softdpu_vpc::{Checksum, Packet, SegmentationKind};

/// The virtio header that says what is left to do to a frame.
#[inline]
pub(crate) fn header(packet: &Packet) -> RxHeader {
    let (checksum, segmentation) = (packet.checksum, packet.segmentation);
    if segmentation.is_none() {
        return RxHeader { checksum, segmentation, headers: 0, ipv6: false };
    }
    RxHeader { checksum, segmentation, headers: headers(packet), ipv6: is_ipv6(packet) }
}

fn is_ipv6(packet: &Packet) -> bool {
    const ETHER_TYPE: std::ops::Range<usize> = 12..14;
    packet.head.bytes().get(ETHER_TYPE) == Some(&[0x86, 0xdd])
}

/// Bytes of all headers of a frame that stands for several, a hint to the driver (virtio 1.3 §5.1.6.2, `hdr_len`).
fn headers(packet: &Packet) -> u16 {
    const TCP_DATA_OFFSET: usize = 12;
    const UDP: u16 = 8;
    let Checksum::Partial { start, .. } = packet.checksum else { return 0 };
    match packet.segmentation.map(|segmentation| segmentation.kind) {
        Some(SegmentationKind::Udp) => start.saturating_add(UDP),
        _ => {
            let words = packet.head.bytes().get(usize::from(start) + TCP_DATA_OFFSET).map_or(0, |byte| byte >> 4);
            start.saturating_add(u16::from(words) * 4)
        }
    }
}
