//! Encryption between a device and a volume's back end, whatever kind that is.
//!
//! ```text
//!  guest memory ──copy──▶ scratch ──AES-XTS──▶ private memory ──▶ back end      (writes, write-zeroes)
//!  guest memory ◀──copy── scratch ◀──AES-XTS── private memory ◀── back end      (reads)
//! ```
//!
//! A back end never sees guest memory of an encrypted volume, and no byte of guest memory is ever encrypted where it
//! lies: the guest may change it meanwhile, and would see what it must not. A back end gets requests as any others,
//! with the token of the guest's request and a buffer over private memory, so fences, landings, replay, reads from the
//! page cache and time-outs are the back ends' own.
//!
//! A long request goes in pieces, one after the other, so that it costs no more private memory than a piece
//! ([`PIECE`]), and a core works on [`STEP`] bytes at most before it does anything else.

mod jobs;
pub(crate) mod key;
mod lender;
mod stage;

pub(crate) use stage::{Admitted, Next, Stage};

/// The most bytes of one request that are under way at a time: an entry of the accelerator's ring.
const PIECE: u64 = softdpu_accel::LONGEST;

/// Bytes a core encrypts or decrypts before it does anything else: some 50 µs.
pub(crate) const STEP: u64 = 128 << 10;
