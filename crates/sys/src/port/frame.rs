//! What goes in and out of a port.

use super::VnetHeader;

/// The most frames of one batch.
pub const MAX_BATCH: usize = 64;
/// The largest frame: an IP packet of 65,535 bytes behind an Ethernet header with two VLAN tags.
pub const MAX_FRAME: usize = 65_535 + 14 + 8;

/// A frame that was received.
#[derive(Debug)]
pub struct Frame<'a> {
    /// Its offloads.
    pub header: VnetHeader,
    /// The frame from its Ethernet header on, without FCS. It may be rewritten in place.
    pub bytes: &'a mut [u8],
}

/// A frame to send: `head`, then bytes of other memory.
#[derive(Debug)]
pub struct Outgoing<'a, M> {
    /// Its offloads; a port without offloads refuses a frame that needs any.
    pub header: VnetHeader,
    /// The frame's first bytes (the Ethernet header and what was put before the payload).
    pub head: &'a [u8],
    /// The rest: so many bytes (third) of a memory from an offset on (second).
    pub body: Option<(&'a M, u64, usize)>,
}

/// What happened at a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames handed out.
    pub received: u64,
    /// Frames the kernel took.
    pub sent: u64,
    /// Frames to send that were dropped as the kernel refused them: malformed offloads, too long, or offloads on a port
    /// without any.
    pub refused: u64,
    /// Frames to send that the interface dropped as its queue was full.
    pub overrun: u64,
    /// Received frames that were dropped as they did not fit the port's memory.
    pub truncated: u64,
    /// Received frames that were dropped as they belong to a VLAN on top of this interface.
    pub tagged: u64,
}

impl Counters {
    /// Counts frames that were received and gives them to `batch`, which is not called when there are none. How many
    /// there were.
    pub(super) fn deliver(&mut self, frames: &mut [Frame<'_>], batch: impl FnOnce(&mut [Frame<'_>])) -> usize {
        self.received += frames.len() as u64;
        if !frames.is_empty() {
            batch(frames);
        }
        frames.len()
    }
}
