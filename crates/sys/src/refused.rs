//! System calls that this process's seccomp filter refuses.
//!
//! The filter traps them: the kernel sends SIGSYS to the thread in place of the call (seccomp(2),
//! `SECCOMP_RET_TRAP`). The handler counts the call by its number, says the first of each number on standard error, and
//! has the call return `EPERM`. So a refusal is an ordinary error to the code that called, and is never silent.

use std::io::Write;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers that have a count of their own; larger ones share the last.
const NUMBERS: usize = 512;

static REFUSED: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

/// `si_code` of a SIGSYS that a filter sent (sigaction(2)).
const SYS_SECCOMP: libc::c_int = 1;

/// Has system calls that a filter traps fail with `EPERM`, counted and said. Call it before the filter is in force;
/// later calls do nothing.
pub fn answer() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler uses only atomics, a buffer on its stack and write(2), which are async-signal-safe, and
        // the action structure is fully initialised.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            // NODEFER: were write(2) refused, that too would be answered, and not end the process.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut());
        }
    });
}

/// The numbers of the calls that were refused so far, ascending, with how often each was.
pub fn counts() -> Vec<(usize, u64)> {
    let counts = REFUSED.iter().map(|count| count.load(Ordering::Relaxed)).enumerate();
    counts.filter(|(_, count)| *count > 0).collect()
}

/// What the kernel tells of a refused call: `_sigsys` of siginfo_t (sigaction(2)).
#[repr(C)]
struct Refusal {
    _signal: libc::c_int,
    _errno: libc::c_int,
    code: libc::c_int,
    _pad: libc::c_int,
    _address: *mut libc::c_void,
    number: libc::c_int,
    _architecture: libc::c_uint,
}

extern "C" fn handler(_signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes an SA_SIGINFO handler a siginfo, which for SIGSYS has this shape.
    let refusal = unsafe { &*info.cast::<Refusal>() };
    if refusal.code != SYS_SECCOMP {
        // A process with the right to has sent it; by default it ends the process, and there is nothing to answer.
        return;
    }
    let number = usize::try_from(refusal.number).unwrap_or(NUMBERS);
    if REFUSED[number.min(NUMBERS - 1)].fetch_add(1, Ordering::Relaxed) == 0 {
        say(number);
    }
    // SAFETY: the kernel passes the thread's registers as a ucontext, and restores them from it on return.
    unsafe { set_result(&mut *context.cast::<libc::ucontext_t>(), -i64::from(libc::EPERM)) };
}

/// One line on standard error, without an allocation.
fn say(number: usize) {
    let mut line = [0u8; 160];
    let mut rest = &mut line[..];
    let _ = writeln!(
        rest,
        "softdpu: system call {number} was refused by the data plane's filter (`softdpu status` names and counts them)"
    );
    let left = rest.len();
    let len = line.len() - left;
    // SAFETY: the buffer is valid for that many bytes.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), len) };
}

#[cfg(target_arch = "x86_64")]
fn set_result(context: &mut libc::ucontext_t, value: i64) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = value;
}

#[cfg(target_arch = "aarch64")]
fn set_result(context: &mut libc::ucontext_t, value: i64) {
    context.uc_mcontext.regs[0] = value as u64;
}
