//! What may block, away from the control thread: a thread for each task, and a bell when it is done.
//!
//! Opening a volume asks name servers, NBD servers and file systems, none of which has to answer. The control
//! thread therefore never waits for a task; it decides by the clock what to answer for one that takes long.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::io::Errno;
use softdpu_storage::Volume;
use softdpu_sys::wake::Doorbell;

/// What came of a task, in words where it failed.
pub(super) struct Outcome {
    /// The volume's name.
    pub volume: String,
    /// Which of the volumes that had this name.
    pub serial: u64,
    pub done: Done,
}

pub(super) enum Done {
    Opened(Result<Arc<Volume>, String>),
    Grown {
        size: u64,
        result: Result<(), String>,
    },
    /// What was written is where another host finds it.
    Settled(Result<(), String>),
}

/// Starts tasks and collects what came of them.
pub(super) struct Opener {
    sender: Sender<Outcome>,
    outcomes: Receiver<Outcome>,
    bell: Arc<Doorbell>,
}

impl Opener {
    pub(super) fn new() -> Result<Self, Errno> {
        let (sender, outcomes) = channel();
        Ok(Opener { sender, outcomes, bell: Arc::new(Doorbell::new()?) })
    }

    /// Runs `task` on a thread of its own. Whether there is one.
    pub(super) fn start(&self, task: impl FnOnce() -> Outcome + Send + 'static) -> bool {
        let (sender, bell) = (self.sender.clone(), Arc::clone(&self.bell));
        let run = move || {
            // When the process ends it is not taken.
            let _ = sender.send(task());
            bell.ring();
        };
        std::thread::Builder::new().name("volume".into()).spawn(run).is_ok()
    }

    /// The next outcome that is here.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.outcomes.try_recv().ok()
    }

    /// Silences the bell. What it rang for is among the outcomes, so this comes before looking there.
    pub(super) fn silence(&self) {
        self.bell.drain();
    }

    /// Readable when there is an outcome.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
