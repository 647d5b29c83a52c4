//! From a start command to a queue that a core can serve.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use softdpu_memory::{GuestAddress, Mapping, PAGE, UserAddress, View, Window};
use softdpu_ring::{Format, InflightRecords, PackedIndex, Position, Positions, Queue, QueueConfig, RingAddresses};
use softdpu_transport::vhost_user::{FdId, InflightRef, QueueIndex, QueueStart, RingFormat, VringBase};
use softdpu_virtio::feature;

use super::broker::Wire;
use softdpu_link::SharedFd;

/// Most descriptors of one chain: more than any request that the model accepts has, so that an oversized one gets an
/// error status instead of breaking the queue, and few enough to bound what one chain can cost.
const MAX_PIECES: usize = 2048;

fn format(format: RingFormat) -> Format {
    match format {
        RingFormat::Split => Format::Split,
        RingFormat::Packed => Format::Packed,
    }
}

/// The ring's own position as the protocol's.
pub(super) fn base_of(position: Position) -> VringBase {
    let format = match position {
        Position::Split { .. } | Position::Pair { .. } => RingFormat::Split,
        Position::Packed { .. } => RingFormat::Packed,
    };
    VringBase::from_wire(format, position.to_base())
}

/// Puts the ring together. A queue that completes `in_order`, as those of an interface do, needs to remember how far it
/// came and nothing else, in memory that the supervisor keeps.
///
/// Otherwise: In-flight records are the front end's where it shared a region for them, and otherwise our own,
/// which the supervisor keeps, so that a kill of this process loses nothing with either.
pub(super) fn make(
    device: &str,
    start: &QueueStart,
    in_order: bool,
    view: &Arc<View>,
    fds: &BTreeMap<u32, SharedFd>,
    wire: &Wire,
) -> Result<Queue, String> {
    let format = format(start.format);
    let config = QueueConfig {
        size: start.size,
        format,
        event_idx: start.features & feature::RING_EVENT_IDX != 0,
        indirect: start.features & feature::RING_INDIRECT_DESC != 0,
        max_pieces: MAX_PIECES,
        log_used: start.log.map(GuestAddress),
        resumed: start.resumed,
    };
    let addresses = RingAddresses {
        descriptors: UserAddress(start.descriptor),
        driver: UserAddress(start.driver),
        device: UserAddress(start.device),
    };
    let position = if start.base.may_be_fresh() && is_fresh(view, start) {
        Position::start(format)
    } else {
        Position::from_base(format, start.base.to_wire())
    };
    if in_order {
        let position = drained(position);
        let bytes = Positions::bytes(format, start.size) as u64;
        let key = records_key(device, start.index.0);
        let window = match wire.kept_fd(&key).filter(|_| start.resumed) {
            Some(fd) => map(&fd, bytes)?,
            None => keep_new(&key, bytes, wire)?,
        };
        let positions = Positions::new(window);
        return Queue::in_order(view, config, addresses, position, positions).map_err(|error| error.to_string());
    }
    let records = match &start.inflight {
        Some(region) => shared_records(region, fds)?,
        None => own_records(device, start.index, &config, wire, |records| {
            start.resumed || records.left_at(view, format, start.size, &addresses, position)
        })?,
    };
    Queue::new(view, config, addresses, position, Some(records)).map_err(|error| error.to_string())
}

/// Where a queue goes on of which nothing is in flight when it stops. DPDK's front end and back end know 16 bits of a
/// packed ring's position, the available one, and leave those of the used one 0: they are the same then.
fn drained(position: Position) -> Position {
    const UNKNOWN: PackedIndex = PackedIndex { index: 0, wrap: false };
    match position {
        Position::Packed { avail, used: UNKNOWN } => Position::Packed { avail, used: avail },
        whole @ (Position::Packed { .. } | Position::Split { .. } | Position::Pair { .. }) => whole,
    }
}

/// Whether nothing was ever used in a packed ring: the first descriptor's USED flag (virtio 1.3 §2.8.1) is still clear.
fn is_fresh(view: &Arc<View>, start: &QueueStart) -> bool {
    const FLAGS: usize = 14;
    const USED: u16 = 1 << 15;
    let first = view.window(UserAddress(start.descriptor), 16, 16);
    // A ring that is not there is refused by the queue itself.
    first.is_ok_and(|first| first.u16(FLAGS).load(Ordering::Acquire) & USED == 0)
}

/// This queue's part of the region that the front end holds.
fn shared_records(region: &InflightRef, fds: &BTreeMap<u32, SharedFd>) -> Result<InflightRecords, String> {
    let FdId(id) = region.fd;
    let fd = fds.get(&id).ok_or("the in-flight region's descriptor is not in the connection's table")?;
    // In whole pages, and none before it: a sparse file may have it far from its beginning.
    let start = region.offset / PAGE * PAGE;
    let len = (region.offset - start).checked_add(region.bytes).ok_or("the in-flight region wraps")?;
    let mapping = Mapping::file(fd.as_fd(), start, len).map_err(|error| format!("in-flight region: {error}"))?;
    let offset = (region.offset - start) as usize;
    let bytes = usize::try_from(region.bytes).map_err(|_| "the in-flight region is too large")?;
    let window = Window::of_mapping(mapping).part(offset, bytes).ok_or("the in-flight region is empty")?;
    Ok(InflightRecords::new(window))
}

/// Where the supervisor keeps a queue's own records.
pub(super) fn records_key(device: &str, index: u16) -> String {
    format!("inflight/{device}/{index}")
}

/// A region of our own: what is kept if the queue goes on from it, and otherwise an empty one.
///
/// A queue goes on where the process before this one left it, and where it was stopped with requests that its volume
/// had not finished: those are nowhere but in the records, and the driver waits for them.
fn own_records(
    device: &str,
    index: QueueIndex,
    config: &QueueConfig,
    wire: &Wire,
    goes_on: impl FnOnce(&InflightRecords) -> bool,
) -> Result<InflightRecords, String> {
    let key = records_key(device, index.0);
    let bytes = InflightRecords::bytes(config.format, config.size) as u64;
    if let Some(fd) = wire.kept_fd(&key) {
        match map(&fd, bytes).map(InflightRecords::new) {
            Ok(records) if goes_on(&records) => return Ok(records),
            // Those of a smaller ring.
            Err(error) if config.resumed => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    keep_new(&key, bytes, wire).map(InflightRecords::new)
}

fn text(what: &str, error: &dyn std::fmt::Display) -> String {
    format!("a queue's records: {what}: {error}")
}

/// Zeroed memory that the supervisor keeps under `key` in place of what it kept before.
fn keep_new(key: &str, bytes: u64, wire: &Wire) -> Result<Window, String> {
    let fd = memfd_create("softdpu-inflight", MemfdFlags::CLOEXEC).map_err(|e| text("memfd", &e))?;
    ftruncate(&fd, bytes).map_err(|e| text("size", &e))?;
    let fd = Arc::new(fd.into());
    wire.keep_fd(key, Arc::clone(&fd)).map_err(|e| text("keeping them", &e))?;
    map(&fd, bytes)
}

fn map(fd: &SharedFd, bytes: u64) -> Result<Window, String> {
    let mapping = Mapping::file(fd.as_fd(), 0, bytes).map_err(|e| text("mapping", &e))?;
    Ok(Window::of_mapping(mapping))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_position_of_16_bits_is_that_of_both_sides() {
        let from = |base| drained(Position::from_base(Format::Packed, base)).to_base();
        assert_eq!(from(0x8000), 0x8000_8000, "the start, as virtio-user tells it");
        assert_eq!(from(0x0005), 0x0005_0005);
        assert_eq!(from(0x8007_8009), 0x8007_8009, "32 bits are what they say");
        assert_eq!(from(0x8000_0000), 0x8000_0000);
        let split = Position::Split { last_avail: 7 };
        assert_eq!(drained(split), split);
    }
}
