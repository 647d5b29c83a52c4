//! The hand-shake that loses no wake-up.
//!
//! The sender posts, then checks whether the receiver sleeps; the receiver declares that it sleeps, then checks whether
//! anything was posted. With a sequentially consistent fence between the two steps of each, at least one sees the other
//! (checked with loom, which replaces the atomics: `tests/loom.rs`).

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Whether anything was posted, and whether the receiver sleeps.
#[derive(Debug)]
pub struct Sleeper {
    posted: AtomicBool,
    asleep: AtomicBool,
}

impl Default for Sleeper {
    fn default() -> Self {
        Self::new()
    }
}

impl Sleeper {
    /// Awake, nothing posted.
    pub fn new() -> Self {
        Sleeper { posted: AtomicBool::new(false), asleep: AtomicBool::new(false) }
    }

    /// The sender's side, after the message is in the queue. True: ring the bell.
    pub fn post(&self) -> bool {
        self.posted.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        // Only one of several senders needs to ring.
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel)
    }

    /// The receiver's side: whether there is something; takes the mark.
    #[inline(always)]
    pub fn posted(&self) -> bool {
        self.posted.load(Ordering::Relaxed) && self.posted.swap(false, Ordering::Acquire)
    }

    /// The receiver's side: whether there is something; leaves the mark.
    #[inline(always)]
    pub fn is_posted(&self) -> bool {
        self.posted.load(Ordering::Relaxed)
    }

    /// The receiver's side: true when it may sleep.
    pub fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.posted.load(Ordering::Relaxed) {
            self.asleep.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// The receiver's side, after it slept.
    pub fn wake_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
