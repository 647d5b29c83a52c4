//! Nothing is lost at a rate that the machine has just shown that it takes (Zephyrus §5.1, figure 7).

#![allow(missing_docs)]

use std::process::Command;

use serde_json::Value;
use softdpu_tests::{Context, Failure, Host, softdpu};

/// Times that a rate is found and tried: the machine may run something else in between.
const TRIES: u32 = 10;

/// What `softdpu bench gateway` says of a case.
fn figure(lines: &[Value], case: &str, metric: &str) -> Result<f64, Failure> {
    let found = lines.iter().find(|line| line["case"] == case && line["metric"] == metric);
    let value = found.and_then(|line| line["value"].as_f64());
    value.ok_or_else(|| Failure::new(format!("no {metric} of {case}")))
}

#[test]
fn nothing_is_lost_between_guests_with_the_flow_tier_below_the_rate_that_it_takes() -> Result<(), Failure> {
    nothing_is_lost(&[], ["flow-tier", "no-flow-tier"])
}

#[test]
fn nothing_is_lost_between_sites_with_the_flow_tier_below_the_rate_that_it_takes() -> Result<(), Failure> {
    if !Host::is_possible("gateway-loss-sites") {
        return Ok(());
    }
    nothing_is_lost(&["--between", "sites"], ["sites, flow-tier", "sites, no-flow-tier"])
}

fn nothing_is_lost(more: &[&str], [with, without]: [&str; 2]) -> Result<(), Failure> {
    let mut losses = Vec::new();
    for _ in 0..TRIES {
        let mut command = Command::new(softdpu()?);
        command.args(["bench", "gateway", "--json", "--packets", "200000", "--probe", "20000"]).args(more);
        command.args(["--client-cpu", "1", "--server-cpu", "0"]);
        let output = command.output().context("softdpu bench gateway")?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).context("its figures")?;
        let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
        let lines = lines.context("its figures")?;
        for (case, metric) in [(with, "rate"), (with, "lost"), (without, "lost")] {
            println!("{case} {metric}: {}", figure(&lines, case, metric)?);
        }
        assert!(figure(&lines, with, "sent")? >= 200_000.0);
        assert!(figure(&lines, with, "round-trip-p99")? >= figure(&lines, with, "round-trip-p50")?);
        let lost = figure(&lines, with, "lost")?;
        if lost == 0.0 {
            return Ok(());
        }
        losses.push(lost);
    }
    Err(Failure::new(format!("packets were lost each time: {losses:?} of 200000")))
}
