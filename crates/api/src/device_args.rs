//! What attaches a device: the result of `device.args`.

use serde::{Deserialize, Serialize};
use softdpu_site::{Device, Network, Site};

/// The result of `device.args` and `device.add`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceArgs {
    /// The device, and after it the other devices of its domain: what `softdpu device args` shows.
    pub devices: Vec<Device>,
    /// The networks they attach to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Network>,
}

/// What `softdpu device args` needs for the device called `name`: the device and after it the other devices of its
/// domain, and the networks they attach to, with their MTU where the site settles it.
pub fn device_args(site: &Site, name: &str) -> Option<DeviceArgs> {
    let device = site.device(name)?;
    // A TAP has no domain: there is nothing it shares one with.
    let others = site
        .devices
        .iter()
        .filter(|other| !device.domain.is_empty() && other.domain == device.domain && other.name != name);
    let devices: Vec<Device> = std::iter::once(device).chain(others).cloned().collect();
    let attached =
        |network: &&Network| devices.iter().filter_map(Device::port).any(|port| port.network == network.name);
    let networks = site.networks.iter().filter(attached);
    let networks = networks.map(|network| Network { mtu: site.network_mtu(network), ..network.clone() }).collect();
    Some(DeviceArgs { devices, networks })
}
