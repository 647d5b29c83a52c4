//! A server, or the data plane, that dies under load.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::process::Signal;
use softdpu_bench::front_end::Options;
use softdpu_tests::{Daemon, Failure, Lab, wait_until};

use crate::common::*;
use crate::load::Load;

const BLOCKS: usize = 256;

/// Waits until the load has done `more` requests from now on.
fn progress(what: &str, completed: &AtomicU64, more: u64) -> Result<(), Failure> {
    let before = completed.load(SeqCst);
    wait_until(&format!("{more} requests {what}"), WAIT, || Ok((completed.load(SeqCst) >= before + more).then_some(())))
}

#[test]
fn an_nbd_server_that_vanishes_and_returns_loses_no_request() {
    if !possible("vanished NBD server", &["nbdkit"]) {
        return;
    }
    Lab::run("vanished", |lab| {
        let image = lab.image("image", 16 * MIB)?;
        let arguments = ["file", text(&image)?];
        let mut server = NbdServer::nbdkit(lab, "nbdkit", &arguments)?;
        let daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("data", &server.backend(""), 2)))?;
        let mut front_end = connect(&daemon, "data", &Options { queues: 2, inflight: true, ..Options::default() })?;
        let mut load = Load::new(&front_end, BLOCKS, 16);
        load.run(&mut front_end, |completed| {
            progress("before the server vanishes", completed, 100)?;
            server.process.signal(Signal::KILL);
            server.process.wait(WAIT)?;
            // Whatever was answered before has arrived; from here on requests can only wait.
            std::thread::sleep(Duration::from_secs(1));
            let waiting = volume(&daemon, "data")?;
            assert_eq!(waiting["state"], "recovering", "{waiting}");
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
    if !possible("data plane killed on an NBD volume", &["nbdkit"]) {
        return;
    }
    Lab::run("nbd-kill", |lab| {
        let server = NbdServer::nbdkit(lab, "nbdkit", &["memory", "16M"])?;
        let mut daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("data", &server.backend(""), 2)))?;
        let mut front_end = connect(&daemon, "data", &Options { queues: 2, inflight: true, ..Options::default() })?;
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
