//! How a virtio-net device is configured, and which configurations make no sense.

use thiserror::Error;

/// Most queue pairs: a queue index on the vhost-user wire has eight bits, and a pair has two.
pub const MAX_QUEUE_PAIRS: u16 = 128;

/// The configuration of a virtio-net device. [`NetConfig::new`] has the defaults; all fields may be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetConfig {
    /// The address of the interface: one station's.
    pub mac: [u8; 6],
    /// Most bytes of a frame behind its Ethernet header: 68 (IPv4's least, RFC 791) to 65,535.
    pub mtu: u16,
    /// Receive and transmit queues, so many of each: 1 to [`MAX_QUEUE_PAIRS`].
    pub queue_pairs: u16,
    /// Entries of each queue: a power of two, 4 to 32,768.
    pub queue_size: u16,
    /// Offers packed virtqueues.
    pub packed: bool,
    /// Offers partial checksums in both directions. Without them there is no segmentation offload either.
    pub checksum_offload: bool,
    /// Offers segmentation (TCP, UDP) in both directions.
    pub segmentation_offload: bool,
}

impl NetConfig {
    /// An interface with one queue pair of 256 entries, an MTU of 1500, all offloads, split and packed rings.
    pub fn new(mac: [u8; 6]) -> Self {
        NetConfig {
            mac,
            mtu: 1500,
            queue_pairs: 1,
            queue_size: 256,
            packed: true,
            checksum_offload: true,
            segmentation_offload: true,
        }
    }

    /// Whether it makes sense; the first thing found that does not.
    ///
    /// # Errors
    /// [`NetConfigError`] names the field, the value and what is expected.
    pub fn check(&self) -> Result<(), NetConfigError> {
        use NetConfigError as E;
        if self.mac == [0; 6] || self.mac[0] & 1 != 0 {
            return Err(E::Mac(Mac(self.mac)));
        }
        if self.mtu < 68 {
            return Err(E::Mtu(self.mtu));
        }
        if !(1..=MAX_QUEUE_PAIRS).contains(&self.queue_pairs) {
            return Err(E::QueuePairs(self.queue_pairs));
        }
        if !self.queue_size.is_power_of_two() || !(4..=32768).contains(&self.queue_size) {
            return Err(E::QueueSize(self.queue_size));
        }
        if self.segmentation_offload && !self.checksum_offload {
            return Err(E::SegmentationWithoutChecksum);
        }
        Ok(())
    }
}

/// An address as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl std::fmt::Display for Mac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Why a configuration makes no sense.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NetConfigError {
    /// The address.
    #[error("mac {0} is not the address of one station: it is zero, or its first octet is odd (a group)")]
    Mac(Mac),
    /// The MTU.
    #[error("mtu {0} is less than 68, the least IPv4 needs")]
    Mtu(u16),
    /// The queue pairs.
    #[error("{0} queue pairs configured; from 1 to {MAX_QUEUE_PAIRS} are possible")]
    QueuePairs(u16),
    /// The queue size.
    #[error("queue size {0} is not a power of two from 4 to 32768")]
    QueueSize(u16),
    /// An offload without the one it needs (virtio 1.3 §5.1.3.1).
    #[error("segmentation offload needs checksum offload: switch both off, or both on")]
    SegmentationWithoutChecksum,
}
