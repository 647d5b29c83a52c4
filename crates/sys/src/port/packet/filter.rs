//! Which frames an AF_PACKET socket takes: classic BPF, run by the kernel before it copies anything.

use std::os::fd::{AsRawFd, BorrowedFd};

const fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const LOAD_HALF_X: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
/// X = 4 × (byte & 15): an IPv4 header's length.
const LOAD_HEADER_LEN: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
/// As much of a frame as there is.
const WHOLE: u32 = u32::MAX;

const ETHERTYPE: u32 = 12;
const IP: u32 = 14;
const UDP: u32 = 17;

/// Unfragmented UDP to `port`, over IPv4 with or without options and over IPv6 without extension headers (RFC 7348 and
/// RFC 8926 ask for no fragments; no encapsulator sends extension headers).
pub(super) const fn udp_port(port: u16) -> [libc::sock_filter; 16] {
    let port = port as u32;
    [
        op(LOAD_HALF, 0, 0, ETHERTYPE),
        op(EQUAL, 0, 7, 0x0800),       // else to 9
        op(LOAD_BYTE, 0, 0, IP + 9),   // protocol
        op(EQUAL, 0, 11, UDP),         // else drop
        op(LOAD_HALF, 0, 0, IP + 6),   // MF and fragment offset
        op(ANY_BIT, 9, 0, 0x3fff),     // a fragment: drop
        op(LOAD_HEADER_LEN, 0, 0, IP), // to X
        op(LOAD_HALF_X, 0, 0, IP + 2), // destination port
        op(EQUAL, 5, 6, port),         // take or drop
        op(EQUAL, 0, 5, 0x86dd),       // 9: else drop
        op(LOAD_BYTE, 0, 0, IP + 6),   // next header
        op(EQUAL, 0, 3, UDP),          // else drop
        op(LOAD_HALF, 0, 0, IP + 42),  // destination port
        op(EQUAL, 0, 1, port),         // else drop
        op(RETURN, 0, 0, WHOLE),       // 14: take
        op(RETURN, 0, 0, 0),           // 15: drop
    ]
}

/// Takes nothing.
pub(super) const NOTHING: [libc::sock_filter; 1] = [op(RETURN, 0, 0, 0)];

/// Lets the socket have only what `program` returns more than zero for.
pub(super) fn attach(socket: BorrowedFd<'_>, program: &[libc::sock_filter]) -> std::io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the option takes a sock_fprog with instructions that are borrowed for the call; the kernel copies them.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if answer < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
