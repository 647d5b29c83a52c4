//! Which of several next hops a flow takes, each to its weight, so that a change moves few flows.
//!
//! ```text
//!   hash of the 5-tuple ─► bucket ─► member         one read
//!   change ─► each bucket: the highest bidder of those that may have it
//! ```
//!
//! Weighted rendezvous hashing (Thaler and Ravishankar, IEEE/ACM Transactions on Networking 1998), worked out in
//! advance for a fixed number of buckets: a member that leaves moves its own flows and no others; one that comes takes
//! flows, and no flow moves between two others. Members bid by their identifier alone, not by their place in the list,
//! so all nodes that have the same members choose alike.
//!
//! Members of the node's own **zone** are preferred: as long as one of them is healthy, no other gets a flow; then all
//! that are healthy do. That moves all flows, and back.

use thiserror::Error;

use crate::hash::splitmix64;

/// Buckets of a group, 2 bytes each. A member's share is as exact as there are buckets: with 16 members of one weight,
/// to some 6 %.
pub const BUCKETS: usize = 4096;
/// Most members of a group.
pub const MEMBERS: usize = 256;
/// The largest weight.
pub const WEIGHT: u16 = 1000;
/// No member.
const NONE: u16 = u16::MAX;

/// A next hop of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// What is the same about it on all nodes and for all time: made of its address, say. Each once in a group.
    pub id: u64,
    /// How many flows it gets relative to the others, 1 to [`WEIGHT`]; 0: none.
    pub weight: u16,
    /// Availability zone.
    pub zone: u32,
    /// It can be reached.
    pub is_healthy: bool,
}

/// What is wrong with a group.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum EcmpError {
    /// Too many members.
    #[error("an ECMP group has {0} members: {MEMBERS} are the most")]
    TooMany(usize),
    /// A weight out of range.
    #[error("member {member} has weight {weight}: {WEIGHT} is the most")]
    Weight {
        /// Its place.
        member: usize,
        /// Its weight.
        weight: u16,
    },
    /// Two members are the same.
    #[error("members {0} and {1} have one identifier")]
    Twice(usize, usize),
}

/// Next hops of which a flow takes one.
#[derive(Clone, Debug)]
pub struct Ecmp {
    buckets: Box<[u16]>,
    seed: u64,
}

impl Ecmp {
    /// A group of `members` for a node in zone `zone`; None: all zones are alike to it. `seed` is the same on all
    /// nodes, and another for each group: so what one group decided says nothing about what the next one will.
    ///
    /// # Errors
    /// [`EcmpError`] says what is wrong with which member.
    pub fn build(members: &[Member], zone: Option<u32>, seed: u64) -> Result<Ecmp, EcmpError> {
        check(members)?;
        Ok(Ecmp::with_buckets(members, zone, seed, BUCKETS))
    }

    fn with_buckets(members: &[Member], zone: Option<u32>, seed: u64, buckets: usize) -> Ecmp {
        let may = |member: &Member| member.is_healthy && member.weight != 0;
        let is_near = |member: &Member| zone == Some(member.zone);
        let stays = members.iter().any(|member| may(member) && is_near(member));
        let bidders: Vec<Bidder> = (0..)
            .zip(members)
            .filter(|(_, member)| may(member) && (!stays || is_near(member)))
            .map(|(at, member)| Bidder::new(at, member, seed))
            .collect();
        let mut estimates = vec![0.0; bidders.len()];
        let mut highest = |bucket: u64| {
            let mut most = f64::INFINITY;
            for (bidder, estimate) in bidders.iter().zip(&mut estimates) {
                *estimate = bidder.estimate(bucket);
                most = most.min(*estimate + bidder.error);
            }
            let close = bidders.iter().zip(&estimates).filter(|(bidder, estimate)| **estimate - bidder.error <= most);
            close
                .map(|(bidder, _)| bidder)
                .min_by_key(|bidder| (bidder.bid(bucket), bidder.id))
                .map_or(NONE, |it| it.at)
        };
        Ecmp { buckets: (0..buckets as u64).map(&mut highest).collect(), seed }
    }

    /// The bucket of a flow with this hash of its 5-tuple, below [`BUCKETS`]. It never changes.
    #[inline]
    pub fn bucket(&self, hash: u32) -> usize {
        // Of few buckets as of many; a multiplication instead of a division.
        ((u128::from(splitmix64(u64::from(hash) ^ self.seed)) * self.buckets.len() as u128) >> 64) as usize
    }

    /// The place of the member that has a bucket; None where no member may have it.
    #[inline]
    pub fn member(&self, bucket: usize) -> Option<usize> {
        let member = self.buckets.get(bucket).copied().unwrap_or(NONE);
        (member != NONE).then(|| member.into())
    }

    /// The place of the member that a flow with this hash of its 5-tuple takes; None where no member may have it.
    #[inline]
    pub fn select(&self, hash: u32) -> Option<usize> {
        self.member(self.bucket(hash))
    }
}

fn check(members: &[Member]) -> Result<(), EcmpError> {
    if members.len() > MEMBERS {
        return Err(EcmpError::TooMany(members.len()));
    }
    for (at, member) in members.iter().enumerate() {
        if member.weight > WEIGHT {
            return Err(EcmpError::Weight { member: at, weight: member.weight });
        }
        if let Some(other) = members[..at].iter().position(|other| other.id == member.id) {
            return Err(EcmpError::Twice(other, at));
        }
    }
    Ok(())
}

/// A member that may have buckets.
struct Bidder {
    at: u16,
    id: u64,
    mixed: u64,
    weight: u16,
    /// How far its estimates may be from its bids.
    error: f64,
}

impl Bidder {
    fn new(at: u16, member: &Member, seed: u64) -> Bidder {
        let weight = member.weight.max(1);
        // Bids are cut off behind 32 bits, 2.4e-10; rounding adds 1e-13 at most.
        Bidder { at, id: member.id, mixed: splitmix64(member.id ^ seed), weight, error: 1e-9 / f64::from(weight) }
    }

    fn chance(&self, bucket: u64) -> u64 {
        splitmix64(self.mixed ^ bucket)
    }

    /// Its bid, near enough to tell that it does not win: of many bidders all but one, nearly always, and at a tenth of
    /// the cost.
    fn estimate(&self, bucket: u64) -> f64 {
        (64.0 - (self.chance(bucket).max(1) as f64).log2()) / f64::from(self.weight)
    }

    /// What it asks for a bucket: the least wins. Chance `u` in (0, 1) of each member and bucket becomes
    /// `-log2(u) / weight`, so that each wins in proportion to its weight, whatever the others are. In integers: all
    /// nodes come to the same.
    fn bid(&self, bucket: u64) -> u128 {
        // 64 - log2 is below 2^38 with 32 bits of fraction; another 64 bits keep what dividing would lose.
        (u128::from(negative_log2(self.chance(bucket))) << 64) / u128::from(self.weight)
    }
}

/// `64 - log2(value)` with 32 bits of fraction; 0 counts as 1.
fn negative_log2(value: u64) -> u64 {
    let value = value.max(1);
    let whole = value.ilog2();
    // The value as 1.63 fixed point; squaring it doubles its logarithm, and the next bit of that comes out.
    let (mut rest, mut fraction) = (u128::from(value << (63 - whole)), 0u64);
    for _ in 0..32 {
        rest = (rest * rest) >> 63;
        fraction <<= 1;
        if rest >> 64 != 0 {
            fraction |= 1;
            rest >>= 1;
        }
    }
    (64 << 32) - (u64::from(whole) << 32 | fraction)
}

#[cfg(test)]
mod tests;
