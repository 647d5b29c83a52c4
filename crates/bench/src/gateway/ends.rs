//! The two ends of a conversation through a gateway, whatever they are: one that sends at a rate and takes the answers,
//! and one that sends every frame back with the two halves of its five-tuple swapped.

use super::GatewayError;

/// Both ends, driven by one thread.
pub(super) trait Ends: Send {
    /// Sends a frame with the number `sequence`, or queues it; false: there is no room.
    fn send(&mut self, sequence: u64) -> bool;

    /// Makes sure that what was queued goes.
    ///
    /// # Errors
    /// Those of what it goes by.
    fn publish(&mut self) -> Result<(), GatewayError>;

    /// The far end answers about `most` frames that have come to it.
    ///
    /// # Errors
    /// Those of what they go by.
    fn answer(&mut self, most: usize) -> Result<(), GatewayError>;

    /// Takes about `most` answers, and how many; `see` gets their numbers, None for a frame that is no answer.
    fn take(&mut self, most: usize, see: &mut dyn FnMut(Option<u64>)) -> usize;
}
