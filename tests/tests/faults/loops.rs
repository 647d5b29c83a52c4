//! Loop devices, and file systems on them: disks whose backing a test can take away, and file systems that it can stop.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use softdpu_tests::{Context, Failure};

use crate::common::text;

/// Why there is no [`Loop`], as far as that can be known.
pub const NO_LOOP: &str = "no loop device (root, losetup)";
/// Why there is no [`Ext4`].
pub const NO_EXT4: &str = "no ext4 on a loop device (root, losetup, mkfs.ext4)";

/// Runs a program of the system; what it printed.
fn run(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    let output = Command::new(program).args(arguments).output().context(program)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::new(format!("{program} {}: {said}", arguments.join(" "))))
}

/// A block device whose content is a file.
pub struct Loop(PathBuf);

impl Loop {
    pub fn new(image: &Path) -> Result<Loop, Failure> {
        Ok(Loop(run("losetup", &["--find", "--show", text(image)?])?.into()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Takes the size of the file again.
    pub fn resize(&self) -> Result<(), Failure> {
        run("losetup", &["--set-capacity", text(&self.0)?]).map(drop)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Ok(device) = text(&self.0) {
            let _ = run("losetup", &["--detach", device]);
        }
    }
}

/// An ext4 file system in an image, mounted through a loop device.
pub struct Ext4 {
    folder: PathBuf,
    _device: Loop,
}

impl Ext4 {
    /// Makes the file system in `image`, which is overwritten, and mounts it on `folder`, which is made.
    ///
    /// # Errors
    /// What is missing, in words: fit for a skip.
    pub fn mount(image: &Path, folder: &Path) -> Result<Ext4, Failure> {
        // Nothing is left to be done later, when the file system is to be left alone.
        let complete = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        run("mkfs.ext4", &["-q", "-F", "-E", complete, text(image)?])?;
        std::fs::create_dir(folder).context("making a mount point")?;
        let device = Loop::new(image)?;
        run("mount", &["-t", "ext4", "-o", "noatime", text(device.path())?, text(folder)?])?;
        Ok(Ext4 { folder: folder.to_owned(), _device: device })
    }

    /// Holds up everything that writes to the file system, for as long as the value lives. What reads goes on.
    pub fn freeze(&self) -> Result<Frozen, Failure> {
        let folder = text(&self.folder)?;
        // The thaw waits in a process of its own for the end of its input, which comes whatever becomes of this one.
        let mut thaw = Command::new("sh");
        thaw.args(["-c", "read -r _; exec fsfreeze --unfreeze \"$0\"", folder]);
        let thaw = thaw.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let frozen = Frozen { thaw: thaw.context("starting what thaws")? };
        run("fsfreeze", &["--freeze", folder])?;
        Ok(frozen)
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        // Lazily: after a failure the daemon may still have a file open.
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
    }
}

/// A file system that is held up.
pub struct Frozen {
    thaw: Child,
}

impl Frozen {
    pub fn thaw(self) {}
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(mut input) = self.thaw.stdin.take() {
            // The end of the input alone does.
            let _ = writeln!(input);
        }
        let _ = self.thaw.wait();
    }
}
