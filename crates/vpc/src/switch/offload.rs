//! Whether the offload that came with a frame fits it (virtio 1.3 §5.1.6.2: the device must not trust it).

use crate::packet::{Checksum, Ip, Layer4, Segmentation, SegmentationKind};
use crate::verdict::DropReason;

/// Least payload of a TCP segment that is cut from a larger one: Linux' own least (TCP_MIN_GSO_SIZE).
const LEAST_SEGMENT: u16 = 8;
/// Most datagrams one is cut into: Linux' own most (UDP_MAX_SEGMENTS).
const MOST_DATAGRAMS: usize = 128;

/// Checks the offload of a frame that carries no IP.
pub(super) fn none(checksum: Checksum, segmentation: Option<Segmentation>) -> Result<(), DropReason> {
    let partial = matches!(checksum, Checksum::Partial { .. });
    if partial || segmentation.is_some() { Err(DropReason::BadOffload) } else { Ok(()) }
}

/// Checks the offload of a frame with the IP headers `ip`, of which the first bytes, `head` of them, are there.
#[inline]
pub(super) fn check(
    ip: &Ip,
    head: usize,
    checksum: Checksum,
    segmentation: Option<Segmentation>,
) -> Result<(), DropReason> {
    if let Checksum::Partial { start, offset } = checksum {
        check_partial(ip, start, offset)?;
    }
    match segmentation {
        None => Ok(()),
        Some(segmentation) => check_segmentation(ip, head, checksum, segmentation),
    }
}

/// The field is the transport header's own, or lies behind that header, in a packet that the guest encapsulated itself:
/// anywhere else it would change what was checked.
#[inline]
fn check_partial(ip: &Ip, start: u16, offset: u16) -> Result<(), DropReason> {
    let (header, own) = match ip.layer4 {
        Layer4::Tcp { header, .. } => (u16::from(header), Some(16)),
        Layer4::Udp { .. } => (8, Some(6)),
        Layer4::Icmp { .. } => (8, Some(2)),
        Layer4::Other => (0, None),
    };
    let field = usize::from(start) + usize::from(offset);
    let fits = (start == ip.transport && own == Some(offset)) || start >= ip.transport + header;
    if fits && ip.fragment.is_none() && field + 2 <= ip.end as usize { Ok(()) } else { Err(DropReason::BadOffload) }
}

fn check_segmentation(ip: &Ip, head: usize, checksum: Checksum, cut: Segmentation) -> Result<(), DropReason> {
    let (header, field) = match (cut.kind, ip.layer4, ip.is_ipv6()) {
        (SegmentationKind::TcpV4, Layer4::Tcp { header, .. }, false)
        | (SegmentationKind::TcpV6, Layer4::Tcp { header, .. }, true) => (header, 16),
        (SegmentationKind::Udp, Layer4::Udp { .. }, _) => (8, 6),
        _ => return Err(DropReason::BadOffload),
    };
    let payload_at = usize::from(ip.transport) + usize::from(header);
    let payload = (ip.end as usize).saturating_sub(payload_at);
    let too_many = match cut.kind {
        SegmentationKind::TcpV4 | SegmentationKind::TcpV6 => cut.size < LEAST_SEGMENT,
        SegmentationKind::Udp => cut.size == 0 || payload > MOST_DATAGRAMS * usize::from(cut.size),
    };
    // A frame that is to be cut up has its checksum still to come, in the transport header itself.
    let partial = Checksum::Partial { start: ip.transport, offset: field };
    if too_many || ip.fragment.is_some() || checksum != partial {
        return Err(DropReason::BadOffload);
    }
    if payload_at > head { Err(DropReason::Headers) } else { Ok(()) }
}

/// Bytes of the largest IP packet that leaves, after the cutting.
#[inline]
pub(super) fn packet_len(ip: &Ip, segmentation: Option<Segmentation>) -> usize {
    let Some(cut) = segmentation else { return ip.len() };
    let header = match ip.layer4 {
        Layer4::Tcp { header, .. } => usize::from(header),
        Layer4::Udp { .. } | Layer4::Icmp { .. } | Layer4::Other => 8,
    };
    ip.len().min(usize::from(ip.transport - ip.header) + header + usize::from(cut.size))
}
