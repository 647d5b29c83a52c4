//! Security groups and access control lists.

use super::{Mistake, Toml, subnet, table, tap};

/// Security group `web` of network `n`.
fn security_group() -> Toml {
    subnet(r#""10.0.0.0/16""#).then(table("[[network.security-group]]", &[r#"name = "web""#]))
}

/// Access control list `edge` of network `n`.
fn acl() -> Toml {
    subnet(r#""10.0.0.0/16""#).then(table("[[network.acl]]", &[r#"name = "edge""#]))
}

pub(super) fn mistakes() -> Vec<Mistake> {
    vec![
        (
            security_group().with(r#"rule = [{ direction = "ingress", group = "wbe" }]"#),
            r#"16:42: there is no network.security-group `wbe` (did you mean `web`?)"#,
        ),
        (
            security_group().with(r#"rule = [{ direction = "ingress", ports = 80 }]"#),
            r#"16:42: `ports` means nothing without `protocol = "tcp"` or "udp""#,
        ),
        (
            security_group().with(r#"rule = [{ direction = "ingres" }]"#),
            r#"16:23: `direction` in [[network.security-group.rule]]: found the string "ingres", expected `ingress` or `egress` (did you mean `ingress`?)"#,
        ),
        (
            security_group().with(r#"rule = [{ direction = "egress", protocol = "icmp", cidr = "fd00::/8" }]"#),
            r#"16:59: no packet can match: fd00::/8 is not of the address family of the rule's protocol (icmp is for IPv4, icmpv6 for IPv6)"#,
        ),
        (
            security_group().then(table("[[network.security-group]]", &[r#"name = "web""#])),
            r#"17:8: the network has a second security group `web` (give each a name of its own)"#,
        ),
        (
            acl().with("rule = [{ priority = 1 }]"),
            r#"16:9: `action` is missing in [[network.acl.rule]] (add `action = "allow"`)"#,
        ),
        (
            acl().then(tap(r#"network = "n", address = "10.0.0.2", interface = "t0", acl = "egde""#)),
            r#"18:70: there is no network.acl `egde` (did you mean `edge`?)"#,
        ),
    ]
}
