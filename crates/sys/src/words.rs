//! Memory of words that outlives its process: a memory file that one process writes, and others read after it.
//!
//! The writer's mapping is the only one that can ever be written, and the file keeps its length: seals see to both
//! (Linux 5.1, F_SEAL_FUTURE_WRITE). So a reader gets no bus error, and the writer reads what it wrote.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

const WORD: usize = size_of::<AtomicU64>();

#[derive(Debug)]
struct Mapping {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping is this value's until it is dropped, and is accessed by atomic operations alone.
unsafe impl Send for Mapping {}
// SAFETY: likewise.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, words: usize, protection: ProtFlags) -> io::Result<Mapping> {
        let len = words.checked_mul(WORD).filter(|len| *len > 0).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at a place that the kernel chooses touches no other memory.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
        let mapping = Mapping { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::Other)?, words };
        // SAFETY: the range is this mapping. What the advice fails for is in a core dump.
        let _ = unsafe { madvise(base, len, Advice::LinuxDontDump) };
        Ok(mapping)
    }

    /// The word at `at`, if there is one.
    #[inline]
    fn load(&self, at: usize) -> Option<u64> {
        // SAFETY: the place is in the mapping, which is readable, aligned as pages are, and stays as long as its
        // file does, which is sealed.
        (at < self.words).then(|| unsafe { self.base.add(at).as_ref() }.load(Ordering::Acquire))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length; no reference into it is left, as they borrow from this value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.words * WORD) };
    }
}

/// Words that this process writes, zero at first.
#[derive(Debug)]
pub struct OwnWords(Mapping);

impl OwnWords {
    /// Makes a memory file of so many words, and maps it. Memory is taken as words are written. The file is for those
    /// that read it.
    ///
    /// # Errors
    /// Those of the system.
    pub fn create(name: &str, words: usize) -> io::Result<(OwnedFd, OwnWords)> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, (words * WORD) as u64)?;
        let mapping = Mapping::new(file.as_fd(), words, ProtFlags::READ | ProtFlags::WRITE)?;
        fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((file, OwnWords(mapping)))
    }

    /// The word at `at`; 0 behind the last.
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        self.0.load(at).unwrap_or(0)
    }

    /// Writes the word at `at`, if there is one, after all that was written before.
    #[inline]
    pub fn store(&self, at: usize, word: u64) {
        if at < self.0.words {
            // SAFETY: the place is in the mapping, which is writable and aligned as pages are.
            unsafe { self.0.base.add(at).as_ref() }.store(word, Ordering::Release);
        }
    }
}

/// Words that another process wrote, and may be writing. None of them is to be relied upon.
#[derive(Debug)]
pub struct OthersWords(Mapping);

impl OthersWords {
    /// Maps a file of [`OwnWords`], of at most so many words.
    ///
    /// # Errors
    /// It is no such file, or longer. Those of the system.
    pub fn open(file: BorrowedFd<'_>, most: usize) -> io::Result<OthersWords> {
        // What is not sealed may shrink, and a reader would get a bus error.
        if !fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory file can be shortened"));
        }
        let bytes = fstat(file)?.st_size;
        match usize::try_from(bytes).map(|bytes| bytes / WORD) {
            Ok(words) if words <= most => Ok(OthersWords(Mapping::new(file, words, ProtFlags::READ)?)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the memory file is longer than it may be")),
        }
    }

    /// The word at `at`; 0 behind the last.
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        self.0.load(at).unwrap_or(0)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.words
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::pwrite;

    use super::*;

    #[test]
    fn what_one_writes_others_read_and_cannot_change() {
        let (file, own) = OwnWords::create("words", 600).unwrap();
        own.store(0, 7);
        own.store(599, 8);
        own.store(600, 9);
        let others = OthersWords::open(file.as_fd(), 600).unwrap();
        assert_eq!([0, 1, 599, 600].map(|at| others.load(at)), [7, 0, 8, 0]);
        own.store(1, 10);
        assert_eq!((others.load(1), own.load(1), own.load(600), others.count()), (10, 10, 0, 600));
        assert!(pwrite(&file, &[1], 0).is_err() && ftruncate(&file, 8).is_err() && ftruncate(&file, 8192).is_err());
        assert!(Mapping::new(file.as_fd(), 600, ProtFlags::READ | ProtFlags::WRITE).is_err());
        assert!(OthersWords::open(file.as_fd(), 599).is_err(), "longer than it may be");
    }

    #[test]
    fn a_file_that_could_be_shortened_is_refused() {
        let file = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4096).unwrap();
        assert!(OthersWords::open(file.as_fd(), 4096).is_err());
        assert!(OthersWords::open(tempfile::tempfile().unwrap().as_fd(), 4096).is_err(), "no memory file");
    }
}
