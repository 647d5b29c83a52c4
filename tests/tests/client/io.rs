//! Requests of a well-behaved driver.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use softdpu_memory::GuestAddress;
use softdpu_ring::driver::{Completion, Piece};
use softdpu_tests::{Context, Failure};

use super::{BLOCK, DATA, FrontEnd, GUEST, HEADERS, PATIENCE, STATUSES, signalled};

/// Request types (virtio 1.3 §5.2.6).
pub const IN: u32 = 0;
pub const OUT: u32 = 1;

/// Sectors in a block.
const SECTORS: u64 = BLOCK as u64 / 512;

/// A place for one request's header, data and status.
pub type Slot = u16;

impl FrontEnd {
    /// Writes a request's header into its slot, and a status no device writes.
    pub fn header(&self, slot: Slot, kind: u32, sector: u64) {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        self.memory.write(HEADERS + 16 * u64::from(slot), &header);
        self.memory.write(STATUSES + u64::from(slot), &[0xff]);
    }

    /// Adds a read (`None`) or a write of a block to the ring; its id. Nothing is published.
    pub fn add(&mut self, slot: Slot, block: u64, write: Option<&[u8]>) -> Option<u16> {
        self.header(slot, if write.is_some() { OUT } else { IN }, block * SECTORS);
        let data = DATA + u64::from(slot) * BLOCK as u64;
        // What a read does not overwrite must not look like what was read last.
        self.memory.write(data, write.unwrap_or(&[0xa5; BLOCK]));
        let place = |offset: u64| GuestAddress(GUEST + offset);
        let header = Piece::readable(place(HEADERS + 16 * u64::from(slot)), 16);
        let data = Piece { address: place(data), len: BLOCK as u32, writable: write.is_none() };
        self.driver.add(&[header, data, Piece::writable(place(STATUSES + u64::from(slot)), 1)])
    }

    /// Publishes what was added and kicks if the device wants it.
    pub fn publish(&mut self) {
        if self.driver.publish() {
            self.ring_kick();
        }
    }

    /// Kicks, wanted or not.
    pub fn ring_kick(&self) {
        // A counter that is full says as much as one that counts this kick.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    /// The status of a slot's request.
    pub fn status(&self, slot: Slot) -> u8 {
        self.memory.read(STATUSES + u64::from(slot), 1)[0]
    }

    /// The data of a slot's request.
    pub fn data(&self, slot: Slot) -> Vec<u8> {
        self.memory.read(DATA + u64::from(slot) * BLOCK as u64, BLOCK)
    }

    /// Waits for the next completion, asleep.
    pub fn wait(&mut self) -> Result<Completion, Failure> {
        let start = Instant::now();
        loop {
            if let Some(done) = self.driver.take() {
                return Ok(done);
            }
            if start.elapsed() > PATIENCE {
                return Err(Failure::new(format!("no completion within {PATIENCE:?}")));
            }
            if !self.driver.arm() {
                signalled(self.call.as_fd(), Duration::from_millis(100));
            }
        }
    }

    /// One request in slot 0, alone on the ring.
    fn one(&mut self, block: u64, write: Option<&[u8]>) -> Result<(), Failure> {
        let id = self.add(0, block, write).ok_or_else(|| Failure::new("the ring has no room for one request"))?;
        self.publish();
        let done = self.wait().context(format_args!("block {block}"))?;
        match (done.id == id, self.status(0)) {
            (true, 0) => Ok(()),
            (true, status) => Err(Failure::new(format!("block {block}: status {status}"))),
            (false, _) => Err(Failure::new(format!("request {id} came back as {}", done.id))),
        }
    }

    /// Writes a block.
    pub fn write_block(&mut self, block: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.one(block, Some(bytes))
    }

    /// Reads a block.
    pub fn read_block(&mut self, block: u64) -> Result<Vec<u8>, Failure> {
        self.one(block, None)?;
        Ok(self.data(0))
    }
}

/// What a block holds after write number `version`: a word that names both, again and again.
pub fn pattern(block: u64, version: u64) -> Vec<u8> {
    let word = (block << 32 | version).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word.to_le_bytes().repeat(BLOCK / 8)
}
