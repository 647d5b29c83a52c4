//! The table's entries: found, moved between its lists, taken out. Whatever is in the table is in the index and in the
//! wheel.

use super::config::{ConnectionId, Ended, Tracked};
use super::entry::{Entry, Life, Standing};
use super::key::{Direction, Pair, Zone};
use super::reason::{End, Refused};
use super::subject::{Content, Segment};
use super::tcp::{Step, TcpState};
use super::{Conntrack, MAX_CHAIN};

impl Conntrack {
    #[inline]
    pub(super) fn bucket(&self, pair: &Pair) -> u32 {
        (pair.hash(self.seed) as usize & (self.buckets - 1)) as u32
    }

    /// The connections of a bucket.
    #[inline]
    pub(super) fn chain(&self, bucket: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(self.index.first(bucket as usize), |at| self.index.after(*at))
    }

    #[inline]
    pub(super) fn find(&self, pair: &Pair, bucket: u32) -> Option<u32> {
        self.chain(bucket).find(|at| self.entries[*at as usize].pair == *pair)
    }

    pub(super) fn entry(&mut self, connection: ConnectionId, now: u64) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(connection.slot as usize)?;
        (entry.generation == connection.generation && entry.deadline > now).then_some(entry)
    }

    pub(super) fn tracked(&self, at: u32, ascends: bool) -> Tracked {
        let entry = &self.entries[at as usize];
        Tracked {
            connection: ConnectionId { slot: at, generation: entry.generation },
            direction: if ascends == entry.ascends { Direction::Original } else { Direction::Reply },
            is_lasting: entry.standing.is_none(),
        }
    }

    /// A packet of a connection that is there; None: it is there no more, the packet begins another.
    pub(super) fn step(
        &mut self,
        at: u32,
        ascends: bool,
        segment: &Segment,
        now: u64,
        ended: &mut Vec<Ended>,
    ) -> Result<Option<Tracked>, Refused> {
        let direction = self.tracked(at, ascends).direction;
        let entry = &mut self.entries[at as usize];
        let step = match (&mut entry.life, &segment.content) {
            (Life::Tcp(tcp), Content::Tcp(header)) => tcp.step(direction, header, self.config.any_reset),
            _ => Ok(Step::Pass),
        };
        match step {
            Ok(Step::Pass) => {}
            Ok(Step::Stay) => return Ok(Some(self.tracked(at, ascends))),
            Ok(Step::Reopen) => {
                self.end(at, End::Closed, ended);
                return Ok(None);
            }
            Err(refused) => return Err(self.refuse(refused)),
        }
        entry.answered |= direction == Direction::Reply;
        entry.deadline = now.saturating_add(entry.timeout(&self.config.timeouts));
        let (deadline, standing) = (entry.deadline, entry.should_stand());
        self.wheel.set(at, deadline);
        if standing != self.entries[at as usize].standing {
            self.stand(at, standing);
        }
        if standing == Some(Standing::Over) {
            let reset = matches!(self.entries[at as usize].life, Life::Tcp(tcp) if tcp.state == TcpState::Closed);
            self.announce(at, if reset { End::Reset } else { End::Closed }, ended);
        }
        Ok(Some(self.tracked(at, ascends)))
    }

    /// Puts a connection in that is not there, whatever its generation.
    pub(super) fn insert(
        &mut self,
        mut entry: Entry,
        standing: Option<Standing>,
        ended: &mut Vec<Ended>,
    ) -> Result<u32, Refused> {
        let zone = entry.pair.zone();
        if self.chain(entry.bucket).count() >= MAX_CHAIN {
            return Err(self.refuse_for_room(zone, Refused::TableFull));
        }
        self.make_room(zone, ended)?;
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.entries.len() < self.capacity => self.entries.len() as u32,
            None => return Err(self.refuse_for_room(zone, Refused::TableFull)),
        };
        let before = self.entries.get(at as usize).map_or(0, |entry| entry.generation);
        entry.generation = before.wrapping_add(1);
        match self.entries.get_mut(at as usize) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
        self.wheel.insert(at, entry.deadline);
        self.index.push(entry.bucket as usize, at);
        self.zones[zone.index()].known += 1;
        self.stand(at, standing);
        Ok(at)
    }

    /// Room for one more connection of `zone`.
    pub(super) fn make_room(&mut self, zone: Zone, ended: &mut Vec<Ended>) -> Result<(), Refused> {
        let share = self.share(zone);
        if share == 0 {
            return Err(self.refuse_for_room(zone, Refused::NoShare));
        }
        let most = if self.config.rest_is_shared { u32::MAX } else { share };
        let full = if self.used(zone) < most && !self.is_full() {
            return Ok(());
        } else if self.used(zone) >= share {
            Refused::ShareFull
        } else {
            Refused::TableFull
        };
        if self.config.rest_is_shared && self.reclaim(zone, ended) {
            return Ok(());
        }
        let [half_open, over] =
            [Standing::HalfOpen, Standing::Over].map(|standing| self.waiting.first(list(zone, standing)));
        match half_open.or(over) {
            Some(at) => {
                self.end(at, End::Evicted, ended);
                // After its share was made smaller, one fewer is still too many.
                if self.used(zone) >= most { Err(self.refuse_for_room(zone, full)) } else { Ok(()) }
            }
            None => Err(self.refuse_for_room(zone, full)),
        }
    }

    pub(super) fn stand(&mut self, at: u32, standing: Option<Standing>) {
        let entry = &mut self.entries[at as usize];
        let (zone, before) = (entry.pair.zone(), std::mem::replace(&mut entry.standing, standing));
        if let Some(before) = before {
            self.waiting.remove(list(zone, before), at);
        }
        if let Some(standing) = standing {
            self.waiting.push(list(zone, standing), at);
        }
    }

    /// Says once that a connection has ended.
    pub(super) fn announce(&mut self, at: u32, why: End, ended: &mut Vec<Ended>) {
        let entry = &mut self.entries[at as usize];
        if !std::mem::replace(&mut entry.ended, true) {
            self.stats.ended[why as usize] += 1;
            ended.push(Ended {
                connection: ConnectionId { slot: at, generation: entry.generation },
                why,
                keys: [entry.pair.key(entry.ascends), entry.pair.key(!entry.ascends)],
            });
        }
    }

    /// Takes a connection out of the table.
    pub(super) fn end(&mut self, at: u32, why: End, ended: &mut Vec<Ended>) {
        self.announce(at, why, ended);
        self.stand(at, None);
        let entry = &mut self.entries[at as usize];
        entry.generation = entry.generation.wrapping_add(1);
        let (zone, bucket) = (entry.pair.zone(), entry.bucket);
        self.wheel.remove(at);
        self.index.remove(bucket as usize, at);
        let stats = &mut self.zones[zone.index()];
        stats.known -= 1;
        stats.evicted += u64::from(why == End::Evicted);
        self.free.push(at);
    }

    /// Refuses the first packet of a connection of `zone`, for which there is no room.
    pub(super) fn refuse_for_room(&mut self, zone: Zone, refused: Refused) -> Refused {
        if let Some(stats) = self.zones.get_mut(zone.index()) {
            stats.no_room += 1;
        }
        self.refuse(refused)
    }

    pub(super) fn refuse(&mut self, refused: Refused) -> Refused {
        self.stats.refused[refused as usize] += 1;
        refused
    }
}

/// Of a zone's connections.
pub(super) fn list(zone: Zone, standing: Standing) -> usize {
    zone.index() * 2 + standing as usize
}
