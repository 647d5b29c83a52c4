//! Networks as an operator writes them.

use std::path::Path;

use crate::*;

fn check(text: &str) -> Loaded {
    parse(text, "site.toml", Path::new("/srv/site"), None)
}

fn site(text: &str) -> Site {
    let loaded = check(text);
    loaded.site.unwrap_or_else(|| panic!("{}", loaded.report))
}

/// With `wrong` in the place of what stands once in a good site, `message` is the only thing that is said.
fn is_the_only_mistake(site: &str, good: &str, wrong: &str, message: &str) {
    assert_eq!(site.matches(good).count(), 1, "{good}");
    let loaded = check(&site.replace(good, wrong));
    assert!(loaded.site.is_none(), "{wrong} is taken");
    let said = loaded.report.diagnostics.iter().map(|found| {
        let help = found.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
        format!("{}{help}", found.message)
    });
    let said: Vec<String> = said.collect();
    assert!(said.len() == 1 && said[0].contains(message), "{wrong}: {said:#?}, expected {message}");
}

/// A network with one device.
const SMALL: &str = r#"
[[network]]
name = "vpc"
vni = 5001
cidr = "10.0.0.0/16"

[[device]]
name = "nic"
virtio-net = { network = "vpc", address = "10.0.0.2" }
"#;

#[test]
fn a_small_network_has_a_sensible_default_for_everything_else() {
    let site = site(SMALL);
    let network = site.network("vpc").unwrap();
    assert_eq!(network.gateway, ["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!((network.tenant.as_deref(), network.mtu, site.network_mtu(network)), (None, None, Some(1500)));
    let device = &site.devices[0];
    assert_eq!((device.tenant.as_str(), device.domain.as_str()), ("default", "nic"));
    let DeviceKind::VirtioNet(net) = &device.kind else { panic!("{:?}", device.kind) };
    assert_eq!((net.port.queues, net.queue_size, net.packed, net.port.spoof_check), (1, 1024, true, true));
    assert_eq!(net.port.mac, MacAddress::derived("vpc", net.port.addresses[0]));
    assert_eq!(net.access, SocketAccess::at("/srv/site/run/softdpu/nic.sock".into()));
    assert_eq!((net.port.mtu, net.port.rate), (None, None));
}

/// Every key, and both families.
const COMPLETE: &str = r#"
[node]
underlay = { interface = "eth0", address = ["192.0.2.1", "2001:db8::1"], port = 8472, backend = "af-packet", mtu = 9000 }

[[tenant]]
name = "acme"

[[network]]
name    = "vpc"
tenant  = "acme"
vni     = 0xffffff
cidr    = ["10.0.0.0/16", "10.1.0.0/24", "fd00:5d::/64"]
gateway = ["fd00:5d::ff", "10.0.255.254"]
mtu     = 8930
dns     = "10.0.0.53"
[[network.endpoint]]
address = ["10.0.0.9", "fd00:5d::9"]
mac     = "02:5d:00:00:00:09"
host    = "2001:db8::2"

[[device]]
name   = "nic"
tenant = "acme"
domain = "vm"
virtio-net = { network = "vpc", address = ["10.0.0.2", "fd00:5d::2"], mac = "02:5D:00:00:00:02", queues = 4, queue-size = 32768, packed = false, mtu = 1500, spoof-check = false, rate = { packets = 100_000, bandwidth = "1 Gbit/s", bandwidth-burst = "1 MiB" }, socket = "nic.sock", socket-group = "kvm", socket-mode = "0660" }

[[device]]
name   = "host-port"
tenant = "acme"
tap    = { network = "vpc", address = "10.1.0.5", interface = "acme0", queues = 2, rate = { packets = 10 } }
"#;

#[test]
fn everything_that_can_be_written_is_read() {
    let site = site(COMPLETE);
    let ip = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    let underlay = site.node.underlay.as_ref().unwrap();
    assert_eq!((underlay.port, underlay.backend, underlay.mtu), (8472, UnderlayBackend::AfPacket, Some(9000)));
    assert_eq!(underlay.addresses, [ip("192.0.2.1"), ip("2001:db8::1")]);
    let network = site.network("vpc").unwrap();
    assert_eq!(network.gateway, ["10.0.255.254", "10.1.0.1", "fd00:5d::ff"].map(ip), "in the order of the subnets");
    assert_eq!(network.subnet_of(ip("10.1.0.77")).unwrap().gateway, ip("10.1.0.1"));
    assert_eq!(
        (network.vni.get(), site.network_mtu(network), network.dns[0]),
        (16_777_215, Some(8930), ip("10.0.0.53"))
    );
    let endpoint = Endpoint {
        addresses: vec![ip("10.0.0.9"), ip("fd00:5d::9")],
        mac: MacAddress([2, 0x5d, 0, 0, 0, 9]),
        host: ip("2001:db8::2"),
        security_groups: Vec::new(),
    };
    assert_eq!(network.endpoints, [endpoint]);
    let DeviceKind::VirtioNet(net) = &site.devices[0].kind else { panic!() };
    assert_eq!((net.port.queues, net.queue_size, net.packed, net.port.spoof_check), (4, 32_768, false, false));
    assert_eq!((net.port.mac.to_string().as_str(), net.port.mtu), ("02:5d:00:00:00:02", Some(1500)));
    let rate = net.port.rate.unwrap();
    assert_eq!(rate.packet_bucket(), Some((100_000, 1000)), "a hundredth of a second");
    assert_eq!(rate.bandwidth_bucket(), Some((BitsPerSecond(1_000_000_000), Bytes(1 << 20))));
    let DeviceKind::Tap(tap) = &site.devices[1].kind else { panic!() };
    assert_eq!((tap.interface.as_str(), tap.port.queues, site.devices[1].domain.as_str()), ("acme0", 2, ""));
    assert_eq!(tap.port.rate.unwrap().packet_bucket(), Some((10, 64)), "no fewer than a batch");
    assert_eq!(tap.port.rate.unwrap().bandwidth_bucket(), None);
    assert_eq!(site.devices[1].access(), None);
    assert_eq!(site.attached("vpc").count(), 2);
}

#[test]
fn networks_survive_being_stored_and_are_what_the_reader_takes() {
    let site = site(COMPLETE);
    assert_eq!(serde_json::from_str::<Site>(&serde_json::to_string(&site).unwrap()).unwrap(), site);
    assert_eq!(self::site(&toml::to_string(&site).unwrap()), site);
    assert_eq!(network_from_json(&serde_json::to_value(&site.networks[0]).unwrap()).unwrap(), site.networks[0]);
    for device in &site.devices {
        assert_eq!(device_from_json(&serde_json::to_value(device).unwrap(), Path::new("/")).unwrap(), *device);
    }
    assert!(serde_json::from_str::<Vni>("0").is_err() && serde_json::from_str::<Vni>("16777216").is_err());
}

#[test]
fn the_mtu_is_the_underlays_less_what_tunnelling_takes() {
    let mtu = |underlay: &str| {
        let site = site(&format!("{underlay}\n{SMALL}"));
        site.network_mtu(&site.networks[0])
    };
    assert_eq!(mtu(""), Some(1500));
    assert_eq!(mtu("node.underlay = { interface = \"e\", mtu = 1500, address = \"192.0.2.1\" }"), Some(1450));
    assert_eq!(mtu("node.underlay = { interface = \"e\", mtu = 1500, address = \"2001:db8::1\" }"), Some(1430));
    assert_eq!(mtu("node.underlay = { interface = \"e\", address = \"192.0.2.1\" }"), None, "the interface's to say");
    assert_eq!(mtu("node.underlay = { interface = \"e\", mtu = 1500 }"), None, "its addresses may be IPv6");
    let network = &site(SMALL).networks[0];
    assert_eq!(network.mtu_over(Some((9000, Underlay::overhead(&["2001:db8::1".parse().unwrap()])))), 8930);
}

#[test]
fn networks_may_have_the_same_addresses() {
    let site = site(&format!(
        "{SMALL}\n[[network]]\nname = \"other\"\nvni = 5002\ncidr = \"10.0.0.0/16\"\n\
         [[device]]\nname = \"nic2\"\nvirtio-net = {{ network = \"other\", address = \"10.0.0.2\" }}\n"
    ));
    let macs: Vec<MacAddress> = site.devices.iter().map(|device| device.port().unwrap().mac).collect();
    assert_ne!(macs[0], macs[1], "a guest may have an interface in each");
}

#[test]
fn what_would_run_says_where_each_interface_is() {
    let text = summary(&site(COMPLETE));
    for line in [
        "underlay    eth0, VXLAN port 8472\n",
        "network     vpc: VNI 16777215, 10.0.0.0/16, 10.1.0.0/24, fd00:5d::/64, MTU 8930, 2 device(s) here, 1 endpoint(s) \
         elsewhere, only for acme\n",
        "device      nic: virtio-net in vpc, 10.0.0.2, fd00:5d::2, 02:5d:00:00:00:02, 4 queue pair(s), queues of 32768, \
         /srv/site/nic.sock\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    assert!(text.contains("device      host-port: tap acme0 in vpc, 10.1.0.5, "), "{text}");
}

mod mistakes;
mod nat;
mod routing;

#[test]
fn tables_have_room_for_what_a_site_file_puts_into_them() {
    let site = |tables: &str, rest: &str| {
        let text = format!(
            "[node]\ntables = {{ {tables} }}\nunderlay = {{ interface = \"eth0\" }}\n[[network]]\nname = \"a\"\nvni = 1\n\
             cidr = \"10.0.0.0/16\"\n{rest}"
        );
        crate::parse(&text, "site.toml", std::path::Path::new("/"), None).report.to_string()
    };
    let routes = "route = [\n{ prefix = \"172.16.0.0/16\", host = \"192.0.2.2\" },\n\
                  { prefix = \"172.17.0.0/16\", host = \"192.0.2.3\" }]\n\
                  [[network.route-table]]\nname = \"t\"\nsource = \"10.0.1.0/24\"\n\
                  route = [{ prefix = \"0.0.0.0/0\", host = \"192.0.2.3\" }]\n";
    let guests = "[[network.endpoint]]\naddress = \"10.0.0.2\"\nmac = \"02:00:00:00:00:02\"\nhost = \"192.0.2.2\"\n\
                  [[network.endpoint]]\naddress = \"10.0.0.3\"\nmac = \"02:00:00:00:00:03\"\nhost = \"192.0.2.2\"\n";
    assert_eq!(site("routes = 3, hosts = 2", routes), "");
    assert_eq!(site("endpoints = 2, hosts = 1", guests), "");
    let full = |table: &str, room: u32, wanted: u32| {
        format!("error: the table of {table} is full: it has room for {room}, and {wanted} are wanted")
    };
    for (tables, rest, line, problem) in [
        ("routes = 1", routes, 10, full("routes", 1, 3)),
        ("routes = 2", routes, 14, full("routes", 2, 3)),
        ("hosts = 1", routes, 4, full("hosts", 1, 2)),
        ("endpoints = 1", guests, 12, full("endpoints", 1, 2)),
    ] {
        let report = site(tables, rest);
        assert!(report.contains(&format!("--> site.toml:{line}:")) && report.starts_with(&problem), "{report}");
    }
}
