//! What one connection sees of its guest's memory.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use softdpu_sys::IoVec;
use thiserror::Error;

use crate::{DirtyBitmap, GuestBuffer, Mapping, Window};

/// A guest-physical address: what descriptors carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestAddress(pub u64);

/// An address in the front end's own process: what vhost-user ring addresses are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserAddress(pub u64);

impl fmt::Display for GuestAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for UserAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// An address the guest gave that is not (all) its memory.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{len:#x} bytes at {address:#x} are not inside the memory the front end shared")]
pub struct AccessError {
    /// Where the access began.
    pub address: u64,
    /// Its length, bytes.
    pub len: u64,
}

/// Why a set of regions is not a view.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ViewError {
    /// Zero length.
    #[error("region {0} is empty")]
    Empty(usize),
    /// The end of a region is beyond the last address.
    #[error("region {0} ends beyond the last address")]
    Wraps(usize),
    /// A region needs more than its mapping has.
    #[error("region {0} is larger than the memory mapped for it")]
    BeyondMapping(usize),
    /// Two regions have an address in common.
    #[error("regions at guest addresses {0:#x} and {1:#x} overlap")]
    Overlap(u64, u64),
}

/// A contiguous part of guest memory and where it is mapped here.
#[derive(Clone, Debug)]
pub struct Region {
    guest: u64,
    user: u64,
    len: u64,
    mapping: Arc<Mapping>,
    offset: usize,
    /// Where its first byte is in this process: the mapping's base and `offset`, at hand for every descriptor.
    base: HostAddress,
}

/// An address in this process.
#[derive(Clone, Copy, Debug)]
struct HostAddress(*mut u8);

// SAFETY: an address; the region that has it keeps what it points to mapped, and access goes through copies and
// atomics.
unsafe impl Send for HostAddress {}
// SAFETY: as above.
unsafe impl Sync for HostAddress {}

impl Region {
    /// `len` bytes at guest address `guest`, known to the front end as `user`, which lie `offset` bytes into `mapping`.
    pub fn new(guest: GuestAddress, user: UserAddress, len: u64, mapping: Arc<Mapping>, offset: usize) -> Self {
        let base = HostAddress(mapping.base().wrapping_add(offset));
        Region { guest: guest.0, user: user.0, len, mapping, offset, base }
    }

    /// First guest address.
    pub fn guest(&self) -> GuestAddress {
        GuestAddress(self.guest)
    }

    /// First front-end address.
    pub fn user(&self) -> UserAddress {
        UserAddress(self.user)
    }

    /// Length in bytes, at least 1.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never, once it is part of a view.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory behind it.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The address in this process of the byte `offset` bytes into the region. `offset` must be inside it.
    #[inline]
    fn host(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset < self.len);
        self.base.0.wrapping_add(offset as usize)
    }
}

/// An immutable set of regions. A change of memory, or of the consumers of dirty pages, is a new view.
#[derive(Debug, Default)]
pub struct View {
    /// Ascending by guest address, no overlaps.
    regions: Box<[Region]>,
    dirty: SmallVec<[Arc<DirtyBitmap>; 1]>,
}

impl View {
    /// Checks and sorts `regions`.
    ///
    /// # Errors
    /// [`ViewError`] with the index of the region as given.
    pub fn new(mut regions: Vec<Region>) -> Result<Arc<View>, ViewError> {
        for (index, region) in regions.iter().enumerate() {
            if region.len == 0 {
                return Err(ViewError::Empty(index));
            }
            if region.guest.checked_add(region.len).is_none() || region.user.checked_add(region.len).is_none() {
                return Err(ViewError::Wraps(index));
            }
            let end = (region.offset as u64).checked_add(region.len);
            if end.is_none_or(|end| end > region.mapping.len() as u64) {
                return Err(ViewError::BeyondMapping(index));
            }
        }
        regions.sort_by_key(|region| region.guest);
        for pair in regions.windows(2) {
            if pair[0].guest + pair[0].len > pair[1].guest {
                return Err(ViewError::Overlap(pair[0].guest, pair[1].guest));
            }
        }
        Ok(Arc::new(View { regions: regions.into(), dirty: SmallVec::new() }))
    }

    /// A view of nothing.
    pub fn empty() -> Arc<View> {
        Arc::new(View::default())
    }

    /// The same regions, with writes reported to these bitmaps.
    pub fn with_dirty(&self, dirty: impl IntoIterator<Item = Arc<DirtyBitmap>>) -> Arc<View> {
        Arc::new(View { regions: self.regions.clone(), dirty: dirty.into_iter().collect() })
    }

    /// The regions, ascending by guest address.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The first guest address above all regions; a dirty bitmap has to cover it.
    pub fn end(&self) -> u64 {
        self.regions.last().map_or(0, |region| region.guest + region.len)
    }

    /// Whether some of its memory was cut short by the front end.
    pub fn is_faulted(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.is_faulted())
    }

    #[inline(always)]
    fn find(&self, guest: u64) -> Option<&Region> {
        // Guests have one to four regions as a rule; a scan beats a search there.
        if let [only] = &self.regions[..] {
            return (guest.wrapping_sub(only.guest) < only.len).then_some(only);
        }
        if self.regions.len() <= 8 {
            return self.regions.iter().find(|region| guest.wrapping_sub(region.guest) < region.len);
        }
        let after = self.regions.partition_point(|region| region.guest <= guest);
        let region = &self.regions[after.checked_sub(1)?];
        (guest - region.guest < region.len).then_some(region)
    }

    /// Appends the pieces of `len` bytes at `address` to `pieces`, which may become `most`. They may cross from one
    /// region into the next. False where there are more; `pieces` may then have grown.
    ///
    /// # Errors
    /// [`AccessError`] where any byte is outside; `pieces` may then have grown.
    #[inline]
    pub(crate) fn translate(
        &self,
        address: GuestAddress,
        len: u64,
        most: usize,
        pieces: &mut SmallVec<[IoVec; GuestBuffer::INLINE]>,
    ) -> Result<bool, AccessError> {
        let refused = AccessError { address: address.0, len };
        let mut at = address.0;
        let mut left = len;
        while left > 0 {
            if pieces.len() >= most {
                return Ok(false);
            }
            let region = self.find(at).ok_or(refused)?;
            let offset = at - region.guest;
            let part = left.min(region.len - offset);
            pieces.push(IoVec::new(region.host(offset), part as usize));
            left -= part;
            // Cannot overflow: the region's end does not, and a later byte that does is not found.
            at = at.checked_add(part).ok_or(refused)?;
        }
        Ok(true)
    }

    /// Where `len` bytes at `address` lie in this process, if in one piece: for something that is read at once, while
    /// the view is held. A [`buffer`](Self::buffer) pins it for longer.
    #[inline(always)]
    pub fn contiguous(&self, address: GuestAddress, len: u64) -> Option<*const u8> {
        let region = self.find(address.0)?;
        let offset = address.0 - region.guest;
        (len <= region.len - offset).then(|| region.host(offset).cast_const())
    }

    /// The same view under a reference count of its own: a queue that pins one buffer per request does not share the
    /// count's cache line with queues on other cores.
    pub fn replica(&self) -> Arc<View> {
        Arc::new(View { regions: self.regions.clone(), dirty: self.dirty.clone() })
    }

    /// A pinned buffer of `len` bytes at `address`.
    ///
    /// # Errors
    /// [`AccessError`] where any byte is outside.
    pub fn buffer(self: &Arc<Self>, address: GuestAddress, len: u64) -> Result<GuestBuffer, AccessError> {
        let mut buffer = GuestBuffer::new(self);
        buffer.append(address, len)?;
        Ok(buffer)
    }

    /// A pinned window of `len` contiguous bytes at front-end address `address`, aligned to `align` here and there: a
    /// ring part.
    ///
    /// # Errors
    /// [`AccessError`] where it is not inside one region or not aligned.
    pub fn window(self: &Arc<Self>, address: UserAddress, len: usize, align: usize) -> Result<Window, AccessError> {
        let refused = AccessError { address: address.0, len: len as u64 };
        let region =
            self.regions.iter().find(|region| address.0.wrapping_sub(region.user) < region.len).ok_or(refused)?;
        let offset = address.0 - region.user;
        self.window_in(region, offset, len, align).ok_or(refused)
    }

    /// As [`window`](Self::window), by guest address.
    ///
    /// # Errors
    /// [`AccessError`] where it is not inside one region or not aligned.
    pub fn guest_window(
        self: &Arc<Self>,
        address: GuestAddress,
        len: usize,
        align: usize,
    ) -> Result<Window, AccessError> {
        let refused = AccessError { address: address.0, len: len as u64 };
        let region = self.find(address.0).ok_or(refused)?;
        self.window_in(region, address.0 - region.guest, len, align).ok_or(refused)
    }

    fn window_in(self: &Arc<Self>, region: &Region, offset: u64, len: usize, align: usize) -> Option<Window> {
        if len == 0 || offset.checked_add(len as u64)? > region.len {
            return None;
        }
        let base = region.host(offset);
        if !(base as usize).is_multiple_of(align) {
            return None;
        }
        Some(Window::new(Arc::clone(self), base, len, GuestAddress(region.guest + offset)))
    }

    /// Whether writes are tracked. Checked once a batch, it saves the marks where they are not.
    #[inline]
    pub fn is_tracked(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Reports that `len` bytes at `address` were written.
    #[inline]
    pub fn mark_dirty(&self, address: GuestAddress, len: u64) {
        for log in &self.dirty {
            log.mark(address, len);
        }
    }

    /// The guest address of a piece of this view.
    pub(crate) fn guest_address(&self, base: *const u8) -> Option<GuestAddress> {
        self.regions.iter().find_map(|region| {
            let offset = (base as usize).checked_sub(region.mapping.base() as usize + region.offset)? as u64;
            (offset < region.len).then_some(GuestAddress(region.guest + offset))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(guest: u64, len: u64) -> Region {
        Region::new(GuestAddress(guest), UserAddress(guest + 0x7000_0000), len, Mapping::heap(len as usize), 0)
    }

    #[test]
    fn a_buffer_crosses_adjacent_regions_in_address_order() {
        let view = View::new(vec![region(0x2000, 0x1000), region(0x1000, 0x1000)]).unwrap();
        let buffer = view.buffer(GuestAddress(0x1ffe), 4).unwrap();
        assert_eq!(buffer.pieces(), 2);
        buffer.write_at(0, &[1, 2, 3, 4]).unwrap();
        let mut second = [0; 2];
        view.buffer(GuestAddress(0x2000), 2).unwrap().read_at(0, &mut second).unwrap();
        assert_eq!(second, [3, 4]);
    }

    #[test]
    fn what_is_outside_is_refused_wherever_it_begins() {
        let view = View::new(vec![region(0x1000, 0x1000)]).unwrap();
        for (address, len) in
            [(0, 1), (0xfff, 2), (0x1fff, 2), (0x2000, 1), (u64::MAX, 1), (u64::MAX, u64::MAX), (0x1000, u64::MAX)]
        {
            let error = view.buffer(GuestAddress(address), len).err();
            assert_eq!(error, Some(AccessError { address, len }));
        }
    }

    #[test]
    fn an_access_that_ends_at_the_last_address_does_not_wrap() {
        let last = Region { guest: u64::MAX - 0x1000, ..region(0, 0x1000) };
        let view = View::new(vec![last]).unwrap();
        assert!(view.buffer(GuestAddress(u64::MAX - 0x1000), 0x1000).is_ok());
        assert!(view.buffer(GuestAddress(u64::MAX - 1), 2).is_err());
    }

    #[test]
    fn impossible_regions_are_refused_by_name() {
        assert_eq!(View::new(vec![Region { len: 0, ..region(0, 1) }]).err(), Some(ViewError::Empty(0)));
        assert_eq!(View::new(vec![Region { guest: u64::MAX, ..region(0, 2) }]).err(), Some(ViewError::Wraps(0)));
        assert_eq!(
            View::new(vec![Region { len: 0x2001, ..region(0, 0x2000) }]).err(),
            Some(ViewError::BeyondMapping(0))
        );
        let overlapping = vec![region(0x1000, 0x1000), region(0x1800, 0x1000)];
        assert_eq!(View::new(overlapping).err(), Some(ViewError::Overlap(0x1000, 0x1800)));
    }

    #[test]
    fn many_regions_are_searched_like_few() {
        let view = View::new((0..32).map(|i| region(i * 0x4000, 0x1000)).collect()).unwrap();
        for i in 0..32u64 {
            assert!(view.buffer(GuestAddress(i * 0x4000 + 0xfff), 1).is_ok());
            assert!(view.buffer(GuestAddress(i * 0x4000 + 0x1000), 1).is_err());
        }
    }

    #[test]
    fn a_window_is_contiguous_and_aligned() {
        let view = View::new(vec![region(0x1000, 0x1000), region(0x2000, 0x1000)]).unwrap();
        let user = |guest: u64| UserAddress(guest + 0x7000_0000);
        assert!(view.window(user(0x1010), 16, 16).is_ok());
        assert!(view.window(user(0x1008), 16, 16).is_err());
        assert!(view.window(user(0x1ff0), 32, 16).is_err(), "crosses regions");
        assert!(view.window(UserAddress(0x1000), 16, 16).is_err(), "not a front-end address");
        assert!(view.guest_window(GuestAddress(0x1000), 16, 16).is_ok());
    }

    #[test]
    fn writes_are_reported_to_every_bitmap_by_guest_address() {
        let view = View::new(vec![region(0x10_0000, 0x4000)]).unwrap();
        let logs: Vec<_> = (0..2).map(|_| Arc::new(DirtyBitmap::new(Mapping::heap(64), 0, 64).unwrap())).collect();
        let tracked = view.with_dirty(logs.iter().cloned());
        let buffer = view.buffer(GuestAddress(0x10_1000), 0x10).unwrap();
        buffer.mark_dirty_in(&tracked, 0, 0x10);
        for log in &logs {
            assert!(log.is_marked(GuestAddress(0x10_1000)));
            assert!(!log.is_marked(GuestAddress(0x10_0000)));
        }
    }

    #[test]
    fn a_replaced_view_lives_as_long_as_its_buffers() {
        let mapping = Mapping::heap(0x1000);
        let watch = Arc::downgrade(&mapping);
        let view = View::new(vec![Region::new(GuestAddress(0), UserAddress(0), 0x1000, mapping, 0)]).unwrap();
        let buffer = view.buffer(GuestAddress(0), 4).unwrap();
        drop(view);
        assert!(watch.upgrade().is_some());
        drop(buffer);
        assert!(watch.upgrade().is_none());
    }
}
