//! The baseline: every batch is scanned at the same fixed rate, and what was idle for several scans is cold (Corbató's
//! CLOCK with a counter).

use super::{BatchId, Migration, Tier, TieringPolicy};
use crate::Nanos;

#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    idle_scans: u16,
    tier: Tier,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Clock {
    batches: Vec<Batch>,
    period: Nanos,
    epoch: Nanos,
    cold_after: u16,
    next: Nanos,
    epoch_ends: Nanos,
}

impl Clock {
    /// All batches are scanned once in `period`, and are cold after so many scans without an access; what changes its
    /// tier does once in `epoch`.
    pub fn new(now: Nanos, batches: u32, period: Nanos, epoch: Nanos, cold_after: u16) -> Clock {
        let batches = vec![Batch::default(); batches as usize];
        Clock { batches, period, epoch, cold_after, next: now + period, epoch_ends: now + epoch }
    }
}

impl TieringPolicy for Clock {
    fn due(&mut self, now: Nanos, batches: &mut Vec<BatchId>) {
        if now >= self.next {
            self.next = now + self.period;
            batches.extend((0..self.batches.len() as u32).map(BatchId));
        }
    }

    fn scanned(&mut self, _now: Nanos, batch: BatchId, was_accessed: bool) {
        if let Some(batch) = self.batches.get_mut(batch.0 as usize) {
            batch.idle_scans = if was_accessed { 0 } else { batch.idle_scans.saturating_add(1) };
        }
    }

    fn migrate(&mut self, now: Nanos, migrations: &mut Vec<Migration>) {
        if now < self.epoch_ends {
            return;
        }
        self.epoch_ends = now + self.epoch;
        for (at, batch) in self.batches.iter().enumerate() {
            let to = if batch.idle_scans >= self.cold_after { Tier::Slow } else { Tier::Fast };
            if to != batch.tier {
                migrations.push(Migration { batch: BatchId(at as u32), to });
            }
        }
    }

    fn placed(&mut self, batch: BatchId, tier: Tier) {
        if let Some(batch) = self.batches.get_mut(batch.0 as usize) {
            batch.tier = tier;
        }
    }

    fn deadline(&self) -> Nanos {
        self.next.min(self.epoch_ends)
    }
}
