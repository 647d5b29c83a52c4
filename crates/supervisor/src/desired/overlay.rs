//! The changes since the site file, as they are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::apply::{add_device, grow};
use softdpu_api::{Change, EndpointChange, LoadResult, NetworkEntries};
use softdpu_site::{
    Bytes, Device, DeviceChange, Endpoint, Function, FunctionChange, FunctionKind, MemberChange, NatChange, Network,
    NetworkChange, PolicyChange, RoutingChange, ScaleChange, Site, SteeringChange, TableUse, Tenant, TenantChange,
    Volume,
};

/// The format. Members may be added that are left out where they are empty.
pub(super) const FORMAT: u32 = 1;

/// The changes since the site file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Overlay {
    pub(super) format: u32,
    volumes: BTreeMap<String, Volume>,
    removed_volumes: BTreeSet<String>,
    grown: BTreeMap<String, Bytes>,
    devices: BTreeMap<String, Device>,
    removed_devices: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    networks: BTreeMap<String, Network>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed_networks: BTreeSet<String>,
    /// Of the site file's networks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    endpoints: BTreeMap<String, Members>,
    /// Likewise: all groups and lists, in the place of those of the site file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    policies: BTreeMap<String, PolicyChange>,
    /// Likewise: all routes, groups, tables and peers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    routings: BTreeMap<String, RoutingChange>,
    /// Likewise: all rules of translation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    nats: BTreeMap<String, NatChange>,
    /// What members of the site file's ECMP groups were set to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    members: Vec<MemberChange>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    functions: BTreeMap<String, Function>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed_functions: BTreeSet<String>,
    /// What functions of the site file were set to.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    function_settings: BTreeMap<String, FunctionKind>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    tenants: BTreeMap<String, TenantChange>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    added_tenants: BTreeMap<String, Tenant>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed_tenants: BTreeSet<String>,
    /// What devices of the site file were put into, and what functions they were given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    memberships: BTreeMap<String, DeviceChange>,
    /// What was changed of where packets from tunnels are worked on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    steering: Option<SteeringChange>,
    /// The data plane's CPUs, in the place of those of the site file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scale: Option<ScaleChange>,
    /// What was loaded by file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) loaded: Option<LoadedFile>,
    /// Images that are made where they are missing, by their volumes, and that have been there: they are not made
    /// again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    images: BTreeMap<String, PathBuf>,
}

/// Entries that were loaded by file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoadedFile {
    /// The copy of the file, in the state directory.
    pub(super) file: String,
    /// How many guests are in it.
    pub(super) endpoints: u64,
    /// By network, and which networks.
    networks: BTreeMap<String, NetworkEntries>,
}

impl LoadedFile {
    /// What was `found` in the file of which `copy` is the copy; none without entries: that is what there is without a
    /// file.
    pub(super) fn of(copy: &str, found: &LoadResult) -> Option<LoadedFile> {
        let LoadResult { endpoints, networks, .. } = found;
        let file = || LoadedFile { file: copy.to_owned(), endpoints: *endpoints, networks: networks.clone() };
        (!networks.is_empty()).then(file)
    }

    /// Networks have `counts` entries, which changed after this was saved.
    pub(super) fn recount(&mut self, counts: BTreeMap<String, NetworkEntries>) {
        self.networks.extend(counts);
        self.networks.retain(|_, counts| *counts != NetworkEntries::default());
        self.endpoints = self.networks.values().map(|counts| counts.endpoints).sum();
    }
}

/// What was changed of a network's guests on other hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Members {
    added: Vec<Endpoint>,
    /// Addresses of those that the site file has.
    removed: BTreeSet<IpAddr>,
}

impl Members {
    fn change(&mut self, add: Vec<Endpoint>, remove: &[IpAddr]) {
        let (ours, theirs): (Vec<IpAddr>, Vec<IpAddr>) =
            remove.iter().partition(|address| self.added.iter().any(|endpoint| endpoint.addresses.contains(address)));
        self.added.retain(|endpoint| !endpoint.addresses.iter().any(|address| ours.contains(address)));
        self.added.extend(add);
        self.removed.extend(theirs);
    }
}

impl Default for Overlay {
    fn default() -> Self {
        Overlay {
            format: FORMAT,
            volumes: BTreeMap::new(),
            removed_volumes: BTreeSet::new(),
            grown: BTreeMap::new(),
            devices: BTreeMap::new(),
            removed_devices: BTreeSet::new(),
            networks: BTreeMap::new(),
            removed_networks: BTreeSet::new(),
            endpoints: BTreeMap::new(),
            policies: BTreeMap::new(),
            routings: BTreeMap::new(),
            nats: BTreeMap::new(),
            members: Vec::new(),
            memberships: BTreeMap::new(),
            loaded: None,
            functions: BTreeMap::new(),
            removed_functions: BTreeSet::new(),
            function_settings: BTreeMap::new(),
            steering: None,
            scale: None,
            images: BTreeMap::new(),
            tenants: BTreeMap::new(),
            added_tenants: BTreeMap::new(),
            removed_tenants: BTreeSet::new(),
        }
    }
}

impl Overlay {
    /// Whether it changes what the site file says.
    pub(super) fn changes_site(&self) -> bool {
        let Overlay { images, .. } = self.clone();
        *self != Overlay { images, ..Overlay::default() }
    }

    /// Whether there never was an image of `volume` at `path`.
    pub(super) fn is_new(&self, volume: &str, path: &Path) -> bool {
        !self.grown.contains_key(volume) && self.images.get(volume).is_none_or(|image| image != path)
    }

    /// An image of `volume` is at `path`. Whether that is news.
    pub(super) fn saw(&mut self, volume: &str, path: &Path) -> bool {
        self.images.insert(volume.to_owned(), path.to_owned()).is_none_or(|before| before != path)
    }

    /// There is no volume of that name.
    pub(super) fn forget_image(&mut self, volume: &str) {
        self.images.remove(volume);
    }

    /// What is loaded of a network.
    pub(super) fn loaded_of(&self, network: &str) -> Option<&NetworkEntries> {
        self.loaded.as_ref()?.networks.get(network)
    }

    /// What of the tables loaded entries fill.
    pub(super) fn loaded_use(&self) -> TableUse {
        let routes =
            self.loaded.iter().flat_map(|loaded| loaded.networks.values()).map(|network| network.routes as usize);
        let endpoints = self.loaded.as_ref().map_or(0, |loaded| loaded.endpoints as usize);
        TableUse { endpoints, routes: routes.sum() }
    }

    /// The networks that have loaded entries.
    pub(super) fn loaded_networks(&self) -> impl Iterator<Item = &str> {
        self.loaded.iter().flat_map(|loaded| loaded.networks.keys()).map(String::as_str)
    }

    /// Networks that have loaded entries and are not in the site, in words. The data plane would refuse all that is
    /// loaded.
    pub(super) fn loaded_without_network(&self, site: &Site) -> impl Iterator<Item = String> {
        let loaded = self.loaded.iter().flat_map(|loaded| &loaded.networks);
        let missing = loaded.filter(move |(name, _)| site.network(name).is_none());
        missing.map(|(name, NetworkEntries { endpoints, routes })| {
            format!("there is no network {name:?}, of which {endpoints} endpoints and {routes} routes are loaded")
        })
    }

    pub(super) fn lay_over(&self, site: &mut Site) {
        site.tenants.retain(|tenant| !self.removed_tenants.contains(&tenant.name));
        site.tenants.extend(self.added_tenants.values().cloned());
        site.devices.retain(|device| !self.removed_devices.contains(&device.name));
        for device in &mut site.devices {
            if let (Some(change), Some(port)) = (self.memberships.get(&device.name), device.port_mut()) {
                change.apply(port);
            }
        }
        site.volumes.retain(|volume| !self.removed_volumes.contains(&volume.name));
        site.volumes.extend(self.volumes.values().cloned());
        for (name, size) in &self.grown {
            grow(site, name, *size);
        }
        site.networks.retain(|network| !self.removed_networks.contains(&network.name));
        for network in &mut site.networks {
            if let Some(Members { added, removed }) = self.endpoints.get(&network.name) {
                let gone: Vec<IpAddr> = removed.iter().copied().collect();
                network.change_endpoints(added, &gone);
            }
            if let Some(policy) = self.policies.get(&network.name) {
                network.change_policy(policy);
            }
            if let Some(routing) = self.routings.get(&network.name) {
                network.change_routing(routing);
            }
            if let Some(nat) = self.nats.get(&network.name) {
                nat.apply(network);
            }
            for change in &self.members {
                // A member that the site file has no more is not missed.
                if change.network == network.name {
                    network.change_member(change);
                }
            }
        }
        site.networks.extend(self.networks.values().cloned());
        site.functions.retain(|function| !self.removed_functions.contains(&function.name));
        for function in &mut site.functions {
            if let Some(kind) = self.function_settings.get(&function.name) {
                function.kind = kind.clone();
            }
        }
        site.functions.extend(self.functions.values().cloned());
        for device in self.devices.values() {
            add_device(site, device.clone());
        }
        if let Some(change) = &self.scale {
            change.apply(&mut site.node.dataplane);
        }
        if let Some(change) = &self.steering {
            change.apply(&mut site.node.steering);
        }
        for tenant in &mut site.tenants {
            if let Some(change) = self.tenants.get(&tenant.name) {
                tenant.change(change);
            }
        }
    }

    pub(super) fn record(&mut self, change: &Change) {
        match change.clone() {
            Change::VolumeCreate(volume) => {
                // Of one of that name that the site file had.
                self.grown.remove(&volume.name);
                self.forget_image(&volume.name);
                self.volumes.insert(volume.name.clone(), volume);
            }
            Change::VolumeGrow { name, size } => {
                self.grown.insert(name, size);
            }
            Change::VolumeDelete { name } => {
                self.grown.remove(&name);
                self.forget_image(&name);
                if self.volumes.remove(&name).is_none() {
                    self.removed_volumes.insert(name);
                }
            }
            Change::DeviceAdd(device) => {
                self.devices.insert(device.name.clone(), device);
            }
            Change::DeviceSet(change) => match self.devices.get_mut(&change.name) {
                Some(made) => {
                    if let Some(port) = made.port_mut() {
                        change.apply(port);
                    }
                }
                None => match self.memberships.get_mut(&change.name) {
                    Some(before) => before.then(change),
                    None => drop(self.memberships.insert(change.name.clone(), change)),
                },
            },
            Change::DeviceRemove { name } => {
                self.memberships.remove(&name);
                if self.devices.remove(&name).is_none() {
                    self.removed_devices.insert(name);
                }
            }
            Change::NetworkAdd(network) => {
                self.networks.insert(network.name.clone(), *network);
            }
            Change::NetworkRemove { name } => {
                self.endpoints.remove(&name);
                self.policies.remove(&name);
                self.routings.remove(&name);
                self.nats.remove(&name);
                self.members.retain(|change| change.network != name);
                if self.networks.remove(&name).is_none() {
                    self.removed_networks.insert(name);
                }
            }
            Change::NetworkEndpoints(EndpointChange { network, add, remove }) => {
                if let Some(made) = self.networks.get_mut(&network) {
                    return made.change_endpoints(&add, &remove);
                }
                let members = self.endpoints.entry(network.clone()).or_default();
                members.change(add, &remove);
                if *members == Members::default() {
                    self.endpoints.remove(&network);
                }
            }
            Change::NetworkPolicy(changes) => {
                for change in changes {
                    match self.networks.get_mut(&change.network) {
                        Some(made) => made.change_policy(&change),
                        None => drop(self.policies.insert(change.network.clone(), change)),
                    }
                }
            }
            Change::NetworkRouting(changes) => {
                for change in changes {
                    // It says all that there is to say of members.
                    self.members.retain(|member| member.network != change.network);
                    match self.networks.get_mut(&change.network) {
                        Some(made) => made.change_routing(&change),
                        None => drop(self.routings.insert(change.network.clone(), change)),
                    }
                }
            }
            Change::NetworkNat(changes) => {
                for change in changes {
                    match self.networks.get_mut(&change.network) {
                        Some(made) => change.apply(made),
                        None => drop(self.nats.insert(change.network.clone(), change)),
                    }
                }
            }
            Change::NetworkMember(change) => {
                if let Some(made) = self.networks.get_mut(&change.network) {
                    made.change_member(&change);
                    return;
                }
                match self.members.iter_mut().find(|known| known.is_same_member(&change)) {
                    Some(before) => before.then(&change),
                    None => self.members.push(change),
                }
            }
            Change::FunctionAdd(function) => {
                self.functions.insert(function.name.clone(), function);
            }
            Change::FunctionSet(FunctionChange { name, kind }) => match self.functions.get_mut(&name) {
                Some(made) => made.kind = kind,
                None => drop(self.function_settings.insert(name, kind)),
            },
            Change::FunctionRemove { name } => {
                self.function_settings.remove(&name);
                if self.functions.remove(&name).is_none() {
                    self.removed_functions.insert(name);
                }
            }
            Change::NodeScale(change) => self.scale = Some(change),
            Change::NetworkSteer(change) => self.steering.get_or_insert_default().then(&change),
            Change::TenantAdd(tenant) => {
                // Of one of that name that the site file had.
                self.tenants.remove(&tenant.name);
                self.added_tenants.insert(tenant.name.clone(), tenant);
            }
            Change::TenantSet(change) => match self.added_tenants.get_mut(&change.name) {
                Some(added) => added.change(&change),
                None => match self.tenants.get_mut(&change.name) {
                    Some(before) => before.then(change),
                    None => drop(self.tenants.insert(change.name.clone(), change)),
                },
            },
            Change::TenantRemove { name } => {
                self.tenants.remove(&name);
                if self.added_tenants.remove(&name).is_none() {
                    self.removed_tenants.insert(name);
                }
            }
            // What is loaded is recorded with its file.
            Change::QueueMove(_) | Change::NetworkLoad(_) | Change::NetworkUnload(_) | Change::NetworkEntries(_) => {}
        }
    }
}
