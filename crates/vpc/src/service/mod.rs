//! Service functions: what the network itself answers to a guest.

mod context;

pub use context::{Answer, ServiceContext};
