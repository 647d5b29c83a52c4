//! What block and network front ends have in common: feature negotiation, and the start of a queue.

use std::os::fd::BorrowedFd;

use softdpu_ring::{Position, RingAddresses};
use softdpu_transport::vhost_user::{
    F_PROTOCOL_FEATURES, FdPresence, Message, ProtocolFeatures, VringAddress, VringState,
};
use softdpu_virtio::feature::VERSION_1;

use super::{Connection, FrontEndError};

/// The outcome of feature negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedFeatures {
    /// Feature bits, as acknowledged with SET_FEATURES.
    pub features: u64,
    /// Feature bits that the server offered.
    pub offered: u64,
    /// Protocol features, as acknowledged.
    pub protocol: ProtocolFeatures,
}

/// The features that a front end requires, and those it takes where they are offered. Every front end requires
/// VERSION_1 and PROTOCOL_FEATURES.
#[derive(Clone, Debug)]
pub(crate) struct WantedFeatures<'a> {
    /// Feature bits that have to be offered, with their names.
    pub required: &'a [(u64, &'static str)],
    /// Feature bits that are acknowledged where they are offered.
    pub wanted: u64,
    /// Protocol features that have to be offered.
    pub protocol: ProtocolFeatures,
    /// Protocol features that are acknowledged where they are offered.
    pub wanted_protocol: ProtocolFeatures,
}

/// Negotiates features up to and including SET_PROTOCOL_FEATURES. Returns what the front end may send with
/// SET_FEATURES.
///
/// # Errors
/// [`FrontEndError::Missing`], and as [`Connection::call`].
pub(crate) fn negotiate(
    connection: &mut Connection,
    terms: &WantedFeatures<'_>,
) -> Result<NegotiatedFeatures, FrontEndError> {
    let path = connection.path().to_owned();
    let missing = |feature: &str, offered: String| {
        Err(FrontEndError::Missing { path: path.clone(), feature: feature.to_owned(), offered })
    };
    let offered = connection.number(&Message::GetFeatures)?;
    let always = [(VERSION_1, "VIRTIO_F_VERSION_1"), (F_PROTOCOL_FEATURES, "VHOST_USER_F_PROTOCOL_FEATURES")];
    let mut taken = terms.wanted;
    for (bit, name) in always.iter().chain(terms.required) {
        if offered & bit == 0 {
            return missing(name, format!("features {offered:#x}"));
        }
        taken |= bit;
    }
    connection.call(&Message::SetOwner, &[])?;
    let there = ProtocolFeatures(connection.number(&Message::GetProtocolFeatures)?);
    if !there.contains(terms.protocol) {
        return missing(&terms.protocol.to_string(), format!("protocol features {there}"));
    }
    let protocol = terms.protocol.with(ProtocolFeatures::REPLY_ACK).with(terms.wanted_protocol).and(there);
    connection.call(&Message::SetProtocolFeatures(protocol.0), &[])?;
    Ok(NegotiatedFeatures { features: offered & taken, offered, protocol })
}

/// A queue, as vhost-user messages describe it.
pub(crate) struct Vring<'a> {
    /// Index of the queue.
    pub index: u16,
    /// Number of its descriptors.
    pub size: u16,
    /// Front-end addresses of its three parts.
    pub addresses: RingAddresses,
    /// The position at which it starts.
    pub position: Position,
    /// The eventfd that kicks the server.
    pub kick: BorrowedFd<'a>,
    /// The eventfd that the server notifies with.
    pub call: BorrowedFd<'a>,
    /// The eventfd that the server reports a broken queue with.
    pub error: BorrowedFd<'a>,
}

/// Starts and enables a queue.
///
/// # Errors
/// As [`Connection::call`].
pub(crate) fn start(connection: &mut Connection, ring: &Vring<'_>) -> Result<(), FrontEndError> {
    let RingAddresses { descriptors, driver, device } = ring.addresses;
    let index = u32::from(ring.index);
    let state = |num| VringState { index, num };
    let presence = FdPresence { index: ring.index as u8, present: true };
    let addresses =
        VringAddress { index, flags: 0, descriptor: descriptors.0, used: device.0, available: driver.0, log: 0 };
    connection.call(&Message::SetVringNum(state(ring.size.into())), &[])?;
    connection.call(&Message::SetVringBase(state(ring.position.to_base())), &[])?;
    connection.call(&Message::SetVringAddr(addresses), &[])?;
    connection.call(&Message::SetVringErr(presence), &[ring.error])?;
    connection.call(&Message::SetVringCall(presence), &[ring.call])?;
    connection.call(&Message::SetVringKick(presence), &[ring.kick])?;
    connection.call(&Message::SetVringEnable(state(1)), &[])?;
    Ok(())
}
