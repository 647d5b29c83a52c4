//! The commands that configure a TAP interface: nothing attaches to it, it is there while softdpu runs.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::shell_word;
use softdpu_site::{Network, Tap};

/// What a shell of the host runs, with what to do for a container as comments.
pub(super) fn commands(tap: &Tap, network: Option<&Network>, mtu: Option<u16>) -> String {
    let interface = shell_word(&tap.interface);
    let mtu = mtu.map_or_else(String::new, |mtu| format!(" mtu {mtu}"));
    let mut text = format!(
        "# {interface} is an interface of this host: it needs no arguments, softdpu makes it. Configure it with:
ip link set dev {interface} address {}{mtu} up
",
        tap.port.mac
    );
    for address in &tap.port.addresses {
        let subnet = network.and_then(|network| network.subnet_of(*address));
        let own = if address.is_ipv4() { 32 } else { 128 };
        let length = subnet.map_or(own, |subnet| subnet.prefix.prefix_len());
        // softdpu has made sure already that no other device has the address.
        let nodad = if address.is_ipv6() { " nodad" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "ip address add {address}/{length} dev {interface}{nodad}");
    }
    for subnet in network.into_iter().flat_map(Network::subnets) {
        if !tap.port.addresses.iter().any(|address| subnet.prefix.contains(address))
            && let Some(gateway) = own_gateway(tap, network, subnet.prefix.addr())
        {
            let _ = writeln!(text, "ip route add {} via {gateway} dev {interface}", subnet.prefix);
        }
    }
    let _ = writeln!(
        text,
        "# For a container, move it into its network namespace first, and use `ip -n NAMESPACE` above:
# ip link set dev {interface} netns NAMESPACE"
    );
    text
}

/// The gateway, of a subnet that the TAP is in, through which it reaches `other`.
fn own_gateway(tap: &Tap, network: Option<&Network>, other: IpAddr) -> Option<IpAddr> {
    let mut own = tap.port.addresses.iter().filter(|address| address.is_ipv4() == other.is_ipv4());
    own.find_map(|address| network?.subnet_of(*address)).map(|subnet| subnet.gateway)
}
