//! Queues that move while a disk has their requests.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::BOTH;
use crate::common::cores::engine;
use crate::common::disk::Guest;
use softdpu_engine::CoreIndex;
use softdpu_storage::{PathBroker, Volume, VolumeKind, VolumeSpec};

/// Fewer than there may be requests in flight: each is written and read over and over.
pub const BLOCKS: u64 = 12;
const MOVES: u64 = 1000;
const SECTOR: usize = 512;

/// What is under way for a block.
struct Flight {
    block: u64,
    /// The sequence number that it writes; none: it reads.
    writes: Option<u64>,
}

fn content(block: u64, sequence: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if sequence > 0 {
        let words = [block.to_le_bytes(), sequence.to_le_bytes()].concat();
        bytes.chunks_exact_mut(16).for_each(|chunk| chunk.copy_from_slice(&words));
    }
    bytes
}

/// Each block has one request in flight at a time, so a read has to find the last sequence number that was written.
pub struct Load {
    guest: Guest,
    written: [u64; BLOCKS as usize],
    flights: HashMap<u64, Flight>,
    completed: u64,
}

impl Load {
    pub fn new(guest: Guest) -> Load {
        Load { guest, written: [0; BLOCKS as usize], flights: HashMap::new(), completed: 0 }
    }

    /// Takes every request that is in flight. How many have been completed since the beginning.
    pub fn finish(&mut self) -> u64 {
        while !self.flights.is_empty() {
            self.take();
        }
        self.completed
    }

    /// In the end each block has what was written last.
    pub fn verify(&mut self) {
        for block in 0..BLOCKS {
            assert!(self.guest.submit(None, block));
            self.guest.publish();
            let expected = content(block, self.written[block as usize]).to_vec();
            assert_eq!(self.guest.wait(), (0, expected), "block {block}");
        }
    }

    pub fn fill(&mut self, turn: u64) {
        for block in 0..BLOCKS {
            if self.flights.values().any(|flight| flight.block == block) {
                continue;
            }
            let last = self.written[block as usize];
            let writes = (!(turn + block).is_multiple_of(3)).then_some(last + 1);
            let data = writes.map(|sequence| content(block, sequence));
            let slot = self.guest.submit_slot(data.as_ref(), block).expect("room for a request of each block");
            self.flights.insert(slot, Flight { block, writes });
        }
        self.guest.publish();
    }

    pub fn take(&mut self) {
        let (slot, status, data) = self.guest.wait_slot();
        let Flight { block, writes } = self.flights.remove(&slot).expect("a completion of a request in flight");
        assert_eq!(status, 0, "block {block}");
        let last = &mut self.written[block as usize];
        match writes {
            Some(sequence) => *last = sequence,
            None => assert!(data == content(block, *last), "block {block} has {:?}, not {last}", &data[..16]),
        }
        self.completed += 1;
    }
}

#[test]
fn a_queue_moves_a_thousand_times_while_a_disk_has_its_requests_and_nothing_is_lost_doubled_or_reordered() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for format in BOTH {
        let path = folder.path().join(format!("{format:?}.img"));
        let size = BLOCKS * SECTOR as u64;
        let open = |direct| {
            let kind = VolumeKind::File {
                path: path.clone(),
                size: Some(size.max(1 << 20)),
                create: true,
                direct,
                discard: false,
            };
            Volume::open(VolumeSpec::new("disk", kind), &PathBroker::new()).unwrap()
        };
        let mut volume = open(true);
        if volume.block_size() != SECTOR as u32 {
            // A disk of larger blocks: through the page cache, which the kernel's workers write into.
            drop(volume);
            volume = open(false);
        }
        volume.activate().unwrap();
        let mut engine = engine(Some(Duration::from_micros(20)));
        let guest = Guest::new(format);
        let key = engine.start_queue(Some(CoreIndex(0)), guest.spec(&volume, 0)).unwrap();
        let mut load = Load::new(guest);
        let deadline = Instant::now() + Duration::from_secs(120);
        for turn in 0..MOVES {
            load.fill(turn);
            engine.move_queue(key, CoreIndex(((turn + 1) % 2) as usize)).unwrap();
            (0..BLOCKS / 4).for_each(|_| load.take());
            assert!(Instant::now() < deadline, "{turn} of {MOVES} moves within 120 s");
        }
        load.finish();
        let counted = || engine.cores().map(|(_, counters)| counters.travelled.get()).sum::<u64>();
        let travelled = counted();
        eprintln!("{format:?}: {travelled} of {} requests ended on a core that their queue had left", load.completed);
        assert!(travelled > 0, "no request was in flight while its queue moved");
        load.verify();
    }
}
