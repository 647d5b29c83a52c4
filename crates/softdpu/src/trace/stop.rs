//! What ends a trace from here: a signal, or the time.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Readable when a signal came that asks to end.
pub struct Signals(UnixStream);

impl Signals {
    /// From now on SIGINT and SIGTERM end nothing by themselves. A second one does.
    pub fn new() -> Result<Signals, String> {
        let text = |error: std::io::Error| format!("signals cannot be waited for: {error}");
        let (receiver, sender) = UnixStream::pair().map_err(text)?;
        for signal in [SIGINT, SIGTERM] {
            let seen = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
            // In this order: the first sets the flag, a later one finds it set.
            signal_hook::flag::register_conditional_default(signal, std::sync::Arc::clone(&seen)).map_err(text)?;
            signal_hook::flag::register(signal, seen).map_err(text)?;
            let sender = sender.try_clone().map_err(text)?;
            signal_hook::low_level::pipe::register(signal, sender).map_err(text)?;
        }
        Ok(Signals(receiver))
    }
}

/// What came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// There is something to read, or its end.
    Readable,
    /// A signal.
    Signal,
    /// Nothing.
    Time,
}

/// Waits for `stream` or a signal, until `deadline` where there is one.
pub fn wait(stream: BorrowedFd<'_>, signals: Option<&Signals>, deadline: Option<Instant>) -> Ready {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ready::Time;
        }
        let timeout = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        let mut fds = vec![PollFd::from_borrowed_fd(stream, PollFlags::IN)];
        fds.extend(signals.map(|signals| PollFd::from_borrowed_fd(signals.0.as_fd(), PollFlags::IN)));
        // A failure (EINTR) is a wake-up like any other.
        let _ = poll(&mut fds, timeout.as_ref());
        if fds.get(1).is_some_and(|signal| !signal.revents().is_empty()) {
            return Ready::Signal;
        }
        if !fds[0].revents().is_empty() {
            return Ready::Readable;
        }
    }
}
