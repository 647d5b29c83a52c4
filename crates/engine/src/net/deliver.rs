//! A frame into a guest's receive queue.

use softdpu_device::net::{self, Lacking, Part};
use softdpu_ring::{QueueError, Used};
use softdpu_vpc::{Checksum, DropReason, Packet};

use super::{FrameTail, offload};
use crate::queue::{Receive, Role, RunningQueue};

/// Why a frame is not in the receive queue.
#[derive(Debug)]
pub(crate) enum DeliveryError {
    /// The driver does not take it unfinished.
    Unfinished,
    /// There is no free buffer; it may be tried again.
    NoBuffer,
    /// It does not fit, however often it is tried.
    Drop(DropReason),
    /// The driver broke the queue.
    Broken(String),
}

/// Frames that were delivered one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeliveredRun {
    pub frames: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, those behind the frames' heads.
    pub tails: u64,
}

impl From<Lacking> for DeliveryError {
    fn from(_: Lacking) -> DeliveryError {
        DeliveryError::Unfinished
    }
}

/// Writes a frame, as it is, into the next buffers of a receive queue and marks them finished.
pub(crate) fn deliver(queue: &mut RunningQueue, packet: &Packet, source: FrameTail<'_>) -> Result<(), DeliveryError> {
    let is_tracked = queue.spec.view.is_tracked();
    let Role::Receive(receive) = &mut queue.spec.role else { return Err(DeliveryError::Drop(DropReason::PortDown)) };
    let header = offload::header(packet).build(receive.model.negotiated())?;
    let buffers = reserve(receive, &mut queue.spec.ring, packet.len())?;
    let parts = [Part::Bytes(packet.head.bytes()), source.part(packet.tail as usize)];
    let model = receive.model;
    let chains = receive.fill(buffers.into());
    let mut chain = chains.iter();
    let (view, finished) = (&queue.spec.view, &mut queue.finished);
    let written = model.deliver(header, &parts, chains.iter().map(|chain| &chain.buffer), buffers, |written| {
        if let Some(chain) = chain.next() {
            if is_tracked {
                chain.buffer.mark_dirty_in(view, 0, written.into());
            }
            finished.push(Used { id: chain.id, descriptors: chain.descriptors, written });
        }
    });
    queue.in_flight += u32::from(buffers);
    written.map_err(|error| DeliveryError::Broken(error.to_string()))
}

/// Writes finished frames, one after the other, into the next buffers of a receive queue, for as long as there are
/// buffers, and each frame and its buffer lie in one piece and fit. [`deliver`] takes the next one.
///
/// # Errors
/// What the driver did wrong, which broke the queue.
#[inline(never)]
pub(crate) fn deliver_run<'a>(
    queue: &mut RunningQueue,
    packets: &mut [Packet],
    source: impl Fn(usize) -> FrameTail<'a>,
) -> Result<DeliveredRun, QueueError> {
    let mut run = DeliveredRun::default();
    let Role::Receive(receive) = &mut queue.spec.role else { return Ok(run) };
    receive.buffer(&mut queue.spec.ring, packets.len().saturating_sub(1))?;
    let (model, view) = (receive.model, &queue.spec.view);
    let is_tracked = view.is_tracked();
    for (packet, chain) in packets.iter_mut().zip(receive.taken()) {
        if packet.checksum != Checksum::Complete || packet.segmentation.is_some() || chain.readable != 0 {
            break;
        }
        let (len, tail) = (packet.len(), packet.tail as usize);
        // A header in the room before the head: both are one copy.
        let Some(head) = packet.head.behind(&net::Receive::FINISHED) else { break };
        let rest = if tail == 0 { Part::Bytes(&[]) } else { source(run.frames).part(tail) };
        let Some(written) = model.deliver_whole(head, rest, &chain.buffer) else { break };
        if is_tracked {
            chain.buffer.mark_dirty_in(view, 0, written.into());
        }
        queue.finished.push(chain.used(written));
        run.frames += 1;
        run.bytes += len as u64;
        run.tails += tail as u64;
    }
    receive.fill(run.frames);
    queue.in_flight += run.frames as u32;
    Ok(run)
}

/// How many of the next buffers hold a frame of `len` bytes together; they are taken from the ring if need be.
#[inline]
fn reserve(receive: &mut Receive, ring: &mut softdpu_ring::Queue, len: usize) -> Result<u16, DeliveryError> {
    let model = receive.model;
    let mut left = (len + net::abi::header::SIZE) as u64;
    let mut buffers = 0;
    loop {
        let found =
            receive.buffer(ring, usize::from(buffers)).map_err(|error| DeliveryError::Broken(error.to_string()))?;
        let Some(chain) = found else { return Err(DeliveryError::NoBuffer) };
        let offer =
            model.offer(&chain.buffer, chain.readable).map_err(|error| DeliveryError::Broken(error.to_string()))?;
        left = left.saturating_sub(offer.into());
        buffers += 1;
        if left == 0 {
            return Ok(buffers);
        }
        if !model.is_mergeable() {
            return Err(DeliveryError::Drop(DropReason::TooLong));
        }
    }
}
