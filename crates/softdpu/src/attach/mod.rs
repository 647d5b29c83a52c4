//! How a device is attached: arguments for QEMU, XML for libvirt, a driver for libblkio, variables for a script; for a
//! TAP, the commands that configure it.
//!
//! `softdpu device args` prints these, from a site file or from what a running daemon serves. A vhost-user back end
//! reads and writes its guest's memory, so whatever starts the guest has to share that memory: both QEMU and libvirt
//! default to private memory, and every full output here says otherwise.

mod libvirt;
mod qemu;
mod tap;

use std::fmt::Write as _;
use std::path::Path;

use softdpu_api::DeviceArgs;
use softdpu_site::{Bytes, Device, DeviceKind, Network, NetworkPort};

/// The program that is to attach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `qemu-system-*` on a command line.
    Qemu(Reconnect),
    /// A libvirt domain that runs with this accelerator.
    Domain(Accel),
    /// Only the `<disk>` or `<interface>` element, for `virsh attach-device` or an existing domain.
    Element,
    /// `qemu-img` and `qemu-io`, which reach libblkio through `--image-opts`.
    Libblkio,
    /// Shell variables.
    Env,
}

/// How QEMU spells that a socket is connected to again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconnect {
    /// `reconnect=`, up to QEMU 10: deprecated in 9.2, gone in 11.
    Seconds,
    /// `reconnect-ms=`, from QEMU 9.2 on.
    Milliseconds,
}

impl Reconnect {
    /// The major version from which on the older spelling may be refused.
    const FIRST_MAJOR_WITH_MILLISECONDS_ALONE: u32 = 10;

    /// That of the QEMU which prints this for `--version` (`QEMU emulator version 7.2.22 …`), or of a bare `7.2`; none
    /// where the text has no version.
    pub fn of_version(text: &str) -> Option<Reconnect> {
        let version = text.lines().next()?.rsplit("version ").next()?;
        let major: u32 = version.split('.').next()?.trim().parse().ok()?;
        Some(if major < Self::FIRST_MAJOR_WITH_MILLISECONDS_ALONE {
            Reconnect::Seconds
        } else {
            Reconnect::Milliseconds
        })
    }
}

/// How a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// With KVM.
    Kvm,
    /// Without: QEMU translates its instructions.
    Tcg,
}

impl Accel {
    /// KVM where `device`, which is `/dev/kvm`, can be opened for reading and writing. Only starting a guest shows
    /// more.
    pub fn of(device: &Path) -> Accel {
        match std::fs::OpenOptions::new().read(true).write(true).open(device) {
            Ok(_) => Accel::Kvm,
            Err(_) => Accel::Tcg,
        }
    }
}

/// The guest's memory where the caller does not say.
pub const DEFAULT_MEMORY: Bytes = Bytes(1 << 30);

/// Why there is no such output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// there is no device to attach
    #[error("there is no device to attach")]
    Empty,
    /// libblkio drives disks only
    #[error("libblkio drives disks, and `{0}` is none: use --format qemu, libvirt or env")]
    NotADisk(String),
    /// a TAP is an interface of the host
    #[error("`{0}` is a TAP interface of the host, which no guest attaches to: leave --format out")]
    HostInterface(String),
}

/// How the first device of `args` is attached; a whole libvirt domain gets all of them. `memory` is the guest's.
pub fn render(args: &DeviceArgs, format: Format, memory: Bytes) -> Result<String, AttachError> {
    let device = args.devices.first().ok_or(AttachError::Empty)?;
    match (format, &device.kind) {
        (Format::Env, _) => Ok(env(device)),
        (Format::Qemu(reconnect), DeviceKind::VirtioBlk(blk)) => Ok(qemu::disk(&device.name, blk, memory, reconnect)),
        (Format::Qemu(reconnect), DeviceKind::VirtioNet(net)) => {
            Ok(qemu::interface(&device.name, net, mtu(args, &net.port), memory, reconnect))
        }
        (Format::Qemu(_), DeviceKind::Tap(tap)) => {
            Ok(tap::commands(tap, network(args, &tap.port), mtu(args, &tap.port)))
        }
        (Format::Domain(_) | Format::Element | Format::Libblkio, DeviceKind::Tap(_)) => {
            Err(AttachError::HostInterface(device.name.clone()))
        }
        (Format::Element, _) => Ok(libvirt::element(args, device, 0, "")),
        (Format::Domain(accel), _) => Ok(libvirt::domain(args, accel, memory)),
        (Format::Libblkio, DeviceKind::VirtioBlk(blk)) => {
            let path = qemu_value(&blk.access.socket);
            Ok(format!("{}\n", shell_word(&format!("driver=virtio-blk-vhost-user,path={path},cache.direct=on"))))
        }
        (Format::Libblkio, DeviceKind::VirtioNet(_)) => Err(AttachError::NotADisk(device.name.clone())),
    }
}

fn network<'a>(args: &'a DeviceArgs, port: &NetworkPort) -> Option<&'a Network> {
    args.networks.iter().find(|network| network.name == port.network)
}

/// The largest IP packet of `port`, where it is known without looking at the underlay's interface.
fn mtu(args: &DeviceArgs, port: &NetworkPort) -> Option<u16> {
    port.mtu.or_else(|| network(args, port).and_then(|network| network.mtu))
}

/// A value inside a QEMU option list: a comma would end it and is doubled.
fn qemu_value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// `text` as one word of a POSIX shell.
fn shell_word(text: &str) -> String {
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./,=:+@%".contains(&byte)) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn env(device: &Device) -> String {
    let mut variables = vec![("NAME", device.name.clone()), ("KIND", device.kind.name().to_owned())];
    if !device.domain.is_empty() {
        variables.push(("DOMAIN", device.domain.clone()));
    }
    if let Some(access) = device.access() {
        // SOFTDPU_SOCKET is the management socket of every command.
        variables.push(("DEVICE_SOCKET", access.socket.display().to_string()));
    }
    if let Some(port) = device.port() {
        let addresses: Vec<String> = port.addresses.iter().map(ToString::to_string).collect();
        variables.push(("NETWORK", port.network.clone()));
        variables.push(("ADDRESS", addresses.join(" ")));
        variables.push(("MAC", port.mac.to_string()));
        variables.push(("QUEUES", port.queues.to_string()));
    }
    match &device.kind {
        DeviceKind::VirtioBlk(blk) => variables.extend([
            ("QUEUES", blk.queues.to_string()),
            ("QUEUE_SIZE", blk.queue_size.to_string()),
            ("VOLUME", blk.volume.clone()),
        ]),
        DeviceKind::VirtioNet(net) => variables.push(("QUEUE_SIZE", net.queue_size.to_string())),
        DeviceKind::Tap(tap) => variables.push(("INTERFACE", tap.interface.clone())),
    }
    let mut text = String::new();
    for (key, value) in variables {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "SOFTDPU_{key}={}", shell_word(&value));
    }
    text
}

#[cfg(test)]
mod tests;
