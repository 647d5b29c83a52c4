//! What the data plane says, and what its end means for everything else.

use std::sync::Arc;
use std::time::Instant;

use super::front_ends::Handled;
use super::opener::Opened;
use super::plane::{End, Hello};
use super::supervisor::Supervisor;
use softdpu_link::{Down, Up};
use softdpu_sys::ReapedFd;

impl Supervisor {
    pub(super) fn start_plane(&mut self) {
        self.plane.start(self.changes.desired(), &self.vault);
    }

    pub(super) fn link_ready(&mut self, incarnation: u64) {
        if incarnation == self.plane.incarnation() {
            self.plane.flush();
            self.hear();
        } else if self.plane.is_standby(incarnation) {
            self.plane.flush();
            self.hear_standby();
        }
    }

    /// Takes everything the data plane has said.
    pub(super) fn hear(&mut self) {
        while let Some((message, fds)) = self.plane.receive() {
            self.heard(message, fds);
        }
    }

    fn heard(&mut self, message: Up, fds: Vec<ReapedFd>) {
        if let Some(excess) = self.plane.excess(&message) {
            return self.plane.kill(excess);
        }
        let mut fds = fds.into_iter().map(Arc::new);
        match message {
            Up::Hello { version, formats } => self.plane.greeted(Hello { version, formats }),
            Up::Ready => self.plane_is_ready(),
            Up::Quiesced { abandoned } => self.switch(abandoned),
            Up::Prepared { .. } => tracing::error!("the data plane that serves says that it is prepared"),
            Up::Alive => self.plane.alive(),
            Up::Attached { connection } => {
                self.front_ends.attached(connection);
                self.look_at_upgrade();
            }
            Up::Held { connection } => {
                self.front_ends.held(connection, &mut self.plane);
                self.look_at_upgrade();
            }
            Up::Handled { connection, reply, reply_fds, session, kept, released, close } => {
                let reply_fds = fds.by_ref().take(reply_fds as usize).collect();
                let kept = kept.into_iter().zip(fds).collect();
                let handled = Handled { reply, reply_fds, session, kept, released, close };
                self.front_ends.handled(connection, handled, &mut self.plane);
            }
            Up::Close { connection, reason } => self.front_ends.close(connection, &reason, &mut self.plane),
            Up::Answer { id, result } => self.answered(id, result),
            Up::Open { .. } | Up::Connect { .. } | Up::OpenTap { .. } => self.open(self.plane.incarnation(), message),
            Up::Keep { key } => {
                if let Some(Err(full)) = fds.next().map(|fd| self.vault.keep(key, fd)) {
                    self.plane.kill(&full.to_string());
                }
            }
            Up::Forget { key } => self.vault.forget(&key),
            Up::FirstCompletion { ns } if self.upgrades.first_completion(ns) => {}
            Up::FirstCompletion { ns } => self.plane.first_completion(ns),
        }
    }

    /// Opens what a data plane wants. The descriptor goes to that data plane and nowhere else.
    pub(super) fn open(&mut self, incarnation: u64, message: Up) {
        let (call, name, wanted) = match message {
            Up::Open { call, open } => {
                let wanted = self.changes.backing(&open);
                (call, open.volume, wanted)
            }
            Up::Connect { call, volume, patience_ms } => {
                let wanted = self.changes.server(&volume, patience_ms);
                let wanted = wanted.and_then(|wanted| self.dials.one_more(&volume, Instant::now()).map(|()| wanted));
                (call, volume, wanted)
            }
            Up::OpenTap { call, device, mtu } => {
                let wanted = self.changes.tap(&device, mtu);
                (call, device, wanted)
            }
            _ => return,
        };
        self.opener.start(incarnation, call, &name, wanted);
    }

    fn plane_is_ready(&mut self) {
        if self.plane.ready() {
            self.notifier.ready();
            self.front_ends.give_all(&mut self.plane);
        }
    }

    /// Files have been opened. Those for a data plane that died meanwhile are closed: a lock on them would be of no use
    /// to any other.
    pub(super) fn files_are_open(&mut self) {
        let opened: Vec<Opened> = std::iter::from_fn(|| self.opener.take()).collect();
        // Before a guest can have anything in them: what is missing later is gone.
        let images = opened.iter().filter(|opened| opened.result.is_ok());
        self.changes.saw(images.filter_map(|opened| Some((opened.name.as_str(), opened.image.as_deref()?))));
        for Opened { incarnation, call, result, .. } in opened {
            let (result, fds) = match result {
                Ok(fd) => (Ok(()), vec![Arc::new(fd.into())]),
                Err(failure) => (Err(failure), Vec::new()),
            };
            self.plane.send_to(incarnation, &Down::Opened { call, result }, fds);
        }
    }

    /// The data plane is dead: takes what it said last, and starts the next.
    pub(super) fn plane_is_dead(&mut self, end: End) {
        self.hear();
        if !self.plane.concerns(&end) {
            // The last that it said was that it has let go: another one serves.
            return;
        }
        self.upgrades.forget_completion();
        let from_outside = self.plane.bury(end);
        self.calls_are_lost();
        if self.plane.is_stopping() {
            return;
        }
        if self.upgrades.is_switching() {
            // Nothing is lost but the good order: what was in flight is recorded.
            self.front_ends.blame(true, &mut self.plane);
            return self.switch(0);
        }
        self.upgrade_fails("the data plane that served has died meanwhile");
        let served = self.front_ends.blame(from_outside, &mut self.plane);
        self.plane.restart(served);
        self.start_plane_if_due(Instant::now());
    }

    pub(super) fn start_plane_if_due(&mut self, now: Instant) {
        if self.plane.deadlines().start.is_some_and(|at| at <= now) {
            self.start_plane();
        }
    }
}
