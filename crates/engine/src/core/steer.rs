//! What a core does with packets from tunnels that are worked on where the table says: see [`net::steer`](crate::net).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use softdpu_sched::TenantScheduler;
use softdpu_sys::clock;
use softdpu_vpc::steer::{SteeredBy, Steering, SteeringDecision};
use softdpu_vpc::{DropReason, Packet, PortId};

use super::Core;
use super::parcels::ARRIVED_NS;
use crate::ids::CoreIndex;
use crate::message::ToCore;
use crate::net::{HANDED, Handed, Item, Next, Source};
use crate::queue::BURST;

/// Rounds of handing over what came of frames before it is left to the next: each gives rise to parcels only where a
/// queue or a socket has moved meanwhile.
const ROUNDS: usize = 4;

impl<S: TenantScheduler> Core<S> {
    /// Another table, from the next burst on.
    pub(super) fn set_steering(&mut self, table: &Arc<Steering>) {
        for (core, item) in self.net.steer.change(table, self.index) {
            self.put_in_line(core, vec![item]);
        }
    }

    /// Puts these behind what this core has read before for `core`.
    fn put_in_line(&mut self, core: CoreIndex, items: Vec<Item>) {
        let from = self.index;
        if core == from {
            self.net.steer.put(from, items);
        } else {
            self.peers[core.0].send(ToCore::Handed { from, items });
        }
    }

    /// Hands over those of the first `count` packets of the burst that another core is to work on, and those that have
    /// to wait for what waits here. The others move to the front, and what is behind their heads, `rests`, with them;
    /// how many those are.
    #[inline(never)]
    pub(super) fn hand_on(
        &mut self,
        port: PortId,
        packets: &mut [Packet],
        rests: &mut [&[u8]; BURST],
        count: usize,
    ) -> usize {
        let table = Arc::clone(self.net.steer.table());
        let mut seen = std::mem::take(&mut self.net.steer.seen);
        seen.clear();
        self.net.vpc.steering_keys(&packets[..count], &mut seen);
        let must_wait = self.net.steer.waits_for_itself(self.index);
        let counters = Arc::clone(&self.accounting.counters);
        let mut batches: Vec<(CoreIndex, Vec<Item>)> = Vec::new();
        let mut stay = 0;
        for at in 0..count {
            let decision = seen.get(at).copied().flatten().map(|key| table.decide(&key));
            match decision.map(|decision| decision.by) {
                Some(SteeredBy::Bucket(bucket)) => counters.steering.buckets[bucket].add(1),
                Some(SteeredBy::Rule(rule)) => counters.steering.rules[rule].add(1),
                None => {}
            }
            let to = match decision {
                Some(SteeringDecision { core: Some(core), .. }) => CoreIndex(core),
                _ => self.index,
            };
            if to == self.index && (!must_wait || decision.is_none()) {
                packets.swap(stay, at);
                rests.swap(stay, at);
                stay += 1;
                continue;
            }
            let (packet, rest) = (&packets[at], rests[at]);
            let batch = match batches.iter_mut().position(|(core, _)| *core == to) {
                Some(known) => &mut batches[known].1,
                None => {
                    batches.push((to, Vec::with_capacity(count - at)));
                    let last = batches.len() - 1;
                    &mut batches[last].1
                }
            };
            if self.handed[to.0].load(Relaxed) + batch.len() >= HANDED {
                // Who looks at drops is shown its head.
                let head = packet.head.bytes();
                self.net.refuse(port, DropReason::CoreFull, Source::Bytes(head), head.len());
                continue;
            }
            batch.push(Item::Packet(Handed { packet: packet.clone(), tail: rest.to_vec() }));
        }
        self.net.steer.seen = seen;
        for (core, items) in batches {
            if items.is_empty() {
                continue;
            }
            self.handed[core.0].fetch_add(items.len(), Relaxed);
            if core != self.index {
                counters.steering.handed.add(items.len() as u64);
            }
            self.put_in_line(core, items);
        }
        stay
    }

    /// Works on what readers have handed over, until nothing is left that waits for nobody else, or it has taken long
    /// since `now`. Whether there was anything.
    #[inline(never)]
    pub(super) fn work_lines(&mut self, now: u64) -> bool {
        let mut any = false;
        while let Some((reader, next)) = self.net.steer.next() {
            any = true;
            match next {
                Next::Mark(to, number) => {
                    self.hand_out();
                    self.accounting.counters.steering.marks.add(1);
                    if to == self.index {
                        self.net.steer.passed(reader, number);
                    } else {
                        self.peers[to.0].send(ToCore::Passed { reader, number });
                    }
                }
                Next::Packets(packets) => {
                    self.handed[self.index.0].fetch_sub(packets.len(), Relaxed);
                    if reader != self.index {
                        self.accounting.counters.steering.taken.add(packets.len() as u64);
                    }
                    self.handed_frames(packets);
                }
            }
            if self.dispatcher.is_timed() && clock::now().saturating_sub(now) > ARRIVED_NS {
                break;
            }
        }
        any
    }

    /// Takes packets that another core has read, or this one before, through the VPC.
    fn handed_frames(&mut self, handed: Vec<Handed>) {
        let underlay = self.net.vpc.tables().underlay_port();
        let mut packets = std::mem::take(&mut self.net.packets);
        let mut tails: [Vec<u8>; BURST] = std::array::from_fn(|_| Vec::new());
        let mut count = 0;
        for Handed { packet, tail } in handed.into_iter().take(BURST) {
            // Its port may be gone, and its number another's.
            if Some(packet.port) != underlay {
                self.drop_in(&packet, DropReason::PortDown);
                continue;
            }
            packets[count] = packet;
            tails[count] = tail;
            count += 1;
        }
        let rests: [&[u8]; BURST] = std::array::from_fn(|at| tails[at].as_slice());
        let began = clock::now();
        self.take_through(packets, count, &rests);
        self.accounting.counters.steering.worked_ns.add(clock::now().saturating_sub(began));
    }

    /// Hands everything over that came of what was worked on: to other cores, and to the kernel.
    fn hand_out(&mut self) {
        for _ in 0..ROUNDS {
            if self.net.parcels.is_empty() {
                break;
            }
            self.send_parcels();
        }
        self.flush_sockets();
    }
}
