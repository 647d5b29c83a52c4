//! Rules of NAT, and the mistakes that can be made with them.

use super::{check, is_the_only_mistake, site};

const GOOD: &str = r#"
[[network]]
name = "a"
vni = 1
cidr = ["10.0.0.0/16", "fd00::/64"]
route = [{ prefix = "0.0.0.0/0", address = "10.0.0.254" }]

[[network.nat]]
exit = "10.0.0.254"
floating = [{ inside = "10.0.1.9", outside = "203.0.113.9" }, { inside = "fd00::9", outside = "2001:db8::9" }]
forward = [
    { protocol = "tcp", outside = "203.0.113.1:80", inside = "10.0.0.2:8080" },
    { protocol = "udp", outside = "203.0.113.1:53", inside = "10.0.0.3:5353" },
]
shared = [{ source = "10.0.0.0/26", address = ["203.0.113.1", "203.0.113.2"] }]

[[device]]
name = "out"
tap = { network = "a", address = "10.0.0.254", interface = "t0", spoof-check = false }

[[device]]
name = "second"
tap = { network = "a", address = "10.0.0.253", interface = "t1", spoof-check = false }
"#;

#[test]
fn rules_of_an_exit_are_read_and_reach_the_data_plane_as_they_are() {
    let site = site(GOOD);
    let network = site.network("a").unwrap();
    let [nat] = &network.nats[..] else { panic!("{:?}", network.nats) };
    assert_eq!((nat.floating.len(), nat.forwards.len()), (2, 2));
    assert_eq!((nat.shared[0].ports.to_string().as_str(), nat.shared[0].ports_per_guest), ("1024-65535", 1024));
    let spec = nat.spec("a").unwrap();
    assert_eq!((spec.network.as_str(), spec.exit.to_string().as_str()), ("a", "10.0.0.254"));
    assert_eq!(spec.forwards[0].outside, ([203, 0, 113, 1].into(), 80));
    assert_eq!(spec.shared[0].ports, (1024, 65_535));
    let again: crate::Network = serde_json::from_str(&serde_json::to_string(network).unwrap()).unwrap();
    assert_eq!(&again, network);
}

#[test]
fn mistakes_in_rules_are_told_with_their_places() {
    let outside = r#"outside = "203.0.113.1:80""#;
    let shared = r#"address = ["203.0.113.1", "203.0.113.2"]"#;
    let floating = r#"inside = "10.0.1.9", outside = "203.0.113.9""#;
    for (good, wrong, message) in [
        (r#"exit = "10.0.0.254""#, "", "`exit` is missing in [[network.nat]]"),
        (r#"exit = "10.0.0.254""#, r#"exit = "10.0.0.7""#, "no device of this host has the address 10.0.0.7"),
        (
            "[[device]]\nname = \"out\"",
            "[[network.nat]]\nexit = \"10.0.0.253\"\n[[device]]\nname = \"out\"",
            "nothing is translated",
        ),
        (outside, r#"outside = "203.0.113.1""#, "expected an IPv4 address and a port"),
        (outside, r#"outside = "[2001:db8::1]:80""#, "IPv6 addresses are translated 1:1 only: see `floating`"),
        (outside, r#"outside = "203.0.113.1:1024""#, "port 1024 of 203.0.113.1 is among the ports"),
        (outside, r#"outside = "203.0.113.9:80""#, "the outside address 203.0.113.9 has another use already"),
        (outside, r#"outside = "10.0.5.5:80""#, "10.0.5.5 is in the network's subnet 10.0.0.0/16"),
        (r#"protocol = "tcp""#, r#"protocol = "icmp""#, "expected `tcp` or `udp`"),
        (r#"inside = "10.0.0.2:8080""#, r#"inside = "10.0.0.2:0""#, "0 is no port"),
        (floating, r#"inside = "10.0.1.9", outside = "2001:db8::8""#, "are of different families"),
        (floating, r#"inside = "10.0.1.9""#, "`outside` is missing in [[network.nat.floating]]"),
        (shared, r#"address = ["203.0.113.1", "203.0.113.9"]"#, "the outside address 203.0.113.9 has another use"),
        (shared, r#"address = "203.0.113.1""#, "have 64 addresses, and there are blocks of ports for 63"),
        (shared, r#"address = "2001:db8::1""#, "IPv6 addresses are translated 1:1 only"),
        ("10.0.0.0/26", "fd00::/122", "fd00::/122 is not IPv4: IPv6 addresses are translated 1:1 only"),
        (shared, &format!(r#"{shared}, ports = "2000-1000""#), "the first is after the last"),
        (shared, &format!(r#"{shared}, ports = "1024-1200""#), "1024 ports for each inside address do not fit"),
        (shared, &format!("{shared}, ports-per-guest = 0"), "expected a whole number from 1 to 65535"),
    ] {
        is_the_only_mistake(GOOD, good, wrong, message);
    }
    let again =
        "[[network.nat]]\nexit = \"10.0.0.254\"\nfloating = [{ inside = \"10.0.1.8\", outside = \"203.0.113.8\" }]\n";
    let twice = check(&GOOD.replacen("[[device]]", &format!("{again}\n[[device]]"), 1));
    assert!(twice.report.to_string().contains("the exit 10.0.0.254 has rules already"), "{}", twice.report);
}
