//! Network address translation where a network meets the outside: 1:1 (floating addresses), of one port, and of many
//! inside addresses to ports of few outside ones.
//!
//! ```text
//!   inside ─► routes lead to the exit ─► policies, by inside addresses ─► source becomes an outside one ─► exit
//!   exit ─► destination becomes an inside one ─► policies, by inside addresses ─► guest
//!   inside ─► an outside address of the exit ─► both of these, and nothing leaves: hairpin
//! ```
//!
//! Only the translation of shared addresses has a state, its [bindings](bindings), and these are of use only as long as
//! connection tracking has their connections. All else follows from the rules. Everything here is pure: whoever asks
//! brings the packet's key, and tells which connections live.

mod bindings;
mod error;
mod rewrite;
mod rules;
mod shared;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::sync::Arc;

use bindings::{Bindings, Exhausted, Flow};
pub use error::{NatError, NatProblem, NatRule};
pub(crate) use rewrite::{Layout, Rewrite};
pub use rules::check;
use shared::{Block, Shared};

use crate::kept::{Keeper, TRANSLATION};
use crate::packet::parse::protocol;
use crate::policy::conntrack::Key;
use crate::spec::{NatProtocol, NatSpec};

/// The rules of an exit, by their place among those of all exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NatId(NonZeroU16);

impl NatId {
    pub fn new(at: usize) -> Option<NatId> {
        u16::try_from(at + 1).ok().and_then(NonZeroU16::new).map(NatId)
    }

    pub fn index(self) -> usize {
        usize::from(self.0.get()) - 1
    }
}

/// Which way a translated packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From outside, by the exit: its destination is translated.
    Inward,
    /// To the exit: its source is.
    Outward,
    /// From inside to an outside address of inside: both are.
    Hairpin,
}

/// The translation that a packet needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crossing {
    pub nat: NatId,
    pub way: Way,
}

/// One end of a packet after its translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub address: IpAddr,
    /// None: it stays, and fragments without ports can be translated.
    pub port: Option<u16>,
    /// A binding says so: it counts as long as its connection lives.
    pub is_bound: bool,
}

/// Why a source is not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untranslated {
    /// No rule is for it.
    NoRule,
    /// All of its ports are taken.
    Exhausted,
}

/// Whether an outside port is given to what has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    Make,
    /// The one that it has or would get.
    Peek,
}

/// What is translated at an exit.
#[derive(Debug)]
pub(crate) struct Nat {
    pub network: Box<str>,
    /// The exit's address.
    pub exit: IpAddr,
    floating: HashMap<IpAddr, IpAddr>,
    /// From outside to inside.
    floated: HashMap<IpAddr, IpAddr>,
    /// By protocol, outside address and port.
    forwards: HashMap<(u8, Ipv4Addr, u16), (Ipv4Addr, u16)>,
    /// By protocol, inside address and port.
    targets: HashMap<(u8, Ipv4Addr, u16), (Ipv4Addr, u16)>,
    shared: Box<[Shared]>,
    /// Shared outside addresses: the rule, and the place among its addresses.
    addresses: HashMap<Ipv4Addr, (usize, usize)>,
    /// Outside addresses of forwards, and inside ones.
    forwarding: HashSet<Ipv4Addr>,
    forwarded: HashSet<Ipv4Addr>,
    bindings: Arc<Bindings>,
}

fn number(protocol: NatProtocol) -> u8 {
    match protocol {
        NatProtocol::Tcp => protocol::TCP,
        NatProtocol::Udp => protocol::UDP,
    }
}

fn ipv4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

impl Nat {
    /// Of rules that were [checked](check). Bindings of the same exit go on, as far as the rules are the same for them.
    pub fn new(spec: &NatSpec, before: Option<&Nat>, keeper: Option<&Arc<Keeper>>) -> Nat {
        let mut addresses = HashMap::new();
        for (rule, shared) in spec.shared.iter().enumerate() {
            addresses.extend(shared.addresses.iter().enumerate().map(|(at, address)| (*address, (rule, at))));
        }
        let forwards =
            spec.forwards.iter().map(|one| ((number(one.protocol), one.outside.0, one.outside.1), one.inside));
        let targets = spec.forwards.iter().map(|one| ((number(one.protocol), one.inside.0, one.inside.1), one.outside));
        Nat {
            network: spec.network.as_str().into(),
            exit: spec.exit,
            floating: spec.floating.iter().map(|one| (one.inside, one.outside)).collect(),
            floated: spec.floating.iter().map(|one| (one.outside, one.inside)).collect(),
            forwards: forwards.collect(),
            targets: targets.collect(),
            shared: spec.shared.iter().map(Shared::new).collect(),
            addresses,
            forwarding: spec.forwards.iter().map(|one| one.outside.0).collect(),
            forwarded: spec.forwards.iter().map(|one| one.inside.0).collect(),
            bindings: match before {
                Some(before) => Arc::clone(&before.bindings),
                None => {
                    let exit = softdpu_kept::name(format!("{} {}", spec.exit, spec.network).as_bytes());
                    Arc::new(Bindings::new(exit, keeper.cloned()))
                }
            },
        }
    }

    /// Whether an outside address is one that is translated here.
    pub fn owns(&self, outside: IpAddr) -> bool {
        self.floated.contains_key(&outside)
            || ipv4(outside).is_some_and(|v4| self.addresses.contains_key(&v4) || self.forwarding.contains(&v4))
    }

    /// Whether any rule is for packets from an inside address.
    pub fn serves(&self, inside: IpAddr) -> bool {
        self.floating.contains_key(&inside)
            || ipv4(inside).is_some_and(|v4| self.forwarded.contains(&v4) || self.block(v4).is_some())
    }

    /// How many connections have ports of shared addresses. Those that are over count until their guest opens others.
    pub fn translations(&self) -> usize {
        self.bindings.len()
    }

    /// Takes up what a process before this one has left of the guest that a record is of, where it is of this exit.
    pub fn take_over(&self, record: &[u64; TRANSLATION.0]) -> bool {
        let inside = Bindings::inside_of(record);
        match self.block(inside).filter(|_| record[0] == self.bindings.exit()) {
            Some(block) => self.bindings.take_over(inside, &block),
            None => return false,
        }
        true
    }

    /// How many packets found no port of their guest's, of this and of earlier rules.
    pub fn exhausted(&self) -> u64 {
        self.bindings.exhausted()
    }

    /// The outside address that an inside one has for itself.
    pub fn floating(&self, inside: IpAddr) -> Option<IpAddr> {
        self.floating.get(&inside).copied()
    }

    /// The inside address that has an outside one for itself.
    pub fn floated(&self, outside: IpAddr) -> Option<IpAddr> {
        self.floated.get(&outside).copied()
    }

    /// The ports of an inside address that shares outside ones.
    fn block(&self, inside: Ipv4Addr) -> Option<Block> {
        self.shared.iter().find_map(|shared| shared.block(inside))
    }

    /// What the source of a packet with `key` becomes by rules alone.
    fn by_rule(&self, key: &Key) -> Option<End> {
        if let Some(address) = self.floating(key.source) {
            return Some(End { address, port: None, is_bound: false });
        }
        let target = (key.protocol, ipv4(key.source)?, key.source_port);
        let (address, port) = *self.targets.get(&target)?;
        Some(End { address: address.into(), port: Some(port), is_bound: false })
    }

    /// What the source of a packet with `key`, of its original direction or not, becomes. `opens` tells whether it is
    /// of a kind that may begin a connection by a shared address; `lives` which connections of inside there are.
    ///
    /// # Errors
    /// [`Untranslated`].
    pub fn outward(
        &self,
        key: &Key,
        opens: bool,
        binding: Binding,
        lives: impl Fn(&Key) -> bool,
    ) -> Result<End, Untranslated> {
        if let Some(end) = self.by_rule(key) {
            return Ok(end);
        }
        let ends = ipv4(key.source).zip(ipv4(key.destination)).filter(|_| opens);
        let (inside, remote) = ends.ok_or(Untranslated::NoRule)?;
        let block = self.block(inside).ok_or(Untranslated::NoRule)?;
        let flow = Flow { protocol: key.protocol, port: key.source_port, remote, remote_port: key.destination_port };
        let lives = |flow: &Flow| {
            let Flow { protocol, port: source_port, remote, remote_port: destination_port } = *flow;
            lives(&Key { destination: remote.into(), protocol, source_port, destination_port, ..*key })
        };
        let port = match binding {
            Binding::Make => self.bindings.outward(inside, &flow, &block, lives),
            Binding::Peek => self.bindings.peek(inside, &flow, &block, lives),
        };
        let port = port.map_err(|Exhausted| Untranslated::Exhausted)?;
        Ok(End { address: block.address.into(), port: Some(port), is_bound: true })
    }

    /// What the source of packets with `key` became, without a binding being made for it.
    pub fn known(&self, key: &Key) -> Option<End> {
        if let Some(end) = self.by_rule(key) {
            return Some(end);
        }
        let (inside, remote) = (ipv4(key.source)?, ipv4(key.destination)?);
        let block = self.block(inside)?;
        let flow = Flow { protocol: key.protocol, port: key.source_port, remote, remote_port: key.destination_port };
        let port = self.bindings.known(inside, &flow, &block)?;
        Some(End { address: block.address.into(), port: Some(port), is_bound: true })
    }

    /// What the destination of a packet with `key` becomes by rules alone.
    pub fn inward_by_rule(&self, key: &Key) -> Option<End> {
        if let Some(address) = self.floated(key.destination) {
            return Some(End { address, port: None, is_bound: false });
        }
        let outside = (key.protocol, ipv4(key.destination)?, key.destination_port);
        let (address, port) = *self.forwards.get(&outside)?;
        Some(End { address: address.into(), port: Some(port), is_bound: false })
    }

    /// What the destination of a packet with `key` becomes.
    pub fn inward(&self, key: &Key) -> Option<End> {
        if let Some(end) = self.inward_by_rule(key) {
            return Some(end);
        }
        let (outside, remote) = (ipv4(key.destination)?, ipv4(key.source)?);
        let (rule, at) = *self.addresses.get(&outside)?;
        let inside = self.shared[rule].inside(at, key.destination_port)?;
        let flow = Flow { protocol: key.protocol, port: key.destination_port, remote, remote_port: key.source_port };
        let port = self.bindings.inward(inside, &self.block(inside)?, outside, &flow)?;
        Some(End { address: inside.into(), port: Some(port), is_bound: true })
    }
}
