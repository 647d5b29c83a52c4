//! One connection to an NBD server, through its lives: in order, requests are sent, answered, and sent again after a
//! reconnection.
//!
//! ```text
//!            arrived                     error, EOF
//!   waiting ────────▶ connected ─────────────────────────────▶ waiting (back-off, connector thread)
//!                        │ hung, or talks nonsense                ▲
//!                        └──▶ closing: nothing is sent, what ─────┘ EOF, or deadline
//!                             comes is still taken
//! ```
//!
//! A connection that is given up is shut down for writing and read until the server closes it: only then is all that
//! the server had received done, and only then may the requests go again on another connection. Otherwise an old write
//! could land after newer ones.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};
use softdpu_sys::net;

use super::mailbox::{LinkId, Mailbox};
use super::request::{Memory, NbdRequest};
use super::traffic::{Connection, HEADER, Inner, Outcome, Rx, Slot};
use super::{ConnectError, ConnectResult, NbdBacking};
use crate::volume::Backing;
use crate::{Request, Volume, VolumeState};
use softdpu_nbd::wire::{self, Export};

/// The first pause before a reconnection; it doubles up to the volume's limit, and is the first again when a command is
/// answered.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct NbdLink {
    volume: Arc<Volume>,
    /// Which of the volume's links.
    number: u32,
    id: LinkId,
    state: Mutex<Inner>,
    /// Changes with the socket and with what is to be waited for on it.
    epoch: AtomicU32,
}

impl NbdLink {
    pub(super) fn new(volume: &Arc<Volume>, number: u32, first: Option<(OwnedFd, Export)>) -> Arc<NbdLink> {
        let connected = ConnectResult::default();
        let connecting = first.is_some();
        if let Some(first) = first {
            *connected.lock().unwrap_or_else(PoisonError::into_inner) = Some(Ok(first));
        }
        if let Some(backing) = backing(volume) {
            backing.goes_down();
        }
        let id = LinkId::new();
        let state = Mutex::new(Inner {
            id,
            connection: None,
            slots: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            serial: 0,
            leaving: false,
            owners: Vec::new(),
            connected,
            connecting,
            retry_at: None,
            pause: FIRST_PAUSE,
        });
        Arc::new(NbdLink { volume: Arc::clone(volume), number, id, state, epoch: AtomicU32::new(1) })
    }

    pub(crate) fn id(&self) -> LinkId {
        self.id
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn join(&self, me: &Arc<Mailbox>, now: Instant) {
        let mut inner = self.lock();
        if !inner.owners.iter().any(|owner| Arc::ptr_eq(owner, me)) {
            inner.owners.push(Arc::clone(me));
        }
        drop(inner);
        // Connects, where there is no connection yet.
        self.tick(me, now);
    }

    pub(crate) fn leave(&self, me: &Arc<Mailbox>) {
        let mut given_up = Vec::new();
        self.abandon(me, &mut |_| true, &mut given_up);
        self.lock().owners.retain(|owner| !Arc::ptr_eq(owner, me));
    }

    /// Takes requests that were admitted.
    pub(crate) fn submit(&self, request: Request, me: &Arc<Mailbox>, deadline: Instant) {
        let inner = &mut *self.lock();
        inner.serial += 1;
        me.expect();
        let request = NbdRequest::new(request, me, inner.serial, deadline);
        let index = inner.free.pop().unwrap_or_else(|| {
            inner.slots.push(Slot::default());
            inner.slots.len() as u32 - 1
        });
        let slot = &mut inner.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.request = Some(request);
        inner.queue.push_back(index);
    }

    /// Sends what is waiting to be sent.
    pub(crate) fn flush(&self, me: &Arc<Mailbox>, now: Instant) {
        let mut inner = self.lock();
        if inner.queue.is_empty() && inner.connection.as_ref().is_none_or(|connection| connection.tx.is_none()) {
            return;
        }
        let outcome = inner.transmit(&self.volume, me);
        self.conclude(&mut inner, outcome, me, now);
    }

    /// Sends and receives what can be without waiting.
    pub(crate) fn poll(&self, me: &Arc<Mailbox>, now: Instant) {
        self.look(&mut self.lock(), me, now);
    }

    fn look(&self, inner: &mut Inner, me: &Arc<Mailbox>, now: Instant) {
        self.install(inner, now);
        let received = inner.receive(&self.volume, me);
        // What the answers leave to be sent goes at once.
        if !matches!(received, Outcome::Fine) {
            self.conclude(inner, received, me, now);
        }
        let sent = inner.transmit(&self.volume, me);
        self.conclude(inner, sent, me, now);
    }

    /// Time-outs, hung servers, reconnections.
    pub(crate) fn tick(&self, me: &Arc<Mailbox>, now: Instant) {
        let inner = &mut *self.lock();
        self.look(inner, me, now);
        let answer = backing(&self.volume).map_or(FIRST_PAUSE, NbdBacking::answer);
        if inner.expire(&self.volume, me, now, answer) {
            let reason = "the server did not answer in time".into();
            self.conclude(inner, Outcome::Close { reason, deaf: false }, me, now);
        }
        let over =
            inner.connection.as_ref().and_then(|connection| connection.closing).is_some_and(|until| until <= now);
        if over {
            let reason = "the server did not close its old connection in time".into();
            self.conclude(inner, Outcome::Lost(reason), me, now);
        }
        let Some(backing) = backing(&self.volume) else { return };
        if inner.connection.is_none() && !inner.connecting && inner.retry_at.is_none_or(|at| at <= now) {
            inner.connecting = backing.start_connecting(self.number, &inner.connected, &inner.owners);
            inner.retry_at = Some(now + inner.pause);
        }
    }

    /// Takes what the connector thread has brought.
    fn install(&self, inner: &mut Inner, now: Instant) {
        if !inner.connecting {
            return;
        }
        let Some(arrived) = inner.connected.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        inner.connecting = false;
        match arrived {
            Ok((socket, export)) => {
                let socket = Arc::new(socket);
                inner.connection =
                    Some(Connection { socket, export, tx: None, rx: HEADER, closing: None, blocked: false });
                inner.retry_at = None;
                self.epoch.fetch_add(1, Ordering::Release);
                if backing(&self.volume).is_some_and(NbdBacking::comes_up) {
                    self.volume.enter(VolumeState::Active, "");
                }
            }
            Err(ConnectError { reason, lasting }) => {
                self.back_off(inner, now);
                self.volume.enter(if lasting { VolumeState::Failed } else { VolumeState::Recovering }, &reason);
            }
        }
    }

    /// The next attempt is after a pause, and the one after it after a longer one, until a command is answered.
    fn back_off(&self, inner: &mut Inner, now: Instant) {
        let most = backing(&self.volume).map_or(FIRST_PAUSE, NbdBacking::longest_pause);
        inner.retry_at = Some(now + inner.pause);
        inner.pause = (inner.pause * 2).min(most).max(FIRST_PAUSE);
    }

    fn conclude(&self, inner: &mut Inner, outcome: Outcome, me: &Arc<Mailbox>, now: Instant) {
        let blocked = inner.has_to_send();
        let Some(connection) = &mut inner.connection else { return };
        match outcome {
            Outcome::Fine => {
                if std::mem::replace(&mut connection.blocked, blocked) != blocked {
                    self.epoch.fetch_add(1, Ordering::Release);
                }
            }
            Outcome::Close { reason, deaf } => {
                if deaf {
                    connection.rx = Rx::Deaf;
                }
                let patience = backing(&self.volume).map_or(FIRST_PAUSE, NbdBacking::timeout);
                self.close(connection, &reason, now + patience);
            }
            Outcome::Leaving => {
                // It has said so itself: it gets the time that an answer has, not all that a volume's requests may
                // wait.
                let patience = backing(&self.volume).map_or(FIRST_PAUSE, |it| it.answer().min(it.timeout()));
                self.close(connection, "the server says that it is about to go", now + patience);
            }
            Outcome::Lost(reason) => {
                inner.connection = None;
                let replayed = inner.requeue();
                self.back_off(inner, now);
                self.volume.count_disconnect(replayed);
                self.epoch.fetch_add(1, Ordering::Release);
                if let Some(backing) = backing(&self.volume) {
                    backing.goes_down();
                    if backing.cache.lose() {
                        self.volume.count_unflushed();
                        tracing::warn!(
                            volume = self.volume.name(),
                            reason,
                            "writes that the server had answered were not flushed when the connection was lost; if its cache was \
                             lost, so are they"
                        );
                    }
                }
                self.volume.enter(VolumeState::Recovering, &reason);
                // A core that sleeps on the socket has to wake by the clock instead.
                inner.wake_others(me);
            }
        }
    }

    /// Sends nothing more, and gives the server until `until` to end it.
    fn close(&self, connection: &mut Connection, reason: &str, until: Instant) {
        if connection.closing.is_none() {
            let _ = shutdown(&connection.socket, Shutdown::Write);
            connection.closing = Some(until);
            connection.tx = None;
            self.volume.enter(VolumeState::Recovering, reason);
            self.epoch.fetch_add(1, Ordering::Release);
        }
    }

    pub(crate) fn abandon(&self, me: &Arc<Mailbox>, matches: &mut dyn FnMut(u64) -> bool, given_up: &mut Vec<u64>) {
        let inner = &mut *self.lock();
        // What the server may still write, however late: no newer write may be on the same connection, as servers need
        // not keep an order.
        let mut may_land = false;
        for index in 0..inner.slots.len() as u32 {
            let slot = &mut inner.slots[index as usize];
            let Some(request) = slot.request.as_mut() else { continue };
            if request.late || !Arc::ptr_eq(&request.owner, me) || !matches(request.token) {
                continue;
            }
            given_up.push(request.token);
            me.give_up();
            self.volume.count_abandoned();
            if request.sent {
                may_land |= request.writes();
                request.let_go();
            } else {
                slot.request = None;
                inner.free.push(index);
            }
        }
        inner.forget_unqueued();
        if may_land {
            let reason = "a write was given up that the server may still do".into();
            self.conclude(inner, Outcome::Close { reason, deaf: false }, me, Instant::now());
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let inner = self.lock();
        let requests = || inner.slots.iter().filter_map(|slot| slot.request.as_ref());
        // A connection that is being given up already is not waited for twice.
        let open = inner.connection.as_ref().is_some_and(|connection| connection.closing.is_none());
        let answer = backing(&self.volume).filter(|_| open).map(NbdBacking::answer);
        let answers =
            answer.into_iter().flat_map(|answer| requests().filter_map(move |request| request.answer_by(answer)));
        let deadlines = requests().filter(|request| !request.late).map(|request| request.deadline);
        let closing = inner.connection.as_ref().and_then(|connection| connection.closing);
        let retry = if inner.connection.is_none() && !inner.connecting { inner.retry_at } else { None };
        deadlines.chain(answers).chain(closing).chain(retry).min()
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The socket to wait for, and whether for room to send, too.
    pub(crate) fn interest(&self) -> Option<(Arc<OwnedFd>, bool)> {
        self.lock().connection.as_ref().map(|connection| (Arc::clone(&connection.socket), connection.blocked))
    }
}

impl Drop for NbdLink {
    fn drop(&mut self) {
        let inner = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let idle = inner.slots.iter().all(|slot| slot.request.is_none());
        let Some(backing) = backing(&self.volume) else { return };
        backing.link_ends();
        match inner.connection.take() {
            Some(connection) => {
                if idle && connection.closing.is_none() {
                    let bye = wire::request(wire::Command::Disconnect, 0, 0, 0, 0);
                    let _ = net::send::<Memory>(connection.socket.as_fd(), &bye, None);
                    backing.forget(self.number);
                }
                // Otherwise the copy that is kept lets the next to activate wait for the end of what is in request.
            }
            None => {
                backing.comes_up();
                if let Ok(Some(Ok(_))) = inner.connected.try_lock().as_deref() {
                    backing.forget(self.number);
                }
            }
        }
    }
}

pub(super) fn backing(volume: &Volume) -> Option<&NbdBacking> {
    match &volume.backing {
        Backing::Nbd(backing) => Some(backing),
        _ => None,
    }
}
