//! Memory for keys: not in core dumps, not swapped out where the kernel allows, overwritten before it is given back.

use std::alloc::Layout;
use std::ops::Deref;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use zeroize::Zeroize;

/// A value in pages of its own that no core dump has (MADV_DONTDUMP) and that are overwritten when it is dropped.
///
/// They are locked into memory (mlock) where the process may lock that much; where it may not, a host with swap space
/// may write them there.
pub struct Secret<T> {
    at: NonNull<T>,
    /// Bytes mapped.
    len: usize,
}

// SAFETY: it owns its value as a Box does.
unsafe impl<T: Send> Send for Secret<T> {}
// SAFETY: as above; only shared references are given out.
unsafe impl<T: Sync> Sync for Secret<T> {}

impl<T> Secret<T> {
    const LAYOUT: Layout = Layout::new::<T>();

    /// Moves a value there.
    ///
    /// # Errors
    /// When the kernel has no memory, or does not keep it out of core dumps.
    pub fn new(value: T) -> std::io::Result<Self> {
        const { assert!(Self::LAYOUT.align() <= 4096, "a mapping is aligned to a page") };
        let len = Self::LAYOUT.size().max(1);
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new anonymous mapping, wherever the kernel likes; nothing that exists is replaced.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        let Some(at) = NonNull::new(base.cast::<T>()) else { return Err(std::io::ErrorKind::OutOfMemory.into()) };
        // SAFETY: the mapping is ours, as large as a T, aligned to a page and so for a T; nothing else points to it.
        unsafe { at.as_ptr().write(value) };
        // From here on it is cleaned up.
        let secret = Secret { at, len };
        // SAFETY: our mapping; the advice changes what core dumps and children have, not its content here.
        unsafe { madvise(base, len, Advice::LinuxDontDump)? };
        // SAFETY: our mapping; locking changes no content. A limit on locked memory is no reason to do without the key.
        let _ = unsafe { mlock(base, len) };
        Ok(secret)
    }
}

impl<T> Deref for Secret<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: written in `new`, dropped in `drop` alone.
        unsafe { self.at.as_ref() }
    }
}

impl<T> Secret<T> {
    /// Drops the value and overwrites its bytes.
    ///
    /// # Safety
    /// It is the last use of the value.
    unsafe fn wipe(&mut self) {
        // SAFETY: the value was written in `new` and is dropped once, here, as the caller promises. Its bytes are then
        // ours alone, as the mapping is; they are written before they are bytes, as a value may have some that never
        // were.
        unsafe {
            self.at.drop_in_place();
            let base = self.at.as_ptr().cast::<u8>();
            std::ptr::write_bytes(base, 0, self.len);
            std::slice::from_raw_parts_mut(base, self.len).zeroize();
        }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        // SAFETY: it is not used after this; the mapping is ours and ends once.
        unsafe {
            self.wipe();
            let _ = munmap(self.at.as_ptr().cast(), self.len);
        }
    }
}

impl<T> std::fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of the mapping that has this address (proc_pid_smaps(5), VmFlags), and `None` where there is no such
    /// mapping.
    fn flags(address: usize) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            if let Some((range, _)) = line.split_once(' ')
                && let Some((start, end)) = range.split_once('-')
                && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
            {
                inside = (start..end).contains(&address);
            }
            if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return Some(flags.to_owned());
            }
        }
        None
    }

    #[test]
    fn a_secret_is_what_it_was_is_in_no_core_dump_and_is_not_shown() {
        let secret = Secret::new([7u8; 100]).unwrap();
        assert_eq!(*secret, [7; 100]);
        let flags = flags(secret.as_ptr() as usize).expect("it is mapped");
        assert!(flags.split_whitespace().any(|flag| flag == "dd"), "it would be dumped: {flags}");
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn a_secret_is_overwritten_before_its_memory_is_given_back() {
        let mut secret = std::mem::ManuallyDrop::new(Secret::new([7u8; 100]).unwrap());
        let (at, len) = (secret.at.as_ptr().cast::<u8>(), secret.len);
        // SAFETY: the value is not used again, nor dropped.
        unsafe { secret.wipe() };
        // SAFETY: wiping leaves the mapping, which is `len` bytes that were written.
        let left = unsafe { std::slice::from_raw_parts(at, len) };
        assert!(left.iter().all(|byte| *byte == 0), "{left:?}");
        // SAFETY: ours, and not looked at again.
        unsafe { munmap(at.cast(), len).unwrap() };
    }

    #[test]
    fn what_a_secret_owns_is_dropped_with_it() {
        let one = std::sync::Arc::new(());
        let secret = Secret::new(std::sync::Arc::clone(&one)).unwrap();
        assert_eq!(std::sync::Arc::strong_count(&secret), 2);
        drop(secret);
        assert_eq!(std::sync::Arc::strong_count(&one), 1);
    }
}
