//! `[[network.nat]]`: what is translated where a network meets the outside.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use softdpu_vpc::nat::{self, NatRule};
use softdpu_vpc::spec::{FloatingSpec, ForwardSpec, NatProtocol, NatSpec, Prefix, PrefixError, SharedSpec};

use super::file::changed;
use super::read::{WHAT_ADDRESS, WHAT_PREFIX, prefix, unicast};
use super::{Network, PortRange};
use crate::Site;
use crate::diagnostic::Problem;
use crate::read::socket_address;
use crate::reader::Reader;
use crate::rules::MOST_PROBLEMS;

/// The ports of shared addresses where the site file says nothing: all but the well-known ones (RFC 6335 §6).
const SHARED_PORTS: PortRange = PortRange { first: 1024, last: u16::MAX };
/// The ports of each inside address where the site file says nothing: 63 inside addresses have one outside address.
const PORTS_PER_GUEST: u16 = 1024;
const WHAT_SOCKET: &str = "an IPv4 address and a port such as \"203.0.113.1:80\"";
const WHAT_RANGE: &str = "a range of ports such as \"1024-65535\"";
const WHAT_IPV4: &str = "an IPv4 address such as \"203.0.113.1\"";

/// `[[network.nat]]`: rules of one exit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nat {
    /// An address of a device of this host in the network: what routes lead there is outside.
    pub exit: IpAddr,
    /// Inside addresses with an outside address to themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub floating: Vec<Floating>,
    /// Ports of outside addresses that lead inside.
    #[serde(default, rename = "forward", skip_serializing_if = "Vec::is_empty")]
    pub forwards: Vec<Forward>,
    /// Outside addresses that inside addresses share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<SharedAddresses>,
}

/// All rules of translation of a network: what `network.nat` puts in the place of those before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatChange {
    /// The network.
    pub network: String,
    /// What is translated at its exits from now on.
    #[serde(default, rename = "nat", skip_serializing_if = "Vec::is_empty")]
    pub nats: Vec<Nat>,
}

/// `[[network.nat.floating]]`: source and destination, 1:1, all protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Floating {
    /// The inside address.
    pub inside: IpAddr,
    /// The outside address, of the same family.
    pub outside: IpAddr,
}

/// `[[network.nat.forward]]`: one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forward {
    /// TCP or UDP.
    pub protocol: ForwardProtocol,
    /// The outside address and port.
    pub outside: SocketAddrV4,
    /// The inside address and port.
    pub inside: SocketAddrV4,
}

/// A protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForwardProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// `[[network.nat.shared]]`: a block of ports of an outside address for each inside address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SharedAddresses {
    /// The inside addresses, IPv4.
    #[serde(rename = "source")]
    pub sources: Vec<IpNet>,
    /// The outside addresses.
    #[serde(rename = "address")]
    pub addresses: Vec<Ipv4Addr>,
    /// The ports of each that may be used.
    pub ports: PortRange,
    /// The ports of each inside address.
    pub ports_per_guest: u16,
}

/// The parameters of `network.nat`; the network's name is under `key`.
pub(super) fn change(reader: &Reader<'_>, key: &'static str) -> NatChange {
    NatChange { network: changed(reader, key), nats: nats(reader) }
}

/// `[[network.nat]]`
pub(super) fn nats(reader: &Reader<'_>) -> Vec<Nat> {
    let nat = |reader: &Reader<'_>| {
        required(reader, &[("exit", "exit = \"10.0.0.254\"")]);
        let nat = Nat {
            exit: reader.converted("exit", WHAT_ADDRESS, unicast).unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
            floating: reader.tables("floating", "[[network.nat.floating]]", floating),
            forwards: reader.tables("forward", "[[network.nat.forward]]", forward),
            shared: reader.tables("shared", "[[network.nat.shared]]", shared),
        };
        let keys = ["floating", "forward", "shared"];
        if keys.iter().all(|key| reader.value(key).is_none()) {
            let problem = Problem::error(&*reader.path, "nothing is translated");
            reader.report(problem.expected("`floating`, `forward` or `shared`"));
        }
        nat
    };
    reader.tables("nat", "[[network.nat]]", nat)
}

fn required(reader: &Reader<'_>, keys: &[(&'static str, &str)]) {
    for (key, example) in keys {
        if reader.value(key).is_none() {
            reader.missing(key, example);
        }
    }
}

fn floating(reader: &Reader<'_>) -> Floating {
    required(reader, &[("inside", "inside = \"10.0.0.2\""), ("outside", "outside = \"203.0.113.2\"")]);
    let address = |key| reader.converted(key, WHAT_ADDRESS, unicast).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    Floating { inside: address("inside"), outside: address("outside") }
}

fn forward(reader: &Reader<'_>) -> Forward {
    required(
        reader,
        &[
            ("protocol", "protocol = \"tcp\""),
            ("outside", "outside = \"203.0.113.1:80\""),
            ("inside", "inside = \"10.0.0.2:8080\""),
        ],
    );
    let protocols = [("tcp", ForwardProtocol::Tcp), ("udp", ForwardProtocol::Udp)];
    let socket = |key| {
        let read = reader.converted(key, WHAT_SOCKET, |text| match socket_address(text, 80)? {
            SocketAddr::V4(address) => unicast(&address.ip().to_string()).map(|_| address),
            SocketAddr::V6(_) => Err("IPv6 addresses are translated 1:1 only: see `floating`".to_owned()),
        });
        read.unwrap_or(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))
    };
    Forward {
        protocol: reader.choice("protocol", &protocols, &[]).unwrap_or(ForwardProtocol::Tcp),
        outside: socket("outside"),
        inside: socket("inside"),
    }
}

fn shared(reader: &Reader<'_>) -> SharedAddresses {
    required(reader, &[("source", "source = \"10.0.0.0/24\""), ("address", "address = \"203.0.113.1\"")]);
    let ipv4 = |text: &str| match unicast(text)? {
        IpAddr::V4(address) => Ok(address),
        IpAddr::V6(_) => Err("IPv6 addresses are translated 1:1 only: see `floating`".to_owned()),
    };
    SharedAddresses {
        sources: reader.one_or_more("source", WHAT_PREFIX, prefix).unwrap_or_default(),
        addresses: reader.one_or_more("address", WHAT_IPV4, ipv4).unwrap_or_default(),
        ports: reader.converted("ports", WHAT_RANGE, str::parse).unwrap_or(SHARED_PORTS),
        ports_per_guest: reader.integer("ports-per-guest", 1..=u16::MAX).unwrap_or(PORTS_PER_GUEST),
    }
}

impl Nat {
    /// Whether nothing stands in for what was missing or wrong.
    fn is_read(&self) -> bool {
        let is_floating = |one: &Floating| !one.inside.is_unspecified() && !one.outside.is_unspecified();
        let is_forward = |one: &Forward| ![one.inside, one.outside].iter().any(|end| end.ip().is_unspecified());
        let is_shared = |one: &SharedAddresses| !one.sources.is_empty() && !one.addresses.is_empty();
        self.floating.iter().all(is_floating)
            && self.forwards.iter().all(is_forward)
            && self.shared.iter().all(is_shared)
    }

    /// The rules in the form the tables take, in the network of that name.
    ///
    /// # Errors
    /// A prefix that the tables do not take.
    pub fn spec(&self, network: &str) -> Result<NatSpec, PrefixError> {
        let forward = |one: &Forward| ForwardSpec {
            protocol: match one.protocol {
                ForwardProtocol::Tcp => NatProtocol::Tcp,
                ForwardProtocol::Udp => NatProtocol::Udp,
            },
            outside: (*one.outside.ip(), one.outside.port()),
            inside: (*one.inside.ip(), one.inside.port()),
        };
        let shared = |one: &SharedAddresses| {
            Ok(SharedSpec {
                sources: one.sources.iter().map(table_prefix).collect::<Result<_, _>>()?,
                addresses: one.addresses.clone(),
                ports: (one.ports.first, one.ports.last),
                ports_per_guest: one.ports_per_guest,
            })
        };
        let floating = |one: &Floating| FloatingSpec { inside: one.inside, outside: one.outside };
        Ok(NatSpec {
            network: network.to_owned(),
            exit: self.exit,
            floating: self.floating.iter().map(floating).collect(),
            forwards: self.forwards.iter().map(forward).collect(),
            shared: self.shared.iter().map(shared).collect::<Result<_, _>>()?,
        })
    }
}

fn table_prefix(prefix: &IpNet) -> Result<Prefix, PrefixError> {
    Prefix::new(prefix.network(), prefix.prefix_len())
}

/// Each exit is a device of this host, and its rules go together. Of rules that do not, the first is told.
pub(super) fn check_nats(site: &Site, place: &str, network: &Network, problems: &mut Vec<Problem>) {
    let subnets: Vec<Prefix> = network.cidr.iter().filter_map(|prefix| table_prefix(prefix).ok()).collect();
    let mut exits = HashSet::new();
    for (at, nat) in network.nats.iter().enumerate() {
        if problems.len() >= MOST_PROBLEMS {
            return;
        }
        let place = format!("{place}.nat[{at}]");
        let mut ports = site.attached(&network.name).filter_map(|device| device.port());
        if nat.exit.is_unspecified() {
            // Reported as it was read.
        } else if !ports.any(|port| port.addresses.contains(&nat.exit)) {
            let message = format!("no device of this host has the address {} in network `{}`", nat.exit, network.name);
            let problem = Problem::error(format!("{place}.exit"), message);
            problems.push(problem.help("name the address of the device that leads outside, as that of a `tap`"));
        } else if !exits.insert(nat.exit) {
            let message = format!("the exit {} has rules already", nat.exit);
            problems.push(Problem::error(format!("{place}.exit"), message).help("write its rules into one table"));
        }
        let Ok(spec) = nat.spec(&network.name) else { continue };
        if nat.is_read()
            && let Err(error) = nat::check(&spec, &subnets)
        {
            let rule = match error.rule {
                NatRule::Floating(at) => format!("{place}.floating[{at}]"),
                NatRule::Forward(at) => format!("{place}.forward[{at}]"),
                NatRule::Shared(at) => format!("{place}.shared[{at}]"),
            };
            problems.push(Problem::error(rule, error.problem.to_string()));
        }
    }
}
