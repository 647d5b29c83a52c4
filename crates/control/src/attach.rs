//! How a device is attached: arguments for QEMU, XML for libvirt, a driver for libblkio, variables for a script.
//!
//! `softdpu device args` prints these, from a site file or from what a running daemon serves. A vhost-user back end reads
//! and writes its guest's memory, so whatever starts the guest has to share that memory: both QEMU and libvirt default to
//! private memory, and every full output here says otherwise.

use std::fmt::Write as _;
use std::path::Path;

use crate::config::{Bytes, Device, DeviceKind, Site, VirtioBlk};

/// Who is going to attach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `qemu-system-*` on a command line.
    Qemu,
    /// A libvirt domain, or with `fragment` only the device's element.
    Libvirt {
        /// Only the `<disk>` element, for `virsh attach-device` or an existing domain.
        fragment: bool,
    },
    /// `qemu-img` and `qemu-io`, which reach libblkio through `--image-opts`.
    Libblkio,
    /// Shell variables.
    Env,
}

/// The guest's memory where the caller does not say.
pub const DEFAULT_MEMORY: Bytes = Bytes(1 << 30);

/// The device called `name` and, after it, the other devices of its domain; empty where there is no such device.
pub fn domain_of(site: &Site, name: &str) -> Vec<Device> {
    let Some(device) = site.device(name) else { return Vec::new() };
    let others = site.devices.iter().filter(|other| other.domain == device.domain && other.name != name);
    std::iter::once(device).chain(others).cloned().collect()
}

/// How the first of `devices` is attached; a whole libvirt domain gets all of them. `memory` is the guest's.
pub fn render(devices: &[Device], format: Format, memory: Bytes) -> String {
    let Some(device) = devices.first() else { return String::new() };
    let DeviceKind::VirtioBlk(blk) = &device.kind;
    match format {
        Format::Qemu => qemu(&device.name, blk, memory),
        Format::Libvirt { fragment: true } => disk(blk, 0, ""),
        Format::Libvirt { fragment: false } => domain(devices, memory),
        Format::Libblkio => {
            let path = qemu_value(&blk.access.socket);
            format!("{}\n", shell_word(&format!("driver=virtio-blk-vhost-user,path={path},cache.direct=on")))
        }
        Format::Env => env(device, blk),
    }
}

fn qemu(name: &str, blk: &VirtioBlk, memory: Bytes) -> String {
    // A QEMU id begins with a letter; a device's name may begin with a digit.
    let id = format!("softdpu-{name}");
    let socket = qemu_value(&blk.access.socket);
    let arguments = [
        ("-object", format!("memory-backend-memfd,id=softdpu-memory,size={}B,share=on", memory.0)),
        ("-machine", "memory-backend=softdpu-memory".to_owned()),
        ("-m", format!("{}B", memory.0)),
        ("-chardev", format!("socket,id={id},path={socket}")),
        ("-device", format!("vhost-user-blk-pci,chardev={id},num-queues={},queue-size={}", blk.queues, blk.queue_size)),
    ];
    let lines: Vec<String> =
        arguments.iter().map(|(option, value)| format!("{option} {}", shell_word(value))).collect();
    format!("{}\n", lines.join(" \\\n"))
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

fn env(device: &Device, blk: &VirtioBlk) -> String {
    let mut text = String::new();
    for (key, value) in [
        ("NAME", device.name.clone()),
        ("DOMAIN", device.domain.clone()),
        ("KIND", device.kind.name().to_owned()),
        ("SOCKET", blk.access.socket.display().to_string()),
        ("QUEUES", blk.queues.to_string()),
        ("QUEUE_SIZE", blk.queue_size.to_string()),
        ("VOLUME", blk.volume.clone()),
    ] {
        let _ = writeln!(text, "SOFTDPU_{key}={}", shell_word(&value));
    }
    text
}

fn domain(devices: &[Device], memory: Bytes) -> String {
    let name = devices.first().map_or("", |device| device.domain.as_str());
    let mut text = format!(
        "<domain type='kvm'>
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
        xml(name),
        memory.0,
        most_queues(devices),
    );
    for (index, device) in devices.iter().enumerate() {
        let DeviceKind::VirtioBlk(blk) = &device.kind;
        text.push_str(&disk(blk, index, "    "));
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
    let queues = devices.iter().map(|device| {
        let DeviceKind::VirtioBlk(blk) = &device.kind;
        blk.queues
    });
    queues.max().unwrap_or(1)
}

/// The `<disk>` element (libvirt, formatdomain, "vhostuser"). libvirt takes neither a serial number nor a read-only flag
/// here: the guest learns both from the device itself.
fn disk(blk: &VirtioBlk, index: usize, indent: &str) -> String {
    let VirtioBlk { queues, queue_size, access, .. } = blk;
    format!(
        "{indent}<disk type='vhostuser' device='disk'>
{indent}  <driver name='qemu' type='raw' queues='{queues}' queue_size='{queue_size}'/>
{indent}  <source type='unix' path='{}'/>
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
    use std::process::Command;

    const SITE: &str = "
[[volume]]
name = \"a\"
null = { size = \"1 GiB\" }
[[volume]]
name = \"b\"
null = { size = \"1 GiB\" }
[[device]]
name = \"1st\"
domain = \"vm\"
virtio-blk = { volume = \"a\", queues = 2, queue-size = 128, socket = \"a,b & 'c'.sock\" }
[[device]]
name = \"2nd\"
domain = \"vm\"
virtio-blk = { volume = \"b\" }
[[device]]
name = \"other\"
virtio-blk = { volume = \"b\", read-only = true }
";

    fn devices(name: &str) -> Vec<Device> {
        let loaded = crate::config::parse(SITE, "site.toml", Path::new("/run"), None);
        domain_of(&loaded.site.unwrap_or_else(|| panic!("{}", loaded.report)), name)
    }

    #[test]
    fn qemu_shares_the_guests_memory_and_quotes_the_path() {
        assert_eq!(
            render(&devices("1st"), Format::Qemu, DEFAULT_MEMORY),
            "-object memory-backend-memfd,id=softdpu-memory,size=1073741824B,share=on \\\n\
             -machine memory-backend=softdpu-memory \\\n\
             -m 1073741824B \\\n\
             -chardev 'socket,id=softdpu-1st,path=/run/a,,b & '\\''c'\\''.sock' \\\n\
             -device vhost-user-blk-pci,chardev=softdpu-1st,num-queues=2,queue-size=128\n"
        );
    }

    #[test]
    fn libblkio_and_scripts_get_the_socket() {
        let devices = devices("2nd");
        assert_eq!(
            render(&devices, Format::Libblkio, DEFAULT_MEMORY),
            "driver=virtio-blk-vhost-user,path=/run/run/softdpu/2nd.sock,cache.direct=on\n"
        );
        let env = render(&devices, Format::Env, DEFAULT_MEMORY);
        assert!(env.contains("SOFTDPU_SOCKET=/run/run/softdpu/2nd.sock\n"), "{env}");
    }

    #[test]
    fn a_domain_has_all_the_devices_of_its_guest_and_no_other() {
        let text = render(&devices("2nd"), Format::Libvirt { fragment: false }, DEFAULT_MEMORY);
        assert_eq!(text.matches("<disk ").count(), 2);
        assert!(text.contains("<target dev='vda'") && text.contains("<target dev='vdb'"), "{text}");
        assert!(text.contains("a,b &amp; &apos;c&apos;.sock"), "{text}");
        assert_eq!(domain_of(&Site::default(), "x"), []);
    }

    #[test]
    fn disks_are_named_as_linux_names_them() {
        assert_eq!([0, 25, 26, 701, 702].map(target), ["vda", "vdz", "vdaa", "vdzz", "vdaaa"]);
    }

    #[test]
    fn libvirts_own_schema_accepts_the_domain() {
        let folder = tempfile::tempdir().unwrap();
        let fragment = render(&devices("1st"), Format::Libvirt { fragment: true }, DEFAULT_MEMORY);
        let full = render(&devices("1st"), Format::Libvirt { fragment: false }, DEFAULT_MEMORY);
        let indented: String = fragment.lines().map(|line| format!("    {line}\n")).collect();
        assert!(full.contains(&indented), "the fragment is what the domain has");
        let file = folder.path().join("domain.xml");
        let validate = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Command::new("virt-xml-validate").arg(&file).arg("domain").output()
        };
        match validate(&full) {
            Err(_) => eprintln!("SKIPPED: virt-xml-validate is not installed (Debian: libvirt-clients, libxml2-utils)"),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.success(), "{said}\n{full}");
                let broken = validate(&full.replace("queues=", "queuse=")).unwrap();
                assert!(!broken.status.success(), "the schema is not looked at");
            }
        }
    }
}
