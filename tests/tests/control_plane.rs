//! Programs run on the idle time of cores as they would without softdpu, and run as before when it stops.

#![allow(missing_docs)]

use std::process::Command;
use std::time::Duration;

use softdpu_tests::{Context, Daemon, Failure, Lab, Site, wait_until};

const WAIT: Duration = Duration::from_secs(60);

fn site() -> Site {
    Site::on(&[0]).volume("v", "null = { size = '1 MiB' }").device("d", "domain = 'vm'\nvirtio-blk = { volume = 'v' }")
}

/// What chrt(1) says of a process' policy.
fn policy(pid: u32) -> Result<String, Failure> {
    let output = Command::new("chrt").args(["-p", &pid.to_string()]).output().context("chrt")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let policy = text.lines().find_map(|line| line.split_once("policy: ")).map(|(_, policy)| policy.to_owned());
    policy.ok_or_else(|| Failure::new(format!("chrt -p says {text:?}")))
}

#[test]
fn a_program_runs_on_idle_time_with_its_output_and_exit_code_and_is_given_back() {
    Lab::run("control-plane", |lab| {
        let mut daemon = Daemon::start(lab.path(), &site().to_string())?;
        let told = daemon.command(&["cp", "run", "--", "sh", "-c", "chrt -p $$"])?;
        assert!(told.contains("SCHED_IDLE"), "{told}");
        let failed = daemon.command(&["cp", "run", "--", "sh", "-c", "exit 7"]).expect_err("its exit code is 7");
        assert!(failed.to_string().contains("exit status: 7"), "{failed}");

        let mut sleep = Command::new("sleep").arg("600").spawn().context("sleep")?;
        let pid = sleep.id();
        let before = policy(pid)?;
        daemon.command(&["cp", "adopt", &pid.to_string(), "--name", "asleep"])?;
        assert_eq!(policy(pid)?, "SCHED_IDLE");
        // The one that follows a crash goes on with it, and gives it back.
        daemon.restart_after_kill()?;
        wait_until("the next supervisor to go on with the task", WAIT, || {
            Ok(daemon.command(&["cp", "list"])?.contains("asleep").then_some(()))
        })?;
        daemon.stop()?;
        assert_eq!(policy(pid)?, before);
        sleep.kill().context("kill")?;
        sleep.wait().context("wait")?;
        Ok(())
    });
}
