//! Dirty bitmaps: which pages of a guest were written on its behalf.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering, fence};

use crate::mark::{self, Bits};
use crate::{GuestAddress, Mapping};

/// Bytes of guest memory per bit: VHOST_LOG_PAGE of the vhost-user protocol.
pub const PAGE: u64 = 4096;

/// A bitmap over guest-physical memory that one consumer (a migration, say) reads and clears while we set bits.
///
/// Bit `n % 8` of byte `n / 8` stands for page `n` (vhost-user, "Migration").
#[derive(Debug)]
pub struct DirtyBitmap {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
}

impl DirtyBitmap {
    /// The bitmap in `len` bytes of `mapping` from `offset`; none where they are not inside the mapping.
    pub fn new(mapping: Arc<Mapping>, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= mapping.len()).then_some(DirtyBitmap { mapping, offset, len })
    }

    /// How many bytes of guest memory it covers, from address 0.
    pub fn covers(&self) -> u64 {
        self.len as u64 * 8 * PAGE
    }

    /// Marks the pages of `len` bytes from `start`, which were stored to before the call. Pages beyond the bitmap have
    /// no bit and are passed over; a bitmap from a peer is checked with [`covers`](Self::covers) first.
    pub fn mark(&self, start: GuestAddress, len: u64) {
        if len == 0 {
            return;
        }
        let first = start.0 / PAGE;
        let last = start.0.saturating_add(len - 1) / PAGE;
        let bit = |page: u64| self.byte(page / 8).map(|byte| (byte, 1u8 << (page % 8)));
        mark::mark((first..=last).map_while(bit));
    }

    /// Whether the page that holds `address` is marked.
    pub fn is_marked(&self, address: GuestAddress) -> bool {
        let page = address.0 / PAGE;
        self.byte(page / 8).is_some_and(|byte| byte.load(Ordering::Acquire) & (1 << (page % 8)) != 0)
    }

    fn byte(&self, index: u64) -> Option<&AtomicU8> {
        let index = usize::try_from(index).ok().filter(|index| *index < self.len)?;
        // SAFETY: inside the mapping (checked in `new` and above), which lives as long as `self`; a byte is always
        // aligned and shared memory may be accessed atomically by anyone.
        Some(unsafe { &*self.mapping.base().add(self.offset + index).cast::<AtomicU8>() })
    }
}

impl Bits for AtomicU8 {
    #[inline(always)]
    fn look(&self) -> u8 {
        self.load(Ordering::Relaxed)
    }
    #[inline(always)]
    fn add(&self, bits: u8) {
        self.fetch_or(bits, Ordering::Release);
    }
    #[inline(always)]
    fn barrier() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_every_page_a_range_touches_and_no_other() {
        let log = DirtyBitmap::new(Mapping::heap(64), 0, 64).unwrap();
        log.mark(GuestAddress(2 * PAGE - 1), 2);
        let marked: Vec<u64> = (0..8).filter(|page| log.is_marked(GuestAddress(page * PAGE))).collect();
        assert_eq!(marked, [1, 2]);
    }

    #[test]
    fn pages_beyond_the_bitmap_and_empty_ranges_are_passed_over() {
        let log = DirtyBitmap::new(Mapping::heap(1), 0, 1).unwrap();
        log.mark(GuestAddress(7 * PAGE), 100 * PAGE);
        log.mark(GuestAddress(u64::MAX), u64::MAX);
        log.mark(GuestAddress(0), 0);
        assert!(log.is_marked(GuestAddress(7 * PAGE)));
        assert!(!log.is_marked(GuestAddress(0)));
        assert!(!log.is_marked(GuestAddress(8 * PAGE)));
    }

    #[test]
    fn a_bitmap_outside_its_mapping_is_refused() {
        assert!(DirtyBitmap::new(Mapping::heap(4096), 4096, 1).is_none());
        assert!(DirtyBitmap::new(Mapping::heap(4096), usize::MAX, 2).is_none());
    }
}
