//! A real core's schedule, recorded while two tenants load it, and taken again by the twin.

#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use softdpu_frontend::Transfer;
use softdpu_frontend::load::block::BlockWork;
use softdpu_frontend::load::{BlockClient, Priority, RunOptions, run};
use softdpu_tests::{Context, Daemon, Failure, Interval, Lab, softdpu};

/// The clients' CPU, and the core's.
const CPUS: (usize, usize) = (0, 1);
const WARM_UP: Duration = Duration::from_millis(50);
const RECORDED: Duration = Duration::from_millis(250);
/// Recordings that another policy is tried on: the fewest that have an interval.
const RECORDINGS: usize = 6;

/// Two tenants with a disk of memory each, on one core that is recorded in `file`.
fn site(fairness: &str, file: &Path) -> String {
    let mut text = format!(
        "[node]\nfairness = \"{fairness}\"\nrecord = \"{}\"\n\
         dataplane = {{ cores = [{}], idle-sleep = \"never\" }}\nlog = {{ level = \"warn\" }}\n",
        file.display(),
        CPUS.1
    );
    for (name, keys) in [("light", "class = \"latency\""), ("flood", "weight = 2")] {
        text.push_str(&format!(
            "[[tenant]]\nname = \"{name}\"\n{keys}\n[[volume]]\nname = \"{name}\"\nmemory = {{ size = \"4 MiB\" }}\n\
             [[device]]\nname = \"{name}\"\ntenant = \"{name}\"\nvirtio-blk = {{ volume = \"{name}\", queue-size = 1024, \
             socket = \"{name}.sock\" }}\n"
        ));
    }
    text
}

/// Records a core under load, to a daemon that was stopped.
fn record(lab: &Lab, fairness: &str) -> Result<PathBuf, Failure> {
    let file = lab.path().join(format!("{fairness}.rec"));
    let daemon = Daemon::start(lab.path(), &site(fairness, &file))?;
    // Its CPUs are its own also where the kernel shares them between sessions.
    let pid = daemon.data_plane()?.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("the data plane's state")?;
    let session = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(3)?.parse::<u32>().ok());
    assert_eq!(session, Some(pid), "the data plane has a session of its own: {stat}");
    let works = [
        BlockWork { transfer: Transfer::Read, block_size: 4096, depth: 1 },
        BlockWork { transfer: Transfer::Write, block_size: 4096, depth: 64 },
    ];
    let mut clients = ["light", "flood"]
        .iter()
        .zip(works)
        .map(|(name, work)| BlockClient::connect(&lab.path().join(format!("{name}.sock")), work))
        .collect::<Result<Vec<_>, _>>()
        .context("connecting")?;
    let options =
        RunOptions { cpu: CPUS.0, priority: Priority::Session, batch: None, warm_up: WARM_UP, duration: RECORDED };
    run(&mut clients, &options).context("load")?;
    drop(clients);
    daemon.stop()?;
    Ok(file)
}

fn replay(file: &Path, more: &[&str]) -> Result<Output, Failure> {
    let mut command = Command::new(softdpu()?);
    command.args(["twin", "replay"]).arg(file).args(more);
    command.output().context("softdpu twin replay")
}

/// A value of a replay's `--json`.
fn value(output: &Output, subject: &str, case: &str, metric: &str) -> Option<f64> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines.find(|v| v["subject"] == subject && v["case"] == case && v["metric"] == metric)?["value"].as_f64()
}

#[test]
fn a_recorded_core_is_replayed_decision_for_decision() {
    Lab::run_on_two_cpus("recording", |lab| {
        for fairness in ["weighted", "fcfs", "mtda", "mtda-printed", "ipipe", "fairnic", "lognic"] {
            let file = record(lab, fairness)?;
            let again = replay(&file, &["--json"])?;
            assert!(again.status.success(), "{fairness}: {}", String::from_utf8_lossy(&again.stderr));
            let seen = |metric| value(&again, fairness, "core 0", metric).unwrap_or_default();
            println!("{fairness}: {} events, {} grants", seen("events"), seen("grants"));
            assert_eq!(seen("same"), 1.0, "{fairness}");
            assert!(seen("grants") > 100.0, "{fairness}: {} grants", seen("grants"));
        }
        // What another policy would have made of the same work.
        let mut ratios = Vec::new();
        for _ in 0..RECORDINGS {
            let file = record(lab, "fcfs")?;
            let other = replay(&file, &["--policy", "weighted", "--json"])?;
            assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
            let wait = |subject| value(&other, subject, "tenant 0", "wait-mean");
            let (Some(recorded), Some(otherwise)) = (wait("fcfs, recorded"), wait("weighted, model")) else {
                return Err(Failure::new(format!("no waits: {}", String::from_utf8_lossy(&other.stdout))));
            };
            ratios.push(otherwise / recorded);
        }
        Interval::new(ratios)?.is_at_most(1.0, "the light tenant's mean wait, had it been weighted, over fcfs")?;
        for fairness in ["weighted", "fcfs"] {
            let waits = replay(&lab.path().join(format!("{fairness}.rec")), &["--policy", fairness, "--json"])?;
            let wait = |metric| value(&waits, &format!("{fairness}, recorded"), "tenant 0", metric).unwrap_or(f64::NAN);
            let (mean, p99, most) = (wait("wait-mean"), wait("wait-p99"), wait("wait-max"));
            println!(
                "{fairness}: from the ring to its grant, the light tenant waited {mean:.2} us, p99 {p99:.2}, max {most:.2}"
            );
        }
        Ok(())
    });
}

#[test]
fn a_recording_that_was_cut_says_so_and_one_that_is_damaged_is_refused() {
    Lab::run_on_two_cpus("cut-recording", |lab| {
        let file = record(lab, "weighted")?;
        let bytes = std::fs::read(&file).context("the recording")?;
        let cut = lab.path().join("cut.rec");
        // Wherever it ends, it ends after an event or says within which byte it does not.
        let says = |end: usize| -> Result<bool, Failure> {
            std::fs::write(&cut, &bytes[..end]).context("writing")?;
            let again = replay(&cut, &[])?;
            let (out, err) = (String::from_utf8_lossy(&again.stdout), String::from_utf8_lossy(&again.stderr));
            assert!(out.contains("every decision was taken again"), "what is whole of it is replayed: {out}{err}");
            let said = err.contains("the file was cut: it ends within an event, at byte");
            assert_eq!(again.status.success(), !said, "{err}");
            Ok(said)
        };
        let half = bytes.len() / 2;
        let mut said = 0;
        for end in half..half + 8 {
            said += u32::from(says(end)?);
        }
        assert!(said > 0, "no event is as short as a byte everywhere");
        // Within what it begins with, there is nothing to replay.
        std::fs::write(&cut, &bytes[..9]).context("writing")?;
        let none = replay(&cut, &[])?;
        assert!(!none.status.success());
        let err = String::from_utf8_lossy(&none.stderr);
        println!("{err}");
        assert!(err.contains("cut.rec") && err.contains("byte"), "{err}");
        let mut damaged = bytes.clone();
        damaged[0] ^= 1;
        std::fs::write(&cut, damaged).context("writing")?;
        assert!(!replay(&cut, &[])?.status.success());
        Ok(())
    });
}
