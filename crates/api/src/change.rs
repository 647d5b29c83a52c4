//! Changes of what runs: each is declared here, once. The client asks for it, the supervisor checks and records it, the
//! data plane makes it, and all of them have this type.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use softdpu_site::{
    self as site, Bytes, Device, DeviceChange, Function, FunctionChange, MemberChange, NatChange, Network,
    NetworkChanges, PolicyChange, RoutingChange, ScaleChange, SteeringChange, Tenant, TenantChange, Volume,
};

use crate::methods::{Parameters, Unread, methods, written};
use crate::{ApiError, EndpointChange, EntryChanges, Unload};

methods! {
    /// A change of what runs.
    pub enum Change {
        /// A volume as a `[[volume]]` would declare it. Result: `{}`.
        "volume.create" => VolumeCreate(Volume),
        /// A larger size, which the guests see. Result: `{}`.
        "volume.grow" => VolumeGrow {
            /// The volume.
            name: String,
            /// Its new size; smaller than its present one is refused.
            size: Bytes,
        },
        /// Forget a volume that no device uses; its data stays where it is. Result: `{}`.
        "volume.delete" => VolumeDelete {
            /// The volume.
            name: String,
        },
        /// A device as a `[[device]]` would declare it. Result: [`DeviceArgs`](crate::DeviceArgs).
        "device.add" => DeviceAdd(Device),
        /// Other security groups, another access control list or meter, or other functions, of an interface. Result:
        /// `{}`; no packet passes by what was before from then on.
        "device.set" => DeviceSet(DeviceChange),
        /// Stop a device and close its socket. Result: `{}`.
        "device.remove" => DeviceRemove {
            /// The device.
            name: String,
        },
        /// A network as a `[[network]]` would declare it. Result: `{}`.
        "network.add" => NetworkAdd(Box<Network>),
        /// Forget a network that no device is attached to. Result: `{}`.
        "network.remove" => NetworkRemove {
            /// The network.
            name: String,
        },
        /// Guests of a network on other hosts come, go and move. Result: `{}`.
        "network.endpoints" => NetworkEndpoints(EndpointChange),
        /// Other security groups and access control lists in the place of all that networks have, each network once.
        /// Result: `{}`; no packet passes by those before from then on.
        "network.policy" => NetworkPolicy(Vec<PolicyChange>),
        /// Other routes, ECMP groups, route tables and peers in the place of all that networks have, each network once.
        /// Result: `{}`; no packet passes by those before from then on.
        "network.routing" => NetworkRouting(Vec<RoutingChange>),
        /// Other rules of translation in the place of all that networks have, each network once. Result: `{}`; no
        /// packet passes by those before from then on.
        "network.nat" => NetworkNat(Vec<NatChange>),
        /// Set a member of an ECMP group down or up, or give it another weight. Result: `{}`; no packet goes to a
        /// member that is down from then on.
        "network.member" => NetworkMember(MemberChange),
        /// Other loaded entries in the place of all there are, from a file. Result: [`LoadResult`](crate::LoadResult);
        /// no packet passes by the entries before from then on.
        "network.load" => NetworkLoad(LoadFile),
        /// Some loaded entries of a network go. Result: [`LoadResult`](crate::LoadResult) with what is left; no packet
        /// passes by them from then on.
        "network.unload" => NetworkUnload(Unload),
        /// Some loaded entries of a network come, go and are replaced. Result: [`LoadResult`](crate::LoadResult) with
        /// all that is loaded then; no packet passes by those before from then on.
        "network.entries" => NetworkEntries(EntryChanges),
        /// A function as a `[[function]]` would declare it; no interface has it yet. Result: `{}`.
        "function.add" => FunctionAdd(Function),
        /// Other settings of a function in the place of all that it has. Result: `{}`; no packet passes by those before
        /// from then on.
        "function.set" => FunctionSet(FunctionChange),
        /// Forget a function that no interface has. Result: `{}`.
        "function.remove" => FunctionRemove {
            /// The function.
            name: String,
        },
        /// Packets from tunnels are worked on elsewhere. Result: `{}`; each flow's stay in order.
        "network.steer" => NetworkSteer(SteeringChange),
        /// A tenant as a `[[tenant]]` would declare it; no device is its own yet. Result: `{}`.
        "tenant.add" => TenantAdd(Tenant),
        /// Another weight, class, guarantee or limits of a tenant, from then on. Result: `{}`.
        "tenant.set" => TenantSet(TenantChange),
        /// Forget a tenant that has no device, network or function. Result: `{}`.
        "tenant.remove" => TenantRemove {
            /// The tenant.
            name: String,
        },
        /// Let another core serve a queue, while it runs. Result: `{}`.
        "queue.move" => QueueMove(QueuePlacement),
        /// Other CPUs for the data plane, while it runs: cores join, leave, and go to another CPU. Result: `{}`; queues
        /// of cores that leave are on their way to the others.
        "node.scale" => NodeScale(ScaleChange),
    }
}

/// A queue that is moved away from the core it would be given by default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueuePlacement {
    /// The device.
    pub device: String,
    /// Which of its queues.
    pub queue: u16,
    /// The CPU, one of those in `node.dataplane.cores`.
    pub core: u32,
}

/// A file of entries to load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadFile {
    /// The file, by a path that does not depend on a current folder.
    pub path: PathBuf,
}

impl Change {
    /// The loaded entries that change one by one, if it is such a change.
    pub fn entries(&self) -> Option<EntryChanges> {
        match self {
            Change::NetworkUnload(unload) => Some(unload.into()),
            Change::NetworkEntries(changes) => Some(changes.clone()),
            _ => None,
        }
    }

    /// The name of what is changed; of the first network where there are several.
    pub fn subject(&self) -> &str {
        match self {
            Change::VolumeCreate(volume) => &volume.name,
            Change::DeviceAdd(device) => &device.name,
            Change::DeviceSet(change) => &change.name,
            Change::NetworkAdd(network) => &network.name,
            Change::NetworkEndpoints(change) => &change.network,
            Change::NetworkPolicy(changes) => changes.first().map_or("", |change| &change.network),
            Change::NetworkRouting(changes) => changes.first().map_or("", |change| &change.network),
            Change::NetworkNat(changes) => changes.first().map_or("", |change| &change.network),
            Change::NetworkMember(change) => &change.network,
            Change::NetworkLoad(_) => "",
            Change::NetworkUnload(unload) => &unload.network,
            Change::NetworkEntries(changes) => &changes.network,
            Change::FunctionAdd(function) => &function.name,
            Change::FunctionSet(change) => &change.name,
            Change::NetworkSteer(_) => "node.steering",
            Change::NodeScale(_) => "node.dataplane.cores",
            Change::TenantAdd(tenant) => &tenant.name,
            Change::TenantSet(change) => &change.name,
            Change::QueueMove(placement) => &placement.device,
            Change::VolumeGrow { name, .. }
            | Change::VolumeDelete { name }
            | Change::DeviceRemove { name }
            | Change::NetworkRemove { name }
            | Change::FunctionRemove { name }
            | Change::TenantRemove { name } => name,
        }
    }
}

impl From<NetworkChanges> for Change {
    fn from(change: NetworkChanges) -> Change {
        match change {
            NetworkChanges::Policy(changes) => Change::NetworkPolicy(changes),
            NetworkChanges::Routing(changes) => Change::NetworkRouting(changes),
            NetworkChanges::Nat(changes) => Change::NetworkNat(changes),
        }
    }
}

/// Parameters that have the shape of a table of the site file, and its reader.
macro_rules! parameters_of_site {
    ($($parameters:ty: $read:path),* $(,)?) => {$(
        impl Parameters for $parameters {
            fn read(unread: &Unread<'_>) -> Result<$parameters, ApiError> {
                unread.site($read)
            }
        }
    )*};
}

parameters_of_site! {
    Volume: site::volume_from_json,
    Network: site::network_from_json,
    Function: site::function_from_json,
    FunctionChange: site::function_change_from_json,
    ScaleChange: site::scale_change_from_json,
    SteeringChange: site::steering_change_from_json,
    Tenant: site::tenant_from_json,
    TenantChange: site::tenant_change_from_json,
}

impl Parameters for Device {
    fn read(unread: &Unread<'_>) -> Result<Device, ApiError> {
        unread.site(|parameters| site::device_from_json(parameters, unread.run_directory))
    }
}

impl<T: Parameters> Parameters for Box<T> {
    fn read(unread: &Unread<'_>) -> Result<Box<T>, ApiError> {
        T::read(unread).map(Box::new)
    }

    fn write(&self) -> Value {
        T::write(self)
    }
}

impl Parameters for EndpointChange {
    fn read(unread: &Unread<'_>) -> Result<EndpointChange, ApiError> {
        EndpointChange::decode(unread.typed()?)
    }
}

impl Parameters for EntryChanges {
    fn read(unread: &Unread<'_>) -> Result<EntryChanges, ApiError> {
        unread.typed().and_then(EntryChanges::checked)
    }
}

impl Parameters for LoadFile {
    fn read(unread: &Unread<'_>) -> Result<LoadFile, ApiError> {
        let file: LoadFile = unread.typed()?;
        if file.path.is_absolute() {
            return Ok(file);
        }
        Err(unread.invalid(format_args!("path {:?} is not absolute", file.path.display().to_string())))
    }
}

/// Parameters that are about one network, or about each of several.
macro_rules! parameters_of_networks {
    ($($change:ty: $read:path),* $(,)?) => {$(
        impl Parameters for Vec<$change> {
            fn read(unread: &Unread<'_>) -> Result<Vec<$change>, ApiError> {
                unread.site($read)
            }

            fn write(&self) -> Value {
                one_or_several(self)
            }
        }
    )*};
}

parameters_of_networks! {
    PolicyChange: site::policies_from_json,
    RoutingChange: site::routings_from_json,
    NatChange: site::nats_from_json,
}

impl Parameters for DeviceChange {}
impl Parameters for MemberChange {}
impl Parameters for QueuePlacement {}
impl Parameters for Unload {}

/// A change of one network by itself; of several in a list, where each has its `name`.
fn one_or_several<T: Serialize>(changes: &[T]) -> Value {
    if let [only] = changes {
        return written(only);
    }
    let named = |change: &T| {
        let mut change = written(change);
        if let Some(members) = change.as_object_mut()
            && let Some(name) = members.remove("network")
        {
            members.insert("name".to_owned(), name);
        }
        change
    };
    json!({ "network": changes.iter().map(named).collect::<Vec<_>>() })
}
