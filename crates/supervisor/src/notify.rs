//! Notifications to systemd (sd_notify(3)): READY, STATUS, WATCHDOG. Nothing where it does not listen.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Talks to the service manager.
#[derive(Debug)]
pub(super) struct Notifier {
    ready: bool,
    status: String,
    /// Half of WatchdogSec, and when the next sign of life is due.
    watchdog: Option<(Duration, Instant)>,
}

impl Notifier {
    pub(super) fn new() -> Notifier {
        let watchdog = sd_notify::watchdog_enabled().map(|limit| (limit / 2, Instant::now()));
        Notifier { ready: false, status: String::new(), watchdog }
    }

    /// One that goes on for the program before; the process is the same to the service manager.
    pub(super) fn resume(ready: bool) -> Notifier {
        Notifier { ready, ..Notifier::new() }
    }

    /// Whether it was told that the data plane is ready.
    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    /// The data plane is ready, for the first time or again.
    pub(super) fn ready(&mut self) {
        if !self.ready {
            self.ready = true;
            notify(NotifyState::Ready);
        }
    }

    pub(super) fn stopping(&mut self) {
        notify(NotifyState::Stopping);
    }

    pub(super) fn status(&mut self, status: String) {
        if status != self.status {
            notify(NotifyState::Status(&status));
            self.status = status;
        }
    }

    /// A sign of life of the supervisor, if it is due. That of the data plane is the supervisor's own business: if
    /// systemd restarted the supervisor because a data plane cannot start, the guests would lose what it holds for
    /// them.
    pub(super) fn alive(&mut self, now: Instant) {
        if let Some((interval, due)) = &mut self.watchdog
            && *due <= now
        {
            *due = now + *interval;
            notify(NotifyState::Watchdog);
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.watchdog.map(|(_, due)| due)
    }
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "systemd cannot be notified");
    }
}
