//! The files of a daemon's sockets, and daemons that meet in one folder.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::{Pid, Signal};
use softdpu_frontend::BlockOptions;
use softdpu_tests::{Context, Daemon, Failure, Process, softdpu, wait_until};

use crate::common::*;

fn site() -> String {
    node(&[0]) + &disk("data", MEMORY, 1)
}

fn mode(path: &Path) -> Result<u32, Failure> {
    let metadata = std::fs::metadata(path).context(format_args!("looking at {}", path.display()))?;
    Ok(metadata.permissions().mode() & 0o777)
}

#[test]
fn the_sockets_that_a_killed_daemon_left_are_replaced() {
    run("stale", &[], |lab| {
        let daemon = Daemon::start(lab.path(), &site())?;
        let socket = daemon.device_socket("data");
        let supervisor = daemon.status()?["supervisor_pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        let supervisor = supervisor.and_then(Pid::from_raw);
        let supervisor = supervisor.ok_or_else(|| Failure::new("status has no supervisor_pid"))?;
        let (plane, _) = daemon.data_plane()?;
        rustix::process::kill_process(supervisor, Signal::KILL).context("killing the supervisor")?;
        wait_until("the data plane to end with its supervisor", WAIT, || {
            Ok((!Path::new(&format!("/proc/{plane}/exe")).exists()).then_some(()))
        })?;
        drop(daemon);
        assert!(socket.exists(), "there is no stale socket to replace");

        let daemon = Daemon::start(lab.path(), &site())?;
        let mut front_end = connect(&daemon, "data", &BlockOptions::default())?;
        write(&mut front_end, 0, &[1; 512])?;
        drop(front_end);
        daemon.stop()?;
        assert!(!socket.exists(), "an orderly end leaves no socket behind");
        Ok(())
    });
}

#[test]
fn a_second_daemon_in_a_run_directory_is_refused_and_the_first_goes_on() {
    run_disks("second", &disk("data", MEMORY, 1), |lab, daemon| {
        let mut front_end = connect(daemon, "data", &BlockOptions::default())?;
        let pid = daemon.status()?["supervisor_pid"].to_string();
        let mut second = Process::start("second", lab.path(), &softdpu()?, ["run", "site.toml"])?;
        let status = second.wait(WAIT)?;
        let words = second.lines().join("\n");
        assert!(!status.success(), "the second daemon ended well: {words}");
        assert!(
            words.contains("run/softdpu") && words.contains(&pid),
            "it does not name the daemon that is there: {words}"
        );
        write(&mut front_end, 0, &[1; 512])?;
        assert!(daemon.command(&["volume", "list"])?.contains("data"));
        drop(front_end);
        // Not one that was connected before: the socket has to be the first daemon's still.
        drop(connect(daemon, "data", &BlockOptions::default())?);
        Ok(())
    });
}

#[test]
fn a_socket_has_the_mode_that_the_site_gives_it() {
    let with_mode = |name: &str, mode: &str| {
        disk(name, MEMORY, 1).replace("socket = ", &format!("socket-mode = \"{mode}\", socket = "))
    };
    let disks = disk("data", MEMORY, 1) + &with_mode("open", "0666") + &with_mode("group", "0660");
    run_disks("modes", &disks, |lab, daemon| {
        assert_eq!(mode(&daemon.device_socket("data"))?, 0o600);
        assert_eq!(mode(&daemon.device_socket("open"))?, 0o666);
        assert_eq!(mode(&daemon.device_socket("group"))?, 0o660);
        assert_eq!(mode(&lab.path().join("run/softdpu/api.sock"))?, 0o600);
        Ok(())
    });
}
