//! Feature bits that are not a device type's own: those of rings and of the way to the device (virtio 1.3 §6).

/// VIRTIO_F_INDIRECT_DESC: descriptors may refer to tables of descriptors.
pub const RING_INDIRECT_DESC: u64 = 1 << 28;
/// VIRTIO_F_EVENT_IDX: each side says at which index it wants to be notified.
pub const RING_EVENT_IDX: u64 = 1 << 29;
/// VIRTIO_F_VERSION_1: not a legacy device (§6.1).
pub const VERSION_1: u64 = 1 << 32;
/// VIRTIO_F_ACCESS_PLATFORM: addresses are IOVAs.
pub const ACCESS_PLATFORM: u64 = 1 << 33;
/// VIRTIO_F_RING_PACKED: packed virtqueues.
pub const RING_PACKED: u64 = 1 << 34;
/// VIRTIO_F_IN_ORDER: buffers are used in the order in which they were made available.
pub const IN_ORDER: u64 = 1 << 35;
