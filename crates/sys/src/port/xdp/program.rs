//! The XDP program that gives an interface's frames to AF_XDP sockets, or leaves them to the kernel.
//!
//! ```text
//!  frame ─▶ UDP, unfragmented, to the port? ─ no ─▶ XDP_PASS: the kernel's stack, as without us
//!                  │ yes (or no filter)
//!                  ▼
//!           map[receive queue] ─ no socket ─▶ XDP_PASS
//!                  │
//!                  ▼
//!            the queue's socket
//! ```
//! The host keeps using its NIC: ARP, neighbour discovery, ssh pass. A queue without socket passes everything, so that
//! a crash of the data plane costs the tunnel and not the host.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::bpf::{self, XdpMode};
use super::instructions::instructions;
use crate::port::{InterfaceName, PortError, link::Links};

/// What of an interface's traffic goes to sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Every frame of a queue that has a socket.
    All,
    /// Unfragmented UDP to this port, over IPv4 and over IPv6 without extension headers.
    UdpPort(u16),
}

/// The program on an interface, and the map of its sockets. The interface is free of it when this is dropped, and all
/// duplicates of its descriptors are closed.
#[derive(Debug)]
pub struct XdpProgram {
    name: InterfaceName,
    map: OwnedFd,
    link: OwnedFd,
}

impl XdpProgram {
    /// Puts the program on an interface of the calling thread's network namespace; `queues` is the number of its
    /// receive queues ([`Links::rx_queues`]). In the driver if it can, else generic; only in `mode` if one is given.
    /// Some drivers restart their link when they change to XDP.
    ///
    /// # Errors
    /// [`PortError::NotPermitted`] without CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, [`PortError::Busy`] where there is
    /// an XDP program, [`PortError::Unsupported`] where the driver takes none with its current settings.
    pub fn attach(
        name: &str,
        queues: u32,
        selection: Selection,
        mode: Option<XdpMode>,
    ) -> Result<(Self, XdpMode), PortError> {
        let interface = InterfaceName::new(name)?;
        let index = Links::new()?.index(&interface)?;
        let at =
            |doing| move |errno: Errno| PortError::at(name, doing, "CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN", errno);
        let map = bpf::create_socket_map(queues.max(1)).map_err(at("making the map of AF_XDP sockets"))?;
        let program = bpf::load(&instructions(map.as_fd(), selection)).map_err(at("loading the XDP program"))?;
        let modes = match mode {
            None => &[XdpMode::Driver, XdpMode::Generic][..],
            Some(XdpMode::Driver) => &[XdpMode::Driver],
            Some(XdpMode::Generic) => &[XdpMode::Generic],
        };
        let mut last = Errno::OPNOTSUPP;
        for &mode in modes {
            match bpf::attach(program.as_fd(), index, mode) {
                Ok(link) => return Ok((XdpProgram { name: interface, map, link }, mode)),
                Err(errno) => last = errno,
            }
        }
        Err(match last {
            Errno::BUSY | Errno::EXIST => PortError::Busy {
                name: name.to_owned(),
                doing: "attaching the XDP program",
                remedy: "`ip link show` tells the program's id, `bpftool link` its owner",
            },
            Errno::OPNOTSUPP | Errno::INVAL | Errno::RANGE => PortError::Unsupported {
                name: name.to_owned(),
                what: "XDP (with the interface's MTU, queues and receive offloads as they are)",
                remedy: "use an AF_PACKET port, or `ethtool -K … lro off` and an MTU below 3,500",
            },
            errno => at("attaching the XDP program")(errno),
        })
    }

    /// Takes over a program that another process attached, of which it kept [`map`](Self::map) and [`link`](Self::link)
    /// and handed over.
    ///
    /// # Errors
    /// [`PortError::BadName`]; [`PortError::WrongDescriptor`] if `map` is no map of AF_XDP sockets.
    pub fn adopt(name: &str, map: OwnedFd, link: OwnedFd) -> Result<Self, PortError> {
        let interface = InterfaceName::new(name)?;
        let path = format!("/proc/self/fdinfo/{}", map.as_raw_fd());
        let about = std::fs::read_to_string(&path).unwrap_or_default();
        let right = ["map_type:\t17", "key_size:\t4", "value_size:\t4"];
        if !right.iter().all(|line| about.lines().any(|found| found == *line)) {
            let problem = format!("is no map of AF_XDP sockets (BPF_MAP_TYPE_XSKMAP), by {path}");
            return Err(PortError::WrongDescriptor { name: name.to_owned(), problem });
        }
        Ok(XdpProgram { name: interface, map, link })
    }

    /// The interface.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The map from queue to socket.
    pub fn map(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// What keeps the program on the interface.
    pub fn link(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}
