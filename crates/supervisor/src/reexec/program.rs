//! The program that is to follow in a supervisor: what it understands, whether it can take up a state, and its start.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use softdpu_link::LINK_FORMAT;

use super::formats::{NEWEST, OLDEST, VERSION};

/// The hidden subcommand that tells what the program [understands](Understood).
pub const FORMATS_SUBCOMMAND: &str = "supervisor-formats";

/// The hidden subcommand that tells whether the state on standard input [can be taken up](Verdict).
pub const CHECK_SUBCOMMAND: &str = "supervisor-check";

/// The hidden subcommand that goes on as a supervisor.
pub const RESUME_SUBCOMMAND: &str = "supervisor-resume";

/// The longest answer of a program, bytes.
const LONGEST_ANSWER: u64 = 64 << 10;

/// Formats, from the oldest to the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Range {
    pub(crate) oldest: u32,
    pub(crate) newest: u32,
}

impl Range {
    pub(crate) fn contains(&self, format: u32) -> bool {
        (self.oldest..=self.newest).contains(&format)
    }
}

/// What a program understands as a supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Understood {
    /// Its release.
    pub(crate) version: String,
    /// Formats of the state, which it reads and writes.
    pub(crate) state: Range,
    /// Formats of the link to a data plane.
    pub(crate) link: Range,
}

impl Understood {
    /// What this program understands.
    pub(crate) fn here() -> Understood {
        Understood {
            version: VERSION.to_owned(),
            state: Range { oldest: OLDEST, newest: NEWEST },
            link: Range { oldest: LINK_FORMAT, newest: LINK_FORMAT },
        }
    }

    /// The newest format of the state that this program writes and that one reads.
    pub(crate) fn common_format(&self) -> Result<u32, String> {
        let format = NEWEST.min(self.state.newest);
        if format >= OLDEST && self.state.contains(format) {
            return Ok(format);
        }
        let Range { oldest, newest } = self.state;
        Err(format!(
            "it reads states of formats {oldest} to {newest}, and softdpu {VERSION} writes {OLDEST} to {NEWEST}: upgrade by \
             the releases between"
        ))
    }
}

/// Whether a state can be taken up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It can. With its checksum: a program that does not read the state does not know that.
    Fits(u64),
    /// It cannot, for this reason.
    Refused(String),
}

/// What came of executing a program.
pub enum Executed {
    /// It could not be: this one goes on.
    Failed(io::Error),
    /// Another supervisor in this process has been given everything.
    #[cfg(test)]
    Elsewhere,
}

/// A program that may follow in a supervisor. The real one is [`Binary`]; tests have their own.
pub trait Successor: Send + Sync {
    /// What it understands, or why it does not say so within `patience`.
    ///
    /// # Errors
    /// For people.
    fn understands(&self, patience: Duration) -> Result<Understood, String>;

    /// Whether it can take up `state`, or why it does not say so within `patience`.
    ///
    /// # Errors
    /// For people.
    fn check(&self, state: BorrowedFd<'_>, patience: Duration) -> Result<Verdict, String>;

    /// Executes it in this process, with `state` and `keep`. `failed`: why another could not, which this one is to
    /// follow again.
    fn execute(&self, state: BorrowedFd<'_>, keep: &[BorrowedFd<'_>], failed: Option<&str>) -> Executed;
}

/// A `softdpu` program.
pub(crate) struct Binary(OwnedFd);

impl Binary {
    /// The program whose file this is, by an O_PATH descriptor.
    pub(crate) fn of(file: OwnedFd) -> Arc<Binary> {
        Arc::new(Binary(file))
    }

    /// Calls it for one line of JSON.
    fn ask<T: DeserializeOwned>(&self, subcommand: &str, input: Stdio, patience: Duration) -> Result<T, String> {
        let until = Instant::now() + patience;
        let mut child = Command::new(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
            .arg0("softdpu")
            .arg(subcommand)
            .stdin(input)
            .stdout(Stdio::piped())
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID")
            .process_group(0)
            .spawn()
            .map_err(|error| format!("it cannot be started: {error}"))?;
        let answer = match child.stdout.take() {
            Some(output) => read_until(OwnedFd::from(output).into(), until),
            None => Err("it has no standard output".to_owned()),
        };
        let ended = end(&mut child, until, answer.is_err());
        let answer = answer.map_err(|error| format!("asked for {subcommand}, {error}"))?;
        match serde_json::from_slice(&answer) {
            Ok(answer) => Ok(answer),
            Err(_) => Err(format!("asked for {subcommand}, it gives no answer that is understood ({ended})")),
        }
    }
}

impl Successor for Binary {
    fn understands(&self, patience: Duration) -> Result<Understood, String> {
        self.ask(FORMATS_SUBCOMMAND, Stdio::null(), patience)
    }

    fn check(&self, state: BorrowedFd<'_>, patience: Duration) -> Result<Verdict, String> {
        let state = state.try_clone_to_owned().map_err(|error| error.to_string())?;
        self.ask(CHECK_SUBCOMMAND, Stdio::from(state), patience)
    }

    fn execute(&self, state: BorrowedFd<'_>, keep: &[BorrowedFd<'_>], failed: Option<&str>) -> Executed {
        let before = match open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(before) => before,
            Err(error) => return Executed::Failed(error.into()),
        };
        let number = |fd: BorrowedFd<'_>| OsString::from(fd.as_raw_fd().to_string());
        let mut arguments: Vec<OsString> = vec!["softdpu".into(), RESUME_SUBCOMMAND.into()];
        arguments.extend(["--state".into(), number(state), "--before".into(), number(before.as_fd())]);
        if let Some(failed) = failed {
            arguments.extend(["--failed".into(), failed.into()]);
        }
        let keep = [keep, &[state, before.as_fd()]].concat();
        Executed::Failed(softdpu_sys::exec::exec(self.0.as_fd(), &arguments, &keep))
    }
}

/// All that comes before the end, or why it does not come in time.
fn read_until(mut output: File, until: Instant) -> Result<Vec<u8>, String> {
    let mut answer = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("it does not answer in time".to_owned());
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let ready = poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&timeout));
        if ready.is_ok_and(|ready| ready > 0) {
            let mut bytes = [0; 4096];
            match output.read(&mut bytes) {
                Ok(0) => return Ok(answer),
                Ok(count) => answer.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("it cannot be heard: {error}")),
            }
        }
        if answer.len() as u64 > LONGEST_ANSWER {
            return Err("it says more than it was asked for".to_owned());
        }
    }
}

/// How a process ended that has nothing more to say; it is killed if it does not end in time, or `at_once`.
fn end(child: &mut Child, until: Instant, at_once: bool) -> String {
    let mut killed = false;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return crate::process::Exit::from(status).reason,
            Ok(None) => {}
            Err(error) => return error.to_string(),
        }
        let late = Instant::now() >= until + if killed { Duration::from_secs(1) } else { Duration::ZERO };
        if killed && late {
            // The kernel is in the middle of something. It is reaped with this program.
            return "it cannot be ended".to_owned();
        }
        if !killed && (at_once || late) {
            killed = true;
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
