//! What a valid site would run, in a few lines.

use std::fmt::Write as _;

use super::network::NetworkPort;
use super::site::{Backend, DeviceKind, IdleSleep, Site, VirtioBlk, Yield};
use super::tenant::{LatencyClass, Tenant, TenantLimits};

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
    let idle = match (dataplane.idle_sleep, dataplane.yields) {
        (IdleSleep::Never, _) => "always spinning".to_owned(),
        (IdleSleep::After(span), Yield::Off) => format!("sleeping after {span} without work"),
        (IdleSleep::After(span), Yield::Adaptive) => format!("yielding within {span} without work"),
    };
    writeln!(out, "data plane  CPU {}, {idle}", cores.join(", "))?;
    writeln!(out, "fairness    {}", site.node.fairness.name())?;
    if let Some(file) = &site.node.record {
        writeln!(out, "recording   {}", file.display())?;
    }
    writeln!(out, "management  {}", site.node.api.socket.display())?;
    if let Some(underlay) = &site.node.underlay {
        writeln!(out, "underlay    {}, VXLAN port {}", underlay.interface, underlay.port)?;
    }
    if let Some(metrics) = &site.node.metrics {
        writeln!(out, "metrics     http://{}/metrics", metrics.listen)?;
    }
    for tenant in &site.tenants {
        let devices = site.devices.iter().filter(|device| device.tenant == tenant.name).count();
        writeln!(out, "tenant      {}: weight {}{}, {devices} device(s)", tenant.name, tenant.weight, claims(tenant))?;
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
        if let Some(depth) = volume.depth {
            // Writing to a String cannot fail.
            let _ = write!(flags, ", {depth} requests at once");
        }
        if let Some(encryption) = &volume.encryption {
            // Writing to a String cannot fail.
            let _ = write!(flags, ", encrypted in sectors of {}", encryption.sector_size);
        }
        writeln!(out, "volume      {}: {}{place}, {size}{flags}", volume.name, volume.backend.kind())?;
    }
    for network in &site.networks {
        let prefixes: Vec<String> = network.cidr.iter().map(ToString::to_string).collect();
        let tenant = network.tenant.as_ref().map_or_else(String::new, |tenant| format!(", only for {tenant}"));
        let elsewhere = network.endpoints.len();
        let mtu = site.network_mtu(network).map_or_else(|| "its underlay's MTU".to_owned(), |mtu| format!("MTU {mtu}"));
        writeln!(
            out,
            "network     {}: VNI {}, {}, {mtu}, {} device(s) here, {elsewhere} endpoint(s) elsewhere{tenant}",
            network.name,
            network.vni,
            prefixes.join(", "),
            site.attached(&network.name).count(),
        )?;
    }
    for function in &site.functions {
        let users = site.devices.iter().filter_map(|device| device.port());
        let users = users.filter(|port| port.functions.contains(&function.name)).count();
        let tenant = function.tenant.as_ref().map_or_else(String::new, |tenant| format!(", only for {tenant}"));
        writeln!(out, "function    {}: {}, {users} device(s){tenant}", function.name, function.kind.name())?;
    }
    for device in &site.devices {
        let what = match &device.kind {
            DeviceKind::VirtioBlk(blk) => disk(blk),
            DeviceKind::VirtioNet(net) => {
                format!("virtio-net {}, queues of {}", port(&net.port), net.queue_size)
            }
            DeviceKind::Tap(tap) => format!("tap {} {}", tap.interface, port(&tap.port)),
        };
        let socket = device.access().map_or_else(String::new, |access| format!(", {}", access.socket.display()));
        writeln!(out, "device      {}: {what}{socket}", device.name)?;
    }
    Ok(())
}

/// What a tenant has beside its weight.
fn claims(tenant: &Tenant) -> String {
    let mut text = match tenant.class {
        LatencyClass::Latency => ", goes first".to_owned(),
        LatencyClass::Normal => String::new(),
        LatencyClass::Background => ", in the background".to_owned(),
    };
    if !tenant.guarantee.is_zero() {
        text.push_str(&format!(", {} guaranteed", tenant.guarantee));
    }
    let TenantLimits { iops, bandwidth, packets, received_bandwidth, received_packets, .. } = tenant.limits;
    let limits = [
        iops.map(|rate| format!(", at most {rate} requests/s")),
        bandwidth.map(|rate| format!(", at most {rate}")),
        packets.map(|rate| format!(", at most {rate} packets/s")),
        received_bandwidth.map(|rate| format!(", at most {rate} from wires")),
        received_packets.map(|rate| format!(", at most {rate} packets/s from wires")),
    ];
    limits.into_iter().flatten().for_each(|limit| text.push_str(&limit));
    text
}

fn disk(blk: &VirtioBlk) -> String {
    let read_only = if blk.read_only { ", read-only" } else { "" };
    format!("virtio-blk on {}, {} queue(s) of {}{read_only}", blk.volume, blk.queues, blk.queue_size)
}

fn port(port: &NetworkPort) -> String {
    let addresses: Vec<String> = port.addresses.iter().map(ToString::to_string).collect();
    format!("in {}, {}, {}, {} queue pair(s)", port.network, addresses.join(", "), port.mac, port.queues)
}
