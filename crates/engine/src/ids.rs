//! What cores and queues are named by.

/// One of the engine's cores, from 0 in the order of the configuration. Not a CPU number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreIndex(pub usize);

/// A running queue. The number is used again after the queue has ended; the generation is not, so that a late message
/// for an ended queue does not reach its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueKey {
    /// Small and dense: an index into per-core tables.
    pub number: u32,
    /// Counts the queues that had the number. Generations only grow.
    pub generation: u32,
}
