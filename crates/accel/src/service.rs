//! An engine that several queues of a core share: a channel for each, and one ring before the engine.
//!
//! "The requests of each tenant are sequentially sent to the ring buffer", from which the accelerator takes them (MTDA
//! §III-B). The ring is filled in turns, from one channel at a time. Which channel is next, is the policy's to say, of
//! those [in order](Service::in_order); without a policy channels take turns of [`QUANTUM`] bytes (surplus round
//! robin), so that what one has waiting, however much, delays another's by no more than a turn.
//!
//! The service has no policy of its own: its engine is the core, and the core's policy charges a tenant for its grants
//! and for this alike (docs/decisions/014-the-accelerator-has-the-cores-policy.md).

use std::collections::VecDeque;

/// Entries of the ring. What is in it goes before all that waits, so it is short.
pub const RING: usize = 16;

/// Bytes of a turn: some 6 µs. An entry is never divided, so a turn may be as long as [`LONGEST`].
pub const QUANTUM: u64 = 16 << 10;

/// The most bytes of an entry: some 50 µs.
pub const LONGEST: u64 = 128 << 10;

/// The channels and the ring of one engine. `W` waits in a channel, `E` is an entry of the ring: made of the former,
/// with all that the engine needs for it.
#[derive(Debug)]
pub struct Service<W, E> {
    /// By number.
    channels: Vec<Channel<W>>,
    /// Channels with work that can run, in the order of their turns.
    order: VecDeque<u32>,
    /// Work in all channels.
    len: usize,
    /// Channels that are blocked.
    blocked: usize,
    ring: VecDeque<E>,
}

#[derive(Debug)]
struct Channel<W> {
    /// Goes before `waiting`.
    ahead: VecDeque<W>,
    waiting: VecDeque<W>,
    /// The first of `waiting` cannot run.
    is_blocked: bool,
    /// It is in the order of turns.
    is_listed: bool,
    /// Bytes that it had beyond its turns.
    surplus: u64,
}

impl<W> Default for Channel<W> {
    fn default() -> Self {
        let (ahead, waiting) = (VecDeque::new(), VecDeque::new());
        Channel { ahead, waiting, is_blocked: false, is_listed: false, surplus: 0 }
    }
}

impl<W> Channel<W> {
    fn is_empty(&self) -> bool {
        self.ahead.is_empty() && self.waiting.is_empty()
    }

    fn can_run(&self) -> bool {
        !self.ahead.is_empty() || !self.waiting.is_empty() && !self.is_blocked
    }

    fn first(&self) -> Option<&W> {
        self.ahead.front().or(self.waiting.front())
    }
}

impl<W, E> Default for Service<W, E> {
    fn default() -> Self {
        let (channels, order) = (Vec::new(), VecDeque::new());
        Service { channels, order, len: 0, blocked: 0, ring: VecDeque::with_capacity(RING) }
    }
}

impl<W, E> Service<W, E> {
    /// Work that waits in channels.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.len
    }

    /// Whether nothing waits in a channel.
    pub fn is_empty(&self, channel: u32) -> bool {
        self.channels.get(channel as usize).is_none_or(Channel::is_empty)
    }

    /// Whether some of what waits can run.
    #[inline]
    pub fn can_run(&self) -> bool {
        !self.order.is_empty()
    }

    /// Whether a channel is blocked.
    #[inline]
    pub fn has_blocked(&self) -> bool {
        self.blocked > 0
    }

    fn channel(&mut self, channel: u32) -> &mut Channel<W> {
        let index = channel as usize;
        if index >= self.channels.len() {
            self.channels.resize_with(index + 1, Channel::default);
        }
        &mut self.channels[index]
    }

    fn list(&mut self, channel: u32) {
        let record = self.channel(channel);
        if record.can_run() && !record.is_listed {
            record.is_listed = true;
            self.order.push_back(channel);
        }
    }

    /// Takes a channel that has nothing to run out of the order.
    fn unlist(&mut self, channel: u32) {
        let record = &mut self.channels[channel as usize];
        if record.is_listed && !record.can_run() {
            record.is_listed = false;
            self.order.retain(|other| *other != channel);
        }
    }

    /// Puts work at the end of a channel. Channels are numbered densely from 0.
    pub fn enqueue(&mut self, channel: u32, work: W) {
        self.channel(channel).waiting.push_back(work);
        self.len += 1;
        self.list(channel);
    }

    /// Puts work before what was [enqueued](Self::enqueue) in its channel, behind other such work. A blocked channel
    /// runs it all the same.
    pub fn enqueue_ahead(&mut self, channel: u32, work: W) {
        self.channel(channel).ahead.push_back(work);
        self.len += 1;
        self.list(channel);
    }

    /// Puts work that was [dequeued](Self::dequeue) and cannot run back in its place. It and what is behind it wait
    /// until [`unblock`](Self::unblock).
    pub fn block(&mut self, channel: u32, work: W) {
        let record = self.channel(channel);
        record.waiting.push_front(work);
        if !std::mem::replace(&mut record.is_blocked, true) {
            self.blocked += 1;
        }
        self.len += 1;
        self.unlist(channel);
    }

    /// Has all blocked channels take their turns again.
    pub fn unblock(&mut self) {
        for channel in 0..self.channels.len() as u32 {
            if std::mem::take(&mut self.channels[channel as usize].is_blocked) {
                self.blocked -= 1;
                self.list(channel);
            }
        }
    }

    /// Channels that can run, the next first, each with its first work.
    pub fn in_order(&mut self) -> impl Iterator<Item = (u32, &W)> {
        while let Some(&first) = self.order.front()
            && self.order.len() > 1
            && self.channels[first as usize].surplus >= QUANTUM
        {
            self.channels[first as usize].surplus -= QUANTUM;
            self.order.rotate_left(1);
        }
        let channels = &self.channels;
        self.order.iter().filter_map(|&channel| Some((channel, channels[channel as usize].first()?)))
    }

    /// Takes out the first work of a channel; none where none can run.
    pub fn dequeue(&mut self, channel: u32) -> Option<W> {
        let record = self.channels.get_mut(channel as usize).filter(|record| record.can_run())?;
        let work = record.ahead.pop_front().or_else(|| record.waiting.pop_front())?;
        self.len -= 1;
        self.unlist(channel);
        Some(work)
    }

    /// Whether the ring has room for an entry.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.ring.len() < RING
    }

    /// Puts an entry into the ring, which [has room](Self::has_room).
    #[inline]
    pub fn post(&mut self, entry: E) {
        debug_assert!(self.has_room(), "an entry too many");
        self.ring.push_back(entry);
    }

    /// Takes the next entry out of the ring, for the engine.
    #[inline]
    pub fn take(&mut self) -> Option<E> {
        self.ring.pop_front()
    }

    /// Ends a channel's turn, in which it had so many bytes: the others are next.
    pub fn end_turn(&mut self, channel: u32, bytes: u64) {
        let record = self.channel(channel);
        if record.is_empty() {
            record.surplus = 0;
            return;
        }
        // What it has had of its turn without ending it is not looked at: it is less than a quantum.
        record.surplus = (record.surplus + bytes.saturating_sub(QUANTUM)).min(LONGEST);
        if let Some(at) = self.order.iter().position(|other| *other == channel) {
            self.order.remove(at);
            self.order.push_back(channel);
        }
    }

    /// Drops what waits in channels and is not to be kept.
    pub fn retain(&mut self, mut keep: impl FnMut(&W) -> bool) {
        for record in &mut self.channels {
            record.ahead.retain(&mut keep);
            record.waiting.retain(&mut keep);
            if record.waiting.is_empty() && std::mem::take(&mut record.is_blocked) {
                self.blocked -= 1;
            }
        }
        self.len = self.channels.iter().map(|record| record.ahead.len() + record.waiting.len()).sum();
        for channel in 0..self.channels.len() as u32 {
            self.unlist(channel);
        }
    }
}

#[cfg(test)]
mod tests;
