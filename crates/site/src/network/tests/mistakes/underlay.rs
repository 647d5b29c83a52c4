//! The underlay, and guests on other hosts.

use super::{Mistake, Toml, endpoint, nic, subnet, table, underlay};

/// Network `n` on a host with an underlay.
fn tunnelled() -> Toml {
    underlay(r#"interface = "eth0""#).then(subnet(r#""10.0.0.0/16""#))
}

pub(super) fn mistakes() -> Vec<Mistake> {
    vec![
        // The underlay
        (underlay(""), r#"11:12: `interface` is missing in node.underlay (add `interface = "eth0"`)"#),
        (
            underlay(r#"interface = "an-interface-name""#),
            r#"11:26: `interface` in node.underlay: found the string "an-interface-name", expected the name of a network interface, 1 to 15 characters such as "eth0""#,
        ),
        (
            underlay(r#"interface = "eth0", address = "192.0.2.1/24""#),
            r#"11:44: `address` in node.underlay: found the string "192.0.2.1/24", expected an IPv4 or IPv6 address such as "10.0.0.2" (leave the prefix length out: "192.0.2.1")"#,
        ),
        (
            underlay(r#"interface = "eth0", address = "224.0.0.1""#),
            r#"11:44: `address` in node.underlay: found the string "224.0.0.1", expected an IPv4 or IPv6 address such as "10.0.0.2" (no single station can have this address)"#,
        ),
        (
            underlay(r#"interface = "eth0", address = ["192.0.2.1", "2001:db8::1", "192.0.2.2"]"#),
            r#"11:73: the underlay has a second IPv4 address: found 192.0.2.2, expected at most one of each family: other hosts send to one tunnel end point"#,
        ),
        (
            underlay(r#"interface = "eth0", port = 0"#),
            r#"11:41: `port` in node.underlay: found the integer 0, expected a whole number from 1 to 65535"#,
        ),
        (
            underlay(r#"interface = "eth0", backend = "xdp""#),
            r#"11:44: `backend` in node.underlay: found the string "xdp", expected `auto`, `af-xdp` or `af-packet`"#,
        ),
        (
            underlay(r#"interface = "eth0", mtu = 625"#),
            r#"11:40: `mtu` in node.underlay: found the integer 625, expected a whole number from 626 to 65535"#,
        ),
        (
            underlay(r#"interface = "eth0", mtu = 1500"#).then(subnet(r#""10.0.0.0/8""#).with("mtu = 1451")),
            r#"16:7: the underlay has no room for the network's packets: found 1451 bytes, expected at most 1450: the underlay's 1500 less 50 for VXLAN (raise the MTU of the underlay's network and `mtu` in node.underlay)"#,
        ),
        (
            underlay(r#"interface = "eth0", mtu = 1300, address = "2001:db8::1""#).then(subnet(r#""fd00::/64""#)),
            r#"12:1: the underlay has no room for the network's packets: found 1230 bytes, expected at least 1280 (raise the MTU of the underlay's network and `mtu` in node.underlay)"#,
        ),
        // Guests on other hosts
        (
            subnet(r#""10.0.0.0/16""#).then(endpoint("10.0.0.9", "02:00:00:00:00:09", "192.0.2.2")),
            r#"17:8: guests on other hosts cannot be reached without an underlay (add `underlay = { interface = "eth0" }` to [node])"#,
        ),
        (
            tunnelled().then(table("[[network.endpoint]]", &[])),
            r#"16:1: `address` is missing in [[network.endpoint]] (add `address = "10.0.0.9"`)
16:1: `mac` is missing in [[network.endpoint]] (add `mac = "02:5d:00:00:00:09"`)
16:1: `host` is missing in [[network.endpoint]] (add `host = "192.0.2.2"`)"#,
        ),
        (
            tunnelled().then(endpoint("10.0.0.9", "01:00:00:00:00:09", "192.0.2.2")),
            r#"18:7: `mac` in [[network.endpoint]]: found the string "01:00:00:00:00:09", expected a MAC address such as "02:5d:00:00:00:02" (a group's address, or all zeroes, is nobody's)"#,
        ),
        (
            tunnelled().then(endpoint("10.0.0.9", "02-00-00:00:00:09", "192.0.2.2")),
            r#"18:7: `mac` in [[network.endpoint]]: found the string "02-00-00:00:00:09", expected a MAC address such as "02:5d:00:00:00:02" (six pairs of hexadecimal digits with colons between them, such as 02:5d:00:00:00:02)"#,
        ),
        (
            tunnelled().then(endpoint("10.0.0.9", "02:00:00:00:00:09", "0.0.0.0")),
            r#"19:8: `host` in [[network.endpoint]]: found the string "0.0.0.0", expected an IPv4 or IPv6 address such as "10.0.0.2" (no single station can have this address)"#,
        ),
        (
            underlay(r#"interface = "eth0", address = "192.0.2.2""#).then(subnet(r#""10.0.0.0/16""#)).then(endpoint(
                "10.0.0.9",
                "02:00:00:00:00:09",
                "192.0.2.2",
            )),
            r#"19:8: 192.0.2.2 is this host's own tunnel end point (remove it: guests of this host are its [[device]]s)"#,
        ),
        (
            underlay(r#"interface = "eth0", address = "2001:db8::1""#).then(subnet(r#""10.0.0.0/16""#)).then(endpoint(
                "10.0.0.9",
                "02:00:00:00:00:09",
                "192.0.2.2",
            )),
            r#"19:8: this host has no IPv4 tunnel end point: found 192.0.2.2 (add an IPv4 address to `address` in node.underlay)"#,
        ),
        (
            tunnelled().then(endpoint("10.1.0.9", "02:00:00:00:00:09", "192.0.2.2")),
            r#"17:11: the address is outside network `n`: found 10.1.0.9, expected an address in 10.0.0.0/16"#,
        ),
        (
            tunnelled().then(endpoint("10.0.0.9", "02:00:00:00:00:09", "192.0.2.2")).then(endpoint(
                "10.0.0.9",
                "02:00:00:00:00:0a",
                "192.0.2.2",
            )),
            r#"21:11: the endpoint on 192.0.2.2 already has 10.0.0.9 (an address is unique within its network)"#,
        ),
        (
            tunnelled().then(endpoint("10.0.0.9", "02:00:00:00:00:09", "192.0.2.2")).then(endpoint(
                "10.0.0.10",
                "02:00:00:00:00:09",
                "192.0.2.2",
            )),
            r#"22:7: the endpoint on 192.0.2.2 already has the MAC address 02:00:00:00:00:09 (a MAC address is unique within its network)"#,
        ),
        (
            tunnelled()
                .then(endpoint("10.0.0.9", "02:00:00:00:00:09", "192.0.2.2"))
                .then(nic(r#"network = "n", address = ["10.0.0.8", "10.0.0.9"]"#)),
            r#"22:54: the endpoint on 192.0.2.2 already has 10.0.0.9 (an address is unique within its network)"#,
        ),
    ]
}
