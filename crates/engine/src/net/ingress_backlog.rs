//! Frames from wires that wait on a core for their tenants' grants.
//!
//! ```text
//!   socket, tunnel ─► owner ─┬─ beyond its limit ─► dropped, counted
//!                            ├─ nothing else waits ─► VPC, uncopied ──────────┐
//!                            ├─ otherwise ─► backlog of the tenant ─ grant ───┴─► charged to the tenant
//!                            └─ the backlog is full ─► dropped, counted
//! ```
//!
//! A backlog is a queue of its tenant's like those of guests, with a number of its own: the policy grants it, and its
//! frames count in the tenant's channel. Frames leave it in the order in which they came, and a tenant's frames go
//! behind those that wait, so a flow stays in order.
//!
//! Room for frames is taken when a tenant's first one has to wait, and kept.

use std::collections::VecDeque;

use softdpu_sched::{Nanos, QueueId, TenantId, Work};
use softdpu_vpc::{Packet, PortId};

use super::SteeredPacket;
use crate::queue::RateLimit;

/// Frames that wait in a backlog at the most.
pub(crate) const INGRESS_BACKLOG: usize = 256;

/// Their bytes at the most: a frame may stand for many.
const BYTES: usize = 4 << 20;

/// The most bytes behind a head for which room is kept: more than the MTU of most underlays. Larger frames get theirs
/// from the allocator.
const KEPT: usize = 2_048;

/// What a core is to enter into its books, of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IngressBill {
    /// The tenant has not had any before.
    pub is_first: bool,
    /// Frames that wait from now on.
    pub queued: Work,
    /// Frames that waited and will have no grant: they were forwarded ahead of it, or dropped with their port.
    pub left: u32,
    /// Frames that were forwarded without a grant.
    pub forwarded: Work,
    /// Frames that the backlog had no room for.
    pub dropped: u32,
    /// Frames beyond the tenant's limit.
    pub limited: u32,
    /// Core time that all this took, nanoseconds.
    pub time: u64,
}

/// A tenant's backlog on a core.
struct IngressBacklog {
    queue: QueueId,
    waiting: VecDeque<SteeredPacket>,
    bytes: usize,
    /// What wires may bring the tenant, on all cores together.
    limit: Option<RateLimit>,
    /// Room for bytes behind heads.
    spare: Vec<Vec<u8>>,
    bill: IngressBill,
    /// It is in the list of those with a bill.
    is_billed: bool,
}

/// The backlogs of a core's tenants.
#[derive(Default)]
pub(crate) struct IngressBacklogs {
    /// By tenant.
    backlogs: Vec<Option<Box<IngressBacklog>>>,
    /// Tenants with bills.
    billed: Vec<TenantId>,
}

impl IngressBacklogs {
    /// A tenant has a backlog from now on, which is this queue.
    pub(crate) fn add(&mut self, queue: QueueId) {
        let index = usize::from(queue.tenant.0);
        if self.backlogs.len() <= index {
            self.backlogs.resize_with(index + 1, || None);
        }
        self.backlogs[index].get_or_insert_with(|| {
            Box::new(IngressBacklog {
                queue,
                waiting: VecDeque::new(),
                bytes: 0,
                limit: None,
                spare: Vec::new(),
                bill: IngressBill::default(),
                is_billed: false,
            })
        });
    }

    #[inline]
    fn get(&self, tenant: TenantId) -> Option<&IngressBacklog> {
        self.backlogs.get(usize::from(tenant.0))?.as_deref()
    }

    #[inline]
    fn get_mut(&mut self, tenant: TenantId) -> Option<&mut IngressBacklog> {
        self.backlogs.get_mut(usize::from(tenant.0))?.as_deref_mut()
    }

    /// Whether a tenant has a backlog.
    #[inline]
    pub(crate) fn has(&self, tenant: TenantId) -> bool {
        self.get(tenant).is_some()
    }

    /// What wires may bring a tenant from now on, or without a limit.
    pub(crate) fn set_limit(&mut self, tenant: TenantId, limit: Option<RateLimit>) {
        if let Some(backlog) = self.get_mut(tenant) {
            backlog.limit = limit;
        }
    }

    /// Whether a frame that came at `now` is within its tenant's limit, which it is taken from then.
    #[inline]
    pub(crate) fn is_within_limit(&self, tenant: TenantId, packet: &Packet, now: impl FnOnce() -> Nanos) -> bool {
        let Some(limit) = self.get(tenant).and_then(|backlog| backlog.limit.as_ref()) else { return true };
        limit.take_if_open(now(), packet.frames() as u64, packet.len() as u64)
    }

    /// Whether a queue is a tenant's backlog.
    pub(crate) fn is_backlog(&self, queue: QueueId) -> bool {
        self.get(queue.tenant).is_some_and(|backlog| backlog.queue == queue)
    }

    /// Whether frames of a tenant wait.
    #[inline]
    pub(crate) fn is_waiting(&self, tenant: TenantId) -> bool {
        self.get(tenant).is_some_and(|backlog| !backlog.waiting.is_empty())
    }

    /// Tenants with frames that wait.
    pub(crate) fn waiting(&self) -> Vec<TenantId> {
        let backlogs = self.backlogs.iter().flatten().filter(|backlog| !backlog.waiting.is_empty());
        backlogs.map(|backlog| backlog.queue.tenant).collect()
    }

    /// The first frames of a tenant that wait, `most` of them at the most, as work.
    pub(crate) fn work(&self, tenant: TenantId, most: usize) -> Work {
        let mut work = Work::default();
        for SteeredPacket { packet, .. } in
            self.get(tenant).iter().flat_map(|backlog| backlog.waiting.iter().take(most))
        {
            work.units += 1;
            work.bytes += packet.len() as u64;
        }
        work
    }

    /// Puts a copy of a frame, with `rest` behind its head, behind those of its tenant. False: there is no room.
    pub(crate) fn enqueue(&mut self, tenant: TenantId, packet: &Packet, rest: &[u8]) -> bool {
        let Some(backlog) = self.get_mut(tenant) else { return false };
        let len = packet.len();
        if backlog.waiting.len() >= INGRESS_BACKLOG || backlog.bytes + len > BYTES {
            return false;
        }
        if backlog.waiting.capacity() < INGRESS_BACKLOG {
            backlog.waiting.reserve_exact(INGRESS_BACKLOG);
            backlog.spare.reserve_exact(INGRESS_BACKLOG);
            backlog.bill.is_first = true;
        }
        let mut tail = backlog.spare.pop().unwrap_or_default();
        tail.extend_from_slice(rest);
        backlog.waiting.push_back(SteeredPacket { packet: packet.clone(), tail });
        backlog.bytes += len;
        self.bill(tenant, |bill| {
            bill.queued.units += 1;
            bill.queued.bytes += len as u64;
        });
        true
    }

    /// Takes the next frame of a tenant, if it came by the port `by`; None: by whichever.
    pub(crate) fn take(&mut self, tenant: TenantId, by: Option<PortId>) -> Option<SteeredPacket> {
        let backlog = self.get_mut(tenant)?;
        backlog.waiting.front().filter(|next| by.is_none_or(|by| next.packet.port == by))?;
        let next = backlog.waiting.pop_front()?;
        backlog.bytes = backlog.bytes.saturating_sub(next.packet.len());
        Some(next)
    }

    /// Keeps the room of a frame that was taken.
    pub(crate) fn reuse(&mut self, tenant: TenantId, mut tail: Vec<u8>) {
        if let Some(backlog) = self.get_mut(tenant)
            && (1..=KEPT).contains(&tail.capacity())
            && backlog.spare.len() < INGRESS_BACKLOG
        {
            tail.clear();
            backlog.spare.push(tail);
        }
    }

    /// A port is no more. Drops what it has brought and waits, and returns how many frames that is.
    pub(crate) fn forget_port(&mut self, port: PortId) -> usize {
        let mut dropped = 0;
        for tenant in self.waiting() {
            let Some(backlog) = self.get_mut(tenant) else { continue };
            let before = backlog.waiting.len();
            backlog.waiting.retain(|frame| frame.packet.port != port);
            backlog.bytes = backlog.waiting.iter().map(|frame| frame.packet.len()).sum();
            let left = before - backlog.waiting.len();
            dropped += left;
            self.bill(tenant, |bill| bill.left += left as u32);
        }
        dropped
    }

    /// Adds to a tenant's bill.
    #[inline]
    pub(crate) fn bill(&mut self, tenant: TenantId, add: impl FnOnce(&mut IngressBill)) {
        let Some(backlog) = self.get_mut(tenant) else { return };
        add(&mut backlog.bill);
        if !std::mem::replace(&mut backlog.is_billed, true) {
            self.billed.push(tenant);
        }
    }

    /// Whether any bill is there.
    #[inline]
    pub(crate) fn has_bills(&self) -> bool {
        !self.billed.is_empty()
    }

    /// The next bill, with the queue that is the tenant's backlog.
    pub(crate) fn next_bill(&mut self) -> Option<(QueueId, IngressBill)> {
        let tenant = self.billed.pop()?;
        let backlog = self.get_mut(tenant)?;
        backlog.is_billed = false;
        Some((backlog.queue, std::mem::take(&mut backlog.bill)))
    }
}

#[cfg(test)]
mod tests {
    use softdpu_vpc::{Checksum, Head};

    use super::*;

    const TENANT: TenantId = TenantId(2);

    fn backlogs() -> IngressBacklogs {
        let mut backlogs = IngressBacklogs::default();
        backlogs.add(QueueId { tenant: TENANT, index: 7 });
        backlogs
    }

    fn packet(port: u32, tail: usize) -> Packet {
        Packet {
            head: Head::of(&[0; 64]),
            tail: tail as u32,
            checksum: Checksum::Complete,
            segmentation: None,
            port: PortId(port),
        }
    }

    #[test]
    fn a_backlog_is_bounded_by_frames_and_by_bytes() {
        let mut backlogs = backlogs();
        let room = |backlogs: &mut IngressBacklogs, tail: usize| {
            (0..1_000).filter(|_| backlogs.enqueue(TENANT, &packet(0, tail), &vec![0; tail])).count()
        };
        assert_eq!(room(&mut backlogs, 10), INGRESS_BACKLOG);
        while let Some(frame) = backlogs.take(TENANT, None) {
            backlogs.reuse(TENANT, frame.tail);
        }
        assert_eq!(room(&mut backlogs, 60_000), BYTES / 60_064);
        assert!(!backlogs.enqueue(TenantId(1), &packet(0, 0), &[]), "a tenant without a backlog has no room");
    }

    #[test]
    fn room_for_small_frames_is_kept_and_that_of_large_ones_is_not() {
        let mut backlogs = backlogs();
        for (len, kept) in [(1_400, true), (60_000, false)] {
            assert!(backlogs.enqueue(TENANT, &packet(0, len), &vec![0; len]));
            let frame = backlogs.take(TENANT, None).unwrap();
            let room = frame.tail.as_ptr();
            backlogs.reuse(TENANT, frame.tail);
            assert!(backlogs.enqueue(TENANT, &packet(0, 1_000), &[0; 1_000]));
            let again = backlogs.take(TENANT, None).unwrap();
            assert_eq!((again.tail.len(), again.tail.as_ptr() == room), (1_000, kept));
        }
    }

    #[test]
    fn frames_of_a_port_that_is_gone_leave_and_are_billed() {
        let mut backlogs = backlogs();
        for port in [0, 1, 0, 1, 1] {
            assert!(backlogs.enqueue(TENANT, &packet(port, 10), &[0; 10]));
        }
        assert_eq!((backlogs.forget_port(PortId(1)), backlogs.work(TENANT, 9)), (3, Work { units: 2, bytes: 148 }));
        let queued = Work { units: 5, bytes: 370 };
        let bill = IngressBill { is_first: true, queued, left: 3, ..IngressBill::default() };
        assert_eq!(backlogs.next_bill(), Some((QueueId { tenant: TENANT, index: 7 }, bill)));
        assert_eq!(backlogs.next_bill(), None);
    }
}
