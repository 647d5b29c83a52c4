//! Whether a change may be made.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;

use serde::Serialize;
use softdpu_api::{ApiError, Change, EndpointChange, ErrorCode};
use softdpu_link::MAX_FRAME;
use softdpu_site::{
    Bytes, DEFAULT_TENANT, EcmpMember, Endpoint, FunctionChange, LARGEST_MEMBER_WEIGHT, MemberChange, NetworkChange,
    Places, Problem, Severity, Site, TableUse, full, nearest,
};

use super::Desired;
use super::apply::apply;

/// The longest site that a data plane can be sent, bytes of JSON: what else it is sent when it starts has the rest
/// of a frame.
pub(super) const LARGEST_SITE: usize = MAX_FRAME - (8 << 20);

/// What has a name of its own.
#[derive(Clone, Copy)]
pub(crate) enum Item {
    Volume,
    Device,
    Network,
    Function,
    Tenant,
}

impl Item {
    /// Whether `site` has one of that name.
    fn is_in(self, site: &Site, name: &str) -> bool {
        match self {
            Item::Volume => site.volume(name).is_some(),
            Item::Device => site.device(name).is_some(),
            Item::Network => site.network(name).is_some(),
            Item::Function => site.function(name).is_some(),
            Item::Tenant => site.tenant(name).is_some(),
        }
    }

    /// The names of all that `site` has.
    fn names(self, site: &Site) -> Vec<&str> {
        match self {
            Item::Volume => site.volumes.iter().map(|it| it.name.as_str()).collect(),
            Item::Device => site.devices.iter().map(|it| it.name.as_str()).collect(),
            Item::Network => site.networks.iter().map(|it| it.name.as_str()).collect(),
            Item::Function => site.functions.iter().map(|it| it.name.as_str()).collect(),
            Item::Tenant => site.tenants.iter().map(|it| it.name.as_str()).collect(),
        }
    }

    /// That `site` has none of that name; the one that was probably meant.
    pub(crate) fn unknown(self, site: &Site, name: &str) -> ApiError {
        let error = ApiError::new(ErrorCode::NotFound, format!("there is no {self} called {name:?}"));
        match nearest(name, self.names(site)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Item::Volume => "volume",
            Item::Device => "device",
            Item::Network => "network",
            Item::Function => "function",
            Item::Tenant => "tenant",
        })
    }
}

impl Desired {
    /// Whether `change` may be made. Errors tell the places in the file that it came by, if it did.
    pub(crate) fn check(&self, change: &Change, places: Option<&Places>) -> Result<(), ApiError> {
        self.check_names(change, places)?;
        match change {
            Change::VolumeDelete { name } => {
                let users = self.site.users(name).map(|device| device.name.as_str());
                is_unused(Item::Volume, name, users, "remove its devices first")
            }
            Change::FunctionRemove { name } => {
                let users = self.site.users_of_function(name).map(|device| device.name.as_str());
                is_unused(Item::Function, name, users, "take it from them by `device set --functions` first")
            }
            Change::NetworkRemove { name } => self.check_network_remove(name),
            Change::TenantRemove { name } => self.check_tenant_remove(name),
            Change::NetworkMember(change) => self.check_member(change),
            Change::NetworkUnload(unload) if self.overlay.loaded_of(&unload.network).is_none() => {
                let message = format!("network {:?} has no loaded entries", unload.network);
                Err(ApiError::new(ErrorCode::NotFound, message))
            }
            Change::QueueMove(placement) if !self.site.node.dataplane.cores.contains(&placement.core) => {
                let message = format!("CPU {} is not one of the data plane's", placement.core);
                let cores = &self.site.node.dataplane.cores;
                Err(ApiError::new(ErrorCode::Refused, message).hint(format!("they are {cores:?}")))
            }
            Change::NetworkLoad(_) | Change::NetworkUnload(_) | Change::NetworkEntries(_) | Change::QueueMove(_) => {
                Ok(())
            }
            Change::DeviceSet(device) if self.site.device(&device.name).is_some_and(|it| it.port().is_none()) => {
                let message = format!("device {:?} is in no network", device.name);
                Err(ApiError::new(ErrorCode::Refused, message))
            }
            Change::FunctionSet(function) => {
                self.check_kind(function)?;
                self.fits(change, places)
            }
            Change::NetworkEndpoints(endpoints) => {
                self.check_endpoints(endpoints)?;
                self.fits(change, places)
            }
            Change::NetworkSteer(steer) => match steer.stranger(&self.site.node.steering) {
                Some(rule) => {
                    let message = format!("there is no rule for {rule}");
                    let hint = "nothing was changed; `softdpu network steer list` lists the rules";
                    Err(ApiError::new(ErrorCode::NotFound, message).hint(hint))
                }
                None => self.fits(change, places),
            },
            Change::VolumeCreate(_)
            | Change::VolumeGrow { .. }
            | Change::DeviceAdd(_)
            | Change::DeviceSet(_)
            | Change::DeviceRemove { .. }
            | Change::NetworkAdd(_)
            | Change::NetworkPolicy(_)
            | Change::NetworkRouting(_)
            | Change::NetworkNat(_)
            | Change::FunctionAdd(_)
            | Change::TenantAdd(_)
            | Change::TenantSet(_)
            | Change::NodeScale(_) => self.fits(change, places),
        }
    }

    /// Whether what `change` makes has a name of its own, and what it changes is there.
    fn check_names(&self, change: &Change, places: Option<&Places>) -> Result<(), ApiError> {
        match change {
            Change::VolumeCreate(volume) => self.is_new_name(Item::Volume, &volume.name),
            Change::DeviceAdd(device) => self.is_new_name(Item::Device, &device.name),
            Change::NetworkAdd(network) => self.is_new_name(Item::Network, &network.name),
            Change::FunctionAdd(function) => self.is_new_name(Item::Function, &function.name),
            Change::TenantAdd(tenant) if tenant.name == DEFAULT_TENANT => {
                let message = format!("tenant {DEFAULT_TENANT:?} comes with the first device that names no other");
                Err(ApiError::new(ErrorCode::Refused, message).hint("give it its share by `tenant set` then"))
            }
            Change::TenantAdd(tenant) => self.is_new_name(Item::Tenant, &tenant.name),
            Change::VolumeGrow { name, .. } | Change::VolumeDelete { name } => self.is_there(Item::Volume, name),
            Change::DeviceSet(device) => self.is_there(Item::Device, &device.name),
            Change::DeviceRemove { name } => self.is_there(Item::Device, name),
            Change::QueueMove(placement) => self.is_there(Item::Device, &placement.device),
            Change::NetworkRemove { name } => self.is_there(Item::Network, name),
            Change::NetworkEndpoints(endpoints) => self.is_there(Item::Network, &endpoints.network),
            Change::NetworkEntries(changes) => self.is_there(Item::Network, &changes.network),
            Change::NetworkMember(member) => self.is_there(Item::Network, &member.network),
            Change::NetworkPolicy(changes) => self.are_there(changes, places),
            Change::NetworkRouting(changes) => self.are_there(changes, places),
            Change::NetworkNat(changes) => self.are_there(changes, places),
            Change::FunctionSet(function) => self.is_there(Item::Function, &function.name),
            Change::FunctionRemove { name } => self.is_there(Item::Function, name),
            Change::TenantSet(tenant) => self.is_there(Item::Tenant, &tenant.name),
            Change::TenantRemove { name } => self.is_there(Item::Tenant, name),
            Change::NetworkLoad(_) | Change::NetworkUnload(_) | Change::NetworkSteer(_) | Change::NodeScale(_) => {
                Ok(())
            }
        }
    }

    fn is_new_name(&self, item: Item, name: &str) -> Result<(), ApiError> {
        if !item.is_in(&self.site, name) {
            return Ok(());
        }
        Err(ApiError::new(ErrorCode::Exists, format!("there is a {item} called {name:?} already")))
    }

    fn is_there(&self, item: Item, name: &str) -> Result<(), ApiError> {
        if item.is_in(&self.site, name) {
            return Ok(());
        }
        Err(item.unknown(&self.site, name))
    }

    /// Whether all networks that are changed are there.
    fn are_there<T: NetworkChange>(&self, changes: &[T], places: Option<&Places>) -> Result<(), ApiError> {
        for (at, name) in changes.iter().map(T::network).enumerate() {
            self.is_there(Item::Network, name).map_err(|error| match places {
                Some(places) => ApiError { message: places.tell_name(at, error.message), ..error },
                None => error,
            })?;
        }
        Ok(())
    }

    fn check_network_remove(&self, name: &str) -> Result<(), ApiError> {
        if self.overlay.loaded_of(name).is_some() {
            let message = format!("network {name:?} has loaded entries");
            return Err(ApiError::new(ErrorCode::Busy, message).hint("load a file without them first"));
        }
        let peers = self.site.networks.iter().filter(|other| other.peers.iter().any(|peer| peer == name));
        let peers: Vec<&str> = peers.map(|network| network.name.as_str()).collect();
        if !peers.is_empty() {
            let message = format!("network {name:?} is a peer of {}", peers.join(", "));
            return Err(ApiError::new(ErrorCode::Busy, message).hint("take it out of their `peer` first"));
        }
        let devices = self.site.devices.iter();
        let users = devices.filter(|device| device.port().is_some_and(|port| port.network == name));
        is_unused(Item::Network, name, users.map(|device| device.name.as_str()), "remove its devices first")
    }

    fn check_tenant_remove(&self, name: &str) -> Result<(), ApiError> {
        if name == DEFAULT_TENANT {
            let message = format!("tenant {name:?} has every device that names no other");
            return Err(ApiError::new(ErrorCode::Refused, message));
        }
        let users = self.site.users_of_tenant(name);
        if users.is_empty() {
            return Ok(());
        }
        let message = format!("tenant {name:?} has {}", users.join(", "));
        Err(ApiError::new(ErrorCode::Busy, message).hint("remove them first"))
    }

    fn check_member(&self, change: &MemberChange) -> Result<(), ApiError> {
        let MemberChange { network, ecmp, member, .. } = change;
        if !self.site.network(network).is_some_and(|known| known.clone().change_member(change)) {
            let message = format!("ECMP group {ecmp:?} of network {network:?} has no member {member}");
            return Err(ApiError::new(ErrorCode::NotFound, message));
        }
        change.check().map_err(|message| ApiError::new(ErrorCode::Refused, message))
    }

    /// Whether a function keeps its kind.
    fn check_kind(&self, change: &FunctionChange) -> Result<(), ApiError> {
        let (name, other) = (&change.name, change.kind.name());
        match self.site.function(name).map(|known| known.kind.name()) {
            Some(kind) if kind != other => {
                let message = format!("function {name:?} is of kind `{kind}`, not `{other}`");
                let hint = "a function keeps its kind: add another, and give interfaces that one";
                Err(ApiError::new(ErrorCode::Refused, message).hint(hint))
            }
            _ => Ok(()),
        }
    }

    /// Whether all endpoints that are to be removed are there.
    fn check_endpoints(&self, change: &EndpointChange) -> Result<(), ApiError> {
        let EndpointChange { network, remove, .. } = change;
        let endpoints = self.site.network(network).map_or(&[][..], |network| &network.endpoints);
        let known: HashSet<&IpAddr> = endpoints.iter().flat_map(|endpoint| &endpoint.addresses).collect();
        match remove.iter().enumerate().find(|(_, address)| !known.contains(address)) {
            Some((at, address)) => {
                let message = format!("remove[{at}]: no endpoint of network {network:?} has the address {address}");
                Err(ApiError::new(ErrorCode::NotFound, message).hint("nothing was changed"))
            }
            None => Ok(()),
        }
    }

    /// Whether the site is one that can run after `change`.
    fn fits(&self, change: &Change, places: Option<&Places>) -> Result<(), ApiError> {
        let mut site = self.site.clone();
        apply(&mut site, change);
        self.has_room(&site, change, places)?;
        let problems = errors(&site);
        if !problems.is_empty() {
            return Err(refused(&site, &problems, places));
        }
        can_be_sent(&site).map_err(|found| {
            let (found, most) = (Bytes(found as u64), Bytes(LARGEST_SITE as u64));
            let message =
                format!("the site would be {found} long as the data plane is told it, and {most} is the most");
            ApiError::new(ErrorCode::Refused, message).hint("guests and routes by `network load` are not part of it")
        })
    }

    /// Whether the tables of endpoints and routes have room for those of `site`, which `change` made of this one.
    /// Otherwise what is loaded would not be when the data plane is started again, for all that the one which runs has
    /// room.
    fn has_room(&self, site: &Site, change: &Change, places: Option<&Places>) -> Result<(), ApiError> {
        let (before, after) = (TableUse::of(&self.site.networks), TableUse::of(&site.networks));
        let loaded = self.overlay.loaded_use();
        if after.routes > before.routes {
            let mut problems = Vec::new();
            site.check_tables(TableUse { routes: loaded.routes, ..TableUse::default() }, &mut problems);
            if !problems.is_empty() {
                return Err(refused(site, &problems, places));
            }
        }
        let capacity = site.node.tables.endpoints as usize;
        let wanted = after.endpoints + loaded.endpoints;
        let too_many = wanted.saturating_sub(capacity);
        let (list, added): (&str, &[Endpoint]) = match change {
            Change::NetworkEndpoints(change) => ("add", &change.add),
            Change::NetworkAdd(network) => ("endpoint", &network.endpoints),
            _ => return Ok(()),
        };
        if too_many == 0 || after.endpoints <= before.endpoints {
            return Ok(());
        }
        let at = added.len().saturating_sub(too_many);
        let address = added.get(at).and_then(|endpoint| endpoint.addresses.first());
        let address = address.map(ToString::to_string).unwrap_or_default();
        let message = format!("{list}[{at}], {address}: {}", full("endpoints", capacity, wanted));
        Err(ApiError::new(ErrorCode::Refused, message).hint("set `endpoints` in node.tables for more"))
    }
}

/// Whether nothing uses the item: `users` is empty.
fn is_unused<'a>(item: Item, name: &str, users: impl Iterator<Item = &'a str>, hint: &str) -> Result<(), ApiError> {
    let users: Vec<&str> = users.collect();
    if users.is_empty() {
        return Ok(());
    }
    let message = format!("{item} {name:?} is in use by {}", users.join(", "));
    Err(ApiError::new(ErrorCode::Busy, message).hint(hint))
}

/// That a site with `problems` cannot run, with their places in the file that the change came by, if it did.
fn refused(site: &Site, problems: &[Problem], places: Option<&Places>) -> ApiError {
    match places {
        Some(places) => ApiError::new(ErrorCode::Refused, places.tell(site, problems)),
        None => {
            let problems: Vec<Problem> = problems.iter().map(|problem| problem.clone().named_in(site)).collect();
            ApiError::from_problems(ErrorCode::Refused, &problems)
        }
    }
}

/// Whether a data plane can be sent `site`, as it is when one is started, whatever the states and weights of members
/// come to be: a request to set one down is not refused for that. How long that would be otherwise, bytes.
fn can_be_sent(site: &Site) -> Result<(), usize> {
    is_within(site, LARGEST_SITE)
}

pub(super) fn is_within(site: &Site, most: usize) -> Result<(), usize> {
    let members = site.networks.iter().flat_map(|network| &network.ecmp).flat_map(|group| &group.members);
    let growth = |member: &EcmpMember| {
        let longest = EcmpMember { down: true, weight: LARGEST_MEMBER_WEIGHT, ..member.clone() };
        length(&longest).saturating_sub(length(member))
    };
    let wanted = length(site) + members.map(growth).sum::<usize>();
    if wanted <= most { Ok(()) } else { Err(wanted) }
}

/// Bytes of JSON.
pub(super) fn length(what: &impl Serialize) -> usize {
    struct Length(usize);
    impl Write for Length {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut length = Length(0);
    // What cannot be encoded is an error when it is sent.
    let _ = serde_json::to_writer(&mut length, what);
    length.0
}

/// What is wrong with `site`.
pub(super) fn errors(site: &Site) -> Vec<Problem> {
    site.problems().into_iter().filter(|problem| problem.severity == Severity::Error).collect()
}
