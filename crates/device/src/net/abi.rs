//! Numbers of the virtio-net interface, with the section of virtio 1.3 that gives them.

pub use softdpu_virtio::net_header as header;

/// Feature bits of the network device (§5.1.3).
pub mod feature {
    pub use softdpu_virtio::feature::*;

    /// The device finishes partial checksums.
    pub const CSUM: u64 = 1 << 0;
    /// The driver takes frames with partial checksums.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// `mtu` is valid.
    pub const MTU: u64 = 1 << 3;
    /// `mac` is valid.
    pub const MAC: u64 = 1 << 5;
    /// The driver takes TCP over IPv4 frames that stand for several.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// The driver takes TCP over IPv6 frames that stand for several.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// The driver takes such frames with congestion marks.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// The device cuts up TCP over IPv4.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// The device cuts up TCP over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// The device cuts up TCP with congestion marks.
    pub const HOST_ECN: u64 = 1 << 13;
    /// A received frame may lie in several buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// `status` is valid.
    pub const STATUS: u64 = 1 << 16;
    /// The driver can announce its addresses by itself.
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    /// Several queue pairs.
    pub const MQ: u64 = 1 << 22;
    /// The driver takes UDP over IPv4 frames that stand for several.
    pub const GUEST_USO4: u64 = 1 << 54;
    /// The driver takes UDP over IPv6 frames that stand for several.
    pub const GUEST_USO6: u64 = 1 << 55;
    /// The device cuts up UDP.
    pub const HOST_USO: u64 = 1 << 56;
}

/// Offsets in `struct virtio_net_config` (§5.1.4).
pub mod config {
    /// Six bytes.
    pub const MAC: usize = 0;
    /// le16, [`LINK_UP`].
    pub const STATUS: usize = 6;
    /// le16.
    pub const MAX_VIRTQUEUE_PAIRS: usize = 8;
    /// le16, bytes.
    pub const MTU: usize = 10;
    /// Bytes of the fields this device has. What follows in the structure belongs to features that are not offered.
    pub const SIZE: usize = 12;

    /// VIRTIO_NET_S_LINK_UP.
    pub const LINK_UP: u16 = 1;
}

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;

/// Most bytes of a frame, its Ethernet header included: what a driver of a device with segmentation offloads provides
/// buffers for, less the header (§5.1.6.3.1: 65562 − 12).
pub const MAX_FRAME: usize = 65550;
