//! Large tables of cache lines, zeroed. The kernel gives their memory page by page as lines are first touched.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// What lines are made of.
///
/// # Safety
/// 64 bytes at a multiple of 64, any of which may have any value.
pub unsafe trait CacheLine {}

/// Bytes of a line.
const LINE: usize = 64;

/// A cache line of eight words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Words(pub [u64; 8]);

/// A cache line of sixteen half words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Halves(pub [u32; 16]);

const _: () = assert!(size_of::<Words>() == 64 && align_of::<Words>() == 64);
const _: () = assert!(size_of::<Halves>() == 64 && align_of::<Halves>() == 64);

// SAFETY: integers, 64 bytes of them, so aligned.
unsafe impl CacheLine for Words {}
// SAFETY: as above.
unsafe impl CacheLine for Halves {}

impl Halves {
    /// Which of them are `value` in the bits of `mask`: a bit for each, the first the lowest.
    #[inline(always)]
    pub fn find(&self, mask: u32, value: u32) -> u32 {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::*;
            // SAFETY: SSE2 is part of x86-64; the four loads are of this line's sixteen halves, aligned as it is.
            unsafe {
                let line = self.0.as_ptr().cast::<__m128i>();
                let (mask, value) = (_mm_set1_epi32(mask as i32), _mm_set1_epi32(value as i32));
                let found = |at: usize| _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(line.add(at)), mask), value);
                let (low, high) = (_mm_packs_epi32(found(0), found(1)), _mm_packs_epi32(found(2), found(3)));
                _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.0.iter().rev().fold(0, |found, half| found << 1 | u32::from(half & mask == value))
    }
}

/// A huge page, bytes.
const HUGE: usize = 2 << 20;
/// Mappings from this size on are advised to be in huge pages, bytes: a look-up at random then costs no walk through
/// page tables (at 4 M flows that is a third of it, at 64 k flows, 4 MiB, two thirds). Smaller ones would take 2 MiB
/// for their first line.
const HUGE_FROM: usize = 4 << 20;

/// A mapping of this process's own.
#[derive(Debug)]
struct Mapping {
    mapped: NonNull<u8>,
    len: usize,
}

// SAFETY: it is an address and a length; what is there belongs to lines, which say so themselves.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length; what had lines in it is gone. An error would mean that it was not
        // mapped, which leaves nothing to do.
        let _ = unsafe { munmap(self.mapped.as_ptr().cast(), self.len) };
    }
}

impl Mapping {
    /// `bytes` zeroes, and where they begin: at a page, a huge one where they are so many.
    fn zeroed(bytes: usize) -> std::io::Result<(Mapping, NonNull<u8>)> {
        let bytes = Some(bytes.max(1)).filter(|bytes| *bytes <= isize::MAX as usize - 2 * HUGE).ok_or(Errno::NOMEM)?;
        let is_huge = bytes >= HUGE_FROM;
        // Room to begin at a huge page.
        let len = if is_huge { bytes.next_multiple_of(HUGE) + HUGE } else { bytes };
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let mapping = Mapping { mapped: NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?, len };
        // The next data plane would wait until gigabytes of flows are written to a core dump.
        // SAFETY: our mapping; the advice changes what core dumps have, not its contents.
        let _ = unsafe { madvise(base, len, Advice::LinuxDontDump) };
        let skip = if is_huge { mapping.mapped.align_offset(HUGE) } else { 0 };
        // SAFETY: `skip` is less than HUGE, by which the mapping is longer than its bytes.
        let base = unsafe { mapping.mapped.add(skip) };
        if is_huge {
            // SAFETY: inside the mapping; the advice does not change its contents. A kernel without it leaves small
            // pages.
            let _ = unsafe { madvise(base.as_ptr().cast(), bytes.next_multiple_of(HUGE), Advice::LinuxHugepage) };
        }
        Ok((mapping, base))
    }
}

/// Lines of a mapping. Ones that were never written take no memory.
#[derive(Debug)]
pub struct Lines<L: CacheLine> {
    base: NonNull<L>,
    count: usize,
    _mapping: Arc<Mapping>,
}

// SAFETY: its lines are its own, and it gives them out as slices are given out, by the borrow of itself.
unsafe impl<L: CacheLine> Send for Lines<L> {}
// SAFETY: as above; a shared borrow only reads.
unsafe impl<L: CacheLine> Sync for Lines<L> {}

impl<L: CacheLine> Lines<L> {
    /// `count` lines of zeroes.
    ///
    /// # Errors
    /// What the kernel says where there is no room for them in the address space.
    pub fn zeroed(count: usize) -> std::io::Result<Lines<L>> {
        Ok(Lines::<L>::pair::<L>(count, 0)?.0)
    }

    /// `count` lines of zeroes and `beside` others right behind them: a small table that is looked up together with a
    /// large one is in its huge pages, and takes none for itself.
    ///
    /// # Errors
    /// As of [`zeroed`](Self::zeroed).
    pub fn pair<M: CacheLine>(count: usize, beside: usize) -> std::io::Result<(Lines<L>, Lines<M>)> {
        let bytes = |count: usize| count.checked_mul(LINE).ok_or(Errno::NOMEM);
        let (first, second) = (bytes(count)?, bytes(beside)?);
        let (mapping, base) = Mapping::zeroed(first.checked_add(second).ok_or(Errno::NOMEM)?)?;
        let mapping = Arc::new(mapping);
        // SAFETY: the mapping is at least as long as both together; a page is aligned as a line is, and so is what is
        // whole lines behind.
        let behind = unsafe { base.add(first) };
        let lines = Lines { base: base.cast(), count, _mapping: Arc::clone(&mapping) };
        Ok((lines, Lines { base: behind.cast(), count: beside, _mapping: mapping }))
    }
}

impl<L: CacheLine> Deref for Lines<L> {
    type Target = [L];

    #[inline(always)]
    fn deref(&self) -> &[L] {
        // SAFETY: `count` lines of the mapping that only this value has, zeroed by the kernel (any bits are a line);
        // borrowed as `self` is.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl<L: CacheLine> DerefMut for Lines<L> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [L] {
        // SAFETY: as above; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
        statm.split(' ').nth(1).expect("resident").parse::<usize>().expect("a number") * 4096
    }

    #[test]
    fn lines_are_zero_apart_and_aligned() {
        for count in [0, 1, 1000, HUGE_FROM / 64 + 1] {
            let mut lines = Lines::<Words>::zeroed(count).expect("room");
            assert_eq!(lines.len(), count);
            assert!(lines.as_ptr().is_aligned());
            for (at, line) in lines.iter_mut().enumerate().step_by(997) {
                assert_eq!(line.0, [0; 8]);
                line.0 = [at as u64; 8];
            }
            assert!(lines.iter().enumerate().step_by(997).all(|(at, line)| line.0 == [at as u64; 8]));
        }
        assert!(Lines::<Words>::zeroed(usize::MAX / 64).is_err(), "more than there is");
    }

    #[test]
    fn two_tables_of_a_mapping_are_apart_and_outlive_each_other() {
        for (count, beside) in [(8, HUGE_FROM / 64), (0, 3), (3, 0)] {
            let (mut halves, mut words) = Lines::<Halves>::pair::<Words>(count, beside).expect("room");
            assert_eq!((halves.len(), words.len()), (count, beside));
            halves.fill(Halves([7; 16]));
            assert!(words.iter().all(|line| line.0 == [0; 8]));
            words.fill(Words([9; 8]));
            assert!(halves.iter().all(|line| line.0 == [7; 16]));
            drop(halves);
            assert!(words.iter().all(|line| line.0 == [9; 8]));
        }
        assert!(Lines::<Words>::pair::<Words>(usize::MAX / 64, usize::MAX / 64).is_err(), "more than there is");
    }

    #[test]
    fn halves_are_found_by_some_of_their_bits() {
        let mut line = Halves(std::array::from_fn(|at| (at as u32 % 3) << 24 | at as u32));
        line.0[5] = 0xffff_ffff;
        for (mask, value) in
            [(0xff00_0000, 0x0100_0000), (0xff00_0000, 0xff00_0000), (!0, 0), (!0, 15), (0, 0), (!0, 99)]
        {
            let naive = (0..16).filter(|&at| line.0[at] & mask == value).fold(0, |found, at| found | 1 << at);
            assert_eq!(line.find(mask, value), naive, "{mask:x} {value:x}");
        }
    }

    #[test]
    fn what_nobody_touched_takes_no_memory() {
        let before = resident();
        let lines = Lines::<Words>::zeroed((1 << 30) / 64).expect("room");
        // Other tests run beside this one.
        let after = resident();
        assert!(after < before + (256 << 20), "{before} then {after} bytes");
        assert_eq!(lines.len(), 1 << 24);
    }
}
