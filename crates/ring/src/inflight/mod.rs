//! In-flight records: which requests a queue has taken, in memory that outlives the process.
//!
//! The layout is that of vhost-user, "Inflight I/O tracking", so that a front end can keep the memory and hand it to
//! the process that serves the device next. A record is written before its request is handed out and cleared after its
//! completion is visible to the driver. A process that is killed between any two stores leaves a state from which the
//! next one finds every request that the driver has not got back, each once, and the order they were taken in.
//!
//! The order of the stores is the whole trick. A kill stops a thread between two instructions, and what was stored
//! before becomes visible; so the compiler has to keep the order, which release stores make it do.

mod packed;
mod split;

pub(crate) use packed::{PackedRecords, Recovered};
pub(crate) use split::SplitRecords;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use softdpu_memory::{View, Window};

use crate::area::UsedRing;
use crate::sync::publish;
use crate::{Format, Position, QueueError, RingAddresses};

/// The version of the layout (vhost-user, `version`); zero is a region that was never used.
pub(crate) const VERSION: u16 = 1;

/// Regions of several queues lie one behind the other, each a multiple of this (INFLIGHT_ALIGNMENT of the back ends
/// that QEMU and DPDK bring).
const REGION_ALIGN: usize = 64;

/// The in-flight region of one queue.
#[derive(Debug)]
pub struct InflightRecords(Window);

impl InflightRecords {
    /// The records in `window`. Zeroed memory is a region that was not used yet.
    pub fn new(window: Window) -> Self {
        InflightRecords(window)
    }

    /// Bytes the region of one queue takes: what `mmap_size` of INFLIGHT_FD messages has per queue.
    pub const fn bytes(format: Format, size: u16) -> usize {
        let bytes = match format {
            Format::Split => split::DESC + split::ENTRY * size as usize,
            Format::Packed => packed::DESC + packed::ENTRY * size as usize,
        };
        bytes.next_multiple_of(REGION_ALIGN)
    }

    /// Makes it a region that was never used: what to do when a driver resets the device, before its queues start anew.
    pub fn clear(&self) {
        publish(self.0.u16(VERSION_AT), 0);
    }

    /// Whether a queue was stopped at `position` with requests in flight and these records tell of them: what to ask
    /// where a start does not say that it goes on where another left off.
    ///
    /// A ring that its driver made anew, after a reset or because it is another driver, is at a position with nothing
    /// in flight, which no such record has; so that its records are not used for it does not depend on having heard of
    /// the reset.
    pub fn left_at(
        &self,
        view: &Arc<View>,
        format: Format,
        size: u16,
        ring: &RingAddresses,
        position: Position,
    ) -> bool {
        if self.0.len() < Self::bytes(format, size) || in_use(&self.0, size, false) != Ok(true) {
            return false;
        }
        let left = match format {
            Format::Split => split::left_at(&self.0, size)
                .filter(|(used, _)| {
                    let ring = UsedRing::new(view, ring, size, false);
                    ring.is_ok_and(|ring| ring.idx().load(Relaxed) == *used)
                })
                .map(|(_, position)| position),
            Format::Packed => packed::left_at(&self.0, size),
        };
        left == Some(position)
    }

    /// The region of a queue of this format and size.
    fn check(self, format: Format, size: u16) -> Result<Region, QueueError> {
        let expected = Self::bytes(format, size);
        if self.0.len() < expected || !(self.0.base() as usize).is_multiple_of(8) {
            return Err(QueueError::RecordsTooSmall { found: self.0.len(), expected });
        }
        Ok(Region(self.0))
    }
}

/// A region that is large enough for its queue, and what both layouts do alike with it.
pub(crate) struct Region(Window);

impl Deref for Region {
    type Target = Window;

    fn deref(&self) -> &Window {
        &self.0
    }
}

impl Region {
    /// Begins to make it a region of `size` entries that is in use; [`Self::commit`] ends that.
    fn begin(&self, size: u16) {
        publish(self.u64(FEATURES_AT), 0);
        publish(self.u16(DESC_NUM_AT), size);
    }

    /// What is in it counts from now on.
    fn commit(&self) {
        publish(self.u16(VERSION_AT), VERSION);
    }

    /// What is in it does not count any more: the front end has the position now.
    pub fn retire(&self) {
        publish(self.u16(VERSION_AT), 0);
    }
}

// Both layouts start alike.
const FEATURES_AT: usize = 0;
const VERSION_AT: usize = 8;
const DESC_NUM_AT: usize = 10;

/// Whether the region was in use, by a queue of this size. A queue that is `resumed` was, also where the process before
/// this one retired its records and was killed before it reported that.
fn in_use(window: &Window, size: u16, resumed: bool) -> Result<bool, QueueError> {
    let version = window.u16(VERSION_AT).load(Relaxed);
    let found = window.u16(DESC_NUM_AT).load(Relaxed);
    match version {
        0 => Ok(resumed && found == size),
        VERSION if found == size => Ok(true),
        _ => Err(QueueError::RecordsMismatch { found, version, expected: size }),
    }
}
