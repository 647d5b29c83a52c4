//! Writes that were given up and that the kernel is still in the middle of.
//!
//! Nothing takes them back, and nothing orders what is written after them behind them: the block layer and io_uring's
//! workers may let a newer write to the same block pass. Their requests have ended, but what touches the same bytes has
//! to wait for them: a driver that has seen its device reset must not find its new data overwritten by what it
//! wrote before. All cores of a process share one list per file; between processes the file's lock does the same.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many writes that were given up have ended, of all files.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Changes whenever something that waits for [`Landings`] may go on.
#[inline]
pub(crate) fn ended() -> u64 {
    ENDED.load(Ordering::Acquire)
}

/// The bytes of a file that may still change.
#[derive(Debug, Default)]
pub(crate) struct Landings {
    /// How many, so that the lock is not taken where there are none.
    count: AtomicUsize,
    ranges: Mutex<Vec<Range<u64>>>,
}

/// One write that may still land, for as long as the value lives.
#[derive(Debug)]
pub(crate) struct Landing {
    all: Arc<Landings>,
    range: Range<u64>,
}

impl Landings {
    /// Notes a write to these bytes.
    pub(crate) fn add(self: &Arc<Self>, range: Range<u64>) -> Landing {
        self.ranges().push(range.clone());
        self.count.fetch_add(1, Ordering::Release);
        Landing { all: Arc::clone(self), range }
    }

    /// How many there are.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether one may still change some of these bytes.
    #[inline]
    pub(crate) fn touch(&self, range: Range<u64>) -> bool {
        self.count() > 0 && self.ranges().iter().any(|other| other.start < range.end && range.start < other.end)
    }

    fn ranges(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut ranges = self.all.ranges();
        if let Some(at) = ranges.iter().position(|other| *other == self.range) {
            ranges.swap_remove(at);
        }
        self.all.count.fetch_sub(1, Ordering::Release);
        ENDED.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use softdpu_memory::{GuestAddress, Mapping, Region, UserAddress, View};

    use super::*;
    use crate::volume::Backing;
    use crate::{BlockOp, IoContext, PathBroker, Request, Volume, VolumeKind, VolumeSpec};

    #[test]
    fn what_may_still_change_is_known_by_its_bytes_until_it_has() {
        let landings = Arc::new(Landings::default());
        assert!(!landings.touch(0..u64::MAX));
        let (first, twin) = (landings.add(4096..8192), landings.add(4096..8192));
        assert!(landings.touch(8191..8192) && landings.touch(0..4097) && landings.touch(5000..5001));
        assert!(!landings.touch(0..4096) && !landings.touch(8192..9000));
        drop(first);
        assert!(landings.touch(4096..4097), "there are two");
        drop(twin);
        assert!(!landings.touch(0..u64::MAX));
    }

    #[test]
    fn requests_wait_for_what_may_still_change_their_bytes_and_no_others_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let kind = VolumeKind::File { path, size: Some(65536), create: true, direct: false, discard: true };
        let volume = Volume::open(VolumeSpec::new("v", kind), &PathBroker::new()).unwrap();
        volume.activate().unwrap();
        let Backing::File(backing) = &volume.backing else { panic!("a file") };
        let mut context = IoContext::new(8).unwrap();
        let attachment = context.attach(&volume).unwrap();
        let region = Region::new(GuestAddress(0), UserAddress(0), 4096, Mapping::heap(4096), 0);
        let view = View::new(vec![region]).unwrap();
        let request = |token, op, offset| {
            let buffer = view.buffer(GuestAddress(0), 4096).unwrap();
            let data = 0..softdpu_sys::IoMemory::iovecs(&buffer).len();
            Request {
                token,
                op,
                offset,
                len: if op == BlockOp::Flush { 0 } else { 4096 },
                buffer,
                data,
                durable: false,
            }
        };
        let landing = backing.landings.add(4096..8192);
        let held =
            [request(1, BlockOp::Write, 4096), request(2, BlockOp::Read, 4096), request(3, BlockOp::Discard, 4096)];
        let free = [request(4, BlockOp::Write, 0), request(5, BlockOp::Read, 8192), request(6, BlockOp::Flush, 0)];
        // A read of what is in the page cache is answered at once.
        let mut at_once = Vec::new();
        context.submit(attachment, &mut held.into_iter().chain(free).collect(), &mut at_once);
        assert!(volume.status().detail.contains("1 write"), "{:?}", volume.status());

        let mut tokens: Vec<u64> = at_once.iter().map(|done| done.token).collect();
        let wait_for = |context: &mut IoContext, tokens: &mut Vec<u64>, count: usize| {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
            while tokens.len() < count {
                assert!(std::time::Instant::now() < deadline, "{tokens:?} of {count}");
                let mut done = Vec::new();
                context.flush();
                context.poll(&mut done);
                context.tick(std::time::Instant::now());
                assert!(done.iter().all(|done| done.result.is_ok()));
                tokens.extend(done.iter().map(|done| done.token));
            }
            tokens.sort_unstable();
        };
        wait_for(&mut context, &mut tokens, 3);
        assert_eq!((tokens.as_slice(), context.outstanding()), ([4, 5, 6].as_slice(), 3));
        assert!(context.next_deadline().is_some(), "a core that sleeps looks again");

        // What waits can be given up like anything else, and then leaves nothing that may land.
        let mut given_up = Vec::new();
        context.abandon(&mut |token| token == 3, &mut given_up);
        assert_eq!((given_up.as_slice(), backing.landings.count()), ([3].as_slice(), 1));
        drop(landing);
        wait_for(&mut context, &mut tokens, 5);
        assert_eq!((tokens.as_slice(), context.outstanding()), ([1, 2, 4, 5, 6].as_slice(), 0));
        assert_eq!(volume.status().detail, "");
    }
}
