//! Feature bits of the protocol, and the virtio feature bits the protocol itself looks at.

use std::fmt;

use serde::{Deserialize, Serialize};
use softdpu_virtio::feature;

/// `VHOST_F_LOG_ALL`: writes to guest memory are recorded in the dirty log (vhost-user: Migration).
pub const F_LOG_ALL: u64 = 1 << 26;
/// `VHOST_USER_F_PROTOCOL_FEATURES`: both sides know protocol features, and rings start disabled (vhost-user:
/// Communication; Ring states).
pub const F_PROTOCOL_FEATURES: u64 = 1 << 30;
/// `VIRTIO_F_RING_PACKED` (virtio 1.3 §6).
pub const F_RING_PACKED: u64 = feature::RING_PACKED;
/// `VIRTIO_F_ACCESS_PLATFORM`, in which ring addresses are IOVAs and an IOTLB is needed; not offered (virtio 1.3 §6).
pub(crate) const F_ACCESS_PLATFORM: u64 = feature::ACCESS_PLATFORM;

/// A set of protocol features (vhost-user: Protocol features).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProtocolFeatures(pub u64);

macro_rules! protocol_features {
    ($($(#[$doc:meta])* $name:ident = $bit:literal;)*) => {
        impl ProtocolFeatures {
            $($(#[$doc])* pub const $name: ProtocolFeatures = ProtocolFeatures(1 << $bit);)*

            const NAMES: &'static [(u64, &'static str)] = &[$((1 << $bit, stringify!($name))),*];
        }
    };
}

protocol_features! {
    /// `VHOST_USER_PROTOCOL_F_MQ`: GET_QUEUE_NUM.
    MQ = 0;
    /// `VHOST_USER_PROTOCOL_F_LOG_SHMFD`: SET_LOG_BASE carries the log's memory.
    LOG_SHMFD = 1;
    /// `VHOST_USER_PROTOCOL_F_RARP`: SEND_RARP.
    RARP = 2;
    /// `VHOST_USER_PROTOCOL_F_REPLY_ACK`: the need_reply flag.
    REPLY_ACK = 3;
    /// `VHOST_USER_PROTOCOL_F_MTU`: NET_SET_MTU.
    MTU = 4;
    /// `VHOST_USER_PROTOCOL_F_BACKEND_REQ`: SET_BACKEND_REQ_FD.
    BACKEND_REQ = 5;
    /// `VHOST_USER_PROTOCOL_F_CONFIG`: GET_CONFIG, SET_CONFIG.
    CONFIG = 9;
    /// `VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`: GET_INFLIGHT_FD, SET_INFLIGHT_FD.
    INFLIGHT_SHMFD = 12;
    /// `VHOST_USER_PROTOCOL_F_RESET_DEVICE`: RESET_DEVICE.
    RESET_DEVICE = 13;
    /// `VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS`: GET_MAX_MEM_SLOTS, ADD_MEM_REG, REM_MEM_REG.
    CONFIGURE_MEM_SLOTS = 15;
    /// `VHOST_USER_PROTOCOL_F_STATUS`: GET_STATUS, SET_STATUS.
    STATUS = 16;
    /// `VHOST_USER_PROTOCOL_F_GET_VRING_BASE_INFLIGHT`: a stopped ring may leave requests in the in-flight region.
    GET_VRING_BASE_INFLIGHT = 20;
}

impl ProtocolFeatures {
    /// No feature.
    pub const NONE: ProtocolFeatures = ProtocolFeatures(0);

    /// What every device has.
    pub const COMMON: ProtocolFeatures = ProtocolFeatures::MQ
        .with(ProtocolFeatures::LOG_SHMFD)
        .with(ProtocolFeatures::REPLY_ACK)
        .with(ProtocolFeatures::BACKEND_REQ)
        .with(ProtocolFeatures::RESET_DEVICE)
        .with(ProtocolFeatures::CONFIGURE_MEM_SLOTS)
        .with(ProtocolFeatures::STATUS);

    /// What a block device wants.
    pub const BLOCK: ProtocolFeatures = ProtocolFeatures::COMMON
        .with(ProtocolFeatures::CONFIG)
        .with(ProtocolFeatures::INFLIGHT_SHMFD)
        .with(ProtocolFeatures::GET_VRING_BASE_INFLIGHT);

    /// What a network device wants. The front end owns a NIC's configuration space.
    ///
    /// Not CONFIGURE_MEM_SLOTS: QEMU has a vhost device for each queue pair, all on one connection, and 7.2 sends
    /// ADD_MEM_REG for each of them, so the second pair's would be refused; SET_MEM_TABLE it sends once.
    pub const NET: ProtocolFeatures = ProtocolFeatures::COMMON
        .without(ProtocolFeatures::CONFIGURE_MEM_SLOTS)
        .with(ProtocolFeatures::RARP)
        .with(ProtocolFeatures::MTU);

    /// Everything this crate implements; a device's wishes are cut down to it.
    pub const IMPLEMENTED: ProtocolFeatures = ProtocolFeatures::BLOCK.with(ProtocolFeatures::NET);

    /// The union of two sets.
    pub const fn with(self, other: ProtocolFeatures) -> ProtocolFeatures {
        ProtocolFeatures(self.0 | other.0)
    }

    /// The set without `other`.
    pub const fn without(self, other: ProtocolFeatures) -> ProtocolFeatures {
        ProtocolFeatures(self.0 & !other.0)
    }

    /// What both sets have.
    pub const fn and(self, other: ProtocolFeatures) -> ProtocolFeatures {
        ProtocolFeatures(self.0 & other.0)
    }

    /// Whether every feature of `other` is in the set.
    pub const fn contains(self, other: ProtocolFeatures) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Display for ProtocolFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut separator = "";
        for (bit, name) in Self::NAMES {
            if rest & bit != 0 {
                rest &= !bit;
                write!(f, "{separator}{name}")?;
                separator = "|";
            }
        }
        if rest != 0 || self.0 == 0 {
            write!(f, "{separator}{rest:#x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ProtocolFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtocolFeatures({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_the_specification() {
        assert_eq!(ProtocolFeatures::MQ.0, 0x1);
        assert_eq!(ProtocolFeatures::CONFIG.0, 0x200);
        assert_eq!(ProtocolFeatures::CONFIGURE_MEM_SLOTS.0, 0x8000);
        assert_eq!(ProtocolFeatures::GET_VRING_BASE_INFLIGHT.0, 0x10_0000);
    }

    #[test]
    fn a_set_prints_its_names_and_the_bits_without_one() {
        assert_eq!(ProtocolFeatures(0b1001).to_string(), "MQ|REPLY_ACK");
        assert_eq!(ProtocolFeatures(1 << 40 | 1).to_string(), "MQ|0x10000000000");
        assert_eq!(ProtocolFeatures::NONE.to_string(), "0x0");
    }

    #[test]
    fn a_block_device_has_what_libblkio_requires() {
        let required = ProtocolFeatures::MQ
            .with(ProtocolFeatures::CONFIG)
            .with(ProtocolFeatures::REPLY_ACK)
            .with(ProtocolFeatures::CONFIGURE_MEM_SLOTS);
        assert!(ProtocolFeatures::BLOCK.contains(required));
    }
}
