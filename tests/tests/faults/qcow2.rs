//! qcow2 images with a snapshot and a clone, by the commands of docs/storage.md.

use std::path::{Path, PathBuf};
use std::process::Command;

use softdpu_frontend::{BlockFrontEnd, BlockOptions};
use softdpu_tests::{Context, Daemon, Failure, Lab};

use crate::common::*;

fn image(arguments: &[&str]) -> Result<(), Failure> {
    let what = format!("qemu-img {}", arguments.join(" "));
    let output = Command::new("qemu-img").args(arguments).output().context(&what)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Failure::new(format!("{what}: {}", String::from_utf8_lossy(&output.stderr)))),
    }
}

/// Serves an image for as long as `body` takes.
fn serve(lab: &Lab, file: &Path, body: impl FnOnce(&mut BlockFrontEnd) -> Result<(), Failure>) -> Result<(), Failure> {
    let socket = lab.path().join("nbd.sock");
    let arguments = ["-t", "-f", "qcow2", "--discard=unmap", "-e", "2", "-k", text(&socket)?, text(file)?];
    let mut server = NbdServer::start(lab, "qemu-nbd", "qemu-nbd", &socket, &arguments)?;
    let daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("data", &server.backend(""), 1)))?;
    let mut front_end = connect(&daemon, "data", &BlockOptions::default())?;
    assert_eq!(front_end.capacity(), 64 * MIB / 512);
    body(&mut front_end)?;
    let (_, status) = ask(&mut front_end, softdpu_frontend::BlockRequest::Flush)?;
    assert_eq!(status, OK, "flushing");
    drop(front_end);
    daemon.stop()?;
    server.process.stop().map(|_| ())
}

#[test]
fn a_qcow2_image_has_snapshots_and_clones_through_qemu_nbd() {
    if !possible("qcow2", &["qemu-nbd", "qemu-img"]) {
        return;
    }
    Lab::run("qcow2", |lab| {
        let path = |name: &str| -> PathBuf { lab.path().join(name) };
        let (base, clone) = (path("base.qcow2"), path("clone.qcow2"));
        let (base_text, clone_text) = (text(&base)?, text(&clone)?);
        image(&["create", "-f", "qcow2", base_text, "64M"])?;
        serve(lab, &base, |disk| write(disk, 100, &[1; 8192]))?;
        image(&["snapshot", "-c", "before", base_text])?;
        serve(lab, &base, |disk| {
            assert!(read(disk, 100, 8192)? == [1; 8192]);
            write(disk, 100, &[2; 4096])
        })?;
        image(&["snapshot", "-a", "before", base_text])?;
        serve(lab, &base, |disk| {
            assert!(read(disk, 100, 8192)? == [1; 8192], "the snapshot is what was there when it was made");
            Ok(())
        })?;
        image(&["create", "-f", "qcow2", "-b", base_text, "-F", "qcow2", clone_text])?;
        serve(lab, &clone, |disk| {
            assert!(read(disk, 100, 8192)? == [1; 8192], "a clone begins as its base");
            write(disk, 100, &[3; 4096])?;
            assert!(read(disk, 100, 4096)? == [3; 4096]);
            Ok(())
        })?;
        serve(lab, &base, |disk| {
            assert!(read(disk, 100, 8192)? == [1; 8192], "a clone's writes are its own");
            Ok(())
        })
    });
}
