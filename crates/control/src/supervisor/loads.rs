//! Files of loaded entries: a copy of each is taken into the state directory, on a thread of its own, before the data plane
//! reads it; the copy that is in force is in the vault and outlives data planes and supervisors.
//!
//! ```text
//!   FILE ──copy──▶ loaded-N.csv ──▶ data plane: right? ──▶ desired.json names it ──▶ the one before is removed
//!                       └── removed, where it is not
//! ```

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::fs::OFlags;
use serde_json::Value;
use softdpu_sys::wake::Doorbell;

use super::api::{InProgress, Purpose};
use super::desired::{Change, Load, StateError};
use super::run::RunError;
use super::state::Supervisor;
use super::unload;
use crate::api::{ApiError, ErrorCode, Unload};
use crate::config::{LONGEST_LINE, TableSizes};
use crate::link::LOADED;

/// What the copies are called.
const PREFIX: &str = "loaded-";
const SUFFIX: &str = ".csv";

/// Makes copies and collects what came of them; rings `bell` for each.
pub(super) struct Copier {
    results: Receiver<Result<Copied, String>>,
    sender: Sender<Result<Copied, String>>,
    bell: Arc<Doorbell>,
}

/// A copy that is complete and on the disk.
#[derive(Debug)]
pub(super) struct Copied {
    /// Its name in the state directory.
    pub(super) name: String,
    pub(super) file: OwnedFd,
}

impl Copier {
    pub(super) fn new(bell: Arc<Doorbell>) -> Copier {
        let (sender, results) = channel();
        Copier { results, sender, bell }
    }

    /// Copies `from` into `folder` as the file after `before`.
    pub(super) fn start(
        &self,
        from: PathBuf,
        folder: PathBuf,
        before: Option<&str>,
        sizes: TableSizes,
        without: Option<Unload>,
    ) -> io::Result<()> {
        let (sender, bell) = (self.sender.clone(), Arc::clone(&self.bell));
        let number = before.and_then(number).unwrap_or(0) + 1;
        let entries = u64::from(sizes.endpoints) + u64::from(sizes.routes);
        // Longer is nothing that fits; comments have room.
        let most = (entries + 1024) * LONGEST_LINE as u64;
        let copy = move || {
            let copied = copy(&from, &folder, &format!("{PREFIX}{number}{SUFFIX}"), most, without.as_ref());
            // The receiver is gone only when the supervisor is.
            let _ = sender.send(copied.map_err(|error| format!("{}: {error}", from.display())));
            bell.ring();
        };
        std::thread::Builder::new().name("copy".into()).spawn(copy).map(drop)
    }

    /// What is ready.
    pub(super) fn take(&self) -> Option<Result<Copied, String>> {
        self.results.try_recv().ok()
    }
}

fn number(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

fn copy(from: &Path, folder: &Path, name: &str, most: u64, without: Option<&Unload>) -> io::Result<Copied> {
    // NONBLOCK: a FIFO must not hang the thread.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut source = fs::OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(from)?;
    let told = source.metadata()?;
    if !told.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if told.len() > most {
        let message = format!("it has {} bytes: node.tables has room for the entries of {most}", told.len());
        return Err(io::Error::other(message));
    }
    fs::create_dir_all(folder)?;
    let path = folder.join(name);
    let copied = write(&mut source, &path, without);
    if copied.is_err() {
        let _ = fs::remove_file(&path);
    }
    fs::File::open(folder)?.sync_all()?;
    copied?;
    Ok(Copied { name: name.to_owned(), file: File::open(&path)?.into() })
}

fn write(source: &mut File, path: &Path, without: Option<&Unload>) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    match without {
        None => drop(io::copy(source, &mut file)?),
        Some(unload) => unload::filter(source, &mut file, unload)?,
    }
    file.sync_all()
}

/// Opens the copy that is in force.
pub(super) fn open(folder: &Path, name: &str) -> io::Result<OwnedFd> {
    File::open(folder.join(name)).map(OwnedFd::from)
}

/// Removes a copy that is not in force.
pub(super) fn remove(folder: &Path, name: &str) {
    if let Err(error) = fs::remove_file(folder.join(name)) {
        tracing::warn!(%error, name, "a copy of loaded entries that are not in force cannot be removed");
    }
}

/// Removes all copies but the one in force: those that a supervisor left behind which was killed.
pub(super) fn tidy(folder: &Path, in_force: Option<&str>) {
    let Ok(files) = fs::read_dir(folder) else { return };
    for name in files.flatten().filter_map(|file| file.file_name().into_string().ok()) {
        if number(&name).is_some() && in_force != Some(&name) {
            remove(folder, &name);
        }
    }
}

impl Supervisor {
    /// Begins to take a copy of a file.
    pub(super) fn copy(&self, load: &Load) -> Result<(), ApiError> {
        let node = &self.desired.site().node;
        let (folder, before) = (node.state_directory.clone(), self.desired.loaded());
        let begun = self.copier.start(load.path.clone(), folder, before, node.tables, load.without.clone());
        begun.map_err(|error| ApiError::new(ErrorCode::Failed, format!("there is no thread to copy it: {error}")))
    }

    /// A copy is made, or not: the data plane loads it.
    pub(super) fn copied(&mut self) {
        while let Some(result) = self.copier.take() {
            match (result, self.change.as_mut().map(|in_progress| &mut in_progress.change)) {
                (Ok(copied), Some(change @ Change::NetworkLoad(_))) => {
                    if let Change::NetworkLoad(load) = change {
                        load.copy = Some(copied.name);
                    }
                    let (call, file) = (change.call(), Arc::new(copied.file));
                    self.copied_file = Some(Arc::clone(&file));
                    if self.plane_is_ready() {
                        self.call_with(call, Purpose::Change, vec![file]);
                    } else {
                        let message = format!("the data plane is {}; nothing was changed", self.plane_state());
                        self.change_is_refused(
                            ApiError::new(ErrorCode::Unavailable, message).hint("try again in a moment"),
                        );
                        self.next_change();
                    }
                }
                (Err(error), Some(Change::NetworkLoad(_))) => {
                    self.change_is_refused(ApiError::new(ErrorCode::Failed, format!("cannot be copied: {error}")));
                    self.next_change();
                }
                (Ok(_) | Err(_), _) => tracing::error!("a file was copied that nobody asked for"),
            }
        }
    }

    /// What the data plane has found in the file of the change in progress.
    pub(super) fn load_found(&mut self, told: &Value) {
        if let Some(InProgress { change: Change::NetworkLoad(load), .. }) = &mut self.change {
            match serde_json::from_value(told.clone()) {
                Ok(found) => load.found = found,
                Err(error) => tracing::error!(%error, "what is loaded cannot be read"),
            }
        }
    }

    /// Other entries are in force than before; whether that is `saved`: the copy from before is needed otherwise.
    pub(super) fn load_is_recorded(&mut self, saved: bool) {
        let folder = self.desired.site().node.state_directory.clone();
        match (self.copied_file.take(), self.desired.loaded()) {
            (Some(file), Some(_)) => drop(self.vault.insert(LOADED.to_owned(), file)),
            _ => drop(self.vault.remove(LOADED)),
        }
        if saved {
            tidy(&folder, self.desired.loaded());
        }
    }

    /// Keeps what was loaded before this supervisor began.
    pub(super) fn keep_loaded(&mut self) -> Result<(), RunError> {
        let folder = &self.desired.site().node.state_directory;
        tidy(folder, self.desired.loaded());
        if let Some(name) = self.desired.loaded() {
            let unreadable = |error: std::io::Error| {
                RunError::State(StateError::Unreadable { path: folder.join(name), reason: error.to_string() })
            };
            let file = open(folder, name).map_err(unreadable)?;
            self.vault.insert(LOADED.to_owned(), Arc::new(file));
        }
        Ok(())
    }
}
