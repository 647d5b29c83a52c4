//! Upgrades of the data plane under drivers that verify everything themselves: eight devices, 32 requests deep each.
//!
//! `SOFTDPU_UPGRADES` is the number of upgrades (20; `make soak` takes 500), `SOFTDPU_SEED` repeats a run's moments.

#![allow(missing_docs)]

mod client;

use std::time::Duration;

use client::verified::{Drivers, devices, site};
use softdpu_tests::{Context, Daemon, Failure, Lab, Random};

/// Between two upgrades, once requests complete again.
const LEAST_PAUSE: Duration = Duration::from_millis(20);
const MOST_PAUSE: Duration = Duration::from_millis(400);

fn upgrades() -> Result<u32, Failure> {
    std::env::var("SOFTDPU_UPGRADES").map_or(Ok(20), |text| text.parse().context("SOFTDPU_UPGRADES"))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

fn take_over(lab: &Lab) -> Result<(), Failure> {
    let mut random = Random::from_environment();
    eprintln!("SOFTDPU_SEED={}", random.seed);
    let devices = devices();
    let daemon = Daemon::start(lab.path(), &site(&devices))?;
    let drivers = Drivers::start(&daemon, &devices, random.seed)?;
    let upgrades = upgrades()?;
    let (mut before, mut gaps) = (Vec::new(), Vec::new());
    for number in 1..=upgrades {
        drivers.forget_gaps();
        std::thread::sleep(random.between(LEAST_PAUSE, MOST_PAUSE));
        drivers.check()?;
        before.push(drivers.longest_gap());
        drivers.forget_gaps();
        let (pid, _) = daemon.data_plane()?;
        let answer = daemon.upgrade()?;
        drivers.go_on("an upgrade")?;
        assert_ne!(daemon.data_plane()?.0, pid, "the same process serves after an upgrade");
        gaps.push(drivers.longest_gap());
        let status = &daemon.status()?["data_plane"]["upgrade"];
        eprintln!(
            "upgrade {number:3}: switched in {:6.1} ms, first completion {:6.1} ms, longest gap of a driver {:6.1} ms",
            answer["switched_us"].as_f64().unwrap_or(0.0) / 1e3,
            status["first_completion_us"].as_f64().unwrap_or(0.0) / 1e3,
            drivers.longest_gap().as_secs_f64() * 1e3
        );
        assert_eq!(status["stage"], "done", "{status}");
        assert_eq!(answer["abandoned"], 0, "requests on these volumes end in time");
    }
    let total = drivers.settle()?;
    assert_eq!(daemon.data_plane()?.1, 0, "an upgrade is no restart");
    let (without, with) = (median(before), median(gaps));
    eprintln!(
        "{upgrades} upgrades, {} drivers, {total} requests: longest gap {with:.1} ms (median), without an upgrade {without:.1} ms",
        devices.len(),
    );
    daemon.stop()
}

#[test]
fn drivers_lose_nothing_and_get_nothing_twice_when_the_data_plane_is_upgraded() {
    Lab::run("upgrade", take_over);
}
