//! Volumes and devices that come and go on a running daemon.

use serde_json::Value;
use softdpu_frontend::BlockOptions;
use softdpu_tests::{Context, Daemon, Failure, wait_until};

use crate::common::*;

fn exists(daemon: &Daemon, list: &str, name: &str) -> Result<bool, Failure> {
    Ok(entry(&daemon.status()?, list, name).is_some())
}

#[test]
fn what_was_made_at_run_time_survives_a_kill_and_a_restart() {
    run("changes", &[], |lab| {
        let site = node(&[0]) + &disk("data", MEMORY, 1);
        let mut daemon = Daemon::start(lab.path(), &site)?;
        let (image, socket) = (lab.path().join("extra.img"), lab.path().join("extra-disk.sock"));
        daemon.command(&["volume", "create", "extra", "--file", text(&image)?, "--size", "8 MiB"])?;
        let add = ["device", "add", "extra-disk", "--volume", "extra", "--device-socket", text(&socket)?];
        daemon.command(&add)?;
        let mut front_end = connect(&daemon, "extra", &BlockOptions { inflight: true, ..BlockOptions::default() })?;
        write(&mut front_end, 0, &[1; 4096])?;

        daemon.kill_data_plane()?;
        assert!(exists(&daemon, "volumes", "extra")? && exists(&daemon, "devices", "extra-disk")?);
        assert!(read(&mut front_end, 0, 4096)? == [1; 4096]);

        let words = refused(&daemon, &["volume", "delete", "extra"]);
        assert!(words.contains("extra") && words.contains("extra-disk"), "it does not say what uses it: {words}");
        let words = refused(&daemon, &add);
        assert!(words.contains("extra-disk"), "{words}");
        let words = refused(&daemon, &["volume", "delete", "nothing"]);
        assert!(words.contains("nothing"), "{words}");
        drop(front_end);
        daemon.stop()?;

        let mut daemon = Daemon::start(lab.path(), &site)?;
        let mut front_end = connect(&daemon, "extra", &BlockOptions::default())?;
        assert_eq!(front_end.capacity(), 8 * MIB / 512);
        assert!(read(&mut front_end, 0, 4096)? == [1; 4096]);
        let words = refused(&daemon, &["device", "remove", "extra-disk"]);
        assert!(words.contains("extra-disk") && words.contains("connected"), "{words}");
        drop(front_end);
        left_alone(&daemon, "extra")?;

        let counted = |daemon: &Daemon| Ok::<_, Failure>(volume(daemon, "extra")?["requests"].clone());
        let before = counted(&daemon)?;
        assert!(before["reads"].as_u64() > Some(0), "{before}");
        daemon.command(&["device", "remove", "extra-disk"])?;
        assert_eq!(counted(&daemon)?, before, "what a removed device did with the volume is forgotten");
        assert!(!socket.exists(), "the socket of a device that is gone is still there");
        daemon.command(&["volume", "delete", "extra"])?;
        assert!(image.exists(), "deleting a volume deleted its data");
        daemon.kill_data_plane()?;
        assert!(!exists(&daemon, "volumes", "extra")? && !exists(&daemon, "devices", "extra-disk")?);
        daemon.stop()?;
        let daemon = Daemon::start(lab.path(), &site)?;
        assert!(!exists(&daemon, "volumes", "extra")? && !exists(&daemon, "devices", "extra-disk")?);
        assert!(exists(&daemon, "volumes", "data")?, "what the site file names is there as before");
        daemon.stop()
    });
}

#[test]
fn tenants_come_work_and_go_and_one_that_has_something_stays() {
    run("tenants-come", &[], |lab| {
        let site = node(&[0]) + &disk("data", MEMORY, 1);
        let mut daemon = Daemon::start(lab.path(), &site)?;
        let add = ["device", "add", "more-disk", "--volume", "more", "--tenant", "initech", "--device-socket"];
        let socket = lab.path().join("more-disk.sock");
        let add = [&add[..], &[text(&socket)?]].concat();
        daemon.command(&["volume", "create", "more", "--memory", "--size", "1 MiB"])?;
        let words = refused(&daemon, &add);
        assert!(words.contains("initech"), "{words}");

        daemon.command(&["tenant", "add", "initech", "--weight", "3", "--iops", "100000"])?;
        daemon.command(&add)?;
        let mut front_end = connect(&daemon, "more", &BlockOptions { inflight: true, ..BlockOptions::default() })?;
        write(&mut front_end, 0, &[7; 4096])?;
        let shown = |daemon: &Daemon| -> Result<Option<Value>, Failure> {
            let tenants: Value = serde_json::from_str(&daemon.command(&["tenant", "list", "--json"])?)
                .context("the answer of `tenant list`")?;
            Ok(tenants.as_array().into_iter().flatten().find(|tenant| tenant["name"] == "initech").cloned())
        };
        let served = |daemon: &Daemon| -> Result<u64, Failure> {
            Ok(shown(daemon)?.and_then(|tenant| tenant["served"].as_u64()).unwrap_or(0))
        };
        wait_until("what the new tenant had to be counted as its own", WAIT, || {
            Ok((served(&daemon)? >= 1).then_some(()))
        })?;

        daemon.kill_data_plane()?;
        assert!(read(&mut front_end, 0, 4096)?.len() == 4096);
        let tenant = shown(&daemon)?.unwrap_or_default();
        assert_eq!((&tenant["weight"], &tenant["limits"]["iops"]), (&3.into(), &100_000.into()), "{tenant}");
        let words = refused(&daemon, &["tenant", "remove", "initech"]);
        assert!(words.contains("more-disk"), "it does not say what the tenant has: {words}");

        drop(front_end);
        left_alone(&daemon, "more")?;
        daemon.command(&["device", "remove", "more-disk"])?;
        daemon.command(&["tenant", "remove", "initech"])?;
        assert_eq!(shown(&daemon)?, None);
        daemon.stop()?;
        let daemon = Daemon::start(lab.path(), &site)?;
        assert_eq!(shown(&daemon)?, None, "a tenant that was removed is back");
        daemon.stop()
    });
}
