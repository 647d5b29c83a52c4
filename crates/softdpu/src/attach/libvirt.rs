//! A libvirt domain, or one element of it.

use super::{Accel, mtu, qemu};
use softdpu_api::DeviceArgs;
use softdpu_site::{Bytes, Device, DeviceKind, VirtioBlk, VirtioNet};

/// A domain's type (libvirt, formatdomain, "Element and attribute overview").
fn domain_type(accel: Accel) -> &'static str {
    match accel {
        Accel::Kvm => "kvm",
        Accel::Tcg => "qemu",
    }
}

/// A whole domain with all devices of `args`.
pub(super) fn domain(args: &DeviceArgs, accel: Accel, memory: Bytes) -> String {
    let devices = &args.devices;
    let name = devices.first().map_or("", |device| device.domain.as_str());
    let mut text = format!(
        "<domain type='{}'>
  <name>{}</name>
  <memory unit='b'>{}</memory>
  <vcpu>{}</vcpu>
  <!-- softdpu serves the guest's memory, so it has to be shared. -->
  <memoryBacking>
    <source type='memfd'/>
    <access mode='shared'/>
  </memoryBacking>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
  </os>
  <features>
    <acpi/>
    <apic/>
  </features>
  <devices>
",
        domain_type(accel),
        xml(name),
        memory.0,
        most_queues(devices),
    );
    let mut disks = 0;
    for device in devices {
        text.push_str(&element(args, device, disks, "    "));
        disks += usize::from(device.volume().is_some());
    }
    text.push_str(
        "    <console type='pty'>
      <target type='serial'/>
    </console>
  </devices>
</domain>
",
    );
    text
}

/// A CPU for each queue of the device with the most: more queues than CPUs are of no use to a guest.
fn most_queues(devices: &[Device]) -> u16 {
    let queues = devices.iter().map(|device| match &device.kind {
        DeviceKind::VirtioBlk(blk) => blk.queues,
        DeviceKind::VirtioNet(net) => net.port.queues,
        DeviceKind::Tap(_) => 1,
    });
    queues.max().unwrap_or(1)
}

/// The element of `device`; `disks` is how many disks come before it. A TAP has none: it is no guest's.
pub(super) fn element(args: &DeviceArgs, device: &Device, disks: usize, indent: &str) -> String {
    match &device.kind {
        DeviceKind::VirtioBlk(blk) => disk(blk, disks, indent),
        DeviceKind::VirtioNet(net) => interface(net, mtu(args, &net.port), indent),
        DeviceKind::Tap(_) => String::new(),
    }
}

/// The `<interface>` element (libvirt, formatdomain, "vhost-user interface").
fn interface(net: &VirtioNet, mtu: Option<u16>, indent: &str) -> String {
    let VirtioNet { port, queue_size, packed, access } = net;
    let queues = if port.queues > 1 { format!(" queues='{}'", port.queues) } else { String::new() };
    // As on QEMU's command line: said always.
    let size = (*queue_size).min(qemu::LARGEST_NET_QUEUE);
    let packed = if *packed { " packed='on'" } else { "" };
    let mtu = mtu.map_or_else(String::new, |mtu| format!("{indent}  <mtu size='{mtu}'/>\n"));
    format!(
        "{indent}<interface type='vhostuser'>
{indent}  <mac address='{}'/>
{indent}  <source type='unix' path='{}' mode='client'>
{indent}    <reconnect enabled='yes' timeout='1'/>
{indent}  </source>
{indent}  <model type='virtio'/>
{indent}  <driver{queues} rx_queue_size='{size}' tx_queue_size='{size}'{packed}>
{indent}    <host mrg_rxbuf='on'/>
{indent}  </driver>
{mtu}{indent}</interface>
",
        port.mac,
        xml(&access.socket.display().to_string()),
    )
}

/// The `<disk>` element (libvirt, formatdomain, "vhostuser"). libvirt takes neither a serial number nor a read-only
/// flag here: the guest learns both from the device itself.
fn disk(blk: &VirtioBlk, index: usize, indent: &str) -> String {
    let VirtioBlk { queues, queue_size, access, .. } = blk;
    let packed = if blk.packed { " packed='on'" } else { "" };
    format!(
        "{indent}<disk type='vhostuser' device='disk'>
{indent}  <driver name='qemu' type='raw' queues='{queues}' queue_size='{queue_size}'{packed}/>
{indent}  <source type='unix' path='{}'>
{indent}    <reconnect enabled='yes' timeout='1'/>
{indent}  </source>
{indent}  <target dev='{}' bus='virtio'/>
{indent}</disk>
",
        xml(&access.socket.display().to_string()),
        target(index)
    )
}

/// `vda` to `vdz`, `vdaa` and so on, as Linux names virtio disks.
fn target(mut index: usize) -> String {
    let mut letters = Vec::new();
    loop {
        letters.push(b'a' + (index % 26) as u8);
        match (index / 26).checked_sub(1) {
            Some(next) => index = next,
            None => break,
        }
    }
    format!("vd{}", letters.iter().rev().map(|letter| *letter as char).collect::<String>())
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_named_as_linux_names_them() {
        assert_eq!([0, 25, 26, 701, 702].map(target), ["vda", "vdz", "vdaa", "vdzz", "vdaaa"]);
    }
}
