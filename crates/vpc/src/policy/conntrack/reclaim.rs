//! Room in a full table for a zone that has fewer connections than its share: from those that have more than theirs, as
//! they had it before there were so many of them.

use super::Conntrack;
use super::config::Ended;
use super::entry::Standing;
use super::key::Zone;
use super::reason::End;
use super::table::list;

/// Entries that are looked at for one connection at most: a packet is not to take long. The next look goes on where
/// this one ends.
const STEPS: usize = 256;

impl Conntrack {
    /// Makes room for one connection of `zone` where the table is full and it has fewer than its share; whether there
    /// is some. The connection that ends for it is of a zone that has more than its share: one that is half open or
    /// over if there is any, otherwise whichever is found first.
    pub fn reclaim(&mut self, zone: Zone, ended: &mut Vec<Ended>) -> bool {
        if !self.is_full() {
            return true;
        }
        if self.used(zone) >= self.share(zone) {
            return false;
        }
        match self.dispensable().or_else(|| self.found()) {
            Some(at) => {
                self.end(at, End::Evicted, ended);
                true
            }
            None => false,
        }
    }

    pub(super) fn share(&self, zone: Zone) -> u32 {
        self.config.shares.get(zone.index()).copied().unwrap_or(0)
    }

    pub(super) fn has_too_many(&self, zone: Zone) -> bool {
        self.used(zone) > self.share(zone)
    }

    /// A connection that is half open or over, of a zone that has too many.
    fn dispensable(&self) -> Option<u32> {
        let rich = (0..self.zones.len() as u32).map(Zone).filter(|zone| self.has_too_many(*zone));
        let lists = rich.flat_map(|zone| [Standing::HalfOpen, Standing::Over].map(|standing| list(zone, standing)));
        lists.filter_map(|list| self.waiting.first(list)).next()
    }

    /// Any connection of a zone that has too many.
    fn found(&mut self) -> Option<u32> {
        for _ in 0..STEPS.min(self.entries.len()) {
            let at = self.hand;
            self.hand = if at + 1 < self.entries.len() { at + 1 } else { 0 };
            let entry = &self.entries[at];
            if entry.is_there() && self.has_too_many(entry.pair.zone()) {
                return Some(at as u32);
            }
        }
        None
    }
}
