//! Configuration space, the back-end channel, and what front ends tell network devices.

use super::command::{BackendMessage, Command, FdId};
use super::state::State;
use super::{Answer, DeviceModel, Finish, Step, negotiation};
use crate::vhost_user::client::backend_request;
use crate::vhost_user::codec::Writer;
use crate::vhost_user::error::Fault;
use crate::vhost_user::features::ProtocolFeatures;
use crate::vhost_user::framing::Header;
use crate::vhost_user::messages::ConfigSpace;

/// The least MTU of IPv4 (RFC 791), which virtio makes the least of a device, too (virtio 1.3 §5.1.4.1).
const LEAST_MTU: u16 = 68;

/// The reply that says that the configuration space could not be read.
pub(super) fn none() -> Vec<u8> {
    ConfigSpace { offset: 0, flags: 0, bytes: Vec::new() }.encode(Writer::new()).done()
}

impl State {
    pub(super) fn get_config(&self, device: &dyn DeviceModel, mut config: ConfigSpace) -> Result<Step, Fault> {
        self.require(ProtocolFeatures::CONFIG)?;
        config.bytes.fill(0);
        device.read_config(config.offset, &mut config.bytes).map_err(Fault::Device)?;
        Ok(Step::Done(Answer::Payload(config.encode(Writer::new()).done())))
    }

    pub(super) fn set_config(&self, config: ConfigSpace) -> Result<Step, Fault> {
        self.require(ProtocolFeatures::CONFIG)?;
        let ConfigSpace { offset, flags, bytes } = config;
        let live_migration = match flags {
            0 => false,
            1 => true,
            _ => {
                let expected = "0 (driver) or 1 (live migration)";
                return Err(Fault::Field { field: "flags", found: flags.into(), expected });
            }
        };
        Ok(Step::Then(Command::SetConfig { offset, bytes, live_migration }, Finish::Status))
    }

    pub(super) fn set_backend_req_fd(&mut self, device: &dyn DeviceModel, fd: Option<FdId>) -> Result<Step, Fault> {
        offers(device, ProtocolFeatures::BACKEND_REQ)?;
        self.backend_channel = fd;
        Step::OK
    }

    /// The message that the configuration changed, if the front end wants to hear of it.
    pub(super) fn config_change_message(&self) -> Option<BackendMessage> {
        let channel = self.backend_channel?;
        let wanted = self.has(ProtocolFeatures::BACKEND_REQ) && self.has(ProtocolFeatures::CONFIG);
        let header = Header::request(backend_request::CONFIG_CHANGE_MSG, false, 0);
        wanted.then(|| BackendMessage { channel, bytes: header.encode().to_vec() })
    }

    pub(super) fn send_rarp(&self, device: &dyn DeviceModel, number: u64) -> Result<Step, Fault> {
        offers(device, ProtocolFeatures::RARP)?;
        let [a, b, c, d, e, f, _, _] = number.to_ne_bytes();
        Ok(Step::Then(Command::SendRarp { mac: [a, b, c, d, e, f] }, Finish::Status))
    }

    pub(super) fn net_set_mtu(&mut self, device: &dyn DeviceModel, mtu: u64) -> Result<Step, Fault> {
        offers(device, ProtocolFeatures::MTU)?;
        match u16::try_from(mtu) {
            Ok(mtu) if mtu >= LEAST_MTU => {
                self.mtu = Some(mtu);
                Ok(Step::Then(Command::SetMtu(mtu), Finish::Status))
            }
            _ => Err(Fault::Range { field: "MTU", found: mtu, least: LEAST_MTU.into(), most: u16::MAX.into() }),
        }
    }
}

/// Of these messages the specification says only that the feature is "present in GET_PROTOCOL_FEATURES".
fn offers(device: &dyn DeviceModel, feature: ProtocolFeatures) -> Result<(), Fault> {
    if negotiation::offered_protocol(device).contains(feature) { Ok(()) } else { Err(Fault::NotNegotiated { feature }) }
}
