//! Settings of a network interface: up, MTU, MAC.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::PortError;

/// A name the kernel accepts for an interface.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InterfaceName {
    bytes: [u8; libc::IFNAMSIZ],
    len: u8,
}

impl InterfaceName {
    /// Checks `name`: 1 to 15 bytes without '/', ':' and white space, not `.` or `..`.
    ///
    /// # Errors
    /// [`PortError::BadName`].
    pub fn new(name: &str) -> Result<Self, PortError> {
        let allowed = |byte: u8| byte != b'/' && byte != b':' && byte != 0 && !byte.is_ascii_whitespace();
        let sensible = !name.is_empty() && name.len() < libc::IFNAMSIZ && name != "." && name != "..";
        if !sensible || !name.bytes().all(allowed) {
            return Err(PortError::BadName { name: name.to_owned() });
        }
        let mut bytes = [0; libc::IFNAMSIZ];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(InterfaceName { bytes, len: name.len() as u8 })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or("?")
    }

    /// A request about this interface, without parameter.
    pub(crate) fn request(&self) -> libc::ifreq {
        // SAFETY: ifreq is plain data for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.bytes) {
            *to = from as libc::c_char;
        }
        request
    }

    /// The name in a request the kernel has filled in; what is not UTF-8 is replaced.
    pub(crate) fn in_request(request: &libc::ifreq) -> String {
        let bytes: Vec<u8> = request.ifr_name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl std::fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

/// The interfaces of the network namespace of the thread that made it.
#[derive(Debug)]
pub struct Links {
    socket: OwnedFd,
}

impl Links {
    /// For the calling thread's network namespace.
    ///
    /// # Errors
    /// What the kernel says when no socket can be made.
    pub fn new() -> Result<Self, PortError> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|errno| PortError::at("network interfaces", "making a socket", "CAP_NET_ADMIN", errno))?;
        Ok(Links { socket })
    }

    /// The number of an interface, as netlink and sockets know it.
    ///
    /// # Errors
    /// [`PortError::NoInterface`], or what the kernel says.
    pub fn index(&self, name: &InterfaceName) -> Result<u32, PortError> {
        let mut request = name.request();
        ioctl(self.socket.as_fd(), libc::SIOCGIFINDEX, &mut request, name.as_str(), "looking up its index")?;
        // SAFETY: SIOCGIFINDEX filled in this member.
        Ok(unsafe { request.ifr_ifru.ifru_ifindex } as u32)
    }

    /// How many receive queues an interface has; 1 where the driver does not tell.
    ///
    /// # Errors
    /// [`PortError::NoInterface`].
    pub fn rx_queues(&self, name: &InterfaceName) -> Result<u32, PortError> {
        self.index(name)?;
        let mut channels = EthtoolChannels { command: ETHTOOL_GCHANNELS, ..EthtoolChannels::default() };
        let mut request = name.request();
        request.ifr_ifru.ifru_data = (&raw mut channels).cast();
        let known = ioctl(self.socket.as_fd(), SIOCETHTOOL, &mut request, name.as_str(), "counting its queues");
        Ok(if known.is_ok() { (channels.rx + channels.combined).max(1) } else { 1 })
    }

    /// Sets the largest IP packet, in bytes.
    ///
    /// # Errors
    /// [`PortError::Setting`] where the driver does not take it, and as for the others.
    pub fn set_mtu(&self, name: &InterfaceName, mtu: u32) -> Result<(), PortError> {
        let mut request = name.request();
        request.ifr_ifru.ifru_mtu = i32::try_from(mtu).unwrap_or(i32::MAX);
        match ioctl(self.socket.as_fd(), libc::SIOCSIFMTU, &mut request, name.as_str(), "setting its MTU") {
            Err(PortError::Kernel { name, source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
                let problem =
                    format!("the driver does not take an MTU of {mtu}; `ip -d link show {name}` has its limits");
                Err(PortError::Setting { name, problem })
            }
            other => other,
        }
    }

    /// Sets the MAC address.
    ///
    /// # Errors
    /// [`PortError::Setting`] for a group or zero address; what the kernel says.
    pub fn set_mac(&self, name: &InterfaceName, mac: [u8; 6]) -> Result<(), PortError> {
        if mac[0] & 1 != 0 || mac == [0; 6] {
            let problem = format!("{mac:02x?} is not the MAC address of one station: not zero, first byte even");
            return Err(PortError::Setting { name: name.as_str().to_owned(), problem });
        }
        let mut request = name.request();
        // SAFETY: sockaddr is plain data for which zeroes are valid.
        let mut address: libc::sockaddr = unsafe { std::mem::zeroed() };
        address.sa_family = libc::ARPHRD_ETHER;
        for (to, from) in address.sa_data.iter_mut().zip(mac) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_hwaddr = address;
        ioctl(self.socket.as_fd(), SIOCSIFHWADDR, &mut request, name.as_str(), "setting its MAC address")
    }

    /// Starts or stops an interface.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_up(&self, name: &InterfaceName, up: bool) -> Result<(), PortError> {
        let mut request = name.request();
        ioctl(self.socket.as_fd(), libc::SIOCGIFFLAGS, &mut request, name.as_str(), "reading its flags")?;
        // SAFETY: SIOCGIFFLAGS filled in this member.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        let bit = libc::IFF_UP as libc::c_short;
        request.ifr_ifru.ifru_flags = if up { flags | bit } else { flags & !bit };
        let doing = if up { "starting it" } else { "stopping it" };
        ioctl(self.socket.as_fd(), libc::SIOCSIFFLAGS, &mut request, name.as_str(), doing)
    }
}

/// linux/ethtool.h: struct ethtool_channels.
#[repr(C)]
#[derive(Default)]
struct EthtoolChannels {
    command: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// linux/ethtool.h.
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// linux/sockios.h.
const SIOCETHTOOL: libc::c_ulong = 0x8946;
/// linux/sockios.h; the C library's headers for Rust have it for some targets only.
const SIOCSIFHWADDR: libc::c_ulong = 0x8924;
/// An ioctl that takes an `ifreq` in both directions.
pub(crate) fn ioctl(
    fd: BorrowedFd<'_>,
    number: libc::c_ulong,
    request: &mut libc::ifreq,
    name: &str,
    doing: &'static str,
) -> Result<(), PortError> {
    // SAFETY: all callers' numbers take a pointer to an ifreq, which is borrowed exclusively for the call; where it
    // holds an address, it is of the caller's structure for that number.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), number as _, request as *mut libc::ifreq) };
    if answer < 0 {
        return Err(PortError::at(name, doing, "CAP_NET_ADMIN", std::io::Error::last_os_error()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_the_kernel_sees_them() {
        for bad in ["", "sixteen-letters-", "a b", "a/b", "a:1", ".", ".."] {
            assert!(matches!(InterfaceName::new(bad), Err(PortError::BadName { .. })), "{bad:?}");
        }
        assert_eq!(InterfaceName::new("fifteen-letters").unwrap().as_str(), "fifteen-letters");
    }

    #[test]
    fn the_index_of_an_interface_that_is_not_there_is_an_error_with_its_name() {
        let links = Links::new().unwrap();
        let error = links.index(&InterfaceName::new("eth-nowhere").unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "eth-nowhere: no such network interface; `ip link` lists them");
    }

    #[test]
    fn a_group_address_is_no_stations() {
        let error = Links::new().unwrap().set_mac(&InterfaceName::new("lo").unwrap(), [1, 0, 0, 0, 0, 1]).unwrap_err();
        assert!(matches!(error, PortError::Setting { .. }));
    }
}
