//! A connection as words, for the data planes to come, and one that comes from such words: written by a process that
//! is gone, and not to be believed before it was looked at.

use super::Conntrack;
use super::config::{ConnectionId, Ended};
use super::entry::{Entry, Life, Standing};
use super::key::{Key, Pair, Zone};
use super::reason::Refused;
use super::tcp::Tcp;
use crate::kept::CONNECTION;
use crate::packet::parse::protocol;

/// Words that stay the same: the zone's name, the ends. Words that change: the deadline, what was seen.
const FIXED: usize = CONNECTION.0;
const TAIL: usize = CONNECTION.1;

/// Bits beside the ends' own.
const ASCENDS: u64 = 2;
/// Bits beside TCP's state.
const ANSWERED: u64 = 1 << 8;
const ENDED: u64 = 1 << 9;

/// A connection that another process had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heir {
    pair: Pair,
    ascends: bool,
    answered: bool,
    ended: bool,
    life: Life,
    /// Nanoseconds. None: as if a packet had come now.
    deadline: Option<u64>,
}

fn life(protocol: u8, tcp: Tcp) -> Life {
    match protocol {
        protocol::TCP => Life::Tcp(tcp),
        protocol::UDP => Life::Udp,
        protocol::ICMP | protocol::ICMPV6 => Life::Echo,
        _ => Life::Other,
    }
}

impl Heir {
    /// The connection that words are of, in `zone`; `epoch` is what the words' clock is ahead. None: they are of none.
    /// Without a `tail` all that is known is that it was there.
    pub fn from_words(fixed: &[u64; FIXED], tail: Option<&[u64; TAIL]>, zone: Zone, epoch: u64) -> Option<Heir> {
        let [_, low, low_high, high, high_high, rest] = *fixed;
        let pair = Pair::from_words([low, low_high, high, high_high, rest & !ASCENDS], zone)?;
        let ascends = rest & ASCENDS != 0;
        let unknown = Heir {
            pair,
            ascends,
            answered: false,
            ended: false,
            life: life(pair.protocol(), Tcp::unknown()),
            deadline: None,
        };
        let Some([deadline, state, a, b, c, d, e, f]) = tail.copied() else { return Some(unknown) };
        let tcp = Tcp::from_words([state & !(ANSWERED | ENDED), a, b, c, d, e, f]);
        Some(Heir {
            answered: state & ANSWERED != 0,
            ended: state & ENDED != 0,
            life: life(pair.protocol(), tcp?),
            deadline: Some(deadline.saturating_sub(epoch)),
            ..unknown
        })
    }

    /// Its packets, from its lower end to its higher.
    pub fn key(&self) -> Key {
        self.pair.key(true)
    }
}

impl Key {
    /// Its connection's hash whatever the zone's number is, keyed by `seed` and by the name of the zone.
    pub(crate) fn hash_in(&self, zone_name: u64, seed: [u64; 2]) -> u64 {
        self.pair().0.hash_in(zone_name, seed)
    }
}

impl Conntrack {
    /// A connection that is there as words: in the zone of a name, its clock behind by `epoch`.
    pub(crate) fn to_words(
        &self,
        connection: ConnectionId,
        zone_name: u64,
        epoch: u64,
    ) -> Option<([u64; FIXED], [u64; TAIL])> {
        let entry = self.entries.get(connection.index())?;
        if entry.generation != connection.generation || !entry.is_there() {
            return None;
        }
        let [low, low_high, high, high_high, rest] = entry.pair.to_words();
        let fixed = [zone_name, low, low_high, high, high_high, rest | if entry.ascends { ASCENDS } else { 0 }];
        let [state, a, b, c, d, e, f] = match entry.life {
            Life::Tcp(tcp) => tcp.to_words(),
            Life::Udp | Life::Echo | Life::Other => [0; 7],
        };
        let flags = if entry.answered { ANSWERED } else { 0 } | if entry.ended { ENDED } else { 0 };
        Some((fixed, [entry.deadline.saturating_add(epoch), state | flags, a, b, c, d, e, f]))
    }

    /// The zone of a connection that is there.
    pub(crate) fn zone_of(&self, connection: ConnectionId) -> Option<Zone> {
        self.entries.get(connection.index()).map(|entry| entry.pair.zone())
    }

    /// Whether there is a connection that packets with `key` are of, alive or not.
    pub(crate) fn knows(&self, key: &Key) -> bool {
        let (pair, _) = key.pair();
        self.find(&pair, self.bucket(&pair)).is_some()
    }

    /// Takes up a connection that another process had, where it is not over by `now`, nanoseconds, and not there. It
    /// lives no longer than from a packet that comes now.
    ///
    /// # Errors
    /// [`Refused`]: its zone has no room for it. That is counted as for a new one.
    pub(crate) fn adopt(
        &mut self,
        heir: &Heir,
        now: u64,
        ended: &mut Vec<Ended>,
    ) -> Result<Option<ConnectionId>, Refused> {
        let Heir { pair, ascends, answered, life, .. } = *heir;
        let bucket = self.bucket(&pair);
        if self.find(&pair, bucket).is_some() {
            return Ok(None);
        }
        let (generation, standing, deadline) = (0, None, 0);
        let mut entry =
            Entry { pair, generation, bucket, ascends, answered, ended: heir.ended, standing, life, deadline };
        let most = now.saturating_add(entry.timeout(&self.config.timeouts));
        entry.deadline = heir.deadline.map_or(most, |deadline| deadline.min(most));
        if entry.deadline <= now {
            return Ok(None);
        }
        let standing = entry.should_stand();
        entry.ended |= standing == Some(Standing::Over);
        let at = self.insert(entry, standing, ended)?;
        Ok(Some(self.tracked(at, ascends).connection))
    }
}
