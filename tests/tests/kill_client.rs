//! kill -9 of the data plane under drivers that verify everything themselves: eight devices, each of split or packed
//! format, with the in-flight region at the front end or not, on a memory or a file volume, 32 requests deep each.
//!
//! `SOFTDPU_KILLS` is the number of kills (20), `SOFTDPU_SEED` repeats a run's moments.

#![allow(missing_docs)]

mod client;

use std::time::Duration;

use client::PATIENCE;
use client::verified::{Drivers, devices, site};
use softdpu_tests::{Context, Daemon, Failure, Lab, Random, wait_until};

/// Between two kills, once requests complete again.
const LEAST_PAUSE: Duration = Duration::from_millis(20);
const MOST_PAUSE: Duration = Duration::from_millis(400);

fn kills() -> Result<u32, Failure> {
    std::env::var("SOFTDPU_KILLS").map_or(Ok(20), |text| text.parse().context("SOFTDPU_KILLS"))
}

fn survive(lab: &Lab) -> Result<(), Failure> {
    let mut random = Random::from_environment();
    eprintln!("SOFTDPU_SEED={}", random.seed);
    let devices = devices();
    let mut daemon = Daemon::start(lab.path(), &site(&devices))?;
    let drivers = Drivers::start(&daemon, &devices, random.seed)?;
    let kills = kills()?;
    let mut firsts = Vec::new();
    for kill in 1..=kills {
        std::thread::sleep(random.between(LEAST_PAUSE, MOST_PAUSE));
        drivers.check()?;
        drivers.forget_gaps();
        let restarted = daemon.kill_data_plane()?;
        let first = wait_until("the first completion after a kill", PATIENCE, || {
            drivers.check()?;
            Ok(daemon.first_completion_after_restart().ok())
        })?;
        drivers.go_on("a kill")?;
        eprintln!(
            "kill {kill:3}: status shows the next after {:6.1} ms, first completion {:6.1} ms, longest gap of a driver {:6.1} ms",
            restarted.as_secs_f64() * 1e3,
            first.as_secs_f64() * 1e3,
            drivers.longest_gap().as_secs_f64() * 1e3
        );
        firsts.push(first);
    }
    let total = drivers.settle()?;
    assert_eq!(daemon.data_plane()?.1, u64::from(kills), "status counts other restarts than there were kills");
    firsts.sort();
    let millis = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
    eprintln!(
        "{kills} kills, {} drivers, {total} requests: first completion after {:.1} ms (median), {:.1} ms (worst)",
        devices.len(),
        millis(firsts.get(firsts.len() / 2)),
        millis(firsts.last())
    );
    daemon.stop()
}

#[test]
fn drivers_lose_nothing_and_get_nothing_twice_when_the_data_plane_is_killed() {
    Lab::run("kill-client", survive);
}
