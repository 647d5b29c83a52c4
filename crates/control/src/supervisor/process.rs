//! How a data plane is started and how its end is noticed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The hidden subcommand that is the data plane.
pub const SUBCOMMAND: &str = "data-plane";

/// Starts data planes. The real one is [`Program`]; tests have their own.
pub trait Spawner: Send {
    /// Starts one, with its end of the link.
    ///
    /// # Errors
    /// What the operating system says.
    fn spawn(&mut self, link: OwnedFd) -> io::Result<Box<dyn Process>>;
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
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// For people: signal or status.
    pub reason: String,
    /// Somebody sent it SIGKILL or SIGTERM. A process that errs does not do that to itself.
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
}

impl Program {
    /// The program that is running, whatever became of its file since.
    pub fn this() -> Program {
        Program { path: PathBuf::from("/proc/self/exe") }
    }

    /// Another program.
    pub fn at(path: PathBuf) -> Program {
        Program { path }
    }
}

impl Spawner for Program {
    fn spawn(&mut self, link: OwnedFd) -> io::Result<Box<dyn Process>> {
        let child = Command::new(&self.path)
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
        let mut running = RunningProgram { child, pidfd: None };
        let pid = Pid::from_child(&running.child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => running.pidfd = Some(pidfd),
            Err(error) => {
                running.kill();
                let _ = running.child.wait();
                return Err(error.into());
            }
        }
        Ok(Box::new(running))
    }
}

struct RunningProgram {
    child: Child,
    /// There from the end of `spawn` on.
    pidfd: Option<OwnedFd>,
}

impl Process for RunningProgram {
    fn id(&self) -> u32 {
        self.child.id()
    }

    fn end(&self) -> BorrowedFd<'_> {
        match &self.pidfd {
            Some(pidfd) => pidfd.as_fd(),
            None => unreachable!("spawn gives out no process without its pidfd"),
        }
    }

    fn kill(&mut self) {
        // It fails only for a process that has been reaped.
        let _ = self.child.kill();
    }

    fn exit(&mut self) -> Option<Exit> {
        match self.child.try_wait() {
            Ok(status) => status.map(Exit::from),
            Err(error) => Some(Exit { reason: format!("lost: {error}"), sent: false }),
        }
    }
}
