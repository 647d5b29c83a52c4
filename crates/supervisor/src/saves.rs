//! What is put on the disk of the state directory: on threads, since a disk may take seconds, or hang. The supervisor
//! waits for none of it; what depends on a save waits for its [`Generation`].
//!
//! ```text
//!  save ──▶ thread: desired.new written, synced, renamed ──▶ bell ──▶ collect ──▶ outcome of a generation
//!    └── while one is under way: the next begins when it ends, with what is desired then
//! ```

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use softdpu_sys::wake::Doorbell;

use super::desired::{Desired, Snapshot};

/// How long after changes could not be saved that is tried again.
const SAVE_PAUSE: Duration = Duration::from_secs(3);

/// How long a record is at most in the page cache alone: a host that loses its power loses what is younger.
const SYNC_PAUSE: Duration = Duration::from_millis(200);

/// A state of what is desired; later ones are larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Generation(u64);

/// A thread that saves.
struct Saving {
    generation: Generation,
    since: Instant,
}

/// Changes that are made and could not be saved.
struct Unsaved {
    warning: String,
    /// When to try again.
    again: Instant,
}

/// Saves that are under way, and those that failed.
pub(super) struct Saves {
    results: Receiver<io::Result<()>>,
    sender: Sender<io::Result<()>>,
    bell: Arc<Doorbell>,
    /// A save that takes longer is told.
    slow: Duration,
    /// What is to be saved.
    wanted: Generation,
    /// What was saved last, or could not be.
    tried: Generation,
    saving: Option<Saving>,
    unsaved: Option<Unsaved>,
    /// When records are to be put on the disk that are not.
    sync_at: Option<Instant>,
    /// Threads that do so.
    syncing: Arc<AtomicUsize>,
}

impl Saves {
    /// Threads ring `bell` when they have saved. A save that takes longer than `slow` is told.
    pub(super) fn new(bell: Arc<Doorbell>, slow: Duration) -> Saves {
        let (sender, results) = channel();
        Saves {
            results,
            sender,
            bell,
            slow,
            wanted: Generation::default(),
            tried: Generation::default(),
            saving: None,
            unsaved: None,
            sync_at: None,
            syncing: Arc::default(),
        }
    }

    /// What could not be saved, and when records are due, as a program before had it.
    pub(super) fn resume(&mut self, unsaved: Option<(String, Instant)>, sync_at: Option<Instant>) {
        self.unsaved = unsaved.map(|(warning, again)| Unsaved { warning, again });
        self.sync_at = sync_at;
    }

    /// What [`resume`](Self::resume) takes.
    pub(super) fn state(&self) -> (Option<(String, Instant)>, Option<Instant>) {
        (self.unsaved.as_ref().map(|unsaved| (unsaved.warning.clone(), unsaved.again)), self.sync_at)
    }

    /// What threads do.
    pub(super) fn under_way(&self) -> Option<&'static str> {
        match () {
            () if self.saving.is_some() => Some("changes are being saved"),
            () if self.syncing.load(Ordering::Acquire) > 0 => Some("loaded entries are put on the disk"),
            () => None,
        }
    }

    /// Has what is desired saved, as it is now or later.
    pub(super) fn save(&mut self, desired: &Desired) -> Generation {
        self.wanted.0 += 1;
        self.begin(desired);
        self.wanted
    }

    fn begin(&mut self, desired: &Desired) {
        if self.saving.is_some() || self.tried == self.wanted {
            return;
        }
        let begun = desired.snapshot().and_then(|snapshot| self.spawn(snapshot));
        // Also what has no thread has an outcome.
        if let Err(error) = begun {
            let _ = self.sender.send(Err(error));
            self.bell.ring();
        }
        self.saving = Some(Saving { generation: self.wanted, since: Instant::now() });
    }

    fn spawn(&self, snapshot: Snapshot) -> io::Result<()> {
        let (sender, bell) = (self.sender.clone(), Arc::clone(&self.bell));
        let run = move || {
            // The receiver is gone only when the supervisor is.
            let _ = sender.send(snapshot.write());
            bell.ring();
        };
        std::thread::Builder::new().name("save".into()).spawn(run).map(drop)
    }

    /// Takes what threads have done. The outcome, when one has ended.
    pub(super) fn collect(&mut self, desired: &Desired) -> Option<io::Result<()>> {
        let outcome = self.results.try_recv().ok()?;
        self.ended(&outcome, desired);
        Some(outcome)
    }

    /// Waits for threads until `deadline`, as [`collect`](Self::collect) does not.
    pub(super) fn wait(&mut self, deadline: Instant, desired: &Desired) -> Option<io::Result<()>> {
        self.saving.as_ref()?;
        let outcome = self.results.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()?;
        self.ended(&outcome, desired);
        Some(outcome)
    }

    fn ended(&mut self, outcome: &io::Result<()>, desired: &Desired) {
        if let Some(Saving { generation, .. }) = self.saving.take() {
            self.tried = generation;
        }
        match outcome {
            Ok(()) => {
                if self.unsaved.take().is_some() {
                    tracing::info!("the changes are saved");
                }
            }
            Err(error) => self.failed(error, desired),
        }
        self.begin(desired);
    }

    /// Changes cannot be saved; it is tried again until they can.
    pub(super) fn failed(&mut self, error: &io::Error, desired: &Desired) {
        let folder = desired.site().node.state_directory.display();
        let warning = format!(
            "changes are made, but lost when the supervisor stops: they cannot be saved in {folder}: {error}; this is tried again \
             until they can"
        );
        if self.unsaved.as_ref().is_none_or(|unsaved| unsaved.warning != warning) {
            tracing::error!("{warning}");
        }
        self.unsaved = Some(Unsaved { warning, again: Instant::now() + SAVE_PAUSE });
    }

    /// Whether `generation` was saved or could not be.
    pub(super) fn is_tried(&self, generation: Generation) -> bool {
        self.tried >= generation
    }

    /// Whether nothing is to be saved that was not tried.
    pub(super) fn is_current(&self) -> bool {
        self.tried == self.wanted
    }

    /// What there is to say of changes that are not saved.
    pub(super) fn warning(&self) -> Option<String> {
        if let Some(unsaved) = &self.unsaved {
            return Some(unsaved.warning.clone());
        }
        let slow = self.saving.as_ref().map(|saving| saving.since.elapsed()).filter(|elapsed| *elapsed >= self.slow)?;
        Some(format!(
            "changes are being saved for {} s: the disk of the state directory is slow or hangs; changes wait for it, devices do not",
            slow.as_secs()
        ))
    }

    /// A record is to be put on the disk, soon.
    pub(super) fn sync_soon(&mut self) {
        self.sync_at.get_or_insert(Instant::now() + SYNC_PAUSE);
    }

    /// When [`again`](Self::again) has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let again = self.unsaved.as_ref().filter(|_| self.saving.is_none()).map(|unsaved| unsaved.again);
        again.into_iter().chain(self.sync_at).min()
    }

    /// Saves what could not be saved before, and has the records in the file `loaded` put on the disk.
    pub(super) fn again(&mut self, desired: &Desired, loaded: Option<PathBuf>) {
        if self.sync_at.take().is_some()
            && let Some(path) = loaded
        {
            self.sync(path);
        }
        if self.unsaved.is_some() {
            self.save(desired);
        }
    }

    fn sync(&self, path: PathBuf) {
        let syncing = Arc::clone(&self.syncing);
        syncing.fetch_add(1, Ordering::AcqRel);
        let sync = move || {
            if let Err(error) = fs::File::open(&path).and_then(|file| file.sync_data()) {
                tracing::warn!(%error, path = %path.display(), "loaded entries cannot be put on the disk");
            }
            syncing.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(error) = std::thread::Builder::new().name("sync".into()).spawn(sync) {
            self.syncing.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(%error, "there is no thread to put loaded entries on the disk");
        }
    }
}
