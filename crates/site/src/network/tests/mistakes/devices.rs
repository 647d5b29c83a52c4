//! Network devices, their rates, and TAP interfaces.

use super::{Mistake, nic, subnet, table, tap, underlay};

pub(super) fn mistakes() -> Vec<Mistake> {
    vec![
        // Network devices
        (
            nic(""),
            r#"12:14: `network` is missing in device.virtio-net (add `network = "acme-vpc"`)
12:14: `address` is missing in device.virtio-net (add `address = "10.0.0.2"`)"#,
        ),
        (nic(r#"network = "vcp", address = "10.0.0.3""#), r#"12:26: there is no network `vcp` (did you mean `vpc`?)"#),
        (
            nic(r#"network = "vpc", addresses = "10.0.0.3", address = "10.0.0.3""#),
            r#"12:33: unknown key in device.virtio-net: found `addresses`, expected `network`, `address`, `mac`, `queues`, `mtu`, `spoof-check`, `rate`, `receive-rate`, `meter`, `security-groups`, `acl`, `functions`, `queue-size`, `packed`, `socket`, `socket-owner`, `socket-group` or `socket-mode` (did you mean `address`?)"#,
        ),
        (
            nic(r#"network = "vpc", address = []"#),
            r#"12:43: `address` in device.virtio-net: found an empty array, expected an IPv4 or IPv6 address such as "10.0.0.2", or a list of them"#,
        ),
        (
            nic(r#"network = "vpc", address = 10"#),
            r#"12:43: `address` in device.virtio-net: found the integer 10, expected an IPv4 or IPv6 address such as "10.0.0.2", or a list of them"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.300""#),
            r#"12:43: `address` in device.virtio-net: found the string "10.0.0.300", expected an IPv4 or IPv6 address such as "10.0.0.2""#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3/16""#),
            r#"12:43: `address` in device.virtio-net: found the string "10.0.0.3/16", expected an IPv4 or IPv6 address such as "10.0.0.2" (leave the prefix length out: "10.0.0.3")"#,
        ),
        (
            nic(r#"network = "vpc", address = ["10.0.0.3", "10.0.0.3"]"#),
            r#"12:56: 10.0.0.3 is listed twice in `address`"#,
        ),
        (
            nic(r#"network = "vpc", address = "192.168.0.3""#),
            r#"12:43: the address is outside network `vpc`: found 192.168.0.3, expected an address in 10.0.0.0/16"#,
        ),
        (nic(r#"network = "vpc", address = "10.0.0.1""#), r#"12:43: 10.0.0.1 is the gateway of 10.0.0.0/16"#),
        (
            nic(r#"network = "vpc", address = "10.0.0.0""#),
            r#"12:43: 10.0.0.0 is the network's own address of 10.0.0.0/16"#,
        ),
        (
            nic(r#"network = "vpc", address = ["10.0.0.3", "10.0.255.255"]"#),
            r#"12:56: 10.0.255.255 is the broadcast address of 10.0.0.0/16"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.2""#),
            r#"12:43: device `nic` already has 10.0.0.2 (an address is unique within its network)"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", mac = "03:00:00:00:00:01""#),
            r#"12:61: `mac` in device.virtio-net: found the string "03:00:00:00:00:01", expected a MAC address such as "02:5d:00:00:00:02" (a group's address, or all zeroes, is nobody's)"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", mac = "00:00:00:00:00:00""#),
            r#"12:61: `mac` in device.virtio-net: found the string "00:00:00:00:00:00", expected a MAC address such as "02:5d:00:00:00:02" (a group's address, or all zeroes, is nobody's)"#,
        ),
        (
            tap(r#"network = "vpc", address = "10.0.0.3", mac = "02:5d:91:50:e3:89", interface = "t0""#),
            r#"12:54: the gateway already has the MAC address 02:5d:91:50:e3:89 (a MAC address is unique within its network)"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", queues = 65"#),
            r#"12:64: `queues` in device.virtio-net: found the integer 65, expected a whole number from 1 to 64"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", queue-size = 300"#),
            r#"12:68: `queue-size` in device.virtio-net: found the integer 300, expected a power of two (512 is the next)"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", queue-size = 128"#),
            r#"12:68: `queue-size` in device.virtio-net: found the integer 128, expected a whole number from 256 to 32768"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", mtu = 1501"#),
            r#"12:61: the device's `mtu`: found the integer 1501, expected at most 1500, the MTU of network `vpc`"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", spoof-check = "off""#),
            r#"12:69: `spoof-check` in device.virtio-net: found the string "off", expected true or false"#,
        ),
        (
            subnet(r#""fd00::/64""#).then(nic(r#"network = "n", address = "fd00::2", mtu = 1000"#)),
            r#"16:58: the device's `mtu`: found the integer 1000, expected at least 1280, which IPv6 needs (RFC 8200 §5)"#,
        ),
        (
            table("[[tenant]]", &[r#"name = "a""#])
                .then(table("[[network]]", &[r#"name = "n""#, r#"tenant = "a""#, "vni = 7", r#"cidr = "10.0.0.0/8""#]))
                .then(nic(r#"network = "n", address = "10.0.0.3""#)),
            r#"19:26: network `n` is only for tenant `a`: found a device of tenant `default`, expected one of tenant `a`"#,
        ),
        (
            table(
                "[[device]]",
                &[
                    r#"name = "d""#,
                    r#"virtio-blk = { volume = "v" }"#,
                    r#"virtio-net = { network = "vpc", address = "10.0.0.3" }"#,
                ],
            )
            .then(table("[[volume]]", &[r#"name = "v""#, r#"null = { size = "1 GiB" }"#])),
            r#"13:14: [[device]] has both `virtio-blk` and `virtio-net` (keep one of them)"#,
        ),
        // Rates
        (
            nic(r#"network = "vpc", address = "10.0.0.3", rate = {}"#),
            r#"12:62: `rate` limits nothing: expected `packets`, `bandwidth` or both (such as rate = { bandwidth = "1 Gbit/s" }; without `rate` nothing is limited)"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", rate = { packets = 0 }"#),
            r#"12:74: `packets` in rate: found the integer 0, expected a whole number from 1 to 1000000000"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", rate = { burst = 1, packets = 1 }"#),
            r#"12:64: unknown key in rate: found `burst`, expected `packets`, `packets-burst`, `bandwidth` or `bandwidth-burst` (did you mean `packets-burst`?)"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", rate = { bandwidth = "1 GiB/s" }"#),
            r#"12:76: `bandwidth` in rate: found the string "1 GiB/s", expected a rate with a unit such as "1 Gbit/s" (unknown unit `GiB/s`: expected one of bit/s, kbit/s, Kbit/s, Mbit/s, Gbit/s, Tbit/s)"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", rate = { bandwidth = "0 bit/s" }"#),
            r#"12:76: `bandwidth` in rate: found zero, expected at least 1 bit/s: a device that may send or receive nothing is of no use"#,
        ),
        (
            nic(
                r#"network = "vpc", address = "10.0.0.3", rate = { bandwidth = "1 Gbit/s", bandwidth-burst = "1 KiB" }"#,
            ),
            r#"12:106: `bandwidth-burst` in rate: found 1 KiB, expected at least 64 KiB: the largest frame a guest may send or receive"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", rate = { bandwidth = "1 Gbit/s", packets-burst = 9 }"#),
            r#"12:104: `packets-burst` does nothing without `packets` (add `packets`, such as packets = 100_000)"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", rate = { packets = 9, bandwidth-burst = "1 MiB" }"#),
            r#"12:95: `bandwidth-burst` does nothing without `bandwidth` (add `bandwidth`, such as bandwidth = "1 Gbit/s")"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", receive-rate = {}"#),
            r#"12:70: `receive-rate` limits nothing: expected `packets`, `bandwidth` or both (such as receive-rate = { bandwidth = "1 Gbit/s" }; without `receive-rate` nothing is limited)"#,
        ),
        (
            nic(r#"network = "vpc", address = "10.0.0.3", receive-rate = { bandwidth = "0 bit/s" }"#),
            r#"12:84: `bandwidth` in rate: found zero, expected at least 1 bit/s: a device that may send or receive nothing is of no use"#,
        ),
        // TAP interfaces
        (
            tap(r#"network = "vpc", address = "10.0.0.3""#),
            r#"12:7: `interface` is missing in device.tap (add `interface = "acme0"`)"#,
        ),
        (
            tap(r#"network = "vpc", address = "10.0.0.3", interface = "tap%d""#),
            r#"12:60: `interface` in device.tap: found the string "tap%d", expected the name of a network interface, 1 to 15 characters such as "eth0""#,
        ),
        (
            tap(r#"network = "vpc", address = "10.0.0.3", interface = "t0", socket = "x""#),
            r#"12:66: unknown key in device.tap: found `socket`, expected `network`, `address`, `mac`, `queues`, `mtu`, `spoof-check`, `rate`, `receive-rate`, `meter`, `security-groups`, `acl`, `functions` or `interface`"#,
        ),
        (
            table(
                "[[device]]",
                &[
                    r#"name = "d""#,
                    r#"domain = "vm""#,
                    r#"tap = { network = "vpc", address = "10.0.0.3", interface = "t0" }"#,
                ],
            ),
            r#"12:10: a `tap` has no `domain`: it is an interface of the host, not of a guest (remove `domain`)"#,
        ),
        (
            underlay(r#"interface = "eth0""#).then(tap(r#"network = "vpc", address = "10.0.0.3", interface = "eth0""#)),
            r#"14:60: the underlay already has the interface eth0 (give each `tap` an interface of its own)"#,
        ),
        (
            tap(r#"network = "vpc", address = "10.0.0.3", interface = "t0""#).then(table(
                "[[device]]",
                &[r#"name = "e""#, r#"tap = { network = "vpc", address = "10.0.0.4", interface = "t0" }"#],
            )),
            r#"15:60: device `d` already has the interface t0 (give each `tap` an interface of its own)"#,
        ),
    ]
}
