//! What is wrong with a spec, and with which entry of it.

use std::fmt;
use std::net::IpAddr;

use softdpu_lpm::Full;
use thiserror::Error;

use crate::id::{PortId, Vni};
use crate::nat::NatError;
use crate::packet::Mac;
use crate::policy::acl::AclError;
use crate::policy::ecmp::EcmpError;
use crate::policy::group::GroupError;
use crate::spec::{EndpointSpec, METERS, Prefix, RouteSpec};

/// An entry of a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A network, by its name.
    Network(String),
    /// An endpoint.
    Endpoint {
        /// Its network.
        network: String,
        /// Its MAC address.
        mac: Mac,
    },
    /// All routes together.
    Routes,
    /// A route.
    Route {
        /// Its network.
        network: String,
        /// Its prefix.
        prefix: Prefix,
    },
    /// An ECMP group.
    Ecmp {
        /// Its network.
        network: String,
        /// Its name.
        name: String,
    },
    /// Routes of some sources.
    RouteTable {
        /// Its network.
        network: String,
        /// Its name.
        name: String,
    },
    /// Two networks that reach each other.
    Peering([String; 2]),
    /// Translation at an exit of a network.
    Nat {
        /// The network.
        network: String,
        /// The exit's address.
        exit: IpAddr,
    },
    /// The underlay.
    Underlay,
    /// A neighbour in the underlay.
    Neighbor(IpAddr),
    /// The limit of the services.
    Services,
    /// A meter, by its name.
    Meter(String),
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Network(name) => write!(f, "network {name}"),
            Entry::Endpoint { network, mac } => write!(f, "endpoint {mac} of network {network}"),
            Entry::Route { network, prefix } => write!(f, "route {prefix} of network {network}"),
            Entry::Ecmp { network, name } => write!(f, "ECMP group {name} of network {network}"),
            Entry::RouteTable { network, name } => write!(f, "route table {name} of network {network}"),
            Entry::Peering([a, b]) => write!(f, "peering of networks {a} and {b}"),
            Entry::Nat { network, exit } => write!(f, "NAT at {exit} of network {network}"),
            Entry::Routes => f.write_str("routes"),
            Entry::Underlay => f.write_str("underlay"),
            Entry::Neighbor(host) => write!(f, "neighbor {host}"),
            Entry::Services => f.write_str("services"),
            Entry::Meter(name) => write!(f, "meter {name}"),
        }
    }
}

impl From<&EndpointSpec> for Entry {
    fn from(endpoint: &EndpointSpec) -> Entry {
        Entry::Endpoint { network: endpoint.network.clone(), mac: endpoint.mac }
    }
}

impl From<&RouteSpec> for Entry {
    fn from(route: &RouteSpec) -> Entry {
        Entry::Route { network: route.network.clone(), prefix: route.prefix }
    }
}

/// What is wrong with an entry.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// Two networks have one name.
    #[error("another network has this name")]
    NameTaken,
    /// Endpoints and pairs of a network and a host of its, together.
    #[error(
        "the table of loaded next hops is full: it has room for {capacity}, and {wanted} are wanted: an endpoint is one, and each \
         host is one for every network that it is in; load fewer"
    )]
    NextHops {
        /// How many there may be.
        capacity: usize,
        /// How many there would be.
        wanted: usize,
    },
    /// Too many for the tables.
    #[error("there are more than {0} networks")]
    TooMany(usize),
    /// Too many for flows to tell apart.
    #[error("there are more than {0} endpoints, networks with routes and hosts that these lead to")]
    TooManyObjects(usize),
    /// Two networks have one VNI.
    #[error("VNI {vni} is network {other}'s")]
    VniTaken {
        /// The VNI.
        vni: Vni,
        /// The network that has it.
        other: String,
    },
    /// A group's MAC address, or none.
    #[error("{0} is not the address of a single interface")]
    NotAStation(Mac),
    /// Two have one MAC address.
    #[error("MAC address {0} is another's in this network")]
    MacTaken(Mac),
    /// An MTU that IP does not allow.
    #[error("MTU {mtu} is not in {least} to 65535")]
    Mtu {
        /// The MTU.
        mtu: u16,
        /// The least.
        least: u16,
    },
    /// Two subnets overlap.
    #[error("subnets {0} and {1} overlap")]
    Overlap(Prefix, Prefix),
    /// The gateway is not in its subnet.
    #[error("gateway {gateway} is not in subnet {prefix}")]
    GatewayOutside {
        /// The gateway.
        gateway: IpAddr,
        /// The subnet.
        prefix: Prefix,
    },
    /// No such network.
    #[error("there is no network {0}")]
    NoNetwork(String),
    /// No address.
    #[error("it has no address")]
    NoAddress,
    /// An address that no endpoint can have.
    #[error("{0} is not the address of a single host")]
    NotAHost(IpAddr),
    /// An address outside.
    #[error("address {0} is in none of the network's subnets")]
    AddressOutside(IpAddr),
    /// Two have one address.
    #[error("address {0} is another's, or the gateway's, in this network")]
    AddressTaken(IpAddr),
    /// Two have one port.
    #[error("port {} is another's", .0.0)]
    PortTaken(PortId),
    /// A port number that is no small index.
    #[error("port {} is more than {most}", .port.0)]
    PortNumber {
        /// The port.
        port: PortId,
        /// The most.
        most: u32,
    },
    /// A host that is not reached.
    #[error("host {0} is not reached: the underlay has no address of its family")]
    NoUnderlay(IpAddr),
    /// A host that is this one.
    #[error("host {0} is this node itself")]
    OwnHost(IpAddr),
    /// Two routes for one prefix.
    #[error("{0} is routed twice, or is a subnet")]
    RouteTaken(Prefix),
    /// There is such a route already.
    #[error("there is a route to {0} already: replace it, or delete it first")]
    RouteThere(Prefix),
    /// There is no such route.
    #[error("{0} is not loaded")]
    RouteNotLoaded(Prefix),
    /// There is no such guest.
    #[error("{0} is not loaded")]
    GuestNotLoaded(IpAddr),
    /// Two ECMP groups of a network have one name.
    #[error("another ECMP group of the network is called {0}")]
    EcmpTaken(String),
    /// No such group.
    #[error("the network has no ECMP group {0}")]
    NoEcmp(String),
    /// A group that cannot be.
    #[error(transparent)]
    Ecmp(EcmpError),
    /// Too many groups.
    #[error("there are more than {0} ECMP groups")]
    TooManyEcmp(usize),
    /// Two route tables of a network have one name.
    #[error("another route table of the network is called {0}")]
    TableTaken(String),
    /// Two route tables are for one source.
    #[error("another route table of the network is for the source {0}")]
    SourceTaken(Prefix),
    /// Peers with addresses that overlap.
    #[error("{0} and {1} overlap: packets could not be told where to go")]
    PeerOverlap(Prefix, Prefix),
    /// A network is its own peer.
    #[error("a network is no peer of itself")]
    OwnPeer,
    /// A route without a next hop.
    #[error("no endpoint of the network has the address {0}")]
    NoEndpoint(IpAddr),
    /// A second address of one family.
    #[error("a second address of the family of {0}")]
    SecondAddress(IpAddr),
    /// Given twice.
    #[error("it is given twice")]
    Twice,
    /// More than there is memory for.
    #[error(transparent)]
    Memory(Full),
    /// Two groups of a network have one name.
    #[error("another security group of the network is called {0}")]
    GroupTaken(String),
    /// Two lists of a network have one name.
    #[error("another ACL of the network is called {0}")]
    AclTaken(String),
    /// No such group.
    #[error("the network has no security group {0}")]
    NoGroup(String),
    /// No such list.
    #[error("the network has no ACL {0}")]
    NoAcl(String),
    /// Groups that cannot be.
    #[error(transparent)]
    Group(GroupError),
    /// Rules of translation that do not go together.
    #[error(transparent)]
    Nat(NatError),
    /// No exit of that address is at a port of this node, or it has rules twice.
    #[error("no interface of this node has the address {0} of the exit, or it has rules of NAT already")]
    NoExit(IpAddr),
    /// More exits than there are numbers.
    #[error("there are too many exits with translation")]
    TooManyExits,
    /// A list that cannot be.
    #[error(transparent)]
    Acl(AclError),
    /// Two meters have one name.
    #[error("another meter has this name")]
    MeterTaken,
    /// No such meter.
    #[error("there is no meter {0}")]
    NoMeter(String),
    /// More meters than a packet passes.
    #[error("it has {0} meters: {METERS} are the most")]
    TooManyMeters(usize),
    /// A table has no room.
    #[error(
        "the table of {table} is full: it has room for {capacity}, and {wanted} are wanted; set `{table}` in node.tables for more, or load fewer"
    )]
    Full {
        /// Which.
        table: &'static str,
        /// How many it has room for.
        capacity: usize,
        /// How many are to be in it, as far as was counted.
        wanted: usize,
    },
    /// Not a rate.
    #[error("{0} is not in 1 to 1000000000")]
    Rate(u32),
}

/// What is wrong with a spec.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{entry}: {problem}")]
pub struct SpecError {
    /// With which entry.
    pub entry: Entry,
    /// What.
    pub problem: Problem,
}
