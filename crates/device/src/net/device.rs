//! The device as its control side sees it: features, configuration space, roles of queues.

use thiserror::Error;

use super::abi::{config, feature};
use super::{NetConfig, NetConfigError, Receive, Transmit};

/// A virtio-net device: what it offers, what its configuration space says.
///
/// It is made for front ends that own the control queue and the configuration space, as those of vhost-user do. They
/// offer MAC, STATUS and CTRL_VQ with all that depends on it by themselves and never tell the back end what became of
/// them, so they are not offered here: QEMU masks with the back end's bits only the offloads, MRG_RXBUF, MTU, MQ,
/// GUEST_ANNOUNCE and those of the ring.
#[derive(Debug)]
pub struct Net {
    pub(super) config: NetConfig,
}

/// What a queue is for (virtio 1.3 §5.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueRole {
    /// receiveq: frames to the driver.
    Receive {
        /// Queue pair, from 0.
        pair: u16,
    },
    /// transmitq: frames from the driver.
    Transmit {
        /// Queue pair, from 0.
        pair: u16,
    },
}

impl QueueRole {
    /// The role of the queue with this index. The control queue stays with the front end and has none.
    pub fn of(queue: u16) -> QueueRole {
        let pair = queue / 2;
        if queue.is_multiple_of(2) { QueueRole::Receive { pair } } else { QueueRole::Transmit { pair } }
    }
}

/// Features, each with those of which it needs one (virtio 1.3 §5.1.3.1), among those a back end sees: MQ and
/// GUEST_ANNOUNCE need CTRL_VQ, which the front end keeps to itself.
const REQUIREMENTS: [(u64, &str, u64, &str); 10] = [
    (feature::GUEST_TSO4, "GUEST_TSO4", feature::GUEST_CSUM, "GUEST_CSUM"),
    (feature::GUEST_TSO6, "GUEST_TSO6", feature::GUEST_CSUM, "GUEST_CSUM"),
    (feature::GUEST_USO4, "GUEST_USO4", feature::GUEST_CSUM, "GUEST_CSUM"),
    (feature::GUEST_USO6, "GUEST_USO6", feature::GUEST_CSUM, "GUEST_CSUM"),
    (feature::GUEST_ECN, "GUEST_ECN", feature::GUEST_TSO4 | feature::GUEST_TSO6, "GUEST_TSO4 or GUEST_TSO6"),
    (feature::HOST_TSO4, "HOST_TSO4", feature::CSUM, "CSUM"),
    (feature::HOST_TSO6, "HOST_TSO6", feature::CSUM, "CSUM"),
    (feature::HOST_USO, "HOST_USO", feature::CSUM, "CSUM"),
    (feature::HOST_ECN, "HOST_ECN", feature::HOST_TSO4 | feature::HOST_TSO6, "HOST_TSO4 or HOST_TSO6"),
    (u64::MAX, "this device", feature::VERSION_1, "VERSION_1"),
];

impl Net {
    /// A device of this configuration.
    ///
    /// # Errors
    /// As [`NetConfig::check`].
    pub fn new(config: NetConfig) -> Result<Self, NetConfigError> {
        config.check()?;
        Ok(Net { config })
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &NetConfig {
        &self.config
    }

    /// Queues it has: two a pair.
    pub fn queues(&self) -> u16 {
        self.config.queue_pairs * 2
    }

    /// Feature bits offered; those of the transport come on top.
    pub fn features(&self) -> u64 {
        let config = &self.config;
        let mut bits = feature::VERSION_1
            | feature::RING_INDIRECT_DESC
            | feature::RING_EVENT_IDX
            | feature::IN_ORDER
            | feature::MRG_RXBUF
            | feature::MTU
            | feature::GUEST_ANNOUNCE;
        let mut offer = |condition: bool, more: u64| {
            if condition {
                bits |= more;
            }
        };
        offer(config.packed, feature::RING_PACKED);
        offer(config.queue_pairs > 1, feature::MQ);
        offer(config.checksum_offload, feature::CSUM | feature::GUEST_CSUM);
        offer(
            config.segmentation_offload,
            feature::GUEST_TSO4
                | feature::GUEST_TSO6
                | feature::GUEST_ECN
                | feature::GUEST_USO4
                | feature::GUEST_USO6
                | feature::HOST_TSO4
                | feature::HOST_TSO6
                | feature::HOST_ECN
                | feature::HOST_USO,
        );
        bits
    }

    /// Whether the device can run with what a driver accepted.
    ///
    /// # Errors
    /// The first requirement that is not met (virtio 1.3 §5.1.3.1). VERSION_1 is one: legacy drivers are refused.
    pub fn check_features(&self, negotiated: u64) -> Result<(), FeatureError> {
        for (bit, feature, any, needs) in REQUIREMENTS {
            if (negotiated & bit != 0 || bit == u64::MAX) && negotiated & any == 0 {
                return Err(FeatureError { feature, needs });
            }
        }
        Ok(())
    }

    /// Copies the configuration space from `offset` to `out`: MAC address, link status (always up), queue pairs, MTU.
    ///
    /// # Errors
    /// Where the range is not within the fields this device has.
    pub fn read_config(&self, offset: u32, out: &mut [u8]) -> Result<(), ConfigSpaceError> {
        let start = offset as usize;
        let end = start.checked_add(out.len()).filter(|end| *end <= config::SIZE);
        let end = end.ok_or(ConfigSpaceError { offset, len: out.len() })?;
        out.copy_from_slice(&self.config_space()[start..end]);
        Ok(())
    }

    fn config_space(&self) -> [u8; config::SIZE] {
        let mut space = [0; config::SIZE];
        let mut put = |offset: usize, bytes: &[u8]| space[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(config::MAC, &self.config.mac);
        put(config::STATUS, &config::LINK_UP.to_le_bytes());
        put(config::MAX_VIRTQUEUE_PAIRS, &self.config.queue_pairs.to_le_bytes());
        put(config::MTU, &self.config.mtu.to_le_bytes());
        space
    }

    /// Whether the guest may be told this MTU: what a front end asks with NET_SET_MTU before the device starts.
    ///
    /// # Errors
    /// More than frames of this device may have, or less than IPv4 needs.
    pub fn check_mtu(&self, mtu: u64) -> Result<(), MtuError> {
        let most = self.config.mtu;
        if (68..=u64::from(most)).contains(&mtu) { Ok(()) } else { Err(MtuError { mtu, most }) }
    }

    /// What takes frames from a driver that accepted `negotiated`. Bits that are not offered are ignored.
    pub fn transmit(&self, negotiated: u64) -> Transmit {
        Transmit::new(negotiated & self.features())
    }

    /// What gives frames to a driver that accepted `negotiated`. Bits that are not offered are ignored.
    pub fn receive(&self, negotiated: u64) -> Receive {
        Receive::new(negotiated & self.features())
    }
}

/// A feature was accepted without one it needs.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{feature} needs {needs}, which the driver did not accept (virtio 1.3 §5.1.3.1)")]
pub struct FeatureError {
    /// What was accepted.
    pub feature: &'static str,
    /// What it needs.
    pub needs: &'static str,
}

/// An access beyond the configuration space.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{len} bytes at offset {offset} of a configuration space of {} bytes", config::SIZE)]
pub struct ConfigSpaceError {
    /// Where it began.
    pub offset: u32,
    /// Its length.
    pub len: usize,
}

/// An MTU that was refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the front end wants an MTU of {mtu}; this device has one of {most}: choose from 68 to {most}")]
pub struct MtuError {
    /// Asked for.
    pub mtu: u64,
    /// The device's.
    pub most: u16,
}
