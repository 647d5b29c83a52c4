//! qemu-io and qemu-img as clients: QEMU's virtio-blk-vhost-user driver, which is libblkio, knows nothing of guests.

#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;

use softdpu_tests::{Context, Disk, Failure, Lab, Server, ServerKind, blkio_tool, skip};

const MIB: u64 = 1 << 20;

/// The tool, or none after a skip was reported.
fn tool(test: &str, name: &str) -> Option<PathBuf> {
    blkio_tool(name).map_err(|reason| skip(test, &format!("no {name} with libblkio: {reason}"))).ok()
}

fn image_options(socket: &Path) -> String {
    format!("driver=virtio-blk-vhost-user,path={},cache.direct=on", socket.display())
}

fn run(command: &mut Command) -> Result<String, Failure> {
    let output = command.output().context(format_args!("{command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() && !text.contains("Pattern verification failed") && !text.contains("failed:") {
        return Ok(text);
    }
    Err(Failure::new(format!("{command:?} ended with {}: {text}", output.status)))
}

fn qemu_io(tool: &Path, socket: &Path, commands: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(tool);
    for text in commands {
        command.args(["-c", text]);
    }
    run(command.args(["--image-opts", &image_options(socket)]))
}

/// Runs a scenario with a tool of QEMU's and the socket of a disk of 64 MiB, which `data.img` has.
fn with_disk(test: &str, tool_name: &str, scenario: impl FnOnce(&Lab, &Path, &Path) -> Result<(), Failure>) {
    let Some(tool) = tool(test, tool_name) else { return };
    Lab::run(test, |lab| {
        let disk = Disk::new("data", lab.image("data.img", 64 * MIB)?);
        let server = Server::start(ServerKind::from_environment()?, lab, &[disk])?;
        scenario(lab, &tool, &server.guest_disk("data")?.socket)?;
        server.stop()
    });
}

#[test]
fn qemu_io_reads_back_what_it_wrote_zeroed_and_discarded() {
    with_disk("qemu-io", "qemu-io", |lab, tool, socket| {
        qemu_io(tool, socket, &["write -P 0xa5 0 1M", "write -P 0x5a 1M 64k", "write -P 0x11 4095k 3k", "flush"])?;
        // A second connection: what was written is in the volume, not in the first one's memory.
        qemu_io(tool, socket, &["read -P 0xa5 0 1M", "read -P 0x5a 1M 64k", "read -P 0x11 4095k 3k"])?;
        qemu_io(tool, socket, &["write -z 64k 128k", "read -P 0 64k 128k", "read -P 0xa5 0 64k"])?;
        qemu_io(tool, socket, &["discard 512k 256k", "read -P 0xa5 256k 256k", "read -P 0xa5 768k 256k"])?;
        let bytes = std::fs::read(lab.path().join("data.img")).context("reading the volume's file")?;
        assert!(bytes[..64 << 10].iter().all(|byte| *byte == 0xa5), "the file does not hold what was written");
        assert!(bytes[64 << 10..192 << 10].iter().all(|byte| *byte == 0), "the file does not hold the zeroes");
        Ok(())
    });
}

#[test]
fn a_pattern_that_is_not_there_is_noticed() {
    with_disk("qemu-io-wrong", "qemu-io", |_, tool, socket| {
        assert!(qemu_io(tool, socket, &["write -P 0xa5 0 64k", "read -P 0x5a 0 64k"]).is_err());
        Ok(())
    });
}

#[test]
fn qemu_img_bench_reads_and_writes_at_depth_32() {
    with_disk("qemu-img", "qemu-img", |_, tool, socket| {
        let options = image_options(socket);
        for direction in [&["-w", "--pattern=165"][..], &[]] {
            let mut command = Command::new(tool);
            command.args(["bench", "-c", "100000", "-d", "32", "-s", "4096"]).args(direction);
            let text = run(command.args(["--image-opts", &options]))?;
            assert!(text.contains("Run completed"), "{text}");
            eprintln!("qemu-img bench {direction:?}: {}", text.trim().lines().last().unwrap_or_default());
        }
        Ok(())
    });
}
