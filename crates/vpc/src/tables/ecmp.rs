//! ECMP groups: next hops of which each flow takes one (Zephyrus §4.2).
//!
//! ```text
//!   route ─► group ─► hash of the 5-tuple ─► bucket ─► member: next hop
//!                                              └─ version: number of the build in which the bucket got this member
//! ```
//!
//! A flow that took a member has the stamp of its **bucket**. A change of members, of their weights, zones or health gives those
//! buckets another version that get another member, and no others: so their flows are computed anew, and flows of members that
//! stay in their buckets go on as they are.
//!
//! Buckets have numbers of stamps from [`FIRST`] on, where numbers of next hops are loaded entries', which have no stamps.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::Problem;
use super::objects::{Kind, Numbering};
use crate::hash::splitmix64;
use crate::policy::ecmp::{BUCKETS, Ecmp, Member};
use crate::spec::{EcmpMemberSpec, EcmpSpec, MemberVia};
use crate::stamp::{SOURCES, Stamp};

/// The first number of a bucket's stamp.
const FIRST: u32 = super::loaded::FIRST;
/// Most groups of all networks: each takes 40 KiB.
pub(super) const MOST: usize = 1024;

const _: () = assert!(FIRST as usize + MOST * BUCKETS <= 1 << 24, "numbers of stamps have 24 bits");

/// Counts are kept in so many places, so that cores rarely write to the same.
const SHARDS: usize = 8;

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    pub network: Box<str>,
    pub name: Box<str>,
    members: Box<[GroupMember]>,
    /// The object that is who they are, whatever their health and weight.
    pub object: u32,
    ecmp: Ecmp,
    /// By bucket.
    stamps: Box<[Stamp]>,
    slot: u32,
}

/// A member of a group.
#[derive(Clone, Debug)]
pub(crate) struct GroupMember {
    /// Number of its next hop.
    pub hop: u32,
    pub via: MemberVia,
    pub weight: u16,
    pub zone: Option<Box<str>>,
    /// It is in the node's own zone.
    is_near: bool,
    is_up: bool,
    /// The way there is known.
    is_resolved: bool,
    counters: Arc<Counters>,
}

/// What was sent to a member.
#[derive(Debug, Default)]
struct Counters([Counter; SHARDS]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Counter {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    fn sum(&self, of: impl Fn(&Counter) -> &AtomicU64) -> u64 {
        self.0.iter().map(|counter| of(counter).load(Ordering::Relaxed)).sum()
    }
}

impl GroupMember {
    /// Whether nothing that decides is another than of `other`.
    fn is_same(&self, other: &GroupMember) -> bool {
        (self.hop, self.via, self.weight, &self.zone) == (other.hop, other.via, other.weight, &other.zone)
            && (self.is_near, self.is_up, self.is_resolved) == (other.is_near, other.is_up, other.is_resolved)
    }
}

/// What a flow takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub bucket: usize,
    /// The place of the member, and its next hop; None: no member may have it.
    pub member: Option<(usize, u32)>,
    pub stamp: Stamp,
}

/// A member of an ECMP group, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its next hop.
    pub via: MemberVia,
    /// Its weight.
    pub weight: u16,
    /// Its zone.
    pub zone: Option<String>,
    /// It was not set down.
    pub is_up: bool,
    /// The way there is known: the host's, or its router's, MAC address.
    pub is_resolved: bool,
    /// How many of the group's [`BUCKETS`](crate::policy::ecmp::BUCKETS) it has: its share of flows.
    pub buckets: usize,
    /// Packets that were sent to it.
    pub packets: u64,
    /// Their bytes, Ethernet headers included, outer headers not.
    pub bytes: u64,
}

impl Group {
    /// The next hop that a flow takes whose 5-tuple has this hash.
    #[inline]
    pub fn choose(&self, hash: u32) -> Choice {
        let bucket = self.ecmp.bucket(hash);
        let member = self.ecmp.member(bucket).and_then(|at| Some((at, self.members.get(at)?.hop)));
        Choice { bucket, member, stamp: self.stamps.get(bucket).copied().unwrap_or_default() }
    }

    pub fn members(&self) -> &[GroupMember] {
        &self.members
    }

    /// Each member, as it is.
    pub fn status(&self) -> Vec<MemberStatus> {
        let mut buckets = vec![0; self.members.len()];
        (0..BUCKETS).filter_map(|bucket| self.ecmp.member(bucket)).for_each(|at| buckets[at] += 1);
        let status = |(member, buckets): (&GroupMember, usize)| MemberStatus {
            via: member.via,
            weight: member.weight,
            zone: member.zone.as_deref().map(str::to_owned),
            is_up: member.is_up,
            is_resolved: member.is_resolved,
            buckets,
            packets: member.counters.sum(|counter| &counter.packets),
            bytes: member.counters.sum(|counter| &counter.bytes),
        };
        self.members.iter().zip(buckets).map(status).collect()
    }

    fn hop_of(&self, bucket: usize) -> Option<u32> {
        Some(self.members.get(self.ecmp.member(bucket)?)?.hop)
    }
}

/// The groups of tables.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// By slot.
    slots: Box<[Option<Arc<Group>>]>,
    /// By the number of a next hop that is a member's; empty without groups.
    counters: Box<[Option<Counted>]>,
}

/// Where packets to a next hop are counted.
#[derive(Clone, Debug)]
enum Counted {
    /// It is a member of one group.
    One(Arc<Counters>),
    /// A guest that is in several: by the group that the packet took.
    ByBucket,
}

impl Groups {
    #[inline]
    pub fn get(&self, slot: u32) -> Option<&Arc<Group>> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Group> {
        self.slots.iter().flatten().map(|group| &**group)
    }

    /// A stamp with the version that its bucket has now.
    pub fn current(&self, stamp: Stamp) -> Option<Stamp> {
        let at = stamp.number().checked_sub(FIRST as usize)?;
        self.get((at / BUCKETS) as u32)?.stamps.get(at % BUCKETS).copied()
    }

    /// The group and the bucket that a stamp is of.
    pub fn bucket_of(&self, stamp: Stamp) -> Option<(&Group, usize)> {
        let at = stamp.number().checked_sub(FIRST as usize)?;
        Some((self.get((at / BUCKETS) as u32)?, at % BUCKETS))
    }

    /// Counts a packet that goes to a member by the next hop `hop`; the stamp of the bucket that led there is among its `sources`.
    #[inline]
    pub fn count(&self, hop: u32, sources: impl FnOnce() -> [Stamp; SOURCES], shard: usize, bytes: u64) {
        let counters = match self.counters.get(hop as usize) {
            Some(Some(Counted::One(counters))) => Some(counters),
            Some(Some(Counted::ByBucket)) => self.counters_of(hop, &sources()),
            Some(None) | None => None,
        };
        if let Some(counters) = counters {
            let counter = &counters.0[shard % SHARDS];
            counter.packets.fetch_add(1, Ordering::Relaxed);
            counter.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The counters of the member with the next hop `hop` that has one of these buckets.
    #[cold]
    fn counters_of(&self, hop: u32, sources: &[Stamp]) -> Option<&Arc<Counters>> {
        sources.iter().find_map(|stamp| {
            let (group, bucket) = self.bucket_of(*stamp)?;
            let member = group.members.get(group.ecmp.member(bucket)?)?;
            (member.hop == hop).then_some(&member.counters)
        })
    }
}

/// Groups while tables are built.
pub(super) struct Building<'a> {
    previous: Option<&'a Groups>,
    /// Slots of groups that there were and are to be, by network and name.
    known: HashMap<(&'a str, &'a str), u32>,
    /// Those slots.
    taken: HashSet<u32>,
    /// By network number and name.
    names: HashMap<(u32, &'a str), u32>,
    slots: Vec<Option<Arc<Group>>>,
    /// The next slot to see whether it is free.
    next: usize,
}

/// The next hop of a member, as it is found in the tables under way.
pub(super) struct Found {
    pub hop: u32,
    pub is_resolved: bool,
}

impl<'a> Building<'a> {
    /// For the groups `specs`, in the place of those that there were.
    pub fn after(previous: Option<&'a Groups>, specs: &'a [EcmpSpec]) -> Building<'a> {
        let stay: HashSet<(&str, &str)> = specs.iter().map(|spec| (&*spec.network, &*spec.name)).collect();
        let known: HashMap<_, _> = previous
            .into_iter()
            .flat_map(Groups::iter)
            .map(|group| ((&*group.network, &*group.name), group.slot))
            .filter(|(name, _)| stay.contains(name))
            .collect();
        let taken = known.values().copied().collect();
        Building { known, taken, previous, names: HashMap::new(), slots: Vec::new(), next: 0 }
    }

    /// The slot of a group.
    pub fn slot(&self, network: u32, name: &str) -> Option<u32> {
        self.names.get(&(network, name)).copied()
    }

    /// Group `name` of the network `network`, which has a number and a VNI.
    pub fn group(
        &mut self,
        (network, number, vni): (&str, u32, u32),
        name: &'a str,
        members: impl Iterator<Item = (&'a EcmpMemberSpec, Found)>,
        zone: Option<&str>,
        objects: &mut Numbering<'_>,
    ) -> Result<(), Problem> {
        let slot = match self.known.get(&(network, name)) {
            Some(slot) => *slot,
            None => self.unused()?,
        };
        if self.names.insert((number, name), slot).is_some() {
            return Err(Problem::EcmpTaken(name.to_owned()));
        }
        let before =
            self.previous.and_then(|groups| groups.get(slot)).filter(|_| self.known.contains_key(&(network, name)));
        let was = |via: MemberVia| before?.members.iter().find(|member| member.via == via);
        let member = |(spec, found): (&EcmpMemberSpec, Found)| GroupMember {
            hop: found.hop,
            via: spec.via,
            weight: spec.weight,
            zone: spec.zone.as_deref().map(Into::into),
            is_near: zone.is_some() && spec.zone.as_deref() == zone,
            is_up: spec.is_up,
            is_resolved: found.is_resolved,
            counters: was(spec.via).map(|was| Arc::clone(&was.counters)).unwrap_or_default(),
        };
        let members: Box<[GroupMember]> = members.map(member).collect();
        let hops: Vec<u32> = members.iter().map(|member| member.hop).collect();
        let object = objects.object(Kind::Members, &(network, name), &hops)?;
        let is_same = |before: &&Arc<Group>| {
            before.members.len() == members.len() && before.members.iter().zip(&members).all(|(a, b)| a.is_same(b))
        };
        let group = match before.filter(is_same) {
            Some(before) => Arc::clone(before),
            None => Arc::new(Group::build(
                (network, vni),
                (name, slot, object),
                members,
                before.map(|group| &**group),
                objects,
            )?),
        };
        let at = slot as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, None);
        }
        self.slots[at] = Some(group);
        Ok(())
    }

    /// A slot that no group has. Where one had it that has gone, all of its buckets get other versions.
    fn unused(&mut self) -> Result<u32, Problem> {
        while self.taken.contains(&(self.next as u32)) {
            self.next += 1;
        }
        let slot = self.next;
        self.next += 1;
        if slot < MOST { Ok(slot as u32) } else { Err(Problem::TooManyEcmp(MOST)) }
    }

    pub fn finish(self) -> Groups {
        let members = || self.slots.iter().flatten().flat_map(|group| &*group.members);
        let most = members().map(|member| member.hop as usize + 1).max().unwrap_or(0);
        let mut counters: Vec<Option<Counted>> = vec![None; most];
        for member in members() {
            let counted = &mut counters[member.hop as usize];
            *counted = Some(match counted {
                None => Counted::One(Arc::clone(&member.counters)),
                Some(_) => Counted::ByBucket,
            });
        }
        Groups { counters: counters.into(), slots: self.slots.into() }
    }
}

impl Group {
    fn build(
        (network, vni): (&str, u32),
        (name, slot, object): (&str, u32, u32),
        members: Box<[GroupMember]>,
        before: Option<&Group>,
        objects: &Numbering<'_>,
    ) -> Result<Group, Problem> {
        let of = |member: &GroupMember| Member {
            id: identifier(member.via),
            weight: member.weight,
            zone: u32::from(member.is_near),
            is_healthy: member.is_up && member.is_resolved,
        };
        let all: Vec<Member> = members.iter().map(of).collect();
        let ecmp = Ecmp::build(&all, Some(1), seed(vni, name)).map_err(Problem::Ecmp)?;
        let mut group =
            Group { network: network.into(), name: name.into(), members, object, ecmp, stamps: Box::default(), slot };
        let first = FIRST + slot * BUCKETS as u32;
        let stamp = |bucket: usize| match before {
            Some(before) if before.hop_of(bucket) == group.hop_of(bucket) => before.stamps[bucket],
            _ => objects.changed(first + bucket as u32),
        };
        group.stamps = (0..BUCKETS).map(stamp).collect();
        Ok(group)
    }
}

/// What a member bids by: the same on all nodes.
fn identifier(via: MemberVia) -> u64 {
    let (address, kind) = match via {
        MemberVia::Endpoint(address) => (address, 1),
        MemberVia::Host(host) => (host, 2),
    };
    let bits = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    splitmix64(splitmix64(bits as u64 ^ kind << 62).wrapping_add((bits >> 64) as u64 ^ u64::from(address.is_ipv4())))
}

/// What members' bids are mixed with: the same on all nodes, and another for each group.
fn seed(vni: u32, name: &str) -> u64 {
    name.bytes().fold(splitmix64(vni.into()), |seed, byte| splitmix64(seed ^ u64::from(byte)))
}
