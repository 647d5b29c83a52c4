//! A guest's receive queue: buffers that the driver made available, filled with frames.

use softdpu_device::net;
use softdpu_ring::{Chain, Chains, Queue, QueueError};
use softdpu_vpc::PortId;

/// Buffers taken from the ring at a time.
const AHEAD: usize = 64;

/// What a receive queue is for.
pub struct Receive {
    /// The port that frames leave by into it.
    pub port: PortId,
    /// How frames lie in its buffers.
    pub(crate) model: net::Receive,
    /// Buffers taken from the ring and not filled, in ring order.
    ahead: Chains,
}

impl Receive {
    /// A queue that has taken no buffers yet.
    pub fn new(port: PortId, model: net::Receive) -> Receive {
        Receive { port, model, ahead: Chains::new() }
    }

    /// The free buffer `index` behind the next one; taken from the ring if need be. None: there is none.
    #[inline]
    pub(crate) fn buffer(&mut self, ring: &mut Queue, index: usize) -> Result<Option<&Chain>, QueueError> {
        if index >= self.ahead.len() {
            ring.pop(&mut self.ahead, AHEAD)?;
        }
        Ok(self.ahead.get(index))
    }

    /// The next free buffers, as far as they were taken from the ring.
    #[inline]
    pub(crate) fn taken(&self) -> &[Chain] {
        &self.ahead
    }

    /// The next `count` buffers, to be filled now.
    #[inline]
    pub(crate) fn fill(&mut self, count: usize) -> &[Chain] {
        self.ahead.take(count)
    }

    /// Forgets the buffers that are not filled: the ring is wound back to them.
    pub(crate) fn forget(&mut self) {
        self.ahead.clear();
        self.ahead.release();
    }

    /// Whether there is a buffer to fill.
    #[inline]
    pub(crate) fn has_buffer(&self, ring: &Queue) -> bool {
        !self.ahead.is_empty() || ring.has_work()
    }
}
