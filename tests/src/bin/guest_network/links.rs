//! The links between two guests, each an interface of both, with a network of its own.

use std::process::Command;

use softdpu_tests::{Context, Failure, GuestDevice};

/// MSI-X vectors of an interface with one queue pair: its queues', the control queue's, the configuration's.
const VECTORS: u32 = 4;

/// One of the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}

impl Side {
    /// The guest's name, and that of its device in softdpu's site file.
    pub fn name(self) -> &'static str {
        match self {
            Side::A => "guest-a",
            Side::B => "guest-b",
        }
    }

    /// The last part of its addresses.
    fn host(self) -> u8 {
        match self {
            Side::A => 2,
            Side::B => 3,
        }
    }
}

/// What joins them. `vectors`: MSI-X vectors of the interface; 0: a pin interrupt. Where a vhost-user interface cannot
/// have MSI-X (QEMU 7.2 without KVM) the peers are measured with both, otherwise all have MSI-X.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Softdpu,
    /// `-netdev stream` over a Unix socket.
    Stream {
        vectors: u32,
    },
    /// `-netdev tap,vhost=off` on a bridge.
    Tap {
        vectors: u32,
    },
}

impl Link {
    /// What can be measured: `msix`, whether softdpu's interfaces may have it; `taps`, whether there are any.
    pub fn possible(msix: bool, taps: bool) -> Vec<Link> {
        let vectors: &[u32] = if msix { &[VECTORS] } else { &[VECTORS, 0] };
        let mut links = vec![Link::Softdpu];
        links.extend(vectors.iter().map(|&vectors| Link::Stream { vectors }));
        if taps {
            links.extend(vectors.iter().map(|&vectors| Link::Tap { vectors }));
        }
        links
    }

    /// As results call it.
    pub fn name(self) -> &'static str {
        match self {
            Link::Softdpu => "softdpu",
            Link::Stream { vectors: 0 } => "qemu-stream-intx",
            Link::Stream { .. } => "qemu-stream-msix",
            Link::Tap { vectors: 0 } => "qemu-tap-intx",
            Link::Tap { .. } => "qemu-tap-msix",
        }
    }

    /// The number of its network.
    fn number(self) -> u8 {
        match self {
            Link::Softdpu => 0,
            Link::Stream { vectors: 0 } => 1,
            Link::Stream { .. } => 2,
            Link::Tap { vectors: 0 } => 3,
            Link::Tap { .. } => 4,
        }
    }

    pub fn address(self, side: Side) -> String {
        format!("10.0.{}.{}", self.number(), side.host())
    }

    pub fn mac(self, side: Side) -> String {
        format!("02:5d:00:00:{:02x}:{:02x}", self.number(), side.host())
    }

    /// The Unix socket of a stream, in the folder that QEMU runs in.
    pub fn socket(self) -> Option<String> {
        matches!(self, Link::Stream { .. }).then(|| format!("{}.sock", self.name()))
    }

    /// QEMU's arguments; none where softdpu knows them.
    pub fn device(self, side: Side) -> Option<GuestDevice> {
        let id = self.name();
        let (backend, vectors) = match self {
            Link::Softdpu => return None,
            Link::Stream { vectors } => {
                let server = if side == Side::A { "on" } else { "off" };
                (format!("stream,id={id},server={server},addr.type=unix,addr.path={id}.sock"), vectors)
            }
            Link::Tap { vectors } => {
                let interface = self.interface(side);
                (format!("tap,id={id},ifname={interface},script=no,downscript=no,vhost=off"), vectors)
            }
        };
        let frontend =
            format!("virtio-net-pci,netdev={id},mac={},disable-legacy=on,romfile=,vectors={vectors}", self.mac(side));
        Some(GuestDevice::new(&["-netdev", &backend, "-device", &frontend]))
    }

    fn interface(self, side: Side) -> String {
        format!("tap{}-{}", self.number(), side.host())
    }
}

/// softdpu's side of it; `keys`: more keys of its interfaces.
pub fn site(cpu: usize, idle_sleep: &str, keys: &str) -> String {
    let keys = if keys.is_empty() { String::new() } else { format!(", {keys}") };
    let mut site = format!(
        "[node]\ndataplane = {{ cores = [{cpu}], idle-sleep = \"{idle_sleep}\" }}\n\n[[network]]\nname = \"guests\"\nvni = 5001\ncidr = \"10.0.0.0/24\"\n"
    );
    for side in [Side::A, Side::B] {
        site.push_str(&format!(
            "\n[[device]]\nname = \"{name}\"\ndomain = \"{name}\"\nvirtio-net = {{ network = \"guests\", address = \"{}\", mac \
             = \"{}\"{keys} }}\n",
            Link::Softdpu.address(side),
            Link::Softdpu.mac(side),
            name = side.name()
        ));
    }
    site
}

/// A network namespace with a bridge for each link over TAPs. Gone when dropped.
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes it, with the TAPs.
    pub fn make() -> Result<Namespace, Failure> {
        let name = format!("sd-guests-{}", std::process::id());
        ip(&["netns", "add", &name])?;
        let namespace = Namespace { name };
        for vectors in [VECTORS, 0] {
            let link = Link::Tap { vectors };
            let bridge = format!("bridge{}", link.number());
            namespace.ip(&["link", "add", &bridge, "type", "bridge"])?;
            namespace.ip(&["link", "set", &bridge, "up"])?;
            for side in [Side::A, Side::B] {
                let interface = link.interface(side);
                namespace.ip(&["tuntap", "add", &interface, "mode", "tap", "vnet_hdr"])?;
                namespace.ip(&["link", "set", &interface, "master", &bridge, "up"])?;
            }
        }
        Ok(namespace)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn ip(&self, arguments: &[&str]) -> Result<(), Failure> {
        ip(&[&["-n", &self.name], arguments].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<(), Failure> {
    let what = format!("`ip {}`", arguments.join(" "));
    let output = Command::new("ip").args(arguments).output().context(&what)?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("{what}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
