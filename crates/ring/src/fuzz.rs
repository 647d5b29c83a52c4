//! Hostile drivers from a string of bytes: what a fuzzer, and a property test, feed in.
//!
//! The bytes are read as a program of mostly valid driver actions, device actions, restarts, and corruptions of the
//! ring. Whatever they are, nothing panics, a chain that comes out lies inside guest memory, and after the first error
//! not a byte of shared memory changes any more.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use softdpu_memory::{GuestAddress, Mapping, Region, UserAddress, View, Window};
use softdpu_sys::IoMemory;

use crate::driver::{Driver, Layout, Piece};
use crate::layout::DESCRIPTOR;
use crate::{Chain, Format, InflightRecords, Position, Queue, QueueConfig, Used};

const MEMORY: u64 = 0x8000;
/// Indirect tables lie here, one a slot.
const TABLES: u64 = 0x2000;
const TABLE: u64 = 0x100;
const DATA: u64 = 0x4000;

/// Plays `program` against a split queue.
///
/// # Panics
/// When the queue breaks one of its promises.
pub fn split(program: &[u8]) {
    play(Format::Split, program);
}

/// Plays `program` against a packed queue.
///
/// # Panics
/// When the queue breaks one of its promises.
pub fn packed(program: &[u8]) {
    play(Format::Packed, program);
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Zero at the end.
    fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }
}

struct World {
    view: Arc<View>,
    region: Arc<Mapping>,
    config: QueueConfig,
    layout: Layout,
    driver: Driver,
    queue: Queue,
    flight: Vec<Used>,
    /// All shared bytes as they were when the queue broke.
    frozen: Option<Vec<u8>>,
    tables: u64,
    /// The driver did something no driver does.
    hostile: bool,
}

fn play(format: Format, program: &[u8]) {
    let mut bytes = Bytes(program);
    let shape = bytes.byte();
    let size = match format {
        Format::Split => 1 << (shape & 3),
        Format::Packed => u16::from(shape & 7) + 1,
    };
    let config = QueueConfig {
        size,
        format,
        event_idx: shape & 8 != 0,
        indirect: shape & 16 == 0,
        max_pieces: 8,
        log_used: None,
        resumed: false,
    };
    let memory = Mapping::heap(MEMORY as usize);
    // Two regions, so that pieces and tables may cross from one into the other.
    let half = MEMORY / 2;
    let region = |at, offset| Region::new(GuestAddress(at), UserAddress(at), half, Arc::clone(&memory), offset);
    let view = View::new(vec![region(0, 0), region(half, half as usize)]).expect("two halves");
    let layout = Layout::new(format, size);
    let addresses = layout.addresses(UserAddress(0));
    let driver = Driver::new(&view, format, size, config.event_idx, addresses).expect("inside");
    let region = Mapping::heap(InflightRecords::bytes(format, size));
    let records = InflightRecords::new(Window::of_mapping(Arc::clone(&region)));
    let queue = Queue::new(&view, config, addresses, Position::start(format), Some(records)).expect("inside");
    let mut world = World {
        view,
        region,
        config,
        layout,
        driver,
        queue,
        flight: Vec::new(),
        frozen: None,
        tables: 0,
        hostile: false,
    };
    while let Some(action) = bytes.next() {
        world.act(action, &mut bytes);
        world.check();
    }
}

impl World {
    fn act(&mut self, action: u8, bytes: &mut Bytes<'_>) {
        // Only the device acts on a broken queue, and must not.
        if self.frozen.is_some() && !matches!(action % 16, 6..=10) {
            return;
        }
        match action % 16 {
            0..=3 => self.add(bytes),
            4 | 5 => {
                self.driver.publish();
            }
            6 | 7 => self.pop(bytes.byte().into()),
            8 | 9 => self.complete(bytes.byte()),
            10 => {
                if bytes.byte() & 1 == 0 {
                    let _ = self.queue.arm();
                } else {
                    self.queue.disarm();
                }
            }
            11 | 12 => {
                while let Some(completion) = self.driver.take() {
                    assert!(self.hostile || completion.id < self.config.size);
                }
                if bytes.byte() & 1 == 0 {
                    self.driver.arm();
                }
            }
            13 => self.restart(),
            14 => self.corrupt_ring(bytes),
            _ => self.corrupt_table(bytes),
        }
    }

    fn add(&mut self, bytes: &mut Bytes<'_>) {
        let shape = bytes.byte();
        let count = usize::from(shape & 3) + 1;
        let pieces: Vec<Piece> = (0..count)
            .map(|at| {
                let place = bytes.byte();
                let address = GuestAddress(DATA - 0x80 + u64::from(place) * 8);
                Piece { address, len: u32::from(place) + 1, writable: at >= usize::from(shape >> 2 & 3) }
            })
            .collect();
        if shape & 16 != 0 && self.config.indirect {
            // Tables take turns: there are more than requests in flight.
            let table = TABLES + TABLE * self.tables + u64::from(shape >> 5);
            if self.driver.add_indirect(GuestAddress(table), &pieces).is_some() {
                self.tables = (self.tables + 1) % 16;
            }
        } else {
            self.driver.add(&pieces);
        }
    }

    fn pop(&mut self, max: usize) {
        let was_broken = self.queue.is_broken();
        let mut chains: Vec<Chain> = Vec::new();
        match self.queue.pop(&mut chains, max) {
            Ok(count) => {
                assert!(!was_broken && count == chains.len());
            }
            Err(error) => {
                assert!(self.hostile, "a well behaved driver was refused: {error}");
                assert!(chains.is_empty() && self.queue.is_broken());
            }
        }
        self.keep(&chains);
    }

    fn keep(&mut self, chains: &[Chain]) {
        for chain in chains {
            assert!(chain.id < self.config.size && chain.descriptors >= 1);
            assert!(chain.readable <= chain.buffer.pieces() && !chain.buffer.is_empty());
            // Each byte is guest memory: touching all of it is the proof, under a sanitizer or Miri.
            let mut copy = vec![0; chain.buffer.len() as usize];
            chain.buffer.read_at(0, &mut copy).expect("as long as it says");
            assert!(chain.buffer.iovecs().iter().all(|piece| !piece.is_empty()));
            assert!(self.flight.iter().all(|used| used.id != chain.id), "handed out twice");
            self.flight.push(chain.used(copy.len() as u32));
        }
    }

    fn complete(&mut self, pick: u8) {
        let count = usize::from(pick & 3).min(self.flight.len());
        if pick & 4 != 0 {
            self.flight.reverse();
        }
        let done: Vec<Used> = self.flight.drain(..count).collect();
        match self.queue.complete(&done) {
            Ok(_) => assert!(!self.queue.is_broken()),
            Err(_) => assert!(self.queue.is_broken() && self.frozen.is_some(), "the device did nothing wrong"),
        }
    }

    /// The process is replaced; what was in flight comes again.
    fn restart(&mut self) {
        let addresses = self.layout.addresses(UserAddress(0));
        let records = InflightRecords::new(Window::of_mapping(Arc::clone(&self.region)));
        let position = self.queue.position();
        match Queue::new(&self.view, self.config, addresses, position, Some(records)) {
            Ok(queue) => self.queue = queue,
            Err(error) => {
                // A used index the driver wrote makes the records disagree with the ring.
                assert!(self.hostile, "a good ring was refused: {error}");
                self.queue.break_off();
                return;
            }
        }
        let before = std::mem::take(&mut self.flight);
        let mut chains = Vec::new();
        match self.queue.resubmit(&mut chains) {
            Ok(count) => assert!(self.hostile || count == before.len(), "lost or doubled"),
            Err(error) => assert!(self.hostile, "a good ring was refused: {error}"),
        }
        self.keep(&chains);
    }

    fn corrupt_ring(&mut self, bytes: &mut Bytes<'_>) {
        self.hostile = true;
        let words = self.layout.bytes / 2;
        let at = usize::from(bytes.u16()) % words * 2;
        let value = bytes.u16();
        if let Ok(ring) = self.view.guest_window(GuestAddress(0), self.layout.bytes, DESCRIPTOR) {
            ring.u16(at).store(value, Relaxed);
        }
    }

    fn corrupt_table(&mut self, bytes: &mut Bytes<'_>) {
        self.hostile = true;
        let at = TABLES + u64::from(bytes.u16()) % (TABLE * 16);
        if let Ok(table) = self.view.buffer(GuestAddress(at), 1) {
            let _ = table.write_at(0, &[bytes.byte()]);
        }
    }

    fn check(&mut self) {
        assert!(
            self.queue.is_broken() || usize::from(self.queue.in_flight()) == self.flight.len(),
            "what is in flight is what came out"
        );
        if !self.queue.is_broken() {
            return;
        }
        let mut now = vec![0; MEMORY as usize];
        let all = self.view.buffer(GuestAddress(0), MEMORY).expect("all of it");
        all.read_at(0, &mut now).expect("all of it");
        match &self.frozen {
            None => self.frozen = Some(now),
            Some(then) => assert!(*then == now, "a broken queue wrote"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 4000 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn no_program_of_a_driver_breaks_a_promise(
            is_packed in any::<bool>(),
            program in prop::collection::vec(any::<u8>(), 0..if cfg!(miri) { 100 } else { 400 }),
        ) {
            if is_packed { super::packed(&program) } else { super::split(&program) }
        }

        #[test]
        fn nor_one_without_corruption(
            is_packed in any::<bool>(),
            program in prop::collection::vec(any::<u8>().prop_map(|byte| if byte % 16 < 14 { byte } else { byte - 14 }), 0..if cfg!(miri) { 100 } else { 400 }),
        ) {
            if is_packed { super::packed(&program) } else { super::split(&program) }
        }
    }
}
