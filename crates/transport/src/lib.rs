//! Transports: how a device meets its driver.
//!
//! A transport is a protocol state machine **without I/O**. The owner of the socket reads one message, hands it over
//! with the handles of the file descriptors that came with it, and carries out the [`Action`](vhost_user::Action)s that
//! come back: run a command on the device, send a reply, close a descriptor. So the same code runs in the data plane,
//! in a test, under a fuzzer and, with the messages of a recorded connection, in a debugger.
#![forbid(unsafe_code)]

pub mod vhost_user;
