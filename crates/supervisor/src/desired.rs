//! What is to run: the site file, and what was changed on the running daemon since.
//!
//! Changes are kept in `node.state-directory` as an overlay, which is laid over the site file at the next start:
//! tenants, volumes, devices, networks and functions that were made, names that were removed, sizes that were grown to.

mod apply;
mod check;
mod overlay;
#[cfg(test)]
pub(super) mod tests;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use apply::apply;
pub(super) use check::Item;
use check::{LARGEST_SITE, errors, length};
use overlay::{FORMAT, LoadedFile, Overlay};
use softdpu_api::{Change, LoadResult, QueuePlacement};
use softdpu_link::kept::Kept;
use softdpu_site::{Backend, Problem, Site, Volume, is_name, read_file};

/// The overlay's file in the state directory.
const FILE: &str = "desired.json";

/// The largest that is read, bytes: indented, the [largest site](LARGEST_SITE) is less than four times as long.
const LARGEST_FILE: u64 = 4 * LARGEST_SITE as u64;

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
    /// Together they are more than a data plane can be sent.
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

/// What is to run.
#[derive(Debug)]
pub(super) struct Desired {
    site: Site,
    placements: Vec<QueuePlacement>,
    overlay: Overlay,
    path: PathBuf,
}

/// [`Desired`] as the next program of the supervisor is given it: the files are not read again, which may have changed
/// or be gone.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DesiredState {
    site: Site,
    placements: Vec<QueuePlacement>,
    overlay: Overlay,
}

impl DesiredState {
    /// What is to run.
    pub(super) fn site(&self) -> &Site {
        &self.site
    }
}

/// Whether `site` can run with what was changed on the daemon that ran last and is kept in `node.state-directory`.
/// If only that daemon may read it, nothing is reported.
///
/// # Errors
/// What [`run`](super::run) would refuse it for.
pub fn check_kept(site: Site) -> Result<(), StateError> {
    match fs::File::open(site.node.state_directory.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        _ => Desired::load(site).map(drop),
    }
}

/// All names that become parts of paths.
fn names(site: &Site) -> impl Iterator<Item = &str> {
    let devices = site.devices.iter();
    let domains = devices.clone().map(|device| &device.domain).filter(|domain| !domain.is_empty());
    let items = site.tenants.iter().map(|it| &it.name).chain(site.volumes.iter().map(|it| &it.name));
    let items = items.chain(site.networks.iter().map(|it| &it.name)).chain(site.functions.iter().map(|it| &it.name));
    items.chain(devices.map(|it| &it.name)).chain(domains).map(String::as_str)
}

impl Desired {
    /// The site file's content with the changes of earlier runs.
    pub(super) fn load(mut site: Site) -> Result<Desired, StateError> {
        let path = site.node.state_directory.join(FILE);
        let unreadable = |reason: String| StateError::Unreadable { path: path.clone(), reason };
        let overlay = match read_file(&path, LARGEST_FILE) {
            Ok(bytes) => {
                let mut overlay: Overlay =
                    serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))?;
                if overlay.format != FORMAT {
                    return Err(unreadable(format!("it has format {}, not {FORMAT}", overlay.format)));
                }
                if let Some(loaded) = overlay.loaded.as_mut().filter(|loaded| is_name(&loaded.file)) {
                    // That the file is not there is found when it is opened.
                    let kept = fs::File::open(site.node.state_directory.join(&loaded.file));
                    if let Ok(kept) = kept.and_then(|file| Kept::read(&file)) {
                        loaded.recount(kept.counts);
                    }
                }
                overlay
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Overlay::default(),
            Err(error) => return Err(unreadable(error.to_string())),
        };
        if overlay.changes_site() {
            overlay.lay_over(&mut site);
            let wrong = |name: &&str| !is_name(name);
            if let Some(name) =
                names(&site).find(wrong).or(overlay.loaded.iter().map(|it| it.file.as_str()).find(wrong))
            {
                return Err(unreadable(format!("{name:?} is no name: letters, digits, '.', '_' and '-', at most 63")));
            }
            let named = |problem: &Problem| problem.clone().named_in(&site).to_string();
            let mut problems: Vec<String> = errors(&site).iter().map(named).collect();
            problems.extend(overlay.loaded_without_network(&site));
            if problems.is_empty() {
                let mut full = Vec::new();
                site.check_tables(overlay.loaded_use(), &mut full);
                problems.extend(full.iter().map(named));
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

    pub(super) fn state(&self) -> DesiredState {
        let Desired { site, placements, overlay, .. } = self;
        DesiredState { site: site.clone(), placements: placements.clone(), overlay: overlay.clone() }
    }

    pub(super) fn resume(DesiredState { site, placements, overlay }: DesiredState) -> Desired {
        let path = site.node.state_directory.join(FILE);
        Desired { site, placements, overlay, path }
    }

    pub(super) fn site(&self) -> &Site {
        &self.site
    }

    /// Queues that were moved, for as long as the supervisor runs.
    pub(super) fn placements(&self) -> &[QueuePlacement] {
        &self.placements
    }

    /// The copy of the entries that are loaded.
    pub(super) fn loaded(&self) -> Option<&str> {
        self.overlay.loaded.as_ref().map(|loaded| loaded.file.as_str())
    }

    /// The networks that have loaded entries.
    pub(super) fn loaded_networks(&self) -> Vec<String> {
        self.overlay.loaded_networks().map(str::to_owned).collect()
    }

    /// Makes `change`, which was checked and done. Whether that is to be saved.
    pub(super) fn commit(&mut self, change: &Change) -> bool {
        apply(&mut self.site, change);
        match change {
            Change::QueueMove(placement) => {
                self.placements.retain(|old| (&old.device, old.queue) != (&placement.device, placement.queue));
                self.placements.push(placement.clone());
                return false;
            }
            Change::DeviceRemove { name } => self.placements.retain(|placement| placement.device != *name),
            _ => {}
        }
        self.overlay.record(change);
        true
    }

    /// Other entries are loaded, of which `copy` is the file in the state directory. That is to be saved.
    pub(super) fn commit_load(&mut self, copy: &str, found: &LoadResult) {
        self.overlay.loaded = LoadedFile::of(copy, found);
    }

    /// Other entries are loaded one by one, which is recorded in the file `copy`. Whether that is to be saved.
    pub(super) fn commit_entries(&mut self, copy: &str, found: &LoadResult) -> bool {
        let before = self.overlay.loaded.take();
        self.overlay.loaded = LoadedFile::of(copy, found);
        // How many there are is in the record.
        before.is_none_or(|before| self.loaded() != Some(&before.file))
    }

    /// The same entries are in the file `copy` now, which is to be saved. The file that they were in.
    pub(super) fn move_loaded(&mut self, copy: &str) -> Option<String> {
        Some(std::mem::replace(&mut self.overlay.loaded.as_mut()?.file, copy.to_owned()))
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

    /// What keeps all changes for the next start, when it is written.
    pub(super) fn snapshot(&self) -> io::Result<Snapshot> {
        Ok(Snapshot { path: self.path.clone(), bytes: serde_json::to_vec_pretty(&self.overlay)? })
    }
}

/// All changes as they are to be in the state directory.
#[derive(Debug)]
pub(super) struct Snapshot {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Snapshot {
    /// Puts it on the disk, which may take as long as the disk likes.
    pub(super) fn write(&self) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        #[cfg(test)]
        tests::wait_for_disk(folder);
        fs::create_dir_all(folder)?;
        let new = self.path.with_extension("new");
        // It may be there from a save that was interrupted, with other permissions.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // It says where keys and images are.
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(&self.bytes)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        fs::File::open(folder)?.sync_all()
    }
}
