//! What a scenario works in: a folder of its own, and the machine to itself.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

use crate::{Context, Failure, has_two_cpus, paths};

/// How many last lines of each process's log a failure shows.
const TAIL: usize = 30;

/// A scenario's workplace.
pub struct Lab {
    folder: TempDir,
}

impl Lab {
    /// Runs a scenario. Scenarios of one test program wait for each other: guests that share two cores would make each
    /// other's deadlines. On failure the last lines of all processes are printed, then this panics with the sentence.
    /// With `SOFTDPU_KEEP` set the folder stays.
    pub fn run(name: &str, scenario: impl FnOnce(&Lab) -> Result<(), Failure>) {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let result = Lab::open(name).and_then(|lab| {
            // An assertion that fails shows the logs too.
            let result = catch_unwind(AssertUnwindSafe(|| scenario(&lab)));
            lab.close(!matches!(result, Ok(Ok(()))));
            result.unwrap_or_else(|panic| resume_unwind(panic))
        });
        if let Err(error) = result {
            panic!("{name}: {error}");
        }
    }

    /// The same for a test of softdpu alone that gives its clients a CPU and a core another. Skipped where there is one
    /// CPU, or something else under test.
    pub fn run_on_two_cpus(name: &str, scenario: impl FnOnce(&Lab) -> Result<(), Failure>) {
        if has_two_cpus(name) {
            Lab::run(name, scenario);
        }
    }

    /// A workplace that its owner closes.
    pub fn open(name: &str) -> Result<Lab, Failure> {
        // A socket's path has 108 bytes: the folder is made where paths are short.
        let folder = tempfile::Builder::new().prefix(&format!("softdpu-{name}-")).tempdir();
        Ok(Lab { folder: folder.context("making a temporary folder")? })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// An empty, sparse file of this size.
    pub fn image(&self, name: &str, bytes: u64) -> Result<PathBuf, Failure> {
        let path = self.path().join(name);
        let file = File::create(&path).context(format_args!("creating {}", path.display()))?;
        file.set_len(bytes).context(format_args!("giving {} its size", path.display()))?;
        Ok(path)
    }

    /// A copy of the guest's root image.
    pub fn root_image(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.path().join(name);
        copy_sparse(&paths::root_image()?, &path)?;
        Ok(path)
    }

    /// The last lines of every process that ran in it; removes the folder.
    pub fn close(mut self, failed: bool) {
        if failed {
            let mut logs: Vec<PathBuf> = std::fs::read_dir(self.path())
                .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
                .unwrap_or_default();
            logs.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
            logs.sort();
            for log in logs {
                let text = std::fs::read(&log).unwrap_or_default();
                let text = String::from_utf8_lossy(&text);
                let lines: Vec<&str> = text.lines().collect();
                let shown = lines[lines.len().saturating_sub(TAIL)..].join("\n    ");
                eprintln!("--- end of {}\n    {shown}", log.display());
            }
        }
        if std::env::var_os("SOFTDPU_KEEP").is_some() {
            self.folder.disable_cleanup(true);
            eprintln!("kept {}", self.folder.path().display());
        }
    }
}

/// Copies a sparse file, so that a root image of a gigabyte costs what is in it.
fn copy_sparse(from: &Path, to: &Path) -> Result<(), Failure> {
    let what = format!("copying {} to {}", from.display(), to.display());
    let status =
        std::process::Command::new("cp").args(["--sparse=always", "--reflink=auto"]).arg(from).arg(to).status();
    if status.context(&what)?.success() { Ok(()) } else { Err(Failure::new(format!("{what} failed"))) }
}
