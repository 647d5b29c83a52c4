//! The other side: what a program says that is to follow, and how it goes on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::fcntl_dupfd_cloexec;
use softdpu_sys::exec;
use softdpu_sys::signals::SignalFd;
use softdpu_sys::wake::Doorbell;

use super::state::{Read, read};
use super::{Binary, Executed, Successor, Understood, Verdict};
use crate::poller::Poller;
use crate::process::Program;
use crate::run::{RunError, SIGNALS, go_on};
use crate::supervisor::{Ground, Supervisor, Timing};
use softdpu_site::Log;

/// How a program is called that goes on as a supervisor.
#[derive(Clone, Debug)]
pub struct Resume {
    /// The state's descriptor.
    pub state: RawFd,
    /// That of the program before.
    pub before: RawFd,
    /// Why another program could not go on, which this one is the one before of.
    pub failed: Option<String>,
}

/// What this program understands as a supervisor.
pub fn understood() -> Understood {
    Understood::here()
}

/// Whether this program can take up `state`: everything is made of it that a supervisor is, with stand-ins for the
/// descriptors.
pub fn check(state: impl AsFd) -> Verdict {
    match take_up_stand_ins(state) {
        Ok(checksum) => Verdict::Fits(checksum),
        Err(reason) => Verdict::Refused(reason),
    }
}

fn take_up_stand_ins(state: impl AsFd) -> Result<u64, String> {
    let Read { state, numbers, checksum } = read(state).map_err(|error| error.to_string())?;
    let bell = Doorbell::new().map_err(|error| error.to_string())?;
    let stand_in = || fcntl_dupfd_cloexec(&bell, 3);
    let fds: Result<Vec<OwnedFd>, _> = numbers.iter().map(|_| stand_in()).collect();
    let fds = fds.map_err(|error| format!("it cannot have {} open files: {error}", numbers.len()))?;
    let ground = ground()?;
    let made =
        Supervisor::resume(state, super::Left::stand_ins(fds), &Program::this(), Timing::default(), ground, None);
    // The process ends: nothing of this is to be taken back.
    made.map(std::mem::forget)?;
    Ok(checksum)
}

fn ground() -> Result<Ground, String> {
    let ground = || Ok::<_, rustix::io::Errno>(Ground { poller: Poller::new()?, bell: Arc::new(Doorbell::new()?) });
    ground().map_err(|error| error.to_string())
}

/// Goes on as the supervisor that the program before was. `log` starts logging as the site says.
///
/// # Errors
/// As [`run`](crate::run()) says; and where neither this program nor the one before can go on.
pub fn resume(resume: &Resume, log: impl FnOnce(&Log)) -> Result<(), RunError> {
    let taken = exec::take(resume.state).and_then(|state| Ok((state, exec::take(resume.before)?)));
    let (file, before) = taken.map_err(|error| RunError::Resume(error.to_owned()))?;
    let ready = prepare(&file).map_err(|reason| go_back(resume, &file, before.as_fd(), reason));
    let (state, numbers, ground, signals) = ready?;
    log(&state.changes.desired.site().node.log);
    // For ps and the like: it would be called by the number of a descriptor.
    let _ = rustix::thread::set_name(c"softdpu");
    softdpu_sys::files::ignore_size_signal();
    // They were left, as was seen. From here on there is no way back.
    let fds: Result<Vec<OwnedFd>, _> = numbers.into_iter().map(exec::take).collect();
    let fds = fds.map_err(|error| RunError::Resume(error.to_owned()))?;
    drop((file, before));
    let left = super::Left::new(fds);
    let made = Supervisor::resume(state, left, &Program::this(), Timing::default(), ground, resume.failed.clone());
    let (mut supervisor, handle) = made.map_err(RunError::Resume)?;
    supervisor.listen_for(signals)?;
    go_on(supervisor, handle)
}

/// All that can fail.
fn prepare(file: &OwnedFd) -> Result<(super::State, Vec<RawFd>, Ground, SignalFd), String> {
    #[cfg(feature = "next-release")]
    if std::env::current_exe().is_ok_and(|program| program.ends_with("cannot-resume")) {
        return Err("a test wants it so".to_owned());
    }
    let Read { state, numbers, .. } = read(file).map_err(|error| error.to_string())?;
    if let Some((number, error)) = numbers.iter().find_map(|number| Some((number, exec::is_left(*number).err()?))) {
        return Err(format!("descriptor {number} was not left: {error}"));
    }
    let signals = SignalFd::block(&SIGNALS).map_err(|error| error.to_string())?;
    Ok((state, numbers, ground()?, signals))
}

/// The program before follows again; it reads what it has written itself.
fn go_back(resume: &Resume, state: &OwnedFd, before: BorrowedFd<'_>, reason: String) -> RunError {
    if resume.failed.is_some() {
        return RunError::Resume(reason);
    }
    let before = match before.try_clone_to_owned() {
        Ok(before) => Binary::of(before),
        Err(error) => return RunError::Resume(format!("{reason}; {error}")),
    };
    // The others are as they were left.
    let reason = format!("softdpu {} could not take up the state: {reason}", super::VERSION);
    match before.execute(state.as_fd(), &[], Some(&reason)) {
        Executed::Failed(error) => RunError::Resume(format!("{reason}; and the one before does not start: {error}")),
        #[cfg(test)]
        Executed::Elsewhere => RunError::Resume(reason),
    }
}
