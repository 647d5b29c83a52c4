//! Decisions of every policy, kept: recordings of short scenarios, which replay decision for decision.
//!
//! A change of what a policy decides fails here. Where it is meant, `SOFTDPU_WRITE_GOLDEN=1 cargo test -p softdpu-twin
//! golden` makes the recordings anew; the commit says why.

use std::path::{Path, PathBuf};

use softdpu_sched::Policy;
use softdpu_sched::record::{Header, Recording};

use super::scenario::Scenario;
use crate::node::{Node, Tally};
use crate::replay::{Ending, Outcome, verify};

/// Seeds whose scenarios have several tenants, limits, back ends and faults between them.
const SEEDS: [u64; 3] = [2, 3, 5];
/// Simulated time of a recording, nanoseconds.
const SPAN: u64 = 6_000_000;
/// Bytes of a recording at most.
const MOST: usize = 1 << 20;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// What a policy was told and decided on each core of a seed's scenario.
fn record(name: &str, seed: u64) -> Vec<Vec<u8>> {
    let scenario = Scenario::of(seed);
    let policy = Policy::named(name).expect("one of the names");
    let header = |core: usize| Header { core: core as u32, policy: name.to_owned(), parameters: policy.parameters() };
    let make = |core| Recording::new(policy.build(), &header(core), MOST);
    let mut node = Node::new(scenario.plan.clone(), make, Tally::new(scenario.tenants.len(), 0), seed);
    for (at, fault) in &scenario.faults {
        node.plan_fault(*at, *fault);
    }
    node.run(scenario.span.min(SPAN));
    node.into_parts().0.into_iter().map(|policy| policy.finish().1).collect()
}

#[test]
fn golden_recordings_replay_decision_for_decision() {
    let writes = std::env::var_os("SOFTDPU_WRITE_GOLDEN").is_some();
    let mut decisions = 0;
    for name in Policy::NAMES {
        for seed in SEEDS {
            let file = folder().join(format!("{name}-{seed}"));
            if writes {
                let busiest = record(name, seed).into_iter().max_by_key(Vec::len).expect("a core");
                std::fs::write(&file, busiest).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            }
            let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let verified = verify(&bytes).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let outcome = (verified.outcome, verified.ending);
            assert_eq!(outcome, (Outcome::Same, Ending::Whole), "{name} decides otherwise than in {}", file.display());
            decisions += verified.decisions;
        }
    }
    assert!(decisions > 10_000, "only {decisions} decisions");
}

/// The recordings are of what the twin does now: were it to tell policies something else, they would be kept for
/// nothing.
#[test]
fn golden_recordings_are_what_the_twin_records() {
    for name in Policy::NAMES {
        let bytes = std::fs::read(folder().join(format!("{name}-{}", SEEDS[0]))).expect("a golden recording");
        assert!(record(name, SEEDS[0]).contains(&bytes), "{name}: the twin records something else");
    }
}
