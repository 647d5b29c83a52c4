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
//!
//! Bindings are written to memory that the processes to come read. Those that a process before this one has left are
//! taken up for all of a guest at once, by the first packet that needs one of them.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use softdpu_kept::Place;

use super::shared::Block;
use crate::hash::{folded_multiply, splitmix64};
use crate::kept::{Keeper, TRANSLATION};

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

/// What stands for the port of a connection.
#[derive(Clone, Copy, Debug)]
struct Outside {
    address: Ipv4Addr,
    port: u16,
    /// Where that is written.
    place: Option<Place>,
}

/// The bindings of an inside address.
#[derive(Debug, Default)]
struct Guest {
    outward: HashMap<Flow, Outside>,
    inward: HashMap<(Ipv4Addr, Flow), u16>,
    /// By inside port, the oldest first; what is not in `outward` any more is passed over.
    order: VecDeque<Flow>,
    /// It has those that processes before this one had.
    has_inherited: bool,
}

/// The bindings of all inside addresses of an exit.
#[derive(Debug)]
pub(crate) struct Bindings {
    guests: Box<[Mutex<HashMap<Ipv4Addr, Guest>>]>,
    /// Packets that found no port.
    exhausted: AtomicU64,
    store: Store,
}

/// Where the bindings of an exit are written.
#[derive(Debug)]
struct Store {
    /// The exit's name, as a word.
    exit: u64,
    keeper: Option<Arc<Keeper>>,
}

type Words = [u64; TRANSLATION.0];

fn words(exit: u64, inside: Ipv4Addr, flow: &Flow, outside: Ipv4Addr, port: u16) -> Words {
    let pair = |high: Ipv4Addr, low: u32| u64::from(high.to_bits()) << 32 | u64::from(low);
    let ports = u32::from(flow.port) << 16 | u32::from(port);
    let rest = u64::from(flow.remote_port) << 16 | u64::from(flow.protocol);
    [exit, pair(inside, outside.to_bits()), pair(flow.remote, ports), rest]
}

/// The inside address that words are of, the connection, and the outside port; None: they are of none.
fn read(all: &Words) -> Option<(Ipv4Addr, Flow, Ipv4Addr, u16)> {
    let [exit, ends, remote, rest] = *all;
    let (inside, outside) = (Ipv4Addr::from_bits((ends >> 32) as u32), Ipv4Addr::from_bits(ends as u32));
    let flow = Flow {
        protocol: rest as u8,
        port: (remote >> 16) as u16,
        remote: Ipv4Addr::from_bits((remote >> 32) as u32),
        remote_port: (rest >> 16) as u16,
    };
    let port = remote as u16;
    (words(exit, inside, &flow, outside, port) == *all).then_some((inside, flow, outside, port))
}

impl Store {
    /// All bindings of an inside address have one hash.
    fn hash(&self, inside: Ipv4Addr, [one, other]: [u64; 2]) -> u64 {
        folded_multiply(self.exit ^ one, u64::from(inside.to_bits()) ^ other)
    }

    fn write(&self, inside: Ipv4Addr, flow: &Flow, outside: Ipv4Addr, port: u16) -> Option<Place> {
        let estate = &self.keeper.as_ref()?.translations;
        let words = words(self.exit, inside, flow, outside, port);
        estate.insert(self.hash(inside, estate.seed()), &words, &[])
    }

    fn remove(&self, place: Option<Place>) {
        if let (Some(keeper), Some(place)) = (&self.keeper, place) {
            keeper.translations.remove(place);
        }
    }

    /// Adds the bindings that processes before this one have left of an inside address, which has the ports of `block`.
    fn inherit(&self, guests: &mut HashMap<Ipv4Addr, Guest>, inside: Ipv4Addr, block: &Block) {
        let Some(keeper) = self.keeper.as_ref().filter(|keeper| keeper.translations.inherits()) else { return };
        if guests.get(&inside).is_some_and(|guest| guest.has_inherited) {
            return;
        }
        let mut left = Vec::new();
        keeper.translations.left_with(
            |seed| self.hash(inside, seed),
            // As many as there can be, beside others of the same hash.
            2 * most(block),
            |record| {
                left.extend(read(&record.fixed).filter(|(of, ..)| record.fixed[0] == self.exit && *of == inside));
                false
            },
        );
        if left.is_empty() {
            return;
        }
        let guest = guests.entry(inside).or_default();
        guest.has_inherited = true;
        for (_, flow, address, port) in left {
            let fits =
                block.has(address, port) && guest.outward.len() < most(block) && guest.is_free(&flow, address, port);
            if fits {
                let place = self.write(inside, &flow, address, port);
                guest.insert(flow, Outside { address, port, place });
                // The youngest is found first.
                guest.order.rotate_right(1);
            }
            keeper.translations.count(fits);
        }
    }
}

/// Bindings of an inside address, at most.
fn most(block: &Block) -> usize {
    PER_PORT * usize::from(block.count)
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
        self.outward.get(flow).filter(|outside| block.has(outside.address, outside.port)).map(|outside| outside.port)
    }

    fn is_free(&self, flow: &Flow, address: Ipv4Addr, port: u16) -> bool {
        !self.outward.contains_key(flow) && !self.inward.contains_key(&(address, Flow { port, ..*flow }))
    }

    fn insert(&mut self, flow: Flow, outside: Outside) {
        self.outward.insert(flow, outside);
        self.inward.insert((outside.address, Flow { port: outside.port, ..flow }), flow.port);
        self.order.push_back(flow);
    }

    fn remove(&mut self, flow: &Flow, store: &Store) {
        if let Some(Outside { address, port, place }) = self.outward.remove(flow) {
            self.inward.remove(&(address, Flow { port, ..*flow }));
            store.remove(place);
        }
    }

    /// Takes out those of the oldest bindings with connections that are over.
    fn reclaim(&mut self, store: &Store, lives: impl Fn(&Flow) -> bool) {
        for _ in 0..RECLAIM {
            let Some(oldest) = self.order.pop_front() else { return };
            if !self.outward.contains_key(&oldest) {
                continue;
            }
            if lives(&oldest) {
                self.order.push_back(oldest);
            } else {
                self.remove(&oldest, store);
            }
        }
    }
}

impl Bindings {
    /// Of the exit with a name, as a word.
    pub fn new(exit: u64, keeper: Option<Arc<Keeper>>) -> Bindings {
        let guests = (0..SHARDS).map(|_| Mutex::default()).collect();
        Bindings { guests, exhausted: AtomicU64::new(0), store: Store { exit, keeper } }
    }

    /// The inside addresses with the lock of `inside`, which has the ports of `block` and all bindings that are left of
    /// it.
    fn guest(&self, inside: Ipv4Addr, block: &Block) -> MutexGuard<'_, HashMap<Ipv4Addr, Guest>> {
        let shard = splitmix64(inside.to_bits().into()) as usize % SHARDS;
        // Nothing panics with the lock held.
        let mut guests = self.guests[shard].lock().unwrap_or_else(PoisonError::into_inner);
        self.store.inherit(&mut guests, inside, block);
        guests
    }

    /// The name of the exit, as a word.
    pub fn exit(&self) -> u64 {
        self.store.exit
    }

    /// The inside address that a record of a process before this one is of.
    pub fn inside_of(record: &Words) -> Ipv4Addr {
        Ipv4Addr::from_bits((record[1] >> 32) as u32)
    }

    /// Takes up what processes before this one have left of an inside address, which has the ports of `block`.
    pub fn take_over(&self, inside: Ipv4Addr, block: &Block) {
        drop(self.guest(inside, block));
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
        let mut guests = self.guest(inside, block);
        let guest = guests.entry(inside).or_default();
        if let Some(port) = guest.known(flow, block) {
            return Ok(port);
        }
        guest.remove(flow, &self.store);
        guest.reclaim(&self.store, &lives);
        let has_room = guest.outward.len() < most(block);
        let Some((port, over)) = has_room.then(|| guest.choose(flow, block, &lives)).flatten() else {
            self.exhausted.fetch_add(1, Ordering::Relaxed);
            return Err(Exhausted);
        };
        if let Some(over) = over {
            guest.remove(&over, &self.store);
        }
        let place = self.store.write(inside, flow, block.address, port);
        guest.insert(*flow, Outside { address: block.address, port, place });
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
        let guests = self.guest(inside, block);
        let empty = Guest::default();
        let guest = guests.get(&inside).unwrap_or(&empty);
        match guest.known(flow, block) {
            Some(port) => Ok(port),
            None => guest.choose(flow, block, lives).map(|(port, _)| port).ok_or(Exhausted),
        }
    }

    /// The outside port that a connection of `inside` has.
    pub fn known(&self, inside: Ipv4Addr, flow: &Flow, block: &Block) -> Option<u16> {
        self.guest(inside, block).get(&inside)?.known(flow, block)
    }

    /// The inside port, of `inside`, which has the ports of `block`, that `flow`'s port of `outside` stands for.
    pub fn inward(&self, inside: Ipv4Addr, block: &Block, outside: Ipv4Addr, flow: &Flow) -> Option<u16> {
        self.guest(inside, block).get(&inside)?.inward.get(&(outside, *flow)).copied()
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

impl Drop for Bindings {
    /// Of an exit that is no more.
    fn drop(&mut self) {
        let Some(keeper) = self.store.keeper.as_ref().filter(|keeper| !keeper.is_closed()) else { return };
        for guests in &mut self.guests {
            let guests = guests.get_mut().unwrap_or_else(PoisonError::into_inner);
            let written = guests.values().flat_map(|guest| guest.outward.values().filter_map(|outside| outside.place));
            written.for_each(|place| keeper.translations.remove(place));
        }
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
        let bindings = Bindings::new(7, None);
        let outward = |port, remote| bindings.outward(INSIDE, &flow(port, remote), &BLOCK, |_| true);
        assert_eq!([outward(4001, 1), outward(4001, 2), outward(4001, 1)], [Ok(1025), Ok(1025), Ok(1025)]);
        assert_eq!(outward(4009, 1), Ok(1026), "1025 is taken towards that end");
        assert_eq!(outward(4009, 3), Ok(1025));
        let inward = |port, remote| bindings.inward(INSIDE, &BLOCK, BLOCK.address, &flow(port, remote));
        assert_eq!([inward(1025, 1), inward(1026, 1), inward(1025, 3)], [Some(4001), Some(4009), Some(4009)]);
        assert_eq!([inward(1026, 2), inward(1025, 9)], [None, None], "no host was asked there");
        assert_eq!(bindings.len(), 4);
    }

    #[test]
    fn a_guest_has_its_ports_and_no_more() {
        let bindings = Bindings::new(7, None);
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
        let bindings = Bindings::new(7, None);
        let outward = |remote: u8, lives: bool| bindings.outward(INSIDE, &flow(7, remote), &BLOCK, move |_| lives);
        assert!((0..32).all(|remote| outward(remote, true).is_ok()));
        assert_eq!((outward(99, true), bindings.len()), (Err(Exhausted), 32));
        assert!(outward(99, false).is_ok() && bindings.len() < 32);
        assert_eq!(bindings.exhausted(), 1);
    }

    #[test]
    fn another_block_makes_another_binding() {
        let bindings = Bindings::new(7, None);
        let other = Block { first: 2048, ..BLOCK };
        let outward = |block| bindings.outward(INSIDE, &flow(9, 1), block, |_| true);
        assert_eq!((outward(&BLOCK), outward(&other)), (Ok(1025), Ok(2049)));
        assert_eq!(bindings.inward(INSIDE, &BLOCK, BLOCK.address, &flow(1025, 1)), None, "the old one is gone");
    }

    fn keeper() -> (Arc<Keeper>, crate::kept::KeptFiles) {
        let (keeper, files) = Keeper::new(100, 0).unwrap();
        (Arc::new(keeper), files)
    }

    #[test]
    fn what_follows_has_the_ports_that_were_given() {
        let (first, files) = keeper();
        let before = Bindings::new(7, Some(first));
        let outward =
            |bindings: &Bindings, port, remote| bindings.outward(INSIDE, &flow(port, remote), &BLOCK, |_| true);
        // Ports 1025, and 1026 for that which came second.
        assert_eq!((outward(&before, 4001, 1), outward(&before, 4009, 1)), (Ok(1025), Ok(1026)));
        before.outward(INSIDE, &flow(7, 2), &BLOCK, |_| true).unwrap();
        let follow = |exit| {
            let (next, _) = keeper();
            next.inherit_translations(std::os::fd::AsFd::as_fd(&files.translations)).unwrap();
            (Bindings::new(exit, Some(Arc::clone(&next))), next)
        };
        let (after, _) = follow(7);
        assert_eq!(after.inward(INSIDE, &BLOCK, BLOCK.address, &flow(1026, 1)), Some(4009), "from outside first");
        assert_eq!((outward(&after, 4009, 1), outward(&after, 4001, 1)), (Ok(1026), Ok(1025)));
        assert_eq!(after.len(), 3);
        let (other_exit, _) = follow(8);
        assert_eq!(outward(&other_exit, 4009, 1), Ok(1025));
        let (moved, keeper) = follow(7);
        let block = Block { first: 2048, ..BLOCK };
        assert_eq!(moved.outward(INSIDE, &flow(4009, 1), &block, |_| true), Ok(2049), "not its port by today's rules");
        assert_eq!(keeper.taken()[1], crate::kept::Kept { taken: 0, left: 3 });
    }

    #[test]
    fn what_was_left_is_no_more_than_a_guest_may_have() {
        let (first, files) = keeper();
        let wide = Block { count: 32, ..BLOCK };
        let before = Bindings::new(7, Some(first));
        assert!((0..100).all(|remote| before.outward(INSIDE, &flow(1024, remote), &wide, |_| true).is_ok()));
        assert_eq!(before.len(), 100);
        let (next, _) = keeper();
        next.inherit_translations(std::os::fd::AsFd::as_fd(&files.translations)).unwrap();
        let after = Bindings::new(7, Some(next));
        after.take_over(INSIDE, &BLOCK);
        assert!((1..=32).contains(&after.len()), "{}", after.len());
    }

    #[test]
    fn an_exit_that_is_no_more_leaves_nothing() {
        let (first, files) = keeper();
        let before = Bindings::new(7, Some(Arc::clone(&first)));
        before.outward(INSIDE, &flow(9, 1), &BLOCK, |_| true).unwrap();
        let left = || {
            let (next, _) = keeper();
            next.inherit_translations(std::os::fd::AsFd::as_fd(&files.translations)).unwrap();
            let mut left = 0;
            while !next.translations.next_left(100, |_| left += 1) {}
            left
        };
        assert_eq!(left(), 1);
        drop(before);
        assert_eq!(left(), 0);
        // A process that ends leaves all.
        let last = Bindings::new(7, Some(Arc::clone(&first)));
        last.outward(INSIDE, &flow(9, 1), &BLOCK, |_| true).unwrap();
        first.close();
        drop(last);
        assert_eq!(left(), 1);
    }
}
