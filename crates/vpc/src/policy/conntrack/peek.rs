//! What a packet would be to the connections there are, without changing any.

use super::Conntrack;
use super::config::{ConnectionId, Tracked};
use super::entry::{Entry, Life, Standing};
use super::key::{Direction, Zone};
use super::reason::Refused;
use super::subject::{Content, Segment};
use super::table::list;
use super::tcp::{Step, Tcp, TcpState};

/// What a packet would be.
#[derive(Clone, Copy, Debug)]
pub enum Peek {
    /// Of a connection, as it would be after it; of TCP, with its state.
    Tracked(Tracked, Option<TcpState>),
    /// The first of one, as that would be if rules allow it, and whether there is room for it.
    New((Tracked, Option<TcpState>), Result<(), Refused>),
}

fn state(life: &Life) -> Option<TcpState> {
    match life {
        Life::Tcp(tcp) => Some(tcp.state),
        Life::Udp | Life::Echo | Life::Other => None,
    }
}

impl Conntrack {
    /// What a packet would be at `now`, nanoseconds, if it were [looked at](Self::look) now.
    ///
    /// # Errors
    /// [`Refused`]: it would be dropped. It is not counted.
    pub fn peek(&self, segment: &Segment, now: u64) -> Result<Peek, Refused> {
        let (pair, ascends) = segment.key.pair();
        let bucket = self.bucket(&pair);
        let found = self.find(&pair, bucket);
        if let Some(at) = found {
            let mut entry = self.entries[at as usize];
            if entry.deadline > now
                && let Some(known) = self.peek_step(at, &mut entry, ascends, segment)?
            {
                return Ok(known);
            }
        }
        let life = self.life(&segment.content)?;
        let connection = ConnectionId { slot: 0, generation: 0 };
        let tracked = Tracked { connection, direction: Direction::Original, is_lasting: false };
        Ok(Peek::New((tracked, state(&life)), self.room(pair.zone(), found)))
    }

    /// The next packet of the connection in `entry`, a copy; None: it is over then, the packet begins another.
    fn peek_step(&self, at: u32, entry: &mut Entry, ascends: bool, segment: &Segment) -> Result<Option<Peek>, Refused> {
        let tracked = self.tracked(at, ascends);
        let step = match (&mut entry.life, &segment.content) {
            (Life::Tcp(tcp), Content::Tcp(header)) => tcp.step(tracked.direction, header, self.config.any_reset)?,
            _ => Step::Pass,
        };
        let tracked = match step {
            Step::Reopen => return Ok(None),
            Step::Stay => tracked,
            Step::Pass => {
                entry.answered |= tracked.direction == Direction::Reply;
                Tracked { is_lasting: entry.should_stand().is_none(), ..tracked }
            }
        };
        Ok(Some(Peek::Tracked(tracked, state(&entry.life))))
    }

    /// What a packet opens that is of no connection.
    ///
    /// # Errors
    /// [`Refused`]: it opens none.
    pub(super) fn life(&self, content: &Content) -> Result<Life, Refused> {
        match content {
            Content::Tcp(header) => Tcp::open(header, self.config.pickup).map(Life::Tcp),
            Content::Udp => Ok(Life::Udp),
            Content::Echo { is_request: true } => Ok(Life::Echo),
            Content::Echo { is_request: false } => Err(Refused::NoConnection),
            Content::Other => Ok(Life::Other),
        }
    }

    /// Whether there is room for one more connection of `zone`, once the one in `ends` is taken out.
    fn room(&self, zone: Zone, ends: Option<u32>) -> Result<(), Refused> {
        let share = self.share(zone);
        if share == 0 {
            return Err(Refused::NoShare);
        }
        let is_shared = self.config.rest_is_shared;
        let most = if is_shared { u32::MAX } else { share };
        let used = self.used(zone) - u32::from(ends.is_some());
        let full = if used < most && (!self.is_full() || ends.is_some()) {
            return Ok(());
        } else if used >= share {
            Refused::ShareFull
        } else {
            Refused::TableFull
        };
        let mut zones = (0..self.zones.len() as u32).map(Zone);
        if is_shared && used < share && zones.any(|zone| self.has_too_many(zone)) {
            return Ok(());
        }
        let mut can_go = [Standing::HalfOpen, Standing::Over].into_iter().flat_map(|standing| {
            std::iter::successors(self.waiting.first(list(zone, standing)), |at| self.waiting.after(*at))
        });
        match can_go.find(|at| Some(*at) != ends) {
            // After its share was made smaller, one fewer is still too many.
            Some(_) if used - 1 < most => Ok(()),
            _ => Err(full),
        }
    }
}
