//! Queues that a DMA engine carries: the producer writes its own memory, the engine copies it to the consumer's.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Ledger, LinkCosts};
use crate::memory::{QueueMemory, SharedMemory};

/// A transfer that has not arrived.
struct Transfer {
    arrives: u64,
    writes: Vec<(usize, u64)>,
}

/// Transfers under way, in order.
#[derive(Clone, Default)]
pub struct DmaEngine(Arc<Mutex<VecDeque<Transfer>>>);

impl DmaEngine {
    fn begin(&self, transfer: Transfer) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(transfer);
    }

    /// What has arrived by this time is in the memory.
    pub fn land(&self, now: u64, memory: &mut SharedMemory) {
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while under_way.front().is_some_and(|transfer| transfer.arrives <= now) {
            for (at, value) in under_way.pop_front().into_iter().flat_map(|transfer| transfer.writes) {
                memory.publish(at, value);
            }
        }
    }

    /// Transfers that have not arrived.
    pub fn under_way(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The producer's side. A drain begins a transfer; it is over then where the queue is synchronous, and the producer
/// goes on at once where it is not.
pub struct DmaProducer {
    memory: SharedMemory,
    engine: DmaEngine,
    costs: LinkCosts,
    ledger: Ledger,
    is_synchronous: bool,
    stores: Vec<(usize, u64)>,
}

impl DmaProducer {
    /// Into this memory, which the consumer has.
    pub fn new(
        memory: SharedMemory,
        engine: DmaEngine,
        is_synchronous: bool,
        costs: LinkCosts,
        ledger: Ledger,
    ) -> DmaProducer {
        DmaProducer { memory, engine, costs, ledger, is_synchronous, stores: Vec::new() }
    }
}

impl QueueMemory for DmaProducer {
    fn words(&self) -> usize {
        self.memory.words()
    }

    /// The consumer's position, which its engine has brought.
    fn observe(&mut self, at: usize) -> u64 {
        self.ledger.spend(self.costs.hit);
        self.memory.observe(at)
    }

    fn store(&mut self, at: usize, value: u64) {
        self.ledger.spend(self.costs.hit);
        self.stores.push((at, value));
    }

    fn publish(&mut self, at: usize, value: u64) {
        self.store(at, value);
    }

    fn barrier(&mut self) {
        self.memory.barrier();
    }

    fn drain(&mut self) {
        if self.stores.is_empty() {
            return;
        }
        let writes = std::mem::take(&mut self.stores);
        self.ledger.spend(self.costs.dma_begin);
        let time = self.costs.dma_latency + writes.len() as u64 * 8 / self.costs.dma_bytes.max(1);
        let arrives = self.ledger.spent() + time;
        self.engine.begin(Transfer { arrives, writes });
        if self.is_synchronous {
            self.ledger.spend(time);
            self.engine.land(arrives, &mut self.memory);
        }
    }
}

/// The consumer's side: its own memory, into which transfers arrive as the producer's time goes on.
pub struct DmaConsumer {
    memory: SharedMemory,
    engine: DmaEngine,
    costs: LinkCosts,
    /// The producer's time.
    producer: Ledger,
    ledger: Ledger,
}

impl DmaConsumer {
    /// Of a queue that the engine fills.
    pub fn new(
        memory: SharedMemory,
        engine: DmaEngine,
        costs: LinkCosts,
        producer: Ledger,
        ledger: Ledger,
    ) -> DmaConsumer {
        DmaConsumer { memory, engine, costs, producer, ledger }
    }
}

impl QueueMemory for DmaConsumer {
    fn words(&self) -> usize {
        self.memory.words()
    }

    fn observe(&mut self, at: usize) -> u64 {
        self.ledger.spend(self.costs.hit);
        self.engine.land(self.producer.spent(), &mut self.memory);
        self.memory.observe(at)
    }

    fn store(&mut self, at: usize, value: u64) {
        self.ledger.spend(self.costs.hit);
        self.memory.store(at, value);
    }

    fn publish(&mut self, at: usize, value: u64) {
        self.ledger.spend(self.costs.hit);
        self.memory.publish(at, value);
    }

    fn barrier(&mut self) {
        self.memory.barrier();
    }
}
