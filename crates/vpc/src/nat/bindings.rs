//! Which port outside stands for which port inside: one binding for each connection of an inside address that shares an
//! outside one.
//!
//! ```text
//!   (inside address) ─► flow with the inside port ──► outside port
//!                       flow with the outside port ─► inside port
//! ```
//!
//! A binding is of use as long as connection tracking has its connection, which is asked wherever that matters: there
//! are no timers here. The outside port follows from the inside one, so that it is the same whomever the guest talks to
//! (RFC 4787 REQ-1), and even stays even (REQ-4); where another inside port of the same guest has it towards the same
//! remote end, the next free one of its block is taken. A new binding makes room by looking at its guest's oldest ones.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::shared::Block;
use crate::hash::splitmix64;

/// Locks: an inside address has one of them.
const SHARDS: usize = 64;
/// Bindings of an inside address for each of its ports, towards different remote ends.
const PER_PORT: usize = 4;
/// Ports that are looked at for a free one.
const PROBES: u16 = 256;
/// The oldest bindings that are looked at when one is made, and taken ports of which the connection is asked for.
const RECLAIM: usize = 4;
const ASKED: usize = 8;

/// A connection towards a remote end, by the port of the near end: the inside one, or the outside one that stands for
/// it. Of an echo, identifiers are ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub protocol: u8,
    pub port: u16,
    pub remote: Ipv4Addr,
    pub remote_port: u16,
}

/// All ports that the connection may have are taken, or the inside address has as many bindings as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// The bindings of an inside address.
#[derive(Debug, Default)]
struct Guest {
    outward: HashMap<Flow, (Ipv4Addr, u16)>,
    inward: HashMap<(Ipv4Addr, Flow), u16>,
    /// By inside port, the oldest first; what is not in `outward` any more is passed over.
    order: VecDeque<Flow>,
}

/// The bindings of all inside addresses of an exit.
#[derive(Debug)]
pub(crate) struct Bindings {
    guests: Box<[Mutex<HashMap<Ipv4Addr, Guest>>]>,
    /// Packets that found no port.
    exhausted: AtomicU64,
}

impl Default for Bindings {
    fn default() -> Bindings {
        Bindings { guests: (0..SHARDS).map(|_| Mutex::default()).collect(), exhausted: AtomicU64::new(0) }
    }
}

impl Guest {
    /// The port of `block` that a new connection gets, and the connection, over by now, that had it. `lives` tells
    /// whether connection tracking has a connection, by its inside port.
    fn choose(&self, flow: &Flow, block: &Block, lives: impl Fn(&Flow) -> bool) -> Option<(u16, Option<Flow>)> {
        let mut asked = 0;
        for step in 0..block.count.min(PROBES) {
            // The block may begin at an odd port: even ports stay even all the same.
            let place = (flow.port.wrapping_sub(block.first) % block.count + step) % block.count;
            let port = block.first + place;
            match self.inward.get(&(block.address, Flow { port, ..*flow })) {
                None => return Some((port, None)),
                Some(inside) if asked < ASKED => {
                    let other = Flow { port: *inside, ..*flow };
                    if !lives(&other) {
                        return Some((port, Some(other)));
                    }
                    asked += 1;
                }
                Some(_) => {}
            }
        }
        None
    }

    /// The outside port that a connection has, if it is of the block that its inside address has now.
    fn known(&self, flow: &Flow, block: &Block) -> Option<u16> {
        self.outward.get(flow).filter(|(address, port)| block.has(*address, *port)).map(|(_, port)| *port)
    }

    fn remove(&mut self, flow: &Flow) {
        if let Some((address, port)) = self.outward.remove(flow) {
            self.inward.remove(&(address, Flow { port, ..*flow }));
        }
    }

    /// Takes out those of the oldest bindings with connections that are over.
    fn reclaim(&mut self, lives: impl Fn(&Flow) -> bool) {
        for _ in 0..RECLAIM {
            let Some(oldest) = self.order.pop_front() else { return };
            if !self.outward.contains_key(&oldest) {
                continue;
            }
            if lives(&oldest) {
                self.order.push_back(oldest);
            } else {
                self.remove(&oldest);
            }
        }
    }
}

impl Bindings {
    fn guest(&self, inside: Ipv4Addr) -> MutexGuard<'_, HashMap<Ipv4Addr, Guest>> {
        let shard = splitmix64(inside.to_bits().into()) as usize % SHARDS;
        // Nothing panics with the lock held.
        self.guests[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The outside port of a connection of the inside address `inside`, which has the ports of `block`. Where it has
    /// none yet it gets one.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn outward(
        &self,
        inside: Ipv4Addr,
        flow: &Flow,
        block: &Block,
        lives: impl Fn(&Flow) -> bool,
    ) -> Result<u16, Exhausted> {
        let mut guests = self.guest(inside);
        let guest = guests.entry(inside).or_default();
        if let Some(port) = guest.known(flow, block) {
            return Ok(port);
        }
        guest.remove(flow);
        guest.reclaim(&lives);
        let has_room = guest.outward.len() < PER_PORT * usize::from(block.count);
        let Some((port, over)) = has_room.then(|| guest.choose(flow, block, &lives)).flatten() else {
            self.exhausted.fetch_add(1, Ordering::Relaxed);
            return Err(Exhausted);
        };
        if let Some(over) = over {
            guest.remove(&over);
        }
        guest.outward.insert(*flow, (block.address, port));
        guest.inward.insert((block.address, Flow { port, ..*flow }), flow.port);
        guest.order.push_back(*flow);
        Ok(port)
    }

    /// The outside port that a connection has or would get, without giving it.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn peek(
        &self,
        inside: Ipv4Addr,
        flow: &Flow,
        block: &Block,
        lives: impl Fn(&Flow) -> bool,
    ) -> Result<u16, Exhausted> {
        let guests = self.guest(inside);
        let empty = Guest::default();
        let guest = guests.get(&inside).unwrap_or(&empty);
        match guest.known(flow, block) {
            Some(port) => Ok(port),
            None => guest.choose(flow, block, lives).map(|(port, _)| port).ok_or(Exhausted),
        }
    }

    /// The outside port that a connection of `inside` has.
    pub fn known(&self, inside: Ipv4Addr, flow: &Flow, block: &Block) -> Option<u16> {
        self.guest(inside).get(&inside)?.known(flow, block)
    }

    /// The inside port that `flow`'s port of `outside` stands for.
    pub fn inward(&self, inside: Ipv4Addr, outside: Ipv4Addr, flow: &Flow) -> Option<u16> {
        self.guest(inside).get(&inside)?.inward.get(&(outside, *flow)).copied()
    }

    /// How many packets found no port.
    pub fn exhausted(&self) -> u64 {
        self.exhausted.load(Ordering::Relaxed)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        let lock = |shard: &Mutex<HashMap<Ipv4Addr, Guest>>| {
            let guests = shard.lock().unwrap_or_else(PoisonError::into_inner);
            guests.values().map(|guest| guest.outward.len()).sum::<usize>()
        };
        self.guests.iter().map(lock).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSIDE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const BLOCK: Block = Block { address: Ipv4Addr::new(203, 0, 113, 1), first: 1024, count: 8 };

    fn flow(port: u16, remote: u8) -> Flow {
        Flow { protocol: 17, port, remote: [192, 0, 2, remote].into(), remote_port: 53 }
    }

    #[test]
    fn a_port_is_the_same_towards_all_until_two_want_it() {
        let bindings = Bindings::default();
        let outward = |port, remote| bindings.outward(INSIDE, &flow(port, remote), &BLOCK, |_| true);
        assert_eq!([outward(4001, 1), outward(4001, 2), outward(4001, 1)], [Ok(1025), Ok(1025), Ok(1025)]);
        assert_eq!(outward(4009, 1), Ok(1026), "1025 is taken towards that end");
        assert_eq!(outward(4009, 3), Ok(1025));
        let inward = |port, remote| bindings.inward(INSIDE, BLOCK.address, &flow(port, remote));
        assert_eq!([inward(1025, 1), inward(1026, 1), inward(1025, 3)], [Some(4001), Some(4009), Some(4009)]);
        assert_eq!([inward(1026, 2), inward(1025, 9)], [None, None], "no host was asked there");
        assert_eq!(bindings.len(), 4);
    }

    #[test]
    fn a_guest_has_its_ports_and_no_more() {
        let bindings = Bindings::default();
        let outward = |inside, port: u16| bindings.outward(inside, &flow(port, 1), &BLOCK, |_| true);
        let all: std::collections::BTreeSet<u16> = (0..8).map(|port| outward(INSIDE, port * 8).unwrap()).collect();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), (1024..1032).collect::<Vec<_>>());
        assert_eq!(outward(INSIDE, 99), Err(Exhausted));
        assert!(bindings.peek(INSIDE, &flow(99, 1), &BLOCK, |_| true).is_err());
        assert_eq!(
            bindings.outward(INSIDE, &flow(99, 1), &BLOCK, |flow| flow.port != 16),
            Ok(1026),
            "that one is over"
        );
        assert_eq!(bindings.len(), 8);
    }

    #[test]
    fn bindings_towards_many_ends_are_bounded_and_come_back() {
        let bindings = Bindings::default();
        let outward = |remote: u8, lives: bool| bindings.outward(INSIDE, &flow(7, remote), &BLOCK, move |_| lives);
        assert!((0..32).all(|remote| outward(remote, true).is_ok()));
        assert_eq!((outward(99, true), bindings.len()), (Err(Exhausted), 32));
        assert!(outward(99, false).is_ok() && bindings.len() < 32);
        assert_eq!(bindings.exhausted(), 1);
    }

    #[test]
    fn another_block_makes_another_binding() {
        let bindings = Bindings::default();
        let other = Block { first: 2048, ..BLOCK };
        let outward = |block| bindings.outward(INSIDE, &flow(9, 1), block, |_| true);
        assert_eq!((outward(&BLOCK), outward(&other)), (Ok(1025), Ok(2049)));
        assert_eq!(bindings.inward(INSIDE, BLOCK.address, &flow(1025, 1)), None, "the old one is gone");
    }
}
