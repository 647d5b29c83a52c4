//! SOL on a process with a hot part (§7.4), beside a fixed rate.

use softdpu_sched::Nanos;
use softdpu_sched::tiering::{BATCH_BYTES, Clock, EPOCH, Migration, Sol, SolTuning, Tier, TieringPolicy};

use crate::random::Random;

/// Of the process' batches one in so many is simulated: what is known of a batch does not depend on the others.
const SAMPLE: u64 = 32;
/// Bytes of the process at its start (§7.4.2).
pub(super) const BYTES: u64 = 102 << 30;
/// The shortest time between two scans (§7.4.1).
const LEAST_PERIOD: Nanos = Nanos(600_000_000);

/// The part of the batches that is hot, percent. Assumed: the paper has only the result.
pub(super) const HOT_PERCENT: u64 = 20;
/// How likely a scan finds a hot batch accessed, and another one. Assumed.
const ACCESSED_PERCENT: (u64, u64) = (98, 2);

/// What was found.
pub(super) struct Tiered {
    /// Bytes in the fast tier after each epoch.
    pub resident: Vec<f64>,
    /// Scans of a batch, all batches together.
    pub scans: u64,
    /// Hot batches that are in the slow tier at the end, of all hot ones.
    pub misplaced: f64,
}

fn run(policy: &mut dyn TieringPolicy, epochs: u64, seed: u64) -> Tiered {
    let batches = batches();
    let hot = u64::from(batches) * HOT_PERCENT / 100;
    let is_hot = |batch: u32| u64::from(batch) < hot;
    let mut random = Random::new(seed);
    let mut slow = vec![false; batches as usize];
    let mut found = Tiered { resident: Vec::new(), scans: 0, misplaced: 0.0 };
    let (mut due, mut migrations) = (Vec::new(), Vec::new());
    while (found.resident.len() as u64) < epochs {
        let now = policy.deadline();
        due.clear();
        policy.due(now, &mut due);
        for batch in &due {
            let (hot, cold) = ACCESSED_PERCENT;
            let was_accessed = random.percent(if is_hot(batch.0) { hot } else { cold });
            policy.scanned(now, *batch, was_accessed);
        }
        found.scans += due.len() as u64;
        migrations.clear();
        policy.migrate(now, &mut migrations);
        for Migration { batch, to } in &migrations {
            slow[batch.0 as usize] = *to == Tier::Slow;
            policy.placed(*batch, *to);
        }
        if now.0 >= EPOCH.0 * (found.resident.len() as u64 + 1) {
            let resident = slow.iter().filter(|slow| !**slow).count() as u64;
            found.resident.push((resident * BATCH_BYTES * SAMPLE) as f64);
        }
    }
    let misplaced = (0..batches).filter(|batch| is_hot(*batch) && slow[*batch as usize]).count();
    found.misplaced = misplaced as f64 / hot as f64;
    found
}

fn batches() -> u32 {
    (BYTES / BATCH_BYTES / SAMPLE) as u32
}

/// SOL, as §7.4.1 sets it.
pub(super) fn sol(epochs: u64, seed: u64) -> Tiered {
    let tuning = SolTuning { least_period: LEAST_PERIOD, seed, ..SolTuning::default() };
    run(&mut Sol::new(Nanos(0), batches(), tuning), epochs, seed)
}

/// Every batch at the shortest period; cold after four scans without an access.
pub(super) fn fixed_rate(epochs: u64, seed: u64) -> Tiered {
    run(&mut Clock::new(Nanos(0), batches(), LEAST_PERIOD, EPOCH, 4), epochs, seed)
}
