//! The parts of a ring in shared memory. Nothing here trusts an index: each is brought into range before it is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use softdpu_memory::{GuestAddress, UserAddress, View, Window};
use softdpu_sys::prefetch;

use crate::error::Part;
use crate::layout::{DESCRIPTOR, Descriptor, EVENT, PackedDescriptor};
use crate::sync::Word;
use crate::{QueueError, RingAddresses};

/// A window with words that are reached by offsets that the caller has proved.
struct Area(Window);

impl Area {
    fn new(view: &Arc<View>, part: Part, address: UserAddress, len: usize, align: usize) -> Result<Area, QueueError> {
        view.window(address, len, align).map(Area).map_err(|_| QueueError::Unmapped { part, address, len, align })
    }

    /// The word at byte `offset`.
    ///
    /// # Safety
    /// The whole word is inside the window, and `offset` is a multiple of its size; the window is aligned to at least
    /// that.
    #[inline(always)]
    unsafe fn word<W: Word>(&self, offset: usize) -> &W {
        debug_assert!(offset + size_of::<W>() <= self.0.len() && offset.is_multiple_of(size_of::<W>()));
        // SAFETY: inside the window (the caller), which keeps the memory mapped for as long as `self` lives; the type
        // is an atomic, valid for any bytes, and all of this process uses atomics on it.
        unsafe { &*self.0.base().add(offset).cast::<W>() }
    }
}

/// Reports `count` entries that were written, of `each` bytes, from entry `from` of `size` on and around the end, to
/// the dirty log. The first entry of the ring lies at `ring` there.
#[inline]
pub(crate) fn log_entries(view: &View, ring: Option<GuestAddress>, each: usize, size: u16, from: u16, count: u16) {
    let Some(GuestAddress(ring)) = ring.filter(|_| view.is_tracked()) else { return };
    let first = count.min(size - from);
    for (from, count) in [(from, first), (0, count - first)] {
        let at = ring.wrapping_add((usize::from(from) * each) as u64);
        view.mark_dirty(GuestAddress(at), (usize::from(count) * each) as u64);
    }
}

/// The descriptor table of a split ring, or the descriptor ring of a packed one.
pub(crate) struct Descriptors {
    area: Area,
    size: u16,
}

impl Descriptors {
    pub fn new(view: &Arc<View>, addresses: &RingAddresses, size: u16) -> Result<Self, QueueError> {
        let len = DESCRIPTOR * usize::from(size);
        Ok(Descriptors { area: Area::new(view, Part::Descriptors, addresses.descriptors, len, DESCRIPTOR)?, size })
    }

    #[inline(always)]
    fn offset(&self, index: u16) -> usize {
        // Callers have checked the index and answered the guest; this is what makes the accessors below sound by
        // themselves, and compiles to a conditional move.
        let index = if index < self.size { index } else { 0 };
        usize::from(index) * DESCRIPTOR
    }

    /// Both of its words: its address field, and everything else.
    #[inline(always)]
    pub fn words(&self, index: u16) -> (&AtomicU64, &AtomicU64) {
        let offset = self.offset(index);
        // SAFETY: `offset` is that of one of `size` descriptors, which the area was made for, aligned to 16: both
        // halves of it.
        unsafe { (self.area.word(offset), self.area.word(offset + 8)) }
    }

    /// Where the first lies, for the dirty log.
    pub fn guest(&self) -> GuestAddress {
        self.area.0.guest()
    }

    /// Its address field.
    #[inline(always)]
    pub fn addr(&self, index: u16) -> &AtomicU64 {
        // SAFETY: `offset` is that of one of `size` descriptors, which the area was made for, aligned to 16.
        unsafe { self.area.word(self.offset(index)) }
    }

    /// Everything else: length and two 16-bit fields.
    #[inline(always)]
    pub fn meta(&self, index: u16) -> &AtomicU64 {
        // SAFETY: as in `addr`; the second half of the descriptor.
        unsafe { self.area.word(self.offset(index) + 8) }
    }

    /// The flags of a packed descriptor.
    #[inline(always)]
    pub fn flags(&self, index: u16) -> u16 {
        PackedDescriptor::from_words(0, self.meta(index).get(Relaxed)).flags
    }

    /// All of it, each word once.
    #[inline(always)]
    pub fn read<D: Descriptor>(&self, index: u16) -> D {
        D::from_words(self.addr(index).get(Relaxed), self.meta(index).get(Relaxed))
    }

    /// Writes all of it (the driver's side).
    pub fn write(&self, index: u16, descriptor: impl Descriptor) {
        self.addr(index).set(descriptor.addr(), Relaxed);
        self.meta(index).set(descriptor.meta(), Relaxed);
    }

    #[inline(always)]
    pub fn prefetch(&self, index: u16) {
        prefetch::read(self.area.0.base().wrapping_add(usize::from(index) * DESCRIPTOR));
    }

    #[inline(always)]
    pub fn prefetch_write(&self, index: u16) {
        prefetch::write(self.area.0.base().wrapping_add(usize::from(index) * DESCRIPTOR));
    }
}

/// What both rings of a split queue have: `flags`, `idx`, entries, and behind them `used_event` or `avail_event`.
pub(crate) struct SplitRing<const ENTRY: usize> {
    area: Area,
    mask: u16,
}

/// The available ring (virtio 1.3 §2.7.6): its entries are heads.
pub(crate) type AvailableRing = SplitRing<2>;

/// The used ring (virtio 1.3 §2.7.8): its entries have `id` and `len`.
pub(crate) type UsedRing = SplitRing<8>;

impl<const ENTRY: usize> SplitRing<ENTRY> {
    /// Bytes of one entry.
    pub const ENTRY: usize = ENTRY;
    /// Offset of the first entry.
    pub const RING: usize = 4;

    fn at(view: &Arc<View>, part: Part, address: UserAddress, size: u16, event_idx: bool) -> Result<Self, QueueError> {
        // The trailing word is there with VIRTIO_F_EVENT_IDX.
        let len = Self::RING + ENTRY * usize::from(size) + if event_idx { 2 } else { 0 };
        Ok(SplitRing { area: Area::new(view, part, address, len, ENTRY.min(4))?, mask: size - 1 })
    }

    #[inline(always)]
    pub fn flags(&self) -> &AtomicU16 {
        // SAFETY: the first word of an area of at least 6 bytes, aligned to at least 2.
        unsafe { self.area.word(0) }
    }

    #[inline(always)]
    pub fn idx(&self) -> &AtomicU16 {
        // SAFETY: the second word of an area of at least 6 bytes, aligned to at least 2.
        unsafe { self.area.word(2) }
    }

    /// Offset of the entry of a free-running index: one of `size` entries, which the area was made for.
    #[inline(always)]
    fn entry_offset(&self, index: u16) -> usize {
        Self::RING + ENTRY * usize::from(index & self.mask)
    }

    /// `used_event` or `avail_event`, with VIRTIO_F_EVENT_IDX; part of the last entry otherwise.
    #[inline(always)]
    pub fn event(&self) -> &AtomicU16 {
        // SAFETY: the last two bytes of the area, which has an even length.
        unsafe { self.area.word(self.area.0.len() - 2) }
    }

    /// Offset of [`event`](Self::event), with VIRTIO_F_EVENT_IDX.
    pub fn event_offset(&self) -> usize {
        Self::RING + ENTRY * (usize::from(self.mask) + 1)
    }
}

impl AvailableRing {
    pub fn new(view: &Arc<View>, addresses: &RingAddresses, size: u16, event_idx: bool) -> Result<Self, QueueError> {
        Self::at(view, Part::Driver, addresses.driver, size, event_idx)
    }

    /// The entry of a free-running index.
    #[inline(always)]
    pub fn entry(&self, index: u16) -> &AtomicU16 {
        // SAFETY: one of `size` entries of 2 bytes behind the two words, which the area was made for.
        unsafe { self.area.word(self.entry_offset(index)) }
    }
}

impl UsedRing {
    /// Entries in a cache line of 64 bytes.
    pub const ENTRIES_A_LINE: usize = 64 / Self::ENTRY;

    pub fn new(view: &Arc<View>, addresses: &RingAddresses, size: u16, event_idx: bool) -> Result<Self, QueueError> {
        Self::at(view, Part::Device, addresses.device, size, event_idx)
    }

    /// Fetches the line with `idx` for writing.
    #[inline(always)]
    pub fn prefetch_index(&self) {
        prefetch::write(self.area.0.base());
    }

    /// Fetches the line with the entry of a free-running index for writing.
    #[inline(always)]
    pub fn prefetch_entry(&self, index: u16) {
        prefetch::write(self.area.0.base().wrapping_add(self.entry_offset(index)));
    }

    /// `id` of the entry of a free-running index.
    #[inline(always)]
    pub fn id(&self, index: u16) -> &AtomicU32 {
        // SAFETY: one of `size` entries of 8 bytes, which the area was made for, aligned to 4.
        unsafe { self.area.word(self.entry_offset(index)) }
    }

    /// `len` of the entry of a free-running index.
    #[inline(always)]
    pub fn len(&self, index: u16) -> &AtomicU32 {
        // SAFETY: as in `id`, its second half.
        unsafe { self.area.word(self.entry_offset(index) + 4) }
    }
}

/// An event suppression structure of a packed ring (virtio 1.3 §2.8.14): `off_wrap` and `flags`, read and written as
/// one word.
pub(crate) struct Event(Area);

impl Event {
    pub fn new(view: &Arc<View>, part: Part, address: UserAddress) -> Result<Self, QueueError> {
        Ok(Event(Area::new(view, part, address, EVENT, 4)?))
    }

    /// Where it lies, for the dirty log.
    pub fn guest(&self) -> GuestAddress {
        self.0.0.guest()
    }

    #[inline(always)]
    pub fn word(&self) -> &AtomicU32 {
        // SAFETY: the only word of an area of 4 bytes, aligned to 4.
        unsafe { self.0.word(0) }
    }
}
