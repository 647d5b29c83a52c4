//! The receiving guest: takes frames in batches, gives their buffers back in batches, looks whether they are what was sent.
//!
//! Of every frame the length is checked, which the ring tells. Into its memory the client looks at the last frame of each
//! batch: it would otherwise fetch every line the server has just written and be the slower of the two. Frames of several
//! buffers say in their header how many these are, so all of those are looked into. One that is [told](Receiver::look_at_all)
//! what is sent looks at every byte of every frame.

use std::sync::atomic::Ordering::Relaxed;

use softdpu_device::net::abi::header;
use softdpu_memory::{GuestAddress, Window};
use softdpu_ring::driver::{Completion, Piece};
use thiserror::Error;

use super::frames::{Frames, Station};
use super::port::{Port, Ring};
use crate::front_end::FrontEndError;

/// Bytes of a buffer for frames that stand for one: a frame of the MTU and its header, and what drivers round it up to.
const SMALL: u32 = 2048;
/// Bytes of a buffer for frames that stand for several: the most that Linux takes for mergeable buffers.
const LARGE: u32 = 4096;
/// Between two buffers, so that their first lines do not fall into the same sets of a cache.
const GAP: u64 = 64;
/// Buffers that are given back at once: a share of the queue, no more than this.
const POST: usize = 32;
/// After this many completions the notification that is not wanted is put off once more: with EVENT_IDX "none" is an index
/// half the range behind.
pub(super) const QUIET: usize = 1 << 14;

/// A frame that is not as it was sent.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Corrupt {
    /// No frame of this length was sent.
    #[error("a frame of {len} bytes arrived; those sent have {expected:?}")]
    Length {
        /// Its length.
        len: usize,
        /// What was sent.
        expected: &'static [usize],
    },
    /// A buffer has less than a header, or more than it can hold.
    #[error("a buffer of {size} bytes came back with {written} written")]
    Written {
        /// What the ring says.
        written: u32,
        /// Bytes of the buffer.
        size: u32,
    },
    /// A buffer came back that was not made available.
    #[error("a buffer came back that was not made available: {0}")]
    Buffer(u16),
    /// The header's `num_buffers` does not go with the length.
    #[error("a frame's header says that it lies in {0} buffers")]
    Buffers(u16),
    /// The header announces something the frame does not have.
    #[error("a frame's header has flags {flags:#x} and GSO type {gso:#x}; expected GSO type {expected:#x}")]
    Header {
        /// `flags`.
        flags: u8,
        /// `gso_type`.
        gso: u8,
        /// What it was sent with.
        expected: u8,
    },
    /// Other contents than sent.
    #[error("a frame arrived whose contents nobody sent")]
    Contents,
    /// More frames than were sent.
    #[error("{received} frames arrived of the first {sent}: some came twice")]
    Twice {
        /// Frames received.
        received: u64,
        /// Frames sent up to and with the last of them.
        sent: u64,
    },
    /// Behind one that was sent later.
    #[error("frame {found} arrived when {next} was the next that could")]
    Order {
        /// Its number.
        found: u64,
        /// The least number that had not been seen.
        next: u64,
    },
}

/// A frame of which buffers are still to come.
struct Partial {
    /// The first buffer.
    first: u16,
    /// Buffers still to come.
    left: u16,
    /// Bytes so far, header included.
    bytes: usize,
}

/// A receive queue under load.
pub struct Receiver {
    frames: Frames,
    buffers: Window,
    stride: usize,
    size: u32,
    /// By what the ring calls a buffer: which it is; none: not ours.
    buffer_of: Box<[Option<u16>]>,
    /// Taken and not given back, as the ring calls them.
    taken: Vec<u16>,
    /// How many are given back at once.
    post: usize,
    /// Completions since notifications were put off.
    quiet: usize,
    partial: Option<Partial>,
    received: u64,
    bytes: u64,
    next: u64,
    /// A frame as it is sent; none: not every one is looked at.
    whole: Option<Box<[u8]>>,
}

impl Receiver {
    fn size(frames: Frames) -> u32 {
        if frames == Frames::Tso { LARGE } else { SMALL }
    }

    /// Buffers that a frame takes at the most.
    pub fn buffers(frames: Frames) -> usize {
        (header::SIZE + frames.longest()).div_ceil(Self::size(frames) as usize)
    }

    fn stride(frames: Frames) -> u64 {
        u64::from(Self::size(frames)) + GAP
    }

    /// Guest memory it takes.
    pub fn bytes(frames: Frames, size: u16) -> u64 {
        u64::from(size) * Self::stride(frames)
    }

    /// Makes all buffers of the receive queue of `port`, which has `size` descriptors, available.
    ///
    /// # Errors
    /// [`FrontEndError`] where the port has too little memory.
    pub fn new(port: &mut Port, size: u16, frames: Frames) -> Result<Receiver, FrontEndError> {
        let (stride, bytes) = (Self::stride(frames), Self::size(frames));
        let base = port.memory.allocate(u64::from(size) * stride, 64)?;
        let mut receiver = Receiver {
            frames,
            buffers: port.memory.window(base, usize::from(size) * stride as usize)?,
            stride: stride as usize,
            size: bytes,
            buffer_of: vec![None; size.into()].into(),
            taken: Vec::with_capacity(size.into()),
            post: (usize::from(size) / 8).clamp(1, POST),
            quiet: 0,
            partial: None,
            received: 0,
            bytes: 0,
            next: 0,
            whole: None,
        };
        let driver = &mut port.receive.driver;
        for index in 0..size {
            let address = GuestAddress(base.0 + u64::from(index) * stride);
            let Some(id) = driver.prepare(&[Piece::writable(address, bytes)]) else {
                return Err(FrontEndError::Full { queue: 0, outstanding: index.into() });
            };
            receiver.buffer_of[usize::from(id)] = Some(index);
            driver.repeat(id);
        }
        driver.disarm();
        port.receive.publish();
        Ok(receiver)
    }

    /// Looks at every byte of every frame from now on: all are sent by `from` to `to`, and are alike but for source port and number.
    /// It costs: a client that measures a server does without.
    pub fn look_at_all(&mut self, from: Station, to: Station) {
        // With frames of several lengths, or over several buffers, it would have to be known which is which.
        if self.frames.lengths().len() == 1 && Self::buffers(self.frames) == 1 {
            self.whole = Some(self.frames.build(0, 1, from, to).into());
        }
    }

    /// Frames received so far.
    #[inline]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Bytes of them, without virtio-net headers.
    #[inline]
    pub fn received_bytes(&self) -> u64 {
        self.bytes
    }

    /// The least number of a frame that can still come, as of the last batch.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Takes up to `most` frames that are there, and gives buffers back; how many it took.
    ///
    /// # Errors
    /// [`Corrupt`] for a frame that is not as it was sent.
    #[inline]
    pub fn take(&mut self, ring: &mut Ring, most: usize) -> Result<usize, Corrupt> {
        let mut frames = 0;
        let mut last = None;
        while frames < most {
            let Some(done) = ring.driver.take() else { break };
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
                return Err(Corrupt::Twice { received: self.received, sent: self.next });
            }
        }
        if self.taken.len() >= self.post {
            self.quiet += self.taken.len();
            if self.quiet >= QUIET {
                self.quiet = 0;
                ring.driver.disarm();
            }
            for id in self.taken.drain(..) {
                ring.driver.repeat(id);
            }
            ring.publish();
        }
        Ok(frames)
    }

    /// Accounts for a buffer; the first buffer of the frame that it completes, as the ring calls it.
    #[inline(always)]
    fn buffer(&mut self, done: Completion) -> Result<Option<u16>, Corrupt> {
        let Completion { id, written } = done;
        self.taken.push(id);
        if written > self.size {
            return Err(Corrupt::Written { written, size: self.size });
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
                return Err(Corrupt::Buffers(count));
            }
            if count > 1 {
                self.partial = Some(Partial { first: id, left: count - 1, bytes: written as usize });
                return Ok(None);
            }
        }
        self.whole(id, written as usize)
    }

    #[inline(always)]
    fn whole(&mut self, first: u16, bytes: usize) -> Result<Option<u16>, Corrupt> {
        let len = bytes.wrapping_sub(header::SIZE);
        if !self.frames.has(len) {
            if bytes < header::SIZE {
                return Err(Corrupt::Written { written: bytes as u32, size: self.size });
            }
            return Err(Corrupt::Length { len, expected: self.frames.lengths() });
        }
        self.bytes += len as u64;
        Ok(Some(first))
    }

    /// Looks into a frame.
    fn look(&mut self, first: u16) -> Result<(), Corrupt> {
        let slot = self.slot(first)?;
        if self.frames != Frames::Tso {
            // A server that sets it to 0 with one buffer is one without MRG_RXBUF (§5.1.6.4.1 wants 1 then, too).
            let count = self.header_u16(first, header::NUM_BUFFERS)?;
            if count > 1 {
                return Err(Corrupt::Buffers(count));
            }
        }
        let flags = self.buffers.u8(slot + header::FLAGS).load(Relaxed);
        let gso = self.buffers.u8(slot + header::GSO_TYPE).load(Relaxed);
        let expected = if self.frames == Frames::Tso { header::GSO_TCPV4 } else { header::GSO_NONE };
        if gso != expected {
            return Err(Corrupt::Header { flags, gso, expected });
        }
        let found = self.frames.sequence(&self.buffers, slot).ok_or(Corrupt::Contents)?;
        if let Some(sent) = &self.whole {
            let mut bytes = vec![0; sent.len()];
            self.buffers.buffer().read_at(slot as u64, &mut bytes).map_err(|_| Corrupt::Contents)?;
            let differs = |at: usize| bytes[at] != sent[at];
            if (header::SIZE..sent.len()).any(|at| differs(at) && !self.frames.varies(at)) {
                return Err(Corrupt::Contents);
            }
        }
        if found < self.next {
            return Err(Corrupt::Order { found, next: self.next });
        }
        self.next = found + 1;
        Ok(())
    }

    fn header_u16(&self, id: u16, at: usize) -> Result<u16, Corrupt> {
        Ok(self.buffers.u16(self.slot(id)? + at).load(Relaxed))
    }

    #[inline]
    fn slot(&self, id: u16) -> Result<usize, Corrupt> {
        let buffer = self.buffer_of.get(usize::from(id)).copied().flatten().ok_or(Corrupt::Buffer(id))?;
        Ok(usize::from(buffer) * self.stride)
    }
}
