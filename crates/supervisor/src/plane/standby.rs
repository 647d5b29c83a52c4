//! The data plane that an upgrade starts beside the one that serves, and the change from one to the other.
//!
//! ```text
//!  start_standby ──▶ greets ──▶ prepares ──▶ (the other is quiesced) ──▶ promote ──▶ serves
//!        └────────────┴───────────┴── discard_standby: the other serves on
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::running::Running;
use super::{Hello, Plane};
use crate::desired::Desired;
use crate::process::Spawner;
use crate::vault::Vault;
use softdpu_link::{Down, SharedFd, Up};
use softdpu_sys::ReapedFd;

/// The one that was replaced leaves after this time: what its end costs (unmapping guests' memory above all) is not to
/// fall into the moments in which the new one takes up its queues.
const LEAVE_AFTER: Duration = Duration::from_millis(500);

/// A data plane that came by an upgrade and dies within this time is followed by one of the program before.
const PROBATION: Duration = Duration::from_secs(10);

/// A data plane on standby.
pub(super) struct Standby {
    pub(super) running: Running,
    /// Starts others of its program.
    spawner: Box<dyn Spawner>,
    /// What the vault held when it was started.
    vault: BTreeMap<String, SharedFd>,
    /// What it wants kept, or kept no longer, once it serves.
    keeps: Vec<(String, Option<SharedFd>)>,
}

/// How the data plane that runs came to do so, where that was by an upgrade.
pub(super) struct Promotion {
    pub(super) at: Instant,
    pub(super) before: Box<dyn Spawner>,
}

/// The one that an upgrade has replaced.
pub(super) struct Replaced {
    pub(super) running: Running,
    /// When it is told to leave, or killed.
    pub(super) due: Instant,
    pub(super) is_leaving: bool,
}

impl Plane {
    /// Starts others of the program that is at `path` now.
    pub(crate) fn program(&self, path: &Path) -> io::Result<Box<dyn Spawner>> {
        self.spawner.other(path)
    }

    /// Starts one by `spawner` on standby. It is told what to be when it has [greeted](Self::brief_standby).
    pub(crate) fn start_standby(&mut self, mut spawner: Box<dyn Spawner>) -> io::Result<()> {
        self.started += 1;
        let running = Running::spawn(&mut *spawner, self.started, &self.poller)?;
        tracing::info!(pid = running.process.id(), "a data plane is started on standby");
        self.standby = Some(Standby { running, spawner, vault: BTreeMap::new(), keeps: Vec::new() });
        Ok(())
    }

    /// Whether this is the number of the one on standby.
    pub(crate) fn is_standby(&self, incarnation: u64) -> bool {
        self.standby.as_ref().is_some_and(|standby| standby.running.incarnation == incarnation)
    }

    /// The next message of the one on standby.
    pub(crate) fn receive_standby(&mut self) -> Option<(Up, Vec<ReapedFd>)> {
        self.standby.as_mut()?.running.receive()
    }

    /// Sends to the one of that number, if there is one: another could not make anything of it.
    pub(crate) fn send_to(&mut self, incarnation: u64, message: &Down, fds: Vec<SharedFd>) {
        if self.is_standby(incarnation) {
            self.send_standby(message, fds);
        } else if incarnation == self.incarnation {
            self.send(message, fds);
        }
    }

    fn send_standby(&mut self, message: &Down, fds: Vec<SharedFd>) {
        if let Some(standby) = &mut self.standby {
            standby.running.send(message, fds);
        }
    }

    /// The number of the one on standby.
    pub(crate) fn standby(&self) -> Option<u64> {
        self.standby.as_ref().map(|standby| standby.running.incarnation)
    }

    /// The one on standby says that it is alive.
    pub(crate) fn standby_alive(&mut self) {
        if let Some(standby) = &mut self.standby {
            standby.running.beat = Instant::now();
        }
    }

    /// When the one on standby will have been silent for too long.
    pub(crate) fn standby_silence(&self) -> Option<Instant> {
        self.standby.as_ref()?.running.silence_ends(&self.timing)
    }

    /// The one on standby has said which program it is: it is told what to be.
    pub(crate) fn brief_standby(&mut self, hello: Hello, desired: &Desired, vault: &Vault) {
        let Some(standby) = &mut self.standby else { return };
        standby.running.hello = Some(hello);
        let (kept, fds) = vault.contents();
        standby.vault = kept.iter().cloned().zip(fds.iter().cloned()).collect();
        let start = Down::Start {
            site: Box::new(desired.site().clone()),
            incarnation: standby.running.incarnation,
            kept,
            placements: desired.placements().to_vec(),
            death: None,
            loaded: desired.loaded_networks(),
            standby: true,
        };
        standby.running.send(&start, fds);
    }

    /// The one on standby wants a descriptor kept, or kept no longer.
    pub(crate) fn standby_keeps(&mut self, key: String, fd: Option<SharedFd>) {
        if let Some(standby) = &mut self.standby {
            standby.keeps.push((key, fd));
        }
    }

    /// How the one on standby ended, if it has.
    pub(crate) fn standby_end(&mut self) -> Option<String> {
        let exit = self.standby.as_mut()?.running.process.exit()?;
        Some(exit.reason)
    }

    /// Ends the one on standby; the other serves on.
    pub(crate) fn discard_standby(&mut self) {
        if let Some(mut standby) = self.standby.take() {
            standby.running.process.kill();
            self.let_go(standby.running);
        }
    }

    /// Nothing more is said to a data plane, which is reaped when it ends.
    fn let_go(&mut self, running: Running) {
        running.forget(&self.poller, true);
        self.hanging.push((running.incarnation, running.process));
    }

    /// The one on standby serves from now on, in place of the one that was told to quiesce at `since_ns`. What the
    /// latter has not heard of yet it never will.
    pub(crate) fn promote(&mut self, since_ns: u64, vault: &mut Vault) {
        let Some(Standby { mut running, spawner, vault: known, keeps }) = self.standby.take() else { return };
        let (keys, fds) = vault.contents();
        let now: BTreeMap<String, SharedFd> = keys.into_iter().zip(fds).collect();
        let is_known = |key: &String, fd: &SharedFd| known.get(key).is_some_and(|known| SharedFd::ptr_eq(known, fd));
        let (kept, fds) =
            now.iter().filter(|(key, fd)| !is_known(key, fd)).map(|(k, fd)| (k.clone(), fd.clone())).unzip();
        let forgotten = known.into_keys().filter(|key| !now.contains_key(key)).collect();
        for (key, fd) in keeps {
            match fd {
                Some(fd) => vault.keep_own(&key, fd),
                None => vault.forget(&key),
            }
        }
        running.send(&Down::TakeOver { since_ns, kept, forgotten }, fds);
        running.ready = true;
        self.incarnation = running.incarnation;
        self.first_completion_ns = None;
        let before = std::mem::replace(&mut self.spawner, spawner);
        self.promotion = Some(Promotion { at: Instant::now(), before });
        if let Some(replaced) = self.running.replace(running) {
            replaced.forget(&self.poller, true);
            self.replaced.push(Replaced { running: replaced, due: Instant::now() + LEAVE_AFTER, is_leaving: false });
        }
    }

    /// Has those leave that were replaced and are due; kills those that have not.
    pub(crate) fn leave(&mut self, now: Instant) {
        for mut replaced in self.replaced.extract_if(.., |replaced| replaced.due <= now).collect::<Vec<_>>() {
            if replaced.is_leaving {
                replaced.running.kill("it did not leave after an upgrade");
                self.let_go(replaced.running);
            } else {
                replaced.running.send(&Down::Shutdown, Vec::new());
                self.replaced.push(Replaced { is_leaving: true, due: now + self.timing.shutdown, ..replaced });
            }
        }
    }

    /// Reaps the one of that number, if it was replaced and has ended.
    pub(super) fn reap_replaced(&mut self, incarnation: u64) {
        let ended = |replaced: &mut Replaced| {
            replaced.running.incarnation == incarnation && replaced.running.process.exit().is_some()
        };
        for replaced in self.replaced.extract_if(.., ended) {
            tracing::info!(pid = replaced.running.process.id(), "the data plane before the upgrade has left");
            replaced.running.forget(&self.poller, false);
        }
    }

    /// The data plane has died: the next is of the program before if it had only just come by an upgrade.
    pub(super) fn step_back(&mut self) {
        if let Some(Promotion { at, before }) = self.promotion.take()
            && at.elapsed() < PROBATION
        {
            tracing::error!("the program of the last upgrade died young: the one before it is started again");
            self.spawner = before;
        }
    }
}
