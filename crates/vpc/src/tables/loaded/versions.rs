//! Versions of loaded guests, by buckets of a hash: a flow to or from one has the stamp of the guest's bucket.
//!
//! ```text
//!   (network, address) ─ hash ─► bucket ─► id: the load that gave it its present guests          of the load
//!                                   └────► version: number of the build in which that changed    of the tables
//! ```
//!
//! So a file with one line more or less makes stale the flows of one bucket, some four guests' of millions, and those of no other
//! network but by chance. What the rest of a spec says wins over loaded entries: an address that is loaded and somebody else's gives its bucket
//! another version when it gets so, and when it is so no more.
//!
//! Numbers of stamps are those of hashes, not of buckets: they stay where there are more buckets from one load on.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use super::Loaded;
use crate::exact::ExactKey;
use crate::hash::folded_multiply;
use crate::stamp::Stamp;

/// The first number of a guest's stamp: above those of buckets of ECMP groups.
const BASE: u32 = super::FIRST + (1 << HASH_BITS);
/// Bits of a guest's hash.
const HASH_BITS: u32 = 22;
/// Guests for each bucket.
const PER_BUCKET: usize = 4;
/// Buckets of a small load, as a power of two.
const FEWEST: u32 = 14;

const _: () = assert!(BASE as usize + (1 << HASH_BITS) <= 1 << 24, "numbers of stamps have 24 bits");

/// Seeds that nobody knows, the same for all loads of the process.
fn seeds() -> &'static [RandomState; 2] {
    static SEEDS: OnceLock<[RandomState; 2]> = OnceLock::new();
    SEEDS.get_or_init(|| [RandomState::new(), RandomState::new()])
}

/// 128 bits of a keyed hash.
pub(super) fn digest(of: &impl std::hash::Hash) -> u128 {
    let [high, low] = seeds();
    u128::from(high.hash_one(of)) << 64 | u128::from(low.hash_one(of))
}

/// What the guests of a network are hashed with.
pub(super) fn seed(network: &str) -> u64 {
    seeds()[0].hash_one(network)
}

/// The hash of an address of the network with this seed.
#[inline]
pub(super) fn hash(seed: u64, key: &ExactKey) -> u32 {
    (folded_multiply(key.mixed(seed), seed | 1) >> (64 - HASH_BITS)) as u32
}

/// Which load gave each bucket its guests.
#[derive(Clone, Debug)]
pub(super) struct Ids {
    /// Bits of a hash that do not tell buckets apart.
    shift: u32,
    ids: Box<[u32]>,
}

impl Ids {
    /// For so many guests, as of the load `before`; of none, all are of the load `id`.
    pub fn after(before: Option<&Ids>, guests: usize, id: u32) -> Ids {
        let bits = (guests / PER_BUCKET).next_power_of_two().trailing_zeros().clamp(FEWEST, HASH_BITS);
        match before {
            // It never gets coarser: what is the same stays so.
            Some(before) => {
                let shift = before.shift.min(HASH_BITS - bits);
                let buckets = 0..1_usize << (HASH_BITS - shift);
                let ids = buckets.map(|bucket| before.ids[bucket >> (before.shift - shift)]).collect();
                Ids { shift, ids }
            }
            None => Ids { shift: HASH_BITS - bits, ids: vec![id; 1 << bits].into() },
        }
    }

    /// Its guests are others since the load `id`.
    pub fn set(&mut self, hash: u32, id: u32) {
        self.ids[(hash >> self.shift) as usize] = id;
    }
}

/// Addresses that are loaded and somebody else's: with their hashes and their networks' seeds.
pub(in crate::tables) type Overruled = BTreeSet<(u32, u64, IpAddr)>;

/// The versions of tables.
#[derive(Debug)]
pub(in crate::tables) struct Versions {
    loaded: Arc<Loaded>,
    /// By network: a digest of the subnets by which its guests are told apart.
    ground: BTreeMap<Box<str>, u128>,
    overruled: Overruled,
    versions: Arc<[u64]>,
}

impl Versions {
    /// Of tables that follow those with the versions `previous`: `build` for each bucket that differs.
    pub fn after(
        previous: Option<&Versions>,
        loaded: &Arc<Loaded>,
        ground: BTreeMap<Box<str>, u128>,
        overruled: Overruled,
        build: u64,
    ) -> Versions {
        let ids = &loaded.guest_ids;
        let is_same_ground = |before: &&Versions| {
            let differs = before.ground.iter().any(|(name, digest)| ground.get(name).is_some_and(|now| now != digest));
            before.loaded.guest_ids.shift >= ids.shift && !differs
        };
        let versions = match previous.filter(is_same_ground) {
            None => vec![build; ids.ids.len()].into(),
            Some(before) => {
                let differing: Vec<u32> =
                    before.overruled.symmetric_difference(&overruled).map(|(hash, ..)| hash >> ids.shift).collect();
                if before.loaded == *loaded && differing.is_empty() {
                    Arc::clone(&before.versions)
                } else {
                    let known = &before.loaded.guest_ids;
                    let version = |(bucket, id): (usize, &u32)| {
                        let was = bucket >> (known.shift - ids.shift);
                        if known.ids[was] == *id { before.versions[was] } else { build }
                    };
                    let mut versions: Arc<[u64]> = ids.ids.iter().enumerate().map(version).collect();
                    if let Some(versions) = Arc::get_mut(&mut versions) {
                        differing.into_iter().for_each(|bucket| versions[bucket as usize] = build);
                    }
                    versions
                }
            }
        };
        Versions { loaded: Arc::clone(loaded), ground, overruled, versions }
    }

    /// The stamp of the guest with this hash.
    #[inline]
    pub fn stamp(&self, hash: u32) -> Stamp {
        let version = self.versions.get((hash >> self.loaded.guest_ids.shift) as usize).copied();
        Stamp::new(version.unwrap_or_default(), BASE + hash)
    }

    /// A stamp with the version that its bucket has now.
    pub fn current(&self, stamp: Stamp) -> Option<Stamp> {
        Some(self.stamp(hash_of(stamp)?))
    }
}

/// The hash that a stamp is of, where it is a loaded guest's.
pub(in crate::tables) fn hash_of(stamp: Stamp) -> Option<u32> {
    (stamp.number() as u32).checked_sub(BASE)
}
