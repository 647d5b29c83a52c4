//! Where one core finds its requests that ended, whichever core received the answer.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use softdpu_sys::wake::Doorbell;

use crate::{Done, VolumeError};

/// A link as mailboxes know it: unlike any other of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkId(u64);

impl LinkId {
    pub(super) fn new() -> LinkId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        LinkId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

pub(crate) struct Mailbox {
    done: Mutex<Vec<(LinkId, Done)>>,
    /// Whether there is an answer, set before the bell is rung: a polling core reads this only.
    full: AtomicBool,
    bell: Doorbell,
    /// The core's requests that are not answered.
    outstanding: AtomicUsize,
}

impl Mailbox {
    pub(crate) fn new() -> Result<Self, VolumeError> {
        let bell = Doorbell::new().map_err(|e| VolumeError::ring(e.into()))?;
        Ok(Mailbox { done: Mutex::default(), full: AtomicBool::new(false), bell, outstanding: AtomicUsize::new(0) })
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    pub(super) fn expect(&self) {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
    }

    /// One request less to wait for, without an answer.
    pub(super) fn give_up(&self) {
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
    }

    /// Puts an answer in; the owner polls or is [woken](Self::wake).
    pub(super) fn put(&self, from: LinkId, done: Done) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push((from, done));
        self.full.store(true, Ordering::Release);
    }

    /// Wakes the owner if it sleeps.
    pub(crate) fn wake(&self) {
        self.full.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Whether another core left something here.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Takes the answers.
    pub(crate) fn take(&self, done: &mut Vec<Done>) {
        if !self.full.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut ended = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        self.outstanding.fetch_sub(ended.len(), Ordering::Relaxed);
        done.extend(ended.drain(..).map(|(_, done)| done));
    }

    /// Throws away the answers that `matches` selects by token, and adds their tokens to `given_up`. Links abandon
    /// first: what one of them answers until then is in here, and what comes later it does not answer any more.
    pub(crate) fn abandon(&self, matches: &mut dyn FnMut(u64) -> bool, given_up: &mut Vec<u64>) {
        self.discard(|_, token| matches(token), given_up);
    }

    /// Throws away what a link has answered that is no more ours, for the same reason.
    pub(crate) fn give_up_from(&self, link: LinkId) {
        self.discard(|from, _| from == link, &mut Vec::new());
    }

    fn discard(&self, mut matches: impl FnMut(LinkId, u64) -> bool, given_up: &mut Vec<u64>) {
        let mut ended = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let before = ended.len();
        ended.retain(|(from, done)| {
            let gone = matches(*from, done.token);
            if gone {
                given_up.push(done.token);
            }
            !gone
        });
        self.outstanding.fetch_sub(before - ended.len(), Ordering::Relaxed);
    }

    /// Silences the bell. What it rang for is in `full`, so this comes before looking there.
    pub(crate) fn silence(&self) {
        self.bell.drain();
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
