//! The driver side of virtqueues, over the same shared memory: for tests, load generators and tools.
//!
//! A [`Driver`] is well behaved; tests that want it otherwise write to the ring behind its back.
//!
//! ```
//! use softdpu_memory::{GuestAddress, Mapping, Region, UserAddress, View};
//! use softdpu_ring::driver::{Driver, Layout, Piece};
//! use softdpu_ring::{Format, Position, Queue, QueueConfig};
//!
//! let memory = Region::new(GuestAddress(0), UserAddress(0), 0x10000, Mapping::heap(0x10000), 0);
//! let view = View::new(vec![memory]).unwrap();
//! let layout = Layout::new(Format::Packed, 64);
//! let addresses = layout.addresses(UserAddress(0x1000));
//! let mut driver = Driver::new(&view, Format::Packed, 64, true, addresses).unwrap();
//! let config = QueueConfig {
//!     size: 64, format: Format::Packed, event_idx: true, indirect: true,
//!     max_pieces: 64, log_used: None, resumed: false,
//! };
//! let mut queue = Queue::new(&view, config, addresses, Position::start(Format::Packed), None).unwrap();
//!
//! let id = driver.add(&[Piece::writable(GuestAddress(0x8000), 512)]).unwrap();
//! driver.publish();
//! let mut chains = Vec::new();
//! queue.pop(&mut chains, 32).unwrap();
//! chains[0].buffer.write_at(0, b"hello").unwrap();
//! queue.complete(&[chains[0].used(5)]).unwrap();
//! let done = driver.take().unwrap();
//! assert_eq!((done.id, done.written), (id, 5));
//! ```

mod packed;
mod split;

use std::sync::Arc;

use softdpu_memory::{GuestAddress, UserAddress, View};

use crate::layout::{DESCRIPTOR, Descriptor, EVENT, NEXT, PackedDescriptor, SplitDescriptor, WRITE};
use crate::{Format, Position, QueueError, RingAddresses};

use packed::PackedDriver;
use split::SplitDriver;

/// How the parts of a ring are placed one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the driver area; the descriptor area is at 0.
    pub driver: usize,
    /// Offset of the device area.
    pub device: usize,
    /// Bytes of all three.
    pub bytes: usize,
}

impl Layout {
    /// The layout of a ring of `size`.
    pub const fn new(format: Format, size: u16) -> Layout {
        let size = size as usize;
        let driver = DESCRIPTOR * size;
        let (device, bytes) = match format {
            Format::Split => {
                let device = (driver + 6 + 2 * size).next_multiple_of(64);
                (device, device + 6 + 8 * size)
            }
            // The two sides' event structures on lines of their own.
            Format::Packed => {
                let device = (driver + EVENT).next_multiple_of(64);
                (device, device + EVENT)
            }
        };
        Layout { driver, device, bytes }
    }

    /// The parts of a ring that begins at `base`, a multiple of 16.
    pub const fn addresses(&self, base: UserAddress) -> RingAddresses {
        RingAddresses {
            descriptors: base,
            driver: UserAddress(base.0 + self.driver as u64),
            device: UserAddress(base.0 + self.device as u64),
        }
    }
}

/// One contiguous part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it is.
    pub address: GuestAddress,
    /// Bytes.
    pub len: u32,
    /// Device-writable, else device-readable.
    pub writable: bool,
}

impl Piece {
    /// Memory the device reads.
    pub const fn readable(address: GuestAddress, len: u32) -> Piece {
        Piece { address, len, writable: false }
    }

    /// Memory the device writes.
    pub const fn writable(address: GuestAddress, len: u32) -> Piece {
        Piece { address, len, writable: true }
    }

    fn flags(&self, last: bool) -> u16 {
        (if self.writable { WRITE } else { 0 }) | (if last { 0 } else { NEXT })
    }
}

/// A request that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What [`Driver::add`] returned.
    pub id: u16,
    /// Bytes the device says it wrote.
    pub written: u32,
}

/// The driver side of a virtqueue.
pub enum Driver {
    /// Split format.
    Split(SplitDriver),
    /// Packed format.
    Packed(PackedDriver),
}

macro_rules! each {
    ($self:expr, $driver:ident => $body:expr) => {
        match $self {
            Driver::Split($driver) => $body,
            Driver::Packed($driver) => $body,
        }
    };
}

impl Driver {
    /// A driver at the start of a ring in zeroed memory.
    ///
    /// # Errors
    /// [`QueueError::Unmapped`] or [`QueueError::Size`].
    pub fn new(
        view: &Arc<View>,
        format: Format,
        size: u16,
        event_idx: bool,
        addresses: RingAddresses,
    ) -> Result<Driver, QueueError> {
        let config = crate::QueueConfig {
            size,
            format,
            event_idx,
            indirect: true,
            max_pieces: 1,
            log_used: None,
            resumed: false,
        };
        config.check()?;
        Ok(match format {
            Format::Split => Driver::Split(SplitDriver::new(view, &config, &addresses)?),
            Format::Packed => Driver::Packed(PackedDriver::new(view, &config, &addresses)?),
        })
    }

    /// Writes a request into the ring, one descriptor a piece; the device sees it after [`publish`](Self::publish).
    /// None where there is no room, or nothing in it.
    #[inline]
    pub fn add(&mut self, pieces: &[Piece]) -> Option<u16> {
        each!(self, driver => driver.add(pieces))
    }

    /// As [`add`](Self::add), through an indirect table at `table`, which has 16 bytes a piece and stays untouched
    /// until the request is back.
    pub fn add_indirect(&mut self, table: GuestAddress, pieces: &[Piece]) -> Option<u16> {
        each!(self, driver => driver.add_indirect(table, pieces))
    }

    /// Writes a request that is made available as often as wanted with [`repeat`](Self::repeat): for load generators,
    /// with requests that differ in nothing but what their memory holds. It keeps its descriptors (split) or its buffer
    /// id (packed) for good.
    pub fn prepare(&mut self, pieces: &[Piece]) -> Option<u16> {
        each!(self, driver => driver.prepare(pieces))
    }

    /// Adds the [prepared](Self::prepare) request `id`, which is not in flight. Whether there was such a request, and
    /// room.
    #[inline]
    pub fn repeat(&mut self, id: u16) -> bool {
        each!(self, driver => driver.repeat(id))
    }

    /// Hands over what was added; returns whether the device wants to be notified.
    #[inline]
    pub fn publish(&mut self) -> bool {
        each!(self, driver => driver.publish())
    }

    /// The next request that came back. None also where the device gives back what it has not got.
    #[inline]
    pub fn take(&mut self) -> Option<Completion> {
        each!(self, driver => driver.take())
    }

    /// Asks for a notification of the next completion and looks once more: true where one slipped in.
    pub fn arm(&mut self) -> bool {
        each!(self, driver => driver.arm())
    }

    /// Says that notifications are not needed.
    pub fn disarm(&mut self) {
        each!(self, driver => driver.disarm());
    }

    /// Up to where requests have been taken back: the base of a back end that starts anew over the same ring.
    pub fn returned(&self) -> Position {
        each!(self, driver => driver.returned())
    }

    /// Descriptors that can still be added.
    pub fn free(&self) -> u16 {
        each!(self, driver => driver.free())
    }
}

/// Writes an indirect table (virtio 1.3 §2.7.5.3, §2.8.7).
fn write_table(view: &Arc<View>, table: GuestAddress, pieces: &[Piece], format: Format) -> Option<()> {
    let buffer = view.buffer(table, (DESCRIPTOR * pieces.len()) as u64).ok()?;
    for (at, piece) in pieces.iter().enumerate() {
        let last = at + 1 == pieces.len();
        let (addr, len) = (piece.address.0, piece.len);
        let meta = match format {
            Format::Split => {
                let next = if last { 0 } else { at as u16 + 1 };
                SplitDescriptor { addr, len, flags: piece.flags(last), next }.meta()
            }
            // Only WRITE counts in a packed table.
            Format::Packed => PackedDescriptor { addr, len, id: 0, flags: piece.flags(true) }.meta(),
        };
        let offset = (at * DESCRIPTOR) as u64;
        buffer.write_at(offset, &addr.to_le_bytes()).ok()?;
        buffer.write_at(offset + 8, &meta.to_le_bytes()).ok()?;
    }
    Some(())
}
