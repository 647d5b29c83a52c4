//! A server, or the data plane, that dies under load.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::process::Signal;
use softdpu_frontend::BlockOptions;
use softdpu_tests::{Daemon, Failure, wait_until, wait_until_still};

use crate::common::*;
use crate::load::Load;

const BLOCKS: usize = 256;
/// As long as nothing changes, what was on its way has arrived.
const STILL: Duration = Duration::from_secs(1);

/// Waits until the load has done `more` requests from now on.
fn progress(what: &str, completed: &AtomicU64, more: u64) -> Result<(), Failure> {
    let before = completed.load(SeqCst);
    wait_until(&format!("{more} requests {what}"), WAIT, || Ok((completed.load(SeqCst) >= before + more).then_some(())))
}

/// Requests of the device's queues that are under way.
fn in_flight(daemon: &Daemon) -> Result<u64, Failure> {
    let device = daemon.device("data-disk")?;
    let queues = device["queues"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(queues.iter().filter_map(|queue| queue["inflight"].as_u64()).sum())
}

#[test]
fn an_nbd_server_that_vanishes_and_returns_loses_no_request() {
    run("vanished", &["nbdkit"], |lab| {
        let image = lab.image("image", 16 * MIB)?;
        let arguments = ["file", text(&image)?];
        let mut server = NbdServer::nbdkit(lab, "nbdkit", &arguments)?;
        let daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("data", &server.backend(""), 2)))?;
        let mut front_end =
            connect(&daemon, "data", &BlockOptions { queues: 2, inflight: true, ..BlockOptions::default() })?;
        let mut load = Load::new(&front_end, BLOCKS, 16);
        load.run(&mut front_end, |completed| {
            progress("before the server vanishes", completed, 100)?;
            // It stops first, so that requests are with it, unanswered, when it vanishes: what it has answered has
            // arrived when nothing more comes back and something is under way.
            server.hang()?;
            let (_, under_way) =
                wait_until_still("nothing to come back from a server that stands still", STILL, WAIT, || {
                    Ok((completed.load(SeqCst), in_flight(&daemon)?))
                })?;
            assert!(under_way > 0, "nothing is under way to the server");
            server.process.signal(Signal::KILL);
            server.process.wait(WAIT)?;
            // From here on requests can only wait.
            wait_until("status to show that the volume has lost its server", WAIT, || {
                Ok((volume(&daemon, "data")?["state"] == "recovering").then_some(()))
            })?;
            server = NbdServer::nbdkit(lab, "nbdkit", &arguments)?;
            progress("after the server returned", completed, 200)
        })?;
        let after = volume(&daemon, "data")?;
        assert_eq!(after["state"], "active", "{after}");
        assert!(after["counters"]["disconnects"].as_u64() >= Some(1), "{after}");
        assert!(after["counters"]["replayed"].as_u64() >= Some(1), "{after}");
        assert_eq!(after["errors"], 0, "{after}");
        drop(front_end);
        daemon.stop()
    });
}

#[test]
fn a_data_plane_that_is_killed_loses_and_doubles_nothing_of_an_nbd_volume() {
    const KILLS: u64 = 5;
    run("nbd-kill", &["nbdkit"], |lab| {
        let server = NbdServer::nbdkit(lab, "nbdkit", &["memory", "16M"])?;
        let mut daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("data", &server.backend(""), 2)))?;
        let mut front_end =
            connect(&daemon, "data", &BlockOptions { queues: 2, inflight: true, ..BlockOptions::default() })?;
        let mut load = Load::new(&front_end, BLOCKS, 16);
        load.run(&mut front_end, |completed| {
            for _ in 0..KILLS {
                progress("between two kills", completed, 100)?;
                daemon.kill_data_plane()?;
            }
            progress("after the last kill", completed, 100)
        })?;
        assert_eq!(daemon.data_plane()?.1, KILLS, "it was started again as often as it was killed");
        drop(front_end);
        daemon.stop()
    });
}
