//! bpf(2): a map, a program, a link. What a loader library does beyond that (relocations, BTF, object files) is for
//! programs that a compiler made; the one here is a page of instructions.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::port::option::last_error;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
/// The attach type BPF_XDP.
const ATTACH_XDP: u32 = 37;

/// How an XDP program sits on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel has made a packet of the frame.
    Driver,
    /// In the kernel's receive path (generic, or SKB mode): any driver, slower.
    Generic,
}

/// One instruction (linux/bpf.h: struct bpf_insn).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub code: u8,
    /// Destination in the lower half, source in the upper.
    pub registers: u8,
    pub offset: i16,
    pub immediate: i32,
}

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The first fields; the kernel takes the rest as zeroes.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// `attributes` is laid out as the command wants it, and the addresses in it are valid for what the command does.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> Result<libc::c_long, Errno> {
    // SAFETY: the caller's promise.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    if answer < 0 { Err(last_error()) } else { Ok(answer) }
}

/// As [`bpf`], for commands that make a descriptor.
///
/// # Safety
/// As for [`bpf`].
unsafe fn bpf_fd<T>(command: libc::c_int, attributes: &T) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller's promise; the answer is a new descriptor.
    unsafe { bpf(command, attributes).map(|fd| OwnedFd::from_raw_fd(fd as i32)) }
}

/// A map from queue to AF_XDP socket.
pub(super) fn create_socket_map(queues: u32) -> Result<OwnedFd, Errno> {
    let attributes =
        MapCreate { map_type: MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, max_entries: queues, map_flags: 0 };
    // SAFETY: no addresses in it.
    unsafe { bpf_fd(MAP_CREATE, &attributes) }
}

/// Sets the socket of a queue. The kernel removes it when the socket is closed.
pub(super) fn set_socket(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let value = socket.as_raw_fd() as u32;
    let attributes = MapUpdate {
        map_fd: map.as_raw_fd() as u32,
        padding: 0,
        key: (&raw const queue).expose_provenance() as u64,
        value: (&raw const value).expose_provenance() as u64,
        flags: 0,
    };
    // SAFETY: `map` is a map of sockets (XdpProgram sees to that) with keys and values of four bytes; both live
    // through the call, which only reads them.
    unsafe { bpf(MAP_UPDATE_ELEM, &attributes) }.map(|_| ())
}

/// Loads an XDP program. It may be given frames in several buffers, of which it sees the first.
pub(super) fn load(program: &[Instruction]) -> Result<OwnedFd, Errno> {
    const HAS_FRAGMENTS: u32 = 1 << 5;
    let license = c"Dual MIT/GPL";
    let mut attributes = ProgLoad {
        prog_type: PROG_TYPE_XDP,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: HAS_FRAGMENTS,
        prog_name: *b"softdpu_xdp\0\0\0\0\0",
        prog_ifindex: 0,
        expected_attach_type: ATTACH_XDP,
    };
    // SAFETY: instructions and licence live through the call, which only reads them.
    match unsafe { bpf_fd(PROG_LOAD, &attributes) } {
        // Before Linux 5.18 there is no such flag.
        Err(Errno::INVAL) => {
            attributes.prog_flags = 0;
            // SAFETY: as above.
            unsafe { bpf_fd(PROG_LOAD, &attributes) }
        }
        other => other,
    }
}

/// Attaches an XDP program until the last descriptor of the link is closed.
pub(super) fn attach(program: BorrowedFd<'_>, interface: u32, mode: XdpMode) -> Result<OwnedFd, Errno> {
    let flags = match mode {
        XdpMode::Generic => 1 << 1,
        XdpMode::Driver => 1 << 2,
    };
    let attributes =
        LinkCreate { prog_fd: program.as_raw_fd() as u32, target_ifindex: interface, attach_type: ATTACH_XDP, flags };
    // SAFETY: no addresses in it.
    unsafe { bpf_fd(LINK_CREATE, &attributes) }
}
