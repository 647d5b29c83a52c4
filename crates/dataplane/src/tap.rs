//! TAP interfaces: a port for the host itself, or for a container.
//!
//! The supervisor makes it, which takes CAP_NET_ADMIN, and keeps the descriptor: when the last one of an interface is
//! closed, the kernel takes the interface away, and with it the addresses and routes that were configured on it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softdpu_engine::Socket;
use softdpu_sys::port::tap::{Offloads, Tap};

use super::broker::Wire;
use softdpu_site as config;

/// How soon an interface that is not there is made: the program that deleted it may be about to make another in its
/// place.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// An interface that is not there: it was deleted, or could not be made.
pub(super) struct Lost {
    /// When it is made again.
    pub next: Instant,
    pause: Duration,
}

impl Lost {
    pub(super) fn new(now: Instant) -> Lost {
        Lost { next: now + FIRST_PAUSE, pause: FIRST_PAUSE }
    }

    /// It could not be made.
    pub(super) fn put_off(&mut self, now: Instant) {
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.next = now + self.pause;
    }
}

fn key(device: &str) -> String {
    format!("tap/{device}")
}

/// Has the interface made, or goes on with the one that the data plane before this one had.
pub(super) fn open(device: &str, settings: &config::Tap, mtu: u16, wire: &Wire) -> Result<Socket, String> {
    let text = |error: &dyn std::fmt::Display| format!("interface '{}': {error}", settings.interface);
    if let Some(fd) = wire.kept_fd(&key(device)) {
        let fd = fd.as_fd().try_clone_to_owned().map_err(|error| text(&error))?;
        match Tap::adopt(fd, Offloads::ALL) {
            Ok(tap) => return Ok(tap.into()),
            // Its interface was deleted meanwhile, for one: it is of no use to a successor either.
            Err(error) => {
                tracing::warn!(device, interface = settings.interface, %error, "the interface that was there is gone; it is made again");
                close(device, wire);
            }
        }
    }
    let fd = wire.open_tap(device, mtu).map_err(|error| text(&error))?;
    let kept = fd.try_clone().map_err(|error| text(&error))?;
    let tap = Tap::adopt(fd, Offloads::ALL).map_err(|error| text(&error))?;
    wire.keep_fd(&key(device), Arc::new(kept.into())).map_err(|error| text(&error))?;
    Ok(tap.into())
}

/// The device is no more; its interface goes with the last descriptor.
pub(super) fn close(device: &str, wire: &Wire) {
    // It fails only with the link, which the control loop notices by itself.
    let _ = softdpu_storage::Broker::forget(wire, &key(device));
}
