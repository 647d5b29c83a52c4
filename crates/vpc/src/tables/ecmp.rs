//! ECMP groups: next hops of which each flow takes one (Zephyrus §4.2).
//!
//! ```text
//!   route ─► group ─► hash of the 5-tuple ─► bucket ─► member: next hop
//!                                              └─ version: number of the build in which the bucket got this member
//! ```
//!
//! A flow that took a member has the stamp of its **bucket**. A change of members, of their weights, zones or health
//! gives those buckets another version that get another member, and no others: so their flows are computed anew, and
//! flows of members that stay in their buckets go on as they are.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::Problem;
use super::objects::{Numbering, ObjectKind};
use crate::hash::splitmix64;
use crate::id::{EcmpId, HopId, NetworkId, ObjectId, Vni};
use crate::policy::ecmp::{BUCKETS, Ecmp, Member};
use crate::spec::{EcmpMemberSpec, EcmpSpec, MemberVia};
use crate::stamp::{MOST_BUCKETS, SOURCES, Stamp, StampSubject};

/// Most groups of all networks: each takes 40 KiB.
pub(super) const MOST: usize = 1024;

const _: () = assert!(MOST * BUCKETS <= MOST_BUCKETS, "each bucket has a stamp");

/// Counts are kept in so many places, so that cores rarely write to the same.
const SHARDS: usize = 8;

/// An ECMP group.
#[derive(Debug)]
pub(crate) struct EcmpGroup {
    pub network: Box<str>,
    pub name: Box<str>,
    members: Box<[GroupMember]>,
    /// The object that is the set of members, whatever their health and weight.
    pub object: ObjectId,
    ecmp: Ecmp,
    /// By bucket.
    stamps: Box<[Stamp]>,
    id: EcmpId,
}

/// A member of a group.
#[derive(Clone, Debug)]
pub(crate) struct GroupMember {
    pub hop: HopId,
    pub via: MemberVia,
    pub weight: u16,
    pub zone: Option<Box<str>>,
    /// It is in the node's own zone.
    is_near: bool,
    is_up: bool,
    /// The way there is known.
    is_resolved: bool,
    counters: Arc<MemberCounters>,
}

/// Packets that were sent to a member, in shards.
#[derive(Debug, Default)]
struct MemberCounters([CounterShard; SHARDS]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct CounterShard {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl MemberCounters {
    fn sum(&self, of: impl Fn(&CounterShard) -> &AtomicU64) -> u64 {
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

/// The bucket that a flow is in, and its member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EcmpChoice {
    pub bucket: usize,
    /// The place of the member, and its next hop; None: no member may have the bucket.
    pub member: Option<(usize, HopId)>,
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

impl EcmpGroup {
    /// The next hop of a flow with this hash of its 5-tuple.
    #[inline]
    pub fn choose(&self, hash: u32) -> EcmpChoice {
        let bucket = self.ecmp.bucket(hash);
        let member = self.ecmp.member(bucket).and_then(|at| Some((at, self.members.get(at)?.hop)));
        EcmpChoice { bucket, member, stamp: self.stamps.get(bucket).copied().unwrap_or_default() }
    }

    pub fn members(&self) -> &[GroupMember] {
        &self.members
    }

    /// The status of each member.
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

    fn hop_of(&self, bucket: usize) -> Option<HopId> {
        Some(self.members.get(self.ecmp.member(bucket)?)?.hop)
    }
}

/// The groups of tables.
#[derive(Debug, Default)]
pub(super) struct EcmpGroups {
    /// By number; those of groups that have gone are empty.
    groups: Box<[Option<Arc<EcmpGroup>>]>,
    /// By the number of a next hop that is a member's; empty without groups.
    counters: Box<[Option<HopCounters>]>,
}

/// Where packets to a next hop are counted.
#[derive(Clone, Debug)]
enum HopCounters {
    /// The next hop is a member of one group.
    OneGroup(Arc<MemberCounters>),
    /// The next hop is a member of several: the bucket that the packet took tells of which.
    ByBucket,
}

impl EcmpGroups {
    #[inline]
    pub fn get(&self, group: EcmpId) -> Option<&Arc<EcmpGroup>> {
        self.groups.get(group.index())?.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = &EcmpGroup> {
        self.groups.iter().flatten().map(|group| &**group)
    }

    /// A group and one of its buckets, by the bucket's place among those of all groups.
    pub fn bucket(&self, at: usize) -> Option<(&EcmpGroup, usize)> {
        Some((self.get(EcmpId::new((at / BUCKETS) as u32))?, at % BUCKETS))
    }

    /// The present stamp of a bucket.
    pub fn bucket_stamp(&self, at: usize) -> Option<Stamp> {
        let (group, bucket) = self.bucket(at)?;
        group.stamps.get(bucket).copied()
    }

    /// Counts a packet that goes to a member by the next hop `hop`; the stamp of the bucket that led there is among its
    /// `sources`.
    #[inline]
    pub fn count(&self, hop: HopId, sources: impl FnOnce() -> [Stamp; SOURCES], shard: usize, bytes: u64) {
        let counters = match self.counters.get(hop.index()) {
            Some(Some(HopCounters::OneGroup(counters))) => Some(counters),
            Some(Some(HopCounters::ByBucket)) => self.counters_of(hop, &sources()),
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
    fn counters_of(&self, hop: HopId, sources: &[Stamp]) -> Option<&Arc<MemberCounters>> {
        sources.iter().find_map(|stamp| {
            let StampSubject::Bucket(bucket) = stamp.subject() else { return None };
            let (group, bucket) = self.bucket(bucket)?;
            let member = group.members.get(group.ecmp.member(bucket)?)?;
            (member.hop == hop).then_some(&member.counters)
        })
    }
}

/// Groups while tables are built.
pub(super) struct EcmpBuilder<'a> {
    previous: Option<&'a EcmpGroups>,
    /// The numbers of groups that stay, by network and name.
    known: HashMap<(&'a str, &'a str), EcmpId>,
    /// The same numbers.
    taken: HashSet<EcmpId>,
    names: HashMap<(NetworkId, &'a str), EcmpId>,
    groups: Vec<Option<Arc<EcmpGroup>>>,
    /// The next number to try.
    next: u32,
}

/// The next hop of a member in the tables under way.
pub(super) struct MemberHop {
    pub hop: HopId,
    pub is_resolved: bool,
}

impl<'a> EcmpBuilder<'a> {
    /// For the groups `specs`, in the place of those that there were.
    pub fn after(previous: Option<&'a EcmpGroups>, specs: &'a [EcmpSpec]) -> EcmpBuilder<'a> {
        let stay: HashSet<(&str, &str)> = specs.iter().map(|spec| (&*spec.network, &*spec.name)).collect();
        let known: HashMap<_, _> = previous
            .into_iter()
            .flat_map(EcmpGroups::iter)
            .map(|group| ((&*group.network, &*group.name), group.id))
            .filter(|(name, _)| stay.contains(name))
            .collect();
        let taken = known.values().copied().collect();
        EcmpBuilder { known, taken, previous, names: HashMap::new(), groups: Vec::new(), next: 0 }
    }

    /// The number of a group.
    pub fn id(&self, network: NetworkId, name: &str) -> Option<EcmpId> {
        self.names.get(&(network, name)).copied()
    }

    /// Adds group `name` of a network, of which the name, the number and the VNI are given.
    pub fn group(
        &mut self,
        (network, network_id, vni): (&str, NetworkId, Vni),
        name: &'a str,
        members: impl Iterator<Item = (&'a EcmpMemberSpec, MemberHop)>,
        zone: Option<&str>,
        objects: &mut Numbering<'_>,
    ) -> Result<(), Problem> {
        let id = match self.known.get(&(network, name)) {
            Some(id) => *id,
            None => self.unused()?,
        };
        if self.names.insert((network_id, name), id).is_some() {
            return Err(Problem::EcmpTaken(name.to_owned()));
        }
        let before =
            self.previous.and_then(|groups| groups.get(id)).filter(|_| self.known.contains_key(&(network, name)));
        let was = |via: MemberVia| before?.members.iter().find(|member| member.via == via);
        let member = |(spec, found): (&EcmpMemberSpec, MemberHop)| GroupMember {
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
        let hops: Vec<HopId> = members.iter().map(|member| member.hop).collect();
        let object = objects.object(ObjectKind::EcmpMembers, &(network, name), &hops)?;
        let is_same = |before: &&Arc<EcmpGroup>| {
            before.members.len() == members.len() && before.members.iter().zip(&members).all(|(a, b)| a.is_same(b))
        };
        let group = match before.filter(is_same) {
            Some(before) => Arc::clone(before),
            None => Arc::new(EcmpGroup::build(
                (network, vni),
                (name, id, object),
                members,
                before.map(|group| &**group),
                objects,
            )?),
        };
        let at = id.index();
        if self.groups.len() <= at {
            self.groups.resize(at + 1, None);
        }
        self.groups[at] = Some(group);
        Ok(())
    }

    /// A number that no group has. If it was that of a group that has gone, all buckets get other versions.
    fn unused(&mut self) -> Result<EcmpId, Problem> {
        while self.taken.contains(&EcmpId::new(self.next)) {
            self.next += 1;
        }
        let id = EcmpId::new(self.next);
        self.next += 1;
        if id.index() < MOST { Ok(id) } else { Err(Problem::TooManyEcmp(MOST)) }
    }

    pub fn finish(self) -> EcmpGroups {
        let members = || self.groups.iter().flatten().flat_map(|group| &*group.members);
        let most = members().map(|member| member.hop.index() + 1).max().unwrap_or(0);
        let mut counters: Vec<Option<HopCounters>> = vec![None; most];
        for member in members() {
            let counted = &mut counters[member.hop.index()];
            *counted = Some(match counted {
                None => HopCounters::OneGroup(Arc::clone(&member.counters)),
                Some(_) => HopCounters::ByBucket,
            });
        }
        EcmpGroups { counters: counters.into(), groups: self.groups.into() }
    }
}

impl EcmpGroup {
    fn build(
        (network, vni): (&str, Vni),
        (name, id, object): (&str, EcmpId, ObjectId),
        members: Box<[GroupMember]>,
        before: Option<&EcmpGroup>,
        objects: &Numbering<'_>,
    ) -> Result<EcmpGroup, Problem> {
        let of = |member: &GroupMember| Member {
            id: identifier(member.via),
            weight: member.weight,
            zone: u32::from(member.is_near),
            is_healthy: member.is_up && member.is_resolved,
        };
        let all: Vec<Member> = members.iter().map(of).collect();
        let ecmp = Ecmp::build(&all, Some(1), seed(vni, name)).map_err(Problem::Ecmp)?;
        let mut group =
            EcmpGroup { network: network.into(), name: name.into(), members, object, ecmp, stamps: Box::default(), id };
        let first = id.index() * BUCKETS;
        let stamp = |bucket: usize| match before {
            Some(before) if before.hop_of(bucket) == group.hop_of(bucket) => before.stamps[bucket],
            _ => objects.changed(StampSubject::Bucket(first + bucket)),
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
fn seed(vni: Vni, name: &str) -> u64 {
    name.bytes().fold(splitmix64(vni.get().into()), |seed, byte| splitmix64(seed ^ u64::from(byte)))
}
