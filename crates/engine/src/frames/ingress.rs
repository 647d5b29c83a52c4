//! Frames that sockets bring, of interfaces of the host and of the underlay, and packets from tunnels that another core
//! forwards than the one that reads them ([`TunnelSteering`](crate::net::TunnelSteering)).
//!
//! Each is [admitted](Forwarder::admit) on the core that forwards it: at once, or into its tenant's backlog
//! ([`IngressBacklogs`](crate::net::IngressBacklogs)).

use std::sync::Arc;

use softdpu_sched::{Nanos, QueueId, TenantId, Work};
use softdpu_sys::clock;
use softdpu_sys::port::{Frame, PortError, VnetHeader};
use softdpu_vpc::steer::{SteeredBy, Steering, SteeringDecision};
use softdpu_vpc::{DropReason, IngressOwner, Packet, PortId};

use super::Forwarder;
use super::handoff::BUDGET_NS;
use crate::core::Contention;
use crate::ids::CoreIndex;
use crate::message::{FromCore, ToCore};
use crate::net::{FrameTail, IngressBill, Injection, Port, SteeredPacket, SteeredWork, SteeringItem, pending_offload};
use crate::queue::{BURST, QueueTable, RateLimit};
use crate::sleep::Sleep;

/// Rounds of sending what came of frames before it is left to the next: each gives rise to egress frames only where a
/// queue or a socket has moved meanwhile.
const ROUNDS: usize = 4;

/// Bursts that are read from a socket in a round at the most, where none of their frames is forwarded yet.
const READS: usize = 8;

impl Forwarder {
    /// Reads the sockets that this core has. Whether there was anything.
    pub(crate) fn read_sockets(&mut self, queues: &mut QueueTable, sleep: &Sleep, contention: &Contention<'_>) -> bool {
        let mut any = false;
        let mut place = 0;
        // One that fails may have been put away.
        while let Some(id) = self.ports.socket_at(place) {
            place += 1;
            let Some(mut socket) = self.ports.get_mut(id).and_then(|port| port.socket.take()) else { continue };
            let mut received = Ok(0);
            for _ in 0..READS {
                let mut is_only_sorted = false;
                received = socket.receive(BURST, |frames| {
                    let forwarded = self.take_frames(queues, id, frames, contention);
                    is_only_sorted = frames.len() == BURST && forwarded == 0;
                });
                any |= matches!(received, Ok(1..));
                // Frames behind those, which may be another tenant's, would be lost in the kernel.
                if !is_only_sorted {
                    break;
                }
            }
            if let Some(port) = self.ports.get_mut(id) {
                port.socket = Some(socket);
            }
            if let Err(error) = received {
                self.socket_failed(id, &error, sleep);
            }
        }
        any
    }

    /// Takes injected frames as though their port had brought them. They are not held back: what finds no buffer is
    /// dropped.
    pub(crate) fn inject(&mut self, queues: &mut QueueTable, injection: Injection, contention: &Contention<'_>) {
        let Injection { port, mut frames, progress } = injection;
        let is_known = self.ports.get(port).is_some_and(|known| *known.name == *progress.name);
        if is_known {
            for burst in frames.chunks_mut(BURST) {
                let mut burst: Vec<Frame<'_>> =
                    burst.iter_mut().map(|bytes| Frame { header: VnetHeader::default(), bytes }).collect();
                self.take_frames(queues, port, &mut burst, contention);
            }
        }
        progress.took(is_known.then_some(frames.len()));
    }

    fn socket_failed(&mut self, id: PortId, error: &PortError, sleep: &Sleep) {
        if error.is_final() {
            // Polled on, it is ready for ever.
            self.set_socket(id, None, None, sleep);
            return self.links.report(FromCore::SocketLost { port: id, reason: error.to_string() });
        }
        if let Some(port) = self.ports.get_mut(id)
            && !std::mem::replace(&mut port.is_failure_logged, true)
        {
            tracing::warn!(port = %port.name, %error, "its socket fails; this is said once");
        }
    }

    /// Takes frames of a socket through the VPC, or into their tenants' backlogs. Returns how many were forwarded.
    fn take_frames(
        &mut self,
        queues: &mut QueueTable,
        id: PortId,
        frames: &mut [Frame<'_>],
        contention: &Contention<'_>,
    ) -> usize {
        let began = clock::now();
        let mut packets = std::mem::take(&mut self.packets);
        let mut rests: [&[u8]; BURST] = [&[]; BURST];
        let mut count = 0;
        let limit = self.ports.get(id).and_then(|port| port.limit.clone());
        for frame in frames.iter().take(BURST) {
            let stands_for = match usize::from(frame.header.gso_size) {
                0 => 1,
                size => frame.bytes.len().div_ceil(size),
            };
            if let Some(limit) = &limit
                && !limit.take_if_open(Nanos(clock::now()), stands_for as u64, frame.bytes.len() as u64)
            {
                self.refuse(id, DropReason::Policed, FrameTail::Bytes(frame.bytes), frame.bytes.len());
                continue;
            }
            let Some((checksum, segmentation)) = pending_offload(&frame.header, frame.bytes.len()) else {
                self.refuse(id, DropReason::BadOffload, FrameTail::Bytes(frame.bytes), frame.bytes.len());
                continue;
            };
            let packet = &mut packets[count];
            packet.head.reset(frame.bytes.len());
            let (head, rest) = frame.bytes.split_at(packet.head.len());
            packet.head.bytes_mut().copy_from_slice(head);
            (packet.tail, packet.port) = (rest.len() as u32, id);
            (packet.checksum, packet.segmentation) = (checksum, segmentation);
            rests[count] = rest;
            count += 1;
            self.ports.count_in(id, frame.bytes.len());
        }
        if self.steering.is_bypassed() {
            return self.admit(queues, packets, count, &mut rests, contention, began);
        }
        count = self.steer(&mut packets, &mut rests, count);
        let began = clock::now();
        let forwarded = self.admit(queues, packets, count, &mut rests, contention, began);
        self.counters.steering.worked_ns.add(clock::now().saturating_sub(began));
        forwarded
    }

    /// Forwards the first `count` packets, with `rests` behind their heads, which are of one port and whose reading
    /// began at `began`. Those of a tenant that others compete with, or that has a backlog, go behind that: its grants
    /// forward them. Returns how many were forwarded.
    fn admit(
        &mut self,
        queues: &mut QueueTable,
        mut packets: Vec<Packet>,
        count: usize,
        rests: &mut [&[u8]; BURST],
        contention: &Contention<'_>,
        began: u64,
    ) -> usize {
        let mut tenants = [None; BURST];
        self.find_tenants(&packets[..count], &mut tenants);
        let mut owned = tenants[..count].iter().flatten();
        let Some(&first) = owned.next() else {
            self.forward_burst(queues, packets, count, rests);
            return count;
        };
        // A socket that has more frames than a burst, of several tenants, is one for which they compete.
        let is_mixed = count == BURST && owned.any(|tenant| *tenant != first);
        let mut stay = 0;
        for at in 0..count {
            if let Some(tenant) = tenants[at]
                && !self.backlogs.is_within_limit(tenant, &packets[at], || Nanos(clock::now()))
            {
                self.backlogs.bill(tenant, |bill| bill.limited += 1);
                self.refuse_packet(&packets[at], DropReason::Policed);
                continue;
            }
            let waits = |tenant| is_mixed || contention.is_beside(tenant) || self.backlogs.is_waiting(tenant);
            match tenants[at] {
                Some(tenant) if waits(tenant) => {
                    if !self.backlogs.enqueue(tenant, &packets[at], rests[at]) {
                        self.backlogs.bill(tenant, |bill| bill.dropped += 1);
                        self.refuse_packet(&packets[at], DropReason::IngressFull);
                    }
                }
                tenant => {
                    if let Some(tenant) = tenant {
                        let bytes = packets[at].len() as u64;
                        self.backlogs.bill(tenant, |bill| {
                            bill.forwarded.units += 1;
                            bill.forwarded.bytes += bytes;
                        });
                    }
                    packets.swap(stay, at);
                    rests.swap(stay, at);
                    stay += 1;
                }
            }
        }
        if stay > 0 {
            self.forward_burst(queues, packets, stay, rests);
        } else {
            self.packets = packets;
        }
        let each = clock::now().saturating_sub(began) / count as u64;
        tenants.iter().flatten().for_each(|tenant| self.backlogs.bill(*tenant, |bill| bill.time += each));
        stay
    }

    /// What came in is dropped before the VPC. A capture of drops gets its head.
    fn refuse_packet(&mut self, packet: &Packet, reason: DropReason) {
        let head = packet.head.bytes();
        self.refuse(packet.port, reason, FrameTail::Bytes(head), head.len());
    }

    /// The tenants that packets from one port belong to. None: the node, or a tenant that the engine does not know.
    fn find_tenants(&mut self, packets: &[Packet], tenants: &mut [Option<TenantId>; BURST]) {
        let Some(from) = packets.first().map(|packet| packet.port) else { return };
        let known = |tenant: &TenantId| self.backlogs.has(*tenant);
        let of_port = |port| self.ports.get(port).and_then(|port| port.tenant).filter(known);
        if self.vpc.tables().underlay_port() != Some(from) {
            tenants[..packets.len()].fill(of_port(from));
            return;
        }
        let mut owners = std::mem::take(&mut self.owners);
        owners.clear();
        self.vpc.ingress_owners(packets, &mut owners);
        for (tenant, owner) in tenants.iter_mut().zip(&owners) {
            *tenant = match *owner {
                IngressOwner::Tenant(tenant) => Some(tenant).filter(known),
                IngressOwner::Port(port) => of_port(port),
                IngressOwner::Node => None,
            };
        }
        self.owners = owners;
    }

    /// A tenant's frames may wait as this queue.
    pub(crate) fn add_backlog(&mut self, queue: QueueId) {
        self.backlogs.add(queue);
    }

    /// What wires may bring a tenant from now on, or without a limit.
    pub(crate) fn limit_ingress(&mut self, tenant: TenantId, limit: Option<RateLimit>) {
        self.backlogs.set_limit(tenant, limit);
    }

    /// Whether a queue is a tenant's backlog of frames from wires.
    pub(crate) fn is_backlog(&self, queue: QueueId) -> bool {
        self.backlogs.is_backlog(queue)
    }

    /// The first frames of a tenant's backlog, `most` at the most, as work.
    pub(crate) fn backlog_work(&self, tenant: TenantId, most: usize) -> Work {
        self.backlogs.work(tenant, most)
    }

    /// What frames of a tenant from wires have come to outside of grants, with the queue that is its backlog.
    #[inline(always)]
    pub(crate) fn next_bill(&mut self) -> Option<(QueueId, IngressBill)> {
        if self.backlogs.has_bills() { self.backlogs.next_bill() } else { None }
    }

    /// Forwards up to `most` frames of a tenant's backlog, a burst of one port's at the most. Returns what was taken
    /// from it.
    pub(crate) fn forward_backlog(&mut self, queues: &mut QueueTable, tenant: TenantId, most: usize) -> Work {
        let mut packets = std::mem::take(&mut self.packets);
        let mut tails: [Vec<u8>; BURST] = std::array::from_fn(|_| Vec::new());
        let (mut work, mut by) = (Work::default(), None);
        for (packet, tail) in packets.iter_mut().zip(&mut tails).take(most) {
            let Some(next) = self.backlogs.take(tenant, by) else { break };
            by = Some(next.packet.port);
            work.units += 1;
            work.bytes += next.packet.len() as u64;
            (*packet, *tail) = (next.packet, next.tail);
        }
        let rests: [&[u8]; BURST] = std::array::from_fn(|at| tails[at].as_slice());
        self.forward_burst(queues, packets, work.units as usize, &rests);
        for tail in tails.into_iter().take(work.units as usize) {
            self.backlogs.reuse(tenant, tail);
        }
        work
    }

    /// Forwards all that waits in backlogs, ahead of its grants.
    fn forward_backlogs(&mut self, queues: &mut QueueTable) {
        for tenant in self.backlogs.waiting() {
            let began = clock::now();
            let mut all = Work::default();
            loop {
                let Work { units, bytes } = self.forward_backlog(queues, tenant, BURST);
                if units == 0 {
                    break;
                }
                all = Work { units: all.units + units, bytes: all.bytes + bytes };
            }
            let time = clock::now().saturating_sub(began);
            self.backlogs.bill(tenant, |bill| {
                bill.left += all.units;
                bill.forwarded.units += all.units;
                bill.forwarded.bytes += all.bytes;
                bill.time += time;
            });
        }
    }

    /// Hands everything that was written to sockets in this round to the kernel.
    pub(crate) fn flush_sockets(&mut self, sleep: &Sleep) {
        let mut place = 0;
        while let Some(id) = self.ports.socket_at(place) {
            place += 1;
            let Some(Port { socket: Some(socket), counters, .. }) = self.ports.get_mut(id) else { continue };
            let flushed = socket.flush();
            let dropped = socket.take_dropped();
            if dropped > 0 {
                counters.dropped_out[DropReason::Backend as usize].add(dropped);
            }
            if let Err(error) = flushed {
                self.socket_failed(id, &error, sleep);
            }
        }
    }

    /// Another steering table, from the next burst on.
    pub(crate) fn set_steering(&mut self, table: &Arc<Steering>) {
        for (core, item) in self.steering.change(table, self.links.index) {
            self.enqueue_steered(core, vec![item]);
        }
    }

    /// Packets that core `from` has read, and what keeps them in order.
    pub(crate) fn steered(&mut self, from: CoreIndex, items: Vec<SteeringItem>) {
        self.steering.enqueue(from, items);
    }

    /// A mark of `reader` has passed on the core that its flows left.
    pub(crate) fn mark_passed(&mut self, reader: CoreIndex, number: u64) {
        self.steering.mark_passed(reader, number);
    }

    /// Whether packets from tunnels wait to be forwarded by this core.
    #[inline(always)]
    pub(crate) fn has_steered(&self) -> bool {
        self.steering.is_waiting()
    }

    /// Puts these behind what this core has read before for `core`.
    fn enqueue_steered(&mut self, core: CoreIndex, items: Vec<SteeringItem>) {
        let from = self.links.index;
        if core == from {
            self.steering.enqueue(from, items);
        } else {
            self.links.send(core, ToCore::Steered { from, items });
        }
    }

    /// Hands off those of the first `count` packets of the burst that another core is to forward, and those that are
    /// behind what waits on this one. The others move to the front, and what is behind their heads, `rests`, with them.
    /// Returns how many those are.
    #[inline(never)]
    fn steer(&mut self, packets: &mut [Packet], rests: &mut [&[u8]; BURST], count: usize) -> usize {
        let index = self.links.index;
        let table = Arc::clone(self.steering.table());
        let mut inner = std::mem::take(&mut self.steering.inner);
        inner.clear();
        self.vpc.steering_keys(&packets[..count], &mut inner);
        let must_wait = self.steering.is_waiting_for(index);
        let counters = Arc::clone(&self.counters);
        let mut batches: Vec<(CoreIndex, Vec<SteeringItem>)> = Vec::new();
        let mut stay = 0;
        for at in 0..count {
            let decision = inner.get(at).copied().flatten().map(|key| table.decide(&key));
            match decision.map(|decision| decision.by) {
                Some(SteeredBy::Bucket(bucket)) => counters.steering.buckets[bucket].add(1),
                Some(SteeredBy::Rule(rule)) => counters.steering.rules[rule].add(1),
                None => {}
            }
            let to = match decision {
                Some(SteeringDecision { core: Some(core), .. }) => CoreIndex(core),
                _ => index,
            };
            if to == index && (!must_wait || decision.is_none()) {
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
            if self.steering.is_full(to, batch.len()) {
                self.refuse_packet(packet, DropReason::CoreFull);
                continue;
            }
            batch.push(SteeringItem::Packet(SteeredPacket { packet: packet.clone(), tail: rest.to_vec() }));
        }
        self.steering.inner = inner;
        for (core, items) in batches {
            if items.is_empty() {
                continue;
            }
            self.steering.handed_to(core, items.len());
            if core != index {
                counters.steering.handed.add(items.len() as u64);
            }
            self.enqueue_steered(core, items);
        }
        stay
    }

    /// Forwards packets from tunnels that readers have handed off, until none is left that no fence holds back or, if
    /// `is_timed`, it has taken long since `now`. Whether there was anything.
    #[inline(never)]
    pub(crate) fn forward_steered(
        &mut self,
        queues: &mut QueueTable,
        sleep: &Sleep,
        contention: &Contention<'_>,
        (now, is_timed): (u64, bool),
    ) -> bool {
        let index = self.links.index;
        let mut any = false;
        while let Some((reader, next)) = self.steering.next() {
            any = true;
            match next {
                SteeredWork::Mark(to, number) => {
                    // What came before it may wait there.
                    self.forward_backlogs(queues);
                    self.flush(queues, sleep);
                    self.counters.steering.marks.add(1);
                    if to == index {
                        self.steering.mark_passed(reader, number);
                    } else {
                        self.links.send(to, ToCore::MarkPassed { reader, number });
                    }
                }
                SteeredWork::Packets(packets) => {
                    self.steering.taken_by(index, packets.len());
                    if reader != index {
                        self.counters.steering.taken.add(packets.len() as u64);
                    }
                    self.forward_steered_burst(queues, packets, contention);
                }
            }
            if is_timed && clock::now().saturating_sub(now) > BUDGET_NS {
                break;
            }
        }
        any
    }

    /// Takes packets that another core has read, or this one before, through the VPC.
    fn forward_steered_burst(
        &mut self,
        queues: &mut QueueTable,
        steered: Vec<SteeredPacket>,
        contention: &Contention<'_>,
    ) {
        let underlay = self.vpc.tables().underlay_port();
        let mut packets = std::mem::take(&mut self.packets);
        let mut tails: [Vec<u8>; BURST] = std::array::from_fn(|_| Vec::new());
        let mut count = 0;
        for SteeredPacket { packet, tail } in steered.into_iter().take(BURST) {
            // Its port may be gone, and its number another's.
            if Some(packet.port) != underlay {
                self.drop_in(&packet, DropReason::PortDown);
                continue;
            }
            packets[count] = packet;
            tails[count] = tail;
            count += 1;
        }
        let mut rests: [&[u8]; BURST] = std::array::from_fn(|at| tails[at].as_slice());
        let began = clock::now();
        self.admit(queues, packets, count, &mut rests, contention, began);
        self.counters.steering.worked_ns.add(clock::now().saturating_sub(began));
    }

    /// Sends everything that came of what was forwarded: to other cores, and to the kernel.
    fn flush(&mut self, queues: &mut QueueTable, sleep: &Sleep) {
        for _ in 0..ROUNDS {
            if !self.handoff.has_outgoing() {
                break;
            }
            self.send_outgoing(queues);
        }
        self.flush_sockets(sleep);
    }
}
