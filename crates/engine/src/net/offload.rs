//! Offload in the words of virtio-net and in those of the VPC.

use softdpu_device::net::{self, RxHeader};
use softdpu_vpc::{Checksum, Packet, Segmentation, SegmentationKind};

pub(crate) fn checksum(checksum: net::Checksum) -> Checksum {
    match checksum {
        net::Checksum::Complete => Checksum::Complete,
        net::Checksum::Valid => Checksum::Valid,
        net::Checksum::Partial { start, offset } => Checksum::Partial { start, offset },
    }
}

pub(crate) fn segmentation(segmentation: net::Segmentation) -> Segmentation {
    let kind = match segmentation.kind {
        net::SegmentationKind::TcpV4 => SegmentationKind::TcpV4,
        net::SegmentationKind::TcpV6 => SegmentationKind::TcpV6,
        net::SegmentationKind::Udp => SegmentationKind::Udp,
    };
    Segmentation { kind, size: segmentation.size, ecn: segmentation.ecn }
}

/// The virtio header that says what is left to do to a frame.
#[inline]
pub(crate) fn header(packet: &Packet) -> RxHeader {
    let checksum = match packet.checksum {
        Checksum::Complete => net::Checksum::Complete,
        Checksum::Valid => net::Checksum::Valid,
        Checksum::Partial { start, offset } => net::Checksum::Partial { start, offset },
    };
    let Some(segmentation) = packet.segmentation else {
        return RxHeader { checksum, segmentation: None, headers: 0, ipv6: false };
    };
    let kind = match segmentation.kind {
        SegmentationKind::TcpV4 => net::SegmentationKind::TcpV4,
        SegmentationKind::TcpV6 => net::SegmentationKind::TcpV6,
        SegmentationKind::Udp => net::SegmentationKind::Udp,
    };
    let segmentation = net::Segmentation { kind, size: segmentation.size, ecn: segmentation.ecn };
    RxHeader { checksum, segmentation: Some(segmentation), headers: headers(packet), ipv6: is_ipv6(packet) }
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
