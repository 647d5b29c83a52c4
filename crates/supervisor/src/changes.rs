//! The desired state, and the changes of it that clients ask for: made one after the other, so that whatever the next
//! data plane is given was done by one before it.
//!
//! ```text
//!  push ──▶ checked ──▶ (file copied or read) ──▶ Make: the data plane does it ──▶ recorded, saved ──▶ Answer
//!             └───────────────┴──────────────────────────┴── Answer: refused, nothing is changed
//! ```
//!
//! Each method says what is to be done next, as a [`Step`]; the loop does it.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::clients::Ticket;
use super::copier::{self, Copied, Copier, CopyOf, FromFile};
use super::desired::{Desired, DesiredState, Item, StateError};
use super::front_ends::{FrontEnds, Port};
use super::plane::Plane;
use super::record::Record;
use super::reexec::Moment;
use super::saves::{Generation, Saves};
use super::supervisor::Timing;
use super::task::{Entries, Load, Task};
use super::vault::Vault;
use super::wanted::Wanted;
use softdpu_api::{ApiError, Change, ErrorCode, LoadResult, decode_request, encode_request};
use softdpu_link::kept::Kept;
use softdpu_link::{LOADED, Open, OpenFailure, SharedFd};
use softdpu_site::{NetworkChanges, Places, Site, Volume};
use softdpu_sys::wake::Doorbell;

/// So many bytes of records behind the entries that were loaded have the file written anew.
const MOST_RECORDS: u64 = 8 << 20;

/// What came of a request.
pub(super) type Outcome = Result<Value, ApiError>;

/// What is to be done next.
pub(super) enum Step {
    /// The data plane is to make a change, with these descriptors.
    Make(Box<Change>, Vec<SharedFd>),
    /// A request is answered.
    Answer(Ticket, Outcome),
}

fn not_there(what: &str, name: &str) -> OpenFailure {
    let message = format!("there is no {what} called {name:?}");
    OpenFailure { errno: Some(rustix::io::Errno::NOENT.raw_os_error()), message }
}

/// A change that is being made.
struct InProgress {
    task: Task,
    ticket: Ticket,
    /// The socket of a device that is being added.
    port: Option<Port>,
    /// The copy of the loaded entries that are to be, to be kept if the change is made.
    copy: Option<SharedFd>,
}

/// What waits for a save.
struct Waiting {
    generation: Generation,
    then: Then,
}

/// What is done when a save has ended.
enum Then {
    /// A change that is in force is answered.
    Answer { ticket: Ticket, outcome: Outcome, warning: Option<String> },
    /// The change in progress is recorded in the file that was written anew; the name of the one before.
    Record { file: SharedFd, before: String },
}

/// [`Changes`] as the next program of the supervisor is given them; none is being made.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangesState {
    pub(super) desired: DesiredState,
    /// What waits, as it was asked for.
    waiting: Vec<(Ticket, String)>,
    next_copy: u64,
    unsaved: Option<(String, Moment)>,
    recorded: u64,
    sync_at: Option<Moment>,
}

/// The desired state, and changes on their way to it.
pub(super) struct Changes {
    desired: Desired,
    waiting: VecDeque<(Task, Ticket)>,
    in_progress: Option<InProgress>,
    copier: Copier,
    /// A file that gives nothing for this long is given up.
    patience: Duration,
    /// Bytes of records behind the lines that were loaded.
    recorded: u64,
    saves: Saves,
    waits_for_save: Option<Waiting>,
}

impl Changes {
    /// Files are read on threads of their own, which ring `bell`.
    pub(super) fn new(desired: Desired, timing: Timing, bell: Arc<Doorbell>) -> Changes {
        let copier = Copier::new(Arc::clone(&bell));
        Changes {
            desired,
            waiting: VecDeque::new(),
            in_progress: None,
            copier,
            patience: timing.copy,
            recorded: 0,
            saves: Saves::new(bell, timing.slow_save),
            waits_for_save: None,
        }
    }

    pub(super) fn state(&self) -> ChangesState {
        let waiting = self.waiting.iter().filter_map(|(task, ticket)| {
            let request = encode_request(&ticket.id, &task.request()?);
            Some((ticket.clone(), request))
        });
        let (unsaved, sync_at) = self.saves.state();
        ChangesState {
            desired: self.desired.state(),
            waiting: waiting.collect(),
            next_copy: self.copier.next(),
            unsaved: unsaved.map(|(warning, again)| (warning, again.into())),
            recorded: self.recorded,
            sync_at: sync_at.map(Moment::from),
        }
    }

    /// Takes up what the program before had. An error says which change that waits cannot be read.
    pub(super) fn resume(state: ChangesState, timing: Timing, bell: Arc<Doorbell>) -> Result<Changes, String> {
        let mut changes = Changes::new(Desired::resume(state.desired), timing, bell);
        let run_directory = changes.site().node.run_directory.clone();
        for (ticket, request) in state.waiting {
            let (_, request) = decode_request(request.trim_end().as_bytes(), &run_directory)
                .map_err(|rejected| format!("a change that waits: {}", rejected.error.message))?;
            let task = Task::of(request).map_err(|method| format!("{method} waits among the changes"))?;
            changes.waiting.push_back((task, ticket));
        }
        changes.copier.count_on_from(state.next_copy);
        changes.recorded = state.recorded;
        let unsaved = state.unsaved.map(|(warning, again)| (warning, again.into()));
        changes.saves.resume(unsaved, state.sync_at.map(Instant::from));
        Ok(changes)
    }

    /// What threads do for changes, and no program may follow before it is done.
    pub(super) fn under_way(&self) -> Option<&'static str> {
        match () {
            () if self.in_progress.is_some() => Some("a change is being made"),
            () if self.copier.is_busy() => Some("a file is read or copied"),
            () => self.saves.under_way(),
        }
    }

    pub(super) fn desired(&self) -> &Desired {
        &self.desired
    }

    pub(super) fn site(&self) -> &Site {
        self.desired.site()
    }

    fn state_directory(&self) -> &Path {
        &self.site().node.state_directory
    }

    /// Puts what was loaded before this supervisor began into the vault.
    pub(super) fn keep_loaded(&mut self, vault: &mut Vault) -> Result<(), StateError> {
        let folder = self.desired.site().node.state_directory.clone();
        self.copier.count_from(&folder);
        copier::tidy(&folder, self.desired.loaded());
        if let Some(name) = self.desired.loaded() {
            let unreadable =
                |error: io::Error| StateError::Unreadable { path: folder.join(name), reason: error.to_string() };
            let file = fs::File::from(copier::open(&folder, name).map_err(unreadable)?);
            let kept = Kept::read(&file).map_err(unreadable)?;
            self.recorded = kept.end - kept.loaded;
            if file.metadata().is_ok_and(|file| file.len() > kept.end) {
                // What a crash has torn: the next record is to be behind one that is whole.
                let end = fs::OpenOptions::new().write(true).open(folder.join(name));
                end.and_then(|file| file.set_len(kept.end)).map_err(unreadable)?;
            }
            vault.keep_own(LOADED, Arc::new(OwnedFd::from(file).into()));
        }
        Ok(())
    }

    /// A client asks for a change.
    pub(super) fn push(&mut self, task: Task, ticket: Ticket) {
        self.waiting.push_back((task, ticket));
    }

    /// Whether a change is being made, or saved.
    pub(super) fn is_busy(&self) -> bool {
        self.in_progress.is_some() || self.waits_for_save.is_some()
    }

    /// Begins the next change, unless one is being made or saved. Nothing where it has to wait for a file.
    pub(super) fn next(&mut self, plane: &Plane, front_ends: &mut FrontEnds) -> Option<Step> {
        if self.is_busy() {
            return None;
        }
        let (mut task, ticket) = self.waiting.pop_front()?;
        match self.begin(&mut task, plane, front_ends) {
            Ok(port) => {
                let change = task.change().filter(|_| !task.waits_for_file()).map(|(change, _)| change.clone());
                self.in_progress = Some(InProgress { task, ticket, port, copy: None });
                change.map(|change| Step::Make(Box::new(change), Vec::new()))
            }
            Err(error) => Some(Step::Answer(ticket, Err(error))),
        }
    }

    /// Checks a change, and opens what it needs here.
    fn begin(&mut self, task: &mut Task, plane: &Plane, front_ends: &mut FrontEnds) -> Result<Option<Port>, ApiError> {
        if let Some((change, places)) = task.change() {
            self.desired.check(change, places)?;
        }
        if !plane.is_ready() {
            return Err(plane.unavailable("nothing can be changed now"));
        }
        match task {
            Task::Change(Change::DeviceAdd(device)) => {
                front_ends.open(device).map_err(|error| ApiError::new(ErrorCode::Failed, error.to_string()))
            }
            Task::Load(load) => self.copy(load).map(|()| None),
            Task::Entries(entries) => self.begin_entries(entries).map(|()| None),
            Task::NetworksFile { part, path } => {
                let begun = self.copier.read(*part, path.clone(), Instant::now() + self.patience);
                begun.map_err(|error| no_thread("read", &error)).map(|()| None)
            }
            Task::Change(_) | Task::FromFile { .. } => Ok(None),
        }
    }

    /// Begins to take a copy of a file.
    fn copy(&mut self, load: &Load) -> Result<(), ApiError> {
        self.start_copy(load.from.clone(), CopyOf::All)
    }

    fn start_copy(&mut self, from: PathBuf, what: CopyOf) -> Result<(), ApiError> {
        let node = &self.desired.site().node;
        let due = Instant::now() + self.patience;
        let begun = self.copier.start(from, node.state_directory.clone(), node.tables, what, due);
        begun.map_err(|error| no_thread("copy", &error))
    }

    /// Appends the record of a change of single entries; or begins to write the file anew where it has many.
    fn begin_entries(&mut self, entries: &mut Entries) -> Result<(), ApiError> {
        match self.desired.loaded() {
            Some(name) if self.recorded >= MOST_RECORDS => {
                let from = self.state_directory().join(name);
                self.start_copy(from, CopyOf::InForce)
            }
            _ => self.record(entries),
        }
    }

    fn record(&mut self, entries: &mut Entries) -> Result<(), ApiError> {
        let name = self.desired.loaded().map(str::to_owned);
        let is_new = name.is_none();
        let name = name.unwrap_or_else(|| self.copier.name());
        let record = Record::append(self.state_directory(), name, is_new, &entries.changes).map_err(|error| {
            let folder = self.state_directory().display();
            ApiError::new(ErrorCode::Failed, format!("cannot be recorded in {folder}: {error}; nothing was changed"))
        })?;
        entries.record = Some(record);
        Ok(())
    }

    /// The file of loaded entries is written anew: the change that waited for that is recorded there, when its name is
    /// saved.
    fn rewritten(&mut self, copy: &str, file: SharedFd) {
        let before = self.desired.move_loaded(copy).unwrap_or_default();
        let generation = self.saves.save(&self.desired);
        self.waits_for_save = Some(Waiting { generation, then: Then::Record { file, before } });
    }

    /// The name of the file that was written anew is saved.
    fn record_anew(&mut self, file: SharedFd, plane: &Plane, vault: &mut Vault) -> Result<Option<Step>, ApiError> {
        self.recorded = 0;
        vault.keep_own(LOADED, file);
        copier::tidy(self.state_directory(), self.desired.loaded());
        let Some(InProgress { task: Task::Entries(mut entries), ticket, port, copy }) = self.in_progress.take() else {
            return Ok(None);
        };
        let recorded = must_be_ready(plane).and_then(|()| self.record(&mut entries));
        let step = Step::Make(Box::new(entries.change.clone()), Vec::new());
        self.in_progress = Some(InProgress { task: Task::Entries(entries), ticket, port, copy });
        recorded.map(|()| Some(step))
    }

    /// What comes of saves that were waited for.
    pub(super) fn next_saved(&mut self, plane: &Plane, vault: &mut Vault) -> Option<Step> {
        while let Some(saved) = self.saves.collect(&self.desired) {
            if let Some(step) = self.after_save(&saved, plane, vault) {
                return Some(step);
            }
        }
        None
    }

    /// Waits for saves until `deadline`: the supervisor ends.
    pub(super) fn last_saved(&mut self, deadline: Instant, plane: &Plane, vault: &mut Vault) -> Option<Step> {
        while let Some(saved) = self.saves.wait(deadline, &self.desired) {
            if let Some(step) = self.after_save(&saved, plane, vault) {
                return Some(step);
            }
        }
        None
    }

    fn after_save(&mut self, saved: &io::Result<()>, plane: &Plane, vault: &mut Vault) -> Option<Step> {
        // What a change needs that is being made is not in force yet.
        if saved.is_ok() && self.saves.is_current() && self.in_progress.is_none() {
            copier::tidy(self.state_directory(), self.desired.loaded());
        }
        let Waiting { then, .. } = self.waits_for_save.take_if(|it| self.saves.is_tried(it.generation))?;
        match then {
            Then::Answer { ticket, outcome, warning } => {
                let unsaved = saved.is_err().then(|| self.saves.warning()).flatten();
                let warnings: Vec<String> = warning.into_iter().chain(unsaved).collect();
                Some(Step::Answer(ticket, outcome.map(|result| with_warnings(result, &warnings))))
            }
            Then::Record { file, before } => {
                let begun = match saved {
                    Ok(()) => self.record_anew(file, plane, vault),
                    Err(error) => {
                        // The name may be on the disk all the same: the file stays until the one before is.
                        self.desired.move_loaded(&before);
                        self.saves.save(&self.desired);
                        let message = format!("cannot be recorded: {error}; nothing was changed");
                        Err(ApiError::new(ErrorCode::Failed, message))
                    }
                };
                begun.unwrap_or_else(|error| self.refuse(error, vault))
            }
        }
    }

    /// What comes of files that were waited for.
    pub(super) fn next_file(&mut self, plane: &Plane, vault: &mut Vault) -> Option<Step> {
        loop {
            let begun = match self.copier.take()? {
                Ok(FromFile::Copy(copied)) => self.make_load(copied, plane),
                Ok(FromFile::Change(changes, places)) => self.make_from_file(changes, places, plane),
                Err(error) => Err(error),
            };
            let step = match begun {
                Ok(step) => step,
                Err(error) => self.refuse(error, vault),
            };
            // A result that no change waits for takes no step, and others may lie behind it.
            if step.is_some() {
                return step;
            }
        }
    }

    /// The data plane is to look at a copy.
    fn make_load(&mut self, copied: Copied, plane: &Plane) -> Result<Option<Step>, ApiError> {
        let Copied { name, file, .. } = copied;
        let file: SharedFd = Arc::new(file.into());
        if matches!(&self.in_progress, Some(InProgress { task: Task::Entries(_), .. })) {
            self.rewritten(&name, file);
            return Ok(None);
        }
        let Some(InProgress { task: Task::Load(load), copy, .. }) = &mut self.in_progress else {
            tracing::error!("a file was copied that no change asked for");
            return Ok(None);
        };
        load.copy = Some(name);
        *copy = Some(Arc::clone(&file));
        must_be_ready(plane)?;
        Ok(Some(Step::Make(Box::new(load.change.clone()), vec![file])))
    }

    /// The change in progress is what its file says.
    fn make_from_file(
        &mut self,
        changes: NetworkChanges,
        places: Arc<Places>,
        plane: &Plane,
    ) -> Result<Option<Step>, ApiError> {
        let waits = |it: &&mut InProgress| matches!(it.task, Task::NetworksFile { .. });
        let Some(in_progress) = self.in_progress.as_mut().filter(waits) else {
            tracing::error!("a file was read that no change asked for");
            return Ok(None);
        };
        let change = Change::from(changes);
        in_progress.task = Task::FromFile { change: change.clone(), places: Arc::clone(&places) };
        self.desired.check(&change, Some(&places))?;
        must_be_ready(plane)?;
        Ok(Some(Step::Make(Box::new(change), Vec::new())))
    }

    /// Gives up a file that gives nothing: other changes do not wait for it.
    pub(super) fn give_up_file(&mut self, now: Instant, vault: &mut Vault) -> Option<Step> {
        if !self.copier.is_stuck(now + self.patience) {
            return None;
        }
        let (what, path) = match &self.in_progress.as_ref()?.task {
            Task::Load(load) => ("copied", load.from.display()),
            Task::NetworksFile { path, .. } => ("read", path.display()),
            Task::Entries(_) => ("written anew", self.state_directory().display()),
            Task::Change(_) | Task::FromFile { .. } => return None,
        };
        let seconds = self.patience.as_secs();
        let message = format!("cannot be {what}: {path}: nothing came of it for {seconds} s; nothing was changed");
        self.refuse(ApiError::new(ErrorCode::Failed, message), vault)
    }

    /// The change in progress will not be made.
    pub(super) fn refuse(&mut self, error: ApiError, vault: &mut Vault) -> Option<Step> {
        // The socket of a device that was not added goes before its request is answered, and so does the copy: a file
        // that is open takes room on the disk also without its name.
        let InProgress { ticket, task, .. } = self.in_progress.take()?;
        match &task {
            Task::Load(Load { copy: Some(copy), .. }) => copier::remove(self.state_directory(), copy),
            Task::Entries(Entries { record: Some(record), .. }) => record.undo(),
            Task::Change(Change::VolumeCreate(Volume { name, .. })) => {
                // Also what a data plane kept that died over it: a later volume of that name begins with nothing.
                vault.forget_volume(name);
                self.desired.forget_image(name);
            }
            _ => {}
        }
        Some(Step::Answer(ticket, Err(error)))
    }

    /// The data plane has made the change in progress, or will not.
    pub(super) fn made(
        &mut self,
        result: Outcome,
        front_ends: &mut FrontEnds,
        plane: &mut Plane,
        vault: &mut Vault,
    ) -> Option<Step> {
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => return self.refuse(error, vault),
        };
        let InProgress { mut task, ticket, port, copy } = self.in_progress.take()?;
        let mut found = LoadResult::default();
        if matches!(task, Task::Load(_) | Task::Entries(_)) {
            match serde_json::from_value(answer.clone()) {
                Ok(loaded) => found = loaded,
                Err(error) => tracing::error!(%error, "what is loaded cannot be read"),
            }
        }
        if let Task::Load(load) = &mut task {
            load.found = found.clone();
        }
        let (method, name, params) = task.describe();
        tracing::info!(method, name, %params, "the site has changed");
        let is_to_be_saved = match &task {
            Task::Load(load) => {
                self.recorded = 0;
                self.desired.commit_load(load.copy.as_deref().unwrap_or_default(), &load.found);
                Ok(true)
            }
            Task::Entries(entries) => self.commit_entries(entries, &found, vault),
            Task::Change(change) | Task::FromFile { change, .. } => Ok(self.desired.commit(change)),
            Task::NetworksFile { .. } => Ok(false),
        };
        if let Some(port) = port {
            front_ends.add(port);
        }
        let outcome = match &task {
            Task::Change(Change::DeviceRemove { name }) => {
                front_ends.remove(name, plane);
                Ok(json!({}))
            }
            Task::Change(Change::DeviceAdd(device)) => device_args(self.site(), &device.name),
            Task::Load(load) => {
                self.keep_copy(copy, vault);
                Ok(json!(load.found))
            }
            Task::Entries(_) => Ok(json!(found)),
            _ => Ok(json!({})),
        };
        let mut warning = answer.get("warning").and_then(Value::as_str).map(str::to_owned);
        if let Err(error) = &is_to_be_saved {
            self.saves.failed(error, &self.desired);
            warning = warning.into_iter().chain(self.saves.warning()).reduce(|a, b| format!("{a}; {b}"));
        }
        if is_to_be_saved.is_ok_and(|it| it) {
            let generation = self.saves.save(&self.desired);
            let then = Then::Answer { ticket, outcome, warning };
            self.waits_for_save = Some(Waiting { generation, then });
            return None;
        }
        let warnings: Vec<String> = warning.into_iter().collect();
        Some(Step::Answer(ticket, outcome.map(|result| with_warnings(result, &warnings))))
    }

    /// Single entries are in force that were not before. Whether that is to be saved.
    fn commit_entries(&mut self, entries: &Entries, found: &LoadResult, vault: &mut Vault) -> io::Result<bool> {
        let Some(record) = &entries.record else { return Ok(false) };
        let counts = found.networks.get(&entries.changes.network).copied().unwrap_or_default();
        match record.made(counts) {
            Ok(length) => self.recorded += length,
            Err(error) => {
                record.undo();
                return Err(error);
            }
        }
        self.saves.sync_soon();
        let is_to_be_saved = self.desired.commit_entries(&record.name, found);
        match self.desired.loaded() {
            Some(_) if record.is_new => {
                let file = copier::open(self.state_directory(), &record.name)?;
                vault.keep_own(LOADED, Arc::new(file.into()));
            }
            Some(_) => {}
            None => vault.forget(LOADED),
        }
        Ok(is_to_be_saved)
    }

    /// Other entries are in force than before; the copy from before is needed until that is saved.
    fn keep_copy(&self, copy: Option<SharedFd>, vault: &mut Vault) {
        match (copy, self.desired.loaded()) {
            (Some(file), Some(_)) => vault.keep_own(LOADED, file),
            _ => vault.forget(LOADED),
        }
    }

    /// A volume that there is, or that is being created; whether its image may be made.
    fn wanted_volume(&self, name: &str) -> Result<(&Volume, bool), OpenFailure> {
        if let Some(volume) = self.site().volume(name) {
            return Ok((volume, self.desired.is_new(volume)));
        }
        match self.in_progress.as_ref().map(|in_progress| &in_progress.task) {
            Some(Task::Change(Change::VolumeCreate(volume))) if volume.name == name => Ok((volume, true)),
            _ => Err(not_there("volume", name)),
        }
    }

    /// What `open` asks for.
    pub(super) fn backing(&self, open: &Open) -> Result<Wanted, OpenFailure> {
        let (volume, is_new) = self.wanted_volume(&open.volume)?;
        Wanted::of_volume(volume, open, is_new)
    }

    /// A connection to the server of a volume.
    pub(super) fn server(&self, volume: &str, patience_ms: u64) -> Result<Wanted, OpenFailure> {
        Wanted::server_of(self.wanted_volume(volume)?.0, patience_ms)
    }

    /// The interface of a device that there is, or that is being added.
    pub(super) fn tap(&self, name: &str, mtu: u16) -> Result<Wanted, OpenFailure> {
        if let Some(device) = self.site().device(name) {
            return Wanted::tap_of(device, mtu);
        }
        match self.in_progress.as_ref().map(|in_progress| &in_progress.task) {
            Some(Task::Change(Change::DeviceAdd(device))) if device.name == name => Wanted::tap_of(device, mtu),
            _ => Err(not_there("device", name)),
        }
    }

    /// Images are there, of volumes by their names: one that is missing later is gone.
    pub(super) fn saw<'a>(&mut self, images: impl Iterator<Item = (&'a str, &'a Path)>) {
        if self.desired.saw(images) {
            self.saves.save(&self.desired);
        }
    }

    /// When [`save_again`](Self::save_again) is due.
    pub(super) fn save_due(&self) -> Option<Instant> {
        self.saves.due()
    }

    /// When [`give_up_file`](Self::give_up_file) is due.
    pub(super) fn file_due(&self) -> Option<Instant> {
        self.copier.due()
    }

    /// What there is to say of changes that are not saved.
    pub(super) fn unsaved(&self) -> Option<String> {
        self.saves.warning()
    }

    /// Saves what could not be saved before, and has what was recorded put on the disk.
    pub(super) fn save_again(&mut self) {
        let loaded = self.desired.loaded().map(|name| self.state_directory().join(name));
        self.saves.again(&self.desired, loaded);
    }
}

/// How a VMM attaches a device.
pub(super) fn device_args(site: &Site, name: &str) -> Outcome {
    match softdpu_api::device_args(site, name) {
        Some(args) => Ok(json!(args)),
        None => Err(Item::Device.unknown(site, name)),
    }
}

fn no_thread(what: &str, error: &io::Error) -> ApiError {
    ApiError::new(ErrorCode::Failed, format!("there is no thread to {what} it: {error}"))
}

/// Nothing is changed where no data plane can do it, after a file was waited for.
fn must_be_ready(plane: &Plane) -> Result<(), ApiError> {
    if plane.is_ready() { Ok(()) } else { Err(plane.unavailable("nothing was changed")) }
}

fn with_warnings(mut result: Value, warnings: &[String]) -> Value {
    if !warnings.is_empty()
        && let Some(result) = result.as_object_mut()
    {
        result.insert("warning".to_owned(), Value::String(warnings.join("; ")));
    }
    result
}
