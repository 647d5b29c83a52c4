//! Networks as an operator writes them.

use std::path::Path;

use crate::config::*;

fn check(text: &str) -> Loaded {
    parse(text, "site.toml", Path::new("/srv/site"), None)
}

fn site(text: &str) -> Site {
    let loaded = check(text);
    loaded.site.unwrap_or_else(|| panic!("{}", loaded.report))
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
    assert_eq!((net.port.queues, net.queue_size, net.packed, net.port.spoof_check), (1, 256, true, true));
    assert_eq!(net.port.mac, MacAddress::derived("vpc", net.port.addresses[0]));
    assert_eq!(net.access, SocketAccess::at("/srv/site/run/softdpu/nic.sock".into()));
    assert_eq!((net.port.mtu, net.port.rate), (None, None));
}
