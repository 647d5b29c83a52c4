//! Storage that is full or fails: an I/O error for the guest, a number for the operator, and nothing more.

use std::path::Path;
use std::process::Command;

use softdpu_frontend::{BlockOptions, BlockRequest};
use softdpu_tests::{Context, Daemon, Failure};

use crate::common::*;

/// A small file system, gone with its value.
struct Tmpfs<'a>(&'a Path);

impl Tmpfs<'_> {
    fn mount<'a>(folder: &'a Path, size: &str) -> Result<Tmpfs<'a>, String> {
        std::fs::create_dir(folder).map_err(|error| error.to_string())?;
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", size, "tmpfs"]).arg(folder).output();
        let output = output.map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(Tmpfs(folder)) } else { Err(said) }
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        // Lazily: after a failure the daemon may still have its file open.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_file_system_fails_writes_until_there_is_room_again() {
    const TEST: &str = "full file system";
    run("full", &[], |lab| {
        let folder = lab.path().join("small");
        let mounted = Tmpfs::mount(&folder, "size=4m");
        let Some(tmpfs) = or_skip(TEST, "no tmpfs can be mounted", mounted) else { return Ok(()) };
        let filler = folder.join("filler");
        let backend = format!("file = {{ path = '{}', size = \"16 MiB\" }}", folder.join("image").display());
        let daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("data", &backend, 1)))?;
        let mut front_end = connect(&daemon, "data", &BlockOptions::default())?;
        write(&mut front_end, 0, &[1; 65536])?;
        // As much as there is room for, which fails in the end.
        let _ = std::fs::write(&filler, vec![0; 4 << 20]);

        let (_, status) = ask(&mut front_end, BlockRequest::Write { sector: 8192, data: &[2; 65536] })?;
        assert_eq!(status, IOERR);
        let full = counted(&daemon, "data", 1)?;
        assert_eq!((&full["counters"]["no_space"], &full["errors"]), (&1.into(), &1.into()), "{full}");
        assert!(full["error"].as_str().is_some_and(|error| !error.is_empty()), "status has no words for it: {full}");
        let device = entry(&daemon.status()?, "devices", "data-disk").unwrap_or_default();
        assert_eq!(device["queues"][0]["errors"], 1, "{device}");

        assert!(read(&mut front_end, 0, 65536)? == [1; 65536], "what was written before can be read");
        std::fs::remove_file(&filler).context("making room")?;
        write(&mut front_end, 8192, &[2; 65536])?;
        assert!(read(&mut front_end, 8192, 65536)? == [2; 65536]);
        drop(front_end);
        daemon.stop()?;
        drop(tmpfs);
        Ok(())
    });
}

/// A server that fails reads and writes with `error` while a file exists.
fn failing_server(name: &str, error: &str, counter: &str) {
    run(name, &["nbdkit"], |lab| {
        let trigger = lab.path().join("trigger");
        let file = format!("error-file={}", trigger.display());
        let error = format!("error={error}");
        let server = NbdServer::nbdkit(
            lab,
            "nbdkit",
            &["--filter=error", "memory", "16M", &error, "error-pread-rate=100%", "error-pwrite-rate=100%", &file],
        )?;
        let daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("data", &server.backend(""), 1)))?;
        let mut front_end = connect(&daemon, "data", &BlockOptions::default())?;
        write(&mut front_end, 0, &[1; 4096])?;

        std::fs::write(&trigger, "").context("making the server fail")?;
        let statuses: Result<Vec<u8>, Failure> =
            [BlockRequest::Write { sector: 8, data: &[2; 4096] }, BlockRequest::Read { sector: 0, len: 4096 }]
                .into_iter()
                .map(|request| Ok(ask(&mut front_end, request)?.1))
                .collect();
        assert_eq!(statuses?, [IOERR, IOERR]);
        let failing = counted(&daemon, "data", 2)?;
        assert_eq!((&failing["counters"][counter], &failing["errors"]), (&2.into(), &2.into()), "{failing}");
        assert_eq!(
            (&failing["counters"]["disconnects"], &failing["state"]),
            (&0.into(), &"active".into()),
            "{failing}"
        );

        std::fs::remove_file(&trigger).context("making the server work")?;
        assert!(read(&mut front_end, 0, 4096)? == [1; 4096]);
        assert!(read(&mut front_end, 8, 4096)? == [0; 4096], "a write that failed did not happen");
        drop(front_end);
        daemon.stop()
    });
}

#[test]
fn a_server_without_space_fails_requests_and_nothing_else() {
    failing_server("nbd-enospc", "ENOSPC", "no_space");
}

#[test]
fn a_server_with_a_broken_disk_fails_requests_and_nothing_else() {
    failing_server("nbd-eio", "EIO", "device");
}
