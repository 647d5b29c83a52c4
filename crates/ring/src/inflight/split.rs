//! `QueueRegionSplit` and `DescStateSplit`.

use std::sync::atomic::Ordering::Relaxed;

use softdpu_memory::Window;

use super::{InflightRecords, Region, in_use};
use crate::sync::publish;
use crate::{Format, Position, QueueError, Used};

const LAST_BATCH_HEAD_AT: usize = 12;
const USED_IDX_AT: usize = 14;
/// Offset of `desc[0]`.
pub(super) const DESC: usize = 16;
/// Bytes of a `DescStateSplit`.
pub(super) const ENTRY: usize = 16;

const INFLIGHT: usize = 0;
const NEXT: usize = 6;
const COUNTER: usize = 8;

/// The records of a split queue.
pub(crate) struct SplitRecords {
    pub region: Region,
    counter: u64,
}

fn entry(head: u16) -> usize {
    DESC + ENTRY * usize::from(head)
}

fn is_in_flight(window: &Window, head: u16) -> bool {
    window.u8(entry(head) + INFLIGHT).load(Relaxed) != 0
}

/// The used index and the position of a queue that was stopped with requests in flight; none where nothing was.
pub(super) fn left_at(window: &Window, size: u16) -> Option<(u16, Position)> {
    let in_flight = (0..size).filter(|head| is_in_flight(window, *head)).count() as u16;
    let used = window.u16(USED_IDX_AT).load(Relaxed);
    (in_flight > 0).then_some((used, Position::Split { last_avail: used.wrapping_add(in_flight) }))
}

impl SplitRecords {
    /// Takes over the region. `ring` is the index of the used ring as it is now. Returns the heads that are in flight,
    /// in the order they were taken; none if the region was not in use.
    pub fn open(
        records: InflightRecords,
        size: u16,
        resumed: bool,
        ring: u16,
    ) -> Result<(Self, Option<Vec<u16>>), QueueError> {
        let region = records.check(Format::Split, size)?;
        let mut this = SplitRecords { region, counter: 0 };
        let was_in_use = in_use(&this.region, size, resumed)?;
        let mut flight = if was_in_use { this.recover(size, ring)? } else { Vec::new() };
        flight.sort_unstable();
        this.counter = flight.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        if was_in_use {
            this.region.commit();
        } else {
            this.start(size, ring);
        }
        let heads = flight.into_iter().map(|(_, head)| head).collect();
        Ok((this, was_in_use.then_some(heads)))
    }

    /// Without `used_idx` set to the ring's used index, the first recovery after a migration would take the distance
    /// from zero for a batch and drop entry 0.
    fn start(&self, size: u16, ring: u16) {
        self.region.begin(size);
        publish(self.region.u16(LAST_BATCH_HEAD_AT), 0);
        publish(self.region.u16(USED_IDX_AT), ring);
        for head in 0..size {
            publish(self.region.u8(entry(head) + INFLIGHT), 0);
        }
        self.region.commit();
    }

    fn recover(&self, size: u16, ring: u16) -> Result<Vec<(u64, u16)>, QueueError> {
        if !(0..size).any(|head| is_in_flight(&self.region, head)) {
            publish(self.region.u16(USED_IDX_AT), ring);
            return Ok(Vec::new());
        }
        // The last batch became visible, but not all of it was cleared.
        let used_idx = self.region.u16(USED_IDX_AT).load(Relaxed);
        let batch = ring.wrapping_sub(used_idx);
        if batch > size {
            return Err(QueueError::RecordsDamaged { field: "used_idx", value: used_idx.into(), size });
        }
        let mut head = self.region.u16(LAST_BATCH_HEAD_AT).load(Relaxed);
        for _ in 0..batch {
            if head >= size {
                return Err(QueueError::RecordsDamaged { field: "last_batch_head or next", value: head.into(), size });
            }
            publish(self.region.u8(entry(head) + INFLIGHT), 0);
            head = self.region.u16(entry(head) + NEXT).load(Relaxed);
        }
        publish(self.region.u16(USED_IDX_AT), ring);
        let flight = (0..size).filter(|head| is_in_flight(&self.region, *head));
        Ok(flight.map(|head| (self.region.u64(entry(head) + COUNTER).load(Relaxed), head)).collect())
    }

    /// Before the request is handed out.
    #[inline]
    pub fn taken(&mut self, head: u16) {
        publish(self.region.u64(entry(head) + COUNTER), self.counter);
        self.counter = self.counter.wrapping_add(1);
        publish(self.region.u8(entry(head) + INFLIGHT), 1);
    }

    /// Before the completions become visible.
    #[inline]
    pub fn completing(&self, done: &[Used]) {
        let mut last = self.region.u16(LAST_BATCH_HEAD_AT).load(Relaxed);
        for used in done {
            publish(self.region.u16(entry(used.id) + NEXT), last);
            publish(self.region.u16(LAST_BATCH_HEAD_AT), used.id);
            last = used.id;
        }
    }

    /// After they did; `ring` is the index of the used ring now.
    #[inline]
    pub fn completed(&self, done: &[Used], ring: u16) {
        for used in done {
            publish(self.region.u8(entry(used.id) + INFLIGHT), 0);
        }
        publish(self.region.u16(USED_IDX_AT), ring);
    }
}
