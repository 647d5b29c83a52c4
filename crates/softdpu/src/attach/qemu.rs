//! Arguments for `qemu-system-*`.

use std::path::Path;

use super::{Reconnect, qemu_value, shell_word};
use softdpu_site::{Bytes, VirtioBlk, VirtioNet};

/// What QEMU takes as `rx_queue_size` and `tx_queue_size` of a vhost-user interface at the most (VIRTQUEUE_MAX_SIZE).
pub(super) const LARGEST_NET_QUEUE: u16 = 1024;

pub(super) fn disk(name: &str, blk: &VirtioBlk, memory: Bytes, reconnect: Reconnect) -> String {
    let id = id(name);
    let mut device = format!("vhost-user-blk-pci,chardev={id},num-queues={},queue-size={}", blk.queues, blk.queue_size);
    if blk.packed {
        device.push_str(",packed=on");
    }
    let mut arguments = shared_memory(memory);
    arguments.extend([("-chardev", socket(&id, &blk.access.socket, reconnect)), ("-device", device)]);
    lines(&arguments)
}

pub(super) fn interface(name: &str, net: &VirtioNet, mtu: Option<u16>, memory: Bytes, reconnect: Reconnect) -> String {
    let id = id(name);
    let queues = net.port.queues;
    let mut device = format!("virtio-net-pci,netdev={id},mac={},mrg_rxbuf=on", net.port.mac);
    if queues > 1 {
        // A vector for each queue, one for the control queue and one for changes of the configuration.
        device.push_str(&format!(",mq=on,vectors={}", 2 * queues + 2));
    }
    // Always given: without them QEMU 7.2 makes both queues 256 long, QEMU 10 the transmit queue 1024.
    let size = net.queue_size.min(LARGEST_NET_QUEUE);
    device.push_str(&format!(",rx_queue_size={size},tx_queue_size={size}"));
    if net.packed {
        device.push_str(",packed=on");
    }
    if let Some(mtu) = mtu {
        device.push_str(&format!(",host_mtu={mtu}"));
    }
    let mut arguments = shared_memory(memory);
    arguments.extend([
        ("-chardev", socket(&id, &net.access.socket, reconnect)),
        ("-netdev", format!("vhost-user,id={id},chardev={id},queues={queues}")),
        ("-device", device),
    ]);
    lines(&arguments)
}

/// A connection that QEMU makes again when the daemon was stopped and started: without that the guest's device is gone
/// for good.
fn socket(id: &str, path: &Path, reconnect: Reconnect) -> String {
    let again = match reconnect {
        Reconnect::Seconds => "reconnect=1",
        Reconnect::Milliseconds => "reconnect-ms=1000",
    };
    format!("socket,id={id},path={},{again}", qemu_value(path))
}

/// A QEMU id begins with a letter; a device's name may begin with a digit.
fn id(name: &str) -> String {
    format!("softdpu-{name}")
}

fn shared_memory(memory: Bytes) -> Vec<(&'static str, String)> {
    vec![
        ("-object", format!("memory-backend-memfd,id=softdpu-memory,size={}B,share=on", memory.0)),
        ("-machine", "memory-backend=softdpu-memory".to_owned()),
        ("-m", format!("{}B", memory.0)),
    ]
}

fn lines(arguments: &[(&str, String)]) -> String {
    let lines: Vec<String> =
        arguments.iter().map(|(option, value)| format!("{option} {}", shell_word(value))).collect();
    format!("{}\n", lines.join(" \\\n"))
}
