//! Flows and what is said of them.

use std::net::IpAddr;

use softdpu_vpc::Vni;
use softdpu_vpc::packet::Layer4;

use crate::{FrameDirection, Observation};

/// What the packets of a flow have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Source address.
    pub source: IpAddr,
    /// Destination address. Of the same family.
    pub destination: IpAddr,
    /// Source port; 0 where the protocol has none, and of fragments but the first.
    pub source_port: u16,
    /// Destination port; of ICMP and ICMPv6 the type × 256 + the code, as NetFlow has always had it.
    pub destination_port: u16,
    /// IANA protocol number.
    pub protocol: u8,
    /// Their direction at the interface.
    pub direction: FrameDirection,
    /// Of their network.
    pub vni: Vni,
}

impl FlowKey {
    /// Of an IP packet, with its TCP flags.
    #[inline]
    pub fn of(observation: &Observation) -> Option<(FlowKey, u8)> {
        let ip = observation.ip()?;
        let (source_port, destination_port, flags) = match ip.layer4 {
            Layer4::Tcp { source, destination, flags, .. } => (source, destination, flags),
            Layer4::Udp { source, destination } => (source, destination, 0),
            Layer4::Icmp { kind, code } => (0, u16::from_be_bytes([kind, code]), 0),
            Layer4::Other => (0, 0, 0),
        };
        let key = FlowKey {
            source: ip.source,
            destination: ip.destination,
            source_port,
            destination_port,
            protocol: ip.protocol,
            direction: observation.direction,
            vni: observation.subject.vni.unwrap_or(Vni::NONE),
        };
        Some((key, flags))
    }
}

/// Why a flow was reported (RFC 5102 §5.11.3, flowEndReason).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndReason {
    /// Nothing was seen of it for long enough.
    Idle = 1,
    /// It goes on.
    Active = 2,
    /// The monitor ends.
    Forced = 4,
    /// The table was full.
    Resources = 5,
}

/// What was seen of a flow since it was reported last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// Which flow.
    pub key: FlowKey,
    /// Packets.
    pub packets: u64,
    /// Octets of IP packets, headers and payload.
    pub octets: u64,
    /// When the first was seen, nanoseconds on the clock of the monitor.
    pub first: u64,
    /// When the last was.
    pub last: u64,
    /// All TCP flags together.
    pub tcp_flags: u8,
    /// Why it is reported now.
    pub reason: EndReason,
}
