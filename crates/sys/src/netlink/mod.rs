//! Questions to the kernel about interfaces, routes and neighbours (rtnetlink(7)), and word of their changes.
//!
//! A tunnel's underlay is the kernel's: it resolves neighbours and holds the routes, softdpu asks and follows. Not for
//! the data path: every question is a system call or two.

mod exchange;
mod monitor;
mod read;

use std::io;
use std::net::IpAddr;

use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;

use self::exchange::{Exchange, Request};

pub use self::monitor::{Change, Monitor};

/// Why a question was not answered.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// No interface has that name.
    #[error("{name}: no such network interface; `ip link` lists them")]
    NoInterface {
        /// The interface.
        name: String,
    },
    /// The kernel would not send anything there.
    #[error("no route to {destination} ({reason}); `ip route get {destination}` asks the same")]
    NoRoute {
        /// Where to.
        destination: IpAddr,
        /// The kernel's word.
        reason: String,
    },
    /// The process may not do this.
    #[error("{doing} needs CAP_NET_ADMIN")]
    NotPermitted {
        /// What was tried.
        doing: &'static str,
    },
    /// The kernel refused for a reason of its own.
    #[error("{doing} by netlink failed: {source}")]
    Kernel {
        /// What was tried.
        doing: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel's answer was not understood.
    #[error("{doing} by netlink: the kernel's answer is not understood: {problem}")]
    Answer {
        /// What was tried.
        doing: &'static str,
        /// What is odd about it.
        problem: String,
    },
}

impl NetlinkError {
    fn at(doing: &'static str) -> impl Fn(Errno) -> NetlinkError {
        move |errno| match errno {
            Errno::PERM | Errno::ACCESS => NetlinkError::NotPermitted { doing },
            errno => NetlinkError::Kernel { doing, source: errno.into() },
        }
    }
}

/// An interface as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// Its MAC address; none if it is no Ethernet.
    pub mac: Option<[u8; 6]>,
    /// Set up by the administrator.
    pub up: bool,
    /// Its cable, or what stands for it.
    pub state: OperState,
    /// Its addresses with their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// Operational state (RFC 2863 §3.1.14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OperState {
    /// The driver does not tell (TAP and loopback never do).
    #[default]
    Unknown,
    /// Carries frames.
    Up,
    /// Carries none.
    Down,
    /// Carries none as the interface below it does not.
    LowerLayerDown,
    /// Waits for something (authentication, say), is being tested, or its hardware is gone.
    NotReady,
}

impl OperState {
    /// Whether it is known to carry nothing.
    pub fn is_without_carrier(self) -> bool {
        matches!(self, OperState::Down | OperState::LowerLayerDown)
    }
}

/// Where the kernel would send to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Out of this interface.
    pub interface: u32,
    /// To this router; none if the address itself is the neighbour.
    pub gateway: Option<IpAddr>,
    /// From this address.
    pub source: Option<IpAddr>,
    /// The address is the host's own.
    pub local: bool,
}

/// A neighbour as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// At this interface.
    pub interface: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its MAC address, while it is known.
    pub mac: Option<[u8; 6]>,
    /// How sure the kernel is.
    pub state: NeighbourState,
}

/// What a neighbour's MAC address is worth (neighbour unreachability detection, RFC 4861 §7.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourState {
    /// Good for use: permanent, reachable, or not yet shown to be wrong.
    Usable,
    /// Being asked for.
    Incomplete,
    /// It did not answer.
    Failed,
}

/// Questions to the network namespace of the thread that made it.
#[derive(Debug)]
pub struct Netlink {
    exchange: Exchange,
}

impl Netlink {
    /// For the calling thread's network namespace.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> Result<Self, NetlinkError> {
        Ok(Netlink { exchange: Exchange::new().map_err(NetlinkError::at("opening a socket"))? })
    }

    /// An interface with its addresses.
    ///
    /// # Errors
    /// [`NetlinkError::NoInterface`], or what the kernel says.
    pub fn interface(&mut self, name: &str) -> Result<Interface, NetlinkError> {
        let mut interface = self.link(name)?;
        self.addresses(|index, address| {
            if index == interface.index {
                interface.addresses.push(address);
            }
        })?;
        Ok(interface)
    }

    /// An interface without its addresses: one question, however many there are.
    ///
    /// # Errors
    /// [`NetlinkError::NoInterface`], or what the kernel says.
    pub fn link(&mut self, name: &str) -> Result<Interface, NetlinkError> {
        let doing = "looking an interface up";
        let mut question = LinkMessage::default();
        question.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let mut found = None;
        let asked = self.exchange.ask(doing, Request::Get, RouteNetlinkMessage::GetLink(question), |answer| {
            if let RouteNetlinkMessage::NewLink(link) = answer {
                found = Some(read::interface(&link));
            }
        });
        let none = || NetlinkError::NoInterface { name: name.to_owned() };
        match asked {
            Err(NetlinkError::Kernel { source, .. })
                if [libc::ENODEV, libc::ERANGE, libc::EINVAL].map(Some).contains(&source.raw_os_error()) =>
            {
                return Err(none());
            }
            other => other?,
        }
        found.ok_or_else(none)
    }

    /// All interfaces with their addresses.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn interfaces(&mut self) -> Result<Vec<Interface>, NetlinkError> {
        let mut all = Vec::new();
        let question = RouteNetlinkMessage::GetLink(LinkMessage::default());
        self.exchange.ask("listing interfaces", Request::Dump, question, |answer| {
            if let RouteNetlinkMessage::NewLink(link) = answer {
                all.push(read::interface(&link));
            }
        })?;
        self.addresses(|index, address| {
            if let Some(interface) = all.iter_mut().find(|interface| interface.index == index) {
                interface.addresses.push(address);
            }
        })?;
        Ok(all)
    }

    fn addresses(&mut self, mut each: impl FnMut(u32, (IpAddr, u8))) -> Result<(), NetlinkError> {
        let question = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.exchange.ask("listing addresses", Request::Dump, question, |answer| {
            if let RouteNetlinkMessage::NewAddress(message) = answer
                && let Some(address) = read::address(&message)
            {
                each(message.header.index, (address, message.header.prefix_len));
            }
        })
    }

    /// Where the kernel would send to `destination`.
    ///
    /// # Errors
    /// [`NetlinkError::NoRoute`], or what the kernel says.
    pub fn route(&mut self, destination: IpAddr) -> Result<Route, NetlinkError> {
        let no_route = |reason: String| NetlinkError::NoRoute { destination, reason };
        let mut question = RouteMessage::default();
        (question.header.address_family, question.header.destination_prefix_length) = family(destination);
        let address = match destination {
            IpAddr::V4(address) => RouteAddress::Inet(address),
            IpAddr::V6(address) => RouteAddress::Inet6(address),
        };
        question.attributes.push(RouteAttribute::Destination(address));
        let mut found = None;
        let question = RouteNetlinkMessage::GetRoute(question);
        let asked = self.exchange.ask("looking a route up", Request::Get, question, |answer| {
            if let RouteNetlinkMessage::NewRoute(route) = answer {
                found = Some((route.header.kind, read::route(&route)));
            }
        });
        match asked {
            Err(NetlinkError::Kernel { source, .. })
                if [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EINVAL, libc::EACCES]
                    .map(Some)
                    .contains(&source.raw_os_error()) =>
            {
                return Err(no_route(source.to_string()));
            }
            other => other?,
        }
        match found {
            Some((RouteType::Unicast | RouteType::Local, Some(route))) => Ok(route),
            Some((kind, _)) => Err(no_route(format!("{kind:?}").to_lowercase())),
            None => Err(no_route("no answer".to_owned())),
        }
    }

    /// What the kernel knows about a neighbour; none if it has not been asked for.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn neighbour(&mut self, interface: u32, address: IpAddr) -> Result<Option<Neighbour>, NetlinkError> {
        let mut found = None;
        let question = RouteNetlinkMessage::GetNeighbour(neighbour(interface, address));
        let asked = self.exchange.ask("looking a neighbour up", Request::Get, question, |answer| {
            if let RouteNetlinkMessage::NewNeighbour(neighbour) = answer {
                found = read::neighbour(&neighbour);
            }
        });
        match asked {
            Err(NetlinkError::Kernel { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            other => other.map(|()| found),
        }
    }

    /// Lets the kernel find a neighbour's MAC address, or make sure of it, as if it had a packet for it. A [`Monitor`]
    /// tells when it is known; it stays usable only while it is asked for again now and then.
    ///
    /// # Errors
    /// [`NetlinkError::NotPermitted`], or what the kernel says.
    pub fn resolve(&mut self, interface: u32, address: IpAddr) -> Result<(), NetlinkError> {
        let mut message = neighbour(interface, address);
        message.header.flags = NeighbourFlags::Use;
        self.exchange.ask("resolving a neighbour", Request::Create, RouteNetlinkMessage::NewNeighbour(message), |_| ())
    }
}

fn family(address: IpAddr) -> (AddressFamily, u8) {
    match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    }
}

fn neighbour(interface: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(address).0;
    message.header.ifindex = interface;
    message.attributes.push(NeighbourAttribute::Destination(address.into()));
    message
}
