//! What is to run: the site file, and what was changed on the running daemon since.
//!
//! Changes are kept in `node.state-directory` as an overlay, which is laid over the site file at the next start: volumes and
//! devices that were made, names that were removed, sizes that were grown to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::api::{ApiError, ErrorCode};
use crate::config::{Backend, Bytes, DEFAULT_TENANT, Device, Problem, Severity, Site, Tenant, Volume};
use crate::link::{Call, Placement};

/// The overlay's file in the state directory.
const FILE: &str = "desired.json";

/// The overlay's format.
const FORMAT: u32 = 1;

/// Why the changes of an earlier run cannot be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// It cannot be read.
    #[error("the changes of the last run cannot be read from {}: {reason}", path.display())]
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
}

/// A change to what is to run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    VolumeCreate(Volume),
    VolumeGrow { name: String, size: Bytes },
    VolumeDelete { name: String },
    DeviceAdd(Device),
    DeviceRemove { name: String },
    QueueMove(Placement),
}

impl Change {
    /// What the data plane is asked to do.
    pub(super) fn call(&self) -> Call {
        match self.clone() {
            Change::VolumeCreate(volume) => Call::VolumeCreate { volume },
            Change::VolumeGrow { name, size } => Call::VolumeGrow { volume: name, size: size.0 },
            Change::VolumeDelete { name } => Call::VolumeDelete { volume: name },
            Change::DeviceAdd(device) => Call::DeviceAdd { device },
            Change::DeviceRemove { name } => Call::DeviceRemove { device: name },
            Change::QueueMove(placement) => Call::QueueMove(placement),
        }
    }
}

/// The changes since the site file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Overlay {
    format: u32,
    volumes: BTreeMap<String, Volume>,
    removed_volumes: BTreeSet<String>,
    grown: BTreeMap<String, Bytes>,
    devices: BTreeMap<String, Device>,
    removed_devices: BTreeSet<String>,
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
        }
    }
}

impl Overlay {
    fn lay_over(&self, site: &mut Site) {
        site.devices.retain(|device| !self.removed_devices.contains(&device.name));
        site.volumes.retain(|volume| !self.removed_volumes.contains(&volume.name));
        site.volumes.extend(self.volumes.values().cloned());
        for (name, size) in &self.grown {
            grow(site, name, *size);
        }
        for device in self.devices.values() {
            add_device(site, device.clone());
        }
    }

    fn record(&mut self, change: &Change) {
        match change.clone() {
            Change::VolumeCreate(volume) => {
                self.volumes.insert(volume.name.clone(), volume);
            }
            Change::VolumeGrow { name, size } => {
                self.grown.insert(name, size);
            }
            Change::VolumeDelete { name } => {
                self.grown.remove(&name);
                if self.volumes.remove(&name).is_none() {
                    self.removed_volumes.insert(name);
                }
            }
            Change::DeviceAdd(device) => {
                self.devices.insert(device.name.clone(), device);
            }
            Change::DeviceRemove { name } => {
                if self.devices.remove(&name).is_none() {
                    self.removed_devices.insert(name);
                }
            }
            Change::QueueMove(_) => {}
        }
    }
}

/// What is to run.
#[derive(Debug)]
pub(super) struct Desired {
    site: Site,
    placements: Vec<Placement>,
    overlay: Overlay,
    path: PathBuf,
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
        if overlay != Overlay::default() {
            overlay.lay_over(&mut site);
            let problems = errors(&site);
            if !problems.is_empty() {
                let problems = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                return Err(StateError::Contradiction { path, problems });
            }
            tracing::info!(path = %path.display(), "the site file is used with the changes of the last run");
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
            Change::VolumeCreate(_)
            | Change::VolumeGrow { .. }
            | Change::DeviceAdd(_)
            | Change::DeviceRemove { .. } => {
                let mut site = self.site.clone();
                apply(&mut site, change);
                let problems = errors(&site);
                if problems.is_empty() {
                    return Ok(());
                }
                Err(ApiError::from_problems(ErrorCode::Refused, &problems))
            }
            Change::QueueMove(placement) if !self.site.node.dataplane.cores.contains(&placement.core) => {
                let message = format!("CPU {} is not one of the data plane's", placement.core);
                let cores = &self.site.node.dataplane.cores;
                Err(ApiError::new(ErrorCode::Refused, message).hint(format!("they are {cores:?}")))
            }
            Change::QueueMove(_) => Ok(()),
        }
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

    fn save(&self) -> io::Result<()> {
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

fn errors(site: &Site) -> Vec<Problem> {
    site.problems().into_iter().filter(|problem| problem.severity == Severity::Error).collect()
}

fn apply(site: &mut Site, change: &Change) {
    match change {
        Change::VolumeCreate(volume) => site.volumes.push(volume.clone()),
        Change::VolumeGrow { name, size } => grow(site, name, *size),
        Change::VolumeDelete { name } => site.volumes.retain(|volume| volume.name != *name),
        Change::DeviceAdd(device) => add_device(site, device.clone()),
        Change::DeviceRemove { name } => site.devices.retain(|device| device.name != *name),
        Change::QueueMove(_) => {}
    }
}

fn add_device(site: &mut Site, device: Device) {
    if device.tenant == DEFAULT_TENANT && site.tenant(DEFAULT_TENANT).is_none() {
        site.tenants.push(Tenant { name: DEFAULT_TENANT.to_owned(), weight: 1 });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn site(folder: &Path) -> Site {
        let text = r#"
            [[volume]]
            name = "a"
            memory = { size = "1 MiB" }
            [[device]]
            name = "d"
            domain = "vm"
            virtio-blk = { volume = "a" }
        "#;
        let loaded = config::parse(text, "site.toml", folder, None);
        let mut site = loaded.site.unwrap_or_else(|| panic!("{:?}", loaded.report));
        site.node.state_directory = folder.join("state");
        site
    }

    fn volume(name: &str) -> Volume {
        config::volume_from_json(&serde_json::json!({"name": name, "null": {"size": "4 MiB"}})).unwrap()
    }

    fn device(name: &str, volume: &str) -> Device {
        let parameters = serde_json::json!({"name": name, "domain": "vm", "virtio-blk": {"volume": volume}});
        config::device_from_json(&parameters, Path::new("/run/softdpu")).unwrap()
    }

    #[test]
    fn changes_survive_the_supervisor_and_are_laid_over_the_site_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut desired = Desired::load(site(folder.path())).unwrap();
        let changes = [
            Change::VolumeCreate(volume("b")),
            Change::VolumeGrow { name: "b".into(), size: Bytes(8 << 20) },
            Change::VolumeGrow { name: "a".into(), size: Bytes(2 << 20) },
            Change::DeviceAdd(device("e", "b")),
            Change::DeviceRemove { name: "d".into() },
        ];
        for change in &changes {
            desired.check(change).unwrap();
            desired.commit(change).unwrap();
        }
        let again = Desired::load(site(folder.path())).unwrap();
        assert_eq!(again.site(), desired.site());
        assert!(again.site().device("d").is_none() && again.site().device("e").is_some());
        assert_eq!(again.site().volume("a").unwrap().backend.size(), Some(Bytes(2 << 20)));
        assert_eq!(again.site().volume("b").unwrap().backend.size(), Some(Bytes(8 << 20)));
    }

    #[test]
    fn what_was_made_and_removed_again_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let mut desired = Desired::load(site(folder.path())).unwrap();
        desired.commit(&Change::VolumeCreate(volume("b"))).unwrap();
        desired.commit(&Change::VolumeDelete { name: "b".into() }).unwrap();
        assert_eq!(desired.overlay, Overlay::default());
    }

    #[test]
    fn changes_that_contradict_the_site_are_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let desired = Desired::load(site(folder.path())).unwrap();
        let code = |change: &Change| desired.check(change).unwrap_err().code;
        assert_eq!(code(&Change::VolumeCreate(volume("a"))), ErrorCode::Exists);
        assert_eq!(code(&Change::DeviceAdd(device("d", "a"))), ErrorCode::Exists);
        assert_eq!(code(&Change::VolumeGrow { name: "x".into(), size: Bytes(1) }), ErrorCode::NotFound);
        assert_eq!(code(&Change::DeviceRemove { name: "x".into() }), ErrorCode::NotFound);
        assert_eq!(code(&Change::VolumeDelete { name: "a".into() }), ErrorCode::Busy);
        assert_eq!(code(&Change::DeviceAdd(device("e", "missing"))), ErrorCode::Refused);
    }

    #[test]
    fn a_damaged_state_file_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let site = site(folder.path());
        fs::create_dir_all(&site.node.state_directory).unwrap();
        fs::write(site.node.state_directory.join(FILE), "{").unwrap();
        let error = Desired::load(site).unwrap_err().to_string();
        assert!(error.contains("desired.json"), "{error}");
    }
}
