//! Asking the processor to fetch a cache line before it is needed.

/// Starts fetching the line at `address` for reading. A hint: any address is allowed, mapped or not.
#[inline(always)]
pub fn read<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Starts fetching the line at `address` for writing: the other core's copy goes while this one does something else. A
/// hint: any address is allowed, mapped or not.
///
/// By its instruction: built for any x86-64, the intrinsic is compiled to a fetch for reading, after which the first
/// write has to ask the other core once more. Processors that do not know the instruction pass over it.
#[inline(always)]
#[allow(
    clippy::pointers_in_nomem_asm_block,
    reason = "memory is neither read nor written: where it is, is all that is told"
)]
pub fn write<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults, whatever the address, and changes neither memory nor registers nor flags.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}
