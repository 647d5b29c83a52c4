//! A model of a PCIe link between a host and its DPU: what an access costs, and what the other side can see of it.
//!
//! Queues are in the DPU's memory, whichever side writes them, so only the host's accesses are dear (Wave §5.3). The
//! model keeps contents, too: what the host has stored and not drained is in its write-combining buffer, what it
//! loads may be an old line of its cache, what a DMA engine carries has not arrived. A queue that forgets a drain or a
//! flush loses or repeats entries here, as it would on a machine.
//!
//! Nothing is slowed down. A [`Ledger`] adds up what accesses would take.

mod charges;
mod dma;
mod dpu;
mod host;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use charges::Charges;
pub use dma::{DmaConsumer, DmaEngine, DmaProducer};
pub use dpu::DpuView;
pub use host::HostView;

/// What accesses take, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCosts {
    /// The host reads 64 bits, or a line where it caches them, over the link (Wave Table 2).
    pub host_read: u64,
    /// The host writes 64 bits; they are not acknowledged (Wave Table 2).
    pub host_write: u64,
    /// A store into the write-combining buffer, or a load that hits the cache. Assumed: the paper has no figure.
    pub hit: u64,
    /// The DPU reads or writes a word of its memory that is not in its cache. Assumed: a DRAM access.
    pub dpu_uncached: u64,
    /// The host begins a DMA transfer: three registers. Assumed ("several MMIO accesses", Wave §5.1).
    pub dma_begin: u64,
    /// The first byte of a transfer arrives after this (Wave §5.1).
    pub dma_latency: u64,
    /// Bytes that arrive in a nanosecond: 200 Gbit/s (Wave §7).
    pub dma_bytes: u64,
}

impl LinkCosts {
    /// What the paper states, and what it leaves open.
    pub const WAVE: LinkCosts = LinkCosts {
        host_read: 750,
        host_write: 50,
        hit: 1,
        dpu_uncached: 100,
        dma_begin: 150,
        dma_latency: 1_000,
        dma_bytes: 25,
    };

    /// Nothing costs anything: contents alone.
    pub const FREE: LinkCosts = LinkCosts {
        host_read: 0,
        host_write: 0,
        hit: 0,
        dpu_uncached: 0,
        dma_begin: 0,
        dma_latency: 0,
        dma_bytes: u64::MAX,
    };
}

/// How the host maps the DPU's memory (Wave §5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageType {
    /// Each load and store goes over the link.
    Uncacheable,
    /// Stores gather in a buffer, which is drained; loads go over the link.
    WriteCombining,
    /// Loads bring a line into the cache, where it stays until it is flushed; stores go over the link.
    WriteThrough,
}

/// How the DPU maps its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DpuPageType {
    /// Each access goes to the memory.
    Uncacheable,
    /// Coherent with everything on the DPU.
    WriteBack,
}

/// Which of §5's optimisations are on, in the paper's order (§7.2.2). Each step has those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkStep {
    /// None.
    Baseline,
    /// Write-back pages on the DPU.
    DpuWriteBack,
    /// And write-combining and write-through pages on the host.
    HostPages,
    /// And prestaged decisions, which the host prefetches.
    Prestaged,
}

impl LinkStep {
    /// All, from none to all.
    pub const ALL: [LinkStep; 4] =
        [LinkStep::Baseline, LinkStep::DpuWriteBack, LinkStep::HostPages, LinkStep::Prestaged];

    /// As tables have it.
    pub fn name(self) -> &'static str {
        match self {
            LinkStep::Baseline => "baseline",
            LinkStep::DpuWriteBack => "+ DPU write-back",
            LinkStep::HostPages => "+ host write-combining and write-through",
            LinkStep::Prestaged => "+ prestage and prefetch",
        }
    }

    /// The DPU's pages.
    pub fn dpu_pages(self) -> DpuPageType {
        if self >= LinkStep::DpuWriteBack { DpuPageType::WriteBack } else { DpuPageType::Uncacheable }
    }

    /// The host's pages of what it writes.
    pub fn pages_to_dpu(self) -> PageType {
        if self >= LinkStep::HostPages { PageType::WriteCombining } else { PageType::Uncacheable }
    }

    /// The host's pages of what it reads.
    pub fn pages_to_host(self) -> PageType {
        if self >= LinkStep::HostPages { PageType::WriteThrough } else { PageType::Uncacheable }
    }
}

/// Time of one side, nanoseconds: what its accesses took, and what it did beside them.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<AtomicU64>);

impl Ledger {
    /// Time goes on: an access, or other work in which a prefetch arrives.
    pub fn spend(&self, nanos: u64) {
        self.0.fetch_add(nanos, Relaxed);
    }

    /// All of it so far.
    pub fn spent(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests;
