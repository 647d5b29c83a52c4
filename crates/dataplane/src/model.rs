//! What a front end talks to: a disk or an interface.

use serde::{Deserialize, Serialize};
use softdpu_device::{block, net};
use softdpu_transport::vhost_user::{DeviceModel, ProtocolFeatures};

use super::disk::{Disk, Geometry};
use super::nic::Nic;

/// The control side of a device.
pub(super) enum Model {
    Disk(Disk),
    Nic(Nic),
}

/// What a device needs to go on in another process.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum State {
    Block(block::BlockState),
    Net(net::NetState),
}

macro_rules! each {
    ($self:expr, $model:ident => $body:expr) => {
        match $self {
            Model::Disk($model) => $body,
            Model::Nic($model) => $body,
        }
    };
}

impl Model {
    pub(super) fn disk(&self) -> Option<&Disk> {
        match self {
            Model::Disk(disk) => Some(disk),
            Model::Nic(_) => None,
        }
    }

    /// What its driver chose ends with it.
    pub(super) fn reset(&self) {
        match self {
            Model::Disk(disk) => disk.block.reset(),
            Model::Nic(_) => {}
        }
    }

    pub(super) fn save(&self) -> State {
        match self {
            Model::Disk(disk) => State::Block(disk.block.save()),
            Model::Nic(nic) => State::Net(nic.net.save()),
        }
    }

    /// Goes on as the device that a driver was using.
    pub(super) fn restore(&self, state: &State) -> Result<(), String> {
        match (self, state) {
            (Model::Disk(disk), State::Block(state)) => disk.restore(state),
            (Model::Nic(nic), State::Net(state)) => nic.restore(state),
            (Model::Disk(_), State::Net(_)) => Err("it was a network interface and is a disk now".to_owned()),
            (Model::Nic(_), State::Block(_)) => Err("it was a disk and is a network interface now".to_owned()),
        }
    }

    /// What a disk's session keeps of its volume.
    pub(super) fn geometry(&self) -> Option<Geometry> {
        self.disk().map(|disk| disk.geometry)
    }

    pub(super) fn write_config(&self, offset: u32, bytes: &[u8]) -> Result<(), String> {
        match self {
            Model::Disk(disk) => disk.block.write_config(offset, bytes).map_err(|error| error.to_string()),
            Model::Nic(_) => Err("a network interface has no configuration to be written".to_owned()),
        }
    }

    /// The front end's wish for the largest packet (vhost-user: NET_SET_MTU).
    pub(super) fn check_mtu(&self, mtu: u64) -> Result<(), String> {
        match self {
            Model::Disk(_) => Err("a disk has no MTU".to_owned()),
            Model::Nic(nic) => nic.net.check_mtu(mtu).map_err(|error| error.to_string()),
        }
    }
}

impl DeviceModel for Model {
    fn features(&self) -> u64 {
        each!(self, model => model.features())
    }

    fn check_features(&self, features: u64) -> Result<(), String> {
        each!(self, model => model.check_features(features))
    }

    fn protocol_features(&self) -> ProtocolFeatures {
        each!(self, model => model.protocol_features())
    }

    fn queue_limit(&self) -> u16 {
        each!(self, model => model.queue_limit())
    }

    fn queue_size_limit(&self) -> u16 {
        each!(self, model => model.queue_size_limit())
    }

    fn read_config(&self, offset: u32, into: &mut [u8]) -> Result<(), String> {
        each!(self, model => model.read_config(offset, into))
    }
}

/// A device as its front end sees it at the moment.
pub(super) struct Seen<'a> {
    pub model: &'a Model,
    /// One of its queues is broken.
    pub needs_reset: bool,
}

impl DeviceModel for Seen<'_> {
    fn features(&self) -> u64 {
        self.model.features()
    }

    fn check_features(&self, features: u64) -> Result<(), String> {
        self.model.check_features(features)
    }

    fn protocol_features(&self) -> ProtocolFeatures {
        self.model.protocol_features()
    }

    fn queue_limit(&self) -> u16 {
        self.model.queue_limit()
    }

    fn queue_size_limit(&self) -> u16 {
        self.model.queue_size_limit()
    }

    fn read_config(&self, offset: u32, into: &mut [u8]) -> Result<(), String> {
        self.model.read_config(offset, into)
    }

    fn needs_reset(&self) -> bool {
        self.needs_reset
    }
}
