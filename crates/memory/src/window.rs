//! Memory of a ring: contiguous, pinned, read and written word by word.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use crate::{GuestAddress, GuestBuffer, Mapping, Region, UserAddress, View};

/// A contiguous, aligned part of shared memory, pinned. Words in it are atomics, as the other side writes them too.
///
/// Offsets come from the ring code, which masks indexes with the ring's size; they are checked all the same, and one
/// outside is a bug of ours, hence a panic.
pub struct Window {
    view: Arc<View>,
    base: *mut u8,
    len: usize,
    guest: GuestAddress,
}

// SAFETY: an address range with words only reachable as atomics; the view keeps it mapped.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    pub(crate) fn new(view: Arc<View>, base: *mut u8, len: usize, guest: GuestAddress) -> Self {
        Window { view, base, len, guest }
    }

    /// The whole of a mapping as a window, for memory that is ours rather than a guest's (in-flight records, ring
    /// positions).
    pub fn of_mapping(mapping: Arc<Mapping>) -> Window {
        let len = mapping.len();
        let base = mapping.base();
        let region = Region::new(GuestAddress(0), UserAddress(0), len as u64, mapping, 0);
        let view = View::new(vec![region]).expect("one region that is its own mapping");
        Window { view, base, len, guest: GuestAddress(0) }
    }

    /// A part of this window; none where it is not inside.
    pub fn part(&self, offset: usize, len: usize) -> Option<Window> {
        if len == 0 || offset.checked_add(len)? > self.len {
            return None;
        }
        let base = self.base.wrapping_add(offset);
        Some(Window { view: Arc::clone(&self.view), base, len, guest: GuestAddress(self.guest.0 + offset as u64) })
    }

    /// Whether the memory it is in was cut short by the front end; see [`Mapping::is_faulted`].
    pub fn is_faulted(&self) -> bool {
        self.view.is_faulted()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a window has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The guest address of its first byte.
    pub fn guest(&self) -> GuestAddress {
        self.guest
    }

    /// The view it is pinned to.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// Its first byte in this process: for ring code that has proved an offset to be inside and cannot afford to have
    /// it checked again. Code that uses it goes through atomics, stays inside [`len`](Self::len) and keeps the window.
    #[inline(always)]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    #[inline(always)]
    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset < self.len && size_of::<T>() <= self.len - offset, "offset {offset} outside a ring window");
        let at = self.base.wrapping_add(offset).cast::<T>();
        assert!(at.is_aligned(), "offset {offset} of a ring window is not aligned");
        at
    }

    /// The byte at `offset`.
    #[inline(always)]
    pub fn u8(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: as in `u16`.
        unsafe { &*self.at::<AtomicU8>(offset) }
    }

    /// The 16-bit word at byte `offset`, which is aligned.
    #[inline(always)]
    pub fn u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: `at` checked bounds and alignment; the view keeps it mapped for the life of `self`; everyone in this
        // process uses atomics on it, and the other side is another process.
        unsafe { &*self.at::<AtomicU16>(offset) }
    }

    /// The 32-bit word at byte `offset`, which is aligned.
    #[inline(always)]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in `u16`.
        unsafe { &*self.at::<AtomicU32>(offset) }
    }

    /// The 64-bit word at byte `offset`, which is aligned.
    #[inline(always)]
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `u16`.
        unsafe { &*self.at::<AtomicU64>(offset) }
    }

    /// Starts fetching the line at `offset`; a hint, never a fault.
    #[inline(always)]
    pub fn prefetch(&self, offset: usize) {
        softdpu_sys::prefetch::read(self.base.wrapping_add(offset));
    }

    /// Its bytes as a buffer, to copy in or out.
    pub fn buffer(&self) -> GuestBuffer {
        self.view.buffer(self.guest, self.len as u64).expect("a window is inside its view")
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({}+{:#x})", self.guest, self.len)
    }
}

/// A window that is an array of 64-bit words, which is checked once instead of for each of them.
#[derive(Debug)]
pub struct Words(Window);

impl Words {
    /// All of `window`. None where it is not aligned to 8 bytes or not a multiple of them long.
    pub fn new(window: Window) -> Option<Words> {
        let fits = window.base.cast::<AtomicU64>().is_aligned() && window.len.is_multiple_of(size_of::<u64>());
        fits.then_some(Words(window))
    }

    /// The words.
    #[inline(always)]
    pub fn all(&self) -> &[AtomicU64] {
        // SAFETY: the window has these bytes, and `new` found them aligned; the view keeps them mapped for the life of
        // `self`; everyone in this process uses atomics on them, and the other side is another process.
        unsafe { std::slice::from_raw_parts(self.0.base.cast(), self.0.len / size_of::<u64>()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn words_and_bytes_are_the_same_memory() {
        let window = Window::of_mapping(Mapping::heap(4096));
        window.u32(8).store(0x0403_0201, Relaxed);
        let mut bytes = [0; 4];
        window.buffer().read_at(8, &mut bytes).unwrap();
        assert_eq!(bytes, 0x0403_0201u32.to_ne_bytes());
        assert_eq!(window.part(8, 8).unwrap().u16(0).load(Relaxed), window.u16(8).load(Relaxed));
        assert!(window.part(4096, 1).is_none());
    }

    #[test]
    fn an_array_of_words_is_that_memory_where_it_is_made_of_whole_ones() {
        let window = Window::of_mapping(Mapping::heap(4096));
        let words = Words::new(window.part(8, 16).unwrap()).unwrap();
        assert_eq!(words.all().len(), 2);
        words.all()[1].store(7, Relaxed);
        assert_eq!(window.u64(16).load(Relaxed), 7);
        for (offset, len) in [(4, 16), (8, 12)] {
            assert!(Words::new(window.part(offset, len).unwrap()).is_none());
        }
    }

    #[test]
    #[should_panic(expected = "outside a ring window")]
    fn a_word_across_the_end_is_a_bug() {
        Window::of_mapping(Mapping::heap(4096)).u16(4095);
    }
}
