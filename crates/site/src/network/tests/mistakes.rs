//! Every mistake that can be made with networks, with the one message it has to give.

use super::{SMALL, check};

/// What is appended to [`SMALL`], and `line:column: message (help)`. The addition begins in line 10.
const BROKEN: &[(&str, &str)] = &[
    // Security groups and access control lists
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.security-group]]
name = "web"
rule = [{ direction = "ingress", group = "wbe" }]"#,
        r#"16:42: there is no network.security-group `wbe` (did you mean `web`?)"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.security-group]]
name = "web"
rule = [{ direction = "ingress", ports = 80 }]"#,
        r#"16:42: `ports` means nothing without `protocol = "tcp"` or "udp""#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.security-group]]
name = "web"
rule = [{ direction = "ingres" }]"#,
        r#"16:23: `direction` in [[network.security-group.rule]]: found the string "ingres", expected `ingress` or `egress` (did you mean `ingress`?)"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.security-group]]
name = "web"
rule = [{ direction = "egress", protocol = "icmp", cidr = "fd00::/8" }]"#,
        r#"16:59: no packet can match: fd00::/8 is not of the address family of the rule's protocol (icmp is for IPv4, icmpv6 for IPv6)"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.security-group]]
name = "web"
[[network.security-group]]
name = "web""#,
        r#"17:8: the network has a second security group `web` (give each a name of its own)"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.acl]]
name = "edge"
rule = [{ priority = 1 }]"#,
        r#"16:9: `action` is missing in [[network.acl.rule]] (add `action = "allow"`)"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.acl]]
name = "edge"
[[device]]
name = "d"
tap = { network = "n", address = "10.0.0.2", interface = "t0", acl = "egde" }"#,
        r#"18:70: there is no network.acl `egde` (did you mean `edge`?)"#,
    ),
    // Networks: keys, types and ranges
    (
        r#"[[network]]
name = "n""#,
        r#"10:1: `vni` is missing in [[network]] (add `vni = 5001`)
10:1: `cidr` is missing in [[network]] (add `cidr = "10.0.0.0/16"`)"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 0
cidr = "10.0.0.0/8""#,
        r#"12:7: `vni` in [[network]]: found the integer 0, expected a whole number from 1 to 16777215"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 16_777_216
cidr = "10.0.0.0/8""#,
        r#"12:7: `vni` in [[network]]: found the integer 16777216, expected a whole number from 1 to 16777215"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cdir = "10.0.0.0/8"
cidr = "10.0.0.0/8""#,
        r#"13:1: unknown key in [[network]]: found `cdir`, expected `name`, `vni`, `cidr`, `gateway`, `tenant`, `mtu`, `transit`, `dns`, `endpoint`, `peer`, `route`, `ecmp`, `route-table`, `security-group` or `acl` (did you mean `cidr`?)"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = []"#,
        r#"13:8: `cidr` in [[network]]: found an empty array, expected a prefix such as "10.0.0.0/16", or a list of them"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0""#,
        r#"13:8: `cidr` in [[network]]: found the string "10.0.0.0", expected a prefix such as "10.0.0.0/16" (add the prefix length: "10.0.0.0/24")"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.1/8""#,
        r#"13:8: `cidr` in [[network]]: found the string "10.0.0.1/8", expected a prefix such as "10.0.0.0/16" (write "10.0.0.0/8": an address inside is not its name)"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = ["10.0.0.0/8", "a"]"#,
        r#"13:23: `cidr` in [[network]]: found the string "a", expected a prefix such as "10.0.0.0/16""#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = ["10.0.0.0/8", "10.0.0.0/8"]"#,
        r#"13:23: 10.0.0.0/8 is listed twice in `cidr`"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/8"
mtu = 575"#,
        r#"14:7: `mtu` in [[network]]: found the integer 575, expected a whole number from 576 to 9216"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/8"
mtu = 9217"#,
        r#"14:7: `mtu` in [[network]]: found the integer 9217, expected a whole number from 576 to 9216"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/8"
dns = "resolver""#,
        r#"14:7: `dns` in [[network]]: found the string "resolver", expected an IPv4 or IPv6 address such as "10.0.0.2""#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/8"
tenant = "nobody""#,
        r#"14:10: there is no tenant `nobody` (declare it, or use one of: default)"#,
    ),
    // Networks: what must hold over them
    (
        r#"[[network]]
name = "vpc"
vni = 7
cidr = "10.0.0.0/8""#,
        r#"11:8: network `vpc` exists already (give each [[network]] a name of its own)"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 5001
cidr = "10.0.0.0/8""#,
        r#"12:7: network `vpc` already has VNI 5001 (give each [[network]] a VNI of its own: frames on the underlay are told apart by it)"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = ["10.0.0.0/8", "fd00::/64", "10.9.0.0/16"]"#,
        r#"13:36: the subnets 10.0.0.0/8 and 10.9.0.0/16 overlap (networks may have the same addresses, subnets of one network may not)"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/31""#,
        r#"13:8: the subnet has no room for a gateway and a guest: found 10.0.0.0/31, expected a prefix length of at most 30"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "127.0.0.0/24""#,
        r#"13:8: 127.0.0.0/24 overlaps 127.0.0.0/8, which is loopback (RFC 1122 §3.2.1.3) (use private addresses, such as 10.0.0.0/16 or fd00:5d::/64)"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "::/0""#,
        r#"13:8: ::/0 overlaps ::/8, which is loopback or reserved (RFC 4291 §2.4) (use private addresses, such as 10.0.0.0/16 or fd00:5d::/64)"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/8"
gateway = "10.0.0.0""#,
        r#"14:11: 10.0.0.0 is the network's own address of 10.0.0.0/8"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/8"
gateway = "10.255.255.255""#,
        r#"14:11: 10.255.255.255 is the broadcast address of 10.0.0.0/8"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "fd00::/64"
gateway = "fd00::""#,
        r#"14:11: fd00:: is the subnet-router anycast address of fd00::/64"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/8"
gateway = "192.168.0.1""#,
        r#"14:11: the gateway 192.168.0.1 is in no subnet of the network: expected one address in each of 10.0.0.0/8"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/8"
gateway = ["10.0.0.1", "10.0.0.2"]"#,
        r#"14:11: 10.0.0.2 would be a second gateway of 10.0.0.0/8, beside 10.0.0.1: expected one address in each of 10.0.0.0/8"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "fd00::/64"
mtu = 1279"#,
        r#"14:7: `mtu` in [[network]]: found the integer 1279, expected at least 1280, which IPv6 needs (RFC 8200 §5)"#,
    ),
    // The underlay
    (
        r#"[node]
underlay = {}"#,
        r#"11:12: `interface` is missing in node.underlay (add `interface = "eth0"`)"#,
    ),
    (
        r#"[node]
underlay = { interface = "an-interface-name" }"#,
        r#"11:26: `interface` in node.underlay: found the string "an-interface-name", expected the name of a network interface, 1 to 15 characters such as "eth0""#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0", address = "192.0.2.1/24" }"#,
        r#"11:44: `address` in node.underlay: found the string "192.0.2.1/24", expected an IPv4 or IPv6 address such as "10.0.0.2" (leave the prefix length out: "192.0.2.1")"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0", address = "224.0.0.1" }"#,
        r#"11:44: `address` in node.underlay: found the string "224.0.0.1", expected an IPv4 or IPv6 address such as "10.0.0.2" (no single station can have this address)"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0", address = ["192.0.2.1", "2001:db8::1", "192.0.2.2"] }"#,
        r#"11:73: the underlay has a second IPv4 address: found 192.0.2.2, expected at most one of each family: other hosts send to one tunnel end point"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0", port = 0 }"#,
        r#"11:41: `port` in node.underlay: found the integer 0, expected a whole number from 1 to 65535"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0", backend = "xdp" }"#,
        r#"11:44: `backend` in node.underlay: found the string "xdp", expected `auto`, `af-xdp` or `af-packet`"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0", mtu = 625 }"#,
        r#"11:40: `mtu` in node.underlay: found the integer 625, expected a whole number from 626 to 65535"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0", mtu = 1500 }
[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/8"
mtu = 1451"#,
        r#"16:7: the underlay has no room for the network's packets: found 1451 bytes, expected at most 1450: the underlay's 1500 less 50 for VXLAN (raise the MTU of the underlay's network and `mtu` in node.underlay)"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0", mtu = 1300, address = "2001:db8::1" }
[[network]]
name = "n"
vni = 7
cidr = "fd00::/64""#,
        r#"12:1: the underlay has no room for the network's packets: found 1230 bytes, expected at least 1280 (raise the MTU of the underlay's network and `mtu` in node.underlay)"#,
    ),
    // Guests on other hosts
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.endpoint]]
address = "10.0.0.9"
mac = "02:00:00:00:00:09"
host = "192.0.2.2""#,
        r#"17:8: guests on other hosts cannot be reached without an underlay (add `underlay = { interface = "eth0" }` to [node])"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0" }
[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.endpoint]]
"#,
        r#"16:1: `address` is missing in [[network.endpoint]] (add `address = "10.0.0.9"`)
16:1: `mac` is missing in [[network.endpoint]] (add `mac = "02:5d:00:00:00:09"`)
16:1: `host` is missing in [[network.endpoint]] (add `host = "192.0.2.2"`)"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0" }
[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.endpoint]]
address = "10.0.0.9"
mac = "01:00:00:00:00:09"
host = "192.0.2.2""#,
        r#"18:7: `mac` in [[network.endpoint]]: found the string "01:00:00:00:00:09", expected a MAC address such as "02:5d:00:00:00:02" (a group's address, or all zeroes, is nobody's)"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0" }
[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.endpoint]]
address = "10.0.0.9"
mac = "02-00-00:00:00:09"
host = "192.0.2.2""#,
        r#"18:7: `mac` in [[network.endpoint]]: found the string "02-00-00:00:00:09", expected a MAC address such as "02:5d:00:00:00:02" (six pairs of hexadecimal digits with colons between them, such as 02:5d:00:00:00:02)"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0" }
[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.endpoint]]
address = "10.0.0.9"
mac = "02:00:00:00:00:09"
host = "0.0.0.0""#,
        r#"19:8: `host` in [[network.endpoint]]: found the string "0.0.0.0", expected an IPv4 or IPv6 address such as "10.0.0.2" (no single station can have this address)"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0", address = "192.0.2.2" }
[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.endpoint]]
address = "10.0.0.9"
mac = "02:00:00:00:00:09"
host = "192.0.2.2""#,
        r#"19:8: 192.0.2.2 is this host's own tunnel end point (remove it: guests of this host are its [[device]]s)"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0", address = "2001:db8::1" }
[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.endpoint]]
address = "10.0.0.9"
mac = "02:00:00:00:00:09"
host = "192.0.2.2""#,
        r#"19:8: this host has no IPv4 tunnel end point: found 192.0.2.2 (add an IPv4 address to `address` in node.underlay)"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0" }
[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.endpoint]]
address = "10.1.0.9"
mac = "02:00:00:00:00:09"
host = "192.0.2.2""#,
        r#"17:11: the address is outside network `n`: found 10.1.0.9, expected an address in 10.0.0.0/16"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0" }
[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.endpoint]]
address = "10.0.0.9"
mac = "02:00:00:00:00:09"
host = "192.0.2.2"
[[network.endpoint]]
address = "10.0.0.9"
mac = "02:00:00:00:00:0a"
host = "192.0.2.2""#,
        r#"21:11: the endpoint on 192.0.2.2 already has 10.0.0.9 (an address is unique within its network)"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0" }
[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.endpoint]]
address = "10.0.0.9"
mac = "02:00:00:00:00:09"
host = "192.0.2.2"
[[network.endpoint]]
address = "10.0.0.10"
mac = "02:00:00:00:00:09"
host = "192.0.2.2""#,
        r#"22:7: the endpoint on 192.0.2.2 already has the MAC address 02:00:00:00:00:09 (a MAC address is unique within its network)"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0" }
[[network]]
name = "n"
vni = 7
cidr = "10.0.0.0/16"
[[network.endpoint]]
address = "10.0.0.9"
mac = "02:00:00:00:00:09"
host = "192.0.2.2"
[[device]]
name = "d"
virtio-net = { network = "n", address = ["10.0.0.8", "10.0.0.9"] }"#,
        r#"22:54: the endpoint on 192.0.2.2 already has 10.0.0.9 (an address is unique within its network)"#,
    ),
    // Network devices
    (
        r#"[[device]]
name = "d"
virtio-net = {}"#,
        r#"12:14: `network` is missing in device.virtio-net (add `network = "acme-vpc"`)
12:14: `address` is missing in device.virtio-net (add `address = "10.0.0.2"`)"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vcp", address = "10.0.0.3" }"#,
        r#"12:26: there is no network `vcp` (did you mean `vpc`?)"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", addresses = "10.0.0.3", address = "10.0.0.3" }"#,
        r#"12:33: unknown key in device.virtio-net: found `addresses`, expected `network`, `address`, `mac`, `queues`, `mtu`, `spoof-check`, `rate`, `meter`, `security-groups`, `acl`, `functions`, `queue-size`, `packed`, `socket`, `socket-owner`, `socket-group` or `socket-mode` (did you mean `address`?)"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = [] }"#,
        r#"12:43: `address` in device.virtio-net: found an empty array, expected an IPv4 or IPv6 address such as "10.0.0.2", or a list of them"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = 10 }"#,
        r#"12:43: `address` in device.virtio-net: found the integer 10, expected an IPv4 or IPv6 address such as "10.0.0.2", or a list of them"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.300" }"#,
        r#"12:43: `address` in device.virtio-net: found the string "10.0.0.300", expected an IPv4 or IPv6 address such as "10.0.0.2""#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3/16" }"#,
        r#"12:43: `address` in device.virtio-net: found the string "10.0.0.3/16", expected an IPv4 or IPv6 address such as "10.0.0.2" (leave the prefix length out: "10.0.0.3")"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = ["10.0.0.3", "10.0.0.3"] }"#,
        r#"12:56: 10.0.0.3 is listed twice in `address`"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "192.168.0.3" }"#,
        r#"12:43: the address is outside network `vpc`: found 192.168.0.3, expected an address in 10.0.0.0/16"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.1" }"#,
        r#"12:43: 10.0.0.1 is the gateway of 10.0.0.0/16"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.0" }"#,
        r#"12:43: 10.0.0.0 is the network's own address of 10.0.0.0/16"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = ["10.0.0.3", "10.0.255.255"] }"#,
        r#"12:56: 10.0.255.255 is the broadcast address of 10.0.0.0/16"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.2" }"#,
        r#"12:43: device `nic` already has 10.0.0.2 (an address is unique within its network)"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", mac = "03:00:00:00:00:01" }"#,
        r#"12:61: `mac` in device.virtio-net: found the string "03:00:00:00:00:01", expected a MAC address such as "02:5d:00:00:00:02" (a group's address, or all zeroes, is nobody's)"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", mac = "00:00:00:00:00:00" }"#,
        r#"12:61: `mac` in device.virtio-net: found the string "00:00:00:00:00:00", expected a MAC address such as "02:5d:00:00:00:02" (a group's address, or all zeroes, is nobody's)"#,
    ),
    (
        r#"[[device]]
name = "d"
tap = { network = "vpc", address = "10.0.0.3", mac = "02:5d:91:50:e3:89", interface = "t0" }"#,
        r#"12:54: the gateway already has the MAC address 02:5d:91:50:e3:89 (a MAC address is unique within its network)"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", queues = 65 }"#,
        r#"12:64: `queues` in device.virtio-net: found the integer 65, expected a whole number from 1 to 64"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", queue-size = 300 }"#,
        r#"12:68: `queue-size` in device.virtio-net: found the integer 300, expected a power of two (512 is the next)"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", queue-size = 128 }"#,
        r#"12:68: `queue-size` in device.virtio-net: found the integer 128, expected a whole number from 256 to 32768"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", mtu = 1501 }"#,
        r#"12:61: the device's `mtu`: found the integer 1501, expected at most 1500, the MTU of network `vpc`"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", spoof-check = "off" }"#,
        r#"12:69: `spoof-check` in device.virtio-net: found the string "off", expected true or false"#,
    ),
    (
        r#"[[network]]
name = "n"
vni = 7
cidr = "fd00::/64"
[[device]]
name = "d"
virtio-net = { network = "n", address = "fd00::2", mtu = 1000 }"#,
        r#"16:58: the device's `mtu`: found the integer 1000, expected at least 1280, which IPv6 needs (RFC 8200 §5)"#,
    ),
    (
        r#"[[tenant]]
name = "a"
[[network]]
name = "n"
tenant = "a"
vni = 7
cidr = "10.0.0.0/8"
[[device]]
name = "d"
virtio-net = { network = "n", address = "10.0.0.3" }"#,
        r#"19:26: network `n` is only for tenant `a`: found a device of tenant `default`, expected one of tenant `a`"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-blk = { volume = "v" }
virtio-net = { network = "vpc", address = "10.0.0.3" }
[[volume]]
name = "v"
null = { size = "1 GiB" }"#,
        r#"13:14: [[device]] has both `virtio-blk` and `virtio-net` (keep one of them)"#,
    ),
    // Rates
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", rate = {} }"#,
        r#"12:62: `rate` limits nothing: expected `packets`, `bandwidth` or both (such as rate = { bandwidth = "1 Gbit/s" }; without `rate` nothing is limited)"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", rate = { packets = 0 } }"#,
        r#"12:74: `packets` in rate: found the integer 0, expected a whole number from 1 to 1000000000"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", rate = { burst = 1, packets = 1 } }"#,
        r#"12:64: unknown key in rate: found `burst`, expected `packets`, `packets-burst`, `bandwidth` or `bandwidth-burst` (did you mean `packets-burst`?)"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", rate = { bandwidth = "1 GiB/s" } }"#,
        r#"12:76: `bandwidth` in rate: found the string "1 GiB/s", expected a rate with a unit such as "1 Gbit/s" (unknown unit `GiB/s`: expected one of bit/s, kbit/s, Kbit/s, Mbit/s, Gbit/s, Tbit/s)"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", rate = { bandwidth = "0 bit/s" } }"#,
        r#"12:76: `bandwidth` in rate: found zero, expected at least 1 bit/s: a device that may send nothing is of no use"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", rate = { bandwidth = "1 Gbit/s", bandwidth-burst = "1 KiB" } }"#,
        r#"12:106: `bandwidth-burst` in rate: found 1 KiB, expected at least 64 KiB: the largest frame a guest may send"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", rate = { bandwidth = "1 Gbit/s", packets-burst = 9 } }"#,
        r#"12:104: `packets-burst` does nothing without `packets` (add `packets`, such as packets = 100_000)"#,
    ),
    (
        r#"[[device]]
name = "d"
virtio-net = { network = "vpc", address = "10.0.0.3", rate = { packets = 9, bandwidth-burst = "1 MiB" } }"#,
        r#"12:95: `bandwidth-burst` does nothing without `bandwidth` (add `bandwidth`, such as bandwidth = "1 Gbit/s")"#,
    ),
    // TAP interfaces
    (
        r#"[[device]]
name = "d"
tap = { network = "vpc", address = "10.0.0.3" }"#,
        r#"12:7: `interface` is missing in device.tap (add `interface = "acme0"`)"#,
    ),
    (
        r#"[[device]]
name = "d"
tap = { network = "vpc", address = "10.0.0.3", interface = "tap%d" }"#,
        r#"12:60: `interface` in device.tap: found the string "tap%d", expected the name of a network interface, 1 to 15 characters such as "eth0""#,
    ),
    (
        r#"[[device]]
name = "d"
tap = { network = "vpc", address = "10.0.0.3", interface = "t0", socket = "x" }"#,
        r#"12:66: unknown key in device.tap: found `socket`, expected `network`, `address`, `mac`, `queues`, `mtu`, `spoof-check`, `rate`, `meter`, `security-groups`, `acl`, `functions` or `interface`"#,
    ),
    (
        r#"[[device]]
name = "d"
domain = "vm"
tap = { network = "vpc", address = "10.0.0.3", interface = "t0" }"#,
        r#"12:10: a `tap` has no `domain`: it is an interface of the host, not of a guest (remove `domain`)"#,
    ),
    (
        r#"[node]
underlay = { interface = "eth0" }
[[device]]
name = "d"
tap = { network = "vpc", address = "10.0.0.3", interface = "eth0" }"#,
        r#"14:60: the underlay already has the interface eth0 (give each `tap` an interface of its own)"#,
    ),
    (
        r#"[[device]]
name = "d"
tap = { network = "vpc", address = "10.0.0.3", interface = "t0" }
[[device]]
name = "e"
tap = { network = "vpc", address = "10.0.0.4", interface = "t0" }"#,
        r#"15:60: device `d` already has the interface t0 (give each `tap` an interface of its own)"#,
    ),
];

#[test]
fn every_mistake_has_its_own_message_at_its_own_place() {
    let mut wrong = Vec::new();
    for (addition, expected) in BROKEN {
        let report = check(&format!("{SMALL}{addition}")).report;
        let found: Vec<String> = report
            .diagnostics
            .iter()
            .map(|found| {
                let help = found.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
                format!("{}:{}: {}{help}", found.line, found.column, found.message)
            })
            .collect();
        let found = found.join("\n");
        if found != *expected {
            wrong.push(format!("{addition}\nfound {found}\nexpected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
