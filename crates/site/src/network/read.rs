//! From tables to the typed networks, and to the devices that attach to them.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use softdpu_vpc::spec::MIN_MTU_IPV4;

use super::*;
use crate::diagnostic::Problem;
use crate::function::attached;
use crate::read::{name, socket_access};
use crate::reader::Reader;
use crate::tenant::burst_needs_rate;

/// The largest MTU: jumbo frames, as switches commonly have them.
const LARGEST_MTU: u16 = 9216;
/// The largest number of queue pairs. virtio allows 32,768 (virtio 1.3 §5.1.5.5); a guest uses one per CPU at the most.
const MOST_QUEUE_PAIRS: u16 = 64;
/// The smallest queue size: QEMU, the front end in use nearly everywhere, takes no smaller
/// (VIRTIO_NET_RX_QUEUE_MIN_SIZE).
const SMALLEST_QUEUE: u16 = 256;
/// The queue size where the site file says nothing: the most that QEMU takes, and what QEMU 10 gives a vhost-user
/// interface's transmit queue unless it is told otherwise. A frame of 64 KiB takes up to 44 buffers of a receive queue,
/// so 256 are few.
const DEFAULT_QUEUE: u16 = 1024;
/// The largest queue size (virtio 1.3 §2.6).
const LARGEST_QUEUE: u16 = 32_768;
/// Bytes of an interface's name without its closing zero (IFNAMSIZ is 16).
const LONGEST_INTERFACE: usize = 15;
/// The largest number of packets a second: far beyond any interface, small enough that no product of it overflows.
const MOST_PACKETS: u32 = 1_000_000_000;
/// Bursts that are not written are what comes in a hundredth of a second …
const BURSTS_PER_SECOND: u64 = 100;
/// … but no fewer packets than a batch,
const SMALLEST_PACKET_BURST: u64 = 64;
/// and no fewer bytes than two frames that still have to be cut into segments.
const DEFAULT_BYTE_BURST: u64 = 128 << 10;
/// The most entries of tables: together they have numbers of 23 bits.
const MOST_ENDPOINTS: u32 = 8_000_000;
const MOST_ROUTES: u32 = 4_000_000;
const MOST_HOSTS: u32 = 65_536;
/// Fewer flows than this would be of no use; more have no numbers.
const FEWEST_FLOWS: u32 = 64;
const MOST_FLOWS: u32 = 1 << 24;
/// Some 8 GiB, which are reserved when the first interface is in a group and taken as connections come.
const MOST_CONNECTIONS: u32 = 1 << 25;
/// What stands in for a VNI that was reported as missing or wrong: one that no network can have.
pub(super) const STAND_IN_VNI: Vni = Vni::NONE;

pub(super) const WHAT_ADDRESS: &str = "an IPv4 or IPv6 address such as \"10.0.0.2\"";
pub(super) const WHAT_PREFIX: &str = "a prefix such as \"10.0.0.0/16\"";
const WHAT_MAC: &str = "a MAC address such as \"02:5d:00:00:00:02\"";
const WHAT_BITS: &str = "a rate with a unit such as \"1 Gbit/s\"";
const WHAT_BYTES: &str = "a size with a unit such as \"256 KiB\"";
const WHAT_INTERFACE: &str = "the name of a network interface, 1 to 15 characters such as \"eth0\"";

const WHAT_BFD_INTERVAL: &str = "a time with a unit such as \"100 ms\"";
/// Shorter ones than a thread's wake-ups are sure of would take hosts down that forward.
const BFD_INTERVALS: std::ops::RangeInclusive<Span> = Span::from_micros(10_000)..=Span::from_micros(60_000_000);

/// `node.underlay`
pub(crate) fn underlay(reader: &Reader<'_>) -> Underlay {
    Underlay {
        interface: interface(reader, "interface = \"eth0\""),
        addresses: addresses(reader, "address").unwrap_or_default(),
        port: reader.integer("port", 1..=u16::MAX).unwrap_or(VXLAN_PORT),
        backend: reader
            .choice(
                "backend",
                &[
                    ("auto", UnderlayBackend::Auto),
                    ("af-xdp", UnderlayBackend::AfXdp),
                    ("af-packet", UnderlayBackend::AfPacket),
                ],
                &[],
            )
            .unwrap_or_default(),
        mtu: reader.integer("mtu", MIN_MTU_IPV4 + OVERHEAD_IPV4..=u16::MAX),
        bfd: reader.table("bfd", "node.underlay.bfd", bfd).unwrap_or_default(),
    }
}

/// `node.underlay.bfd`
fn bfd(reader: &Reader<'_>) -> Bfd {
    let default = Bfd::default();
    let interval = reader.converted("interval", WHAT_BFD_INTERVAL, |text| {
        let span: Span = text.parse().map_err(|error: crate::units::UnitError| error.to_string())?;
        if BFD_INTERVALS.contains(&span) { Ok(span) } else { Err("10 ms to 60 s are possible".to_owned()) }
    });
    let interval = interval.unwrap_or(default.interval);
    Bfd { interval, multiplier: reader.integer("multiplier", 1..=u8::MAX).unwrap_or(default.multiplier) }
}

/// `node.tables`
pub(crate) fn tables(reader: &Reader<'_>) -> TableSizes {
    let default = TableSizes::default();

    TableSizes {
        endpoints: reader.integer("endpoints", 1..=MOST_ENDPOINTS).unwrap_or(default.endpoints),
        routes: reader.integer("routes", 1..=MOST_ROUTES).unwrap_or(default.routes),
        hosts: reader.integer("hosts", 1..=MOST_HOSTS).unwrap_or(default.hosts),
        flows: reader.integer("flows", FEWEST_FLOWS..=MOST_FLOWS).unwrap_or(default.flows),
        connections: reader.integer("connections", 1..=MOST_CONNECTIONS).unwrap_or(default.connections),
    }
}

/// `[[network]]`
pub(crate) fn network(reader: &Reader<'_>) -> Network {
    let name = name(reader, "acme-vpc");
    if reader.value("vni").is_none() {
        reader.missing("vni", "vni = 5001");
    }
    if reader.value("cidr").is_none() {
        reader.missing("cidr", "cidr = \"10.0.0.0/16\"");
    }
    let vni = reader.integer("vni", Vni::MIN..=Vni::MAX).and_then(Vni::new);
    let cidr = reader.one_or_more("cidr", WHAT_PREFIX, prefix).unwrap_or_default();
    let written = addresses(reader, "gateway").unwrap_or_default();

    Network {
        name,
        tenant: reader.name("tenant"),
        vni: vni.unwrap_or(STAND_IN_VNI),
        gateway: gateways(&cidr, written),
        cidr,
        mtu: reader.integer("mtu", MIN_MTU_IPV4..=LARGEST_MTU),
        transit: reader.boolean("transit").unwrap_or(false),
        dns: addresses(reader, "dns").unwrap_or_default(),
        endpoints: reader.tables("endpoint", "[[network.endpoint]]", endpoint),
        peers: routing::peers(reader),
        routes: routing::routes(reader, "route"),
        ecmp: routing::groups(reader),
        route_tables: routing::tables(reader),
        nats: nat::nats(reader),
        security_groups: policy::security_groups(reader),
        acls: policy::acls(reader),
    }
}

pub(super) fn prefix(text: &str) -> Result<IpNet, String> {
    let prefix: IpNet = text.parse().map_err(|_| match text.parse::<IpAddr>() {
        Ok(address) => format!("add the prefix length: \"{address}/{}\"", if address.is_ipv4() { 24 } else { 64 }),
        Err(_) => String::new(),
    })?;
    let network = prefix.trunc();
    if network == prefix { Ok(prefix) } else { Err(format!("write \"{network}\": an address inside is not its name")) }
}

/// One gateway per subnet, in the order of `subnets`: the one that was written, or the subnet's first host. What lies
/// in no subnet, or is a subnet's second, comes last and is found by the rules.
fn gateways(subnets: &[IpNet], mut written: Vec<IpAddr>) -> Vec<IpAddr> {
    let mut gateways: Vec<IpAddr> = subnets
        .iter()
        .map(|subnet| match written.iter().position(|address| subnet.contains(address)) {
            Some(index) => written.remove(index),
            None => first_host(subnet),
        })
        .collect();
    gateways.append(&mut written);
    gateways
}

/// The address after the network's own, which in IPv6 is the subnet-router anycast address (RFC 4291 §2.6.1).
fn first_host(subnet: &IpNet) -> IpAddr {
    match subnet.network() {
        IpAddr::V4(network) => IpAddr::V4((u32::from(network) | 1).into()),
        IpAddr::V6(network) => IpAddr::V6((u128::from(network) | 1).into()),
    }
}

pub(crate) fn endpoint(reader: &Reader<'_>) -> Endpoint {
    for (key, example) in [
        ("address", "address = \"10.0.0.9\""),
        ("mac", "mac = \"02:5d:00:00:00:09\""),
        ("host", "host = \"192.0.2.2\""),
    ] {
        if reader.value(key).is_none() {
            reader.missing(key, example);
        }
    }

    Endpoint {
        addresses: addresses(reader, "address").unwrap_or_default(),
        mac: mac(reader).unwrap_or_default(),
        host: reader.converted("host", WHAT_ADDRESS, unicast).unwrap_or(IpAddr::V4(0.into())),
        security_groups: policy::memberships(reader),
    }
}

/// `device.virtio-net`
pub(crate) fn virtio_net(reader: &Reader<'_>, device: &str, run_directory: &Path) -> VirtioNet {
    VirtioNet {
        port: port(reader),
        queue_size: reader.integer("queue-size", SMALLEST_QUEUE..=LARGEST_QUEUE).unwrap_or(DEFAULT_QUEUE),
        packed: reader.boolean("packed").unwrap_or(true),
        access: socket_access(reader, &run_directory.join(format!("{device}.sock"))),
    }
}

/// `device.tap`
pub(crate) fn tap(reader: &Reader<'_>) -> Tap {
    Tap { port: port(reader), interface: interface(reader, "interface = \"acme0\"") }
}

fn port(reader: &Reader<'_>) -> NetworkPort {
    for (key, example) in [("network", "network = \"acme-vpc\""), ("address", "address = \"10.0.0.2\"")] {
        if reader.value(key).is_none() {
            reader.missing(key, example);
        }
    }
    let network = reader.name("network").unwrap_or_default();
    let addresses = addresses(reader, "address").unwrap_or_default();
    let derived = || addresses.first().map(|address| MacAddress::derived(&network, *address));
    let mac = if reader.value("mac").is_some() { mac(reader) } else { derived() };
    NetworkPort {
        mac: mac.unwrap_or_default(),
        network,
        addresses,
        queues: reader.integer("queues", 1..=MOST_QUEUE_PAIRS).unwrap_or(1),
        mtu: reader.integer("mtu", MIN_MTU_IPV4..=LARGEST_MTU),
        spoof_check: reader.boolean("spoof-check").unwrap_or(true),
        rate: reader.table("rate", "rate", |reader| rate(reader, "rate")),
        receive_rate: reader.table("receive-rate", "rate", |reader| rate(reader, "receive-rate")),
        meter: reader.table("meter", "meter", meter::meter).flatten(),
        security_groups: policy::memberships(reader),
        acl: reader.name("acl"),
        functions: attached(reader),
    }
}

/// What is in a table under `key`.
fn rate(reader: &Reader<'_>, key: &str) -> RateLimit {
    let packets = reader.integer("packets", 1..=MOST_PACKETS).map(u64::from);
    let packets_burst = reader.integer("packets-burst", 1..=MOST_PACKETS).map(u64::from);
    let bandwidth: Option<BitsPerSecond> = reader.parsed("bandwidth", WHAT_BITS);
    let bandwidth_burst: Option<Bytes> = reader.parsed("bandwidth-burst", WHAT_BYTES);
    if reader.value("packets").is_none() && reader.value("bandwidth").is_none() {
        reader.report(
            Problem::error(&*reader.path, format!("`{key}` limits nothing"))
                .expected("`packets`, `bandwidth` or both")
                .help(format!("such as {key} = {{ bandwidth = \"1 Gbit/s\" }}; without `{key}` nothing is limited")),
        );
    }
    burst_needs_rate(reader, "packets-burst", "packets", "packets = 100_000");
    burst_needs_rate(reader, "bandwidth-burst", "bandwidth", "bandwidth = \"1 Gbit/s\"");
    RateLimit {
        packets,
        packets_burst: packets_burst
            .or_else(|| packets.map(|rate| (rate / BURSTS_PER_SECOND).max(SMALLEST_PACKET_BURST))),
        bandwidth,
        bandwidth_burst: bandwidth_burst
            .or_else(|| bandwidth.map(|rate| Bytes((rate.0 / 8 / BURSTS_PER_SECOND).max(DEFAULT_BYTE_BURST)))),
    }
}

fn addresses(reader: &Reader<'_>, key: &'static str) -> Option<Vec<IpAddr>> {
    reader.one_or_more(key, WHAT_ADDRESS, unicast)
}

/// An address that one station can have.
pub(super) fn unicast(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| match text.parse::<IpNet>() {
        Ok(prefix) => format!("leave the prefix length out: \"{}\"", prefix.addr()),
        Err(_) => String::new(),
    })?;
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    if address.is_unspecified() || address.is_multicast() || broadcast {
        return Err("no single station can have this address".to_owned());
    }
    Ok(address)
}

fn mac(reader: &Reader<'_>) -> Option<MacAddress> {
    reader.converted("mac", WHAT_MAC, |text| {
        let mac: MacAddress = text.parse().map_err(|error: MacError| error.to_string())?;
        if mac.is_unicast() { Ok(mac) } else { Err("a group's address, or all zeroes, is nobody's".to_owned()) }
    })
}

/// The name of an interface, as the kernel takes it (`dev_valid_name`), without `%`, which it would replace by a
/// number.
fn interface(reader: &Reader<'_>, example: &str) -> String {
    if reader.value("interface").is_none() {
        reader.missing("interface", example);
    }
    let name = reader.converted("interface", WHAT_INTERFACE, |text| {
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:%".contains(&byte));
        if (1..=LONGEST_INTERFACE).contains(&text.len()) && plain && !matches!(text, "." | "..") {
            Ok(text.to_owned())
        } else {
            Err(String::new())
        }
    });
    name.unwrap_or_default()
}
