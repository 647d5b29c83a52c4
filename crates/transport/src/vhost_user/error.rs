//! What can be wrong with a front end, a saved session, or the caller.

use thiserror::Error;

use super::features::ProtocolFeatures;
use super::framing::{MAX_FDS, MAX_PAYLOAD};
use super::messages::RequestId;

/// A header after which the byte stream cannot be trusted. The connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FramingError {
    /// Bits 0 and 1 of the flags.
    #[error("{}: protocol version is {found}, expected 1", RequestId(*.request))]
    Version {
        /// The request id in the same header.
        request: u32,
        /// The version found.
        found: u32,
    },
    /// Flags that no version 1 of the protocol defines.
    #[error("{}: header flags contain the unknown bits {found:#x}", RequestId(*.request))]
    Flags {
        /// The request id in the same header.
        request: u32,
        /// The unknown bits.
        found: u32,
    },
    /// A payload that is not to be read.
    #[error("{}: payload size is {found} bytes, expected at most {MAX_PAYLOAD}", RequestId(*.request))]
    Size {
        /// The request id in the same header.
        request: u32,
        /// The size found.
        found: u32,
    },
}

/// A message the session did not accept, and why.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{request}: {fault}")]
pub struct ProtocolError {
    /// The request the error is about.
    pub request: RequestId,
    /// What was wrong.
    pub fault: Fault,
}

impl ProtocolError {
    pub(crate) fn new(request: impl Into<RequestId>, fault: Fault) -> Self {
        ProtocolError { request: request.into(), fault }
    }
}

/// What was wrong with a message.
///
/// All variants but the last four blame the front end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// No request of this id is known here.
    #[error("unknown request")]
    UnknownRequest,
    /// The reply flag was set on a message that has to be a request.
    #[error("the reply flag is set, expected a request")]
    NotARequest,
    /// The payload is longer or shorter than the request's.
    #[error("payload is {found} bytes, expected {expected}")]
    PayloadSize {
        /// Bytes found.
        found: usize,
        /// Bytes expected, given what the payload itself says.
        expected: usize,
    },
    /// Too many or too few file descriptors came with the message.
    #[error("{found} file descriptors came with the message, expected {expected}")]
    FileDescriptors {
        /// Descriptors found.
        found: usize,
        /// Descriptors expected.
        expected: usize,
    },
    /// A field has a value that is not allowed.
    #[error("{field} is {found:#x}, expected {expected}")]
    Field {
        /// The field's name in the specification.
        field: &'static str,
        /// The value found.
        found: u64,
        /// What would have been accepted.
        expected: &'static str,
    },
    /// A field is outside its range.
    #[error("{field} is {found}, expected {least} to {most}")]
    Range {
        /// The field's name in the specification.
        field: &'static str,
        /// The value found.
        found: u64,
        /// The smallest value accepted.
        least: u64,
        /// The largest value accepted.
        most: u64,
    },
    /// An address plus a length, or an offset plus a size, is beyond the last 64-bit value.
    #[error("{field} {start:#x} plus {len:#x} bytes wraps around")]
    Wraps {
        /// What starts there.
        field: &'static str,
        /// Its first address or offset.
        start: u64,
        /// Its length.
        len: u64,
    },
    /// An address is not aligned.
    #[error("{field} is {found:#x}, expected a multiple of {align}")]
    Alignment {
        /// The field's name in the specification.
        field: &'static str,
        /// The address found.
        found: u64,
        /// The alignment it needs.
        align: u64,
    },
    /// Two memory regions share addresses.
    #[error("{space} ranges {first:#x} and {second:#x} of two memory regions overlap")]
    Overlap {
        /// Which addresses overlap: `guest address` or `user address`.
        space: &'static str,
        /// Where the one region starts.
        first: u64,
        /// Where the other region starts.
        second: u64,
    },
    /// A region to be removed is not in the table.
    #[error("no memory region at guest address {guest_address:#x}, user address {user_address:#x}, of {size:#x} bytes")]
    NoSuchRegion {
        /// Guest address as sent.
        guest_address: u64,
        /// User address as sent.
        user_address: u64,
        /// Size as sent.
        size: u64,
    },
    /// No memory slot is left.
    #[error("memory table would have {found} regions, expected at most {most}")]
    TooManyRegions {
        /// Regions the table would have.
        found: usize,
        /// Slots there are.
        most: usize,
    },
    /// Feature bits were acknowledged that had not been offered.
    #[error("feature bits {bits:#x} were not offered (offered: {offered:#x})")]
    NotOffered {
        /// The bits too many.
        bits: u64,
        /// What was offered.
        offered: u64,
    },
    /// The request belongs to a protocol feature that is not in force.
    #[error("protocol feature {feature} has not been negotiated")]
    NotNegotiated {
        /// The missing feature.
        feature: ProtocolFeatures,
    },
    /// A protocol feature needs another one.
    #[error("protocol feature {feature} needs {needs}")]
    FeatureNeeds {
        /// The feature that was acknowledged.
        feature: ProtocolFeatures,
        /// The feature that was not.
        needs: ProtocolFeatures,
    },
    /// The message came before another one that it builds on.
    #[error("out of order: {first} must come first")]
    OutOfOrder {
        /// The request that must come first.
        first: RequestId,
    },
    /// The message changes something that may not change while queues run.
    #[error("{field} cannot change while queue {queue} is running: stop it with GET_VRING_BASE first")]
    Running {
        /// What was to be changed.
        field: &'static str,
        /// A running queue.
        queue: u16,
    },
    /// The queue lost its memory and has to be stopped before it can be used again.
    #[error("queue {queue} is broken: a memory change took its rings away; stop it with GET_VRING_BASE first")]
    Broken {
        /// The queue.
        queue: u16,
    },
    /// A part of a ring is in no memory region.
    #[error("{part} of queue {queue}, {len} bytes at user address {address:#x}, is not inside one memory region")]
    NotMapped {
        /// `descriptor`, `available` or `used`.
        part: &'static str,
        /// The queue.
        queue: u16,
        /// Its address.
        address: u64,
        /// Its length.
        len: u64,
    },
    /// The in-flight region is too small for what it is to hold.
    #[error("in-flight region has {found} bytes, expected at least {expected}")]
    InflightTooSmall {
        /// Bytes it has.
        found: u64,
        /// Bytes needed.
        expected: u64,
    },
    /// The log does not cover the guest's memory.
    #[error("dirty log has {found} bytes, expected at least {expected} to cover guest memory")]
    LogTooSmall {
        /// Bytes it has.
        found: u64,
        /// Bytes needed.
        expected: u64,
    },
    /// The device did not accept it.
    #[error("the device refused: {0}")]
    Device(String),
    /// Caller's error: a message was handed over while a command waits for its acknowledgement.
    #[error("a message came before command {0} was acknowledged")]
    Busy(u64),
    /// Caller's error: no such command waits for an acknowledgement.
    #[error("command {0} was acknowledged but is not waiting")]
    NotWaiting(u64),
    /// Caller's error: the acknowledgement does not answer the command.
    #[error("the acknowledgement {found} does not answer the command, expected {expected}")]
    WrongAck {
        /// The acknowledgement given.
        found: String,
        /// The one expected.
        expected: &'static str,
    },
    /// Caller's error: more descriptors than a message can carry.
    #[error("{0} file descriptors were handed over, at most {MAX_FDS} can come with a message")]
    TooManyHandles(usize),
}

impl Fault {
    /// Whether the caller, not the front end, made the mistake.
    pub fn is_misuse(&self) -> bool {
        matches!(self, Fault::Busy(_) | Fault::NotWaiting(_) | Fault::WrongAck { .. } | Fault::TooManyHandles(_))
    }
}

/// Why a saved session cannot be continued.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// Written by a release more than one step away.
    #[error("saved session has format {found}, this release reads format {expected}")]
    Format {
        /// Format found.
        found: u32,
        /// Format this release writes and reads.
        expected: u32,
    },
    /// The device has become one the front end did not negotiate with.
    #[error("the saved session has features {bits:#x}, which the device no longer offers")]
    Features {
        /// The bits no longer offered.
        bits: u64,
    },
    /// As for features, for protocol features.
    #[error("the saved session has protocol features {0}, which the device no longer wants")]
    ProtocolFeatures(ProtocolFeatures),
    /// The device has fewer queues than the front end uses.
    #[error("the saved session runs queue {queue}, the device has {limit} queues")]
    Queues {
        /// The highest queue in use.
        queue: u16,
        /// Queues the device has.
        limit: u16,
    },
    /// The saved state contradicts itself.
    #[error("the saved session is damaged: {0}")]
    Damaged(#[from] ProtocolError),
}
