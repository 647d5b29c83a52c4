//! Server processes: started with a priority and CPUs, watched, ended whatever happens.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::SetupError;

/// How long a server may take until its socket is there.
const START: Duration = Duration::from_secs(20);
/// How long it may take to end when asked to.
const END: Duration = Duration::from_secs(5);
/// How often is looked.
const STEP: Duration = Duration::from_millis(2);

/// A child process that ends with its owner.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    log: PathBuf,
    /// The thread that started it ends when this is dropped, after [`Drop`].
    _thread: Sender<()>,
}

impl Server {
    /// Starts `program` in `folder`, on `cpu` alone where one is given, at nice −20 where this process may; output goes
    /// to `folder/NAME.log`.
    ///
    /// # Errors
    /// [`SetupError`] where it cannot be started.
    pub fn start<S: AsRef<OsStr>>(
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
        folder: &Path,
        cpu: Option<usize>,
    ) -> Result<Server, SetupError> {
        let failed = |reason: String| SetupError::Start { program: program.to_owned(), reason };
        let log = folder.join(format!("{name}.log"));
        let output = File::create(&log).map_err(|error| failed(format!("{}: {error}", log.display())))?;
        let errors = output.try_clone().map_err(|error| failed(error.to_string()))?;
        // The kernel ends it when the thread that started it ends, however that comes about (PR_SET_PDEATHSIG).
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program).args(arguments);
        command.current_dir(folder).stdin(Stdio::null()).stdout(output).stderr(errors);
        let (child, thread) = spawn_from_a_thread(command, cpu).map_err(failed)?;
        Ok(Server { name: name.to_owned(), child, log, _thread: thread })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` gives a value.
    ///
    /// # Errors
    /// [`SetupError::NotReady`] when the process ends, or 20 seconds pass without it.
    pub fn until<T>(&mut self, what: &str, ready: impl FnMut() -> Option<T>) -> Result<T, SetupError> {
        self.within(START, what, ready)
    }

    /// Waits until `ready` gives a value, as long as `limit`.
    ///
    /// # Errors
    /// [`SetupError::NotReady`] when the process ends, or the time passes without it.
    pub fn within<T>(
        &mut self,
        limit: Duration,
        what: &str,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, SetupError> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(value) = ready() {
                return Ok(value);
            }
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || Instant::now() > deadline {
                let why = match ended {
                    Some(status) => format!("it ended ({status})"),
                    None => format!("{} s passed", limit.as_secs()),
                };
                return Err(SetupError::NotReady {
                    name: self.name.clone(),
                    what: what.to_owned(),
                    why,
                    log: self.last_lines(),
                });
            }
            std::thread::sleep(STEP);
        }
    }

    /// The process and everything it started, by walking /proc.
    pub fn family(&self) -> Vec<u32> {
        let mut parents = Vec::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            // The name in parentheses may contain anything; the fields begin behind the last one.
            let parent =
                stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
            if let Some(parent) = parent {
                parents.push((pid, parent));
            }
        }
        let mut family = vec![self.pid()];
        let mut at = 0;
        while let Some(&parent) = family.get(at) {
            family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
            at += 1;
        }
        family
    }

    /// The end of its output.
    pub fn last_lines(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n    ")
    }

    fn signal(pid: u32, signal: Signal) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(pid, signal);
        }
    }
}

/// Starts `command` from a thread of its own: what a child inherits is the thread's. The thread lives as long as the
/// sender.
fn spawn_from_a_thread(mut command: Command, cpu: Option<usize>) -> Result<(Child, Sender<()>), String> {
    let (lives, ended) = channel();
    let (result, started) = channel();
    std::thread::spawn(move || {
        let pinned =
            cpu.map_or(Ok(()), |cpu| softdpu_sys::affinity::pin_to(cpu).map_err(|error| format!("CPU {cpu}: {error}")));
        // Without the privilege both subjects run at nice 0: still a fair comparison, only a noisier one.
        let _ = softdpu_sys::affinity::highest_nice();
        let setpriv = |error| format!("through setpriv (Debian: util-linux): {error}");
        // It fails only where the receiver is gone.
        let _ = result.send(pinned.and_then(|()| command.spawn().map_err(setpriv)));
        let _ = ended.recv();
    });
    let child = started.recv().unwrap_or_else(|_| Err("the thread that starts it panicked".to_owned()))?;
    Ok((child, lives))
}

impl Drop for Server {
    fn drop(&mut self) {
        let family = self.family();
        Self::signal(self.pid(), Signal::TERM);
        let deadline = Instant::now() + END;
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                break;
            }
            std::thread::sleep(STEP);
        }
        // What is left of it is ended the hard way. Its children first: once it is gone, they have another parent.
        for pid in family.into_iter().skip(1) {
            if is_child_of_init_or(pid, self.pid()) {
                Self::signal(pid, Signal::KILL);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether `pid` is still what it was: a child of `parent`, or, as an orphan, of process 1.
fn is_child_of_init_or(pid: u32, parent: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let found = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
    found.is_some_and(|found| found == parent || found == 1)
}

/// The file called `name` in PATH.
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_does_not_outlive_the_thread_that_started_it() {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "sleep", "60"]);
        let (mut child, lives) = spawn_from_a_thread(command, None).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(child.try_wait().unwrap().is_none(), "it lives while its owner does");
        drop(lives);
        let deadline = Instant::now() + END;
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it outlives its owner");
            std::thread::sleep(STEP);
        }
    }
}
