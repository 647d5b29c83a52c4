//! Both formats, driven from the other side.

mod abuse;
mod behaviour;
mod crash;
mod in_order;
mod pair;
mod recycle;

use std::sync::Arc;

use softdpu_memory::{GuestAddress, Mapping, Region, UserAddress, View, Window};

use crate::driver::{Completion, Driver, Layout, Piece};
use crate::{Chain, Format, InflightRecords, Position, Queue, QueueConfig, QueueError, RingAddresses, Used};

pub(crate) const FORMATS: [Format; 2] = [Format::Split, Format::Packed];

/// `kill_everywhere` with a batch that fills the ring, which has wrapped a few times: (format, size, wraps, most pieces
/// of a request, what is taken and completed, whether the driver is busy).
fn full_batches(kill_everywhere: impl Fn(Format, u16, usize, usize, &[(usize, usize)], bool)) {
    for format in FORMATS {
        for wraps in [0, 1, 4] {
            kill_everywhere(format, 4, wraps, 1, &[(4, 4)], wraps == 1);
        }
    }
    kill_everywhere(Format::Packed, 7, 3, 4, &[(7, 7)], true);
}

const MEMORY: u64 = 0x4_0000;
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000_0000;
/// Ring parts begin here, data further on.
const RING: u64 = GUEST + 0x1000;
/// Where requests have their memory.
pub(crate) const DATA: u64 = GUEST + 0x1_0000;
/// Where indirect tables are put, 256 of up to 16 entries.
const TABLES: u64 = GUEST + 0x3_0000;

/// A driver and the means to start a device on its ring, again and again.
pub(crate) struct Rig {
    pub view: Arc<View>,
    pub config: QueueConfig,
    pub addresses: RingAddresses,
    pub driver: Driver,
    pub layout: Layout,
    pub region: Arc<Mapping>,
    tables: u64,
}

impl Rig {
    pub fn new(format: Format, size: u16) -> Rig {
        Rig::with(QueueConfig {
            size,
            format,
            event_idx: true,
            indirect: true,
            max_pieces: 16,
            log_used: None,
            resumed: false,
        })
    }

    pub fn with(config: QueueConfig) -> Rig {
        Rig::crumbled(config, 0)
    }

    /// With the first `crumbs` bytes of the data in a region each.
    pub fn crumbled(config: QueueConfig, crumbs: u64) -> Rig {
        let mapping = Mapping::heap(MEMORY as usize);
        let crumbs = DATA..DATA + crumbs;
        let bounds = [GUEST].into_iter().chain(crumbs.clone()).chain([crumbs.end]);
        let bounds: Vec<u64> = if crumbs.is_empty() { vec![GUEST] } else { bounds.collect() };
        let ends = bounds.iter().skip(1).copied().chain([GUEST + MEMORY]);
        let region = |(start, end): (&u64, u64)| {
            let at = start - GUEST;
            Region::new(GuestAddress(*start), UserAddress(USER + at), end - start, mapping.clone(), at as usize)
        };
        let view = View::new(bounds.iter().zip(ends).map(region).collect()).unwrap();
        let layout = Layout::new(config.format, config.size);
        assert!(layout.bytes < (DATA - RING) as usize);
        let addresses = layout.addresses(UserAddress(RING - GUEST + USER));
        let driver = Driver::new(&view, config.format, config.size, config.event_idx, addresses).unwrap();
        let region = Mapping::heap(InflightRecords::bytes(config.format, config.size));
        Rig { view, config, addresses, driver, layout, region, tables: 0 }
    }

    pub fn records(&self) -> InflightRecords {
        InflightRecords::new(Window::of_mapping(Arc::clone(&self.region)))
    }

    pub fn queue(&self) -> Queue {
        self.queue_at(Position::start(self.config.format))
    }

    pub fn queue_at(&self, position: Position) -> Queue {
        Queue::new(&self.view, self.config, self.addresses, position, None).unwrap()
    }

    pub fn recorded(&self) -> Result<Queue, QueueError> {
        let position = Position::start(self.config.format);
        Queue::new(&self.view, self.config, self.addresses, position, Some(self.records()))
    }

    /// A request of `pieces` descriptors, the last of them writable.
    pub fn request(&mut self, pieces: usize) -> Option<u16> {
        self.driver.add(&request(pieces))
    }

    /// As `request`, through an indirect table; tables take turns, so that none of a request in flight is overwritten.
    pub fn indirect_request(&mut self, pieces: usize) -> Option<u16> {
        self.tables = (self.tables + 1) % 256;
        let table = GuestAddress(TABLES + self.tables * 256);
        self.driver.add_indirect(table, &request(pieces))
    }

    pub fn taken(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.driver.take()).collect()
    }

    /// The ring's memory, to do what no driver should.
    pub fn ring(&self) -> Window {
        self.view.guest_window(GuestAddress(RING), self.layout.bytes, 16).unwrap()
    }

    /// All shared bytes, to see whether they change.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = vec![0; MEMORY as usize];
        self.view.buffer(GuestAddress(GUEST), MEMORY).unwrap().read_at(0, &mut bytes).unwrap();
        bytes
    }
}

pub(crate) fn request(pieces: usize) -> Vec<Piece> {
    (0..pieces)
        .map(|at| {
            let address = GuestAddress(DATA + at as u64 * 0x200);
            Piece { address, len: 0x100 + at as u32, writable: at + 1 == pieces }
        })
        .collect()
}

pub(crate) fn pop(queue: &mut Queue) -> Vec<Chain> {
    let mut chains = Vec::new();
    queue.pop(&mut chains, usize::MAX).unwrap();
    chains
}

pub(crate) fn used(chains: &[Chain]) -> Vec<Used> {
    chains.iter().map(|chain| chain.used(u32::from(chain.id) + 1)).collect()
}

#[test]
fn a_resumed_queue_believes_records_that_were_retired_before_anybody_knew() {
    for format in [Format::Split, Format::Packed] {
        let mut rig = Rig::new(format, 16);
        let mut queue = rig.recorded().unwrap();
        for _ in 0..21 {
            rig.request(2).unwrap();
            rig.driver.publish();
            let mut chains = Vec::new();
            assert_eq!(queue.pop(&mut chains, 1), Ok(1));
            queue.complete(&[chains[0].used(1)]).unwrap();
            assert_eq!(rig.taken().len(), 1);
        }
        let stopped = queue.retire();
        drop(queue);

        // Killed here: `stopped` was not reported, and the session still has the position the queue began at.
        rig.config.resumed = true;
        assert_eq!(rig.recorded().unwrap().position(), stopped, "{format:?}");

        // A new start of the front end brings a position of its own, which counts.
        let mut queue = rig.recorded().unwrap();
        queue.retire();
        rig.config.resumed = false;
        assert_eq!(rig.recorded().unwrap().position(), Position::start(format), "{format:?}");
    }
}

#[test]
fn records_tell_the_start_that_goes_on_from_a_stop_with_requests_in_flight_from_any_other() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 16);
        let mut queue = rig.recorded().unwrap();
        let mut chains = Vec::new();
        for _ in 0..11 {
            rig.request(2).unwrap();
            rig.driver.publish();
            queue.pop(&mut chains, 1).unwrap();
            queue.complete(&used(&chains)).unwrap();
            chains.clear();
            rig.taken();
        }
        for _ in 0..3 {
            rig.request(2).unwrap();
        }
        rig.driver.publish();
        queue.pop(&mut chains, 3).unwrap();
        queue.complete(&[chains[1].used(1)]).unwrap();
        let kept = [chains[0].id, chains[2].id];
        let stopped = queue.retire();
        let left_at =
            |rig: &Rig, position| rig.records().left_at(&rig.view, format, rig.config.size, &rig.addresses, position);

        // A driver that starts anew does so at the start, one that takes over a ring from another machine at rest.
        let at_rest = match stopped {
            Position::Split { last_avail } => Position::Split { last_avail: last_avail - 2 },
            Position::Packed { used, .. } => Position::Packed { avail: used, used },
            pair @ Position::Pair { .. } => pair,
        };
        assert!(!left_at(&rig, Position::start(format)) && !left_at(&rig, at_rest), "{format:?}");
        assert!(left_at(&rig, stopped), "{format:?}");
        if format == Format::Split {
            // The position alone could be a coincidence.
            let fresh = Rig { region: Arc::clone(&rig.region), ..Rig::new(format, 16) };
            assert!(!left_at(&fresh, stopped), "in a ring with nothing used");
        }

        let mut queue = Queue::new(&rig.view, rig.config, rig.addresses, stopped, Some(rig.records())).unwrap();
        let again = pop(&mut queue);
        assert_eq!(again.iter().map(|chain| chain.id).collect::<Vec<_>>(), kept, "{format:?}");
        queue.complete(&used(&again)).unwrap();
        assert_eq!(rig.taken().len(), 3);
        let stopped = queue.retire();
        assert!(!left_at(&rig, stopped), "{format:?}: nothing was in flight");
    }
}
