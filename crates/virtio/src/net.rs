//! What a frame's sender left for others to do (virtio 1.3 §5.1.6.2, Linux `skbuff.h` "checksumming").

/// What is known about the transport checksum of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// It is in the frame; it has not been checked.
    #[default]
    Complete,
    /// It is in the frame and right, or the frame never was on a wire that could have damaged it
    /// (VIRTIO_NET_HDR_F_DATA_VALID).
    Valid,
    /// The field holds the pseudo header's sum only (VIRTIO_NET_HDR_F_NEEDS_CSUM): the sum from `start` to the end of
    /// the frame is still to be added and stored `offset` bytes behind `start`.
    Partial {
        /// First byte to sum, from the start of the (inner) frame.
        start: u16,
        /// Where the checksum goes, from `start`.
        offset: u16,
    },
}

/// A frame to be segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// How it is cut up.
    pub kind: SegmentationKind,
    /// Transport payload bytes in each frame but the last; not 0.
    pub size: u16,
    /// The CWR flag belongs on the first segment alone (VIRTIO_NET_HDR_GSO_ECN).
    pub ecn: bool,
}

/// How a frame is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentationKind {
    /// TCP over IPv4 (VIRTIO_NET_HDR_GSO_TCPV4).
    TcpV4,
    /// TCP over IPv6 (VIRTIO_NET_HDR_GSO_TCPV6).
    TcpV6,
    /// UDP over either, each segment a datagram (VIRTIO_NET_HDR_GSO_UDP_L4).
    Udp,
}
