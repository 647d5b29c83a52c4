//! TAP interfaces: a port for the host itself, or for a container.
//!
//! The supervisor keeps the descriptor: when the last one of an interface is closed, the kernel takes the interface away, and
//! with it the addresses and routes that somebody gave it.

use std::sync::Arc;

use softdpu_engine::Socket;
use softdpu_sys::port::InterfaceName;
use softdpu_sys::port::link::Links;
use softdpu_sys::port::tap::{Offloads, Tap, TapOptions};

use super::broker::Wire;
use crate::config;

fn key(device: &str) -> String {
    format!("tap/{device}")
}

/// Makes the interface, or goes on with the one that the data plane before this one had.
pub(super) fn open(device: &str, settings: &config::Tap, mtu: u16, wire: &Wire) -> Result<Socket, String> {
    let text = |error: &dyn std::fmt::Display| format!("interface '{}': {error}", settings.interface);
    if let Some(fd) = wire.kept_fd(&key(device)) {
        let fd = fd.try_clone().map_err(|error| text(&error))?;
        return Tap::adopt(fd, Offloads::ALL).map(Socket::from).map_err(|error| text(&error));
    }
    let options = TapOptions::default();
    let tap = Tap::open(&settings.interface, &options).map_err(|error| text(&error))?;
    let fd = tap.fd().try_clone_to_owned().map_err(|error| text(&error))?;
    let name = InterfaceName::new(&settings.interface).map_err(|error| text(&error))?;
    let links = Links::new().map_err(|error| text(&error))?;
    links.set_mac(&name, settings.port.mac.0).map_err(|error| text(&error))?;
    links.set_mtu(&name, settings.port.mtu.unwrap_or(mtu).into()).map_err(|error| text(&error))?;
    links.set_up(&name, true).map_err(|error| text(&error))?;
    wire.keep_fd(&key(device), Arc::new(fd)).map_err(|error| text(&error))?;
    Ok(tap.into())
}

/// The device is no more; its interface goes with the last descriptor.
pub(super) fn close(device: &str, wire: &Wire) {
    // It fails only with the link, which the control loop notices by itself.
    let _ = softdpu_storage::Broker::forget(wire, &key(device));
}
