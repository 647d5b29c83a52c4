//! Surviving a front end that shrinks the file behind its memory.
//!
//! Touching a page beyond the end of a mapped file raises SIGBUS. The handler looks the address up in a fixed table (no
//! lock, no allocation: it runs in signal context), maps zeroes over the whole mapping, marks it faulted and returns;
//! the access that failed then succeeds. The engine looks at the mark once per round and breaks the devices concerned.
//! A SIGBUS anywhere else takes its default course.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Once};

/// Mappings that can be watched at once; no more are made. Half of what the kernel lets a process map
/// (vm.max_map_count), and 32 for each of 1,024 tenants.
pub(crate) const SLOTS: usize = 32768;

struct Entry {
    /// 0: free. Written last when a slot is taken, first when it is given back.
    base: AtomicUsize,
    len: AtomicUsize,
    faulted: AtomicPtr<AtomicBool>,
    taken: AtomicBool,
}

static TABLE: [Entry; SLOTS] = [const {
    Entry {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        faulted: AtomicPtr::new(std::ptr::null_mut()),
        taken: AtomicBool::new(false),
    }
}; SLOTS];

/// A place in the table, given back on drop.
pub(crate) struct Slot {
    index: usize,
    // Keeps the flag alive for as long as the handler may write it.
    _faulted: Arc<AtomicBool>,
}

pub(crate) fn register(base: usize, len: usize, faulted: Arc<AtomicBool>) -> Option<Slot> {
    let index = TABLE
        .iter()
        .position(|e| e.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok())?;
    let entry = &TABLE[index];
    entry.len.store(len, Ordering::Relaxed);
    entry.faulted.store(Arc::as_ptr(&faulted).cast_mut(), Ordering::Relaxed);
    entry.base.store(base, Ordering::Release);
    Some(Slot { index, _faulted: faulted })
}

impl Drop for Slot {
    fn drop(&mut self) {
        let entry = &TABLE[self.index];
        entry.base.store(0, Ordering::Release);
        entry.faulted.store(std::ptr::null_mut(), Ordering::Relaxed);
        entry.taken.store(false, Ordering::Release);
    }
}

/// Installs the SIGBUS handler. Call once at the start of a process that maps memory of others; later calls do nothing.
pub fn catch_bus_errors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler uses only async-signal-safe operations (atomics and raw system calls), and the action
        // structure is fully initialised.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
    });
}

extern "C" fn handler(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let address = unsafe { (*info).si_addr() } as usize;
    for entry in &TABLE {
        let base = entry.base.load(Ordering::Acquire);
        let len = entry.len.load(Ordering::Relaxed);
        if base == 0 || address < base || address - base >= len {
            continue;
        }
        // SAFETY: the range is a live mapping of ours: a thread is touching it right now and holds a pin. Replacing it
        // whole keeps huge page alignment. The flag outlives the entry (Slot holds an Arc of it).
        unsafe {
            if !map_zeroes(base, len) {
                break;
            }
            let faulted = entry.faulted.load(Ordering::Relaxed);
            if !faulted.is_null() {
                (*faulted).store(true, Ordering::Relaxed);
            }
        }
        return;
    }
    // Not ours: the default action, on return to the instruction that faulted.
    // SAFETY: restoring the default disposition is async-signal-safe.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
    }
}

/// Replaces a mapping by zeroes that no core dump has. In signal context.
///
/// # Safety
/// The range is a mapping. Its users only copy, and bear that its bytes change.
unsafe fn map_zeroes(base: usize, len: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: as the caller promises.
    unsafe {
        let mapped = libc::mmap(base as *mut libc::c_void, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        let is_mapped = mapped != libc::MAP_FAILED || map_sparse_file(base, len);
        libc::madvise(base as *mut libc::c_void, len, libc::MADV_DONTDUMP);
        is_mapped
    }
}

/// The same from a file without blocks: under strict overcommit (vm.overcommit_memory = 2) private memory counts in
/// full, a shared file by the pages that are touched.
///
/// # Safety
/// As for [`map_zeroes`].
unsafe fn map_sparse_file(base: usize, len: usize) -> bool {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: as the caller promises; system calls alone, with a name that lives for ever.
    unsafe {
        let file = libc::memfd_create(c"zeroes".as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 {
            return false;
        }
        let is_mapped = libc::ftruncate(file, len as libc::off_t) == 0
            && libc::mmap(base as *mut libc::c_void, len, libc::PROT_READ | libc::PROT_WRITE, flags, file, 0)
                != libc::MAP_FAILED;
        libc::close(file);
        is_mapped
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::Arc;

    use crate::{GuestAddress, Mapping, Region, UserAddress, View};

    /// The flags of the mapping that has this address (proc_pid_smaps(5), VmFlags).
    fn vm_flags(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let bound = |text| usize::from_str_radix(text, 16).ok();
            !range.is_some_and(|(from, to)| {
                bound(from).zip(bound(to)).is_some_and(|(from, to)| (from..to).contains(&address))
            })
        });
        lines.find_map(|line| line.strip_prefix("VmFlags:")).expect("it is mapped").to_owned()
    }

    /// 16 KiB of a file that the test can cut short, mapped, at guest address 0.
    fn shared_file() -> (OwnedFd, Arc<Mapping>, Arc<View>) {
        let file = rustix::fs::memfd_create("shrink", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 0x4000).unwrap();
        let mapping = Mapping::file(file.as_fd(), 0, 0x4000).unwrap();
        let region = Region::new(GuestAddress(0), UserAddress(0), 0x4000, mapping.clone(), 0);
        (file, mapping, View::new(vec![region]).unwrap())
    }

    #[test]
    fn memory_of_others_is_in_no_core_dump_before_and_after_its_file_is_cut_short() {
        super::catch_bus_errors();
        let (file, mapping, view) = shared_file();
        let is_dumped = || !vm_flags(mapping.base() as usize).split_whitespace().any(|flag| flag == "dd");
        assert!(!is_dumped());
        rustix::fs::ftruncate(&file, 0).unwrap();
        view.buffer(GuestAddress(0), 8).unwrap().write_at(0, &[7; 8]).unwrap();
        assert!(mapping.is_faulted());
        assert!(!is_dumped());
    }

    /// Strict overcommit itself is a setting of the whole machine.
    #[test]
    fn zeroes_come_from_a_sparse_file_where_private_memory_is_refused() {
        let (file, mapping, view) = shared_file();
        let buffer = view.buffer(GuestAddress(0x3000), 8).unwrap();
        buffer.write_at(0, &[7; 8]).unwrap();
        // SAFETY: memory that is reached by copies.
        assert!(unsafe { super::map_sparse_file(mapping.base() as usize, 0x4000) });
        rustix::fs::ftruncate(&file, 0).unwrap();
        for byte in [0, 9] {
            let mut bytes = [1; 8];
            buffer.read_at(0, &mut bytes).unwrap();
            assert_eq!(bytes, [byte; 8]);
            buffer.write_at(0, &[9; 8]).unwrap();
        }
    }

    #[test]
    fn a_shrunk_file_reads_as_zeroes_and_marks_its_mapping() {
        super::catch_bus_errors();
        let (file, mapping, view) = shared_file();
        let buffer = view.buffer(GuestAddress(0x3000), 8).unwrap();
        buffer.write_at(0, &[7; 8]).unwrap();
        assert!(!mapping.is_faulted());

        rustix::fs::ftruncate(&file, 0x1000).unwrap();
        let mut bytes = [1; 8];
        buffer.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
        assert!(mapping.is_faulted());
        assert!(view.is_faulted());
    }
}
