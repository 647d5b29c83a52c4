//! `softdpu device args`: what attaches a device, from a site file or a running daemon.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::attach::{self, Accel, Format, Reconnect};
use softdpu_api::{DeviceArgs as ArgsResult, Query};
use softdpu_site::{self as config, Severity, nearest};

use crate::arguments::{AccelChoice, ArgsFormat, Connection, DeviceArgs};
use crate::daemon;

/// Prints what attaches the device.
pub fn print(connection: &Connection, options: &DeviceArgs) -> Result<(), String> {
    let format = match options.format {
        ArgsFormat::Libvirt | ArgsFormat::Libblkio | ArgsFormat::Env if options.qemu_version.is_some() => {
            return Err("--qemu-version needs --format qemu".to_owned());
        }
        ArgsFormat::Libvirt if options.fragment => Format::Element,
        ArgsFormat::Libvirt => Format::Domain(match options.accel {
            AccelChoice::Auto => Accel::of(Path::new("/dev/kvm")),
            AccelChoice::Kvm => Accel::Kvm,
            AccelChoice::Tcg => Accel::Tcg,
        }),
        _ if options.fragment => return Err("--fragment needs --format libvirt".to_owned()),
        _ if options.accel != AccelChoice::Auto => return Err("--accel needs --format libvirt".to_owned()),
        ArgsFormat::Qemu => Format::Qemu(reconnect(options)?),
        ArgsFormat::Libblkio => Format::Libblkio,
        ArgsFormat::Env => Format::Env,
    };
    let args = match &options.site {
        Some(site) => from_site(site, &options.name)?,
        None => {
            let request = Query::DeviceArgs { name: options.name.clone() };
            daemon::connect(connection)?.call(request).map_err(|error| error.to_string())?
        }
    };
    crate::output::print(&attach::render(&args, format, options.memory).map_err(|error| error.to_string())?)
}

/// How the QEMU that is going to run spells it: the version asked for, else this machine's QEMU, else the spelling of
/// most.
fn reconnect(options: &DeviceArgs) -> Result<Reconnect, String> {
    if let Some(version) = &options.qemu_version {
        return Reconnect::of_version(version)
            .ok_or_else(|| format!("--qemu-version: found {version:?}, expected a version such as 7.2"));
    }
    let asked = Command::new("qemu-system-x86_64").arg("--version").stdin(Stdio::null()).output().ok();
    let said = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    Ok(said.and_then(|text| Reconnect::of_version(&text)).unwrap_or(Reconnect::Seconds))
}

fn from_site(site: &Path, name: &str) -> Result<ArgsResult, String> {
    let loaded = config::load(site, Severity::Warning);
    let Some(valid) = loaded.site else {
        crate::output::print_error(format_args!("{}", loaded.report));
        return Err(format!("{} is not valid", site.display()));
    };
    let Some(args) = softdpu_api::device_args(&valid, name) else {
        let names: Vec<&str> = valid.devices.iter().map(|device| device.name.as_str()).collect();
        let hint = match nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if names.is_empty() => "it declares none".to_owned(),
            None => format!("it declares {}", names.join(", ")),
        };
        return Err(format!("{} has no device `{name}`: {hint}", site.display()));
    };
    Ok(args)
}
