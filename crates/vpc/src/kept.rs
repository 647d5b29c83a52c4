//! What of the node outlives the process: connections, and translations of shared addresses. Both are written to memory
//! that the data planes to come read ([`softdpu_kept`]), as they change.
//!
//! ```text
//!   a packet of a connection that is not there ─► is it with a predecessor? ─ no ─► as any first packet
//!                                                   └ yes: checked, and taken up as if it had been here
//!   now and then, a slice at a time ─► what no packet asked for
//! ```
//!
//! So nothing has to be copied before the first packet, and the predecessors' memory is given back when all that is in
//! it was looked at. Times in it are of a clock that all processes share; this one's is behind by `epoch`.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub use softdpu_kept::{NotMade, NotRead};
use softdpu_kept::{Place, Predecessor, Record, Table};

/// Words of a connection that stay the same, and that change.
pub(crate) const CONNECTION: (usize, usize) = (6, 8);
/// Those of a translation.
pub(crate) const TRANSLATION: (usize, usize) = (4, 0);

/// What records are, with their version: other words for the same need another number.
const CONNECTIONS: u64 = u64::from_le_bytes(*b"conn\x01\0\0\0");
const TRANSLATIONS: u64 = u64::from_le_bytes(*b"nat\x01\0\0\0\0");

/// What was taken over from predecessors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Records that were taken up.
    pub taken: u64,
    /// Records that were not, as there was no room for them, or nothing that they are of.
    pub left: u64,
}

/// Keeps what outlives the process.
#[derive(Debug)]
pub struct Keeper {
    /// What the clock of all processes is ahead of this one's, nanoseconds.
    pub(crate) epoch: u64,
    pub(crate) connections: Estate<{ CONNECTION.0 }, { CONNECTION.1 }>,
    pub(crate) translations: Estate<{ TRANSLATION.0 }, { TRANSLATION.1 }>,
    /// The process ends.
    is_closed: AtomicBool,
}

/// Files of memory, for the processes to come.
#[derive(Debug)]
pub struct KeptFiles {
    /// Connections.
    pub connections: OwnedFd,
    /// Translations.
    pub translations: OwnedFd,
}

/// Records of one kind: this process's own, and what is left of those before.
pub(crate) struct Estate<const F: usize, const T: usize> {
    own: Table<F, T>,
    /// The youngest first. What is in it has not been looked at to the end.
    before: RwLock<Vec<Arc<Predecessor<F, T>>>>,
    /// There are some.
    inherits: AtomicBool,
    /// The next record of the youngest to be looked at.
    next: Mutex<usize>,
    taken: AtomicU64,
    left: AtomicU64,
}

impl<const F: usize, const T: usize> fmt::Debug for Estate<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Estate").field("inherits", &self.inherits).finish_non_exhaustive()
    }
}

impl<const F: usize, const T: usize> Estate<F, T> {
    fn new(name: &str, kind: u64, records: usize) -> Result<(OwnedFd, Estate<F, T>), NotMade> {
        let (file, own) = Table::new(name, kind, records)?;
        let (before, inherits, next) = (RwLock::default(), AtomicBool::new(false), Mutex::default());
        Ok((file, Estate { own, before, inherits, next, taken: AtomicU64::new(0), left: AtomicU64::new(0) }))
    }

    fn inherit(&self, file: BorrowedFd<'_>, kind: u64) -> Result<(), NotRead> {
        let predecessor = Arc::new(Predecessor::open(file, kind)?);
        self.before.write().unwrap_or_else(PoisonError::into_inner).push(predecessor);
        self.inherits.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether predecessors may have what is not here.
    #[inline]
    pub fn inherits(&self) -> bool {
        self.inherits.load(Ordering::Acquire)
    }

    fn before(&self) -> Vec<Arc<Predecessor<F, T>>> {
        self.before.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What predecessors have in the chain of a hash, which is keyed by their seed: `most` records of each.
    pub fn left_with(&self, hash: impl Fn([u64; 2]) -> u64, most: usize, mut found: impl FnMut(Record<F, T>) -> bool) {
        for predecessor in self.before() {
            for record in predecessor.chain(hash(predecessor.seed()), most) {
                if found(record) {
                    return;
                }
            }
        }
    }

    /// Looks at so many more records of predecessors; whether all are done.
    pub fn next_left(&self, budget: usize, mut found: impl FnMut(Record<F, T>)) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.before();
        let Some(predecessor) = before.first() else { return true };
        for _ in 0..budget {
            let Some(number) = predecessor.next(*next) else {
                *next = 0;
                self.before.write().unwrap_or_else(PoisonError::into_inner).remove(0);
                self.inherits.store(before.len() > 1, Ordering::Release);
                return before.len() <= 1;
            };
            *next = number + 1;
            predecessor.record(number).map(&mut found);
        }
        false
    }

    /// Of a record of a predecessor, whether it was taken up.
    pub fn count(&self, is_taken: bool) {
        let count = if is_taken { &self.taken } else { &self.left };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn counted(&self) -> Kept {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Kept { taken: read(&self.taken), left: read(&self.left) }
    }

    pub fn seed(&self) -> [u64; 2] {
        self.own.seed()
    }

    pub fn insert(&self, hash: u64, fixed: &[u64; F], tail: &[u64; T]) -> Option<Place> {
        self.own.insert(hash, fixed, tail)
    }

    pub fn update(&self, place: Place, tail: &[u64; T]) {
        self.own.update(place, tail);
    }

    pub fn remove(&self, place: Place) {
        self.own.remove(place);
    }
}

impl Keeper {
    /// Keeps so many connections, and translations of theirs. A clock that all processes share is ahead of this one's
    /// by `epoch`, nanoseconds.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(connections: u32, epoch: u64) -> Result<(Keeper, KeptFiles), NotMade> {
        let (of_connections, connections_kept) = Estate::new("softdpu-connections", CONNECTIONS, connections as usize)?;
        let (of_translations, translations) = Estate::new("softdpu-translations", TRANSLATIONS, connections as usize)?;
        let files = KeptFiles { connections: of_connections, translations: of_translations };
        Ok((Keeper { epoch, connections: connections_kept, translations, is_closed: AtomicBool::new(false) }, files))
    }

    /// Goes on with the connections of a process before this one: the youngest is given first.
    ///
    /// # Errors
    /// [`NotRead`]; then as if that process had had none.
    pub fn inherit_connections(&self, file: BorrowedFd<'_>) -> Result<(), NotRead> {
        self.connections.inherit(file, CONNECTIONS)
    }

    /// Goes on with the translations of a process before this one: the youngest is given first.
    ///
    /// # Errors
    /// [`NotRead`]; then as if that process had had none.
    pub fn inherit_translations(&self, file: BorrowedFd<'_>) -> Result<(), NotRead> {
        self.translations.inherit(file, TRANSLATIONS)
    }

    /// The process ends: what is dropped from now on stays, for the next.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// How many connections, and translations, were taken over so far.
    pub fn taken(&self) -> [Kept; 2] {
        [self.connections.counted(), self.translations.counted()]
    }
}

/// A [`Keeper`], if there is one, as a part of a spec: the same is equal.
#[derive(Clone, Debug, Default)]
pub struct Keeping(pub Option<Arc<Keeper>>);

impl PartialEq for Keeping {
    fn eq(&self, other: &Keeping) -> bool {
        self.0.as_ref().map(Arc::as_ptr) == other.0.as_ref().map(Arc::as_ptr)
    }
}

impl Eq for Keeping {}
