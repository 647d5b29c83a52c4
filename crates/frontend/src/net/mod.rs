//! A vhost-user-net front end, and the frames that it sends and receives.
//!
//! ```text
//!  FrameSender ── transmitq1 of A ──▶ ┌────────┐ ──▶ receiveq1 of B ── FrameReceiver
//!     └ Frames, numbered              │ server │        checks lengths and numbers
//!                                     └────────┘
//! ```

pub mod frames;
mod front_end;
pub mod receiver;
pub mod sender;

pub use frames::{Frames, Station};
pub use front_end::{NetFrontEnd, NetOptions};
pub use receiver::{CorruptFrame, FrameReceiver};
pub use sender::FrameSender;
