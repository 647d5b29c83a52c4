//! Waiting: for an eventfd, for a server that is starting.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};

use crate::FrontEndError;

/// Sleeps until one of `fds` is ready.
///
/// # Errors
/// `TimedOut` at `deadline`.
pub fn sleep_until(fds: &mut [PollFd<'_>], deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
        match poll(fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The longest a server takes from the file of its socket to its first accept(2).
const LISTENS: Duration = Duration::from_secs(5);

/// Calls `connect` until the server listens.
pub(crate) fn retry_until_listening<T>(
    mut connect: impl FnMut() -> Result<T, FrontEndError>,
) -> Result<T, FrontEndError> {
    let deadline = Instant::now() + LISTENS;
    loop {
        match connect() {
            Err(FrontEndError::Connect { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            result => return result,
        }
    }
}
