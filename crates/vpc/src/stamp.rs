//! What a flow was computed from, as a word: what it is, with its version (Zephyrus §4.3).
//!
//! ```text
//!   version, 40 bits │ number, 24 bits: an object's │ 2^23 + ECMP bucket │ 2^23 + 2^22 + hash of loaded guests
//! ```

use crate::id::ObjectId;

/// Stamps that a flow is compared by, at most.
pub(crate) const SOURCES: usize = 4;

const NUMBER_BITS: u32 = 24;
/// Objects' numbers are below.
const FIRST_BUCKET: u32 = 1 << 23;
/// Buckets of all ECMP groups that have stamps.
pub(crate) const MOST_BUCKETS: usize = 1 << 22;
const FIRST_GUESTS: u32 = FIRST_BUCKET + MOST_BUCKETS as u32;
/// Bits of the hash by which loaded guests have versions.
pub(crate) const GUESTS_BITS: u32 = 22;

const _: () = assert!(FIRST_GUESTS + (1 << GUESTS_BITS) == 1 << NUMBER_BITS, "all numbers are given");

/// Something that a flow was computed from, with its version. 0 is the stamp of nothing, which never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stamp(u64);

/// What a stamp is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StampSubject {
    Object(ObjectId),
    /// A bucket of an ECMP group, by its place among those of all groups.
    Bucket(usize),
    /// Loaded guests with addresses of this hash.
    Guests(u32),
}

impl Stamp {
    /// Nothing's: no version is ever this.
    pub const NEVER: Stamp = Stamp(u64::MAX);

    /// `version` is the number of the build that gave the subject its content.
    #[inline]
    pub fn new(version: u64, subject: StampSubject) -> Stamp {
        let number = match subject {
            StampSubject::Object(object) => object.number(),
            StampSubject::Bucket(at) => FIRST_BUCKET + at as u32,
            StampSubject::Guests(hash) => FIRST_GUESTS + hash,
        };
        Stamp(version << NUMBER_BITS | u64::from(number))
    }

    #[inline(always)]
    pub fn from_bits(bits: u64) -> Stamp {
        Stamp(bits)
    }

    #[inline(always)]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The number of the build that gave the subject its content.
    pub fn version(self) -> u64 {
        self.0 >> NUMBER_BITS
    }

    /// The subject's number among those of all kinds.
    #[inline(always)]
    pub fn number(self) -> u32 {
        self.0 as u32 & ((1 << NUMBER_BITS) - 1)
    }

    #[inline]
    pub fn subject(self) -> StampSubject {
        let number = self.number();
        match number {
            ..FIRST_BUCKET => StampSubject::Object(ObjectId::new(number)),
            FIRST_BUCKET..FIRST_GUESTS => StampSubject::Bucket((number - FIRST_BUCKET) as usize),
            FIRST_GUESTS.. => StampSubject::Guests(number - FIRST_GUESTS),
        }
    }

    /// The object that it is of.
    #[inline]
    pub fn object(self) -> Option<ObjectId> {
        match self.subject() {
            StampSubject::Object(object) => Some(object),
            StampSubject::Bucket(_) | StampSubject::Guests(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn version_and_subject_come_out_again(
            version in 0u64..1 << 40,
            subject in prop_oneof![
                (0u32..FIRST_BUCKET).prop_map(|number| StampSubject::Object(ObjectId::new(number))),
                (0..MOST_BUCKETS).prop_map(StampSubject::Bucket),
                (0u32..1 << GUESTS_BITS).prop_map(StampSubject::Guests),
            ],
        ) {
            let stamp = Stamp::from_bits(Stamp::new(version, subject).to_bits());
            prop_assert_eq!((stamp.version(), stamp.subject()), (version, subject));
        }
    }
}
