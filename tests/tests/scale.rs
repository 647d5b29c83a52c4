//! Data-plane cores that join and leave under drivers that verify everything themselves.

#![allow(missing_docs)]

mod client;

use std::time::Duration;

use client::verified::{Drivers, devices, site};
use softdpu_tests::{Daemon, Failure, Lab, Random};

/// Each of the two CPUs leaves and comes back, beside the other and in its place.
const SCALINGS: [&[u64]; 10] = [&[0, 1], &[1], &[0], &[0, 1], &[0], &[1], &[0, 1], &[1], &[0, 1], &[1]];

/// The CPUs that `status` shows, in order, and the queues on all of them together.
fn cores(daemon: &Daemon) -> Result<(Vec<u64>, u64), Failure> {
    let status = daemon.status()?;
    let cores = status["cores"].as_array().cloned().unwrap_or_default();
    let mut cpus: Vec<u64> = cores.iter().filter_map(|core| core["cpu"].as_u64()).collect();
    cpus.sort_unstable();
    Ok((cpus, cores.iter().filter_map(|core| core["queues"].as_u64()).sum()))
}

fn scale(lab: &Lab) -> Result<(), Failure> {
    let mut random = Random::from_environment();
    eprintln!("SOFTDPU_SEED={}", random.seed);
    let devices = devices();
    let mut daemon = Daemon::start(lab.path(), &site(&devices))?;
    let drivers = Drivers::start(&daemon, &devices, random.seed)?;
    drivers.go_on("their start")?;
    for wanted in SCALINGS {
        let list: Vec<String> = wanted.iter().map(u64::to_string).collect();
        daemon.command(&["scale", "--cores", &list.join(",")])?;
        assert_eq!(cores(&daemon)?.0, wanted);
        drivers.go_on("a scaling")?;
        std::thread::sleep(random.between(Duration::from_millis(5), Duration::from_millis(50)));
    }
    for (refused, why) in [("8191", "CPU 8191"), ("0,0", "twice")] {
        let error = daemon.command(&["scale", "--cores", refused]).expect_err("it cannot be");
        let error = format!("{error:?}");
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(cores(&daemon)?.0, [1], "what is refused changes nothing");

    daemon.kill_data_plane()?;
    drivers.go_on("a kill")?;
    let (cpus, queues) = cores(&daemon)?;
    assert_eq!(
        (cpus, queues),
        (vec![1], devices.len() as u64),
        "the next data plane has the cores of the last scaling"
    );
    let total = drivers.settle()?;
    eprintln!("{total} requests, {} scalings", SCALINGS.len());
    daemon.stop()
}

#[test]
fn drivers_lose_nothing_while_cores_join_and_leave() {
    Lab::run("scale", scale);
}
