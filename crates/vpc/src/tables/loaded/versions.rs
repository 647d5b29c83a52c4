//! Versions of loaded guests, by buckets of a hash: a flow to or from one has the stamp of the guest's bucket.
//!
//! ```text
//!   (network, address) ─ hash ─► bucket ─► generation: the last load that changed its guests       of the load
//!                                   └────► version: number of the build that met that change       of the tables
//! ```
//!
//! So a file with one line more or less makes stale the flows of one bucket, those of some four guests of millions, and
//! of no other network but by chance. The spec wins over loaded entries: a bucket gets another version, too, when an
//! endpoint of the spec takes or gives back the address of one of its guests.
//!
//! Stamps have the numbers of hashes, not of buckets, so that they stay when a load has more buckets.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use super::Loaded;
use crate::exact::ExactKey;
use crate::hash::folded_multiply;
use crate::stamp::{GUESTS_BITS, Stamp, StampSubject};

/// Guests for each bucket.
const PER_BUCKET: usize = 4;
/// Buckets of a small load, as a power of two.
const FEWEST: u32 = 14;

/// Secret seeds, the same for all loads of the process.
fn seeds() -> &'static [RandomState; 2] {
    static SEEDS: OnceLock<[RandomState; 2]> = OnceLock::new();
    SEEDS.get_or_init(|| [RandomState::new(), RandomState::new()])
}

/// 128 bits of a keyed hash.
pub(super) fn digest(of: &impl std::hash::Hash) -> u128 {
    let [high, low] = seeds();
    u128::from(high.hash_one(of)) << 64 | u128::from(low.hash_one(of))
}

/// The seed of the hash of a network's guests.
pub(super) fn seed(network: &str) -> u64 {
    seeds()[0].hash_one(network)
}

/// The hash of an address of the network with this seed.
#[inline]
pub(super) fn hash(seed: u64, key: &ExactKey) -> u32 {
    (folded_multiply(key.mixed(seed), seed | 1) >> (64 - GUESTS_BITS)) as u32
}

/// By bucket: the last load that changed its guests.
#[derive(Clone, Debug)]
pub(super) struct GuestGenerations {
    /// Bits of a hash that do not tell buckets apart.
    shift: u32,
    generations: Box<[u32]>,
    /// The last load or change that changed any.
    last: u32,
}

impl GuestGenerations {
    /// Those of the load `before`, for so many guests; all of the load `load`, if there was none before.
    pub fn after(before: Option<&GuestGenerations>, guests: usize, load: u32) -> GuestGenerations {
        let bits = (guests / PER_BUCKET).next_power_of_two().trailing_zeros().clamp(FEWEST, GUESTS_BITS);
        match before {
            // Buckets never get coarser, so that those that do not change keep their versions.
            Some(before) => {
                let shift = before.shift.min(GUESTS_BITS - bits);
                let buckets = 0..1_usize << (GUESTS_BITS - shift);
                let generations = buckets.map(|bucket| before.generations[bucket >> (before.shift - shift)]);
                GuestGenerations { shift, generations: generations.collect(), last: before.last }
            }
            None => {
                let generations = vec![load; 1 << bits].into();
                GuestGenerations { shift: GUESTS_BITS - bits, generations, last: load }
            }
        }
    }

    /// The load `load` changes the guests with this hash.
    pub fn set(&mut self, hash: u32, load: u32) {
        self.generations[(hash >> self.shift) as usize] = load;
        self.last = load;
    }

    /// Whether none differs. Loads and changes are numbered, so that one number is that of one content.
    fn are_those_of(&self, other: &GuestGenerations) -> bool {
        (self.shift, self.last) == (other.shift, other.last)
    }
}

/// Addresses of loaded guests that endpoints of the spec have, with their hashes and their networks' seeds.
pub(in crate::tables) type Overruled = BTreeSet<(u32, u64, IpAddr)>;

/// The versions of loaded guests in tables.
#[derive(Debug)]
pub(in crate::tables) struct GuestVersions {
    loaded: Arc<Loaded>,
    /// By network: a digest of the subnets that its guests are in.
    subnets: BTreeMap<Box<str>, u128>,
    overruled: Overruled,
    versions: Arc<[u64]>,
}

impl GuestVersions {
    /// Of tables that follow those with the versions `previous`: `build` for each bucket that differs.
    pub fn after(
        previous: Option<&GuestVersions>,
        loaded: &Arc<Loaded>,
        subnets: BTreeMap<Box<str>, u128>,
        overruled: Overruled,
        build: u64,
    ) -> GuestVersions {
        let now = &loaded.guest_generations;
        let is_comparable = |before: &&GuestVersions| {
            let differs =
                before.subnets.iter().any(|(name, digest)| subnets.get(name).is_some_and(|now| now != digest));
            before.loaded.guest_generations.shift >= now.shift && !differs
        };
        let versions = match previous.filter(is_comparable) {
            None => vec![build; now.generations.len()].into(),
            Some(before) => {
                let differing: Vec<u32> =
                    before.overruled.symmetric_difference(&overruled).map(|(hash, ..)| hash >> now.shift).collect();
                if before.loaded.guest_generations.are_those_of(now) && differing.is_empty() {
                    Arc::clone(&before.versions)
                } else {
                    let known = &before.loaded.guest_generations;
                    let version = |(bucket, generation): (usize, &u32)| {
                        let was = bucket >> (known.shift - now.shift);
                        if known.generations[was] == *generation { before.versions[was] } else { build }
                    };
                    let mut versions: Arc<[u64]> = now.generations.iter().enumerate().map(version).collect();
                    if let Some(versions) = Arc::get_mut(&mut versions) {
                        differing.into_iter().for_each(|bucket| versions[bucket as usize] = build);
                    }
                    versions
                }
            }
        };
        GuestVersions { loaded: Arc::clone(loaded), subnets, overruled, versions }
    }

    /// The stamp of the guests with this hash.
    #[inline]
    pub fn stamp(&self, hash: u32) -> Stamp {
        let version = self.versions.get((hash >> self.loaded.guest_generations.shift) as usize).copied();
        Stamp::new(version.unwrap_or_default(), StampSubject::Guests(hash))
    }
}
