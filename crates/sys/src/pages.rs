//! The host's memory. Large pages for large tables: a look-up at random in tens of MiB of small pages waits for page
//! tables, too.

use std::mem;

/// Of the memory that `room` has reserved, asks the kernel to use large pages for what is not in use yet
/// (`MADV_HUGEPAGE`; they must be allowed: `/sys/kernel/mm/transparent_hugepage/enabled`). A hint: where it can't be
/// followed, nothing changes.
pub fn prefer_large<T>(room: &mut Vec<T>) {
    /// Of a large page where it is smallest.
    const LARGE: usize = 2 << 20;
    let start = room.as_mut_ptr() as usize;
    let end = start + room.capacity() * mem::size_of::<T>();
    let (start, end) = (start.next_multiple_of(LARGE), end / LARGE * LARGE);
    if start < end {
        // SAFETY: the range is inside one allocation that is ours, and the advice changes nothing that memory says.
        let _ = unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

/// Bytes of memory that the host has.
pub fn of_host() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(info.mem_unit.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_what_the_kernel_says() {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        assert_eq!(of_host() >> 10, kib);
    }

    #[test]
    fn what_a_list_has_and_gets_is_what_it_would_be_without() {
        for count in [0usize, 1, 1 << 20] {
            let mut list: Vec<u64> = Vec::with_capacity(count);
            list.extend(0..count as u64 / 2);
            prefer_large(&mut list);
            list.extend(count as u64 / 2..count as u64);
            assert!(list.iter().copied().eq(0..count as u64));
        }
    }
}
