//! Single loaded entries that come, go and are replaced.
//!
//! A change is made in the copy of what is loaded that no core goes by, and published like any other. While entries are
//! being loaded or copied it waits for that, and other work goes on.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use softdpu_engine::Engine;
use softdpu_vpc::Mac;
use softdpu_vpc::spec::Prefix;
use softdpu_vpc::tables::{EntryChange, Expected, Ground, Loaded, LoadedEntry, Pair, RouteTo};

use super::Networks;
use super::loads::load_result;
use softdpu_api::{ApiError, EntryChanges, EntryEdit, EntryOp, ErrorCode};
use softdpu_site::{self as config, MacAddress};

/// A call to answer, if one asked, and how.
type Answer = (Option<u64>, Result<Value, ApiError>);

impl Networks {
    /// Changes loaded entries. None: the call is answered by [`loaded`](Self::loaded).
    pub(crate) fn change_entries(
        &mut self,
        id: u64,
        changes: EntryChanges,
        engine: &Engine,
    ) -> Option<Result<Value, ApiError>> {
        if self.is_loading || self.is_copying {
            self.waiting = Some((id, changes));
            return None;
        }
        Some(self.make_entries(&changes, engine))
    }

    /// Takes a copy of what is loaded, and makes the change that has waited for it.
    pub(super) fn copied(&mut self, copy: Arc<Loaded>, engine: &Engine) -> Answer {
        self.is_copying = false;
        if let Some(loaded) = &mut self.loaded {
            loaded.give_copy(copy);
        }
        self.make_waiting(engine)
    }

    pub(super) fn make_waiting(&mut self, engine: &Engine) -> Answer {
        match self.waiting.take() {
            Some((id, changes)) => (Some(id), self.make_entries(&changes, engine)),
            None => (None, Ok(Value::Null)),
        }
    }

    fn make_entries(&mut self, changes: &EntryChanges, engine: &Engine) -> Result<Value, ApiError> {
        let began = Instant::now();
        self.make_in_copy(changes)?;
        if let Err(error) = self.publish(engine) {
            if let Some(loaded) = &mut self.loaded {
                loaded.undo();
            }
            return Err(ApiError::new(ErrorCode::Failed, error));
        }
        let hosts = self.in_force().map(|loaded| loaded.hosts_version());
        if hosts != self.watched {
            self.find_hosts();
        }
        let result = self.in_force().map(|loaded| load_result(loaded, began.elapsed()));
        Ok(serde_json::to_value(result.unwrap_or_default()).unwrap_or_default())
    }

    /// Checks changes, and makes them in what is to be published next.
    fn make_in_copy(&mut self, changes: &EntryChanges) -> Result<(), ApiError> {
        self.must_have_underlay()?;
        if let Some(error) = self.load_error() {
            let message = format!("what was loaded before is not in force: {error}");
            return Err(ApiError::new(ErrorCode::Refused, message).hint("load a file first"));
        }
        let failed = |error: String| ApiError::new(ErrorCode::Failed, error);
        let network =
            self.networks.iter().find(|network| network.name == changes.network).ok_or_else(|| {
                ApiError::new(ErrorCode::NotFound, format!("there is no network '{}'", changes.network))
            })?;
        let entries: Vec<EntryChange> = changes
            .changes
            .iter()
            .enumerate()
            .map(|(at, edit)| {
                let read = entry(&changes.network, edit);
                read.map_err(|problem| changes.error(ErrorCode::InvalidParams, at, problem))
            })
            .collect::<Result<_, _>>()?;
        let spec = self.network_spec(network).map_err(failed)?;
        let table_use = config::TableUse::of(&self.networks);
        let ground = Ground {
            network: &spec,
            own: &self.own_end_points(),
            capacity: self.capacity,
            endpoints: table_use.endpoints,
            routes: table_use.routes,
            hosts: &config::hosts(&self.networks).collect(),
            groups: &network.ecmp.iter().map(|group| group.name.as_str()).collect::<HashSet<_>>(),
        };
        if self.loaded.is_none() {
            let empty = Loaded::empty(self.capacity.routes).map_err(|problem| failed(problem.to_string()))?;
            self.loaded = Some(Pair::new(Arc::new(empty), None));
        }
        let Some(loaded) = &mut self.loaded else { return Ok(()) };
        let checked = loaded.front().check(&entries, &ground);
        let checked = checked.map_err(|error| changes.error(ErrorCode::Refused, error.index, error.problem))?;
        loaded.make(checked).map_err(|error| failed(error.to_string()))
    }
}

/// A change as the tables take it.
fn entry(network: &str, edit: &EntryEdit) -> Result<EntryChange, String> {
    let expected = match edit.op {
        EntryOp::Add => Expected::Absent,
        EntryOp::Replace => Expected::Either,
        EntryOp::Delete => Expected::Present,
    };
    let goes = edit.op == EntryOp::Delete;
    let no_target = || "it leads nowhere".to_owned();
    let entry = match (edit.prefix, edit.address) {
        (Some(prefix), _) => {
            let prefix = Prefix::new(prefix.network(), prefix.prefix_len()).map_err(|error| error.to_string())?;
            let to = edit.host.map(RouteTo::Host);
            let to = to.or_else(|| edit.ecmp.as_deref().map(|group| RouteTo::Ecmp(group.into())));
            LoadedEntry::Route { prefix, to: if goes { None } else { Some(to.ok_or_else(no_target)?) } }
        }
        (None, Some(address)) => {
            let mac = edit.mac.unwrap_or_else(|| MacAddress::derived(network, address));
            let to = edit.host.map(|host| (Mac(mac.0), host));
            LoadedEntry::Guest { address, to: if goes { None } else { Some(to.ok_or_else(no_target)?) } }
        }
        (None, None) => return Err("it is of no entry".to_owned()),
    };
    Ok(EntryChange { entry, expected })
}
