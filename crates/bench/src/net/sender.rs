//! The sending guest: frames that were built once, made available again and again.

use std::collections::VecDeque;

use softdpu_device::net::abi::header;
use softdpu_memory::{GuestAddress, Window};
use softdpu_ring::driver::Piece;

use super::frames::{Frames, Station};
use super::port::{Port, Ring};
use super::receiver::QUIET;
use crate::front_end::FrontEndError;

/// What Linux keeps payload of large frames in, bytes: fragments of 32 KiB.
const FRAGMENT: usize = 32 << 10;
/// Slots begin at multiples of it.
const LINE: u64 = 64;

/// A transmit queue under load.
///
/// Slots are used in turn, so that a frame's memory has not been touched for as long as possible: the device finds each
/// frame's first line as a guest that has just written it leaves it.
pub struct Sender {
    frames: Frames,
    slots: Window,
    stride: usize,
    /// Slots that are not in flight, by what the ring calls them; the one that has been free for the longest first.
    free: VecDeque<u16>,
    /// By what the ring calls a frame: its slot.
    slot_of: Box<[u16]>,
    outstanding: usize,
    sent: u64,
    /// Completions since notifications were put off.
    quiet: usize,
}

impl Sender {
    /// Descriptors of a frame: one for frames in one piece, else the headers' and those of the fragments.
    pub fn pieces(frames: Frames) -> usize {
        match frames {
            Frames::Tso => 1 + (frames.longest() - frames.headers()).div_ceil(FRAGMENT),
            _ => 1,
        }
    }

    /// Frames that a queue of `size` holds: whole rounds of [`Frames::lengths`], so that reuse keeps their order.
    pub fn slots(frames: Frames, size: u16) -> usize {
        let slots = usize::from(size) / Self::pieces(frames);
        (slots - slots % frames.lengths().len()).max(1)
    }

    fn stride(frames: Frames) -> u64 {
        ((header::SIZE + frames.longest()) as u64).next_multiple_of(LINE)
    }

    /// Guest memory it takes.
    pub fn bytes(frames: Frames, size: u16) -> u64 {
        Self::slots(frames, size) as u64 * Self::stride(frames)
    }

    /// Builds the frames of `flows` flows from one station to another, for the transmit queue of `port`, which has `size`
    /// descriptors.
    ///
    /// # Errors
    /// [`FrontEndError`] where the port has too little memory.
    pub fn new(
        port: &mut Port,
        size: u16,
        frames: Frames,
        flows: u16,
        from: Station,
        to: Station,
    ) -> Result<Sender, FrontEndError> {
        let (count, stride) = (Self::slots(frames, size), Self::stride(frames));
        let base = port.memory.allocate(count as u64 * stride, LINE)?;
        let slots = port.memory.window(base, count * stride as usize)?;
        let mut sender = Sender {
            frames,
            slots,
            stride: stride as usize,
            free: VecDeque::with_capacity(count),
            slot_of: vec![0; size.into()].into(),
            outstanding: 0,
            sent: 0,
            quiet: 0,
        };
        for index in 0..count {
            let bytes = frames.build(index, flows, from, to);
            let at = base.0 + index as u64 * stride;
            port.memory.view().buffer(GuestAddress(at), bytes.len() as u64)?.write_at(0, &bytes)?;
            let pieces = pieces(frames, at, bytes.len());
            let Some(id) = port.transmit.driver.prepare(&pieces) else {
                return Err(FrontEndError::Full { queue: 1, outstanding: index });
            };
            sender.slot_of[usize::from(id)] = index as u16;
            sender.free.push_back(id);
        }
        port.transmit.driver.disarm();
        Ok(sender)
    }

    /// Frames sent so far; the next one has this number.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Frames that can be sent at once.
    #[inline]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Frames the device has not given back.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Takes back what the device has taken.
    #[inline]
    pub fn reap(&mut self, ring: &mut Ring) {
        while let Some(done) = ring.driver.take() {
            self.free.push_back(done.id);
            self.outstanding = self.outstanding.saturating_sub(1);
            self.quiet += 1;
        }
        if self.quiet >= QUIET {
            self.quiet = 0;
            ring.driver.disarm();
        }
    }

    /// Sends up to `count` frames, as one batch.
    #[inline]
    pub fn send(&mut self, ring: &mut Ring, count: usize) {
        for _ in 0..count {
            let Some(&id) = self.free.front() else { break };
            let slot = usize::from(self.slot_of[usize::from(id)]) * self.stride;
            self.frames.number(&self.slots, slot, self.sent);
            if !ring.driver.repeat(id) {
                break;
            }
            self.free.pop_front();
            self.sent += 1;
            self.outstanding += 1;
        }
        ring.publish();
    }
}

/// The descriptors of a frame of `len` bytes at `at`, its virtio-net header included.
fn pieces(frames: Frames, at: u64, len: usize) -> Vec<Piece> {
    if Sender::pieces(frames) == 1 {
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
        assert_eq!(pieces.len(), Sender::pieces(Frames::Tso));
        assert_eq!((pieces[0].len, pieces[1].len), (66, 32 << 10));
        assert_eq!(pieces.iter().map(|piece| piece.len as usize).sum::<usize>(), len);
        assert_eq!(pieces[2].address.0, 0x1000 + 66 + (32 << 10));
    }

    #[test]
    fn the_slots_of_a_mix_are_whole_rounds_of_it() {
        assert_eq!(Sender::slots(Frames::Imix, 256), 252);
        assert_eq!(Sender::slots(Frames::Smallest, 256), 256);
    }
}
