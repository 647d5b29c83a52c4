//! UDP sockets that know how many routers a datagram has passed: the TTL of IPv4, the hop limit of IPv6.
//!
//! BFD over one hop takes datagrams with 255 alone, which only a host on the link can send (RFC 5881 §5, RFC 5082).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::sockopt;

/// Bytes of datagrams, with what the kernel keeps beside each, that wait to be received.
const RECEIVE_BUFFER: usize = 4 << 20;

/// A non-blocking UDP socket that sends with a hop limit of its own and tells the one of what it receives.
#[derive(Debug)]
pub struct HopSocket {
    socket: UdpSocket,
}

/// What was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Bytes of it; those that the buffer had no room for are lost.
    pub len: usize,
    /// The sender.
    pub from: SocketAddr,
    /// TTL or hop limit with which it came; 0 where the kernel did not tell.
    pub hop_limit: u8,
}

/// Ancillary data of one datagram: a header and an int, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Ancillary([u8; 64]);

impl HopSocket {
    /// Binds to an address of this host.
    ///
    /// # Errors
    /// What bind(2) and setsockopt(2) say: the port is in use, the address is not this host's.
    pub fn bind(address: SocketAddr, hop_limit: u8) -> io::Result<HopSocket> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        // Many neighbours send to one socket, and a flood of others is to push out none of theirs. Beyond the machine's
        // limit it takes CAP_NET_ADMIN.
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
        }
        let (level, option) = match address {
            SocketAddr::V4(_) => {
                sockopt::set_ip_ttl(&socket, hop_limit.into())?;
                (libc::IPPROTO_IP, libc::IP_RECVTTL)
            }
            SocketAddr::V6(_) => {
                sockopt::set_ipv6_unicast_hops(&socket, Some(hop_limit))?;
                (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)
            }
        };
        crate::port::option::set(socket.as_fd(), level, option, &1i32)?;
        Ok(HopSocket { socket })
    }

    /// The address it is bound to.
    ///
    /// # Errors
    /// What getsockname(2) says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// What sendto(2) says, such as that there is no route.
    pub fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        self.socket.send_to(bytes, to).map(|_| ())
    }

    /// Receives a datagram.
    ///
    /// # Errors
    /// `WouldBlock` where none is there; what else recvmsg(2) says.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut ancillary = Ancillary([0; 64]);
        // SAFETY: plain data for which zeroes are valid.
        let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        // SAFETY: msghdr is plain data for which zeroes mean "none".
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        header.msg_control = ancillary.0.as_mut_ptr().cast();
        header.msg_controllen = ancillary.0.len() as _;
        // SAFETY: the header points to `buffer`, `name` and `ancillary`, which live and are not used otherwise during
        // the call, each with its length.
        let received = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
        let len = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        let from = sender(&name).ok_or_else(|| io::Error::other("a sender of an unknown address family"))?;
        Ok(Datagram { len, from, hop_limit: hop_limit(&header) })
    }
}

impl AsFd for HopSocket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The address that the kernel wrote.
fn sender(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: of this family the storage holds a sockaddr_in, which is smaller and no more strictly aligned.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let address = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some(SocketAddr::new(address.into(), u16::from_be(name.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: of this family the storage holds a sockaddr_in6, which is smaller and no more strictly aligned.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in6>() };
            let address = Ipv6Addr::from(name.sin6_addr.s6_addr);
            Some(SocketAddr::new(address.into(), u16::from_be(name.sin6_port)))
        }
        _ => None,
    }
}

/// The TTL or hop limit among the ancillary data of a message that recvmsg has filled in; 0 where there is none.
fn hop_limit(header: &libc::msghdr) -> u8 {
    // SAFETY: recvmsg has set msg_control and msg_controllen to ancillary data that it wrote.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !part.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give whole headers within msg_controllen, or null.
        let (level, kind) = unsafe { ((*part).cmsg_level, (*part).cmsg_type) };
        if matches!((level, kind), (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)) {
            // SAFETY: both kinds carry an int, at any alignment (ip(7), ipv6(7)).
            let value = unsafe { libc::CMSG_DATA(part).cast::<libc::c_int>().read_unaligned() };
            return u8::try_from(value).unwrap_or(0);
        }
        // SAFETY: as for the first.
        part = unsafe { libc::CMSG_NXTHDR(header, part) };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(socket: &HopSocket, buffer: &mut [u8]) -> Datagram {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        loop {
            match socket.receive(buffer) {
                Ok(datagram) => return datagram,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    assert!(std::time::Instant::now() < deadline, "no datagram came within five seconds");
                    std::thread::yield_now();
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn a_datagram_comes_with_its_sender_and_the_hop_limit_it_was_sent_with() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let address: SocketAddr = address.parse().unwrap();
            let receiver = HopSocket::bind(address, 64).unwrap();
            let mut buffer = [0; 16];
            assert_eq!(receiver.receive(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            for hop_limit in [255, 254, 1] {
                let sender = HopSocket::bind(address, hop_limit).unwrap();
                sender.send_to(b"bfd", receiver.local_addr().unwrap()).unwrap();
                let datagram = receive(&receiver, &mut buffer);
                assert_eq!(datagram, Datagram { len: 3, from: sender.local_addr().unwrap(), hop_limit });
                assert_eq!(&buffer[..3], b"bfd");
            }
        }
    }

    #[test]
    fn more_than_the_buffer_holds_is_cut_off() {
        let receiver = HopSocket::bind("127.0.0.1:0".parse().unwrap(), 255).unwrap();
        let sender = HopSocket::bind("127.0.0.1:0".parse().unwrap(), 255).unwrap();
        sender.send_to(&[7; 100], receiver.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 24];
        assert_eq!(receive(&receiver, &mut buffer).len, 24);
    }
}
