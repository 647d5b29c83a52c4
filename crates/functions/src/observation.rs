//! A frame at the observation point of an interface (RFC 7011 §2), as functions see it.

use softdpu_vpc::packet::{Ip, Layer4, parse};
use softdpu_vpc::trace::Subject;
use softdpu_vpc::{Packet, Segmentation, Vni};

/// Most functions of a chain.
pub const CHAIN: usize = 8;

/// The direction of a frame at an interface (IPFIX: flowDirection, RFC 5102 §5.11.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrameDirection {
    /// From the interface into the network.
    In,
    /// From the network to the interface.
    Out,
}

/// A frame, parsed once for all functions of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// What filters look at.
    pub subject: Subject,
    /// Its direction at the interface.
    pub direction: FrameDirection,
    /// The number of the interface that it passes, as the node counts its ports.
    pub port: u32,
    /// The packets that it stands for: one, or as many as it will be cut into.
    pub packets: u32,
    /// Bytes of the IP packet, header and payload; of a frame that stands for several packets, its own, in which their
    /// headers are there once. Of a frame without IP: its bytes.
    pub octets: u32,
    /// What a function found when it judged the frame, by its place in the chain.
    pub marks: [u16; CHAIN],
    /// The place in the chain of the function that dropped it.
    pub dropped: Option<u8>,
}

impl Observation {
    /// Of a frame that passes an interface of the network with this VNI: the one that it came in by.
    #[inline]
    pub fn of(packet: &Packet, direction: FrameDirection, vni: Vni) -> Observation {
        let parsed = parse(packet.head.bytes(), packet.len()).ok();
        let ip = parsed.as_ref().and_then(|parsed| parsed.ip());
        let octets = ip.map_or(packet.len(), Ip::len) as u32;
        let packets = ip.zip(packet.segmentation).map_or(1, |(ip, cut)| pieces(ip, cut));
        let subject = Subject { len: packet.len(), packet: parsed, outer: None, vni: Some(vni) };
        Observation { subject, direction, port: packet.port.0, packets, octets, marks: [0; CHAIN], dropped: None }
    }

    /// Its IP headers.
    #[inline]
    pub fn ip(&self) -> Option<&Ip> {
        self.subject.packet.as_ref()?.ip()
    }

    /// Whether the function at `place` of the chain sees it: none before it dropped it.
    #[inline]
    pub fn reaches(&self, place: usize) -> bool {
        self.dropped.is_none_or(|at| usize::from(at) >= place)
    }
}

/// Packets that a frame is cut into.
fn pieces(ip: &Ip, cut: Segmentation) -> u32 {
    let header = match ip.layer4 {
        Layer4::Tcp { header, .. } => u32::from(header),
        Layer4::Udp { .. } | Layer4::Icmp { .. } | Layer4::Other => 8,
    };
    let payload = ip.end.saturating_sub(u32::from(ip.transport) + header);
    payload.div_ceil(u32::from(cut.size.max(1))).max(1)
}

#[cfg(test)]
mod tests {
    use softdpu_vpc::{Checksum, SegmentationKind};

    use super::*;
    use crate::testing::{self, tcp, udp};

    #[test]
    fn a_frame_is_its_ip_packet() {
        let observation =
            Observation::of(&udp([10, 0, 0, 1], 1000, [10, 0, 0, 2], 53, 100), FrameDirection::In, testing::VNI);
        assert_eq!((observation.packets, observation.octets, observation.subject.vni), (1, 128, Some(testing::VNI)));
        assert_eq!(observation.ip().unwrap().ports(), Some((1000, 53)));
    }

    #[test]
    fn padding_is_no_part_of_it() {
        let mut packet = udp([10, 0, 0, 1], 1000, [10, 0, 0, 2], 53, 4);
        packet.tail += 14;
        assert_eq!(Observation::of(&packet, FrameDirection::In, testing::VNI).octets, 32);
    }

    #[test]
    fn a_frame_that_is_to_be_cut_up_stands_for_its_pieces() {
        let mut packet = tcp([10, 0, 0, 1], 1000, [10, 0, 0, 2], 80, 0x10, 14_601);
        packet.checksum = Checksum::Partial { start: 34, offset: 16 };
        packet.segmentation = Some(Segmentation { kind: SegmentationKind::TcpV4, size: 1460, ecn: false });
        let observation = Observation::of(&packet, FrameDirection::Out, testing::VNI);
        assert_eq!((observation.packets, observation.octets), (11, 14_641));
    }

    #[test]
    fn a_frame_without_ip_is_a_packet_too() {
        let observation = Observation::of(&testing::arp(), FrameDirection::In, testing::VNI);
        assert_eq!((observation.packets, observation.octets, observation.ip()), (1, 42, None));
    }
}
