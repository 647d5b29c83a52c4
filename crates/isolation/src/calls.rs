//! The system calls that the data plane may make once its cores are made.
//!
//! What is not listed is refused. Calls that a core makes per batch (io_uring_enter, io_submit, epoll_wait, read,
//! write, send…) are allowed whatever their arguments: the kernel then decides by a bitmap, and runs no filter
//! (Linux 5.11).

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter_all_threads,
};

use crate::Needs;

/// Allowed whatever the arguments. By what they are for.
const ALLOWED: &[c_long] = &[
    // Open files and sockets.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fadvise64,
    libc::SYS_pipe2,
    libc::SYS_memfd_create,
    // Paths: which of them is Landlock's to decide.
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    // Sockets there are.
    libc::SYS_bind,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    // Waiting and clocks.
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // Rings of the kernel. New ones are not made: see below.
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    libc::SYS_io_cancel,
    libc::SYS_io_destroy,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_msync,
    libc::SYS_mincore,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // Threads and signals of its own.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_getcpu,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // What it is and runs on.
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpgid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_capget,
    libc::SYS_getrlimit,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getrandom,
    // seccomp(2) can only narrow.
    libc::SYS_seccomp,
];

/// Those of older kinds that x86-64 alone has.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = &[
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_open,
    libc::SYS_dup2,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[c_long] = &[];

/// linux/prctl.h; the C library's headers for Rust have it for some targets only.
const PR_GET_AUXV: libc::c_int = 0x4155_5856;

/// prctl(2): names of threads and of memory, how precise timers are, what the kernel told at the start (where the vDSO
/// is), and no-new-privileges, which only narrows.
const PRCTLS: [libc::c_int; 7] = [
    PR_GET_AUXV,
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_SET_VMA,
    libc::PR_GET_DUMPABLE,
    libc::PR_SET_TIMERSLACK,
    libc::PR_SET_NO_NEW_PRIVS,
];

/// ioctl(2) that put characters into a terminal as if they were typed (TIOCSTI, TIOCLINUX).
const TERMINAL_IOCTLS: [u64; 2] = [0x5412, 0x541c];

/// The type of a socket without its flags (SOCK_TYPE_MASK of the kernel).
const SOCKET_TYPE: u64 = 0xf;

/// AF_XDP, which the C library's headers for Rust have for some targets only.
const AF_XDP: u64 = 44;

/// An argument and what it has to be.
struct Argument(u8, SeccompCmpOp, u64);

/// One way in which a call is allowed: all of these hold. Arguments of 4 bytes, as those that are looked at here are.
fn when(arguments: &[Argument]) -> Result<SeccompRule, seccompiler::BackendError> {
    let condition = |Argument(number, op, value): &Argument| {
        SeccompCondition::new(*number, SeccompCmpArgLen::Dword, op.clone(), *value)
    };
    SeccompRule::new(arguments.iter().map(condition).collect::<Result<_, _>>()?)
}

/// A way for each of the values of an argument.
fn any_of(number: u8, values: impl IntoIterator<Item = u64>) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    values.into_iter().map(|value| when(&[Argument(number, SeccompCmpOp::Eq, value)])).collect()
}

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// The calls that are allowed with some arguments only.
fn conditional(needs: &Needs) -> Result<Rules, seccompiler::BackendError> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    // Datagrams: what monitors export, BFD. Connections are the supervisor's to make.
    let datagrams = |family: libc::c_int| {
        when(&[Argument(0, Eq, family as u64), Argument(1, MaskedEq(SOCKET_TYPE), libc::SOCK_DGRAM as u64)])
    };
    let mut sockets = vec![datagrams(libc::AF_INET)?, datagrams(libc::AF_INET6)?];
    if needs.underlay {
        sockets.extend(any_of(0, [libc::AF_NETLINK as u64, libc::AF_PACKET as u64, AF_XDP])?);
    }
    let own = u64::from(std::process::id());
    let code = libc::PROT_EXEC as u64;
    let mut rules = Rules::from([
        // Signals to its own threads: abort(3).
        (libc::SYS_tgkill, vec![when(&[Argument(0, Eq, own)])?]),
        // Memory, but no code beyond what is mapped by now.
        (libc::SYS_mmap, vec![when(&[Argument(2, MaskedEq(code), 0)])?]),
        (libc::SYS_mprotect, vec![when(&[Argument(2, MaskedEq(code), 0)])?]),
        // Limits of its own.
        (libc::SYS_prlimit64, any_of(0, [0, own])?),
        (libc::SYS_prctl, any_of(0, PRCTLS.map(|option| option as u64))?),
        (libc::SYS_ioctl, vec![when(&TERMINAL_IOCTLS.map(|ioctl| Argument(1, Ne, ioctl)))?]),
        (libc::SYS_socket, sockets),
    ]);
    if needs.underlay {
        rules.insert(libc::SYS_bpf, Vec::new());
    }
    Ok(rules)
}

fn rules(needs: &Needs) -> Result<Rules, seccompiler::BackendError> {
    let mut rules = conditional(needs)?;
    rules.extend(ALLOWED.iter().chain(ALLOWED_HERE).map(|number| (*number, Vec::new())));
    // Other filters answer these.
    rules.extend([libc::SYS_clone, libc::SYS_clone3].map(|number| (number, Vec::new())));
    Ok(rules)
}

fn compile(rules: Rules, others: SeccompAction, these: SeccompAction) -> Result<BpfProgram, seccompiler::BackendError> {
    SeccompFilter::new(rules, others, these, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// Puts the filters in force for all threads.
pub(crate) fn filter(needs: &Needs) -> Result<(), seccompiler::Error> {
    // clone3(2) has its flags behind a pointer, which no filter can follow. "Not there" has the C library use clone(2).
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    let clone3 = compile(Rules::from([(libc::SYS_clone3, Vec::new())]), SeccompAction::Allow, unknown)?;
    // Threads, and no processes. An error, and no trap: the C library blocks all signals when it starts a process,
    // and a trap that is blocked ends the process.
    let process = when(&[Argument(0, SeccompCmpOp::MaskedEq(libc::CLONE_THREAD as u64), 0)])?;
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let clone = compile(Rules::from([(libc::SYS_clone, vec![process])]), SeccompAction::Allow, denied)?;
    let calls = compile(rules(needs)?, SeccompAction::Trap, SeccompAction::Allow)?;
    [clone3, clone, calls].iter().try_for_each(|program| apply_filter_all_threads(program))
}

/// A call's name, or its number where it has none.
pub(crate) fn name(number: usize) -> String {
    syscalls::Sysno::new(number).map_or_else(|| number.to_string(), |call| call.name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_and_each_call_is_listed_once() {
        let mut listed: Vec<c_long> = ALLOWED.iter().chain(ALLOWED_HERE).copied().collect();
        listed.extend(conditional(&Needs { underlay: true, ..Needs::default() }).unwrap().keys());
        let count = listed.len();
        listed.sort_unstable();
        listed.dedup();
        assert_eq!(listed.len(), count, "a call that is listed twice is allowed whatever its arguments");
        for underlay in [false, true] {
            let rules = rules(&Needs { underlay, ..Needs::default() }).unwrap();
            compile(rules, SeccompAction::Trap, SeccompAction::Allow).unwrap();
        }
    }

    #[test]
    fn a_call_has_its_name() {
        assert_eq!(name(libc::SYS_execve as usize), "execve");
        assert_eq!(name(511), "511");
    }
}
