//! What outlives this process of connections and translations: its own memory for them with the supervisor, and what
//! the data planes before it have left.
//!
//! ```text
//!  vault   connections/1 translations/1    of a process that is gone: read, then forgotten
//!          connections/2 translations/2    this one's
//! ```
//!
//! Packets find what is left where they need it. The rest is taken over in slices, so that the memory is given back.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use softdpu_api::status::TakenOverStatus;
use softdpu_link::{SharedFd, monotonic_ns};
use softdpu_storage::Broker;
use softdpu_sys::clock;
use softdpu_vpc::Tables;
use softdpu_vpc::kept::{Keeper, Keeping, KeptFiles, NotRead};

use super::super::broker::Wire;

const CONNECTIONS: &str = "connections/";
const TRANSLATIONS: &str = "translations/";
/// Processes before this one that are asked: more have died before they had taken over from those before them.
const PREDECESSORS: usize = 4;
/// When the first slice is taken: the switch is over by then.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two slices.
const BETWEEN: Duration = Duration::from_millis(1);
/// Records of a slice: some 0.3 ms.
const SLICE: usize = 1024;

/// This process's place in a row of them.
pub(super) struct Legacy {
    wire: Arc<Wire>,
    keeper: Option<Arc<Keeper>>,
    /// The vault's key of what is this process's own ends so.
    number: u64,
    /// The next slice, and the keys of what is then done.
    left: Option<(Instant, Vec<String>)>,
    /// There were data planes before this one.
    follows: bool,
    /// Files of theirs that could not be read.
    unread: u64,
}

/// The number that a key of the vault ends with, if it is of this kind.
fn number(key: &str, kind: &str) -> Option<u64> {
    key.strip_prefix(kind)?.parse().ok()
}

impl Legacy {
    /// Has so many connections kept from now on.
    pub fn new(wire: Arc<Wire>, connections: u32) -> Legacy {
        let known = [CONNECTIONS, TRANSLATIONS].into_iter().flat_map(|kind| numbers(&wire, kind)).max();
        let number = known.unwrap_or(0).saturating_add(1);
        let keeper = keep(&wire, number, connections).inspect_err(|error| {
            tracing::error!(error, "connections do not outlive this process");
        });
        Legacy { wire, keeper: keeper.ok(), number, left: None, follows: false, unread: 0 }
    }

    /// What tables are built with.
    pub fn keeping(&self) -> Keeping {
        Keeping(self.keeper.clone())
    }

    /// This process serves: what those before it have left is its own.
    pub fn inherit(&mut self, now: Instant) {
        let mut keys = Vec::new();
        let Some(keeper) = self.keeper.clone() else { return };
        self.inherit_kind(CONNECTIONS, &mut keys, |fd| keeper.inherit_connections(fd.as_fd()));
        self.inherit_kind(TRANSLATIONS, &mut keys, |fd| keeper.inherit_translations(fd.as_fd()));
        self.follows = !keys.is_empty();
        self.left = (!keys.is_empty()).then(|| (now + PAUSE, keys));
    }

    fn inherit_kind(&mut self, kind: &str, keys: &mut Vec<String>, inherit: impl Fn(&SharedFd) -> Result<(), NotRead>) {
        let mut before = numbers(&self.wire, kind);
        before.retain(|number| *number != self.number);
        before.sort_unstable_by(|one, other| other.cmp(one));
        for (place, number) in before.into_iter().enumerate() {
            let key = format!("{kind}{number}");
            if place >= PREDECESSORS {
                self.forget(&key);
                continue;
            }
            if let Some(fd) = self.wire.kept_fd(&key)
                && let Err(error) = inherit(&fd)
            {
                tracing::error!(%error, key, "what a data plane before this one has left is not read");
                self.unread += 1;
            }
            keys.push(key);
        }
    }

    fn forget(&self, key: &str) {
        if let Err(error) = self.wire.forget(key) {
            tracing::error!(%error, key, "what a data plane before this one has left is still kept");
        }
    }

    /// When [`turn`](Self::turn) has something to do.
    pub fn due(&self) -> Option<Instant> {
        self.left.as_ref().map(|(at, _)| *at)
    }

    /// Takes over some of what is left.
    pub fn turn(&mut self, tables: Option<&Tables>, now: Instant) {
        let Some((at, _)) = self.left.as_mut().filter(|(at, _)| *at <= now) else { return };
        let Some(tables) = tables else {
            *at = now + PAUSE;
            return;
        };
        if !tables.take_over(clock::now(), SLICE) {
            *at = Instant::now() + BETWEEN;
            return;
        }
        for key in self.left.take().into_iter().flat_map(|(_, keys)| keys) {
            self.forget(&key);
        }
        if let Some([connections, translations]) = self.keeper.as_ref().map(|keeper| keeper.taken()) {
            tracing::info!(
                connections = connections.taken,
                translations = translations.taken,
                left = connections.left + translations.left,
                "what data planes before this one have left is taken over"
            );
        }
    }

    /// This process ends: what there is stays for the next.
    pub fn close(&mut self) {
        self.left = None;
        if let Some(keeper) = &self.keeper {
            keeper.close();
        }
    }

    /// What was taken over; None where no data plane was before this one.
    pub fn status(&self) -> Option<TakenOverStatus> {
        let keeper = self.keeper.as_ref().filter(|_| self.follows)?;
        let [connections, translations] = keeper.taken();
        Some(TakenOverStatus {
            connections: connections.taken,
            translations: translations.taken,
            left: connections.left + translations.left,
            unread: self.unread,
            done: self.left.is_none(),
        })
    }
}

/// The numbers of what is kept of a kind.
fn numbers(wire: &Wire, kind: &str) -> Vec<u64> {
    wire.kept_keys().iter().filter_map(|key| number(key, kind)).collect()
}

fn keep(wire: &Wire, number: u64, connections: u32) -> Result<Arc<Keeper>, String> {
    let epoch = monotonic_ns().saturating_sub(clock::now());
    let (keeper, KeptFiles { connections, translations }) =
        Keeper::new(connections, epoch).map_err(|error| error.to_string())?;
    let keep = |kind: &str, file: OwnedFd| {
        wire.keep_fd(&format!("{kind}{number}"), Arc::new(file.into())).map_err(|error| error.to_string())
    };
    keep(CONNECTIONS, connections)?;
    keep(TRANSLATIONS, translations)?;
    Ok(Arc::new(keeper))
}
