//! What the services of the software tier have spent and sent, by port.

use crate::id::PortId;
use crate::software::limit::{Bucket, Limit};
use crate::software::schedule::Schedule;
use crate::switch::Ask;
use crate::tables::Tables;

/// How often it is looked which ports are due a router advertisement, nanoseconds.
const LOOK: u64 = 1_000_000_000;

/// An announcement of a guest goes to its whole network: once a second.
const ANNOUNCEMENTS: Limit = Limit::new(1, 1);

/// Rates of services and times of advertisements. The vectors are by port number.
#[derive(Clone, Debug)]
pub(super) struct PortServices {
    limit: Limit,
    buckets: Vec<Bucket>,
    announcements: Vec<Bucket>,
    schedules: Vec<Schedule>,
    /// When schedules are looked at next, nanoseconds.
    next_look: u64,
}

impl PortServices {
    pub fn new(tables: &Tables) -> PortServices {
        let services = tables.services();
        let mut all = PortServices {
            limit: Limit::new(services.rate, services.burst),
            buckets: Vec::new(),
            announcements: Vec::new(),
            schedules: Vec::new(),
            next_look: 0,
        };
        all.configure(tables);
        all
    }

    /// Goes on with the rates and ports of other tables. What was spent stays.
    pub fn configure(&mut self, tables: &Tables) {
        let services = tables.services();
        self.limit = Limit::new(services.rate, services.burst);
        self.buckets.resize(tables.ports(), Bucket::default());
        self.announcements.resize(tables.ports(), Bucket::default());
        self.schedules.resize(tables.ports(), Schedule::default());
    }

    /// Whether a service may do what is asked at `port`, at `now`, nanoseconds.
    pub fn admits(&mut self, ask: Ask, port: PortId, now: u64) -> bool {
        let (buckets, limit) = match ask {
            Ask::Announce => (&mut self.announcements, ANNOUNCEMENTS),
            _ => (&mut self.buckets, self.limit),
        };
        buckets.get_mut(port.0 as usize).is_some_and(|bucket| bucket.take(now, limit))
    }

    /// The advertisements to `port` begin anew.
    pub fn begin_anew(&mut self, port: PortId) {
        if let Some(schedule) = self.schedules.get_mut(port.0 as usize) {
            *schedule = Schedule::default();
        }
    }

    /// Whether schedules are to be looked at, at `now`, nanoseconds: once a second.
    pub fn is_due(&mut self, now: u64) -> bool {
        let is_due = now >= self.next_look;
        if is_due {
            self.next_look = now.saturating_add(LOOK);
        }
        is_due
    }

    /// The ports that are due a router advertisement at `now`, nanoseconds. A port that is not up begins anew.
    pub fn advertisements(&mut self, now: u64, mut is_up: impl FnMut(PortId) -> bool) -> impl Iterator<Item = PortId> {
        self.schedules.iter_mut().enumerate().filter_map(move |(number, schedule)| {
            let port = PortId(number as u32);
            if !is_up(port) {
                *schedule = Schedule::default();
                return None;
            }
            schedule.is_due(now, number as u64).then_some(port)
        })
    }
}
