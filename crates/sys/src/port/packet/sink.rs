//! A UDP port that swallows everything.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use super::filter;

/// Keeps the host quiet about datagrams that an AF_PACKET socket takes a copy of.
///
/// The kernel goes on with the original, and where no socket listens at that UDP port it answers each one with ICMP
/// port unreachable. This socket listens, on all addresses of both IP versions, and drops everything before it is
/// queued.
#[derive(Debug)]
pub struct PortSink {
    socket: UdpSocket,
}

impl PortSink {
    /// Swallows UDP to `port` in the calling thread's network namespace.
    ///
    /// # Errors
    /// `AddrInUse` where a socket listens already (a kernel VXLAN interface, say), and nothing needs to be swallowed.
    pub fn new(port: u16) -> io::Result<Self> {
        let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, port).into();
        // A host without IPv6 has no IPv6 sockets either.
        let socket = match UdpSocket::bind(any) {
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => UdpSocket::bind(("0.0.0.0", port))?,
            other => other?,
        };
        filter::attach(socket.as_fd(), &filter::NOTHING)?;
        Ok(PortSink { socket })
    }

    /// The socket, to be kept open by others.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
