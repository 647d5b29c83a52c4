//! The receive ring of an AF_PACKET socket: TPACKET_V2 (Documentation/networking/packet_mmap.rst).
//!
//! V2 rather than V3: V3 hands over blocks when they are full or after a timer of a millisecond or more, which would be
//! the latency of a lone frame; V2 hands over each frame at once. Slots are sized for the interface's MTU, so that a
//! ring of thousands of frames stays small; what receive offload has made larger comes through the socket's queue
//! instead, in order, announced by TP_STATUS_COPY in the slot. Beside recvmmsg the ring saves a seventh of all it costs
//! to send and receive a frame (veth, Linux 6.18, 60 and 1,400 bytes, batches of up to 64: 0.88 µs and 0.96 µs against
//! 1.02 and 1.13).

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::port::mapping::Mapping;
use crate::port::option::set;

/// The unit in which the kernel allocates a ring: what it finds in one piece also when memory is fragmented.
const BLOCK: usize = 64 * 1024;
/// Bytes before a frame in its slot: tpacket2_hdr, sockaddr_ll and virtio-net header with their paddings need 92.
const BEFORE: usize = 128;
/// An Ethernet header and two VLAN tags, which an MTU does not count.
const LINK_HEADER: usize = 14 + 8;
/// Above this, frames come through the queue.
const LARGEST_SLOT: usize = 16 * 1024;

/// What is in a slot that the kernel has filled.
pub(super) enum Slot {
    /// A whole frame, at this address and with so many bytes; the virtio-net header is right before it.
    Whole(*mut u8, usize),
    /// A frame that did not fit: the next one in the socket's queue.
    Queued,
    /// A frame that fitted neither the slot nor the queue.
    Truncated,
}

pub(super) struct Ring {
    mapping: Mapping,
    slot: usize,
    per_block: usize,
    count: usize,
    /// The slot the kernel fills next, or has filled.
    next: usize,
    /// Slots before `next` that were not yet given back.
    held: usize,
}

impl Ring {
    /// Gives `socket` a ring of at least `frames` slots for frames of `mtu`. It must not have one.
    pub(super) fn new(socket: BorrowedFd<'_>, mtu: usize, frames: usize) -> Result<Self, Errno> {
        let slot = (mtu + LINK_HEADER + BEFORE).next_multiple_of(1024).clamp(2048, LARGEST_SLOT);
        let per_block = BLOCK / slot;
        let blocks = frames.clamp(64, 1 << 16).div_ceil(per_block);
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: slot as u32,
            tp_frame_nr: (blocks * per_block) as u32,
        };
        set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let mapping = Mapping::of(socket, 0, blocks * BLOCK)?;
        Ok(Ring { mapping, slot, per_block, count: blocks * per_block, next: 0, held: 0 })
    }

    /// Frees the ring `socket` has from an earlier owner, if any.
    pub(super) fn remove(socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let none = libc::tpacket_req { tp_block_size: 0, tp_block_nr: 0, tp_frame_size: 0, tp_frame_nr: 0 };
        set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &none)
    }

    fn header(&self, index: usize) -> *mut libc::tpacket2_hdr {
        let offset = index / self.per_block * BLOCK + index % self.per_block * self.slot;
        debug_assert!(offset + self.slot <= self.mapping.len());
        self.mapping.base().wrapping_add(offset).cast()
    }

    fn status(&self, index: usize) -> &AtomicU32 {
        // SAFETY: the status is the first field of the header, aligned, inside the mapping (`index` is below `count`),
        // and only reached through atomics here.
        unsafe { AtomicU32::from_ptr((&raw mut (*self.header(index)).tp_status).cast()) }
    }

    /// The next slot the kernel has filled, and whether the frame had a VLAN tag. It stays ours until
    /// [`release`](Self::release).
    pub(super) fn next(&mut self) -> Option<(Slot, bool)> {
        if self.held == self.count {
            return None;
        }
        let status = self.status(self.next).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let header = self.header(self.next);
        // SAFETY: inside the mapping; the kernel does not write a slot with the user status.
        let (len, snaplen, mac) = unsafe { ((*header).tp_len, (*header).tp_snaplen, (*header).tp_mac) };
        let (len, snaplen, mac) = (len as usize, snaplen as usize, usize::from(mac));
        self.next = (self.next + 1) % self.count;
        self.held += 1;
        let slot = if status & libc::TP_STATUS_COPY != 0 {
            Slot::Queued
        } else if snaplen < len || mac < size_of::<libc::tpacket2_hdr>() || mac + snaplen > self.slot {
            Slot::Truncated
        } else {
            Slot::Whole(header.cast::<u8>().wrapping_add(mac), snaplen)
        };
        Some((slot, status & libc::TP_STATUS_VLAN_VALID != 0))
    }

    /// Gives all slots that [`next`](Self::next) returned back to the kernel.
    pub(super) fn release(&mut self) {
        for behind in (1..=self.held).rev() {
            let index = (self.next + self.count - behind) % self.count;
            self.status(index).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        self.held = 0;
    }
}
