//! The receiving guest: takes frames in batches, makes their buffers available again in batches, and checks the frames.
//!
//! It checks the length of every frame, which the used ring has. Of each batch it reads the memory of the last frame
//! only: reading all would fetch every line that the server has just written, and make the client the slower side.
//! Frames that may take several buffers have the number of them in their header, so the header of each is read. After
//! [`look_at_all`](FrameReceiver::look_at_all) it checks every byte of every frame.

use std::sync::atomic::Ordering::Relaxed;

use softdpu_device::net::abi::header;
use softdpu_memory::{GuestAddress, Window};
use softdpu_ring::driver::{Completion, Piece};
use thiserror::Error;

use super::frames::{Frames, Station};
use super::front_end::NetFrontEnd;
use crate::{FrontEndError, Virtqueue};

/// Bytes of a buffer where no frame is larger than the MTU: such a frame and its header, rounded up as drivers do.
const SMALL: u32 = 2048;
/// Bytes of a buffer for segmentation offload: the most that Linux takes for mergeable buffers.
const LARGE: u32 = 4096;
/// Bytes between two buffers, so that their first lines fall into different sets of a cache.
const GAP: u64 = 64;
/// The most buffers that are made available in one batch.
const POST: usize = 32;

/// A frame that differs from what was sent.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CorruptFrame {
    /// No frame of this length was sent.
    #[error("a frame of {len} bytes arrived; those sent have {expected:?}")]
    Length {
        /// Its length.
        len: usize,
        /// Lengths that were sent.
        expected: &'static [usize],
    },
    /// A buffer has less than a header, or more than it can hold.
    #[error("a buffer of {size} bytes came back with {written} written")]
    Written {
        /// Length in the used ring.
        written: u32,
        /// Bytes of the buffer.
        size: u32,
    },
    /// A buffer came back that was not made available.
    #[error("a buffer came back that was not made available: {0}")]
    Buffer(u16),
    /// The header's `num_buffers` contradicts the length.
    #[error("a frame's header says that it lies in {0} buffers")]
    Buffers(u16),
    /// The header announces an offload that the frame was not sent with.
    #[error("a frame's header has flags {flags:#x} and GSO type {gso:#x}; expected GSO type {expected:#x}")]
    Header {
        /// `flags`.
        flags: u8,
        /// `gso_type`.
        gso: u8,
        /// `gso_type` it was sent with.
        expected: u8,
    },
    /// Contents that were not sent.
    #[error("a frame arrived with contents that were not sent")]
    Contents,
    /// More frames than were sent.
    #[error("{received} frames arrived of the first {sent}: some came twice")]
    Twice {
        /// Frames received.
        received: u64,
        /// Frames sent up to and including the last of them.
        sent: u64,
    },
    /// A frame arrived after one that was sent later.
    #[error("frame {found} arrived when {next} was the next that could")]
    Order {
        /// Its number.
        found: u64,
        /// The least number that had not been seen.
        next: u64,
    },
}

/// A frame with more buffers to come.
struct Partial {
    /// The ring's identifier of its first buffer.
    first: u16,
    /// Number of buffers to come.
    left: u16,
    /// Bytes so far, header included.
    bytes: usize,
}

/// A receive queue under load.
pub struct FrameReceiver {
    frames: Frames,
    buffers: Window,
    stride: usize,
    size: u32,
    /// Number of each buffer, by the ring's identifier of its chain.
    buffer_of: Box<[Option<u16>]>,
    /// The ring's identifiers of the buffers to make available again.
    taken: Vec<u16>,
    /// Number of buffers in a batch.
    post: usize,
    partial: Option<Partial>,
    received: u64,
    bytes: u64,
    next: u64,
    /// A frame as it is sent, where every one is compared with it.
    whole: Option<Box<[u8]>>,
}

impl FrameReceiver {
    fn size(frames: Frames) -> u32 {
        if frames == Frames::Tso { LARGE } else { SMALL }
    }

    /// The most buffers that a frame takes.
    pub fn buffers(frames: Frames) -> usize {
        (header::SIZE + frames.longest()).div_ceil(Self::size(frames) as usize)
    }

    fn stride(frames: Frames) -> u64 {
        u64::from(Self::size(frames)) + GAP
    }

    /// Guest memory that a receiver takes, bytes.
    pub fn bytes(frames: Frames, size: u16) -> u64 {
        u64::from(size) * Self::stride(frames)
    }

    /// Makes `size` buffers available in the receive queue of `front_end`, which has as many descriptors.
    ///
    /// # Errors
    /// [`FrontEndError`] where the front_end has too little memory.
    pub fn new(front_end: &mut NetFrontEnd, size: u16, frames: Frames) -> Result<FrameReceiver, FrontEndError> {
        let (stride, bytes) = (Self::stride(frames), Self::size(frames));
        let base = front_end.memory.allocate(u64::from(size) * stride, 64)?;
        let mut receiver = FrameReceiver {
            frames,
            buffers: front_end.memory.window(base, usize::from(size) * stride as usize)?,
            stride: stride as usize,
            size: bytes,
            buffer_of: vec![None; size.into()].into(),
            taken: Vec::with_capacity(size.into()),
            post: (usize::from(size) / 8).clamp(1, POST),
            partial: None,
            received: 0,
            bytes: 0,
            next: 0,
            whole: None,
        };
        let driver = &mut front_end.receive.driver;
        for index in 0..size {
            let address = GuestAddress(base.0 + u64::from(index) * stride);
            let Some(id) = driver.prepare(&[Piece::writable(address, bytes)]) else {
                return Err(FrontEndError::Full { queue: 0, outstanding: index.into() });
            };
            receiver.buffer_of[usize::from(id)] = Some(index);
            driver.repeat(id);
        }
        driver.disarm();
        front_end.receive.publish();
        Ok(receiver)
    }

    /// Checks every byte of every frame from now on. Frames go from `from` to `to` and differ in source port and number
    /// only. It costs time: not for measurements.
    pub fn look_at_all(&mut self, from: Station, to: Station) {
        // With frames of several lengths, or over several buffers, it would have to be known which is which.
        if self.frames.lengths().len() == 1 && Self::buffers(self.frames) == 1 {
            self.whole = Some(self.frames.build(0, 1, from, to).into());
        }
    }

    /// Number of frames received.
    #[inline]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Bytes of frames received, without virtio-net headers.
    #[inline]
    pub fn received_bytes(&self) -> u64 {
        self.bytes
    }

    /// The least sequence number that can still arrive, as of the last batch.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Takes up to `most` frames and returns how many it took. Makes buffers available again.
    ///
    /// # Errors
    /// [`CorruptFrame`] for a frame that differs from what was sent.
    #[inline]
    pub fn take(&mut self, queue: &mut Virtqueue, most: usize) -> Result<usize, CorruptFrame> {
        let mut frames = 0;
        let mut last = None;
        while frames < most {
            let Some(done) = queue.driver.take() else { break };
            if let Some(first) = self.buffer(done)? {
                frames += 1;
                if self.whole.is_some() {
                    self.look(first)?;
                }
                last = Some(first);
            }
        }
        if let Some(first) = last {
            if self.whole.is_none() {
                self.look(first)?;
            }
            self.received += frames as u64;
            if self.received > self.next {
                return Err(CorruptFrame::Twice { received: self.received, sent: self.next });
            }
        }
        if self.taken.len() >= self.post {
            queue.keep_quiet(self.taken.len());
            for id in self.taken.drain(..) {
                queue.driver.repeat(id);
            }
            queue.publish();
        }
        Ok(frames)
    }

    /// Accounts for a buffer. Returns the ring's identifier of the first buffer of the frame that it completes.
    #[inline(always)]
    fn buffer(&mut self, done: Completion) -> Result<Option<u16>, CorruptFrame> {
        let Completion { id, written } = done;
        self.taken.push(id);
        if written > self.size {
            return Err(CorruptFrame::Written { written, size: self.size });
        }
        if let Some(partial) = &mut self.partial {
            partial.left -= 1;
            partial.bytes += written as usize;
            if partial.left > 0 {
                return Ok(None);
            }
            let (first, bytes) = (partial.first, partial.bytes);
            self.partial = None;
            return self.whole(first, bytes);
        }
        if self.frames == Frames::Tso {
            let count = self.header_u16(id, header::NUM_BUFFERS)?;
            if count == 0 || usize::from(count) > self.buffer_of.len() {
                return Err(CorruptFrame::Buffers(count));
            }
            if count > 1 {
                self.partial = Some(Partial { first: id, left: count - 1, bytes: written as usize });
                return Ok(None);
            }
        }
        self.whole(id, written as usize)
    }

    #[inline(always)]
    fn whole(&mut self, first: u16, bytes: usize) -> Result<Option<u16>, CorruptFrame> {
        let len = bytes.wrapping_sub(header::SIZE);
        if !self.frames.has(len) {
            if bytes < header::SIZE {
                return Err(CorruptFrame::Written { written: bytes as u32, size: self.size });
            }
            return Err(CorruptFrame::Length { len, expected: self.frames.lengths() });
        }
        self.bytes += len as u64;
        Ok(Some(first))
    }

    /// Checks a frame's header and contents.
    fn look(&mut self, first: u16) -> Result<(), CorruptFrame> {
        let slot = self.slot(first)?;
        if self.frames != Frames::Tso {
            // A server that sets it to 0 with one buffer is one without MRG_RXBUF (§5.1.6.4.1 wants 1 then, too).
            let count = self.header_u16(first, header::NUM_BUFFERS)?;
            if count > 1 {
                return Err(CorruptFrame::Buffers(count));
            }
        }
        let flags = self.buffers.u8(slot + header::FLAGS).load(Relaxed);
        let gso = self.buffers.u8(slot + header::GSO_TYPE).load(Relaxed);
        let expected = if self.frames == Frames::Tso { header::GSO_TCPV4 } else { header::GSO_NONE };
        if gso != expected {
            return Err(CorruptFrame::Header { flags, gso, expected });
        }
        let found = self.frames.sequence(&self.buffers, slot).ok_or(CorruptFrame::Contents)?;
        if let Some(sent) = &self.whole {
            let mut bytes = vec![0; sent.len()];
            self.buffers.buffer().read_at(slot as u64, &mut bytes).map_err(|_| CorruptFrame::Contents)?;
            let differs = |at: usize| bytes[at] != sent[at];
            if (header::SIZE..sent.len()).any(|at| differs(at) && !self.frames.varies(at)) {
                return Err(CorruptFrame::Contents);
            }
        }
        if found < self.next {
            return Err(CorruptFrame::Order { found, next: self.next });
        }
        self.next = found + 1;
        Ok(())
    }

    fn header_u16(&self, id: u16, at: usize) -> Result<u16, CorruptFrame> {
        Ok(self.buffers.u16(self.slot(id)? + at).load(Relaxed))
    }

    #[inline]
    fn slot(&self, id: u16) -> Result<usize, CorruptFrame> {
        let buffer = self.buffer_of.get(usize::from(id)).copied().flatten().ok_or(CorruptFrame::Buffer(id))?;
        Ok(usize::from(buffer) * self.stride)
    }
}
