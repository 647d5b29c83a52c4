//! What a state is made of that JSON has no word for: descriptors, moments, bytes.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use softdpu_link::{SharedFd, monotonic_ns};
use thiserror::Error;

/// A descriptor, by its place in the table that goes with the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct FdIndex(usize);

/// The descriptors that the next program is to have, each once.
#[derive(Default)]
pub(crate) struct Leaving<'a> {
    fds: Vec<Leaver<'a>>,
    places: HashMap<RawFd, FdIndex>,
}

enum Leaver<'a> {
    Borrowed(BorrowedFd<'a>),
    Own(OwnedFd),
}

impl AsFd for Leaver<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Leaver::Borrowed(fd) => fd.as_fd(),
            Leaver::Own(fd) => fd.as_fd(),
        }
    }
}

impl<'a> Leaving<'a> {
    /// Its place; the same for one that is there already.
    pub(crate) fn add(&mut self, fd: BorrowedFd<'a>) -> FdIndex {
        self.place(fd.as_raw_fd(), Leaver::Borrowed(fd))
    }

    /// The place of one that only the next program has a use for.
    pub(crate) fn give(&mut self, fd: OwnedFd) -> FdIndex {
        self.place(fd.as_raw_fd(), Leaver::Own(fd))
    }

    fn place(&mut self, number: RawFd, leaver: Leaver<'a>) -> FdIndex {
        *self.places.entry(number).or_insert_with(|| {
            self.fds.push(leaver);
            FdIndex(self.fds.len() - 1)
        })
    }

    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd).collect()
    }
}

/// A state speaks of a descriptor that it has not, or gives one away twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("descriptor {0} of its table is missing or given twice")]
pub(crate) struct NoFd(usize);

enum Slot {
    Free(OwnedFd),
    Shared(SharedFd),
    Given,
}

/// The descriptors that the program before has left.
pub(crate) struct Left {
    slots: Vec<Slot>,
    /// They stand for those that another process has.
    are_stand_ins: bool,
}

impl Left {
    pub(crate) fn new(fds: Vec<OwnedFd>) -> Left {
        Left { slots: fds.into_iter().map(Slot::Free).collect(), are_stand_ins: false }
    }

    /// Others in their place, for a trial.
    pub(crate) fn stand_ins(fds: Vec<OwnedFd>) -> Left {
        Left { are_stand_ins: true, ..Left::new(fds) }
    }

    pub(crate) fn are_stand_ins(&self) -> bool {
        self.are_stand_ins
    }

    /// Gives one away.
    pub(crate) fn own(&mut self, FdIndex(at): FdIndex) -> Result<OwnedFd, NoFd> {
        let slot = self.slots.get_mut(at).ok_or(NoFd(at))?;
        match std::mem::replace(slot, Slot::Given) {
            Slot::Free(fd) => Ok(fd),
            shared => {
                *slot = shared;
                Err(NoFd(at))
            }
        }
    }

    /// One that others may have, too.
    pub(crate) fn share(&mut self, FdIndex(at): FdIndex) -> Result<SharedFd, NoFd> {
        let slot = self.slots.get_mut(at).ok_or(NoFd(at))?;
        let shared: SharedFd = match std::mem::replace(slot, Slot::Given) {
            Slot::Free(fd) => Arc::new(fd.into()),
            Slot::Shared(fd) => fd,
            Slot::Given => return Err(NoFd(at)),
        };
        *slot = Slot::Shared(Arc::clone(&shared));
        Ok(shared)
    }
}

/// A moment on the clock that both programs have (CLOCK_MONOTONIC), in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Moment(u64);

impl From<Instant> for Moment {
    fn from(at: Instant) -> Moment {
        let (now, now_ns) = (Instant::now(), monotonic_ns());
        let distance = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Moment(match at.checked_duration_since(now) {
            Some(ahead) => now_ns.saturating_add(distance(ahead)),
            None => now_ns.saturating_sub(distance(now.saturating_duration_since(at))),
        })
    }
}

impl From<Moment> for Instant {
    fn from(Moment(ns): Moment) -> Instant {
        let (now, now_ns) = (Instant::now(), monotonic_ns());
        let at = match ns.checked_sub(now_ns) {
            Some(ahead) => now.checked_add(Duration::from_nanos(ahead)),
            None => now.checked_sub(Duration::from_nanos(now_ns - ns)),
        };
        at.unwrap_or(now)
    }
}

/// Bytes, as hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let text: String = digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect();
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
        let pair = |pair: &[u8]| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        };
        let bytes = text.as_bytes().chunks(2).map(pair).collect::<Option<Vec<u8>>>();
        bytes.map(Bytes).ok_or_else(|| de::Error::custom("it is no sequence of pairs of hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_descriptor_is_in_the_table_once_and_is_given_away_once_or_shared() {
        let files: Vec<OwnedFd> = (0..2).map(|_| File::open("/dev/null").unwrap().into()).collect();
        let mut leaving = Leaving::default();
        let places = [&files[0], &files[1], &files[0]].map(|file| leaving.add(file.as_fd()));
        assert_eq!((places, leaving.fds().len()), ([FdIndex(0), FdIndex(1), FdIndex(0)], 2));
        let mut left = Left::new(files);
        left.own(FdIndex(0)).unwrap();
        assert_eq!(left.own(FdIndex(0)).unwrap_err(), NoFd(0));
        assert!(left.share(FdIndex(0)).is_err());
        let shared = [left.share(FdIndex(1)).unwrap(), left.share(FdIndex(1)).unwrap()];
        assert!(Arc::ptr_eq(&shared[0], &shared[1]));
        assert!(left.own(FdIndex(1)).is_err() && left.share(FdIndex(2)).is_err());
    }

    #[test]
    fn moments_and_bytes_come_back_as_they_were() {
        let now = Instant::now();
        for at in [now, now + Duration::from_secs(7), now.checked_sub(Duration::from_millis(1)).unwrap()] {
            let back = Instant::from(Moment::from(at));
            let difference = back.checked_duration_since(at).unwrap_or_else(|| at.duration_since(back));
            assert!(difference < Duration::from_secs(1), "{difference:?}");
        }
        let bytes = Bytes((0..=255).collect());
        let text = serde_json::to_string(&bytes).unwrap();
        assert!(text.starts_with("\"000102") && text.ends_with("fdfeff\""), "{text}");
        assert_eq!(serde_json::from_str::<Bytes>(&text).unwrap(), bytes);
        for wrong in ["\"0\"", "\"zz\"", "\"+1\"", "7"] {
            assert!(serde_json::from_str::<Bytes>(wrong).is_err(), "{wrong}");
        }
    }
}
