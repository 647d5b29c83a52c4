//! Security groups and access control lists.

use super::Broken;

pub(super) const BROKEN: &[Broken] = &[
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
];
