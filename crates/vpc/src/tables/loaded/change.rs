//! Single entries come, go and are replaced, one or a batch at a time, whatever else is loaded.
//!
//! ```text
//!   changes ─ checked against what is in force ─▶ Changes ─▶ applied to the copy that no core reads ─▶ published
//!                                                    └─────▶ applied to the other copy before the next change
//! ```
//!
//! Two copies are all there is ([`Pair`], decision 006): cores go by one, and the next change is made in the other one,
//! after what that has missed. So a core reads all of a batch or nothing of it. Both copies apply the same changes in
//! the same order, so that they give the same numbers.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use softdpu_lpm::Full;
use thiserror::Error;

use super::{LOADS, Loaded, LoadedNetworkId, Loading};
use crate::id::HopId;
use crate::packet::Mac;
use crate::spec::{NetworkSpec, Prefix, SubnetSpec, TableCapacity};
use crate::tables::check::{guest_subnet, other_host, station};
use crate::tables::error::Problem;

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTo {
    /// To the node with this tunnel end point.
    Host(IpAddr),
    /// To an ECMP group of the network.
    Ecmp(Box<str>),
}

/// An entry as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadedEntry {
    /// A guest on another node.
    Guest {
        /// Its address in the network.
        address: IpAddr,
        /// Its MAC address and its node's tunnel end point; None: it goes.
        to: Option<(Mac, IpAddr)>,
    },
    /// A route.
    Route {
        /// Its prefix.
        prefix: Prefix,
        /// Where it leads; None: it goes.
        to: Option<RouteTo>,
    },
}

impl LoadedEntry {
    fn goes(&self) -> bool {
        matches!(self, LoadedEntry::Guest { to: None, .. } | LoadedEntry::Route { to: None, .. })
    }
}

/// Whether there has to be such an entry before a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// There is none.
    Absent,
    /// There is one.
    Present,
    /// There may be one.
    Either,
}

/// A change of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryChange {
    /// The entry as it is to be.
    pub entry: LoadedEntry,
    /// What there has to be before.
    pub expected: Expected,
}

/// A change that cannot be made, so that none of its batch is.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{problem}")]
pub struct ChangeError {
    /// Its place in the batch, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What changes are held against.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// The network that they are of.
    pub network: &'a NetworkSpec,
    /// This node's tunnel end points, none while they are not known.
    pub own: &'a [IpAddr],
    /// How much there may be of everything.
    pub capacity: TableCapacity,
    /// Endpoints of the spec,
    pub endpoints: usize,
    /// its routes,
    pub routes: usize,
    /// and the nodes that these lead to.
    pub hosts: &'a HashSet<IpAddr>,
    /// The network's ECMP groups.
    pub groups: &'a HashSet<&'a str>,
}

/// A guest as it is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedGuest {
    pub mac: Mac,
    pub host: IpAddr,
    pub subnet: u32,
}

/// A change that was found right.
#[derive(Clone, Debug)]
pub(super) enum Checked {
    Guest { address: IpAddr, to: Option<PlacedGuest> },
    Route { prefix: Prefix, to: Option<RouteTo> },
}

impl Checked {
    fn goes(&self) -> bool {
        matches!(self, Checked::Guest { to: None, .. } | Checked::Route { to: None, .. })
    }
}

/// Changes of a network's entries that were found right, to be made in one copy after the other.
#[derive(Clone, Debug)]
pub struct Changes {
    pub(super) version: u32,
    pub(super) network: String,
    pub(super) subnets: Vec<SubnetSpec>,
    pub(super) all: Vec<Checked>,
}

/// How many entries of one table there would be, one change after the other.
struct Room {
    table: &'static str,
    there: usize,
    capacity: usize,
}

impl Room {
    fn add(&mut self) -> Result<(), Problem> {
        self.there += 1;
        let Room { table, there, capacity } = *self;
        if there <= capacity { Ok(()) } else { Err(Problem::Full { table, capacity, wanted: there }) }
    }
}

/// A batch that is being checked.
struct Checking<'a> {
    loaded: &'a Loaded,
    ground: &'a Ground<'a>,
    /// The network's number, if it has entries.
    network: Option<LoadedNetworkId>,
    guests: Room,
    routes: Room,
    hosts: Room,
    next_hops: usize,
    seen_guests: HashSet<IpAddr>,
    seen_routes: HashSet<Prefix>,
    seen_hosts: HashSet<IpAddr>,
}

impl<'a> Checking<'a> {
    fn new(loaded: &'a Loaded, changes: &[EntryChange], ground: &'a Ground<'a>) -> Checking<'a> {
        let Ground { capacity, .. } = ground;
        let gone = |is_route: bool| {
            let is_one = |entry: &LoadedEntry| entry.goes() && matches!(entry, LoadedEntry::Route { .. }) == is_route;
            changes.iter().filter(|change| is_one(&change.entry)).count()
        };
        let others = ground.hosts.iter().filter(|host| !loaded.host_ids.contains_key(host)).count();
        let room = |table, there: usize, gone, capacity| Room { table, there: there.saturating_sub(gone), capacity };
        let counts = loaded.counts;
        Checking {
            loaded,
            ground,
            network: loaded.number(&ground.network.name),
            guests: room("endpoints", counts.endpoints + ground.endpoints, gone(false), capacity.endpoints),
            routes: room("routes", counts.routes + ground.routes, gone(true), capacity.routes),
            hosts: room("hosts", counts.hosts + others, 0, capacity.hosts),
            next_hops: loaded.hops.len() - loaded.free_hops.len(),
            seen_guests: HashSet::new(),
            seen_routes: HashSet::new(),
            seen_hosts: HashSet::new(),
        }
    }

    fn one(&mut self, EntryChange { entry, expected }: &EntryChange) -> Result<Checked, Problem> {
        // One for itself, and one for its network's routes to its node.
        self.next_hops += if entry.goes() { 0 } else { 2 };
        if self.next_hops > HopId::MOST_LOADED {
            return Err(Problem::NextHops { capacity: HopId::MOST_LOADED, wanted: self.next_hops });
        }
        match entry {
            LoadedEntry::Guest { address, to } => self.guest(*address, *to, *expected),
            LoadedEntry::Route { prefix, to } => self.route(*prefix, to.as_ref(), *expected),
        }
    }

    fn guest(&mut self, address: IpAddr, to: Option<(Mac, IpAddr)>, expected: Expected) -> Result<Checked, Problem> {
        if !self.seen_guests.insert(address) {
            return Err(Problem::Twice);
        }
        let is_there = self.network.is_some_and(|network| self.loaded.guest(network, address).is_some());
        match (expected, is_there) {
            (Expected::Absent, true) => return Err(Problem::AddressTaken(address)),
            (Expected::Present, false) => return Err(Problem::GuestNotLoaded(address)),
            _ => {}
        }
        let Some((mac, at)) = to else { return Ok(Checked::Guest { address, to: None }) };
        station(mac)?;
        let subnet = guest_subnet(address, self.ground.network)?;
        self.host(at)?;
        if !is_there {
            self.guests.add()?;
        }
        Ok(Checked::Guest { address, to: Some(PlacedGuest { mac, host: at, subnet }) })
    }

    fn route(&mut self, prefix: Prefix, to: Option<&RouteTo>, expected: Expected) -> Result<Checked, Problem> {
        if !self.seen_routes.insert(prefix) {
            return Err(Problem::Twice);
        }
        let is_there = self.network.is_some_and(|network| self.loaded.has_route(network, prefix));
        match (expected, is_there) {
            (Expected::Absent, true) => return Err(Problem::RouteThere(prefix)),
            (Expected::Present, false) => return Err(Problem::RouteNotLoaded(prefix)),
            _ => {}
        }
        match to {
            None => return Ok(Checked::Route { prefix, to: None }),
            Some(RouteTo::Ecmp(group)) if !self.ground.groups.contains(&**group) => {
                return Err(Problem::NoEcmp(group.to_string()));
            }
            Some(RouteTo::Ecmp(_)) => {}
            Some(RouteTo::Host(at)) => self.host(*at)?,
        }
        if self.ground.network.subnets.iter().any(|subnet| subnet.prefix == prefix) {
            return Err(Problem::RouteTaken(prefix));
        }
        if !is_there {
            self.routes.add()?;
        }
        Ok(Checked::Route { prefix, to: to.cloned() })
    }

    fn host(&mut self, at: IpAddr) -> Result<(), Problem> {
        other_host(at, self.ground.own)?;
        let is_known = self.loaded.host_ids.contains_key(&at) || self.ground.hosts.contains(&at);
        if is_known || !self.seen_hosts.insert(at) { Ok(()) } else { self.hosts.add() }
    }
}

impl Loaded {
    /// Without entries; with room for `routes` routes.
    ///
    /// # Errors
    /// [`Problem::Memory`].
    pub fn empty(routes: usize) -> Result<Loaded, Problem> {
        let nothing = TableCapacity { endpoints: 0, routes: 0, hosts: 0 };
        Loading::new(&[], &[], nothing, 0).with_room(routes).finish().map_err(|error| error.problem)
    }

    /// Checks a batch of changes, all against what is there now. Nothing is changed.
    ///
    /// # Errors
    /// [`ChangeError`] with the first change that is wrong.
    pub fn check(&self, changes: &[EntryChange], ground: &Ground<'_>) -> Result<Changes, ChangeError> {
        let mut checking = Checking::new(self, changes, ground);
        let one = |(index, change)| checking.one(change).map_err(|problem| ChangeError { index, problem });
        let mut all = changes.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
        // What goes makes room for what comes.
        all.sort_by_key(|change| !change.goes());
        Ok(Changes {
            all,
            version: LOADS.fetch_add(1, Ordering::Relaxed),
            network: ground.network.name.clone(),
            subnets: ground.network.subnets.clone(),
        })
    }

    pub(super) fn number(&self, network: &str) -> Option<LoadedNetworkId> {
        let at = self.networks.iter().position(|known| known.name == network)?;
        Some(LoadedNetworkId::new(at as u32))
    }

    fn has_route(&self, network: LoadedNetworkId, prefix: Prefix) -> bool {
        self.added.get(network.number(), prefix).or_else(|| self.routes.get(network.into(), prefix)).is_some()
    }
}

/// Entries in force, and a copy of them in which the next changes are made.
#[derive(Debug)]
pub struct Pair {
    front: Arc<Loaded>,
    /// None: the next change makes a copy first, which takes as long as there are entries.
    back: Option<Arc<Loaded>>,
    /// What is made in `front` and not yet in `back`.
    missed: Option<Changes>,
}

impl Pair {
    /// `front` goes into force. `back` is a copy of it, or is made when it is needed.
    pub fn new(front: Arc<Loaded>, back: Option<Arc<Loaded>>) -> Pair {
        Pair { back: back.filter(|back| **back == *front), front, missed: None }
    }

    /// The entries in force.
    pub fn front(&self) -> &Arc<Loaded> {
        &self.front
    }

    /// `back` is a copy of what is in force, unless that has changed meanwhile.
    pub fn give_copy(&mut self, back: Arc<Loaded>) {
        if self.back.is_none() && *back == *self.front {
            self.back = Some(back);
        }
    }

    /// Makes `changes`, which were [checked](Loaded::check) against what is in force: they are [in front](Self::front)
    /// then. No copy is made, unless a core is late and still goes by what was in force before the last change.
    ///
    /// # Errors
    /// [`Full`]: nothing is changed.
    pub fn make(&mut self, changes: Changes) -> Result<(), Full> {
        let missed = self.missed.take();
        let mut next = match self.back.take() {
            Some(back) => back,
            None => Arc::new(Loaded::clone(&self.front)),
        };
        let loaded = Arc::make_mut(&mut next);
        if let Some(missed) = missed.filter(|missed| missed.version != loaded.version) {
            loaded.apply(&missed)?;
        }
        loaded.apply(&changes)?;
        self.back = Some(std::mem::replace(&mut self.front, next));
        self.missed = Some(changes);
        Ok(())
    }

    /// What was in force before the last change is again.
    pub fn undo(&mut self) {
        if let Some(before) = self.back.take() {
            (self.front, self.missed) = (before, None);
        }
    }
}
