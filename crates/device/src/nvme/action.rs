//! What a controller asks of the program around it.

use softdpu_ring::nvme::{PairConfig, Shadow};

/// What to do, in the order in which the controller asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start serving an I/O queue pair, its doorbells those of the controller's page. Answer:
    /// [`Controller::started`](super::Controller::started).
    Start {
        /// The pair; its identifier is that of the submission queue.
        pair: PairConfig,
        /// The interrupt vector, where interrupts are enabled.
        vector: Option<u16>,
        /// Where the host keeps shadow doorbells.
        shadow: Option<Shadow>,
    },
    /// Stop an I/O queue pair, and forget its in-flight record. What is in flight either completes or, after the
    /// patience for that, never touches guest memory again. Answer:
    /// [`Controller::stopped`](super::Controller::stopped).
    Stop {
        /// The submission queue's identifier.
        sq: u16,
    },
    /// The host has configured shadow doorbells: all pairs that run use them from now on.
    Shadow(Shadow),
    /// A doorbell of this pair was written: wake the core that serves it.
    Kick {
        /// The submission queue's identifier.
        sq: u16,
    },
    /// Make what was written to all namespaces durable: the host shuts the controller down. Answer:
    /// [`Controller::flushed`](super::Controller::flushed).
    Flush,
    /// The controller cannot go on (CSTS.CFS) until its host resets it: for the log and `status`.
    Failed(String),
}
