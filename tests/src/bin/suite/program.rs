//! One test program: run as a whole, or one of its tests alone.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use softdpu_tests::{Context, Failure, wait_until};

/// A test program that `cargo test --no-run` built.
pub struct Program {
    /// Its test file's: the executable's without what cargo appends.
    pub name: String,
    path: PathBuf,
    folder: PathBuf,
    logs: PathBuf,
    deadline: Duration,
}

/// What became of a run.
pub struct Outcome {
    pub program: Program,
    /// What it printed.
    pub log: PathBuf,
    pub time: Duration,
    pub passed: bool,
    /// Tests of it that failed. Empty also where the program ended, or was ended, before it could say.
    pub failed: Vec<String>,
}

impl Program {
    pub fn new(path: &Path, folder: &Path, logs: &Path, deadline: Duration) -> Result<Program, Failure> {
        let absolute = |path: &Path| std::path::absolute(path).context(path.display());
        let stem = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let name = stem.rsplit_once('-').map_or(stem, |(name, _)| name).to_owned();
        let logs = absolute(logs)?;
        std::fs::create_dir_all(&logs).context(logs.display())?;
        Ok(Program { name, path: absolute(path)?, folder: folder.to_owned(), logs, deadline })
    }

    /// All tests, one after the other.
    pub fn run(self) -> Result<Outcome, Failure> {
        let log = self.logs.join(format!("{}.log", self.name));
        let start = Instant::now();
        let passed = self.execute(&[], &log)?;
        let text = read(&log)?;
        let failed = if passed { Vec::new() } else { failures(&text) };
        Ok(Outcome { log, time: start.elapsed(), passed, failed, program: self })
    }

    /// One test a second time, by itself. Gives whether it passed, and where it printed to.
    pub fn alone(&self, test: &str) -> Result<(bool, PathBuf), Failure> {
        let log = self.logs.join(format!("{}-alone-{}.log", self.name, test.replace("::", "-")));
        Ok((self.execute(&["--exact", test], &log)?, log))
    }

    fn execute(&self, arguments: &[&str], log: &Path) -> Result<bool, Failure> {
        let output = File::create(log).context(log.display())?;
        let errors = output.try_clone().context(log.display())?;
        // What a test starts ends with the thread that started it, so that to end the program is enough.
        let mut child = Command::new(&self.path)
            .args(["--nocapture", "--test-threads=1"])
            .args(arguments)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .context(self.path.display())?;
        let ended =
            wait_until(&format!("the end of {}", self.name), self.deadline, || child.try_wait().context(&self.name));
        match ended {
            Ok(status) => Ok(status.success()),
            Err(late) => {
                child.kill().and_then(|()| child.wait()).context(&self.name)?;
                eprintln!("suite: {late}: it was ended");
                Ok(false)
            }
        }
    }
}

/// What a program printed. A guest's console is not always UTF-8.
pub fn read(log: &Path) -> Result<String, Failure> {
    Ok(String::from_utf8_lossy(&std::fs::read(log).context(log.display())?).into_owned())
}

/// The names that the test harness lists behind the last `failures:` of its output.
fn failures(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let Some(last) = lines.iter().rposition(|line| *line == "failures:") else { return Vec::new() };
    let names = lines[last + 1..].iter().take_while(|line| line.starts_with("    "));
    names.map(|line| line.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failed_tests_are_those_of_the_last_list() {
        let text = "running 3 tests\ntest a ... ok\ntest b::c ... noise\nFAILED\nfailures:\n\n---- b::c stdout ----\nx\n\n\
                    failures:\n    b::c\n    d\n\ntest result: FAILED. 1 passed; 2 failed; 0 ignored;\n";
        assert_eq!(failures(text), ["b::c", "d"]);
    }

    #[test]
    fn a_program_that_dies_lists_none() {
        assert!(failures("running 1 test\ntest a ... killed").is_empty());
    }

    #[test]
    fn a_programs_name_is_its_test_files() {
        let folder = tempfile::tempdir().unwrap();
        let program = Program::new(Path::new("x/two_hosts-0a1b2c"), folder.path(), folder.path(), Duration::ZERO);
        assert_eq!(program.unwrap().name, "two_hosts");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_and_has_failed() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("endless-1");
        std::fs::write(&script, "#!/bin/sh\nexec sleep 60\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, mode).unwrap();
        let start = Instant::now();
        let program = Program::new(&script, folder.path(), folder.path(), Duration::from_millis(300)).unwrap();
        let outcome = program.run().unwrap();
        assert!(!outcome.passed && outcome.failed.is_empty());
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
