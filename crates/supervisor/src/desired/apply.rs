//! What a change makes of a site.

use softdpu_api::{Change, EndpointChange};
use softdpu_site::{Backend, Bytes, DEFAULT_TENANT, Device, FunctionChange, NetworkChange, Site, Tenant};

/// Makes `change` of `site`.
pub(super) fn apply(site: &mut Site, change: &Change) {
    match change {
        Change::VolumeCreate(volume) => site.volumes.push(volume.clone()),
        Change::VolumeGrow { name, size } => grow(site, name, *size),
        Change::VolumeDelete { name } => site.volumes.retain(|volume| volume.name != *name),
        Change::DeviceAdd(device) => add_device(site, device.clone()),
        Change::DeviceSet(change) => {
            let device = site.devices.iter_mut().find(|device| device.name == change.name);
            if let Some(port) = device.and_then(Device::port_mut) {
                change.apply(port);
            }
        }
        Change::DeviceRemove { name } => site.devices.retain(|device| device.name != *name),
        Change::NetworkAdd(network) => site.networks.push((**network).clone()),
        Change::NetworkRemove { name } => site.networks.retain(|network| network.name != *name),
        Change::NetworkEndpoints(EndpointChange { network, add, remove }) => {
            if let Some(network) = site.networks.iter_mut().find(|known| known.name == *network) {
                network.change_endpoints(add, remove);
            }
        }
        Change::NetworkPolicy(changes) => NetworkChange::apply_all(changes, &mut site.networks),
        Change::NetworkRouting(changes) => NetworkChange::apply_all(changes, &mut site.networks),
        Change::NetworkNat(changes) => NetworkChange::apply_all(changes, &mut site.networks),
        Change::NetworkMember(change) => {
            if let Some(network) = site.networks.iter_mut().find(|known| known.name == change.network) {
                network.change_member(change);
            }
        }
        Change::FunctionAdd(function) => site.functions.push(function.clone()),
        Change::FunctionSet(FunctionChange { name, kind }) => {
            if let Some(function) = site.functions.iter_mut().find(|known| known.name == *name) {
                function.kind = kind.clone();
            }
        }
        Change::FunctionRemove { name } => site.functions.retain(|function| function.name != *name),
        Change::NodeScale(change) => change.apply(&mut site.node.dataplane),
        Change::NetworkSteer(change) => change.apply(&mut site.node.steering),
        Change::TenantSet(change) => {
            if let Some(tenant) = site.tenants.iter_mut().find(|known| known.name == change.name) {
                tenant.change(change);
            }
        }
        Change::TenantAdd(tenant) => site.tenants.push(tenant.clone()),
        Change::TenantRemove { name } => site.tenants.retain(|tenant| tenant.name != *name),
        // They are kept beside the site.
        Change::QueueMove(_) | Change::NetworkLoad(_) | Change::NetworkUnload(_) | Change::NetworkEntries(_) => {}
    }
}

pub(super) fn add_device(site: &mut Site, device: Device) {
    if device.tenant == DEFAULT_TENANT && site.tenant(DEFAULT_TENANT).is_none() {
        site.tenants.push(Tenant::called(DEFAULT_TENANT));
    }
    site.devices.push(device);
}

/// Sizes only grow: a site file that was given a larger one since wins. Disks and NBD exports have a size of their own.
pub(super) fn grow(site: &mut Site, name: &str, to: Bytes) {
    let Some(volume) = site.volumes.iter_mut().find(|volume| volume.name == name) else {
        return;
    };
    match &mut volume.backend {
        Backend::Null { size } | Backend::Memory { size } => *size = to.max(*size),
        Backend::File(file) => file.size = Some(file.size.map_or(to, |size| to.max(size))),
        Backend::Device(_) | Backend::Nbd(_) => {}
    }
}
