//! This data plane's part in an upgrade: as the one on standby that takes over, or as the one that lets go.
//!
//! ```text
//!  Standby ── TakeOver ──▶ Serving ── Quiesce ──▶ Quiescing ── every queue has stopped ──▶ Quiesced
//! ```

use std::collections::HashSet;
use std::time::{Duration, Instant};

use softdpu_engine::{FromCore, QueueKey};
use softdpu_link::{Formats, LINK_FORMAT, LinkError, Up};
use softdpu_site::Site;
use softdpu_sys::ReapedFd;
use softdpu_transport::vhost_user::SESSION_FORMAT;

use super::volumes::Readiness;
use super::{AT_ONCE, DataPlane, yielding};

/// How long a data plane on standby waits for volumes to open before it says which have not.
pub(super) const SETTLING: Duration = Duration::from_secs(10);

/// What this data plane is.
pub(super) enum Role {
    /// Another one serves what is in the site.
    Standby(Box<Site>),
    /// The one that serves.
    Serving,
    /// It stops these queues, and abandoned so many requests of others.
    Quiescing { running: HashSet<QueueKey>, abandoned: u64 },
    /// Another one serves, or will.
    Quiesced,
}

/// What is said first.
pub(super) fn hello() -> Up {
    let formats = Formats { link: LINK_FORMAT, oldest_session: SESSION_FORMAT, session: SESSION_FORMAT };
    Up::Hello { version: env!("CARGO_PKG_VERSION").to_owned(), formats }
}

impl DataPlane {
    /// That it can take over, but for what could not be opened.
    pub(super) fn prepared(&self) -> Up {
        let unopened = self.volumes.iter().filter_map(|(config, readiness)| match readiness {
            Readiness::Open(_) => None,
            Readiness::Opening => Some(format!("volume '{}' has not opened yet", config.name)),
            Readiness::Failing(reason) => Some(format!("volume '{}': {reason}", config.name)),
        });
        let unloaded = self.networks.load_error().map(|error| format!("loaded entries: {error}"));
        Up::Prepared { problems: unopened.chain(unloaded).collect() }
    }

    /// Serves from now on. Connections are given next.
    pub(super) fn take_over(
        &mut self,
        since_ns: u64,
        (kept, fds): (Vec<String>, Vec<ReapedFd>),
        forgotten: &[String],
    ) -> Result<(), LinkError> {
        let Role::Standby(site) = std::mem::replace(&mut self.role, Role::Serving) else {
            tracing::error!("a data plane that is not on standby cannot take over");
            return Ok(());
        };
        self.wire.forget_kept(forgotten);
        self.wire.remember(kept, fds);
        (self.outage_since, self.since_ns) = (Some(since_ns), Some(since_ns));
        self.ready = true;
        self.engine.set_yielding(yielding(&site));
        self.set_up(&site, Instant::now())
    }

    /// Stops every queue; what is in flight gets `patience` to finish.
    pub(super) fn quiesce(&mut self, patience: Duration) {
        let live = self.devices.iter().filter_map(|device| device.connection.as_ref());
        let live = live.flat_map(|connection| connection.live()).map(|(_, key)| key);
        let running = live.filter(|key| self.engine.stop_queue(*key, patience).is_ok()).collect();
        self.role = Role::Quiescing { running, abandoned: 0 };
    }

    /// A queue may have stopped for another data plane.
    pub(super) fn stopped_for_good(&mut self, event: &FromCore) {
        if let (Role::Quiescing { running, abandoned }, FromCore::Stopped { key, abandoned: left, .. }) =
            (&mut self.role, event)
        {
            running.remove(key);
            *abandoned += u64::from(*left);
        }
    }

    /// Lets go of fences and interfaces once every queue has stopped.
    pub(super) fn let_go_if_quiet(&mut self) -> Result<(), LinkError> {
        let Role::Quiescing { running, abandoned } = &self.role else { return Ok(()) };
        if !running.is_empty() {
            return Ok(());
        }
        let abandoned = *abandoned;
        self.role = Role::Quiesced;
        for volume in self.volumes.iter().filter_map(|(_, readiness)| readiness.open()) {
            self.engine.detach(volume);
        }
        self.networks.let_go(&self.wire, &self.engine, Instant::now());
        for volume in self.volumes.iter().filter_map(|(_, readiness)| readiness.open()) {
            match volume.release() {
                Ok(true) => {}
                Ok(false) => tracing::warn!(volume = volume.name(), "its fence is kept: a write may still land"),
                Err(error) => tracing::error!(%error, "the fence is kept until this process has ended"),
            }
        }
        self.engine.set_yielding(AT_ONCE);
        self.wire.send(&Up::Quiesced { abandoned }, Vec::new())
    }
}
