//! Opening the interface that carries tunnels.

use std::net::IpAddr;

use softdpu_engine::{Socket, XdpQueues};
use softdpu_sys::netlink::Netlink;
use softdpu_sys::port::link::Links;
use softdpu_sys::port::packet::{PacketOptions, PacketSocket, PortSink};
use softdpu_sys::port::xdp::{MAX_LEN, Selection, XdpOptions, XdpProgram, XdpSocket};
use softdpu_sys::port::{InterfaceName, PortError};
use softdpu_vpc::Mac;

use super::hosts::Hosts;
use softdpu_site::{self as config, UnderlayBackend};

/// Bytes in front of an IP packet.
const ETHERNET_HEADER: usize = 14;

/// Receive queues of an interface on AF_XDP. Each has 16 MiB of locked memory.
const MAX_QUEUES: u32 = 64;

/// An open interface. Frames go out by it and never through the kernel's stack.
pub(super) struct Interface {
    pub facts: Facts,
    pub packet_io: PacketIo,
    pub hosts: Hosts,
    /// Keeps the kernel from refusing what it sees of our tunnels.
    _sinks: Vec<PortSink>,
}

/// How frames get to the interface and from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketIo {
    AfPacket,
    /// By this many receive queues.
    AfXdp {
        queues: u32,
        zero_copy: bool,
    },
}

/// What the tables have to know of it.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub mtu: u16,
    pub mac: Mac,
    pub addresses: Vec<IpAddr>,
}

impl Facts {
    /// The largest packet that a tunnel takes.
    pub(super) fn room(&self) -> u16 {
        self.mtu.saturating_sub(config::Underlay::overhead(&self.addresses))
    }
}

impl Interface {
    /// Opens it in this thread's network namespace; its sockets, for at most so many cores.
    pub(super) fn open(settings: &config::Underlay, cores: usize) -> Result<(Interface, Vec<Socket>), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let mut netlink = Netlink::new().map_err(|error| text(&error))?;
        let interface = netlink.interface(&settings.interface).map_err(|error| text(&error))?;
        if !interface.up {
            return Err(text(&PortError::Down { name: interface.name }));
        }
        if interface.state.is_without_carrier() {
            return Err(text(&PortError::NoCarrier { name: interface.name }));
        }
        let addresses = match settings.addresses.as_slice() {
            [] => interface.addresses.iter().map(|(address, _)| *address).filter(|a| !is_link_local(*a)).collect(),
            given => given.to_vec(),
        };
        if addresses.is_empty() {
            return Err(format!("{}: the interface has no address and `address` gives none", interface.name));
        }
        let mac = interface.mac.map(Mac).ok_or_else(|| format!("{}: it has no Ethernet address", interface.name))?;
        let mtu = settings.mtu.unwrap_or(u16::try_from(interface.mtu).unwrap_or(u16::MAX));
        let (packet_io, sockets) = match settings.backend {
            UnderlayBackend::Auto => best(settings, mtu, cores)?,
            UnderlayBackend::AfPacket => (PacketIo::AfPacket, vec![packet(settings).map_err(|error| text(&error))?]),
            UnderlayBackend::AfXdp => xdp(settings, mtu).map(|xdp| xdp.sockets(cores))?,
        };
        // A program that listens there already serves as well.
        let sinks = PortSink::new(settings.port).ok().into_iter().collect();
        let hosts = Hosts::ask(netlink, &interface).map_err(|error| text(&error))?;
        Ok((Interface { facts: Facts { mtu, mac, addresses }, packet_io, hosts, _sinks: sinks }, sockets))
    }
}

/// AF_XDP where the driver hands its frames over without a copy. Where it does not, AF_PACKET: it has offloads and
/// takes every interface, and AF_XDP over a veth pair would bring frames with unfinished checksums.
fn best(settings: &config::Underlay, mtu: u16, cores: usize) -> Result<(PacketIo, Vec<Socket>), String> {
    let reason = match xdp(settings, mtu) {
        Ok(xdp) if xdp.is_zero_copy() => return Ok(xdp.sockets(cores)),
        // It is closed, and its program detached, before the other one is opened.
        Ok(_) => "its driver does not do AF_XDP without copies".to_owned(),
        Err(reason) => reason,
    };
    let socket = packet(settings).map_err(|error| error.to_string())?;
    tracing::info!(
        interface = settings.interface,
        reason,
        "underlay on AF_PACKET, as AF_XDP gains nothing or cannot be had"
    );
    Ok((PacketIo::AfPacket, vec![socket]))
}

fn packet(settings: &config::Underlay) -> Result<Socket, PortError> {
    let options = PacketOptions { udp_port: Some(settings.port), ..PacketOptions::default() };
    PacketSocket::open(&settings.interface, &options).map(Socket::from)
}

/// An interface on AF_XDP.
struct XdpUnderlay {
    /// One for each receive queue.
    sockets: Vec<XdpSocket>,
    program: XdpProgram,
}

impl XdpUnderlay {
    fn is_zero_copy(&self) -> bool {
        self.sockets.iter().all(XdpSocket::zero_copy)
    }

    /// The queues dealt out to so many cores.
    fn sockets(self, cores: usize) -> (PacketIo, Vec<Socket>) {
        let packet_io = PacketIo::AfXdp { queues: self.sockets.len() as u32, zero_copy: self.is_zero_copy() };
        (packet_io, XdpQueues::deal(self.sockets, self.program, cores).into_iter().map(Socket::from).collect())
    }
}

/// The frames of the tunnels' UDP port go to the sockets, all others to the host as before. A NIC spreads tunnels over
/// all its receive queues by their outer source ports, so each has a socket.
fn xdp(settings: &config::Underlay, mtu: u16) -> Result<XdpUnderlay, String> {
    let text = |error: PortError| error.to_string();
    if usize::from(mtu) + ETHERNET_HEADER > MAX_LEN {
        return Err(format!(
            "{}: its MTU is {mtu}, and af-xdp takes at most {}: set the underlay's `mtu` to that, or backend = \"af-packet\"",
            settings.interface,
            MAX_LEN - ETHERNET_HEADER
        ));
    }
    let name = InterfaceName::new(&settings.interface).map_err(text)?;
    let queues = Links::new().and_then(|links| links.rx_queues(&name)).map_err(text)?;
    if queues > MAX_QUEUES {
        return Err(format!(
            "af-xdp serves interfaces with at most {MAX_QUEUES} receive queues, this one has {queues}: `ethtool -L {name} \
             combined {MAX_QUEUES}`, or backend = \"af-packet\"",
            name = settings.interface
        ));
    }
    let selection = Selection::UdpPort(settings.port);
    let (program, mode) = XdpProgram::attach(&settings.interface, queues, selection, None).map_err(text)?;
    let open = |queue| XdpSocket::open(&program, queue, &XdpOptions::default());
    let sockets: Vec<XdpSocket> = (0..queues).map(open).collect::<Result<_, _>>().map_err(text)?;
    let underlay = XdpUnderlay { sockets, program };
    let zero_copy = underlay.is_zero_copy();
    tracing::info!(interface = settings.interface, ?mode, queues, zero_copy, "AF_XDP on the underlay");
    Ok(underlay)
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
