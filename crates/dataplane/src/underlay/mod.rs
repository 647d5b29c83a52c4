//! The underlay: the interface that carries tunnels to other hosts, and the next hop towards each.
//!
//! ```text
//!          opened                    gone, set down
//!   away ─────────▶ open ──────────────────────────────▶ away
//!    ▲ │ failed: pause, doubling
//!    └─┘
//! ```
//!
//! While it is away, its port is there without a socket: guests keep their devices and their networks, and what they
//! send to other hosts is dropped and counted.

mod absence;
pub(super) mod bfd;
mod hosts;
mod open;

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use softdpu_engine::{Engine, PortCounters, Socket};
use softdpu_vpc::PortId;
use softdpu_vpc::spec::{NeighborSpec, UnderlaySpec};

use self::absence::Absence;
use self::hosts::Wanted;
pub(super) use self::open::PacketIo;
use self::open::{Facts, Interface};
use softdpu_site::Underlay as Settings;

/// Ethernet's MTU, for an interface that was never seen.
const ETHERNET: u16 = 1500;

/// The underlay as configured.
pub(super) struct Underlay {
    settings: Settings,
    pub port: PortId,
    /// What its port counts, core by core.
    pub counters: Vec<Arc<PortCounters>>,
    /// Those to which there are to be tunnels.
    hosts: Wanted,
    stage: Stage,
    /// Of the interface as it was open last.
    facts: Option<Facts>,
    /// The MTU of networks that set none. It never grows: guests have read it.
    room: Option<u16>,
}

enum Stage {
    Open(Interface),
    Away(Absence),
}

/// An interface that was opened and is not in use yet.
pub(super) struct Opened {
    interface: Interface,
    sockets: Vec<Socket>,
}

/// What was in force before an [`Opened`] one.
pub(super) struct Before {
    stage: Stage,
    facts: Option<Facts>,
    room: Option<u16>,
}

impl Underlay {
    /// One that was not tried yet.
    pub(super) fn new(settings: &Settings, port: PortId, counters: Vec<Arc<PortCounters>>, now: Instant) -> Underlay {
        let stage = Stage::Away(Absence::untried(now));
        Underlay { settings: settings.clone(), port, counters, hosts: Wanted::new(), stage, facts: None, room: None }
    }

    /// The hosts to which there are to be tunnels, and whether it is to be made sure again and again that they are
    /// there.
    pub(super) fn set_hosts(&mut self, hosts: Wanted) {
        if self.hosts == hosts {
            return;
        }
        if let Stage::Open(interface) = &self.stage {
            interface.hosts.want(hosts.clone());
        }
        self.hosts = hosts;
    }

    /// Tries to open the interface, for so many cores; what to [`take`](Self::take).
    pub(super) fn open(&self, cores: usize) -> Result<Opened, String> {
        Interface::open(&self.settings, cores).map(|(interface, sockets)| Opened { interface, sockets })
    }

    /// Goes on with an opened interface; its sockets, and what was before, should the tables not take it.
    pub(super) fn take(&mut self, opened: Opened) -> (Vec<Socket>, Before) {
        let Opened { interface, sockets } = opened;
        interface.hosts.want(self.hosts.clone());
        let room = interface.facts.room();
        let before = Before {
            facts: self.facts.replace(interface.facts.clone()),
            room: self.room.replace(self.room.map_or(room, |before| before.min(room))),
            stage: std::mem::replace(&mut self.stage, Stage::Open(interface)),
        };
        (sockets, before)
    }

    /// Goes on as it was before.
    pub(super) fn put_back(&mut self, before: Before) {
        let Before { stage, facts, room } = before;
        (self.stage, self.facts, self.room) = (stage, facts, room);
    }

    /// It could not be opened.
    pub(super) fn failed(&mut self, reason: String, now: Instant) {
        let Settings { addresses, mtu, .. } = &self.settings;
        // Those of the interface may be of either family.
        let unknown = [Ipv6Addr::UNSPECIFIED.into()];
        let overhead = Settings::overhead(if addresses.is_empty() { &unknown } else { addresses.as_slice() });
        self.room.get_or_insert(mtu.unwrap_or(ETHERNET).saturating_sub(overhead));
        if let Stage::Away(absence) = &mut self.stage
            && absence.failed(reason, now)
        {
            let Absence { reason, .. } = absence;
            tracing::error!(
                interface = self.settings.interface,
                reason,
                "networks end at this host: its underlay cannot be used; it is tried again"
            );
        }
    }

    /// Gives up an interface that carries nothing any more.
    pub(super) fn close(&mut self, reason: String, engine: &Engine, now: Instant) {
        tracing::error!(
            interface = self.settings.interface,
            reason,
            "networks end at this host: its underlay is lost; it is tried again"
        );
        engine.set_sockets(self.port, Vec::new());
        self.stage = Stage::Away(Absence::new(reason, now));
    }

    /// Another process goes on with the interface.
    pub(super) fn let_go(&mut self, engine: &Engine, now: Instant) {
        engine.set_sockets(self.port, Vec::new());
        self.stage = Stage::Away(Absence::untried(now));
    }

    /// Why it cannot be used, if so.
    pub(super) fn absence(&self) -> Option<&Absence> {
        match &self.stage {
            Stage::Open(_) => None,
            Stage::Away(absence) => Some(absence),
        }
    }

    /// How frames get to the interface and from it, while it is open.
    pub(super) fn packet_io(&self) -> Option<PacketIo> {
        match &self.stage {
            Stage::Open(interface) => Some(interface.packet_io),
            Stage::Away(_) => None,
        }
    }

    /// Its interface's name.
    pub(super) fn interface(&self) -> &str {
        &self.settings.interface
    }

    /// This node's tunnel end points; none while the interface was never open.
    pub(super) fn addresses(&self) -> &[IpAddr] {
        self.facts.as_ref().map(|facts| facts.addresses.as_slice()).unwrap_or_default()
    }

    /// How BFD sessions go.
    pub(super) fn bfd(&self) -> softdpu_site::Bfd {
        self.settings.bfd
    }

    /// Its UDP port.
    pub(super) fn udp_port(&self) -> u16 {
        self.settings.port
    }

    /// The MTU of networks that set none.
    pub(super) fn room(&self) -> u16 {
        self.room.unwrap_or(ETHERNET)
    }

    /// Readable when the packet_io to a host changed, or the interface is lost.
    pub(super) fn bell(&self) -> Option<BorrowedFd<'_>> {
        match &self.stage {
            Stage::Open(interface) => Some(interface.hosts.bell()),
            Stage::Away(_) => None,
        }
    }

    /// Whether the packet_io to a host changed since the last call.
    ///
    /// # Errors
    /// Why the interface carries nothing any more.
    pub(super) fn changed(&self) -> Result<bool, String> {
        let Stage::Open(interface) = &self.stage else { return Ok(false) };
        if !interface.hosts.changed() {
            return Ok(false);
        }
        interface.hosts.lost().map_or(Ok(true), Err)
    }

    /// As it is for the tables, where it was ever open.
    pub(super) fn spec(&self) -> Option<UnderlaySpec> {
        let Facts { mtu, mac, addresses } = self.facts.clone()?;
        Some(UnderlaySpec { port: self.port, addresses, mac, udp_port: self.settings.port, mtu, dont_fragment: true })
    }

    /// The next hop towards each host, as far as it is resolved.
    pub(super) fn neighbors(&self) -> Vec<NeighborSpec> {
        match &self.stage {
            Stage::Open(interface) => interface.hosts.neighbors(),
            Stage::Away(_) => Vec::new(),
        }
    }
}
