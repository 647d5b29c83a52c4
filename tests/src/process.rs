//! A child process whose output is captured and which does not outlive the test.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::{Context, Failure, wait_until};

/// How long a process that was asked to end may take before it is killed.
const GRACE: Duration = Duration::from_secs(20);

/// How long the last lines of an ended process are awaited.
const DRAIN: Duration = Duration::from_secs(10);

/// How many last lines stand for a process's output in an error.
const TAIL: usize = 25;

/// A running program.
pub struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    output: Arc<Output>,
}

#[derive(Default)]
struct Output {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    lines: Vec<String>,
    /// Streams at whose end the reader has arrived: two when nothing more can come.
    ended: u32,
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        // A reader thread that panicked left whole lines behind.
        self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Process {
    /// Starts `program` in `folder`; its output goes to memory and to `folder/NAME.log`.
    ///
    /// The kernel ends the program when the thread that called this ends, however it ends (`setpriv --pdeathsig`), so
    /// start it from a thread that lives as long as the scenario.
    pub fn start<S: AsRef<OsStr>>(
        name: &str,
        folder: &Path,
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Process, Failure> {
        Process::start_in(None, name, folder, program, arguments)
    }

    /// As [`start`](Self::start), in the network namespace of this name if there is one.
    pub fn start_in<S: AsRef<OsStr>>(
        namespace: Option<&str>,
        name: &str,
        folder: &Path,
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Process, Failure> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        // `ip` becomes the program, so the process is the program's.
        command.args(namespace.map(|namespace| ["ip", "netns", "exec", namespace]).into_iter().flatten());
        let mut child = command
            .arg(program)
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(format_args!("starting {name} ({}) through setpriv", program.display()))?;
        let output = Arc::new(Output::default());
        let path = folder.join(format!("{name}.log"));
        let log = Arc::new(Mutex::new(File::create(&path).context(format_args!("creating {}", path.display()))?));
        let stdin = child.stdin.take();
        if let Some(stream) = child.stdout.take() {
            collect(stream, output.clone(), log.clone());
        }
        if let Some(stream) = child.stderr.take() {
            collect(stream, output.clone(), log);
        }
        Ok(Process { name: name.to_owned(), child, stdin, output })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The states of its threads, by their letters in proc_pid_stat(5): `R` for one that runs or waits for a CPU, `S`
    /// asleep, `T` stopped.
    pub fn thread_states(&self) -> Result<Vec<char>, Failure> {
        let tasks = format!("/proc/{}/task", self.pid());
        let threads = std::fs::read_dir(&tasks).context(format_args!("listing {tasks}"))?;
        // The state is behind the program's name, which is in brackets.
        let state = |stat: String| stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        let stats = threads.flatten().map(|thread| std::fs::read_to_string(thread.path().join("stat")));
        // A thread that has just ended has none any more.
        Ok(stats.flatten().filter_map(state).collect())
    }

    /// How it ended, if it did.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>, Failure> {
        self.child.try_wait().context(format_args!("asking how {} is", self.name))
    }

    /// Writes a line to its standard input.
    pub fn send_line(&mut self, line: &str) -> Result<(), Failure> {
        let stdin = self.stdin.as_mut().ok_or_else(|| Failure::new(format!("{} has no standard input", self.name)))?;
        writeln!(stdin, "{line}")
            .and_then(|()| stdin.flush())
            .context(format_args!("writing `{line}` to {}", self.name))
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.output.lock().lines.clone()
    }

    /// The first line, from line number `from` on, for which `pick` gives a value, with the number of the line after
    /// it. Fails after `deadline`, and at once when the process ends without it.
    pub fn wait_for_line<T>(
        &mut self,
        what: &str,
        from: usize,
        deadline: Duration,
        mut pick: impl FnMut(&str) -> Option<T>,
    ) -> Result<(T, usize), Failure> {
        let start = Instant::now();
        let mut next = from;
        let mut lines = self.output.lock();
        loop {
            while let Some(line) = lines.lines.get(next) {
                next += 1;
                if let Some(value) = pick(line) {
                    return Ok((value, next));
                }
            }
            let ended = lines.ended == 2;
            let left = deadline.saturating_sub(start.elapsed());
            if ended || left.is_zero() {
                drop(lines);
                let why = if ended { "it ended".to_owned() } else { format!("{:.0} s passed", deadline.as_secs_f64()) };
                return Err(Failure::new(format!("{} did not show {what} before {why}{}", self.name, self.tail())));
            }
            let waited = self.output.changed.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Its last lines, to be put behind an error's sentence.
    pub fn tail(&self) -> String {
        let lines = self.output.lock();
        let skipped = lines.lines.len().saturating_sub(TAIL);
        if lines.lines.is_empty() {
            return format!("; {} printed nothing", self.name);
        }
        format!("; the last lines of {}:\n    {}", self.name, lines.lines[skipped..].join("\n    "))
    }

    /// Waits for it to end by itself, then for the end of its output.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus, Failure> {
        let what = format!("{} to end", self.name);
        let ended = wait_until(&what, deadline, || self.exited());
        let status = ended.map_err(|error| Failure::new(format!("{error}{}", self.tail())))?;
        self.drain();
        Ok(status)
    }

    /// Gives the readers time to arrive at the end of both streams: the kernel reports an exit before a reader on
    /// a busy CPU has taken the last lines. A grandchild that still holds a stream open ends the patience.
    fn drain(&self) {
        let start = Instant::now();
        let mut lines = self.output.lock();
        while lines.ended < 2 {
            let left = DRAIN.saturating_sub(start.elapsed());
            if left.is_zero() {
                return;
            }
            let waited = self.output.changed.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Asks it to end (SIGTERM), and kills it if it does not.
    pub fn stop(&mut self) -> Result<ExitStatus, Failure> {
        self.stop_within(GRACE)
    }

    fn stop_within(&mut self, grace: Duration) -> Result<ExitStatus, Failure> {
        self.signal(Signal::TERM);
        match self.wait(grace) {
            Ok(status) => Ok(status),
            Err(_) => {
                self.signal(Signal::KILL);
                self.wait(GRACE)?;
                Err(Failure::new(format!("{} did not end within {grace:?} of SIGTERM{}", self.name, self.tail())))
            }
        }
    }

    /// Sends a signal, unless the process has ended already: until it is waited for, no other process has its id.
    pub fn signal(&mut self, signal: Signal) {
        if let Ok(None) = self.child.try_wait() {
            let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
            if let Some(pid) = pid {
                // It may end between the two lines; then there is nothing to signal and nothing to report.
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        // Collects the exit status; nothing is left to report it to.
        let _ = self.child.wait();
    }
}

fn collect(stream: impl Read + Send + 'static, output: Arc<Output>, log: Arc<Mutex<File>>) {
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut bytes = Vec::new();
        while matches!(stream.read_until(b'\n', &mut bytes), Ok(length) if length > 0) {
            let line = String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned();
            bytes.clear();
            if let Ok(mut log) = log.lock() {
                // The file is a convenience; the lines in memory are what tests look at.
                let _ = writeln!(log, "{line}");
            }
            output.lock().lines.push(line);
            output.changed.notify_all();
        }
        output.lock().ended += 1;
        output.changed.notify_all();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (tempfile::TempDir, Process) {
        let folder = tempfile::tempdir().unwrap();
        let process = Process::start("shell", folder.path(), Path::new("/bin/sh"), ["-c", script]).unwrap();
        (folder, process)
    }

    #[test]
    fn a_line_is_found_and_the_search_goes_on_behind_it() {
        let (_folder, mut process) = shell("echo a; echo b >&2; read x; echo got $x");
        process.wait_for_line("a", 0, Duration::from_secs(20), |line| (line == "a").then_some(())).unwrap();
        process.send_line("it").unwrap();
        process.wait_for_line("it", 0, Duration::from_secs(20), |line| (line == "got it").then_some(())).unwrap();
    }

    #[test]
    fn a_process_that_ends_early_fails_at_once_with_its_last_words() {
        let (_folder, mut process) = shell("echo giving up");
        let start = Instant::now();
        let error = process.wait_for_line("a prompt", 0, Duration::from_secs(60), |_| None::<()>).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(30));
        assert!(error.to_string().contains("a prompt") && error.to_string().contains("giving up"), "{error}");
    }

    #[test]
    fn the_last_words_are_there_once_the_end_was_awaited() {
        for _ in 0..50 {
            let (_folder, mut process) = shell("seq 1000; echo last >&2");
            process.wait(Duration::from_secs(20)).unwrap();
            let lines = process.lines();
            assert_eq!(lines.len(), 1001);
            assert!(lines.iter().any(|line| line == "last"), "{:?}", lines.last());
        }
    }

    #[test]
    fn dropping_a_process_ends_it() {
        let (_folder, process) = shell("sleep 1000");
        let pid = Pid::from_raw(process.pid() as i32).unwrap();
        drop(process);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn a_process_that_ignores_sigterm_is_killed_and_reported() {
        let (_folder, mut process) = shell("trap '' TERM; echo ready; while :; do sleep 0.1; done");
        process.wait_for_line("ready", 0, Duration::from_secs(20), |line| (line == "ready").then_some(())).unwrap();
        assert!(process.stop_within(Duration::from_secs(2)).unwrap_err().to_string().contains("SIGTERM"));
    }
}
