//! A flow in memory: one cache line for all that a packet over IPv4 needs, and one beside for the rest.
//!
//! ```text
//!   hot    0 addresses │ 1 ports, port │ 2 source MAC, protocol │ 3 generation, last seen
//!          4 packets   │ 5 bytes       │ 6 hash, hop, flags     │ 7 origin, connection
//!   cold   0 … 2 rest of IPv6 addresses, or of IPv4 the translation │ 3 … 6 what it was computed from
//!          7 generation of the connection
//! ```

use std::net::{IpAddr, Ipv4Addr};

use softdpu_sys::lines::Words;

use super::key::Key;
use super::table::FlowIndex;
use crate::id::{EndpointId, HopId};
use crate::nat::Rewrite;
use crate::policy::conntrack::ConnectionSlot;
use crate::stamp::{SOURCES, Stamp};

const _: () = assert!(size_of::<Words>() == 64, "an entry is two cache lines");

/// Flags, above the bits of a next hop's number.
const ROUTED: u32 = 1 << HopId::BITS;
const MEMBER: u32 = 1 << (HopId::BITS + 1);
const SAME_SUBNET: u32 = 1 << (HopId::BITS + 2);
const TRANSLATED: u32 = 1 << (HopId::BITS + 3);
const HOP: u32 = (1 << HopId::BITS) - 1;

/// In the last unused entry, where others have the next: no entry has this number.
const LAST_FREE: u32 = u32::MAX;

/// What is done to a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Action {
    /// The hash of the 5-tuple.
    pub hash: u32,
    /// The next hop, which the tables in force resolve (Zephyrus §4.2).
    pub hop: HopId,
    /// This node routes the packet: it takes one off the hop limit and puts in the gateway's MAC address.
    pub is_routed: bool,
    /// The next hop is a member of an ECMP group: its packets are counted.
    pub is_ecmp_member: bool,
    /// The packet comes by a tunnel from the destination's own subnet, and leaves with its sender's MAC address.
    pub is_same_subnet: bool,
    /// The packet's addresses and ports become others, which are kept beside. Such a flow has a connection.
    pub is_translated: bool,
    pub origin: Origin,
    /// The connection that the flow belongs to.
    pub connection: Option<ConnectionSlot>,
}

/// Where a flow's packets come from: a port, with the endpoint at the meters that they pass; or a tunnel, with the next
/// hop towards their source, which has to be behind that very tunnel.
///
/// ```text
///   from a tunnel, 1 bit │ 0, 7 bits │ number of the endpoint or of the next hop, or 0, 24 bits
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin(u32);

/// Set in the origin of a flow from a tunnel.
const TUNNEL: u32 = 1 << 31;

impl Origin {
    /// A port. `metered` is the endpoint at it, if that has meters.
    pub fn port(metered: Option<EndpointId>) -> Origin {
        Origin(metered.map_or(0, EndpointId::number))
    }

    /// A tunnel. `return_hop` leads to the source, unless that is the gateway, which each node has.
    pub fn tunnel(return_hop: Option<HopId>) -> Origin {
        Origin(TUNNEL | return_hop.map_or(0, HopId::number))
    }

    /// Of a flow from a port: the endpoint at the meters that its packets pass.
    #[inline(always)]
    pub fn metered(self) -> Option<EndpointId> {
        // One comparison: neither 0 nor from a tunnel.
        (self.0.wrapping_sub(1) < TUNNEL - 1).then_some(EndpointId::new(self.0))
    }

    /// Of a flow from a tunnel: the next hop towards its source.
    #[inline(always)]
    pub fn return_hop(self) -> Option<HopId> {
        (self.0 > TUNNEL).then_some(HopId::new(self.0 & !TUNNEL))
    }
}

impl std::fmt::Debug for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 & TUNNEL {
            0 => f.debug_struct("Port").field("metered", &self.metered()).finish(),
            _ => f.debug_struct("Tunnel").field("return_hop", &self.return_hop()).finish(),
        }
    }
}

/// What a flow counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounters {
    /// Packets that it decided.
    pub packets: u64,
    /// Their bytes, Ethernet headers included, padding and outer headers not.
    pub bytes: u64,
}

#[inline(always)]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[inline(always)]
fn split(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// The first line of an entry.
pub(super) trait Hot {
    fn write(&mut self, key: &Key, action: &Action);
    fn is(&self, key: &Key) -> bool;
    fn first(&self) -> [u64; 3];
    /// 0: the entry is unused.
    fn generation(&self) -> u32;
    fn set_generation(&mut self, generation: u32);
    /// When it was last seen, on the table's clock.
    fn seen(&self) -> u32;
    fn see(&mut self, clock: u32);
    fn count(&mut self, clock: u32, bytes: u64);
    fn counters(&self) -> FlowCounters;
    fn reset_counters(&mut self);
    fn action(&self) -> Action;
    /// Of an unused entry: the next unused one.
    fn next_free(&self) -> Option<FlowIndex>;
    fn set_next_free(&mut self, next: Option<FlowIndex>);
}

impl Hot for Words {
    fn write(&mut self, key: &Key, action: &Action) {
        let [a, b, c] = key.first;
        let routed = if action.is_routed { ROUTED } else { 0 };
        let member = if action.is_ecmp_member { MEMBER } else { 0 };
        let same_subnet = if action.is_same_subnet { SAME_SUBNET } else { 0 };
        let translated = if action.is_translated { TRANSLATED } else { 0 };
        let hop = action.hop.number() & HOP | routed | member | same_subnet | translated;
        let ends = pair(action.origin.0, ConnectionSlot::to_bits(action.connection));
        let [_, _, _, times, packets, bytes, ..] = self.0;
        self.0 = [a, b, c, times, packets, bytes, pair(action.hash, hop), ends];
    }

    #[inline(always)]
    fn is(&self, key: &Key) -> bool {
        // One comparison without branches.
        (self.0[0] ^ key.first[0]) | (self.0[1] ^ key.first[1]) | (self.0[2] ^ key.first[2]) == 0
    }

    fn first(&self) -> [u64; 3] {
        [self.0[0], self.0[1], self.0[2]]
    }

    #[inline(always)]
    fn generation(&self) -> u32 {
        split(self.0[3]).0
    }

    #[inline(always)]
    fn set_generation(&mut self, generation: u32) {
        self.0[3] = pair(generation, self.seen());
    }

    #[inline(always)]
    fn seen(&self) -> u32 {
        split(self.0[3]).1
    }

    #[inline(always)]
    fn see(&mut self, clock: u32) {
        self.0[3] = pair(self.generation(), clock);
    }

    #[inline(always)]
    fn count(&mut self, clock: u32, bytes: u64) {
        self.see(clock);
        self.0[4] = self.0[4].wrapping_add(1);
        self.0[5] = self.0[5].wrapping_add(bytes);
    }

    fn counters(&self) -> FlowCounters {
        FlowCounters { packets: self.0[4], bytes: self.0[5] }
    }

    fn reset_counters(&mut self) {
        (self.0[4], self.0[5]) = (0, 0);
    }

    #[inline(always)]
    fn action(&self) -> Action {
        let ((hash, hop), (origin, connection)) = (split(self.0[6]), split(self.0[7]));
        Action {
            hash,
            hop: HopId::new(hop & HOP),
            is_routed: hop & ROUTED != 0,
            is_ecmp_member: hop & MEMBER != 0,
            is_same_subnet: hop & SAME_SUBNET != 0,
            is_translated: hop & TRANSLATED != 0,
            origin: Origin(origin),
            connection: ConnectionSlot::from_bits(connection),
        }
    }

    fn next_free(&self) -> Option<FlowIndex> {
        Some(split(self.0[7]).0).filter(|next| *next != LAST_FREE).map(FlowIndex::new)
    }

    fn set_next_free(&mut self, next: Option<FlowIndex>) {
        self.0[7] = pair(next.map_or(LAST_FREE, FlowIndex::number), 0);
    }
}

/// The second line of an entry.
pub(super) trait Cold {
    fn keep(&mut self, key: &Key, sources: &[Stamp; SOURCES], connection: u32);
    fn has(&self, key: &Key) -> bool;
    fn more(&self) -> [u64; 3];
    fn sources(&self) -> [Stamp; SOURCES];
    /// The generation of the connection in its slot.
    fn connection(&self) -> u32;
    /// Of a translated flow, which is IPv4: what its packets become, where others have the rest of IPv6 addresses.
    fn rewrite(&self) -> Rewrite;
    fn set_rewrite(&mut self, rewrite: &Rewrite);
}

impl Cold for Words {
    fn keep(&mut self, key: &Key, sources: &[Stamp; SOURCES], connection: u32) {
        self.0[7] = connection.into();
        self.0[..3].copy_from_slice(&key.more);
        for (word, source) in self.0[3..3 + SOURCES].iter_mut().zip(sources) {
            *word = source.to_bits();
        }
    }

    #[inline(always)]
    fn has(&self, key: &Key) -> bool {
        (self.0[0] ^ key.more[0]) | (self.0[1] ^ key.more[1]) | (self.0[2] ^ key.more[2]) == 0
    }

    fn more(&self) -> [u64; 3] {
        [self.0[0], self.0[1], self.0[2]]
    }

    fn sources(&self) -> [Stamp; SOURCES] {
        std::array::from_fn(|at| Stamp::from_bits(self.0[3 + at]))
    }

    fn connection(&self) -> u32 {
        self.0[7] as u32
    }

    fn rewrite(&self) -> Rewrite {
        let ((source, destination), (ports, _)) = (split(self.0[0]), split(self.0[1]));
        let address = |bits| Ipv4Addr::from_bits(bits).into();
        let ports = Some([(ports >> 16) as u16, ports as u16]);
        Rewrite { source: address(source), destination: address(destination), ports }
    }

    fn set_rewrite(&mut self, rewrite: &Rewrite) {
        let bits = |address| if let IpAddr::V4(address) = address { address.to_bits() } else { 0 };
        let [first, second] = rewrite.ports.unwrap_or_default();
        self.0[0] = pair(bits(rewrite.source), bits(rewrite.destination));
        self.0[1] = pair(u32::from(first) << 16 | u32::from(second), 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn origin() -> impl Strategy<Value = (Origin, Option<EndpointId>, Option<HopId>)> {
        let number = || prop::option::of(1u32..1 << HopId::BITS);
        prop_oneof![
            number().prop_map(|number| {
                let metered = number.map(EndpointId::new);
                (Origin::port(metered), metered, None)
            }),
            number().prop_map(|number| {
                let return_hop = number.map(HopId::new);
                (Origin::tunnel(return_hop), None, return_hop)
            }),
        ]
    }

    proptest! {
        #[test]
        fn an_action_comes_out_of_its_line_again(
            hash in any::<u32>(),
            hop in 0u32..1 << HopId::BITS,
            flags in any::<[bool; 4]>(),
            (origin, metered, return_hop) in origin(),
            connection in prop::option::of(0u32..u32::MAX),
            words in any::<[u64; 8]>(),
        ) {
            let [is_routed, is_ecmp_member, is_same_subnet, is_translated] = flags;
            let connection = connection.map(ConnectionSlot::new);
            let hop = HopId::new(hop);
            let (is_member, hop) = (is_ecmp_member, HopId::new(hop.number()));
            let action = Action {
                hash, hop, is_routed, is_ecmp_member: is_member, is_same_subnet, is_translated, origin, connection,
            };
            let (mut line, key) = (Words(words), Key { first: [words[7], words[6], words[5]], more: [0; 3] });
            line.write(&key, &action);
            prop_assert_eq!(line.action(), action);
            prop_assert_eq!((line.action().origin.metered(), line.action().origin.return_hop()), (metered, return_hop));
            prop_assert!(line.is(&key) && line.0[3..6] == words[3..6], "the rest of the line");
        }
    }
}
