//! What block and network front ends say alike: features, and a queue's start.

use std::os::fd::BorrowedFd;

use softdpu_ring::{Position, RingAddresses};
use softdpu_transport::vhost_user::{
    F_PROTOCOL_FEATURES, FdPresence, Message, ProtocolFeatures, VringAddress, VringState,
};

use super::{Control, FrontEndError};

/// VIRTIO_F_VERSION_1 (virtio 1.3 §6.1).
const VERSION_1: u64 = 1 << 32;

/// What was negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Feature bits, as sent.
    pub features: u64,
    /// Feature bits that the server offers.
    pub offered: u64,
    /// Protocol features, as sent.
    pub protocol: ProtocolFeatures,
}

/// What a front end asks of a server. VERSION_1 and protocol features go without saying.
#[derive(Clone, Debug)]
pub(crate) struct Terms<'a> {
    /// Feature bits it cannot do without, with their names.
    pub required: &'a [(u64, &'static str)],
    /// Feature bits it takes where they are offered.
    pub wanted: u64,
    /// Protocol features it cannot do without.
    pub protocol: ProtocolFeatures,
    /// Protocol features it takes where they are offered.
    pub wanted_protocol: ProtocolFeatures,
}

/// Negotiates features up to and with SET_PROTOCOL_FEATURES, and says what may be sent with SET_FEATURES.
///
/// # Errors
/// [`FrontEndError::Missing`], and as [`Control::call`].
pub(crate) fn negotiate(control: &mut Control, terms: &Terms<'_>) -> Result<Negotiated, FrontEndError> {
    let path = control.path().to_owned();
    let missing = |feature: &str, offered: String| {
        Err(FrontEndError::Missing { path: path.clone(), feature: feature.to_owned(), offered })
    };
    let offered = control.number(&Message::GetFeatures)?;
    let always = [(VERSION_1, "VIRTIO_F_VERSION_1"), (F_PROTOCOL_FEATURES, "VHOST_USER_F_PROTOCOL_FEATURES")];
    let mut taken = terms.wanted;
    for (bit, name) in always.iter().chain(terms.required) {
        if offered & bit == 0 {
            return missing(name, format!("features {offered:#x}"));
        }
        taken |= bit;
    }
    control.call(&Message::SetOwner, &[])?;
    let there = ProtocolFeatures(control.number(&Message::GetProtocolFeatures)?);
    if !there.contains(terms.protocol) {
        return missing(&terms.protocol.to_string(), format!("protocol features {there}"));
    }
    let protocol = terms.protocol.with(ProtocolFeatures::REPLY_ACK).with(terms.wanted_protocol).and(there);
    control.call(&Message::SetProtocolFeatures(protocol.0), &[])?;
    Ok(Negotiated { features: offered & taken, offered, protocol })
}

/// A queue as a server is told of it.
pub(crate) struct Vring<'a> {
    /// Which queue.
    pub index: u16,
    /// Its descriptors.
    pub size: u16,
    /// Where its parts are.
    pub addresses: RingAddresses,
    /// Where it starts.
    pub position: Position,
    /// What the server is kicked by.
    pub kick: BorrowedFd<'a>,
    /// What the server notifies by.
    pub call: BorrowedFd<'a>,
    /// What the server reports errors by.
    pub error: BorrowedFd<'a>,
}

/// Starts and enables a queue.
///
/// # Errors
/// As [`Control::call`].
pub(crate) fn start(control: &mut Control, ring: &Vring<'_>) -> Result<(), FrontEndError> {
    let RingAddresses { descriptors, driver, device } = ring.addresses;
    let index = u32::from(ring.index);
    let state = |num| VringState { index, num };
    let presence = FdPresence { index: ring.index as u8, present: true };
    let addresses =
        VringAddress { index, flags: 0, descriptor: descriptors.0, used: device.0, available: driver.0, log: 0 };
    control.call(&Message::SetVringNum(state(ring.size.into())), &[])?;
    control.call(&Message::SetVringBase(state(ring.position.to_base())), &[])?;
    control.call(&Message::SetVringAddr(addresses), &[])?;
    control.call(&Message::SetVringErr(presence), &[ring.error])?;
    control.call(&Message::SetVringCall(presence), &[ring.call])?;
    control.call(&Message::SetVringKick(presence), &[ring.kick])?;
    control.call(&Message::SetVringEnable(state(1)), &[])?;
    Ok(())
}
