//! The node's status while no data plane answers: what is declared, and which front ends are connected.

use softdpu_api::status::{
    DataPlaneState, DeviceState, DeviceStatus, FunctionStatus, NetworkStatus, NodeStatus, TenantStatus, VolumeStatus,
};
use softdpu_site::{Device, Function, Network, Site, Volume};

/// What is known of `site` without a data plane, which is in `state`; `is_connected` of devices by name.
pub(super) fn declared(site: &Site, state: DataPlaneState, is_connected: impl Fn(&str) -> bool) -> NodeStatus {
    let detail = format!("the data plane is {state}");
    let volume = |volume: &Volume| VolumeStatus {
        name: volume.name.clone(),
        kind: volume.backend.kind().to_owned(),
        size: volume.backend.size().map_or(0, |size| size.0),
        block_size: volume.block_size,
        read_only: volume.read_only,
        encryption: volume.encryption.as_ref().map(|encryption| encryption.cipher.to_string()),
        shared: volume.shared,
        users: site.users(&volume.name).count() as u32,
        detail: detail.clone(),
        ..VolumeStatus::default()
    };
    let device = |device: &Device| DeviceStatus {
        name: device.name.clone(),
        tenant: device.tenant.clone(),
        domain: device.domain.clone(),
        kind: device.kind.name().to_owned(),
        state: if is_connected(&device.name) { DeviceState::Connected } else { DeviceState::Listening },
        volume: device.volume().map(str::to_owned),
        socket: device.access().map(|access| access.socket.clone()).unwrap_or_default(),
        ..DeviceStatus::default()
    };
    let network = |network: &Network| {
        let ports = site.devices.iter().filter(|device| device.port().is_some_and(|port| port.network == network.name));
        NetworkStatus::new(network, site.network_mtu(network).unwrap_or_default(), ports.count())
    };
    let function = |function: &Function| FunctionStatus {
        devices: site.users_of_function(&function.name).map(|device| device.name.clone()).collect(),
        ..FunctionStatus::declared(function)
    };
    NodeStatus {
        functions: site.functions.iter().map(function).collect(),
        networks: site.networks.iter().map(network).collect(),
        devices: site.devices.iter().map(device).collect(),
        volumes: site.volumes.iter().map(volume).collect(),
        tenants: site.tenants.iter().map(TenantStatus::declared).collect(),
        ..NodeStatus::default()
    }
}
