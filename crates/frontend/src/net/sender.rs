//! The sending guest: builds frames once, and makes them available again and again.

use std::collections::VecDeque;

use softdpu_device::net::abi::header;
use softdpu_memory::{GuestAddress, Window};
use softdpu_ring::driver::Piece;

use super::frames::{Frames, Station};
use super::front_end::NetFrontEnd;
use crate::{FrontEndError, Virtqueue};

/// Bytes of a fragment of a large frame's payload, as Linux has them.
const FRAGMENT: usize = 32 << 10;
/// Alignment of slots, bytes.
const LINE: u64 = 64;

/// A transmit queue under load.
///
/// Slots are used in turn. So a frame's memory is untouched for as long as possible, and the device finds its first
/// line as a guest that has just written it leaves it.
pub struct FrameSender {
    frames: Frames,
    slots: Window,
    stride: usize,
    /// The ring's identifiers of free slots, least recently used first.
    free: VecDeque<u16>,
    /// Number of each slot, by the ring's identifier of its chain.
    slot_of: Box<[u16]>,
    outstanding: usize,
    sent: u64,
}

impl FrameSender {
    /// Descriptors of a frame: one, or one for the headers and one for each fragment.
    pub fn pieces(frames: Frames) -> usize {
        match frames {
            Frames::Tso => 1 + (frames.longest() - frames.headers()).div_ceil(FRAGMENT),
            _ => 1,
        }
    }

    /// Number of frames that a queue of `size` holds: a multiple of the number of [`Frames::lengths`], so that reuse
    /// keeps their order.
    pub fn slots(frames: Frames, size: u16) -> usize {
        let slots = usize::from(size) / Self::pieces(frames);
        (slots - slots % frames.lengths().len()).max(1)
    }

    fn stride(frames: Frames) -> u64 {
        ((header::SIZE + frames.longest()) as u64).next_multiple_of(LINE)
    }

    /// Guest memory that a sender takes, bytes.
    pub fn bytes(frames: Frames, size: u16) -> u64 {
        Self::slots(frames, size) as u64 * Self::stride(frames)
    }

    /// Builds the frames of `flows` flows from one station to another, for the transmit queue of `front_end`, which has
    /// `size` descriptors.
    ///
    /// # Errors
    /// [`FrontEndError`] where the front_end has too little memory.
    pub fn new(
        front_end: &mut NetFrontEnd,
        size: u16,
        frames: Frames,
        flows: u16,
        from: Station,
        to: Station,
    ) -> Result<FrameSender, FrontEndError> {
        let (count, stride) = (Self::slots(frames, size), Self::stride(frames));
        let base = front_end.memory.allocate(count as u64 * stride, LINE)?;
        let slots = front_end.memory.window(base, count * stride as usize)?;
        let mut sender = FrameSender {
            frames,
            slots,
            stride: stride as usize,
            free: VecDeque::with_capacity(count),
            slot_of: vec![0; size.into()].into(),
            outstanding: 0,
            sent: 0,
        };
        for index in 0..count {
            let bytes = frames.build(index, flows, from, to);
            let at = base.0 + index as u64 * stride;
            front_end.memory.view().buffer(GuestAddress(at), bytes.len() as u64)?.write_at(0, &bytes)?;
            let pieces = pieces(frames, at, bytes.len());
            let Some(id) = front_end.transmit.driver.prepare(&pieces) else {
                return Err(FrontEndError::Full { queue: 1, outstanding: index });
            };
            sender.slot_of[usize::from(id)] = index as u16;
            sender.free.push_back(id);
        }
        front_end.transmit.driver.disarm();
        Ok(sender)
    }

    /// Number of frames sent, which is the sequence number of the next one.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Number of free slots.
    #[inline]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Number of frames that the device has not completed.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Takes completions.
    #[inline]
    pub fn reap(&mut self, queue: &mut Virtqueue) {
        let mut completed = 0;
        while let Some(done) = queue.driver.take() {
            self.free.push_back(done.id);
            self.outstanding = self.outstanding.saturating_sub(1);
            completed += 1;
        }
        queue.keep_quiet(completed);
    }

    /// Sends up to `count` frames, as one batch.
    #[inline]
    pub fn send(&mut self, queue: &mut Virtqueue, count: usize) {
        for _ in 0..count {
            let Some(&id) = self.free.front() else { break };
            let slot = usize::from(self.slot_of[usize::from(id)]) * self.stride;
            self.frames.number(&self.slots, slot, self.sent);
            if !queue.driver.repeat(id) {
                break;
            }
            self.free.pop_front();
            self.sent += 1;
            self.outstanding += 1;
        }
        queue.publish();
    }
}

/// The descriptors of a frame of `len` bytes at `at`, its virtio-net header included.
fn pieces(frames: Frames, at: u64, len: usize) -> Vec<Piece> {
    if FrameSender::pieces(frames) == 1 {
        return vec![Piece::readable(GuestAddress(at), len as u32)];
    }
    let headers = header::SIZE + frames.headers();
    let mut pieces = vec![Piece::readable(GuestAddress(at), headers as u32)];
    let mut done = headers;
    while done < len {
        let part = (len - done).min(FRAGMENT);
        pieces.push(Piece::readable(GuestAddress(at + done as u64), part as u32));
        done += part;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_frame_is_handed_over_as_its_headers_and_fragments() {
        let len = header::SIZE + Frames::Tso.longest();
        let pieces = pieces(Frames::Tso, 0x1000, len);
        assert_eq!(pieces.len(), FrameSender::pieces(Frames::Tso));
        assert_eq!((pieces[0].len, pieces[1].len), (66, 32 << 10));
        assert_eq!(pieces.iter().map(|piece| piece.len as usize).sum::<usize>(), len);
        assert_eq!(pieces[2].address.0, 0x1000 + 66 + (32 << 10));
    }

    #[test]
    fn the_slots_of_a_mix_are_whole_rounds_of_it() {
        assert_eq!(FrameSender::slots(Frames::Imix, 256), 252);
        assert_eq!(FrameSender::slots(Frames::Smallest, 256), 256);
    }
}
