//! The way to other hosts: the interface that carries tunnels, and who is next on the way to each.
//!
//! Routes and neighbours are the kernel's: it is asked, again and again and when it says that something changed, on a thread
//! of its own, as an answer may take a neighbour's. Frames go out by the interface and never through the kernel's stack.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use softdpu_engine::Socket;
use softdpu_sys::netlink::Netlink;
use softdpu_sys::port::link::Links;
use softdpu_sys::port::packet::{PacketOptions, PacketSocket, PortSink};
use softdpu_sys::port::xdp::{Selection, XdpOptions, XdpProgram, XdpSocket};
use softdpu_sys::port::{InterfaceName, PortError};
use softdpu_sys::wake::Doorbell;
use softdpu_vpc::spec::{NeighborSpec, UnderlaySpec};
use softdpu_vpc::{Mac, PortId};

use crate::config::{self, UnderlayBackend};

/// How often the way to each host is asked for.
const REFRESH: Duration = Duration::from_secs(1);

/// The underlay as it is in use.
pub(super) struct Underlay {
    pub mtu: u16,
    pub port: PortId,
    udp_port: u16,
    mac: [u8; 6],
    addresses: Vec<IpAddr>,
    found: Arc<Mutex<BTreeMap<IpAddr, [u8; 6]>>>,
    bell: Arc<Doorbell>,
    /// Ends the thread when it is dropped.
    hosts: Sender<BTreeSet<IpAddr>>,
    /// Keeps the kernel from refusing what it sees of our tunnels.
    _sinks: Vec<PortSink>,
}

impl Underlay {
    /// Opens the interface for tunnels.
    pub(super) fn open(settings: &config::Underlay, port: PortId) -> Result<(Underlay, Socket), String> {
        let text = |error: &dyn std::fmt::Display| format!("underlay '{}': {error}", settings.interface);
        let mut netlink = Netlink::new().map_err(|error| text(&error))?;
        let interface = netlink.interface(&settings.interface).map_err(|error| text(&error))?;
        let addresses = match settings.addresses.as_slice() {
            [] => interface.addresses.iter().map(|(address, _)| *address).filter(|a| !is_link_local(*a)).collect(),
            given => given.to_vec(),
        };
        if addresses.is_empty() {
            return Err(text(&"the interface has no address and `address` gives none"));
        }
        let mac = interface.mac.ok_or_else(|| text(&"the interface has no Ethernet address"))?;
        let mtu = settings.mtu.unwrap_or(u16::try_from(interface.mtu).unwrap_or(u16::MAX));
        let socket = match settings.backend {
            UnderlayBackend::Auto | UnderlayBackend::AfPacket => packet(settings).map_err(|error| error.to_string()),
            UnderlayBackend::AfXdp => xdp(settings),
        };
        let socket = socket.map_err(|error| text(&error))?;
        // Somebody who listens there already does as well.
        let sinks = PortSink::new(settings.port).ok().into_iter().collect();
        let bell = Arc::new(Doorbell::new().map_err(|error| text(&error))?);
        let found = Arc::new(Mutex::new(BTreeMap::new()));
        let (hosts, wanted) = channel();
        let (shared, ring, index) = (Arc::clone(&found), Arc::clone(&bell), interface.index);
        std::thread::Builder::new()
            .name("underlay".into())
            .spawn(move || resolve(&mut netlink, index, &wanted, &shared, &ring))
            .map_err(|error| text(&error))?;
        let underlay =
            Underlay { mtu, port, udp_port: settings.port, mac, addresses, found, bell, hosts, _sinks: sinks };
        Ok((underlay, socket))
    }

    /// Bytes that a tunnel adds to a packet.
    pub(super) fn overhead(&self) -> u16 {
        config::Underlay::overhead(&self.addresses)
    }

    /// The hosts to which there are to be tunnels.
    pub(super) fn set_hosts(&self, hosts: BTreeSet<IpAddr>) {
        // The thread ends with this value, not before.
        let _ = self.hosts.send(hosts);
    }

    /// Readable when the way to a host changed.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Whether the way to a host changed since the last call.
    pub(super) fn changed(&self) -> bool {
        self.bell.drain()
    }

    pub(super) fn spec(&self) -> UnderlaySpec {
        UnderlaySpec {
            port: self.port,
            addresses: self.addresses.clone(),
            mac: Mac(self.mac),
            udp_port: self.udp_port,
            mtu: self.mtu,
            dont_fragment: true,
        }
    }

    /// Who is next on the way to each host, as far as is known.
    pub(super) fn neighbors(&self) -> Vec<NeighborSpec> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.iter().map(|(host, mac)| NeighborSpec { host: *host, mac: Mac(*mac) }).collect()
    }
}

fn packet(settings: &config::Underlay) -> Result<Socket, PortError> {
    let options = PacketOptions { udp_port: Some(settings.port), ..PacketOptions::default() };
    PacketSocket::open(&settings.interface, &options).map(Socket::Packet)
}

/// The frames of the tunnels' UDP port go to the socket, all others to the host as before. The queue that the socket has is
/// the interface's only one.
fn xdp(settings: &config::Underlay) -> Result<Socket, String> {
    let text = |error: PortError| error.to_string();
    let name = InterfaceName::new(&settings.interface).map_err(text)?;
    let queues = Links::new().and_then(|links| links.rx_queues(&name)).map_err(text)?;
    if queues != 1 {
        return Err(format!(
            "af-xdp serves interfaces with one receive queue, this one has {queues}: `ethtool -L {name} combined 1`, or \
             backend = \"af-packet\"",
            name = settings.interface
        ));
    }
    let selection = Selection::UdpPort(settings.port);
    let (program, mode) = XdpProgram::attach(&settings.interface, 1, selection, None).map_err(text)?;
    let socket = XdpSocket::open(&program, 0, &XdpOptions::default()).map_err(text)?;
    tracing::info!(interface = settings.interface, ?mode, zero_copy = socket.zero_copy(), "underlay on AF_XDP");
    Ok(Socket::Xdp(Box::new(socket), program))
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The MAC address to which frames for `host` go out of `interface`. None: there is no such way, or it is not known yet, and
/// the kernel was asked to find out.
fn next_hop(netlink: &mut Netlink, interface: u32, host: IpAddr) -> Option<[u8; 6]> {
    let route = netlink.route(host).ok().filter(|route| route.interface == interface && !route.local)?;
    let next = route.gateway.unwrap_or(host);
    let known = netlink.neighbour(interface, next).ok().flatten().and_then(|neighbour| neighbour.mac);
    if known.is_none()
        && let Err(error) = netlink.resolve(interface, next)
    {
        tracing::debug!(%host, %next, %error, "the next hop cannot be asked for");
    }
    known
}

/// Asks the kernel for the way to each host until nobody wants to know any more.
fn resolve(
    netlink: &mut Netlink,
    interface: u32,
    wanted: &Receiver<BTreeSet<IpAddr>>,
    found: &Mutex<BTreeMap<IpAddr, [u8; 6]>>,
    bell: &Doorbell,
) {
    let mut hosts = BTreeSet::new();
    loop {
        match wanted.recv_timeout(REFRESH) {
            Ok(others) => hosts = others,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now: BTreeMap<IpAddr, [u8; 6]> =
            hosts.iter().filter_map(|host| Some((*host, next_hop(netlink, interface, *host)?))).collect();
        let mut known = found.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != now {
            *known = now;
            drop(known);
            bell.ring();
        }
    }
}
