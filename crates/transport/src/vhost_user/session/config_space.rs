//! The device's configuration space, and the messages that only network devices get.

use super::DeviceModel;
use super::command::Command;
use super::step::{Answer, Step};
use crate::vhost_user::codec::Writer;
use crate::vhost_user::error::Fault;
use crate::vhost_user::messages::ConfigSpace;

/// The least MTU of IPv4 (RFC 791), which virtio makes the least of a device, too (virtio 1.3 §5.1.4.1).
const LEAST_MTU: u16 = 68;

/// The reply that says that the configuration space could not be read.
pub(super) fn none() -> Vec<u8> {
    ConfigSpace { offset: 0, flags: 0, bytes: Vec::new() }.encode(Writer::new()).done()
}

/// GET_CONFIG.
pub(super) fn get(device: &dyn DeviceModel, mut config: ConfigSpace) -> Result<Step, Fault> {
    config.bytes.fill(0);
    device.read_config(config.offset, &mut config.bytes).map_err(Fault::Device)?;
    Ok(Step::Done(Answer::Payload(config.encode(Writer::new()).done())))
}

/// SET_CONFIG.
pub(super) fn set(config: ConfigSpace) -> Result<Step, Fault> {
    let ConfigSpace { offset, flags, bytes } = config;
    let live_migration = match flags {
        0 => false,
        1 => true,
        _ => {
            let expected = "0 (driver) or 1 (live migration)";
            return Err(Fault::Field { field: "flags", found: flags.into(), expected });
        }
    };
    Step::command(Command::SetConfig { offset, bytes, live_migration })
}

/// SEND_RARP.
pub(super) fn send_rarp(number: u64) -> Result<Step, Fault> {
    let [a, b, c, d, e, f, _, _] = number.to_ne_bytes();
    Step::command(Command::SendRarp { mac: [a, b, c, d, e, f] })
}

/// The MTU in NET_SET_MTU.
pub(super) fn mtu(mtu: u64) -> Result<u16, Fault> {
    match u16::try_from(mtu) {
        Ok(mtu) if mtu >= LEAST_MTU => Ok(mtu),
        _ => Err(Fault::Range { field: "MTU", found: mtu, least: LEAST_MTU.into(), most: u16::MAX.into() }),
    }
}
