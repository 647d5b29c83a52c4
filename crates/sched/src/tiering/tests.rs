use super::*;

const BATCHES: u32 = 1_000;
const HOT: u32 = 200;

/// A process: a fifth of its batches is accessed all the time, a few of the others now and then.
struct Process {
    tiers: Vec<Tier>,
    /// Batches from here on are hot.
    hot_from: u32,
    state: u64,
    scans: u64,
}

impl Process {
    fn new() -> Self {
        Process { tiers: vec![Tier::Fast; BATCHES as usize], hot_from: 0, state: 7, scans: 0 }
    }

    fn is_hot(&self, batch: u32) -> bool {
        (batch + BATCHES - self.hot_from) % BATCHES < HOT
    }

    fn was_accessed(&mut self, batch: u32) -> bool {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chance = if self.is_hot(batch) { 98 } else { 2 };
        (self.state >> 33) % 100 < chance
    }

    /// Goes on until `until`.
    fn run(&mut self, policy: &mut dyn TieringPolicy, until: Nanos) {
        let (mut due, mut migrations) = (Vec::new(), Vec::new());
        loop {
            let now = policy.deadline();
            if now > until {
                return;
            }
            due.clear();
            policy.due(now, &mut due);
            self.scans += due.len() as u64;
            for batch in &due {
                let was_accessed = self.was_accessed(batch.0);
                policy.scanned(now, *batch, was_accessed);
            }
            migrations.clear();
            policy.migrate(now, &mut migrations);
            for Migration { batch, to } in &migrations {
                self.tiers[batch.0 as usize] = *to;
                policy.placed(*batch, *to);
            }
        }
    }

    /// Batches in the fast tier, and how many hot ones are in the slow one.
    fn resident(&self) -> (usize, usize) {
        let resident = self.tiers.iter().filter(|tier| **tier == Tier::Fast).count();
        let misplaced = (0..BATCHES).filter(|batch| self.is_hot(*batch) && self.tiers[*batch as usize] == Tier::Slow);
        (resident, misplaced.count())
    }
}

fn epochs(count: u64) -> Nanos {
    Nanos(EPOCH.0 * count)
}

#[test]
fn sol_leaves_the_hot_fifth_in_three_epochs_and_scans_less_than_a_fixed_rate() {
    let (mut process, mut other) = (Process::new(), Process::new());
    process.run(&mut Sol::new(Nanos(0), BATCHES, SolTuning::default()), epochs(3));
    other.run(&mut Clock::new(Nanos(0), BATCHES, LEAST_PERIOD, EPOCH, 4), epochs(3));
    for found in [&process, &other] {
        let (resident, misplaced) = found.resident();
        assert!(resident <= 300 && misplaced <= 4, "{resident} resident, {misplaced} hot ones are not");
    }
    assert!(process.scans * 4 < other.scans, "{} {}", process.scans, other.scans);
}

#[test]
fn sol_follows_a_hot_set_that_moves() {
    let mut process = Process::new();
    let mut policy = Sol::new(Nanos(0), BATCHES, SolTuning::default());
    process.run(&mut policy, epochs(3));
    process.hot_from = 500;
    process.run(&mut policy, epochs(6));
    let (resident, misplaced) = process.resident();
    assert!(resident <= 300 && misplaced <= 4, "{resident} resident, {misplaced} hot ones are not");
}

#[test]
fn a_batch_that_is_always_the_same_is_scanned_less_and_less_often_and_at_once_when_it_changes() {
    let mut policy = Sol::new(Nanos(0), 1, SolTuning::default());
    let batch = BatchId(0);
    let mut now = Nanos(0);
    for _ in 0..40 {
        now = now + MOST_PERIOD;
        policy.scanned(now, batch, false);
    }
    assert_eq!(policy.period(batch), Some(MOST_PERIOD));
    policy.scanned(now, batch, true);
    assert!(policy.period(batch) < Some(MOST_PERIOD));
    assert_eq!(policy.period(BatchId(1)), None, "a batch that there is not");
}

#[test]
fn a_seed_gives_the_same_migrations_and_a_refused_one_is_asked_for_again() {
    let run = || {
        let mut policy = Sol::new(Nanos(0), BATCHES, SolTuning::default());
        let mut process = Process::new();
        process.run(&mut policy, epochs(2));
        process.tiers
    };
    assert_eq!(run(), run());
    let mut policy = Sol::new(Nanos(0), 1, SolTuning::default());
    for scan in 1..=20 {
        policy.scanned(Nanos(scan), BatchId(0), false);
    }
    for epoch in 1..=2 {
        let mut migrations = Vec::new();
        policy.migrate(epochs(epoch), &mut migrations);
        assert_eq!(migrations, [Migration { batch: BatchId(0), to: Tier::Slow }], "epoch {epoch}");
    }
}

#[test]
fn scaled_times_keep_their_ratios() {
    let scaled = SolTuning::default().scaled(1_000);
    assert_eq!(
        (scaled.least_period, scaled.most_period, scaled.epoch),
        (Nanos(300_000), Nanos(9_600_000), Nanos(38_400_000))
    );
}
