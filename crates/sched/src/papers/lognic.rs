//! LogNIC's offline model (Guo et al., MICRO 2023), as MTDA describes it (MTDA §I, §II-C, §V-B): applications are
//! characterised before, a model says what throughput and queueing delay a partition of the cores would give them, and
//! the partition that is best by the model is kept, whatever comes.
//!
//! The model here is one stage of that: each tenant's virtual instance is an M/M/1/N queue whose server is its part of
//! the cores. MTDA's text names graphs of several stages and the cost of moving data between them; with one core and no
//! accelerator there is one stage and nothing to move.

use crate::FairNic;

/// What was measured of a tenant's application beforehand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Requests a second that are expected.
    pub rate: f64,
    /// Nanoseconds of a core for each.
    pub service: f64,
    /// Requests its queue holds; more are lost.
    pub capacity: u32,
}

/// What the model expects of a tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expectation {
    /// Requests a second that are served.
    pub throughput: f64,
    /// Mean time from arrival to end, nanoseconds.
    pub latency: f64,
}

/// The model, see the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct LogNic {
    /// By tenant, in millionths of a core.
    pub parts: Vec<u64>,
}

/// Pieces that a core is divided into.
const PIECES: u64 = 200;

impl Profile {
    /// What the M/M/1/N model expects of it on a part of a core, above 0.
    pub fn expect(&self, part: f64) -> Expectation {
        let served = part * 1e9 / self.service.max(1.0);
        let (load, n) = (self.rate / served, f64::from(self.capacity.max(1)));
        // Of states 0 to N, the last loses what comes, and the mean is what waits and is served.
        let (lost, mean) = if (load - 1.0).abs() < 1e-9 {
            (1.0 / (n + 1.0), n / 2.0)
        } else if load < 1.0 {
            let all = 1.0 - load.powf(n + 1.0);
            ((1.0 - load) * load.powf(n) / all, load / (1.0 - load) - (n + 1.0) * load.powf(n + 1.0) / all)
        } else {
            // The same in 1/load, which overflows nowhere.
            let free = 1.0 / load;
            let all = 1.0 - free.powf(n + 1.0);
            ((1.0 - free) / all, n - (free / (1.0 - free) - (n + 1.0) * free.powf(n + 1.0) / all))
        };
        let throughput = self.rate * (1.0 - lost);
        Expectation { throughput, latency: if throughput > 0.0 { mean / throughput * 1e9 } else { 0.0 } }
    }
}

impl LogNic {
    /// Finds the parts of one core that maximise the sum of the tenants' throughput, each relative to its offered load;
    /// among equals, those with the least sum of delays. Greedy, in pieces: both are concave in the part.
    pub fn plan(profiles: &[Profile]) -> LogNic {
        let mut pieces = vec![1_u64; profiles.len()];
        let left = PIECES.saturating_sub(profiles.len() as u64);
        let worth = |profile: &Profile, pieces: u64| {
            let expected = profile.expect(pieces as f64 / PIECES as f64);
            expected.throughput / profile.rate.max(1e-9) - expected.latency / 1e12
        };
        for _ in 0..left {
            let gain = |at: usize| worth(&profiles[at], pieces[at] + 1) - worth(&profiles[at], pieces[at]);
            let best = (0..profiles.len()).max_by(|&a, &b| gain(a).total_cmp(&gain(b)));
            if let Some(best) = best {
                pieces[best] += 1;
            }
        }
        LogNic { parts: pieces.into_iter().map(|pieces| pieces * 1_000_000 / PIECES).collect() }
    }

    /// A scheduler that makes the plan itself, from the first tenth of a second of work: applications cannot be
    /// characterised before a node starts.
    pub fn learning() -> FairNic {
        FairNic::learning()
    }

    /// A scheduler that carries out the plan on a core.
    pub fn scheduler(&self) -> FairNic {
        FairNic::with_parts(&self.parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_the_textbooks() {
        let queue = Profile { rate: 500_000.0, service: 1_000.0, capacity: 1_000 };
        let half = queue.expect(1.0);
        assert!((half.throughput - 500_000.0).abs() < 1.0);
        assert!((half.latency - 2_000.0).abs() < 1.0, "1/(µ-λ): {}", half.latency);
        let over = queue.expect(0.25);
        assert!((over.throughput - 250_000.0).abs() < 10.0);
        assert!(over.latency > 3.9e6, "a full queue of 1,000 at 4 µs each: {}", over.latency);
    }

    #[test]
    fn a_plan_gives_by_what_was_expected_and_stays_when_it_was_wrong() {
        let profile = |rate| Profile { rate, service: 1_000.0, capacity: 128 };
        let plan = LogNic::plan(&[profile(600_000.0), profile(150_000.0)]);
        assert!(plan.parts[0] > 2 * plan.parts[1], "{:?}", plan.parts);
        assert!(plan.parts.iter().sum::<u64>() <= 1_000_000);
        // Then the second one has all the load.
        use crate::driver::{Client, Driver};
        let mut driver = Driver::new(plan.scheduler(), &[Client::flood(1, 1, 1_000)]);
        driver.run(50_000_000);
        let part = driver.time_of(1, 10_000_000) as f64 / 4e7;
        assert!((part - plan.parts[1] as f64 / 1e6).abs() < 0.02, "{part} of {:?}", plan.parts);
    }
}
