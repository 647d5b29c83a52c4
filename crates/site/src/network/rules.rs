//! What must hold over the networks of a whole site, whoever made it.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use softdpu_vpc::spec::{MIN_MTU_IPV6, min_mtu};

use super::nat::check_nats;
use super::policy::{Policies, check_policies};
use super::read::STAND_IN_VNI;
use super::routing::{check_group_count, check_routing};
use super::*;
use crate::diagnostic::Problem;
use crate::rules::dangling;

/// Room for a network's own address, a gateway, a guest and, in IPv4, the broadcast address.
const HOST_BITS: u8 = 2;
/// What is no network's to have, and why.
const RESERVED: [(&str, &str); 7] = [
    ("0.0.0.0/8", "\"this network\", which no host has as its address (RFC 1122 §3.2.1.3)"),
    ("127.0.0.0/8", "loopback (RFC 1122 §3.2.1.3)"),
    ("169.254.0.0/16", "link-local (RFC 3927)"),
    ("224.0.0.0/3", "multicast or reserved (RFC 1112 §4)"),
    ("::/8", "loopback or reserved (RFC 4291 §2.4)"),
    ("fe80::/10", "link-local (RFC 4291 §2.5.6)"),
    ("ff00::/8", "multicast (RFC 4291 §2.7)"),
];
/// A frame that still has to be cut into segments has up to 64 KiB: a smaller bucket would never let one pass.
pub(super) const SMALLEST_BYTE_BURST: Bytes = Bytes(64 << 10);

pub(crate) fn check_networks(site: &Site, problems: &mut Vec<Problem>) {
    if let Some(underlay) = &site.node.underlay {
        underlay.check(problems);
    }
    check_vnis(site, problems);
    for (index, network) in site.networks.iter().enumerate() {
        let place = format!("network[{index}]");
        check_subnets(&place, network, problems);
        check_gateways(&place, network, problems);
        check_network_tenant(site, &place, network, problems);
        check_network_mtu(site, &place, network, problems);
        check_policies(&place, network, problems);
        check_routing(site, &place, network, problems);
        check_nats(site, &place, network, problems);
        check_members(site, index, network, problems);
    }
    let mut policies = HashMap::new();
    for (index, device) in site.devices.iter().enumerate() {
        if let Some(port) = device.port() {
            let place = format!("device[{index}].{}", device.kind.name());
            check_port(site, &place, device, port, &mut policies, problems);
        }
    }
    check_interfaces(site, problems);
    check_group_count(site, problems);
    site.check_tables(TableUse::default(), problems);
}

fn check_vnis(site: &Site, problems: &mut Vec<Problem>) {
    let mut seen: HashMap<Vni, (usize, &str)> = HashMap::new();
    for (index, network) in site.networks.iter().enumerate().filter(|(_, network)| network.vni != STAND_IN_VNI) {
        match seen.get(&network.vni) {
            Some((first, other)) if *other != network.name => problems.push(
                Problem::error(
                    format!("network[{index}].vni"),
                    format!("network `{other}` already has VNI {}", network.vni),
                )
                .help("give each [[network]] a VNI of its own: frames on the underlay are told apart by it")
                .first(format!("network[{first}].vni")),
            ),
            Some(_) => {}
            None => drop(seen.insert(network.vni, (index, &network.name))),
        }
    }
}

fn check_network_tenant(site: &Site, place: &str, network: &Network, problems: &mut Vec<Problem>) {
    if let Some(tenant) = &network.tenant
        && site.tenant(tenant).is_none()
        && tenant != crate::DEFAULT_TENANT
    {
        let names = site.tenants.iter().map(|tenant| tenant.name.as_str());
        problems.extend(dangling(format!("{place}.tenant"), "tenant", tenant, names));
    }
}

fn check_network_mtu(site: &Site, place: &str, network: &Network, problems: &mut Vec<Problem>) {
    let smallest = min_mtu(network.has_ipv6());
    // Where the underlay's addresses are its interface's, this is the least that tunnelling takes.
    let room = site.node.underlay.as_ref().and_then(|underlay| {
        let (mtu, overhead) = (underlay.mtu?, Underlay::overhead(&underlay.addresses));
        Some((mtu.saturating_sub(overhead), mtu, overhead))
    });
    if let Some((room, mtu, overhead)) = room
        && network.mtu.map_or(room < smallest, |wanted| wanted > room)
    {
        let (found, expected) = match network.mtu {
            Some(wanted) => {
                (format!("{wanted} bytes"), format!("at most {room}: the underlay's {mtu} less {overhead} for VXLAN"))
            }
            None => (format!("{room} bytes"), format!("at least {smallest}")),
        };
        problems.push(
            Problem::error(format!("{place}.mtu"), "the underlay has no room for the network's packets")
                .found(found)
                .expected(expected)
                .help("raise the MTU of the underlay's network and `mtu` in node.underlay"),
        );
    } else if let Some(wanted) = network.mtu
        && wanted < smallest
    {
        problems.push(
            Problem::error(format!("{place}.mtu"), "`mtu` in [[network]]")
                .found(format!("the integer {wanted}"))
                .expected(format!("at least {smallest}, which IPv6 needs (RFC 8200 §5)")),
        );
    }
}

/// Addresses and MAC addresses are unique within a network, over the devices here and the guests elsewhere.
fn check_members(site: &Site, index: usize, network: &Network, problems: &mut Vec<Problem>) {
    let mut owners = Owners::of(network);
    let policies = Policies::of(network);
    for (number, endpoint) in network.endpoints.iter().enumerate() {
        let place = format!("network[{index}].endpoint[{number}]");
        check_host(site, &format!("{place}.host"), endpoint.host, problems);
        policies.check_membership(&place, &endpoint.security_groups, None, problems);
        let owner = format!("the endpoint on {}", endpoint.host);
        owners.admit(&place, &endpoint.addresses, endpoint.mac, &owner, problems);
    }
    // A second network of this name was reported, and no device is meant to be in both.
    if network.name.is_empty() || !site.network(&network.name).is_some_and(|first| std::ptr::eq(first, network)) {
        return;
    }
    for (number, device) in site.devices.iter().enumerate() {
        let Some(port) = device.port().filter(|port| port.network == network.name) else { continue };
        let place = format!("device[{number}].{}", device.kind.name());
        owners.admit(&place, &port.addresses, port.mac, &format!("device `{}`", device.name), problems);
    }
}

/// A tunnel end point is another host's, and reached.
pub(super) fn check_host(site: &Site, place: &str, host: IpAddr, problems: &mut Vec<Problem>) {
    let Some(underlay) = &site.node.underlay else {
        problems.push(
            Problem::error(place, "guests on other hosts cannot be reached without an underlay")
                .help("add `underlay = { interface = \"eth0\" }` to [node]"),
        );
        return;
    };
    let Underlay { addresses, .. } = underlay;
    if host.is_unspecified() || addresses.is_empty() {
        return;
    }
    if addresses.contains(&host) {
        problems.push(
            Problem::error(place, format!("{host} is this host's own tunnel end point"))
                .help("remove it: guests of this host are its [[device]]s"),
        );
    } else if !addresses.iter().any(|own| own.is_ipv4() == host.is_ipv4()) {
        let family = if host.is_ipv4() { "IPv4" } else { "IPv6" };
        problems.push(
            Problem::error(place, format!("this host has no {family} tunnel end point"))
                .found(host.to_string())
                .help(format!("add an {family} address to `address` in node.underlay")),
        );
    }
}

fn check_port<'a>(
    site: &'a Site,
    place: &str,
    device: &Device,
    port: &NetworkPort,
    policies: &mut HashMap<&'a str, Policies<'a>>,
    problems: &mut Vec<Problem>,
) {
    if let DeviceKind::VirtioNet(net) = &device.kind
        && !net.queue_size.is_power_of_two()
    {
        problems.push(
            Problem::error(format!("{place}.queue-size"), "`queue-size` in device.virtio-net")
                .found(format!("the integer {}", net.queue_size))
                .expected("a power of two")
                .help(format!("{} is the next", net.queue_size.next_power_of_two())),
        );
    }
    for (key, rate) in [("rate", &port.rate), ("receive-rate", &port.receive_rate)] {
        if let Some(rate) = rate {
            rate.check(&format!("{place}.{key}"), problems);
        }
    }
    if port.network.is_empty() {
        return;
    }
    let Some(network) = site.network(&port.network) else {
        let names = site.networks.iter().map(|network| network.name.as_str());
        problems.extend(dangling(format!("{place}.network"), "network", &port.network, names));
        return;
    };
    if let Some(tenant) = &network.tenant
        && *tenant != device.tenant
    {
        problems.push(
            Problem::error(
                format!("{place}.network"),
                format!("network `{}` is only for tenant `{tenant}`", network.name),
            )
            .found(format!("a device of tenant `{}`", device.tenant))
            .expected(format!("one of tenant `{tenant}`")),
        );
    }
    let policies = policies.entry(&network.name).or_insert_with(|| Policies::of(network));
    policies.check_membership(place, &port.security_groups, port.acl.as_deref(), problems);
    check_port_mtu(site, place, port, network, problems);
}

fn check_port_mtu(site: &Site, place: &str, port: &NetworkPort, network: &Network, problems: &mut Vec<Problem>) {
    let Some(wanted) = port.mtu else { return };
    let ipv6 = port.addresses.iter().any(IpAddr::is_ipv6);
    let expected = match site.network_mtu(network) {
        Some(most) if wanted > most => format!("at most {most}, the MTU of network `{}`", network.name),
        _ if ipv6 && wanted < MIN_MTU_IPV6 => {
            format!("at least {MIN_MTU_IPV6}, which IPv6 needs (RFC 8200 §5)")
        }
        _ => return,
    };
    problems.push(
        Problem::error(format!("{place}.mtu"), "the device's `mtu`")
            .found(format!("the integer {wanted}"))
            .expected(expected),
    );
}

/// An interface of the host carries the underlay or is one TAP.
fn check_interfaces(site: &Site, problems: &mut Vec<Problem>) {
    let mut users: HashMap<&str, String> = HashMap::new();
    if let Some(underlay) = &site.node.underlay {
        users.insert(&underlay.interface, "the underlay".to_owned());
    }
    for (index, device) in site.devices.iter().enumerate() {
        let DeviceKind::Tap(tap) = &device.kind else { continue };
        if tap.interface.is_empty() {
            continue;
        }
        match users.get(tap.interface.as_str()) {
            Some(other) => problems.push(
                Problem::error(
                    format!("device[{index}].tap.interface"),
                    format!("{other} already has the interface {}", tap.interface),
                )
                .help("give each `tap` an interface of its own"),
            ),
            None => drop(users.insert(&tap.interface, format!("device `{}`", device.name))),
        }
    }
}

impl Underlay {
    fn check(&self, problems: &mut Vec<Problem>) {
        for ipv4 in [true, false] {
            if let Some((index, second)) =
                self.addresses.iter().enumerate().filter(|(_, address)| address.is_ipv4() == ipv4).nth(1)
            {
                let family = if ipv4 { "IPv4" } else { "IPv6" };
                problems.push(
                    Problem::error(
                        format!("node.underlay.address[{index}]"),
                        format!("the underlay has a second {family} address"),
                    )
                    .found(second.to_string())
                    .expected("at most one of each family: other hosts send to one tunnel end point"),
                );
            }
        }
    }
}

fn check_subnets(place: &str, network: &Network, problems: &mut Vec<Problem>) {
    for (index, prefix) in network.cidr.iter().enumerate() {
        let place = format!("{place}.cidr[{index}]");
        let longest = longest_prefix(prefix);
        if let Some((reserved, why)) = reserved(prefix) {
            problems.push(
                Problem::error(place, format!("{prefix} overlaps {reserved}, which is {why}"))
                    .help("use private addresses, such as 10.0.0.0/16 or fd00:5d::/64"),
            );
        } else if prefix.prefix_len() > longest {
            problems.push(
                Problem::error(place, "the subnet has no room for a gateway and a guest")
                    .found(prefix.to_string())
                    .expected(format!("a prefix length of at most {longest}")),
            );
        } else if let Some(other) = network.cidr[..index].iter().find(|other| overlap(other, prefix)) {
            problems.push(
                Problem::error(place, format!("the subnets {other} and {prefix} overlap"))
                    .help("networks may have the same addresses, subnets of one network may not"),
            );
        }
    }
}

/// The reader puts a gateway for each subnet first, and what is too much after them.
fn check_gateways(place: &str, network: &Network, problems: &mut Vec<Problem>) {
    let place = format!("{place}.gateway");
    // A subnet without room was reported; its default gateway means nothing.
    for subnet in network.subnets().filter(|subnet| subnet.prefix.prefix_len() <= longest_prefix(&subnet.prefix)) {
        if let Some(what) = special(&subnet.prefix, subnet.gateway) {
            problems.push(Problem::error(place.clone(), format!("{} is {what} of {}", subnet.gateway, subnet.prefix)));
        }
    }
    for extra in network.gateway.iter().skip(network.cidr.len()).filter(|_| !network.cidr.is_empty()) {
        let message = match network.subnet_of(*extra) {
            Some(subnet) => {
                format!("{extra} would be a second gateway of {}, beside {}", subnet.prefix, subnet.gateway)
            }
            None => format!("the gateway {extra} is in no subnet of the network"),
        };
        problems.push(
            Problem::error(place.clone(), message).expected(format!("one address in each of {}", prefixes(network))),
        );
    }
}

fn prefixes(network: &Network) -> String {
    network.cidr.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn check_addresses(place: &str, network: &Network, addresses: &[IpAddr], problems: &mut Vec<Problem>) {
    // Without a valid subnet there is nothing to hold them against, and that was reported.
    for (index, address) in addresses.iter().enumerate().filter(|_| !network.cidr.is_empty()) {
        let problem = |message: String| Problem::error(format!("{place}.address[{index}]"), message);
        match network.subnet_of(*address) {
            None => problems.push(
                problem(format!("the address is outside network `{}`", network.name))
                    .found(address.to_string())
                    .expected(format!("an address in {}", prefixes(network))),
            ),
            Some(subnet) if subnet.gateway == *address => {
                problems.push(problem(format!("{address} is the gateway of {}", subnet.prefix)));
            }
            Some(subnet) => {
                if let Some(what) = special(&subnet.prefix, *address) {
                    problems.push(problem(format!("{address} is {what} of {}", subnet.prefix)));
                }
            }
        }
    }
}

impl RateLimit {
    fn check(&self, place: &str, problems: &mut Vec<Problem>) {
        if self.bandwidth == Some(BitsPerSecond(0)) {
            problems.push(
                Problem::error(format!("{place}.bandwidth"), "`bandwidth` in rate")
                    .found("zero")
                    .expected("at least 1 bit/s: a device that may send or receive nothing is of no use"),
            );
        }
        if let Some(burst) = self.bandwidth_burst
            && burst < SMALLEST_BYTE_BURST
        {
            problems.push(
                Problem::error(format!("{place}.bandwidth-burst"), "`bandwidth-burst` in rate")
                    .found(burst.to_string())
                    .expected(format!("at least {SMALLEST_BYTE_BURST}: the largest frame a guest may send or receive")),
            );
        }
    }
}

/// The owner of each address and MAC address within one network.
struct Owners<'a> {
    network: &'a Network,
    addresses: HashMap<IpAddr, String>,
    macs: HashMap<MacAddress, String>,
}

impl Owners<'_> {
    fn of(network: &Network) -> Owners<'_> {
        let macs = HashMap::from([(network.gateway_mac(), "the gateway".to_owned())]);
        Owners { network, addresses: HashMap::new(), macs }
    }

    /// Gives `owner` its addresses, unless no guest may have them or another has them.
    fn admit(&mut self, place: &str, addresses: &[IpAddr], mac: MacAddress, owner: &str, problems: &mut Vec<Problem>) {
        let before = problems.len();
        check_addresses(place, self.network, addresses, problems);
        for (index, address) in addresses.iter().enumerate() {
            match self.addresses.get(address) {
                Some(other) => problems.push(
                    Problem::error(format!("{place}.address[{index}]"), format!("{other} already has {address}"))
                        .help("an address is unique within its network"),
                ),
                None => drop(self.addresses.insert(*address, owner.to_owned())),
            }
        }
        // With a wrong address, what is derived from it is wrong too. What could not be read is all zeroes.
        let derived = addresses.first().map(|address| MacAddress::derived(&self.network.name, *address));
        if !mac.is_unicast() || (problems.len() > before && derived == Some(mac)) {
            return;
        }
        match self.macs.get(&mac) {
            Some(other) => problems.push(
                Problem::error(format!("{place}.mac"), format!("{other} already has the MAC address {mac}"))
                    .help("a MAC address is unique within its network"),
            ),
            None => drop(self.macs.insert(mac, owner.to_owned())),
        }
    }
}

/// What an address of a subnet is beside a host's, if anything.
fn special(prefix: &IpNet, address: IpAddr) -> Option<&'static str> {
    match prefix {
        IpNet::V4(_) if address == prefix.network() => Some("the network's own address"),
        IpNet::V4(_) if address == prefix.broadcast() => Some("the broadcast address"),
        IpNet::V6(_) if address == prefix.network() => Some("the subnet-router anycast address"),
        _ => None,
    }
}

fn longest_prefix(prefix: &IpNet) -> u8 {
    prefix.max_prefix_len() - HOST_BITS
}

pub(super) fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

fn reserved(prefix: &IpNet) -> Option<(IpNet, &'static str)> {
    RESERVED
        .iter()
        .filter_map(|(reserved, why)| reserved.parse::<IpNet>().ok().map(|reserved| (reserved, *why)))
        .find(|(reserved, _)| overlap(reserved, prefix))
}
