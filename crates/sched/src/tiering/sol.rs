//! SOL: Thompson sampling over batches (Wang et al., ASPLOS '22; Wave §4.2).

use super::random::{Draws, MOST};
use super::{BatchId, EPOCH, LEAST_PERIOD, MOST_PERIOD, Migration, Tier, TieringPolicy};
use crate::Nanos;

/// What may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SolTuning {
    /// The shortest time between two scans of a batch.
    pub least_period: Nanos,
    /// The longest.
    pub most_period: Nanos,
    /// Batches move once in this time.
    pub epoch: Nanos,
    /// A batch with a draw of at least this is hot, in percent.
    pub hot_percent: u32,
    /// The seed of all draws.
    pub seed: u64,
}

impl Default for SolTuning {
    fn default() -> Self {
        SolTuning { least_period: LEAST_PERIOD, most_period: MOST_PERIOD, epoch: EPOCH, hot_percent: 50, seed: 1 }
    }
}

impl SolTuning {
    /// All times divided by this, for tests and demonstrations that cannot wait for minutes.
    pub fn scaled(self, divisor: u64) -> SolTuning {
        let part = |time: Nanos| Nanos((time.0 / divisor.max(1)).max(1));
        SolTuning {
            least_period: part(self.least_period),
            most_period: part(self.most_period),
            epoch: part(self.epoch),
            ..self
        }
    }
}

/// The weight of a batch's history: when both counts together are more, both are halved.
const MEMORY: u16 = MOST as u16 / 2;

#[derive(Clone, Copy, Debug)]
struct Batch {
    /// Scans that found accesses, and one: the first parameter of the Beta distribution.
    accessed: u16,
    /// Scans that did not, and one.
    idle: u16,
    /// The time between scans is the shortest one, so many times doubled.
    doubled: u8,
    tier: Tier,
    next: Nanos,
}

/// For each batch, a Beta distribution of how likely a scan finds it accessed. A draw from it decides whether the batch
/// is hot, and two draws that agree that it need not be scanned so often.
///
/// In the slow tier a batch has no access bits that anything sets, except by a fault: a fault is an access like any
/// other, and what is faulted in again and again is drawn hot and moves back.
#[derive(Debug)]
pub struct Sol {
    tuning: SolTuning,
    batches: Vec<Batch>,
    draws: Draws,
    epoch_ends: Nanos,
}

impl Sol {
    /// For this many batches, all in the fast tier.
    pub fn new(now: Nanos, batches: u32, tuning: SolTuning) -> Sol {
        let batch = Batch { accessed: 1, idle: 1, doubled: 0, tier: Tier::Fast, next: now + tuning.least_period };
        let epoch_ends = now + tuning.epoch;
        Sol { tuning, batches: vec![batch; batches as usize], draws: Draws::new(tuning.seed), epoch_ends }
    }

    /// The present time between scans of a batch.
    pub fn period(&self, batch: BatchId) -> Option<Nanos> {
        self.batches.get(batch.0 as usize).map(|batch| period(&self.tuning, batch.doubled))
    }

    /// Where the policy believes a batch to be.
    pub fn tier(&self, batch: BatchId) -> Option<Tier> {
        self.batches.get(batch.0 as usize).map(|batch| batch.tier)
    }
}

fn period(tuning: &SolTuning, doubled: u8) -> Nanos {
    Nanos((tuning.least_period.0 << doubled.min(32)).min(tuning.most_period.0))
}

fn draws_hot(draws: &mut Draws, batch: &Batch, hot_percent: u32) -> bool {
    let draw = draws.beta(u32::from(batch.accessed), u32::from(batch.idle));
    u64::from(draw) * 100 >= u64::from(hot_percent) << 32
}

impl TieringPolicy for Sol {
    fn due(&mut self, now: Nanos, batches: &mut Vec<BatchId>) {
        for (at, batch) in self.batches.iter_mut().enumerate() {
            if batch.next <= now {
                // Reported or not, it is due again a period later.
                batch.next = now + period(&self.tuning, batch.doubled);
                batches.push(BatchId(at as u32));
            }
        }
    }

    fn scanned(&mut self, now: Nanos, batch: BatchId, was_accessed: bool) {
        let Some(batch) = self.batches.get_mut(batch.0 as usize) else { return };
        let was_expected = was_accessed == (batch.accessed >= batch.idle);
        match was_accessed {
            true => batch.accessed += 1,
            false => batch.idle += 1,
        }
        if batch.accessed + batch.idle > MEMORY {
            batch.accessed = batch.accessed.div_ceil(2);
            batch.idle = batch.idle.div_ceil(2);
        }
        let draws = [(); 2].map(|()| draws_hot(&mut self.draws, batch, self.tuning.hot_percent));
        let is_sure = was_expected && draws[0] == draws[1] && draws[0] == was_accessed;
        batch.doubled = match is_sure {
            true if period(&self.tuning, batch.doubled) < self.tuning.most_period => batch.doubled.saturating_add(1),
            true => batch.doubled,
            false => batch.doubled.saturating_sub(1),
        };
        batch.next = now + period(&self.tuning, batch.doubled);
    }

    fn migrate(&mut self, now: Nanos, migrations: &mut Vec<Migration>) {
        if now < self.epoch_ends {
            return;
        }
        self.epoch_ends = now + self.tuning.epoch;
        for (at, batch) in self.batches.iter().enumerate() {
            let to = match draws_hot(&mut self.draws, batch, self.tuning.hot_percent) {
                true => Tier::Fast,
                false => Tier::Slow,
            };
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
        self.batches.iter().map(|batch| batch.next).min().unwrap_or(self.epoch_ends).min(self.epoch_ends)
    }
}
