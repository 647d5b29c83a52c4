//! Where things are: the checkout, what `lab/setup.sh` made, and the programs under test.

use std::path::{Path, PathBuf};

use crate::Failure;

/// The checkout.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in a folder of the checkout").to_owned()
}

fn cache() -> PathBuf {
    repository().join(".cache")
}

/// A file that `lab/setup.sh` makes for the guest: `vmlinuz`, `root.img`, `initramfs.cpio`, `tools.cpio`
/// or `network.cpio`.
pub(crate) fn guest_file(name: &str) -> Result<PathBuf, Failure> {
    existing(cache().join("guest").join(name), "run lab/setup.sh, which makes it")
}

/// A file of the newer kernel that `lab/setup.sh` fetches, `vmlinuz` or `initramfs.cpio`, or why there is none on this
/// machine.
pub(crate) fn newer_kernel_file(name: &str) -> Result<PathBuf, String> {
    fetched(&PathBuf::from("newer-kernel").join(name), "newer-kernel.missing")
}

/// Why there is no newer kernel on this machine, if so.
pub fn no_newer_kernel() -> Option<String> {
    newer_kernel_file("vmlinuz").and(newer_kernel_file("initramfs.cpio")).err()
}

/// A file below `.cache` that `lab/setup.sh` fetches where it can be had, or why it could not.
fn fetched(path: &Path, missing: &str) -> Result<PathBuf, String> {
    let path = cache().join(path);
    if path.exists() {
        return Ok(path);
    }
    let reason = std::fs::read_to_string(cache().join(missing));
    Err(reason.map_or_else(|_| "lab/setup.sh was not run".to_owned(), |text| text.trim().to_owned()))
}

/// The root image from which a guest's root disk is copied.
pub(crate) fn root_image() -> Result<PathBuf, Failure> {
    guest_file("root.img")
}

/// Where the answer of the KVM probe is kept.
pub(crate) fn probe_file() -> PathBuf {
    cache().join("kvm-probe")
}

/// The script of a guest's job.
pub fn job(name: &str) -> Result<PathBuf, Failure> {
    existing(repository().join("lab/guest/jobs").join(format!("{name}.sh")), "jobs are in lab/guest/jobs")
}

/// The softdpu binary: `SOFTDPU_BIN`, or the one that was built beside the running program.
pub fn softdpu() -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os("SOFTDPU_BIN") {
        return existing(path.into(), "SOFTDPU_BIN names it");
    }
    let program = std::env::current_exe().map_err(|error| Failure::new(format!("this program's own path: {error}")))?;
    // target/PROFILE/demo, or target/PROFILE/deps/some_test-0123456789abcdef
    let folder = program.ancestors().skip(1).find(|folder| !folder.ends_with("deps"));
    let folder = folder.ok_or_else(|| Failure::new(format!("{} is in no folder", program.display())))?;
    existing(folder.join("softdpu"), "build it with `cargo build -p softdpu`, or name another one in SOFTDPU_BIN")
}

/// `qemu-img` or `qemu-io` with the libblkio driver, or why there is none on this machine.
pub fn blkio_tool(name: &str) -> Result<PathBuf, String> {
    fetched(&PathBuf::from("bin").join(format!("{name}-blkio")), "blkio.missing")
}

/// A program of FRR, `bfdd` or `vtysh`, or why there is none on this machine.
pub fn frr_program(name: &str) -> Result<PathBuf, String> {
    fetched(&PathBuf::from("bin").join(format!("frr-{name}")), "frr.missing")
}

/// The QEMU newer than the machine's that `lab/setup.sh --bench` unpacks.
pub(crate) fn newer_qemu() -> Result<PathBuf, Failure> {
    existing(cache().join("bin/qemu-system-x86_64-newer"), "run lab/setup.sh --bench, which fetches it")
}

fn existing(path: PathBuf, hint: &str) -> Result<PathBuf, Failure> {
    if path.exists() { Ok(path) } else { Err(Failure::new(format!("{} does not exist: {hint}", path.display()))) }
}
