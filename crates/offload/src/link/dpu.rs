//! The DPU's view of its own memory.

use super::{DpuPageType, Ledger, LinkCosts};
use crate::memory::{QueueMemory, SharedMemory};

/// Coherent; dear only where it is mapped uncacheable.
pub struct DpuView {
    memory: SharedMemory,
    /// A word.
    access: u64,
    /// A word that the other side may have written since: its line comes from the memory.
    fetch: u64,
    ledger: Ledger,
}

impl DpuView {
    /// Mapped with such pages. The time goes into the ledger.
    pub fn new(memory: SharedMemory, pages: DpuPageType, costs: LinkCosts, ledger: Ledger) -> DpuView {
        let access = match pages {
            DpuPageType::Uncacheable => costs.dpu_uncached,
            DpuPageType::WriteBack => costs.hit,
        };
        DpuView { memory, access, fetch: costs.dpu_uncached, ledger }
    }

    /// The DPU's time.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

impl QueueMemory for DpuView {
    fn words(&self) -> usize {
        self.memory.words()
    }

    fn load(&mut self, at: usize) -> u64 {
        self.ledger.spend(self.access);
        self.memory.load(at)
    }

    fn observe(&mut self, at: usize) -> u64 {
        self.ledger.spend(self.fetch);
        self.memory.observe(at)
    }

    fn store(&mut self, at: usize, value: u64) {
        self.ledger.spend(self.access);
        self.memory.store(at, value);
    }

    fn publish(&mut self, at: usize, value: u64) {
        self.ledger.spend(self.access);
        self.memory.publish(at, value);
    }

    fn barrier(&mut self) {
        self.memory.barrier();
    }
}
