//! Connections for the processes to come, and those of processes before.

use std::collections::HashMap;
use std::sync::MutexGuard;

use softdpu_kept::{Place, Record};

use super::{Connections, Shard, Table};
use crate::kept::{CONNECTION, Keeper};
use crate::policy::conntrack::{ConnectionId, Conntrack, Heir, Key, Zone};
use crate::stamp::Stamp;

/// Connections of one hash that a predecessor is asked for: as many as there are, unless they were chosen.
const CHAIN: usize = 32;

type Kept = Record<{ CONNECTION.0 }, { CONNECTION.1 }>;

/// Where the connections of a shard are written.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// By slot: the generation that is written there, and where.
    places: Vec<Option<(u32, Place)>>,
    /// Names of zones, as words.
    names: Vec<u64>,
}

/// Names of zones as words, by their numbers.
pub(super) fn names(zones: &HashMap<String, Zone>) -> Vec<u64> {
    let mut names = vec![0; zones.values().max().map_or(0, |most| most.index() + 1)];
    zones.iter().for_each(|(name, zone)| names[zone.index()] = softdpu_kept::name(name.as_bytes()));
    names
}

impl Written {
    pub fn set_names(&mut self, names: &[u64]) {
        self.names = names.to_vec();
    }

    fn name(&self, zone: Zone) -> Option<u64> {
        self.names.get(zone.index()).copied()
    }

    /// Writes a connection as it is now.
    fn write(&mut self, keeper: &Keeper, tracker: &Conntrack, connection: ConnectionId) {
        let Some(name) = tracker.zone_of(connection).and_then(|zone| self.name(zone)) else { return };
        let Some((fixed, tail)) = tracker.to_words(connection, name, keeper.epoch) else { return };
        let slot = connection.index();
        if self.places.len() <= slot {
            self.places.resize(slot + 1, None);
        }
        match self.places[slot] {
            Some((generation, place)) if generation == connection.generation() => {
                return keeper.connections.update(place, &tail);
            }
            Some((_, another)) => keeper.connections.remove(another),
            None => {}
        }
        let hash = tracker.original(connection).map_or(0, |key| key.hash_in(name, keeper.connections.seed()));
        let place = keeper.connections.insert(hash, &fixed, &tail);
        self.places[slot] = place.map(|place| (connection.generation(), place));
    }

    /// A connection has ended: it is there for a while, or no more.
    pub fn end(&mut self, keeper: &Keeper, tracker: &Conntrack, connection: ConnectionId) {
        let Some(place) = self.places.get_mut(connection.index()) else { return };
        let Some((generation, at)) = *place else { return };
        if generation != connection.generation() {
            return;
        }
        if tracker.original(connection).is_some() {
            return self.write(keeper, tracker, connection);
        }
        *place = None;
        keeper.connections.remove(at);
    }
}

impl Connections {
    /// Writes a connection as it is now.
    #[inline]
    pub(super) fn write(&self, table: &mut Table, connection: ConnectionId) {
        if let Some(keeper) = &self.keeper {
            table.written.write(keeper, &table.tracker, connection);
        }
    }

    /// The table that a connection is in, after a predecessor was asked for it.
    pub(super) fn table_with(&self, key: &Key, now: u64) -> MutexGuard<'_, Table> {
        let shard = self.shard(key);
        let mut table = shard.table();
        self.take_up(shard, &mut table, key, now);
        table
    }

    /// Takes up the connection that packets with `key` are of, where it is a predecessor's and not here.
    #[inline]
    pub(super) fn take_up(&self, shard: &Shard, table: &mut Table, key: &Key, now: u64) {
        if let Some(keeper) = &self.keeper
            && keeper.connections.inherits()
            && !table.tracker.knows(key)
        {
            self.ask_predecessors(keeper, (shard, table), key, now);
        }
    }

    #[cold]
    fn ask_predecessors(&self, keeper: &Keeper, (shard, table): (&Shard, &mut Table), key: &Key, now: u64) {
        let Some(name) = table.written.name(key.zone) else { return };
        let is_it = |heir: &Heir| heir.key() == *key || heir.key() == key.reversed();
        let mut found = None;
        keeper.connections.left_with(
            |seed| key.hash_in(name, seed),
            CHAIN,
            |record| {
                found = (record.fixed[0] == name).then(|| heir(&record, key.zone, keeper)).flatten().filter(is_it);
                found.is_some()
            },
        );
        if let Some(heir) = found {
            self.adopt(keeper, (shard, table), &heir, now);
        }
    }

    /// Takes up a connection, which counts as admitted by no version of the rules: they are asked again.
    fn adopt(&self, keeper: &Keeper, (shard, table): (&Shard, &mut Table), heir: &Heir, now: u64) {
        match table.tracker.adopt(heir, now, &mut table.ended) {
            Ok(Some(connection)) => {
                table.admit(connection, [Stamp::NEVER; 2]);
                self.write(table, connection);
                keeper.connections.count(true);
            }
            Ok(None) => {}
            Err(_) => keeper.connections.count(false),
        }
        self.close_ended(shard, table);
    }

    /// Takes up some of the connections of processes before, `budget` at most, which no packet has asked for; whether
    /// all are.
    pub fn take_over(&self, now: u64, budget: usize) -> bool {
        let Some(keeper) = self.keeper.as_ref().filter(|keeper| keeper.connections.inherits()) else { return true };
        let zones: HashMap<u64, Zone> =
            self.zones().iter().map(|(name, zone)| (softdpu_kept::name(name.as_bytes()), *zone)).collect();
        keeper.connections.next_left(budget, |record| {
            let Some(zone) = zones.get(&record.fixed[0]) else { return keeper.connections.count(false) };
            let Some(heir) = heir(&record, *zone, keeper) else { return };
            let shard = self.shard(&heir.key());
            self.adopt(keeper, (shard, &mut shard.table()), &heir, now);
        })
    }
}

fn heir(record: &Kept, zone: Zone, keeper: &Keeper) -> Option<Heir> {
    Heir::from_words(&record.fixed, record.tail.as_ref(), zone, keeper.epoch)
}
