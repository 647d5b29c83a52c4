//! A guest's receive queue: buffers that the driver made available, filled with frames.

use softdpu_device::net;
use softdpu_ring::{Chain, Queue, QueueError};
use softdpu_vpc::PortId;

/// Buffers taken from the ring at a time.
const AHEAD: usize = 64;

/// What a receive queue is for.
pub struct Receive {
    /// The port whose frames it takes.
    pub port: PortId,
    /// How frames lie in its buffers.
    pub(crate) model: net::Receive,
    /// Buffers taken from the ring, in ring order.
    ahead: Vec<Chain>,
    /// How many of them are filled.
    filled: usize,
    /// Those on their way back to be used again.
    spent: Vec<Chain>,
}

impl Receive {
    /// A queue that has taken no buffers yet.
    pub fn new(port: PortId, model: net::Receive) -> Receive {
        Receive { port, model, ahead: Vec::with_capacity(2 * AHEAD), filled: 0, spent: Vec::new() }
    }

    /// The free buffer `index` behind the next one; taken from the ring if need be. None: there is none.
    #[inline]
    pub(crate) fn buffer(&mut self, ring: &mut Queue, index: usize) -> Result<Option<&Chain>, QueueError> {
        if self.filled + index >= self.ahead.len() {
            self.spent.extend(self.ahead.drain(..self.filled));
            ring.recycle(&mut self.spent);
            self.filled = 0;
            ring.pop(&mut self.ahead, AHEAD)?;
        }
        Ok(self.ahead.get(self.filled + index))
    }

    /// The next `count` buffers, to be filled now.
    #[inline]
    pub(crate) fn fill(&mut self, count: usize) -> &[Chain] {
        let chains = &self.ahead[self.filled..self.filled + count];
        self.filled += count;
        chains
    }

    /// Forgets the buffers that are not filled: the ring is wound back to them.
    pub(crate) fn forget(&mut self) {
        self.ahead.clear();
        self.filled = 0;
    }

    /// Whether there is a buffer to fill.
    #[inline]
    pub(crate) fn has_room(&self, ring: &Queue) -> bool {
        self.filled < self.ahead.len() || ring.has_work()
    }
}
