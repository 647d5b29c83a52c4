//! A flow in memory: one cache line for all that a packet over IPv4 needs, and one beside for the rest.
//!
//! ```text
//!   hot    0 addresses │ 1 ports, port │ 2 source MAC, protocol │ 3 generation, last seen
//!          4 packets   │ 5 bytes       │ 6 hash, hop, flags     │ 7 meter, connection
//!   cold   0 … 2 rest of IPv6 addresses │ 3 … 6 what it was computed from │ 7 generation of the connection
//! ```

use softdpu_sys::lines::Words;

use super::key::Key;
use crate::stamp::{SOURCES, Stamp};

/// Bits of a next hop's number; above them are flags.
const HOP_BITS: u32 = 24;
const ROUTED: u32 = 1 << HOP_BITS;
const MEMBER: u32 = 1 << (HOP_BITS + 1);
const BESIDE: u32 = 1 << (HOP_BITS + 2);
const HOP: u32 = (1 << HOP_BITS) - 1;

/// A meter or a connection that is none.
pub(crate) const NONE: u32 = u32::MAX;

/// What is done to a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Action {
    /// Of the 5-tuple.
    pub hash: u32,
    /// Number of the next hop, which the tables in force resolve (Zephyrus §4.2).
    pub hop: u32,
    /// A router takes one off the hop limit, and is whom the packet comes from.
    pub is_routed: bool,
    /// The next hop is a member of an ECMP group, and counted.
    pub is_member: bool,
    /// It comes by a tunnel and has the MAC address of who sent it, who is beside.
    pub is_beside: bool,
    /// Number of the endpoint whose meters its packets pass; of a flow from a tunnel, which passes none, of the next hop towards its
    /// source. Or [`NONE`].
    pub meter: u32,
    /// The slot of the connection it belongs to, or [`NONE`].
    pub connection: u32,
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
    /// 0: nothing is here.
    fn generation(&self) -> u32;
    fn set_generation(&mut self, generation: u32);
    /// When it was last seen, on the table's clock.
    fn seen(&self) -> u32;
    fn see(&mut self, clock: u32);
    fn count(&mut self, clock: u32, bytes: u64);
    fn counters(&self) -> FlowCounters;
    fn reset_counters(&mut self);
    fn action(&self) -> Action;
    /// Of an entry that nothing is in: the next such.
    fn next_free(&self) -> u32;
    fn set_next_free(&mut self, next: u32);
}

impl Hot for Words {
    fn write(&mut self, key: &Key, action: &Action) {
        let [a, b, c] = key.first;
        let routed = if action.is_routed { ROUTED } else { 0 };
        let member = if action.is_member { MEMBER } else { 0 };
        let beside = if action.is_beside { BESIDE } else { 0 };
        let hop = action.hop & HOP | routed | member | beside;
        let [_, _, _, times, packets, bytes, ..] = self.0;
        self.0 = [a, b, c, times, packets, bytes, pair(action.hash, hop), pair(action.meter, action.connection)];
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
        let ((hash, hop), (meter, connection)) = (split(self.0[6]), split(self.0[7]));
        let (is_routed, is_member, is_beside) = (hop & ROUTED != 0, hop & MEMBER != 0, hop & BESIDE != 0);
        Action { hash, hop: hop & HOP, is_routed, is_member, is_beside, meter, connection }
    }

    fn next_free(&self) -> u32 {
        split(self.0[7]).0
    }

    fn set_next_free(&mut self, next: u32) {
        self.0[7] = pair(next, 0);
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
}
