//! The cache mode that a driver chose (virtio 1.3 §5.2.5.1: `writeback`).

use std::path::Path;

use softdpu_device::block::abi::{config, feature};
use softdpu_frontend::{BlockFrontEnd, BlockOptions};
use softdpu_tests::{Context, Daemon, Failure};
use softdpu_transport::vhost_user::{ConfigSpace, Message};

use crate::common::*;

fn writeback(front_end: &mut BlockFrontEnd) -> Result<u8, Failure> {
    Ok(front_end.read_config().context("reading the configuration space")?[config::WRITEBACK])
}

fn set_writeback(front_end: &mut BlockFrontEnd, value: u8) -> Result<(), Failure> {
    let space = ConfigSpace { offset: config::WRITEBACK as u32, flags: 0, bytes: vec![value] };
    front_end.connection().call(&Message::SetConfig(space), &[]).context("SET_CONFIG").map(|_| ())
}

/// How many writes the server was asked for, and how many of them with FUA, by its log.
fn writes(log: &Path) -> Result<(usize, usize), Failure> {
    let log = std::fs::read_to_string(log).context("reading nbdkit's log")?;
    let writes: Vec<&str> = log.lines().filter(|line| line.contains(" Write id=")).collect();
    Ok((writes.len(), writes.iter().filter(|line| line.contains("fua=1")).count()))
}

#[test]
fn the_cache_mode_that_a_driver_chose_survives_a_kill() {
    run("cache", &["nbdkit"], |lab| {
        let log = lab.path().join("requests");
        let logfile = format!("logfile={}", log.display());
        let server = NbdServer::nbdkit(lab, "nbdkit", &["--filter=log", "memory", "1M", &logfile])?;
        let mut daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("data", &server.backend(""), 1)))?;
        let options = BlockOptions { inflight: true, features: feature::CONFIG_WCE, ..BlockOptions::default() };
        let mut front_end = connect(&daemon, "data", &options)?;
        assert_ne!(front_end.negotiated().features & feature::CONFIG_WCE, 0, "CONFIG_WCE is not offered");
        assert_eq!(writeback(&mut front_end)?, 1);
        write(&mut front_end, 0, &[1; 4096])?;
        assert_eq!(writes(&log)?, (1, 0), "with write-back, a write is durable after the next flush");
        for (mode, wanted) in [(0, (2, 1)), (1, (3, 1))] {
            set_writeback(&mut front_end, mode)?;
            assert_eq!(writeback(&mut front_end)?, mode);
            daemon.kill_data_plane()?;
            assert_eq!(writeback(&mut front_end)?, mode, "the data plane that came next forgot the mode");
            write(&mut front_end, 0, &[mode; 4096])?;
            assert_eq!(writes(&log)?, wanted, "writes in all and durable ones, with writeback = {mode}");
        }
        assert!(set_writeback(&mut front_end, 2).is_err(), "2 is no mode");
        drop(front_end);
        daemon.stop()
    });
}
