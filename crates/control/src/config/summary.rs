//! What a valid site would run, in a few lines.

use std::fmt::Write as _;

use super::site::{Backend, DeviceKind, IdleSleep, Site};

/// What `site` would run, for people.
pub fn summary(site: &Site) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_summary(&mut text, site);
    text
}

fn write_summary(out: &mut String, site: &Site) -> std::fmt::Result {
    let dataplane = &site.node.dataplane;
    let cores: Vec<String> = dataplane.cores.iter().map(u32::to_string).collect();
    let idle = match dataplane.idle_sleep {
        IdleSleep::Never => "always spinning".to_owned(),
        IdleSleep::After(span) => format!("sleeping after {span} without work"),
    };
    writeln!(out, "data plane  CPU {}, {idle}", cores.join(", "))?;
    writeln!(out, "management  {}", site.node.api.socket.display())?;
    if let Some(metrics) = &site.node.metrics {
        writeln!(out, "metrics     http://{}/metrics", metrics.listen)?;
    }
    for tenant in &site.tenants {
        let devices = site.devices.iter().filter(|device| device.tenant == tenant.name).count();
        writeln!(out, "tenant      {}: weight {}, {devices} device(s)", tenant.name, tenant.weight)?;
    }
    for volume in &site.volumes {
        let place = match &volume.backend {
            Backend::Null { .. } | Backend::Memory { .. } => String::new(),
            Backend::File(file) => format!(" {}", file.path.display()),
            Backend::Device(device) => format!(" {}", device.path.display()),
            Backend::Nbd(nbd) => format!(" {}", nbd.uri),
        };
        let size = volume.backend.size().map_or_else(|| "its own size".to_owned(), |size| size.to_string());
        let mut flags = String::new();
        for (set, flag) in [(volume.read_only, ", read-only"), (volume.shared, ", shared")] {
            if set {
                flags.push_str(flag);
            }
        }
        writeln!(out, "volume      {}: {}{place}, {size}{flags}", volume.name, volume.backend.kind())?;
    }
    for device in &site.devices {
        let DeviceKind::VirtioBlk(blk) = &device.kind;
        let read_only = if blk.read_only { ", read-only" } else { "" };
        writeln!(
            out,
            "device      {}: virtio-blk on {}, {} queue(s) of {}{read_only}, {}",
            device.name,
            blk.volume,
            blk.queues,
            blk.queue_size,
            blk.access.socket.display()
        )?;
    }
    Ok(())
}
