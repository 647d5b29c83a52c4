//! The four rings between an AF_XDP socket and the kernel (Documentation/networking/af_xdp.rst).

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::port::mapping::Mapping;

/// What is in a ring: addresses (fill, completion) or descriptors (receive, transmit).
///
/// # Safety
/// Plain data, valid for all bit patterns, of the size the kernel has for the ring.
pub(super) unsafe trait Entry: Copy {}
// SAFETY: an address in the UMEM.
unsafe impl Entry for u64 {}
// SAFETY: a long int and two ints.
unsafe impl Entry for libc::xdp_desc {}

/// One ring, of which this side is the only producer or the only consumer. Positions count on without wrapping at the
/// ring's size.
pub(super) struct Ring<T> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    mask: u32,
    kind: std::marker::PhantomData<fn(T) -> T>,
}

impl<T: Entry> Ring<T> {
    /// The ring of `size` entries (a power of two) that `socket` has at `page_offset`.
    pub(super) fn new(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> Result<Self, Errno> {
        let entries = offsets.desc as usize;
        let mapping = Mapping::of(socket, page_offset, entries + size as usize * size_of::<T>())?;
        let (producer, consumer) = (offsets.producer as usize, offsets.consumer as usize);
        let flags = offsets.flags as usize;
        debug_assert!(producer.max(consumer).max(flags) + 4 <= entries && size.is_power_of_two());
        let kind = std::marker::PhantomData;
        Ok(Ring { mapping, producer, consumer, flags, entries, mask: size - 1, kind })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the kernel's offsets are of aligned words inside the mapping, which only atomics reach.
        unsafe { AtomicU32::from_ptr(self.mapping.base().add(offset).cast()) }
    }

    /// How far the producer is.
    pub(super) fn produced(&self) -> u32 {
        self.word(self.producer).load(Ordering::Acquire)
    }

    /// How far the consumer is.
    pub(super) fn consumed(&self) -> u32 {
        self.word(self.consumer).load(Ordering::Acquire)
    }

    /// Publishes entries up to `position`; for the producer.
    pub(super) fn produce(&self, position: u32) {
        self.word(self.producer).store(position, Ordering::Release);
    }

    /// Frees entries up to `position`; for the consumer.
    pub(super) fn consume(&self, position: u32) {
        self.word(self.consumer).store(position, Ordering::Release);
    }

    /// Whether the kernel sleeps on this ring until a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// The entry at a position this side owns.
    pub(super) fn read(&self, position: u32) -> T {
        // SAFETY: inside the mapping by the mask, aligned as the kernel laid it out; the other side does not write
        // entries this side owns, and any bytes are a T.
        unsafe { self.entry(position).read() }
    }

    /// Sets the entry at a position this side owns.
    pub(super) fn write(&mut self, position: u32, value: T) {
        // SAFETY: as in `read`.
        unsafe { self.entry(position).write(value) };
    }

    fn entry(&self, position: u32) -> *mut T {
        let offset = self.entries + (position & self.mask) as usize * size_of::<T>();
        self.mapping.base().wrapping_add(offset).cast()
    }
}
