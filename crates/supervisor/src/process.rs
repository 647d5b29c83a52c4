//! How a data plane is started and how its end is noticed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_open, pidfd_send_signal, waitid,
};
use serde::{Deserialize, Serialize};

use super::oom::{self, OomCount, OomKills};
use super::reexec::{Binary, Successor};

/// The hidden subcommand that is the data plane.
pub const SUBCOMMAND: &str = "data-plane";

/// Starts data planes. The real one is [`Program`]; tests have their own.
pub trait Spawner: Send {
    /// Starts one, with its end of the link.
    ///
    /// # Errors
    /// What the operating system says.
    fn spawn(&mut self, link: OwnedFd) -> io::Result<Box<dyn Process>>;

    /// One that starts another program: the file that is there now, whatever becomes of its name.
    ///
    /// # Errors
    /// The file cannot be opened.
    fn other(&self, program: &Path) -> io::Result<Box<dyn Spawner>>;

    /// The file of the program that it starts, by an O_PATH descriptor.
    ///
    /// # Errors
    /// It cannot be opened.
    fn file(&self) -> io::Result<OwnedFd>;

    /// The same program as a supervisor.
    ///
    /// # Errors
    /// It cannot be opened.
    fn successor(&self) -> io::Result<Arc<dyn Successor>>;

    /// One that starts the program whose [file](Self::file) this is.
    fn of(&self, file: OwnedFd) -> Box<dyn Spawner>;

    /// Takes up a process that a program before this one has started in the same supervisor, with its
    /// [end](Process::end).
    fn adopt(&self, process: ProcessState, end: OwnedFd) -> Box<dyn Process>;
}

/// What the next program of a supervisor has to know of a process beside its [end](Process::end).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessState {
    pub(super) pid: u32,
    /// What the kernel had killed for want of memory when it was started.
    pub(super) oom_kills: Option<OomCount>,
}

/// A data plane that was started.
pub trait Process: Send {
    /// Its process id.
    fn id(&self) -> u32;
    /// Readable once it has ended.
    fn end(&self) -> BorrowedFd<'_>;
    /// Ends it at once (SIGKILL).
    fn kill(&mut self);
    /// How it ended, if it has; reaps it.
    fn exit(&mut self) -> Option<Exit>;
    /// How it ended, where it cannot be reaped although nothing of it will run again: the kernel is in the middle of an
    /// operation of its (a write to a file system that hangs, say) and keeps it until that is over, which may be never.
    fn hangs(&mut self) -> Option<Exit>;
    /// What it takes to [adopt](Spawner::adopt) it.
    fn state(&self) -> ProcessState;
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// For people: signal or status.
    pub reason: String,
    /// SIGKILL or SIGTERM was sent to it, and not by the kernel for want of memory. A process that errs does not do
    /// that to itself.
    pub sent: bool,
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Exit {
        let reason = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => match signal_hook::low_level::signal_name(signal) {
                Some(name) => format!("killed by {name}"),
                None => format!("killed by signal {signal}"),
            },
            (None, None) => status.to_string(),
        };
        let sent = matches!(status.signal(), Some(signal_hook::consts::SIGKILL | signal_hook::consts::SIGTERM));
        Exit { reason, sent }
    }
}

/// The data plane as a program: `softdpu data-plane`, with the link as its standard input.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    /// The file that `path` leads to, where it is by descriptor.
    _file: Option<OwnedFd>,
}

impl Program {
    /// The program that is running, whatever became of its file since.
    pub fn this() -> Program {
        Program::at(PathBuf::from("/proc/self/exe"))
    }

    /// Another program.
    pub fn at(path: PathBuf) -> Program {
        Program { path, _file: None }
    }

    fn by(file: OwnedFd) -> Program {
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Program { path, _file: Some(file) }
    }
}

impl Spawner for Program {
    fn spawn(&mut self, link: OwnedFd) -> io::Result<Box<dyn Process>> {
        let oom_kills = OomKills::of_this_process();
        let oom_kills_before = oom_kills.count();
        let mut child = Command::new(&self.path)
            .arg0("softdpu-data-plane")
            .arg(SUBCOMMAND)
            .stdin(Stdio::from(link))
            // systemd's socket is the supervisor's to talk to.
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID")
            // Ctrl-C in a terminal is for the supervisor, which stops the data plane in good order.
            .process_group(0)
            .spawn()?;
        if let Err(error) = oom::prefer(child.id()) {
            tracing::warn!(%error, "when memory runs out the kernel may end the supervisor before the data plane");
        }
        let pidfd = match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                // It fails only for a process that has been reaped.
                let _ = child.kill();
                let _ = child.wait();
                return Err(error.into());
            }
        };
        let pid = child.id();
        Ok(Box::new(RunningProgram { pid, pidfd, status: None, oom_kills, oom_kills_before }))
    }

    fn other(&self, program: &Path) -> io::Result<Box<dyn Spawner>> {
        let file = rustix::fs::open(program, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Box::new(Program::by(file)))
    }

    fn file(&self) -> io::Result<OwnedFd> {
        Ok(rustix::fs::open(&self.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn successor(&self) -> io::Result<Arc<dyn Successor>> {
        Ok(Binary::of(self.file()?))
    }

    fn of(&self, file: OwnedFd) -> Box<dyn Spawner> {
        Box::new(Program::by(file))
    }

    fn adopt(&self, process: ProcessState, end: OwnedFd) -> Box<dyn Process> {
        let ProcessState { pid, oom_kills: oom_kills_before } = process;
        let oom_kills = OomKills::of_this_process();
        Box::new(RunningProgram { pid, pidfd: end, status: None, oom_kills, oom_kills_before })
    }
}

struct RunningProgram {
    pid: u32,
    pidfd: OwnedFd,
    /// There once it is reaped.
    status: Option<ExitStatus>,
    oom_kills: OomKills,
    /// The count when it was started.
    oom_kills_before: Option<OomCount>,
}

impl RunningProgram {
    /// How it ended, by what wait(2) gives and the kernel has counted.
    fn ended(&self, status: ExitStatus) -> Exit {
        let exit = Exit::from(status);
        if status.signal() != Some(signal_hook::consts::SIGKILL) {
            return exit;
        }
        match self.oom_kills_before.zip(self.oom_kills.count()) {
            Some((before, now)) if now.kills > before.kills && now.of_group => {
                let reason = "killed by the kernel, which had no memory left for it (OOM)".to_owned();
                let is_own_limit = before.at_own_limit.zip(now.at_own_limit).is_some_and(|(before, now)| now > before);
                Exit { reason, sent: !is_own_limit }
            }
            Some((before, now)) if now.kills > before.kills => {
                Exit { reason: format!("{}, possibly for want of memory (OOM)", exit.reason), ..exit }
            }
            _ => exit,
        }
    }
}

impl Process for RunningProgram {
    fn id(&self) -> u32 {
        self.pid
    }

    fn end(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    fn kill(&mut self) {
        // It fails only for a process that has been reaped.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    fn exit(&mut self) -> Option<Exit> {
        if self.status.is_none() {
            match waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
                Ok(status) => self.status = status.map(exit_status),
                Err(Errno::INTR) => {}
                Err(error) => return Some(Exit { reason: format!("lost: {error}"), sent: false }),
            }
        }
        self.status.map(|status| self.ended(status))
    }

    fn state(&self) -> ProcessState {
        ProcessState { pid: self.pid, oom_kills: self.oom_kills_before }
    }

    fn hangs(&mut self) -> Option<Exit> {
        let folder = PathBuf::from(format!("/proc/{}", self.pid));
        let leader = std::fs::read_to_string(folder.join("stat")).ok()?;
        let end = Stat::parse(&leader)?.end()?;
        // A thread that is gone by the time it is looked at will not run either.
        let stats = std::fs::read_dir(folder.join("task")).ok()?.flatten().map(|task| task.path().join("stat"));
        let mut stats = stats.filter_map(|stat| std::fs::read_to_string(stat).ok());
        stats.all(|stat| Stat::parse(&stat).is_some_and(|stat| stat.will_not_run())).then(|| self.ended(end))
    }
}

/// What waitid(2) tells of an end, as wait(2) does.
fn exit_status(status: WaitIdStatus) -> ExitStatus {
    /// A core was dumped (wait(2), WCOREDUMP).
    const CORE: i32 = 0x80;
    let signal = status.terminating_signal().map(|signal| signal | if status.dumped() { CORE } else { 0 });
    ExitStatus::from_raw(signal.unwrap_or_else(|| (status.exit_status().unwrap_or_default() & 0xff) << 8))
}

/// What `/proc/PID/stat` and `/proc/PID/task/TID/stat` tell of a thread's end (proc_pid_stat(5)).
struct Stat {
    state: char,
    flags: u32,
    /// As wait(2) gives it.
    exit_code: i32,
}

impl Stat {
    /// It is on its way out.
    const PF_EXITING: u32 = 0x4;
    /// It is one of io_uring's workers, which never leave the kernel.
    const PF_IO_WORKER: u32 = 0x10;

    fn parse(text: &str) -> Option<Stat> {
        // The program's name is in brackets and may have any character; fields are counted from 1, and it is the
        // second.
        let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Stat {
            state: field(3)?.chars().next()?,
            flags: field(9)?.parse().ok()?,
            exit_code: field(52)?.parse().ok()?,
        })
    }

    /// How the process ended, if this is its first thread and has. It ends with all others: each has a deadly signal by
    /// then, and takes it before it would leave the kernel.
    fn end(&self) -> Option<ExitStatus> {
        (self.state == 'Z').then(|| ExitStatus::from_raw(self.exit_code))
    }

    /// Whether a thread of such a process will execute none of its instructions any more.
    fn will_not_run(&self) -> bool {
        let sleeps_through_signals = self.state == 'D';
        matches!(self.state, 'Z' | 'X')
            || sleeps_through_signals
            || self.flags & (Stat::PF_EXITING | Stat::PF_IO_WORKER) != 0
    }
}

#[cfg(test)]
mod tests {
    use std::process::Child;

    use super::*;

    /// A line of /proc with what matters here.
    fn stat(state: char, flags: u32, exit_code: i32) -> Stat {
        let rest = "0 ".repeat(42);
        let text = format!("4711 (iou) D (x) {state} 1 2 3 0 -1 {flags} {rest}{exit_code}\n");
        Stat::parse(&text).unwrap()
    }

    #[test]
    fn a_process_has_ended_when_its_first_thread_has_and_none_of_the_others_will_run() {
        const KILLED: i32 = signal_hook::consts::SIGKILL;
        let exit = Exit::from(stat('Z', 0x40_0004, KILLED).end().unwrap());
        assert_eq!(exit, Exit { reason: "killed by SIGKILL".into(), sent: true });
        for alive in ['R', 'S', 'D'] {
            assert!(stat(alive, 0x40_0000, KILLED).end().is_none(), "{alive}");
        }
        assert!(stat('D', 0x40_0010, 0).will_not_run(), "a worker of io_uring");
        assert!(stat('R', 0x40_0004, 0).will_not_run(), "on its way out");
        assert!(stat('D', 0x40_0000, 0).will_not_run(), "in a system call that no signal ends");
        for state in ['R', 'S', 'T', 't'] {
            assert!(!stat(state, 0x40_0000, 0).will_not_run(), "{state}");
        }
    }

    fn running(child: &Child, oom_kills: OomKills) -> RunningProgram {
        let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
        RunningProgram { pid: child.id(), pidfd, status: None, oom_kills_before: oom_kills.count(), oom_kills }
    }

    /// Waits for its end without reaping it.
    fn wait(process: &RunningProgram) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::PidFd(process.end()), options).unwrap();
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "it is waited for by its pidfd")]
    fn a_process_that_the_kernel_killed_for_want_of_memory_was_not_killed_from_outside() {
        let counter = tempfile::NamedTempFile::new().unwrap();
        let exit_after = |before: (u64, u64), after: (u64, u64)| {
            let text = |(oom, kills): (u64, u64)| format!("oom {oom}\noom_kill {kills}\noom_group_kill 0\n");
            std::fs::write(&counter, text(before)).unwrap();
            let child = Command::new("sleep").arg("1000").spawn().unwrap();
            let mut process = running(&child, OomKills::at(counter.path()));
            std::fs::write(&counter, text(after)).unwrap();
            process.kill();
            wait(&process);
            process.exit().unwrap()
        };
        assert_eq!(exit_after((9, 3), (9, 3)), Exit { reason: "killed by SIGKILL".into(), sent: true });
        let exit = exit_after((9, 3), (10, 4));
        assert!(!exit.sent && exit.reason.contains("OOM"), "{exit:?}");
        let exit = exit_after((9, 3), (9, 4));
        assert!(exit.sent && exit.reason.contains("OOM"), "the machine had no memory left, not the group: {exit:?}");
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "it is waited for by its pidfd")]
    fn a_process_that_lives_does_not_hang_and_one_that_was_killed_is_reaped() {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let counter = tempfile::NamedTempFile::new().unwrap();
        let mut process = running(&child, OomKills::at(counter.path()));
        assert_eq!((process.hangs(), process.exit()), (None, None));
        process.kill();
        wait(&process);
        assert_eq!(process.exit().unwrap().reason, "killed by SIGKILL");
        assert_eq!(process.hangs(), None, "nothing is left of it");
    }
}
