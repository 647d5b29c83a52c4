//! Packets from tunnels that are forwarded by another core than the one that reads them.
//!
//! ```text
//!   core that reads: table ─► packets, as they came ──┐          ┌─► backlog of that reader ─► VPC, as its own burst
//!                             mark, where flows left ─┴─ message ┴─► … ─► egress handed off ─► "mark passed" ─┐
//!   core they go to now:      fence, before the first of them ────► backlog of that reader ─► waits for ◄─────┘
//! ```
//!
//! **Order within a flow.** Each core has a backlog for each core that reads; what a reader hands off is forwarded in
//! the order of its backlog. When the table changes, the reader puts a *mark* behind what it has handed to the core
//! that flows leave, and a *fence* with the same number before what it hands to the core that they go to. The first
//! core reports that the mark has passed when all before it was forwarded and what came of it was handed off. The
//! second does not go on with that backlog before it has the report. What it then sends comes behind what the first one
//! sent, as messages that one causes the other do ([`mailbox`](crate::mailbox)).
//!
//! There is no deadlock: the fence with the lowest number waits for a mark that has only lower fences, which are none,
//! before it.
//!
//! A reader's own packets go through a backlog of its own only while something waits there; else they are forwarded at
//! once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use softdpu_vpc::Packet;
use softdpu_vpc::steer::{Steering, SteeringKey};

use crate::ids::CoreIndex;
use crate::queue::BURST;

/// Packets that may wait on a core to be forwarded; beyond that they are dropped where they were read.
const BACKLOG: usize = 1024;

/// A packet from a tunnel that another core is to forward, as it came, with its outer headers.
pub(crate) struct SteeredPacket {
    pub packet: Packet,
    /// The bytes behind its head.
    pub tail: Vec<u8>,
}

/// What a reader puts into a backlog.
#[allow(clippy::large_enum_variant, reason = "nearly all are packets")]
pub(crate) enum SteeringItem {
    Packet(SteeredPacket),
    /// Report to core `to` when all before this is done.
    Mark {
        to: CoreIndex,
        number: u64,
    },
    /// Nothing behind this before the mark has passed.
    Fence(u64),
}

/// The next work of a backlog.
pub(crate) enum SteeredWork {
    /// A mark with this number has passed, which is to be reported to the core.
    Mark(CoreIndex, u64),
    Packets(Vec<SteeredPacket>),
}

/// What one reader has handed to this core.
#[derive(Default)]
struct ReaderBacklog {
    items: VecDeque<SteeringItem>,
    /// Marks that have passed and have their fences further behind.
    passed: Vec<u64>,
}

/// A core's part in steering.
pub(crate) struct TunnelSteering {
    table: Arc<Steering>,
    /// The table leaves all packets where they are read, and counts none.
    is_table_idle: bool,
    /// By reader.
    backlogs: Vec<ReaderBacklog>,
    /// Items in all backlogs.
    waiting: usize,
    /// The backlog that is served first.
    first: usize,
    /// The number of the last mark that this core made.
    number: u64,
    /// Packets that wait for each core, counted by all cores.
    lengths: Arc<[AtomicUsize]>,
    /// The inner headers of the burst under way; reused.
    pub inner: Vec<Option<SteeringKey>>,
}

impl TunnelSteering {
    /// `lengths`: packets that wait for each core, which all cores share.
    pub(crate) fn new(lengths: Arc<[AtomicUsize]>) -> TunnelSteering {
        TunnelSteering {
            table: Arc::default(),
            is_table_idle: true,
            backlogs: lengths.iter().map(|_| ReaderBacklog::default()).collect(),
            waiting: 0,
            first: 0,
            number: 0,
            lengths,
            inner: Vec::new(),
        }
    }

    /// The table by which this core hands off what it reads.
    pub(crate) fn table(&self) -> &Arc<Steering> {
        &self.table
    }

    /// Whether bursts need not be classified: they are forwarded at once, as without a table.
    #[inline(always)]
    pub(crate) fn is_bypassed(&self) -> bool {
        self.is_table_idle && self.waiting == 0
    }

    /// Whether anything waits in backlogs, be it behind a fence.
    #[inline(always)]
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Whether a core's backlog has no room for one more packet behind `count`.
    #[inline]
    pub(crate) fn is_full(&self, core: CoreIndex, count: usize) -> bool {
        self.lengths[core.0].load(Relaxed) + count >= BACKLOG
    }

    /// `count` packets go to a core.
    #[inline]
    pub(crate) fn handed_to(&self, core: CoreIndex, count: usize) {
        self.lengths[core.0].fetch_add(count, Relaxed);
    }

    /// `count` packets are about to be forwarded by `core`.
    #[inline]
    pub(crate) fn taken_by(&self, core: CoreIndex, count: usize) {
        self.lengths[core.0].fetch_sub(count, Relaxed);
    }

    /// Whether anything waits in the backlog of what `reader` reads.
    pub(crate) fn is_waiting_for(&self, reader: CoreIndex) -> bool {
        self.backlogs.get(reader.0).is_some_and(|backlog| !backlog.items.is_empty())
    }

    /// Another table for what core `reader` reads: the marks and fences to be put into backlogs, each with its core, in
    /// order.
    pub(crate) fn change(&mut self, table: &Arc<Steering>, reader: CoreIndex) -> Vec<(CoreIndex, SteeringItem)> {
        let count = self.backlogs.len();
        let moves = self.table.moves(table, reader.0).into_iter().filter(|(from, to)| *from < count && *to < count);
        let mut items = Vec::new();
        for (from, to) in moves {
            self.number += 1;
            let (from, to, number) = (CoreIndex(from), CoreIndex(to), self.number);
            items.extend([(from, SteeringItem::Mark { to, number }), (to, SteeringItem::Fence(number))]);
        }
        (self.table, self.is_table_idle) = (Arc::clone(table), table.is_idle());
        items
    }

    /// Puts these into the backlog of `reader`.
    pub(crate) fn enqueue(&mut self, reader: CoreIndex, items: impl IntoIterator<Item = SteeringItem>) {
        if let Some(backlog) = self.backlogs.get_mut(reader.0) {
            let before = backlog.items.len();
            backlog.items.extend(items);
            self.waiting += backlog.items.len() - before;
        }
    }

    /// A mark of `reader` has passed on the core that its flows left.
    pub(crate) fn mark_passed(&mut self, reader: CoreIndex, number: u64) {
        if let Some(backlog) = self.backlogs.get_mut(reader.0) {
            backlog.passed.push(number);
        }
    }

    /// Whether there is work that no fence holds back.
    pub(crate) fn is_ready(&self) -> bool {
        self.backlogs.iter().any(|backlog| match backlog.items.front() {
            None => false,
            Some(SteeringItem::Fence(number)) => backlog.passed.contains(number),
            Some(_) => true,
        })
    }

    /// The next work, of each backlog in turn: a burst at the most. None: there is nothing, or fences hold it back.
    pub(crate) fn next(&mut self) -> Option<(CoreIndex, SteeredWork)> {
        let count = self.backlogs.len();
        for step in 0..count {
            let reader = (self.first + step) % count;
            let Some(backlog) = self.backlogs.get_mut(reader) else { continue };
            let before = backlog.items.len();
            let next = backlog.next();
            self.waiting -= before - backlog.items.len();
            if let Some(next) = next {
                self.first = (reader + 1) % count;
                return Some((CoreIndex(reader), next));
            }
        }
        None
    }
}

impl ReaderBacklog {
    fn next(&mut self) -> Option<SteeredWork> {
        while let Some(SteeringItem::Fence(number)) = self.items.front() {
            let at = self.passed.iter().position(|passed| passed == number)?;
            self.passed.swap_remove(at);
            self.items.pop_front();
        }
        let mut packets = Vec::new();
        while packets.len() < BURST && matches!(self.items.front(), Some(SteeringItem::Packet(_))) {
            if let Some(SteeringItem::Packet(packet)) = self.items.pop_front() {
                packets.push(packet);
            }
        }
        if !packets.is_empty() {
            return Some(SteeredWork::Packets(packets));
        }
        match self.items.pop_front()? {
            SteeringItem::Mark { to, number } => Some(SteeredWork::Mark(to, number)),
            other => {
                self.items.push_front(other);
                None
            }
        }
    }
}
