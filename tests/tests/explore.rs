//! Policies keep what they promise, over seeds with injected faults, as a user sweeps them (`softdpu twin explore`).

#![allow(missing_docs)]

use std::process::Command;

use softdpu_tests::softdpu;

/// Seeds of each policy: a sweep takes a few seconds.
const SEEDS: &str = "300";

#[test]
fn no_policy_breaks_a_promise() {
    for policy in ["weighted", "fcfs", "mtda", "mtda-printed", "ipipe", "fairnic", "lognic", "adaptive-yield"] {
        let run = Command::new(softdpu().expect("a program"))
            .args(["twin", "explore", "--policy", policy, "--seeds", SEEDS])
            .output();
        let run = run.expect("softdpu runs");
        let said = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{policy}: {said}");
        assert!(said.contains(SEEDS), "{policy} was not swept over {SEEDS} seeds: {said}");
    }
}
