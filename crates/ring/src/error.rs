//! What breaks a queue.

use softdpu_memory::{AccessError, GuestAddress, UserAddress};
use thiserror::Error;

use crate::{Format, Position};

/// Part of a virtqueue (virtio 1.3 §2.6: descriptor area, driver area, device area).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Descriptor table or descriptor ring.
    Descriptors,
    /// Available ring or driver event suppression.
    Driver,
    /// Used ring or device event suppression.
    Device,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Part::Descriptors => "descriptor area",
            Part::Driver => "driver area",
            Part::Device => "device area",
        })
    }
}

/// Why a queue cannot start, or stopped for good.
///
/// A queue that returned one of these is inert: it hands out nothing and writes nothing any more. Its driver gets it
/// back by resetting the device.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum QueueError {
    /// It broke earlier.
    #[error("the queue is broken by an earlier error; its driver has to reset the device")]
    Broken,

    // What the front end set up.
    /// A size the format does not allow.
    #[error("queue size {size} is not possible for a {format:?} ring: 1 to 32768, and a power of two if it is split")]
    Size {
        /// As configured.
        size: u16,
        /// As configured.
        format: Format,
    },
    /// No chain would be short enough.
    #[error("max_pieces is 0: no chain could have a descriptor")]
    NoPieces,
    /// A part of the ring is not in shared memory, crosses regions, or is not aligned.
    #[error("the {part} ({len:#x} bytes at {address:?}, aligned to {align}) is not inside one shared memory region")]
    Unmapped {
        /// Which one.
        part: Part,
        /// Where it should be.
        address: UserAddress,
        /// Its length, bytes.
        len: usize,
        /// Its alignment, bytes (virtio 1.3 §2.7, §2.8).
        align: usize,
    },
    /// The position is of another format or outside the ring.
    #[error("the position {position:?} is not one of a {format:?} ring of {size}")]
    Position {
        /// As given.
        position: Position,
        /// As configured.
        format: Format,
        /// As configured.
        size: u16,
    },
    /// The in-flight records are for another queue.
    #[error(
        "the in-flight records are for {found} descriptors in version {version}; the queue has {expected} and version 1"
    )]
    RecordsMismatch {
        /// `desc_num` of the region.
        found: u16,
        /// `version` of the region.
        version: u16,
        /// Queue size.
        expected: u16,
    },
    /// The in-flight records are damaged.
    #[error("the in-flight records are damaged: {field} is {value}, which a queue of {size} cannot have")]
    RecordsDamaged {
        /// Name of the field in the vhost-user document.
        field: &'static str,
        /// What it holds.
        value: u32,
        /// Queue size.
        size: u16,
    },
    /// The in-flight region is too small or not aligned.
    #[error("an in-flight region of {found} bytes is too small or not aligned to 8: {expected} are needed")]
    RecordsTooSmall {
        /// Its length, bytes.
        found: usize,
        /// Needed, bytes.
        expected: usize,
    },

    /// The record of positions is for another queue.
    #[error(
        "the record of positions begins with {found:#x}; a queue of this size and format begins it with {expected:#x} \
         (version, format, size): it is for another queue or was written by another release"
    )]
    PositionsMismatch {
        /// Its first word.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// The record of positions is too small or not aligned.
    #[error("a record of positions of {found} bytes is too small or not aligned to 8: {expected} are needed")]
    PositionsTooSmall {
        /// Its length, bytes.
        found: usize,
        /// Needed, bytes.
        expected: usize,
    },

    // What the driver did.
    /// More became available than the ring holds.
    #[error("the available index jumped from {last} to {found}: more than the {size} entries of the ring")]
    AvailJumped {
        /// Our position.
        last: u16,
        /// What the ring says.
        found: u16,
        /// Queue size.
        size: u16,
    },
    /// An available entry names no descriptor.
    #[error("available entry {slot} names descriptor {head}; the table has {size}")]
    HeadOutOfRange {
        /// Slot in the available ring.
        slot: u16,
        /// What it holds.
        head: u16,
        /// Queue size.
        size: u16,
    },
    /// A buffer id no packed ring of this size has.
    #[error("the descriptor at {slot} carries buffer id {id}; ids of this queue are below {size}")]
    IdOutOfRange {
        /// Slot in the descriptor ring.
        slot: u16,
        /// What it holds.
        id: u16,
        /// Queue size.
        size: u16,
    },
    /// The driver reused what it had not got back.
    #[error("the driver made {id} available again before it was used")]
    InFlight {
        /// Head descriptor or buffer id.
        id: u16,
    },
    /// More descriptors than the ring has.
    #[error("the chain at {head} has more descriptors than the ring ({size}): it loops")]
    Loop {
        /// Head descriptor or slot.
        head: u16,
        /// Queue size, or entries of the indirect table.
        size: u32,
    },
    /// More descriptors, or pieces of memory that these lie in, than the device takes.
    #[error("the chain at {head} has more than the {limit} descriptors, or pieces of memory, that this device takes")]
    TooLong {
        /// Head descriptor or slot.
        head: u16,
        /// [`QueueConfig::max_pieces`](crate::QueueConfig::max_pieces).
        limit: usize,
    },
    /// `next` points outside.
    #[error("the chain at {head} goes on at descriptor {next}; the table has {size}")]
    NextOutOfRange {
        /// Head descriptor.
        head: u16,
        /// What `next` holds.
        next: u16,
        /// Entries of the table.
        size: u32,
    },
    /// An indirect descriptor without VIRTIO_F_INDIRECT_DESC.
    #[error("the chain at {head} has an indirect descriptor, but VIRTIO_F_INDIRECT_DESC was not negotiated")]
    IndirectNotNegotiated {
        /// Head descriptor or slot.
        head: u16,
    },
    /// An indirect descriptor in an indirect table (virtio 1.3 §2.7.5.3.1, §2.8.19).
    #[error("entry {entry} of the indirect table at {head} is itself indirect")]
    IndirectInIndirect {
        /// Head descriptor or slot.
        head: u16,
        /// Entry of the table.
        entry: u16,
    },
    /// INDIRECT and NEXT in one descriptor (virtio 1.3 §2.7.5.3.1, §2.8.19).
    #[error("a descriptor of the chain at {head} is indirect and has a next one")]
    IndirectWithNext {
        /// Head descriptor or slot.
        head: u16,
    },
    /// A table length that is no number of descriptors.
    #[error("the indirect table of the chain at {head} has {len} bytes: not a multiple of 16 from 16 to {limit}")]
    IndirectLength {
        /// Head descriptor or slot.
        head: u16,
        /// As given, bytes.
        len: u32,
        /// The most that is taken, bytes.
        limit: u32,
    },
    /// Memory the guest does not have.
    #[error("the chain at {head}: {source}")]
    Address {
        /// Head descriptor or slot.
        head: u16,
        /// What was asked for.
        source: AccessError,
    },
    /// A device-readable descriptor behind a device-writable one (virtio 1.3 §2.7.4.2, §2.8.17).
    #[error("the chain at {head} has a device-readable descriptor after a device-writable one")]
    ReadableAfterWritable {
        /// Head descriptor or slot.
        head: u16,
    },
    /// No bytes at all.
    #[error("the chain at {head} has no bytes")]
    Empty {
        /// Head descriptor or slot.
        head: u16,
    },
    /// More bytes than a chain may have (virtio 1.3 §2.7.5: 2^32 in total).
    #[error("the chain at {head} has {len:#x} bytes or more: over 2^32 - 1")]
    TooManyBytes {
        /// Head descriptor or slot.
        head: u16,
        /// Sum of the lengths up to the one that is too much.
        len: u64,
    },
    /// A packed chain goes on into a slot the driver has not made available (virtio 1.3 §2.8.6).
    #[error("the chain at {head} goes on at slot {slot}, which is not available (flags {flags:#06x})")]
    NotAvailable {
        /// First slot.
        head: u16,
        /// The slot in question.
        slot: u16,
        /// Its flags.
        flags: u16,
    },
    /// A packed chain runs into slots that are still in flight.
    #[error("the chain at {head} needs more than the {free} slots the driver owns")]
    Overrun {
        /// First slot.
        head: u16,
        /// Slots not in flight.
        free: u16,
    },

    // What the host of an NVMe controller set up or did.
    /// A number of entries that no queue has.
    #[error("an NVMe queue of {size} entries is not possible: 2 to {most}")]
    Entries {
        /// As configured.
        size: u16,
        /// The most that is served.
        most: u16,
    },
    /// A queue identifier without a doorbell.
    #[error("queue identifier {id} has no doorbell; they go up to {most}")]
    QueueIdentifier {
        /// As configured.
        id: u16,
        /// The last that has one.
        most: u16,
    },
    /// A queue or a doorbell buffer is not in shared memory, crosses regions, or is not aligned.
    #[error("the {what} ({len:#x} bytes at {address}, aligned to {align}) is not inside one mapped memory region")]
    GuestUnmapped {
        /// Which one.
        what: &'static str,
        /// Where it should be.
        address: GuestAddress,
        /// Its length, bytes.
        len: usize,
        /// Its alignment, bytes.
        align: usize,
    },
    /// A doorbell that makes no sense (NVMe Base 2.0 §5.2, Invalid Doorbell Write Value).
    #[error("the {doorbell} of queue {id} went from {last} to {value}; the queue has {size} entries")]
    DoorbellValue {
        /// Which one.
        doorbell: &'static str,
        /// Queue identifier.
        id: u16,
        /// What the host wrote.
        value: u32,
        /// The device's position.
        last: u16,
        /// Entries of the queue.
        size: u16,
    },
    /// The host took back room in a completion queue.
    #[error("completion queue {id} has no room for commands that were taken: its head went backwards across a restart")]
    CompletionQueueFull {
        /// Queue identifier.
        id: u16,
    },

    // What we did.
    /// Completing what the queue did not hand out: a bug of ours.
    #[error("{id} was completed, with {descriptors} slots, but that is not in flight: a bug in softdpu")]
    NotInFlight {
        /// As given.
        id: u16,
        /// As given.
        descriptors: u16,
    },
    /// Completing in another order than that of a queue that completes in order: a bug of ours.
    #[error(
        "{id} was completed before {expected}, which was taken first, in a queue that completes in order: a bug in softdpu"
    )]
    OutOfOrder {
        /// As given.
        id: u16,
        /// Taken first.
        expected: u16,
    },
    /// Taking back chains of a queue that does not complete in order: a bug of ours.
    #[error("only a queue that completes in order can be rewound: a bug in softdpu")]
    NotInOrder,
}
