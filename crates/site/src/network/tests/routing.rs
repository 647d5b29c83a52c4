//! Routes, ECMP groups, route tables and peers, and the mistakes that can be made with them.

use super::{is_the_only_mistake, site};

const GOOD: &str = r#"
[node]
underlay = { interface = "eth0", address = "192.0.2.1" }
zone = "az-1"

[[network]]
name = "a"
vni = 1
cidr = "10.0.0.0/16"
peer = "b"
route = [{ prefix = "172.16.0.0/12", host = "192.0.2.3" }, { prefix = "10.9.0.0/16", ecmp = "far" }]
ecmp = [{ name = "far", member = [{ host = "192.0.2.3", weight = 3, zone = "az-1" }, { address = "10.0.0.4", down = true }] }]
route-table = [{ name = "t", source = "10.0.1.0/24", route = [{ prefix = "0.0.0.0/0", address = "10.0.0.4" }] }]

[[network]]
name = "b"
vni = 2
cidr = "10.1.0.0/16"
peer = ["a"]

[[network]]
name = "c"
vni = 3
cidr = "10.0.0.0/8"

[[device]]
name = "fw"
tap = { network = "a", address = "10.0.0.4", interface = "t0", spoof-check = false }
"#;

#[test]
fn routes_lead_to_hosts_guests_and_groups() {
    let site = site(GOOD);
    assert_eq!(site.node.zone.as_deref(), Some("az-1"));
    let network = site.network("a").unwrap();
    let [near, far] = &network.ecmp[0].members[..] else { panic!("{:?}", network.ecmp) };
    assert_eq!((near.weight, near.down, near.zone.as_deref()), (3, false, Some("az-1")));
    assert_eq!((far.weight, far.down, far.via().to_string()), (1, true, "10.0.0.4".into()));
    let hosts = network.route_hosts().chain(network.member_hosts()).map(|host| host.to_string());
    assert_eq!(hosts.collect::<Vec<_>>(), ["192.0.2.3", "192.0.2.3"]);
    let pairs: Vec<_> = crate::Site::peerings(&site.networks).collect();
    assert_eq!(pairs, [("a", "b")]);
    // What the data plane is sent is what was read.
    let again: crate::Network = serde_json::from_str(&serde_json::to_string(network).unwrap()).unwrap();
    assert_eq!(&again, network);
}

#[test]
fn mistakes_are_told_with_their_places() {
    for (good, wrong, message) in [
        (
            r#", ecmp = "far" }"#,
            " }",
            "a route leads to one place: found none, expected exactly one of `host`, `address`, `ecmp`",
        ),
        (r#"ecmp = "far" }"#, r#"ecmp = "fer" }"#, "there is no network.ecmp `fer` (did you mean `far`?)"),
        ("172.16.0.0/12", "10.0.0.0/16", "10.0.0.0/16 is a subnet of the network"),
        ("172.16.0.0/12", "10.1.0.0/16", "10.1.0.0/16 is a subnet of its peer `b`"),
        ("172.16.0.0/12", "10.9.0.0/16", "10.9.0.0/16 is routed already"),
        ("weight = 3", "weight = 1001", "expected a whole number from 0 to 1000"),
        (
            r#"{ address = "10.0.0.4", down"#,
            r#"{ address = "10.0.0.5", down"#,
            "nobody in network `a` has the address 10.0.0.5",
        ),
        (
            r#"{ address = "10.0.0.4", down"#,
            r#"{ host = "192.0.2.3", down"#,
            "192.0.2.3 is a member of the group already",
        ),
        (
            r#"host = "192.0.2.3", weight"#,
            r#"host = "192.0.2.1", weight"#,
            "192.0.2.1 is this host's own tunnel end point",
        ),
        (r#"source = "10.0.1.0/24", "#, "", "`source` is missing in [[network.route-table]]"),
        (r#"peer = "b""#, r#"peer = "d""#, "there is no network `d`"),
        (r#"peer = "b""#, r#"peer = "a""#, "network `a` is named here already, or is the network itself"),
        (r#"peer = "b""#, r#"peer = ["b", "c"]"#, "10.0.0.0/8 of `c` overlaps 10.0.0.0/16 of `a`"),
        (r#"peer = ["a"]"#, r#"peer = ["a", "c"]"#, "10.0.0.0/8 of `c` overlaps 10.1.0.0/16 of `b`"),
    ] {
        is_the_only_mistake(GOOD, good, wrong, message);
    }
}
