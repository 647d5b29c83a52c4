//! On which core packets from tunnels are worked on: flows spread by buckets of a hash, or put somewhere one by one
//! (Zephyrus §7.1).
//!
//! ```text
//!   inner frame ─► VNI and 5-tuple ─► rule? ──────────────────► its core
//!                                      │ none
//!                                      └─► hash ─► bucket ─┬──► its core
//!                                                          └──► here: where the packet was read
//! ```
//!
//! It is decided behind the outer headers and before the flow tier, so that flows, meters and connections see a packet
//! on the core that works on it. What is no tunnel's, or has no IP packet in it, stays where it was read. All packets
//! of a flow go the same way, whatever their flags and options; fragments go by their addresses and protocol, which no
//! rule for a 5-tuple matches (RFC 6438 §3).
//!
//! Pure: the engine, which moves packets, asks here which, and in which [order](Steering::moves) cores have to give way
//! to each other.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use thiserror::Error;

use crate::hash::{five_tuple_hash, hash_of_tuple};
use crate::id::Vni;
use crate::packet::{Ip, Packet, parse};
use crate::switch::{Last, outer_at_underlay};
use crate::tables::Tables;

/// Buckets that flows are in by their hashes: as many as a NIC's RSS table has, or more.
pub const BUCKETS: usize = 256;
/// Rules before them.
pub const RULES: usize = 64;
/// Cores that can be told apart.
pub const CORES: usize = 255;
/// In a bucket: where the packet was read.
const STAYS: u8 = u8::MAX;

/// Packets with these addresses, this protocol and these ports, in this direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FiveTuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address. Of the same family.
    pub destination: IpAddr,
    /// IANA protocol number: TCP or UDP.
    pub protocol: u8,
    /// Source and destination port.
    pub ports: [u16; 2],
}

impl FiveTuple {
    /// Of a packet that has ports and is no fragment.
    #[inline]
    fn of(ip: &Ip) -> Option<FiveTuple> {
        let (from, to) = if ip.fragment.is_none() { ip.ports()? } else { return None };
        let Ip { source, destination, protocol, .. } = *ip;
        Some(FiveTuple { source, destination, protocol, ports: [from, to] })
    }
}

impl FiveTuple {
    /// The bucket that packets with it are in, where no rule takes them.
    pub fn bucket(&self) -> usize {
        bucket_of(hash_of_tuple(self.source, self.destination, self.protocol, self.ports))
    }
}

fn bucket_of(hash: u32) -> usize {
    // Not the bits by which queues and outer ports are chosen.
    (hash >> 24) as usize % BUCKETS
}

impl fmt::Display for FiveTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |address: IpAddr, port: u16| std::net::SocketAddr::new(address, port);
        let protocol = match self.protocol {
            6 => "tcp",
            17 => "udp",
            _ => "protocol?",
        };
        let [from, to] = self.ports;
        write!(f, "{protocol} {} -> {}", end(self.source, from), end(self.destination, to))
    }
}

/// Which packets a rule is for: those that match all that it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Match {
    /// All of a network.
    Vni(Vni),
    /// One flow: of a network, or in whichever.
    Flow(Option<Vni>, FiveTuple),
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Match::Vni(vni) => write!(f, "vni {vni}"),
            Match::Flow(None, flow) => flow.fmt(f),
            Match::Flow(Some(vni), flow) => write!(f, "vni {vni} {flow}"),
        }
    }
}

/// Packets of a kind and the core that they go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The number under which its packets are counted, below [`RULES`].
    pub number: usize,
    /// Which.
    pub what: Match,
    /// The core, from 0.
    pub core: usize,
}

/// Why packets cannot be steered so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SteerError {
    /// More rules than there is room for.
    #[error("{0} rules are more than the {RULES} that there is room for")]
    TooMany(usize),
    /// A core that cannot be told from others.
    #[error("core {0}: steering knows cores 0 to {last}", last = CORES - 1)]
    Core(usize),
    /// Two rules for the same packets.
    #[error("two rules are for {0}")]
    Twice(Match),
    /// A number that is another rule's, or none.
    #[error("rule number {0} is another rule's, or not below {RULES}")]
    Number(usize),
}

/// The table: rules, and behind them buckets. As it is made, every packet stays where it was read.
#[derive(Clone, PartialEq, Eq)]
pub struct Steering {
    buckets: [u8; BUCKETS],
    rules: Vec<HashedRule>,
    counts: bool,
}

/// A rule, and what tells quickly that a packet is not meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HashedRule {
    rule: Rule,
    hash: u32,
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<&Rule> = self.rules().collect();
        f.debug_struct("Steering").field("rules", &rules).field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl Default for Steering {
    fn default() -> Self {
        Steering { buckets: [STAYS; BUCKETS], rules: Vec::new(), counts: false }
    }
}

/// What decided where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteeredBy {
    /// The rule with this number.
    Rule(usize),
    /// The bucket with this number.
    Bucket(usize),
}

/// The core that a packet goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeringDecision {
    /// The rule or bucket that decided.
    pub by: SteeredBy,
    /// The core; None: it stays where it was read.
    pub core: Option<usize>,
}

/// What a packet from a tunnel is steered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeringKey {
    vni: Vni,
    hash: u32,
    flow: Option<FiveTuple>,
}

impl SteeringKey {
    /// Of the packet in a tunnel of the network `vni`.
    pub(crate) fn new(vni: Vni, ip: &Ip) -> SteeringKey {
        SteeringKey { vni, hash: five_tuple_hash(ip), flow: FiveTuple::of(ip) }
    }

    /// The bucket that it is in.
    pub fn bucket(&self) -> usize {
        bucket_of(self.hash)
    }
}

impl Steering {
    /// With these rules, of which those for a flow are asked before those for a network.
    ///
    /// # Errors
    /// [`SteerError`].
    pub fn with_rules(mut self, rules: &[Rule]) -> Result<Steering, SteerError> {
        if rules.len() > RULES {
            return Err(SteerError::TooMany(rules.len()));
        }
        let (mut known, mut numbers) = (BTreeSet::new(), BTreeSet::new());
        for rule in rules {
            if rule.number >= RULES || !numbers.insert(rule.number) {
                return Err(SteerError::Number(rule.number));
            }
            if rule.core >= CORES {
                return Err(SteerError::Core(rule.core));
            }
            if !known.insert(rule.what) {
                return Err(SteerError::Twice(rule.what));
            }
        }
        let kept = |rule: &Rule| HashedRule { rule: *rule, hash: hash_of(&rule.what) };
        self.rules = rules.iter().map(kept).collect();
        Ok(self)
    }

    /// Packets are counted by bucket even where all stay.
    pub fn counting(mut self, counts: bool) -> Steering {
        self.counts = counts;
        self
    }

    /// A bucket's packets go to `core` from now on; None: they stay where they are read. What is no bucket, or no core,
    /// changes nothing.
    pub fn put(&mut self, bucket: usize, core: Option<usize>) {
        let core = core.map_or(Some(STAYS), |core| u8::try_from(core).ok().filter(|core| *core != STAYS));
        if let (Some(slot), Some(core)) = (self.buckets.get_mut(bucket), core) {
            *slot = core;
        }
    }

    /// Buckets in turn to these cores; to none, all stay where they are read.
    pub fn spread(&mut self, cores: &[usize]) {
        for bucket in 0..BUCKETS {
            self.put(bucket, bucket.checked_rem(cores.len()).and_then(|turn| cores.get(turn).copied()));
        }
    }

    /// Where a bucket's packets go; None: they stay where they are read.
    pub fn core_of(&self, bucket: usize) -> Option<usize> {
        self.buckets.get(bucket).filter(|core| **core != STAYS).map(|core| usize::from(*core))
    }

    /// The rules.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|kept| &kept.rule)
    }

    /// Nothing moves and nothing is counted: packets need no look-up.
    pub fn is_idle(&self) -> bool {
        self.rules.is_empty() && !self.counts && self.buckets.iter().all(|core| *core == STAYS)
    }

    /// Where the packets with this key go.
    #[inline]
    pub fn decide(&self, key: &SteeringKey) -> SteeringDecision {
        let is_flow = |kept: &HashedRule| match kept.rule.what {
            Match::Vni(_) => false,
            Match::Flow(vni, flow) => {
                kept.hash == key.hash && key.flow == Some(flow) && vni.is_none_or(|vni| vni == key.vni)
            }
        };
        let is_network = |kept: &HashedRule| kept.rule.what == Match::Vni(key.vni);
        let rule = match self.rules.is_empty() {
            true => None,
            false => {
                self.rules.iter().find(|kept| is_flow(kept)).or_else(|| self.rules.iter().find(|kept| is_network(kept)))
            }
        };
        match rule {
            Some(HashedRule { rule, .. }) => {
                SteeringDecision { by: SteeredBy::Rule(rule.number), core: Some(rule.core) }
            }
            None => SteeringDecision { by: SteeredBy::Bucket(key.bucket()), core: self.core_of(key.bucket()) },
        }
    }

    /// From which core to which flows may move, when what is read on core `here` goes by `next` after it went by this:
    /// each pair once. Where only buckets differ, no other pair than theirs; where rules do, every pair that there may
    /// be.
    pub fn moves(&self, next: &Steering, here: usize) -> BTreeSet<(usize, usize)> {
        let at = |core: u8| if core == STAYS { here } else { usize::from(core) };
        if self.rules == next.rules {
            let pairs = self.buckets.iter().zip(&next.buckets).map(|(from, to)| (at(*from), at(*to)));
            return pairs.filter(|(from, to)| from != to).collect();
        }
        let used = |table: &Steering| -> BTreeSet<usize> {
            let rules = table.rules().map(|rule| rule.core);
            table.buckets.iter().map(|core| at(*core)).chain(rules).collect()
        };
        let (before, after) = (used(self), used(next));
        let pairs = before.iter().flat_map(|from| after.iter().map(move |to| (*from, *to)));
        pairs.filter(|(from, to)| from != to).collect()
    }
}

/// The hash that packets of a flow have.
fn hash_of(what: &Match) -> u32 {
    match what {
        Match::Vni(_) => 0,
        Match::Flow(_, flow) => hash_of_tuple(flow.source, flow.destination, flow.protocol, flow.ports),
    }
}

/// The keys of packets that came by the underlay's port: None for those that stay where they were read in
/// any case. One for each of `packets` is appended to `seen`.
pub(crate) fn keys(tables: &Tables, packets: &[Packet], seen: &mut Vec<Option<SteeringKey>>) {
    let mut last = Last::default();
    seen.extend(packets.iter().map(|packet| see(tables, packet, &mut last)));
}

fn see(tables: &Tables, packet: &Packet, last: &mut Last) -> Option<SteeringKey> {
    let outer = outer_at_underlay(tables, packet, last)?;
    let vni = tables.network(outer.network)?.vni;
    let inner = packet.head.bytes().get(outer.len.into()..)?;
    let inner = inner.get(..inner.len().min(outer.inner))?;
    let parsed = parse(inner, outer.inner).ok()?;
    Some(SteeringKey::new(vni, parsed.ip()?))
}
