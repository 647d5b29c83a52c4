//! NBD servers that lie: whatever they say, the connection is dropped with a reason and guest memory is left alone.

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod connections;
mod fence;
mod handshake;
mod offers;
mod server;
