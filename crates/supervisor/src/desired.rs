//! What is to run: the site file, and what was changed on the running daemon since.
//!
//! Changes are kept in `node.state-directory` as an overlay, which is laid over the site file at the next start: tenants,
//! volumes, devices, networks and functions that were made, names that were removed, sizes that were grown to.

mod overlay;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use thiserror::Error;

use overlay::{FORMAT, Overlay};
use softdpu_api::{ApiError, EndpointChange, ErrorCode, LoadResult, Unload};
use softdpu_link::{Call, MAX_FRAME, Placement};
use softdpu_site::{
    self as config, Backend, Bytes, DEFAULT_TENANT, Device, DeviceChange, EcmpMember, Endpoint, Function,
    FunctionChange, MemberChange, Network, NetworkPart, NetworksChange, Places, Problem, Severity, Site,
    SteeringChange, TableUse, Tenant, TenantChange, Volume,
};

/// The longest site that a data plane can be told of, bytes of JSON: what else it is told when it starts has the rest of a frame.
const LARGEST_SITE: usize = MAX_FRAME - (8 << 20);

/// The overlay's file in the state directory.
const FILE: &str = "desired.json";

/// Why the changes of an earlier run cannot be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// It cannot be read.
    #[error(
        "the changes of the last run cannot be read from {}: {reason}; restore it, or move it away to start as the site file says, \
         without tenants, volumes, devices, networks and functions that were made since, grown sizes, and what was changed or loaded",
        path.display()
    )]
    Unreadable {
        /// Where.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The site file and the changes contradict each other.
    #[error(
        "the site file contradicts the changes of the last run in {}: {problems}; change the site file, or remove that \
         file to forget the changes",
        path.display()
    )]
    Contradiction {
        /// Where.
        path: PathBuf,
        /// How.
        problems: String,
    },
    /// Together they are more than a data plane can be told.
    #[error(
        "the site file with the changes of the last run in {} is {found} bytes long as a data plane is told it, and {most} is the most; \
         guests and routes by `softdpu network load` are not part of it",
        path.display()
    )]
    TooLarge {
        /// Where the changes are.
        path: PathBuf,
        /// How long it is, bytes.
        found: usize,
        /// How long it may be, bytes.
        most: usize,
    },
}

/// Other loaded entries.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Load {
    /// The file as it was named.
    pub(super) path: PathBuf,
    /// It is what was loaded before, without these.
    pub(super) without: Option<Unload>,
    /// Its copy in the state directory, when that is made.
    pub(super) copy: Option<String>,
    /// What is in it, when the data plane has looked.
    pub(super) found: LoadResult,
}

/// A change to what is to run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    VolumeCreate(Volume),
    VolumeGrow {
        name: String,
        size: Bytes,
    },
    VolumeDelete {
        name: String,
    },
    DeviceAdd(Device),
    DeviceSet(DeviceChange),
    DeviceRemove {
        name: String,
    },
    NetworkAdd(Network),
    NetworkRemove {
        name: String,
    },
    NetworkEndpoints(EndpointChange),
    Networks {
        change: NetworksChange,
        /// Where the file says it that it came by.
        places: Option<Arc<Places>>,
    },
    /// What a file says, which is to be read.
    NetworksFile {
        part: NetworkPart,
        path: PathBuf,
    },
    NetworkMember(MemberChange),
    NetworkLoad(Load),
    FunctionAdd(Function),
    FunctionSet(FunctionChange),
    FunctionRemove {
        name: String,
    },
    NetworkSteer(SteeringChange),
    TenantAdd(Tenant),
    TenantSet(TenantChange),
    TenantRemove {
        name: String,
    },
    QueueMove(Placement),
}

impl Change {
    /// What the data plane is asked to do; None while a file is to be read first.
    pub(super) fn call(&self) -> Option<Call> {
        Some(match self.clone() {
            Change::VolumeCreate(volume) => Call::VolumeCreate { volume },
            Change::VolumeGrow { name, size } => Call::VolumeGrow { volume: name, size: size.0 },
            Change::VolumeDelete { name } => Call::VolumeDelete { volume: name },
            Change::DeviceAdd(device) => Call::DeviceAdd { device },
            Change::DeviceSet(change) => Call::DeviceSet(change),
            Change::DeviceRemove { name } => Call::DeviceRemove { device: name },
            Change::NetworkAdd(network) => Call::NetworkAdd { network },
            Change::NetworkRemove { name } => Call::NetworkRemove { network: name },
            Change::NetworkEndpoints(change) => Call::NetworkEndpoints(change),
            Change::Networks { change, .. } => Call::NetworksChange(change),
            Change::NetworksFile { .. } | Change::NetworkLoad(Load { copy: None, .. }) => return None,
            Change::NetworkMember(change) => Call::NetworkMember(change),
            Change::NetworkLoad(load) => {
                Call::NetworkLoad { name: load.path.display().to_string(), is_kept: load.without.is_some() }
            }
            Change::FunctionAdd(function) => Call::FunctionAdd { function },
            Change::FunctionSet(change) => Call::FunctionSet(change),
            Change::FunctionRemove { name } => Call::FunctionRemove { function: name },
            Change::NetworkSteer(change) => Call::NetworkSteer(change),
            Change::TenantAdd(tenant) => Call::TenantAdd { tenant },
            Change::TenantSet(change) => Call::TenantSet(change),
            Change::TenantRemove { name } => Call::TenantRemove { tenant: name },
            Change::QueueMove(placement) => Call::QueueMove(placement),
        })
    }

    /// The method that made it, what it is about, and the method's parameters: what a program needs to follow the log.
    pub(super) fn describe(&self) -> (&'static str, &str, Value) {
        match self {
            Change::VolumeCreate(volume) => ("volume.create", &volume.name, value(volume)),
            Change::VolumeGrow { name, size } => ("volume.grow", name, json!({ "name": name, "size": size })),
            Change::VolumeDelete { name } => ("volume.delete", name, json!({ "name": name })),
            Change::DeviceAdd(device) => ("device.add", &device.name, value(device)),
            Change::DeviceSet(change) => ("device.set", &change.name, value(change)),
            Change::DeviceRemove { name } => ("device.remove", name, json!({ "name": name })),
            Change::NetworkAdd(network) => ("network.add", &network.name, value(network)),
            Change::NetworkRemove { name } => ("network.remove", name, json!({ "name": name })),
            Change::NetworkEndpoints(change) => ("network.endpoints", &change.network, value(change)),
            // A file may be far longer than a line of a log.
            Change::Networks { change, places: Some(places) } => (
                change.part().method(),
                change.networks().first().copied().unwrap_or_default(),
                json!({ "path": places.name(), "networks": change.networks() }),
            ),
            Change::Networks { change, places: None } => {
                (change.part().method(), change.networks().first().copied().unwrap_or_default(), change.to_json())
            }
            Change::NetworksFile { part, path } => (part.method(), "", json!({ "path": path })),
            Change::NetworkMember(change) => ("network.member", &change.network, value(change)),
            Change::NetworkLoad(Load { without: Some(unload), copy, .. }) => {
                ("network.unload", copy.as_deref().unwrap_or_default(), value(unload))
            }
            Change::NetworkLoad(load) => (
                "network.load",
                load.copy.as_deref().unwrap_or_default(),
                json!({ "path": load.path, "found": load.found }),
            ),
            Change::FunctionAdd(function) => ("function.add", &function.name, value(function)),
            Change::FunctionSet(change) => ("function.set", &change.name, value(change)),
            Change::FunctionRemove { name } => ("function.remove", name, json!({ "name": name })),
            Change::NetworkSteer(change) => ("network.steer", "node.steering", value(change)),
            Change::TenantAdd(tenant) => ("tenant.add", &tenant.name, value(tenant)),
            Change::TenantSet(change) => ("tenant.set", &change.name, value(change)),
            Change::TenantRemove { name } => ("tenant.remove", name, json!({ "name": name })),
            Change::QueueMove(placement) => ("queue.move", &placement.device, value(placement)),
        }
    }
}

/// As JSON; null for a path that is no UTF-8, which no management request can name.
fn value(part: &impl Serialize) -> Value {
    serde_json::to_value(part).unwrap_or_default()
}

/// What is to run.
#[derive(Debug)]
pub(super) struct Desired {
    site: Site,
    placements: Vec<Placement>,
    overlay: Overlay,
    path: PathBuf,
}

/// Whether `site` can run with what was changed on the daemon that ran last and is kept in `node.state-directory`. Nobody but that daemon
/// may be able to read it: then nothing is said.
///
/// # Errors
/// What [`run`](super::run) would refuse it for.
pub fn check_kept(site: Site) -> Result<(), StateError> {
    match fs::File::open(site.node.state_directory.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        _ => Desired::load(site).map(drop),
    }
}

impl Desired {
    /// The site file's content with the changes of earlier runs.
    pub(super) fn load(mut site: Site) -> Result<Desired, StateError> {
        let path = site.node.state_directory.join(FILE);
        let unreadable = |reason: String| StateError::Unreadable { path: path.clone(), reason };
        let overlay = match fs::read(&path) {
            Ok(bytes) => {
                let overlay: Overlay = serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))?;
                if overlay.format != FORMAT {
                    return Err(unreadable(format!("it has format {}, not {FORMAT}", overlay.format)));
                }
                overlay
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Overlay::default(),
            Err(error) => return Err(unreadable(error.to_string())),
        };
        if overlay.changes_site() {
            overlay.lay_over(&mut site);
            let mut problems: Vec<String> = errors(&site).iter().map(ToString::to_string).collect();
            problems.extend(overlay.loaded_without_network(&site));
            if problems.is_empty() {
                let mut full = Vec::new();
                site.check_tables(overlay.loaded_use(), &mut full);
                problems.extend(full.iter().map(ToString::to_string));
            }
            if !problems.is_empty() {
                return Err(StateError::Contradiction { path, problems: problems.join("; ") });
            }
            tracing::info!(path = %path.display(), "the site file is used with the changes of the last run");
        }
        // As it is: one that an earlier release took starts.
        let found = length(&site);
        if found > LARGEST_SITE {
            return Err(StateError::TooLarge { path, found, most: LARGEST_SITE });
        }
        Ok(Desired { site, placements: Vec::new(), overlay, path })
    }

    pub(super) fn site(&self) -> &Site {
        &self.site
    }

    /// Queues that were moved, for as long as the supervisor runs.
    pub(super) fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// Whether `change` may be made.
    pub(super) fn check(&self, change: &Change) -> Result<(), ApiError> {
        let missing = |what: &str, name: &str| {
            Err(ApiError::new(ErrorCode::NotFound, format!("there is no {what} called {name:?}")))
        };
        let exists = |what: &str, name: &str| {
            Err(ApiError::new(ErrorCode::Exists, format!("there is a {what} called {name:?} already")))
        };
        match change {
            Change::VolumeCreate(volume) if self.site.volume(&volume.name).is_some() => exists("volume", &volume.name),
            Change::DeviceAdd(device) if self.site.device(&device.name).is_some() => exists("device", &device.name),
            Change::VolumeGrow { name, .. } | Change::VolumeDelete { name } if self.site.volume(name).is_none() => {
                missing("volume", name)
            }
            Change::DeviceRemove { name } if self.site.device(name).is_none() => missing("device", name),
            Change::DeviceSet(change) => match self.site.device(&change.name).map(Device::port) {
                None => missing("device", &change.name),
                Some(None) => {
                    let message = format!("device {:?} is in no network", change.name);
                    Err(ApiError::new(ErrorCode::Refused, message))
                }
                Some(Some(_)) => self.fits(&Change::DeviceSet(change.clone())),
            },
            Change::NetworkAdd(network) if self.site.network(&network.name).is_some() => {
                exists("network", &network.name)
            }
            Change::NetworkRemove { name } if self.site.network(name).is_none() => missing("network", name),
            Change::NetworkEndpoints(change) if self.site.network(&change.network).is_none() => {
                missing("network", &change.network)
            }
            Change::Networks { change: networks, places } => {
                let names = networks.networks();
                match (names.iter().position(|name| self.site.network(name).is_none()), places) {
                    (None, _) => self.fits(change),
                    (Some(at), None) => missing("network", names[at]),
                    (Some(at), Some(places)) => {
                        let message = format!("there is no network called {:?}", names[at]);
                        Err(ApiError::new(ErrorCode::NotFound, places.tell_name(at, message)))
                    }
                }
            }
            Change::NetworksFile { .. } => Ok(()),
            Change::NetworkMember(change) => match self.site.network(&change.network) {
                None => missing("network", &change.network),
                Some(network) if !network.clone().change_member(change) => {
                    let MemberChange { ecmp, member, .. } = change;
                    let message = format!("ECMP group {ecmp:?} of network {:?} has no member {member}", network.name);
                    Err(ApiError::new(ErrorCode::NotFound, message))
                }
                Some(_) => change.check().map_err(|message| ApiError::new(ErrorCode::Refused, message)),
            },
            Change::FunctionAdd(function) if self.site.function(&function.name).is_some() => {
                exists("function", &function.name)
            }
            Change::FunctionSet(change) => match self.site.function(&change.name).map(|known| known.kind.name()) {
                None => missing("function", &change.name),
                Some(kind) if kind != change.kind.name() => {
                    let (name, other) = (&change.name, change.kind.name());
                    let message = format!("function {name:?} is of kind `{kind}`, not `{other}`");
                    let hint = "a function keeps its kind: add another, and give interfaces that one";
                    Err(ApiError::new(ErrorCode::Refused, message).hint(hint))
                }
                Some(_) => self.fits(&Change::FunctionSet(change.clone())),
            },
            Change::FunctionRemove { name } if self.site.function(name).is_none() => missing("function", name),
            Change::FunctionRemove { name } => {
                let users: Vec<&str> = self.site.users_of_function(name).map(|device| device.name.as_str()).collect();
                if users.is_empty() {
                    return Ok(());
                }
                let message = format!("function {name:?} is in use by {}", users.join(", "));
                Err(ApiError::new(ErrorCode::Busy, message).hint("take it from them by `device set --functions` first"))
            }
            Change::TenantAdd(tenant) if tenant.name == DEFAULT_TENANT => {
                let message = format!("tenant {DEFAULT_TENANT:?} comes with the first device that names no other");
                Err(ApiError::new(ErrorCode::Refused, message).hint("give it its share by `tenant set` then"))
            }
            Change::TenantAdd(tenant) if self.site.tenant(&tenant.name).is_some() => exists("tenant", &tenant.name),
            Change::TenantSet(change) if self.site.tenant(&change.name).is_none() => missing("tenant", &change.name),
            Change::TenantRemove { name } if self.site.tenant(name).is_none() => missing("tenant", name),
            Change::TenantRemove { name } => self.may_go(name),
            Change::QueueMove(placement) if self.site.device(&placement.device).is_none() => {
                missing("device", &placement.device)
            }
            Change::VolumeDelete { name } => {
                let users: Vec<&str> = self.site.users(name).map(|device| device.name.as_str()).collect();
                if users.is_empty() {
                    return Ok(());
                }
                let message = format!("volume {name:?} is in use by {}", users.join(", "));
                Err(ApiError::new(ErrorCode::Busy, message).hint("remove its devices first"))
            }
            Change::NetworkRemove { name } if self.overlay.loaded_of(name).is_some() => {
                let message = format!("network {name:?} has loaded entries");
                Err(ApiError::new(ErrorCode::Busy, message).hint("load a file without them first"))
            }
            Change::NetworkRemove { name } if self.site.networks.iter().any(|other| other.peers.contains(name)) => {
                let peers = self.site.networks.iter().filter(|other| other.peers.contains(name));
                let peers: Vec<&str> = peers.map(|network| network.name.as_str()).collect();
                let message = format!("network {name:?} is a peer of {}", peers.join(", "));
                Err(ApiError::new(ErrorCode::Busy, message).hint("take it out of their `peer` first"))
            }
            Change::NetworkRemove { name } => {
                let users =
                    self.site.devices.iter().filter(|device| device.port().is_some_and(|port| port.network == *name));
                let users: Vec<&str> = users.map(|device| device.name.as_str()).collect();
                if users.is_empty() {
                    return Ok(());
                }
                let message = format!("network {name:?} is in use by {}", users.join(", "));
                Err(ApiError::new(ErrorCode::Busy, message).hint("remove its devices first"))
            }
            Change::NetworkEndpoints(endpoints) => match self.stranger(endpoints) {
                Some((at, address)) => {
                    let network = &endpoints.network;
                    let message = format!("remove[{at}]: no endpoint of network {network:?} has the address {address}");
                    Err(ApiError::new(ErrorCode::NotFound, message).hint("nothing was changed"))
                }
                None => self.fits(change),
            },
            Change::NetworkLoad(Load { without: Some(unload), .. })
                if self.overlay.loaded_of(&unload.network).is_none() =>
            {
                let message = format!("network {:?} has no loaded entries", unload.network);
                Err(ApiError::new(ErrorCode::NotFound, message))
            }
            Change::NetworkLoad(_) => Ok(()),
            Change::NetworkSteer(steer) => match steer.stranger(&self.site.node.steering) {
                Some(rule) => {
                    let message = format!("there is no rule for {rule}");
                    let hint = "nothing was changed; `softdpu network steer list` lists the rules";
                    Err(ApiError::new(ErrorCode::NotFound, message).hint(hint))
                }
                None => self.fits(change),
            },
            Change::NetworkAdd(_)
            | Change::FunctionAdd(_)
            | Change::TenantAdd(_)
            | Change::TenantSet(_)
            | Change::VolumeCreate(_)
            | Change::VolumeGrow { .. }
            | Change::DeviceAdd(_)
            | Change::DeviceRemove { .. } => self.fits(change),
            Change::QueueMove(placement) if !self.site.node.dataplane.cores.contains(&placement.core) => {
                let message = format!("CPU {} is not one of the data plane's", placement.core);
                let cores = &self.site.node.dataplane.cores;
                Err(ApiError::new(ErrorCode::Refused, message).hint(format!("they are {cores:?}")))
            }
            Change::QueueMove(_) => Ok(()),
        }
    }

    /// Whether the tenant of that name may be removed: nothing is its own.
    fn may_go(&self, tenant: &str) -> Result<(), ApiError> {
        if tenant == DEFAULT_TENANT {
            let message = format!("tenant {tenant:?} is whose every device is that names no other");
            return Err(ApiError::new(ErrorCode::Refused, message));
        }
        let users = self.site.users_of_tenant(tenant);
        if users.is_empty() {
            return Ok(());
        }
        let message = format!("tenant {tenant:?} has {}", users.join(", "));
        Err(ApiError::new(ErrorCode::Busy, message).hint("remove them first"))
    }

    /// Whether the site is one that can run after `change`.
    fn fits(&self, change: &Change) -> Result<(), ApiError> {
        let mut site = self.site.clone();
        apply(&mut site, change);
        self.has_room(&site, change)?;
        match (errors(&site).as_slice(), change) {
            ([], _) => is_told(&site).map_err(|found| {
                let (found, most) = (Bytes(found as u64), Bytes(LARGEST_SITE as u64));
                let message =
                    format!("the site would be {found} long as the data plane is told it, and {most} is the most");
                ApiError::new(ErrorCode::Refused, message)
                    .hint("guests and routes by `network load` are not part of it")
            }),
            (problems, Change::Networks { places: Some(places), .. }) => {
                Err(ApiError::new(ErrorCode::Refused, places.tell(&site, problems)))
            }
            (problems, _) => Err(ApiError::from_problems(ErrorCode::Refused, problems)),
        }
    }

    /// Whether the tables of endpoints and routes have room for those of `site`, which `change` made of this one. Otherwise what is loaded would
    /// not be when the data plane is started again, for all that the one which runs has room.
    fn has_room(&self, site: &Site, change: &Change) -> Result<(), ApiError> {
        let (before, after) = (TableUse::of(&self.site.networks), TableUse::of(&site.networks));
        let loaded = self.overlay.loaded_use();
        if after.routes > before.routes {
            let mut problems = Vec::new();
            site.check_tables(TableUse { routes: loaded.routes, ..TableUse::default() }, &mut problems);
            match change {
                _ if problems.is_empty() => {}
                Change::Networks { places: Some(places), .. } => {
                    return Err(ApiError::new(ErrorCode::Refused, places.tell(site, &problems)));
                }
                _ => return Err(ApiError::from_problems(ErrorCode::Refused, &problems)),
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
        let message = format!("{list}[{at}], {address}: {}", config::full("endpoints", capacity, wanted));
        Err(ApiError::new(ErrorCode::Refused, message).hint("set `endpoints` in node.tables for more"))
    }

    /// The copy of the entries that are loaded.
    pub(super) fn loaded(&self) -> Option<&str> {
        self.overlay.loaded.as_ref().map(|loaded| loaded.file.as_str())
    }

    /// The networks that have loaded entries.
    pub(super) fn loaded_networks(&self) -> Vec<String> {
        self.overlay.loaded_networks().map(str::to_owned).collect()
    }

    /// The first address that is to be removed and that no endpoint has: which of them, and it.
    fn stranger(&self, change: &EndpointChange) -> Option<(usize, IpAddr)> {
        let known: HashSet<&IpAddr> =
            self.site.network(&change.network)?.endpoints.iter().flat_map(|endpoint| &endpoint.addresses).collect();
        change.remove.iter().copied().enumerate().find(|(_, address)| !known.contains(address))
    }

    /// Makes `change`, which was checked and done. An error says that it will not survive the supervisor.
    pub(super) fn commit(&mut self, change: &Change) -> io::Result<()> {
        apply(&mut self.site, change);
        match change {
            Change::QueueMove(placement) => {
                self.placements.retain(|old| (&old.device, old.queue) != (&placement.device, placement.queue));
                self.placements.push(placement.clone());
                return Ok(());
            }
            Change::DeviceRemove { name } => self.placements.retain(|placement| placement.device != *name),
            _ => {}
        }
        self.overlay.record(change);
        self.save()
    }

    /// Whether the image of `volume` may be made, if it is missing: it never was there.
    pub(super) fn is_new(&self, volume: &Volume) -> bool {
        matches!(&volume.backend, Backend::File(file) if self.overlay.is_new(&volume.name, &file.path))
    }

    /// Images are there, of volumes by their names. Whether that is to be saved.
    pub(super) fn saw<'a>(&mut self, images: impl Iterator<Item = (&'a str, &'a Path)>) -> bool {
        images.fold(false, |news, (volume, path)| self.overlay.saw(volume, path) || news)
    }

    /// There is no volume of that name.
    pub(super) fn forget_image(&mut self, volume: &str) {
        self.overlay.forget_image(volume);
    }

    /// Keeps all changes for the next start.
    pub(super) fn save(&self) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let new = self.path.with_extension("new");
        let mut file = fs::File::create(&new)?;
        file.write_all(&serde_json::to_vec_pretty(&self.overlay)?)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        fs::File::open(folder)?.sync_all()
    }
}

/// Whether a data plane can be told of `site`, as it is when one is started, whatever the states and weights of members come to be: who sets one
/// down is not refused for that. How long that would be otherwise, bytes.
fn is_told(site: &Site) -> Result<(), usize> {
    is_within(site, LARGEST_SITE)
}

fn is_within(site: &Site, most: usize) -> Result<(), usize> {
    let members = site.networks.iter().flat_map(|network| &network.ecmp).flat_map(|group| &group.members);
    let growth = |member: &EcmpMember| {
        let longest = EcmpMember { down: true, weight: softdpu_site::LARGEST_MEMBER_WEIGHT, ..member.clone() };
        length(&longest).saturating_sub(length(member))
    };
    let wanted = length(site) + members.map(growth).sum::<usize>();
    if wanted <= most { Ok(()) } else { Err(wanted) }
}

/// Bytes of JSON.
fn length(what: &impl Serialize) -> usize {
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
    // What is no JSON is told when it is sent.
    let _ = serde_json::to_writer(&mut length, what);
    length.0
}

fn errors(site: &Site) -> Vec<Problem> {
    site.problems().into_iter().filter(|problem| problem.severity == Severity::Error).collect()
}

fn apply(site: &mut Site, change: &Change) {
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
        Change::NetworkAdd(network) => site.networks.push(network.clone()),
        Change::NetworkRemove { name } => site.networks.retain(|network| network.name != *name),
        Change::NetworkEndpoints(EndpointChange { network, add, remove }) => {
            if let Some(network) = site.networks.iter_mut().find(|known| known.name == *network) {
                network.change_endpoints(add, remove);
            }
        }
        Change::Networks { change, .. } => change.apply(&mut site.networks),
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
        Change::NetworkSteer(change) => change.apply(&mut site.node.steering),
        Change::TenantSet(change) => {
            if let Some(tenant) = site.tenants.iter_mut().find(|known| known.name == change.name) {
                tenant.change(change);
            }
        }
        Change::TenantAdd(tenant) => site.tenants.push(tenant.clone()),
        Change::TenantRemove { name } => site.tenants.retain(|tenant| tenant.name != *name),
        Change::QueueMove(_) | Change::NetworkLoad(_) | Change::NetworksFile { .. } => {}
    }
}

fn add_device(site: &mut Site, device: Device) {
    if device.tenant == DEFAULT_TENANT && site.tenant(DEFAULT_TENANT).is_none() {
        site.tenants.push(Tenant::called(DEFAULT_TENANT));
    }
    site.devices.push(device);
}

/// Sizes only grow: a site file that was given a larger one since wins. Disks and NBD exports have a size of their own.
fn grow(site: &mut Site, name: &str, to: Bytes) {
    let Some(volume) = site.volumes.iter_mut().find(|volume| volume.name == name) else {
        return;
    };
    match &mut volume.backend {
        Backend::Null { size } | Backend::Memory { size } => *size = to.max(*size),
        Backend::File(file) => file.size = Some(file.size.map_or(to, |size| to.max(size))),
        Backend::Device(_) | Backend::Nbd(_) => {}
    }
}
