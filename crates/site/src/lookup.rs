//! What a site has, by name, and what uses it.

use super::function::Function;
use super::network::{Network, NetworkPort, UnderlayPath};
use super::site::{DEFAULT_TENANT, Device, Site, Volume};
use super::tenant::Tenant;

impl Site {
    /// The name of the item of that index in `[[section]]`.
    pub(super) fn name_of(&self, section: &str, index: usize) -> Option<&str> {
        match section {
            "tenant" => self.tenants.get(index).map(|it| it.name.as_str()),
            "volume" => self.volumes.get(index).map(|it| it.name.as_str()),
            "network" => self.networks.get(index).map(|it| it.name.as_str()),
            "function" => self.functions.get(index).map(|it| it.name.as_str()),
            "device" => self.devices.get(index).map(|it| it.name.as_str()),
            _ => None,
        }
    }

    /// The volume called `name`.
    pub fn volume(&self, name: &str) -> Option<&Volume> {
        self.volumes.iter().find(|volume| volume.name == name)
    }

    /// The device called `name`.
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// The tenant called `name`.
    pub fn tenant(&self, name: &str) -> Option<&Tenant> {
        self.tenants.iter().find(|tenant| tenant.name == name)
    }

    /// What belongs to the tenant called `name`: devices, networks, functions, each with what it is.
    pub fn users_of_tenant(&self, name: &str) -> Vec<String> {
        let devices = self.devices.iter().filter(|device| device.tenant == name).map(|it| ("device", &it.name));
        let is_its = |tenant: &Option<String>| tenant.as_deref() == Some(name);
        let networks = self.networks.iter().filter(|network| is_its(&network.tenant)).map(|it| ("network", &it.name));
        let functions =
            self.functions.iter().filter(|function| is_its(&function.tenant)).map(|it| ("function", &it.name));
        devices.chain(networks).chain(functions).map(|(kind, name)| format!("{kind} {name:?}")).collect()
    }

    /// The devices that use the volume called `name`.
    pub fn users<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Device> {
        self.devices.iter().filter(move |device| device.volume() == Some(name))
    }

    /// The function called `name`.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }

    /// The devices whose frames pass the function called `name`.
    pub fn users_of_function(&self, name: &str) -> impl Iterator<Item = &Device> {
        let uses = move |port: &NetworkPort| port.functions.iter().any(|used| used == name);
        self.devices.iter().filter(move |device| device.port().is_some_and(uses))
    }

    /// Adds [`DEFAULT_TENANT`] where a device belongs to it and the site does not declare it.
    pub fn declare_default_tenant(&mut self) {
        let needed = self.devices.iter().any(|device| device.tenant == DEFAULT_TENANT);
        if needed && self.tenant(DEFAULT_TENANT).is_none() {
            self.tenants.push(Tenant::called(DEFAULT_TENANT));
        }
    }

    /// The network called `name`.
    pub fn network(&self, name: &str) -> Option<&Network> {
        self.networks.iter().find(|network| network.name == name)
    }

    /// The devices that attach to the network called `name`.
    pub fn attached<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Device> {
        self.devices.iter().filter(move |device| device.port().is_some_and(|port| port.network == name))
    }

    /// The MTU of `network`, where the site file settles it: not if it depends on the underlay's interface.
    pub fn network_mtu(&self, network: &Network) -> Option<u16> {
        match self.node.underlay_path() {
            UnderlayPath::None => Some(network.mtu_over(None)),
            UnderlayPath::Known { mtu, overhead } => Some(network.mtu_over(Some((mtu, overhead)))),
            UnderlayPath::Unknown => network.mtu,
        }
    }

    /// The pairs of networks that name each other as peers.
    pub fn peerings(networks: &[Network]) -> impl Iterator<Item = (&str, &str)> {
        networks.iter().enumerate().flat_map(move |(at, one)| {
            let both = move |other: &&Network| one.peers.contains(&other.name) && other.peers.contains(&one.name);
            networks[at + 1..].iter().filter(both).map(|other| (one.name.as_str(), other.name.as_str()))
        })
    }
}
