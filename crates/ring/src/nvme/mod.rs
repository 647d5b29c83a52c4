//! The device side of an NVMe submission and completion queue pair (NVMe Base 2.0 §3.3.1).
//!
//! ```text
//!          host                                        QueuePair
//!   submission queue │ commands │ ──▶ copied ──▶ PairRecords ──▶ Chain (64 bytes) ──▶ device
//!   tail doorbell ──────▶ Doorbells, or shadow doorbells in guest memory
//!   completion queue │ entries  │ ◀── phase tag ◀── Used ◀── device
//! ```
//!
//! A command is copied out of guest memory once, into its slot of the in-flight record. What the device parses is that
//! copy, which the host cannot change, so the host may use the entry again at once (§3.3.1.4, SQ Head Pointer). The
//! queue takes no more commands than the completion queue has room for: what completes can always be posted.
//!
//! A pair has one submission queue for one completion queue. Both are contiguous (CAP.CQR).

mod doorbell;
pub mod driver;
mod pair;
mod records;

pub use doorbell::{Doorbells, Shadow, arm, needs_register};
pub use pair::{PairConfig, QueueMemory, QueuePair};
pub use records::PairRecords;

/// Bytes of a submission queue entry: CC.IOSQES 6 (NVM Command Set 1.0 §5.1, Base 2.0 §3.3.3.1).
pub const COMMAND: usize = 64;
/// Bytes of a completion queue entry: CC.IOCQES 4 (Base 2.0 §3.3.3.2).
pub const COMPLETION: usize = 16;
/// The most entries of a queue that are served: CAP.MQES + 1.
pub const MAX_ENTRIES: u16 = 4096;
