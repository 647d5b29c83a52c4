//! Networks: their keys, types and ranges, and what must hold over them.

use super::{Mistake, nic, subnet, table};

pub(super) fn mistakes() -> Vec<Mistake> {
    vec![
        // Networks: keys, types and ranges
        (
            table("[[network]]", &[r#"name = "n""#]),
            r#"10:1: `vni` is missing in [[network]] (add `vni = 5001`)
10:1: `cidr` is missing in [[network]] (add `cidr = "10.0.0.0/16"`)"#,
        ),
        (
            table("[[network]]", &[r#"name = "n""#, "vni = 0", r#"cidr = "10.0.0.0/8""#]),
            r#"12:7: `vni` in [[network]]: found the integer 0, expected a whole number from 1 to 16777215"#,
        ),
        (
            table("[[network]]", &[r#"name = "n""#, "vni = 16_777_216", r#"cidr = "10.0.0.0/8""#]),
            r#"12:7: `vni` in [[network]]: found the integer 16777216, expected a whole number from 1 to 16777215"#,
        ),
        (
            table("[[network]]", &[r#"name = "n""#, "vni = 7", r#"cdir = "10.0.0.0/8""#, r#"cidr = "10.0.0.0/8""#]),
            r#"13:1: unknown key in [[network]]: found `cdir`, expected `name`, `vni`, `cidr`, `gateway`, `tenant`, `mtu`, `transit`, `dns`, `endpoint`, `peer`, `route`, `ecmp`, `route-table`, `nat`, `security-group` or `acl` (did you mean `cidr`?)"#,
        ),
        (
            subnet("[]"),
            r#"13:8: `cidr` in [[network]]: found an empty array, expected a prefix such as "10.0.0.0/16", or a list of them"#,
        ),
        (
            subnet(r#""10.0.0.0""#),
            r#"13:8: `cidr` in [[network]]: found the string "10.0.0.0", expected a prefix such as "10.0.0.0/16" (add the prefix length: "10.0.0.0/24")"#,
        ),
        (
            subnet(r#""10.0.0.1/8""#),
            r#"13:8: `cidr` in [[network]]: found the string "10.0.0.1/8", expected a prefix such as "10.0.0.0/16" (write "10.0.0.0/8": an address inside is not its name)"#,
        ),
        (
            subnet(r#"["10.0.0.0/8", "a"]"#),
            r#"13:23: `cidr` in [[network]]: found the string "a", expected a prefix such as "10.0.0.0/16""#,
        ),
        (subnet(r#"["10.0.0.0/8", "10.0.0.0/8"]"#), r#"13:23: 10.0.0.0/8 is listed twice in `cidr`"#),
        (
            subnet(r#""10.0.0.0/8""#).with("mtu = 575"),
            r#"14:7: `mtu` in [[network]]: found the integer 575, expected a whole number from 576 to 9216"#,
        ),
        (
            subnet(r#""10.0.0.0/8""#).with("mtu = 9217"),
            r#"14:7: `mtu` in [[network]]: found the integer 9217, expected a whole number from 576 to 9216"#,
        ),
        (
            subnet(r#""10.0.0.0/8""#).with(r#"dns = "resolver""#),
            r#"14:7: `dns` in [[network]]: found the string "resolver", expected an IPv4 or IPv6 address such as "10.0.0.2""#,
        ),
        (
            subnet(r#""10.0.0.0/8""#).with(r#"tenant = "nobody""#),
            r#"14:10: there is no tenant `nobody` (declare it, or use one of: default)"#,
        ),
        // The device's network is not said to be missing: it may be the one without a name.
        (
            table("[[network]]", &["vni = 7", r#"cidr = "10.0.0.0/8""#])
                .then(nic(r#"network = "n", address = "10.0.0.2""#)),
            r#"10:1: `name` is missing in [[network]] (add `name = "acme-vpc"`)"#,
        ),
        // Networks: what must hold over them
        (
            table("[[network]]", &[r#"name = "vpc""#, "vni = 7", r#"cidr = "10.0.0.0/8""#]),
            r#"11:8: network `vpc` exists already (the first is in line 3; give each [[network]] a name of its own)"#,
        ),
        (
            table("[[network]]", &[r#"name = "n""#, "vni = 5001", r#"cidr = "10.0.0.0/8""#]),
            r#"12:7: network `vpc` already has VNI 5001 (the first is in line 4; give each [[network]] a VNI of its own: frames on the underlay are told apart by it)"#,
        ),
        (
            subnet(r#"["10.0.0.0/8", "fd00::/64", "10.9.0.0/16"]"#),
            r#"13:36: the subnets 10.0.0.0/8 and 10.9.0.0/16 overlap (networks may have the same addresses, subnets of one network may not)"#,
        ),
        (
            subnet(r#""10.0.0.0/31""#),
            r#"13:8: the subnet has no room for a gateway and a guest: found 10.0.0.0/31, expected a prefix length of at most 30"#,
        ),
        (
            subnet(r#""127.0.0.0/24""#),
            r#"13:8: 127.0.0.0/24 overlaps 127.0.0.0/8, which is loopback (RFC 1122 §3.2.1.3) (use private addresses, such as 10.0.0.0/16 or fd00:5d::/64)"#,
        ),
        (
            subnet(r#""::/0""#),
            r#"13:8: ::/0 overlaps ::/8, which is loopback or reserved (RFC 4291 §2.4) (use private addresses, such as 10.0.0.0/16 or fd00:5d::/64)"#,
        ),
        (
            subnet(r#""10.0.0.0/8""#).with(r#"gateway = "10.0.0.0""#),
            r#"14:11: 10.0.0.0 is the network's own address of 10.0.0.0/8"#,
        ),
        (
            subnet(r#""10.0.0.0/8""#).with(r#"gateway = "10.255.255.255""#),
            r#"14:11: 10.255.255.255 is the broadcast address of 10.0.0.0/8"#,
        ),
        (
            subnet(r#""fd00::/64""#).with(r#"gateway = "fd00::""#),
            r#"14:11: fd00:: is the subnet-router anycast address of fd00::/64"#,
        ),
        (
            subnet(r#""10.0.0.0/8""#).with(r#"gateway = "192.168.0.1""#),
            r#"14:11: the gateway 192.168.0.1 is in no subnet of the network: expected one address in each of 10.0.0.0/8"#,
        ),
        (
            subnet(r#""10.0.0.0/8""#).with(r#"gateway = ["10.0.0.1", "10.0.0.2"]"#),
            r#"14:11: 10.0.0.2 would be a second gateway of 10.0.0.0/8, beside 10.0.0.1: expected one address in each of 10.0.0.0/8"#,
        ),
        (
            subnet(r#""fd00::/64""#).with("mtu = 1279"),
            r#"14:7: `mtu` in [[network]]: found the integer 1279, expected at least 1280, which IPv6 needs (RFC 8200 §5)"#,
        ),
    ]
}
