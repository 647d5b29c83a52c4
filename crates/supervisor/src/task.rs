//! A change that a client asks for, as far as it is known, and how the log describes it.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use softdpu_api::{Change, EntryChanges, LoadFile, LoadResult, Request};
use softdpu_site::{NetworkChange, NetworkPart, Places};

use super::record::Record;

/// What is to be changed, as far as it is known.
#[derive(Debug)]
pub(super) enum Task {
    /// A request says all of it.
    Change(Change),
    /// A file that is to be read says what networks are to have.
    NetworksFile { part: NetworkPart, path: PathBuf },
    /// The file is read. Errors tell the places in it.
    FromFile { change: Change, places: Arc<Places> },
    /// Loaded entries, of which the data plane is given a copy.
    Load(Load),
    /// Single loaded entries.
    Entries(Entries),
}

/// Single loaded entries that come, go and are replaced.
#[derive(Debug)]
pub(super) struct Entries {
    /// As it was asked for.
    pub(super) change: Change,
    pub(super) changes: EntryChanges,
    /// Its record in the file of loaded entries. None: that file is being written anew, without the records that it
    /// has.
    pub(super) record: Option<Record>,
}

/// Other loaded entries.
#[derive(Debug)]
pub(super) struct Load {
    /// [`Change::NetworkLoad`].
    pub(super) change: Change,
    /// The file that is copied.
    pub(super) from: PathBuf,
    /// The copy in the state directory, when it is made.
    pub(super) copy: Option<String>,
    /// What is in it, when the data plane has looked.
    pub(super) found: LoadResult,
}

impl From<Change> for Task {
    fn from(change: Change) -> Task {
        match &change {
            Change::NetworkLoad(LoadFile { path }) => {
                let from = path.clone();
                Task::Load(Load { change, from, copy: None, found: LoadResult::default() })
            }
            _ => match change.entries() {
                Some(changes) => Task::Entries(Entries { change, changes, record: None }),
                None => Task::Change(change),
            },
        }
    }
}

impl Task {
    /// What a client has asked for.
    ///
    /// # Errors
    /// The method, if that changes nothing.
    pub(super) fn of(request: Request) -> Result<Task, &'static str> {
        match request {
            Request::Query(query) => Err(query.method()),
            Request::Change(change) => Ok(Task::from(change)),
            Request::NetworksFile { part, path } => Ok(Task::NetworksFile { part, path }),
        }
    }

    /// How a client has asked for it. None, once its file is read.
    pub(super) fn request(&self) -> Option<Request> {
        match self {
            Task::NetworksFile { part, path } => Some(Request::NetworksFile { part: *part, path: path.clone() }),
            Task::Change(change) | Task::Load(Load { change, .. }) | Task::Entries(Entries { change, .. }) => {
                Some(Request::Change(change.clone()))
            }
            Task::FromFile { .. } => None,
        }
    }

    /// The change, and where the file says it that it came by. None while that file is not read.
    pub(super) fn change(&self) -> Option<(&Change, Option<&Places>)> {
        match self {
            Task::Change(change) | Task::Load(Load { change, .. }) | Task::Entries(Entries { change, .. }) => {
                Some((change, None))
            }
            Task::FromFile { change, places } => Some((change, Some(places))),
            Task::NetworksFile { .. } => None,
        }
    }

    /// Whether a file is to be read, or copied, before the data plane can be asked.
    pub(super) fn waits_for_file(&self) -> bool {
        matches!(
            self,
            Task::NetworksFile { .. }
                | Task::Load(Load { copy: None, .. })
                | Task::Entries(Entries { record: None, .. })
        )
    }

    /// The method that asked for it, what it is about, and the method's parameters: what a program needs to follow the
    /// log.
    pub(super) fn describe(&self) -> (&'static str, &str, Value) {
        match self {
            Task::Change(change) | Task::Entries(Entries { change, .. }) => {
                (change.method(), change.subject(), change.parameters())
            }
            // A file may be far longer than a line of a log.
            Task::FromFile { change, places } => {
                (change.method(), change.subject(), json!({ "path": places.name(), "networks": networks(change) }))
            }
            Task::NetworksFile { part, path } => (part.method(), "", json!({ "path": path.display().to_string() })),
            Task::Load(Load { change, from, copy, found }) => {
                let parameters = json!({ "path": from.display().to_string(), "found": found });
                (change.method(), copy.as_deref().unwrap_or_default(), parameters)
            }
        }
    }
}

/// The networks that are changed, by name.
fn networks(change: &Change) -> Vec<&str> {
    match change {
        Change::NetworkPolicy(changes) => changes.iter().map(NetworkChange::network).collect(),
        Change::NetworkRouting(changes) => changes.iter().map(NetworkChange::network).collect(),
        Change::NetworkNat(changes) => changes.iter().map(NetworkChange::network).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use softdpu_api::{EndpointChange, QueuePlacement};
    use softdpu_site::{self as config, Bytes, TenantChange};

    use super::*;

    #[test]
    fn a_change_is_described_in_the_words_of_the_request_that_makes_it() {
        let volume = config::volume_from_json(&json!({"name": "b", "null": {"size": "4 MiB"}})).unwrap();
        let device = json!({"name": "e", "domain": "vm", "virtio-blk": {"volume": "b"}});
        let device = config::device_from_json(&device, Path::new("/run/softdpu")).unwrap();
        let text = "{\"name\":\"net\",\"vni\":7,\"cidr\":[\"10.0.0.0/16\"]}";
        let network = config::network_from_json(&serde_json::from_str(text).unwrap()).unwrap();
        let endpoints =
            EndpointChange { network: "net".into(), add: vec![], remove: vec!["10.0.0.9".parse().unwrap()] };
        let steer = json!({ "mode": "auto", "add": [{ "vni": 5, "core": 1 }], "remove": [{ "vni": 6 }] });
        let steer = config::steering_change_from_json(&steer).unwrap();
        for (change, method, name) in [
            (Change::VolumeCreate(volume), "volume.create", "b"),
            (Change::VolumeGrow { name: "b".into(), size: Bytes(8 << 20) }, "volume.grow", "b"),
            (Change::VolumeDelete { name: "b".into() }, "volume.delete", "b"),
            (Change::DeviceAdd(device), "device.add", "e"),
            (Change::DeviceRemove { name: "e".into() }, "device.remove", "e"),
            (Change::NetworkAdd(Box::new(network)), "network.add", "net"),
            (Change::NetworkRemove { name: "net".into() }, "network.remove", "net"),
            (Change::NetworkEndpoints(endpoints), "network.endpoints", "net"),
            (
                Change::TenantSet(TenantChange {
                    name: "t".into(),
                    weight: Some(3),
                    class: Some(config::LatencyClass::Latency),
                    guarantee: Some(config::Percent(125)),
                    limits: Some(config::TenantLimits {
                        iops: Some(5),
                        iops_burst: Some(64),
                        ..config::TenantLimits::default()
                    }),
                    meter: Some(None),
                }),
                "tenant.set",
                "t",
            ),
            (Change::TenantAdd(config::Tenant::called("t")), "tenant.add", "t"),
            (Change::TenantRemove { name: "t".into() }, "tenant.remove", "t"),
            (Change::NetworkSteer(steer), "network.steer", "node.steering"),
            (Change::NodeScale(config::ScaleChange { cores: vec![0, 2] }), "node.scale", "node.dataplane.cores"),
            (Change::QueueMove(QueuePlacement { device: "e".into(), queue: 1, core: 2 }), "queue.move", "e"),
        ] {
            let task = Task::from(change);
            let (described, subject, params) = task.describe();
            assert_eq!((described, subject), (method, name));
            let line = json!({ "softdpu": 1, "id": 1, "method": described, "params": params }).to_string();
            let (_, request) = softdpu_api::decode_request(line.as_bytes(), Path::new("/run/softdpu"))
                .unwrap_or_else(|rejected| panic!("{line}: {:?}", rejected.error));
            assert_eq!(request.method(), method);
        }
    }
}
