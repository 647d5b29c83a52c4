//! Volumes as configured, on their way to being open.
//!
//! ```text
//!            room for one more            opened
//!   queued ───────────────────▶ opening ─────────▶ open
//!     ▲                           │
//!     └── pause, doubling ────────┘ failed
//! ```
//!
//! A volume that takes long or fails is shown with its reason and tried again for as long as it is configured: what
//! keeps it away may be outside, and guests wait for it.

mod attempts;

use std::collections::{BTreeMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use softdpu_storage::{Broker, Encryption, KeySource, Volume, VolumeError, VolumeKind, VolumeSpec};

use self::attempts::Attempts;
use super::opener::{Done, Opener, Outcome};
use softdpu_api::status::RequestCounts;
use softdpu_site::{self as config, Backend, Bytes, Cache, Discard, EncryptedDiscard, Reconnect};

/// How long a request waits for a server that may be away for ever: longer than any process runs.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The longest pause between two attempts to reconnect.
const RECONNECT_PAUSE: Duration = Duration::from_secs(2);

/// After this long an attempt counts as failed for all that wait for it. It is not given up: there is no other way to
/// take back a thread, and a second attempt would hang where the first one does.
const OPEN_PATIENCE: Duration = Duration::from_secs(20);

/// The first pause before a volume that failed is tried again; it doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// So many attempts are begun at once; those that take longer than [`SLOW`] make room for others.
const MOST_AT_ONCE: usize = 64;

/// How long an attempt takes if file system and server answer.
const SLOW: Duration = Duration::from_secs(1);

/// The configured volumes.
pub(super) struct Volumes {
    slots: BTreeMap<String, Slot>,
    opener: Opener,
    broker: Arc<dyn Broker>,
    serial: u64,
}

struct Slot {
    config: config::Volume,
    /// Tells its attempts from those of a volume of the same name that was deleted.
    serial: u64,
    /// The broker, for as long as the volume is here.
    broker: Arc<Attempts>,
    stage: Stage,
    pause: Duration,
    /// Why the last attempt failed, or is given no more time.
    error: Option<String>,
    /// The management call that waits, and until when.
    asked: Option<(u64, Instant)>,
    /// What devices did with it that were removed since.
    by_removed: RequestCounts,
    yielding: Yielding,
}

/// Whether the fence of a volume that no queue uses any more is on its way to another host.
enum Yielding {
    No,
    /// What was written is put where another host finds it. Should the fence be kept for now, that is tried again after
    /// the pause.
    Settling(Duration),
    /// It was kept: it is tried again then, and after that pause the time after.
    Kept(Instant, Duration),
}

enum Stage {
    /// To be opened, not before then.
    Queued(Instant),
    /// An attempt is under way, since then.
    Opening(Instant),
    Open(Arc<Volume>),
}

/// Whether a volume can be used.
pub(super) enum Readiness<'a> {
    Opening,
    /// Not open, and why; it is tried again.
    Failing(&'a str),
    Open(&'a Arc<Volume>),
}

impl<'a> Readiness<'a> {
    /// The volume, if it is open.
    pub(super) fn open(self) -> Option<&'a Arc<Volume>> {
        match self {
            Readiness::Open(volume) => Some(volume),
            Readiness::Opening | Readiness::Failing(_) => None,
        }
    }
}

/// What has changed.
pub(super) enum News {
    Opened {
        volume: Arc<Volume>,
        asked: Option<u64>,
    },
    /// For the first time, or for another reason than before.
    Failing {
        name: String,
        reason: String,
    },
    /// The call that created it is refused; the volume is no more.
    NotCreated {
        reason: String,
        asked: u64,
    },
    Grown {
        name: String,
        size: u64,
        result: Result<(), String>,
        asked: Option<u64>,
    },
    /// Its fence may be given up, if still no queue uses it.
    Settled(Arc<Volume>),
}

/// Why a volume did not grow, with sizes as people write them.
fn not_grown(error: VolumeError) -> String {
    match error {
        VolumeError::Shrink { volume, size, asked } => {
            let (size, asked) = (Bytes(size), Bytes(asked));
            format!(
                "volume '{volume}' has {size} and cannot shrink to {asked}: its guest may use what would be cut off"
            )
        }
        error => error.to_string(),
    }
}

impl Slot {
    fn readiness(&self) -> Readiness<'_> {
        match (&self.stage, &self.error) {
            (Stage::Open(volume), _) => Readiness::Open(volume),
            (_, Some(reason)) => Readiness::Failing(reason),
            (_, None) => Readiness::Opening,
        }
    }

    /// Remembers why it is not open. What there is to tell: nothing, where it is no news.
    fn fails(&mut self, reason: String) -> Option<News> {
        if self.error.as_ref() == Some(&reason) {
            return None;
        }
        let name = self.config.name.clone();
        tracing::error!(volume = name, reason, "the volume cannot be opened; it is tried again");
        self.error = Some(reason.clone());
        Some(News::Failing { name, reason })
    }
}

impl Volumes {
    pub(super) fn new(broker: Arc<dyn Broker>) -> Result<Self, Errno> {
        Ok(Volumes { slots: BTreeMap::new(), opener: Opener::new()?, broker, serial: 0 })
    }

    /// Takes one on, to be opened at the next [`turn`](Self::turn); `asked` is the management call that waits for it.
    pub(super) fn add(&mut self, config: config::Volume, asked: Option<u64>, now: Instant) {
        self.serial += 1;
        let slot = Slot {
            serial: self.serial,
            broker: Attempts::new(Arc::clone(&self.broker)),
            stage: Stage::Queued(now),
            pause: FIRST_PAUSE,
            error: None,
            asked: asked.map(|call| (call, now + OPEN_PATIENCE)),
            by_removed: RequestCounts::default(),
            yielding: Yielding::No,
            config,
        };
        self.slots.insert(slot.config.name.clone(), slot);
    }

    /// Where the volume of that name is; none where there is no such volume.
    pub(super) fn readiness(&self, name: &str) -> Option<Readiness<'_>> {
        self.slots.get(name).map(Slot::readiness)
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&config::Volume, Readiness<'_>)> {
        self.slots.values().map(|slot| (&slot.config, slot.readiness()))
    }

    /// Keeps what a device did with a volume that is now removed.
    pub(super) fn keep(&mut self, name: &str, requests: &RequestCounts) {
        if let Some(slot) = self.slots.get_mut(name) {
            slot.by_removed.add(requests);
        }
    }

    /// What devices did with a volume that were removed since.
    pub(super) fn by_removed(&self, name: &str) -> RequestCounts {
        self.slots.get(name).map_or_else(RequestCounts::default, |slot| slot.by_removed)
    }

    /// Whether none is being opened for the first time.
    pub(super) fn are_settled(&self) -> bool {
        self.slots.values().all(|slot| !matches!(slot.readiness(), Readiness::Opening))
    }

    /// Takes one away, and has everything forgotten that is kept of it; what it was, if it was open.
    pub(super) fn remove(&mut self, name: &str) -> Option<Arc<Volume>> {
        let slot = self.slots.remove(name);
        if let Some(slot) = &slot {
            slot.broker.end();
        }
        Volume::forget_kept(name, &*self.broker);
        match slot?.stage {
            Stage::Open(volume) => Some(volume),
            Stage::Queued(_) | Stage::Opening(_) => None,
        }
    }

    /// Begins to make an open volume larger, for the management call `asked`.
    ///
    /// # Errors
    /// Why it cannot even begin.
    pub(super) fn grow(&mut self, name: &str, size: u64, asked: u64, now: Instant) -> Result<(), String> {
        let slot = self.slots.get_mut(name).ok_or_else(|| format!("there is no volume '{name}'"))?;
        let volume = match slot.readiness() {
            Readiness::Open(volume) => Arc::clone(volume),
            Readiness::Opening => return Err(format!("volume '{name}' is being opened: try again in a moment")),
            Readiness::Failing(reason) => return Err(reason.to_owned()),
        };
        let serial = slot.serial;
        let task = move || {
            let result = volume.grow(size).map_err(not_grown);
            Outcome { volume: volume.name().to_owned(), serial, done: Done::Grown { size, result } }
        };
        if !self.opener.start(task) {
            return Err("no thread can be started for it".to_owned());
        }
        slot.asked = Some((asked, now + OPEN_PATIENCE));
        Ok(())
    }

    /// Begins to give up the fence of each active volume that is not among those `in_use`, where another host may want
    /// it: [`News::Settled`] follows.
    pub(super) fn yield_unused(&mut self, in_use: &HashSet<&str>, now: Instant) {
        for slot in self.slots.values_mut() {
            let pause = match slot.yielding {
                Yielding::No => FIRST_PAUSE,
                Yielding::Kept(at, pause) if at <= now => (pause * 2).min(LONGEST_PAUSE),
                Yielding::Kept(..) | Yielding::Settling(_) => continue,
            };
            slot.yielding = Yielding::No;
            let Stage::Open(volume) = &slot.stage else { continue };
            if in_use.contains(volume.name()) || !volume.is_elsewhere() {
                continue;
            }
            if !volume.is_active() {
                volume.unwanted();
                continue;
            }
            let (volume, serial) = (Arc::clone(volume), slot.serial);
            let task = move || {
                let result = volume.settle().map_err(|error| error.to_string());
                Outcome { volume: volume.name().to_owned(), serial, done: Done::Settled(result) }
            };
            let is_begun = self.opener.start(task);
            slot.yielding = if is_begun { Yielding::Settling(pause) } else { Yielding::Kept(now + pause, pause) };
        }
    }

    /// Whether a fence that was kept is to be tried again.
    pub(super) fn is_yield_due(&self, now: Instant) -> bool {
        self.slots.values().any(|slot| matches!(slot.yielding, Yielding::Kept(at, _) if at <= now))
    }

    /// What became of a fence that might be given up: it is `kept` and tried again later, or it is given up or in use.
    pub(super) fn yielded(&mut self, name: &str, kept: bool, now: Instant) {
        let Some(slot) = self.slots.get_mut(name) else { return };
        slot.yielding = match slot.yielding {
            Yielding::Settling(pause) if kept => Yielding::Kept(now + pause, pause),
            _ => Yielding::No,
        };
    }

    /// Readable when there is something for [`turn`](Self::turn).
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.opener.bell()
    }

    /// When [`turn`](Self::turn) has something to do without the bell.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let room_at = self.begun().get(MOST_AT_ONCE - 1).map(|since| *since + SLOW);
        let deadlines = self.slots.values().flat_map(|slot| {
            let stage = match slot.stage {
                Stage::Queued(at) => Some(room_at.map_or(at, |room_at| at.max(room_at))),
                Stage::Opening(since) => slot.error.is_none().then_some(since + OPEN_PATIENCE),
                Stage::Open(_) => None,
            };
            let kept = match slot.yielding {
                Yielding::Kept(at, _) => Some(at),
                Yielding::No | Yielding::Settling(_) => None,
            };
            stage.into_iter().chain(kept).chain(slot.asked.map(|(_, until)| until))
        });
        deadlines.min()
    }

    /// Collects what has ended, judges what takes long, begins what is due.
    pub(super) fn turn(&mut self, now: Instant) -> Vec<News> {
        self.opener.silence();
        let mut news = Vec::new();
        while let Some(outcome) = self.opener.outcome() {
            self.ended(outcome, now, &mut news);
        }
        self.judge(now, &mut news);
        self.begin(now, &mut news);
        news
    }

    fn ended(&mut self, outcome: Outcome, now: Instant, news: &mut Vec<News>) {
        let Outcome { volume: name, serial, done } = outcome;
        // One that was deleted meanwhile has left nothing behind since: see `Attempts`.
        let Some(slot) = self.slots.get_mut(&name).filter(|slot| slot.serial == serial) else { return };
        match done {
            Done::Opened(Ok(volume)) => {
                if slot.error.take().is_some() {
                    tracing::info!(volume = name, "the volume is open");
                }
                slot.stage = Stage::Open(Arc::clone(&volume));
                news.push(News::Opened { volume, asked: slot.asked.take().map(|(call, _)| call) });
            }
            Done::Opened(Err(reason)) => self.failed(&name, reason, now, news),
            Done::Grown { size, result } => {
                let asked = slot.asked.take().map(|(call, _)| call);
                news.push(News::Grown { name, size, result, asked });
            }
            Done::Settled(Ok(())) => {
                if let Stage::Open(volume) = &slot.stage {
                    news.push(News::Settled(Arc::clone(volume)));
                }
            }
            Done::Settled(Err(reason)) => {
                tracing::error!(volume = name, reason, "the volume is not given up to another host yet");
                self.yielded(&name, true, now);
            }
        }
    }

    fn failed(&mut self, name: &str, reason: String, now: Instant, news: &mut Vec<News>) {
        let Some(slot) = self.slots.get_mut(name) else { return };
        if let Some((asked, _)) = slot.asked {
            self.remove(name);
            return news.push(News::NotCreated { reason, asked });
        }
        slot.stage = Stage::Queued(now + slot.pause);
        slot.pause = (slot.pause * 2).min(LONGEST_PAUSE);
        news.extend(slot.fails(reason));
    }

    /// Answers calls and devices that have waited long enough for what does not end.
    fn judge(&mut self, now: Instant, news: &mut Vec<News>) {
        let mut refused = Vec::new();
        for slot in self.slots.values_mut() {
            let late = slot.asked.take_if(|(_, until)| *until <= now).map(|(call, _)| call);
            let name = slot.config.name.clone();
            let text = |what: &str| format!("volume '{name}' {what} for {} s", OPEN_PATIENCE.as_secs());
            let (opening, growing) = (text("has been opening"), text("has been growing") + ": it may yet be done");
            match (&slot.stage, late) {
                (Stage::Open(volume), Some(asked)) => {
                    let size = volume.size();
                    news.push(News::Grown { name, size, result: Err(growing), asked: Some(asked) });
                }
                (Stage::Queued(_) | Stage::Opening(_), Some(asked)) => {
                    refused.push(name.clone());
                    news.push(News::NotCreated { reason: opening, asked });
                }
                (Stage::Opening(since), None) if slot.error.is_none() && *since + OPEN_PATIENCE <= now => {
                    news.extend(slot.fails(opening));
                }
                _ => {}
            }
        }
        for name in refused {
            self.remove(&name);
        }
    }

    /// When each attempt that is under way was begun, the youngest first.
    fn begun(&self) -> Vec<Instant> {
        let begun = self.slots.values().filter_map(|slot| match slot.stage {
            Stage::Opening(since) => Some(since),
            Stage::Queued(_) | Stage::Open(_) => None,
        });
        let mut begun: Vec<_> = begun.collect();
        begun.sort_unstable_by(|a, b| b.cmp(a));
        begun
    }

    fn begin(&mut self, now: Instant, news: &mut Vec<News>) {
        let is_due = |slot: &&Slot| matches!(slot.stage, Stage::Queued(at) if at <= now);
        let due: Vec<_> = self.slots.values().filter(is_due).map(|slot| slot.config.name.clone()).collect();
        if due.is_empty() {
            return;
        }
        let fresh = self.begun().into_iter().filter(|since| *since + SLOW > now).count();
        let mut room = MOST_AT_ONCE.saturating_sub(fresh);
        for name in due {
            let Some(slot) = self.slots.get_mut(&name) else { continue };
            let (spec, serial) = (spec(&slot.config), slot.serial);
            let broker = Arc::clone(&slot.broker) as Arc<dyn Broker>;
            // A key file is opened by the supervisor, and this very thread passes its answer on.
            let is_immediate =
                spec.encryption.is_none() && matches!(spec.kind, VolumeKind::Null { .. } | VolumeKind::Memory { .. });
            let task = move || {
                let volume = spec.name.clone();
                let opened = Volume::open(spec, &broker).map_err(|error| error.to_string());
                Outcome { volume, serial, done: Done::Opened(opened) }
            };
            if is_immediate {
                self.ended(task(), now, news);
            } else if room > 0 {
                room -= 1;
                slot.stage = Stage::Opening(now);
                if !self.opener.start(task) {
                    self.failed(&name, "no thread can be started to open it".to_owned(), now, news);
                }
            }
        }
    }
}

/// The storage crate's words for a configured volume.
fn spec(volume: &config::Volume) -> VolumeSpec {
    let kind = match &volume.backend {
        Backend::Null { size } => VolumeKind::Null { size: size.0 },
        Backend::Memory { size } => VolumeKind::Memory { size: size.0 },
        Backend::File(file) => VolumeKind::File {
            path: file.path.clone(),
            size: file.size.map(|size| size.0),
            create: file.create,
            direct: file.direct,
            discard: file.discard == Discard::Unmap,
        },
        Backend::Device(device) => VolumeKind::Device { path: device.path.clone(), direct: device.direct },
        Backend::Nbd(nbd) => VolumeKind::Nbd {
            uri: nbd.uri.clone(),
            answer: nbd.timeout.0,
            timeout: match nbd.reconnect {
                Reconnect::Forever => FOR_EVER,
                Reconnect::For(span) => span.0,
                Reconnect::Never => nbd.timeout.0,
            },
            reconnect: RECONNECT_PAUSE,
        },
    };
    let encryption = volume.encryption.as_ref().map(|encryption| Encryption {
        key: match (&encryption.key_file, &encryption.keyring) {
            (Some(path), _) => KeySource::File(path.clone()),
            (None, name) => KeySource::Keyring(name.clone().unwrap_or_default()),
        },
        sector_size: encryption.sector_size,
        discard: encryption.discard == EncryptedDiscard::Pass,
    });
    VolumeSpec {
        encryption,
        name: volume.name.clone(),
        kind,
        read_only: volume.read_only,
        block_size: volume.block_size,
        write_through: volume.cache == Cache::WriteThrough,
        shared: volume.shared,
        depth: volume.depth,
    }
}
