//! Making a packet socket ready.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::{Fanout, FanoutMode, PacketOptions, filter};
use crate::port::option::{get, last_error, set};

/// tpacket_versions::TPACKET_V2.
const TPACKET_V2: i32 = 1;

/// What the kernel may hold for the socket in either direction, in bytes: 64 large frames with their book-keeping.
const SOCKET_BUFFER: i32 = 8 << 20;

/// Sets all options that have to be there before the ring.
pub(super) fn configure(fd: BorrowedFd<'_>, options: &PacketOptions) -> Result<(), Errno> {
    set(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
    set(fd, libc::SOL_PACKET, libc::PACKET_VERSION, &TPACKET_V2)?;
    set(fd, libc::SOL_PACKET, libc::PACKET_COPY_THRESH, &1)?;
    set(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
    set(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &i32::from(options.bypass_qdisc))?;
    for (force, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        // Without CAP_NET_ADMIN as much as net.core.rmem_max and wmem_max allow.
        set(fd, libc::SOL_SOCKET, force, &SOCKET_BUFFER)
            .or_else(|_| set(fd, libc::SOL_SOCKET, plain, &SOCKET_BUFFER))?;
    }
    if let Some(port) = options.udp_port {
        filter::attach(fd, &filter::udp_port(port))
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
    }
    Ok(())
}

/// Joins the interface and the group, unless the socket is there from an earlier owner.
pub(super) fn bind(fd: BorrowedFd<'_>, index: i32, fanout: Option<Fanout>) -> Result<(), (&'static str, Errno)> {
    let mode = |mode| match mode {
        FanoutMode::Hash => libc::PACKET_FANOUT_HASH,
        FanoutMode::RoundRobin => libc::PACKET_FANOUT_LB,
        FanoutMode::Cpu => libc::PACKET_FANOUT_CPU,
        FanoutMode::Queue => libc::PACKET_FANOUT_QM,
    };
    let group = get::<i32>(fd, libc::SOL_PACKET, libc::PACKET_FANOUT).map_err(|errno| ("reading its group", errno))?;
    if group != 0 {
        return Ok(());
    }
    // SAFETY: sockaddr_ll is plain data for which zeroes are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index;
    // SAFETY: a sockaddr_ll of that length, borrowed for the call and only read.
    let answer = unsafe {
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len)
    };
    if answer < 0 {
        return Err(("binding a packet socket", last_error()));
    }
    if let Some(fanout) = fanout {
        let value = u32::from(fanout.group) | mode(fanout.mode) << 16;
        set(fd, libc::SOL_PACKET, libc::PACKET_FANOUT, &value).map_err(|errno| ("joining its fanout group", errno))?;
    }
    Ok(())
}
