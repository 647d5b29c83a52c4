//! Packets from tunnels that another core is to work on than the one that read them.
//!
//! ```text
//!   core that reads: table ─► packets, as they came ─┐          ┌─► line of that reader ─► VPC, as its own burst
//!                             mark, where flows go ──┴─ message ┴─► … ─► outputs handed over ─► "passed" ─┐
//!   core they go to now:      fence, before the first of them ─────► line of that reader ─► waits for ◄──┘
//! ```
//!
//! **Order within a flow.** Each core has a line for each core that reads; what a reader hands over is worked on in the
//! order of its line. When the table changes, the reader puts a *mark* behind what it has handed to the core that flows
//! leave, and a *fence* with the same number before what it hands to the core that they go to. The first core says that
//! the mark has passed when all before it was worked on and what came of it was handed over; the second does not go on
//! with that line before it has heard so. What it then sends comes behind what the first one sent, as messages that one
//! causes the other do ([`mailbox`](crate::mailbox)).
//!
//! No two lines wait for each other for ever: the fence with the lowest number waits for a mark that has only lower
//! fences, which are none, before it.
//!
//! A reader's own packets go through a line of its own only while something waits there; else they are worked on at
//! once.

use std::collections::VecDeque;
use std::sync::Arc;

use softdpu_vpc::Packet;
use softdpu_vpc::steer::{Steering, SteeringKey};

use crate::ids::CoreIndex;
use crate::queue::BURST;

/// Packets that may wait on a core for it to work on them; beyond that they are dropped where they were read.
pub(crate) const HANDED: usize = 1024;

/// A packet that another core is to work on, as it came, with its outer headers.
pub(crate) struct Handed {
    pub packet: Packet,
    /// The bytes behind its head.
    pub tail: Vec<u8>,
}

/// What a reader puts into a line.
#[allow(clippy::large_enum_variant, reason = "nearly all are packets")]
pub(crate) enum Item {
    Packet(Handed),
    /// Tell `to` when all before this is done.
    Mark {
        to: CoreIndex,
        number: u64,
    },
    /// Nothing behind this before the mark has passed.
    Fence(u64),
}

/// What came from one reader and waits.
#[derive(Default)]
struct Line {
    items: VecDeque<Item>,
    /// Marks that have passed and whose fences have not come up yet.
    passed: Vec<u64>,
}

/// What is next in a line.
pub(crate) enum Next {
    /// The core to tell that a mark has passed, and its number.
    Mark(CoreIndex, u64),
    Packets(Vec<Handed>),
}

/// A core's part in steering.
pub(crate) struct Steer {
    table: Arc<Steering>,
    /// What it reads stays, and is not counted.
    is_idle: bool,
    /// By reader.
    lines: Vec<Line>,
    /// Things in all lines.
    waiting: usize,
    /// The line that is looked at first.
    first: usize,
    /// Of the last mark that it has put anywhere.
    number: u64,
    /// What was seen of the burst under way.
    pub seen: Vec<Option<SteeringKey>>,
}

impl Steer {
    pub(crate) fn new(cores: usize) -> Steer {
        Steer {
            table: Arc::default(),
            is_idle: true,
            lines: (0..cores).map(|_| Line::default()).collect(),
            waiting: 0,
            first: 0,
            number: 0,
            seen: Vec::new(),
        }
    }

    /// By which table it hands over what it reads.
    pub(crate) fn table(&self) -> &Arc<Steering> {
        &self.table
    }

    /// Whether nobody has to look at what is read: it is worked on at once, as without a table.
    #[inline(always)]
    pub(crate) fn lets_all_stay(&self) -> bool {
        self.is_idle && self.waiting == 0
    }

    /// Whether anything waits in lines, be it behind a fence.
    #[inline(always)]
    pub(crate) fn waits(&self) -> bool {
        self.waiting > 0
    }

    /// Whether something waits in the line of what this core, `here`, reads itself.
    pub(crate) fn waits_for_itself(&self, here: CoreIndex) -> bool {
        self.lines.get(here.0).is_some_and(|line| !line.items.is_empty())
    }

    /// Another table for what core `here` reads: the marks and fences that are to be put into lines, with the core
    /// whose line it is, in order.
    pub(crate) fn change(&mut self, table: &Arc<Steering>, here: CoreIndex) -> Vec<(CoreIndex, Item)> {
        let moves = self.table.moves(table, here.0);
        let known = moves.into_iter().filter(|(from, to)| *from < self.lines.len() && *to < self.lines.len());
        let mut items = Vec::new();
        for (from, to) in known {
            self.number += 1;
            let (from, to, number) = (CoreIndex(from), CoreIndex(to), self.number);
            items.extend([(from, Item::Mark { to, number }), (to, Item::Fence(number))]);
        }
        (self.table, self.is_idle) = (Arc::clone(table), table.is_idle());
        items
    }

    /// Puts these behind what waits of `reader`.
    pub(crate) fn put(&mut self, reader: CoreIndex, items: impl IntoIterator<Item = Item>) {
        if let Some(line) = self.lines.get_mut(reader.0) {
            let before = line.items.len();
            line.items.extend(items);
            self.waiting += line.items.len() - before;
        }
    }

    /// A mark of `reader` has passed where its flows were.
    pub(crate) fn passed(&mut self, reader: CoreIndex, number: u64) {
        if let Some(line) = self.lines.get_mut(reader.0) {
            line.passed.push(number);
        }
    }

    /// Whether there is something that waits for nobody else.
    pub(crate) fn is_ready(&self) -> bool {
        self.lines.iter().any(|line| match line.items.front() {
            None => false,
            Some(Item::Fence(number)) => line.passed.contains(number),
            Some(_) => true,
        })
    }

    /// What is next, of a line each in turn: a burst at the most. None: nothing, or what is there waits for marks.
    pub(crate) fn next(&mut self) -> Option<(CoreIndex, Next)> {
        let count = self.lines.len();
        for step in 0..count {
            let reader = (self.first + step) % count;
            let Some(line) = self.lines.get_mut(reader) else { continue };
            let before = line.items.len();
            let next = line.next();
            self.waiting -= before - line.items.len();
            if let Some(next) = next {
                self.first = (reader + 1) % count;
                return Some((CoreIndex(reader), next));
            }
        }
        None
    }
}

impl Line {
    fn next(&mut self) -> Option<Next> {
        while let Some(Item::Fence(number)) = self.items.front() {
            let at = self.passed.iter().position(|passed| passed == number)?;
            self.passed.swap_remove(at);
            self.items.pop_front();
        }
        let mut packets = Vec::new();
        while packets.len() < BURST && matches!(self.items.front(), Some(Item::Packet(_))) {
            if let Some(Item::Packet(packet)) = self.items.pop_front() {
                packets.push(packet);
            }
        }
        if !packets.is_empty() {
            return Some(Next::Packets(packets));
        }
        match self.items.pop_front()? {
            Item::Mark { to, number } => Some(Next::Mark(to, number)),
            other => {
                self.items.push_front(other);
                None
            }
        }
    }
}
