//! A virtio-net device as configured: its model, its port, and what vhost-user has to know of it.

use softdpu_device::net::abi::config::SIZE as CONFIG_SIZE;
use softdpu_device::net::{Net, NetConfig, NetConfigError, NetState, QueueRole};
use softdpu_engine::{RateLimit, Receive, Role, Transmit};
use softdpu_sched::{Nanos, TokenBucket};
use softdpu_sys::clock;
use softdpu_transport::vhost_user::{DeviceModel, ProtocolFeatures};
use softdpu_vpc::PortId;

use softdpu_site as config;

/// The control side of a virtio-net device.
pub(super) struct Nic {
    pub net: Net,
    pub port: PortId,
    /// What it may send, on all its queues together.
    limit: Option<RateLimit>,
}

impl Nic {
    /// The device of `port`, in a network of this MTU in bytes.
    /// `is_spent`: its limit may have given its burst.
    pub(super) fn new(
        settings: &config::VirtioNet,
        port: PortId,
        mtu: u16,
        is_spent: bool,
    ) -> Result<Nic, NetConfigError> {
        let mut config = NetConfig::new(settings.port.mac.0);
        config.mtu = settings.port.mtu.unwrap_or(mtu);
        config.queue_pairs = settings.port.queues;
        config.queue_size = settings.queue_size;
        config.packed = settings.packed;
        Ok(Nic {
            net: Net::new(config)?,
            port,
            limit: settings.port.rate.as_ref().and_then(|rate| limit(rate, is_spent)),
        })
    }

    /// What queue `index` is for, with the features that the driver accepted.
    pub(super) fn role(&self, index: u16, features: u64) -> Role {
        match QueueRole::of(index) {
            QueueRole::Receive { .. } => Role::Receive(Receive::new(self.port, self.net.receive(features))),
            QueueRole::Transmit { .. } => {
                Role::Transmit(Transmit::new(self.port, self.net.transmit(features), self.limit.clone()))
            }
        }
    }

    /// Goes on as the device that a driver was using.
    pub(super) fn restore(&self, state: &NetState) -> Result<(), String> {
        self.net.restore(state).map_err(|error| error.to_string())
    }
}

/// A token bucket that is full, or empty where its burst may have been given.
pub(super) fn bucket((rate, burst): (u64, u64), is_spent: bool) -> TokenBucket {
    let make = if is_spent { TokenBucket::empty } else { TokenBucket::new };
    make(rate, burst, Nanos(clock::now()))
}

/// The limit of a rate that is set; `is_spent`: its burst may have been given.
pub(super) fn limit(rate: &config::RateLimit, is_spent: bool) -> Option<RateLimit> {
    let packets = rate.packet_bucket().map(|packets| bucket(packets, is_spent));
    let bytes = rate.bandwidth_bucket().map(|(rate, burst)| bucket((rate.0 / 8, burst.0), is_spent));
    (packets.is_some() || bytes.is_some()).then(|| RateLimit::new(packets, bytes))
}

impl DeviceModel for Nic {
    fn features(&self) -> u64 {
        self.net.features()
    }

    fn check_features(&self, features: u64) -> Result<(), String> {
        self.net.check_features(features).map_err(|error| error.to_string())
    }

    fn protocol_features(&self) -> ProtocolFeatures {
        ProtocolFeatures::NET
    }

    fn queue_limit(&self) -> u16 {
        self.net.queues()
    }

    fn queue_size_limit(&self) -> u16 {
        self.net.config().queue_size
    }

    fn read_config(&self, offset: u32, into: &mut [u8]) -> Result<(), String> {
        // The model knows its fields; what a front end reads behind them is zero.
        into.fill(0);
        let known = CONFIG_SIZE.saturating_sub(offset as usize).min(into.len());
        self.net.read_config(offset, &mut into[..known]).map_err(|error| error.to_string())
    }
}
