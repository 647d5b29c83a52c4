//! Entries that are loaded by file.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use softdpu_engine::Engine;
use softdpu_vpc::spec::TableCapacity;
use softdpu_vpc::tables::{LoadCounts, Loaded, Pair};

use super::super::loader::{Ground, Outcome};
use super::super::underlay::Underlay;
use super::Networks;
use softdpu_api::{ApiError, ErrorCode, LoadResult, NetworkEntries};
use softdpu_link::SharedFd;
use softdpu_site as config;
use softdpu_sys::ReapedFd;

/// Room for whatever there is.
const UNBOUNDED: TableCapacity = TableCapacity { endpoints: usize::MAX, routes: usize::MAX, hosts: usize::MAX };

/// What messages call the file of entries that are in force, or were.
const KEPT: &str = "the loaded entries";

/// Why nothing can be loaded now.
const NO_THREAD: &str = "there is no thread to load them";

impl Networks {
    /// Loads the file that was in force before this process began, which has entries of the networks `of`.
    pub(crate) fn load_kept(&mut self, file: &SharedFd, of: Vec<String>) {
        let begun = file.as_fd().try_clone_to_owned().map_err(|error| error.to_string()).and_then(|file| {
            // There was room for all when they were loaded; what came since is no reason to go without them.
            let ground = Ground { capacity: UNBOUNDED, is_kept: true, ..self.ground()? };
            let begun = self.loader.start(None, file, KEPT.to_owned(), ground);
            begun.then_some(()).ok_or_else(|| NO_THREAD.to_owned())
        });
        match begun {
            Ok(()) => (self.is_loading, self.awaited) = (true, of),
            Err(error) => self.not_loaded(error),
        }
    }

    pub(super) fn not_loaded(&mut self, error: String) {
        tracing::error!(error, "the loaded entries are not in force");
        self.load_error = Some(error);
    }

    /// Why what was in force before this process began is not.
    pub(crate) fn load_error(&self) -> Option<&str> {
        self.load_error.as_deref()
    }

    /// Begins to load a file; [`loaded`](Self::loaded) tells what came of it.
    pub(crate) fn load(&mut self, id: u64, name: String, fds: Vec<ReapedFd>) -> Result<(), ApiError> {
        let file = fds
            .into_iter()
            .next()
            .map(ReapedFd::into_owned)
            .ok_or_else(|| ApiError::new(ErrorCode::Failed, "no file came with the call".to_owned()))?;
        let ground = self.ground().map_err(|error| ApiError::new(ErrorCode::Failed, error))?;
        self.must_have_underlay()?;
        let begun = self.loader.start(Some(id), file, name, ground);
        begun.then_some(()).ok_or_else(|| ApiError::new(ErrorCode::Failed, NO_THREAD.to_owned()))
    }

    /// Entries lead to other hosts.
    pub(super) fn must_have_underlay(&self) -> Result<(), ApiError> {
        let message = "entries lead to other hosts, and this node has no node.underlay";
        self.end_points.is_some().then_some(()).ok_or_else(|| ApiError::new(ErrorCode::Refused, message))
    }

    /// This node's tunnel end points, as far as they are known.
    pub(super) fn own_end_points(&self) -> Vec<IpAddr> {
        let known = self.underlay.as_ref().and_then(Underlay::spec).map(|spec| spec.addresses);
        known.or_else(|| self.end_points.clone()).unwrap_or_default()
    }

    fn ground(&self) -> Result<Ground, String> {
        Ok(Ground {
            networks: self.networks.iter().map(|network| self.network_spec(network)).collect::<Result<_, _>>()?,
            own: self.own_end_points(),
            capacity: self.capacity,
            room_for_routes: self.capacity.routes,
            others: config::TableUse::of(&self.networks).endpoints,
            routes: config::TableUse::of(&self.networks).routes,
            hosts: config::hosts(&self.networks).collect(),
            groups: self
                .networks
                .iter()
                .flat_map(|network| network.ecmp.iter().map(|group| (network.name.clone(), group.name.clone())))
                .collect(),
            is_kept: false,
            previous: self.in_force().cloned(),
        })
    }

    /// Goes on with entries that were loaded: the call to answer, if one asked, and how.
    pub(crate) fn loaded(&mut self, engine: &Engine) -> Option<(Option<u64>, Result<serde_json::Value, ApiError>)> {
        let outcome = match self.loader.outcome()? {
            Outcome::File(outcome) => outcome,
            Outcome::Copy(copy) => return Some(self.copied(copy, engine)),
        };
        self.is_copying = outcome.result.is_ok();
        if outcome.asked.is_none() && !std::mem::replace(&mut self.is_loading, false) {
            // Others were loaded meanwhile.
            return Some((None, Ok(serde_json::Value::Null)));
        }
        let result = outcome.result.map_err(|error| ApiError::new(ErrorCode::Refused, error)).and_then(|loaded| {
            let began = Instant::now();
            let published = self.go_on_with(Pair::new(Arc::clone(&loaded), None), |networks| networks.publish(engine));
            published.map_err(|error| ApiError::new(ErrorCode::Failed, error))?;
            self.find_hosts();
            let (read, published) = (outcome.took, began.elapsed());
            tracing::info!(counts = ?loaded.counts(), ?read, ?published, "entries are loaded");
            Ok(load_result(&loaded, outcome.took + began.elapsed()))
        });
        if outcome.asked.is_none()
            && let Err(error) = &result
        {
            self.not_loaded(error.message.clone());
            if let Err(error) = self.publish(engine) {
                tracing::error!(error, "networks without loaded entries");
            }
        }
        let result = result.map(|loaded| serde_json::to_value(loaded).unwrap_or_default());
        if outcome.asked.is_none() && !self.is_copying && self.waiting.is_some() {
            return Some(self.make_waiting(engine));
        }
        Some((outcome.asked, result))
    }

    /// Has `publish` put loaded entries into force, with which nothing is being loaded any more; what there was before,
    /// where it cannot.
    pub(super) fn go_on_with(
        &mut self,
        loaded: Pair,
        publish: impl FnOnce(&mut Networks) -> Result<(), String>,
    ) -> Result<(), String> {
        let before = (self.loaded.replace(loaded), std::mem::replace(&mut self.is_loading, false));
        if let Err(error) = publish(self) {
            (self.loaded, self.is_loading) = before;
            return Err(error);
        }
        self.load_error = None;
        Ok(())
    }

    /// Whether entries that were in force before this process began are not yet.
    pub(crate) fn is_loading(&self) -> bool {
        self.is_loading
    }

    /// Readable when entries were loaded.
    pub(crate) fn loads(&self) -> BorrowedFd<'_> {
        self.loader.bell()
    }

    /// What is loaded of a network.
    pub(crate) fn entries(&self, network: &str) -> NetworkEntries {
        let loaded = self.in_force().into_iter().flat_map(|loaded| loaded.networks());
        let counts = loaded.filter(|(name, _)| *name == network).map(|(_, counts)| counts).next().unwrap_or_default();
        NetworkEntries { endpoints: counts.endpoints as u64, routes: counts.routes as u64 }
    }
}

pub(super) fn load_result(loaded: &Loaded, took: Duration) -> LoadResult {
    let counts = loaded.counts();
    let entries = |(name, counts): (&str, LoadCounts)| {
        (name.to_owned(), NetworkEntries { endpoints: counts.endpoints as u64, routes: counts.routes as u64 })
    };
    LoadResult {
        endpoints: counts.endpoints as u64,
        routes: counts.routes as u64,
        hosts: counts.hosts as u64,
        networks: loaded.networks().filter(|(_, counts)| *counts != LoadCounts::default()).map(entries).collect(),
        took_us: took.as_micros() as u64,
    }
}
