//! `struct virtio_net_hdr_v1` (virtio 1.3 §5.1.6), which precedes every frame on a ring and, in the machine's byte
//! order, at the kernel's TAP and AF_PACKET sockets.

/// Bytes of it. It is 10 only for legacy drivers without MRG_RXBUF (§5.1.6.1), which are refused.
pub const SIZE: usize = 12;
/// Bytes of the legacy form, without `num_buffers`.
pub const LEGACY_SIZE: usize = 10;

/// u8, `F_*`.
pub const FLAGS: usize = 0;
/// u8, `GSO_*`.
pub const GSO_TYPE: usize = 1;
/// le16, bytes of the frame's headers. A hint.
pub const HDR_LEN: usize = 2;
/// le16, bytes of transport payload in each segment.
pub const GSO_SIZE: usize = 4;
/// le16, where the sum begins.
pub const CSUM_START: usize = 6;
/// le16, where the sum goes, from its begin.
pub const CSUM_OFFSET: usize = 8;
/// le16, buffers the frame lies in.
pub const NUM_BUFFERS: usize = 10;

/// The checksum is partial.
pub const F_NEEDS_CSUM: u8 = 1;
/// The checksum was found right.
pub const F_DATA_VALID: u8 = 2;

/// An ordinary frame.
pub const GSO_NONE: u8 = 0;
/// TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// UDP, each segment a datagram.
pub const GSO_UDP_L4: u8 = 5;
/// Added to a TCP type: the frame has congestion marks.
pub const GSO_ECN: u8 = 0x80;
