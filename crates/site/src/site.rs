//! The typed site: what a site file says once every default is filled in and every reference resolved.
//!
//! These types serialize in the site file's own shape and with its own units, so the same text is a site file, a stored
//! desired state, a parameter of the management API and what the supervisor hands to the data plane.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use softdpu_nbd::NbdUri;
use softdpu_sched::{Policy, UnknownPolicy};

use super::function::Function;
use super::network::{Network, TableSizes, Tap, Underlay, VirtioNet};
use super::steering::Steering;
use super::tenant::Tenant;
use super::units::{Bytes, Span};

/// Name of the tenant that owns devices which name none. It exists without being declared.
pub const DEFAULT_TENANT: &str = "default";

/// A whole node: what softdpu runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// The daemon itself.
    #[serde(default)]
    pub node: Node,
    /// Tenants, declared ones and, where a device needs it, [`DEFAULT_TENANT`].
    #[serde(default, rename = "tenant")]
    pub tenants: Vec<Tenant>,
    /// Volumes.
    #[serde(default, rename = "volume")]
    pub volumes: Vec<Volume>,
    /// Networks.
    #[serde(default, rename = "network")]
    pub networks: Vec<Network>,
    /// Functions that devices may have.
    #[serde(default, rename = "function", skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<Function>,
    /// Devices.
    #[serde(default, rename = "device")]
    pub devices: Vec<Device>,
}

/// `[node]`: the daemon itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Node {
    /// The cores that do the work.
    pub dataplane: Dataplane,
    /// How tenants share a core.
    pub fairness: Fairness,
    /// Where each core records the inputs and decisions of its policy; nowhere where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<PathBuf>,
    /// Sockets, the lock and the process id.
    pub run_directory: PathBuf,
    /// What has to survive a reboot: volumes and devices made on the running daemon.
    pub state_directory: PathBuf,
    /// The management socket.
    pub api: SocketAccess,
    /// Prometheus metrics over HTTP; none where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// The log.
    pub log: Log,
    /// How networks reach other hosts; they do not where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underlay: Option<Underlay>,
    /// Whether the decision about a flow's first packet is kept for those that follow.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub flow_tier: bool,
    /// How much the tables of networks have room for.
    #[serde(default)]
    pub tables: TableSizes,
    /// The availability zone of this host: members of ECMP groups in it are preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// On which cores packets from tunnels are worked on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub steering: Steering,
    /// What the data plane gives up of what it may ask of the kernel.
    #[serde(default)]
    pub isolation: Isolation,
    /// The user that the data plane becomes where root runs softdpu, by name or number. Where absent: `softdpu`, and a
    /// number that no account has where there is no such user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

fn is_default(steering: &Steering) -> bool {
    *steering == Steering::default()
}

fn yes() -> bool {
    true
}

impl Default for Node {
    fn default() -> Self {
        let run_directory = PathBuf::from("run/softdpu");
        Node {
            dataplane: Dataplane::default(),
            fairness: Fairness::default(),
            record: None,
            state_directory: run_directory.join("state"),
            api: SocketAccess::at(run_directory.join("api.sock")),
            run_directory,
            metrics: None,
            log: Log::default(),
            underlay: None,
            flow_tier: true,
            tables: TableSizes::default(),
            zone: None,
            steering: Steering::default(),
            isolation: Isolation::default(),
            user: None,
        }
    }
}

/// `node.dataplane`: the cores that poll.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Dataplane {
    /// CPUs, as the kernel numbers them; one thread is pinned to each.
    pub cores: Vec<u32>,
    /// What the cores do beside the data path.
    pub mode: Mode,
    /// How long a core spins without work before it sleeps; where it yields adaptively, the longest time.
    pub idle_sleep: IdleSleep,
    /// How it finds out when to give its CPU away, and for how long.
    #[serde(rename = "yield", default, skip_serializing_if = "Yield::is_default")]
    pub yields: Yield,
    /// Bytes of guest memory that a domain may have mapped; four times the host's memory where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_memory: Option<Bytes>,
    /// Cores that there may be while the data plane runs; the CPUs that it may use, 8 of them at most, where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cores: Option<u32>,
}

/// Other CPUs for the data plane, while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleChange {
    /// In the place of `node.dataplane.cores`.
    pub cores: Vec<u32>,
}

impl ScaleChange {
    /// The data plane is to have these CPUs.
    pub fn apply(&self, dataplane: &mut Dataplane) {
        dataplane.cores.clone_from(&self.cores);
    }
}

impl Default for Dataplane {
    fn default() -> Self {
        Dataplane {
            cores: vec![1],
            mode: Mode::default(),
            idle_sleep: IdleSleep::default(),
            yields: Yield::default(),
            domain_memory: None,
            max_cores: None,
        }
    }
}

/// A node's running mode (ZOC §4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The cores belong to the data plane alone.
    #[default]
    Performance,
}

/// What the data plane gives up of what it may ask of the kernel (ZOC §8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// All that the kernel lets it; `status` has what it does not.
    #[default]
    On,
    /// The same, and it does not start where something is missing.
    Required,
    /// Nothing: for debugging, and to measure what it costs.
    Off,
}

/// How long a core spins without work before it sleeps on its eventfds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum IdleSleep {
    /// It never sleeps: the lowest latency, a whole CPU each.
    Never,
    /// It sleeps after this long without work.
    After(Span),
}

/// How a core finds out when to give its CPU away, and for how long (Tai Chi §4.1, §4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Yield {
    /// By a threshold of empty polls, for a slice; both adapt to what became of the last slice.
    Adaptive,
    /// After a fixed time without work, until it is woken.
    #[default]
    Off,
}

impl Yield {
    fn is_default(&self) -> bool {
        *self == Yield::default()
    }
}

impl Default for IdleSleep {
    fn default() -> Self {
        IdleSleep::After(Span::from_micros(50))
    }
}

impl From<IdleSleep> for String {
    fn from(idle: IdleSleep) -> String {
        match idle {
            IdleSleep::Never => "never".to_owned(),
            IdleSleep::After(span) => span.to_string(),
        }
    }
}

impl TryFrom<String> for IdleSleep {
    type Error = super::units::UnitError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text == "never" { Ok(IdleSleep::Never) } else { text.parse().map(IdleSleep::After) }
    }
}

/// How tenants share a core: a scheduling policy, by its place in [`softdpu_sched::Policy::NAMES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Fairness(usize);

impl Fairness {
    /// All there are.
    pub(super) fn choices() -> [(&'static str, Fairness); Policy::NAMES.len()] {
        std::array::from_fn(|at| (Policy::NAMES[at], Fairness(at)))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Policy::NAMES[self.0]
    }

    /// The policy of that name.
    pub fn policy(self) -> Policy {
        Policy::named(self.name()).unwrap_or_default()
    }
}

impl From<Fairness> for String {
    fn from(fairness: Fairness) -> String {
        fairness.name().to_owned()
    }
}

impl TryFrom<String> for Fairness {
    type Error = UnknownPolicy;
    fn try_from(text: String) -> Result<Self, UnknownPolicy> {
        let known = Policy::NAMES.iter().position(|name| *name == text);
        known.map(Fairness).ok_or(UnknownPolicy::Name(text))
    }
}

/// A Unix socket and who may connect to it. A device's socket and the management socket have the same keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SocketAccess {
    /// Where it is bound.
    pub socket: PathBuf,
    /// The user that owns it; the daemon's user where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_owner: Option<String>,
    /// The group it belongs to; the daemon's group where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
    /// Its permission bits.
    #[serde(default)]
    pub socket_mode: FileMode,
}

impl SocketAccess {
    /// A socket at `path` that only the daemon's user may connect to.
    pub fn at(path: PathBuf) -> SocketAccess {
        SocketAccess { socket: path, socket_owner: None, socket_group: None, socket_mode: FileMode::default() }
    }
}

/// Permission bits, written in octal: `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FileMode(pub u32);

impl Default for FileMode {
    fn default() -> Self {
        FileMode(0o600)
    }
}

impl From<FileMode> for String {
    fn from(mode: FileMode) -> String {
        format!("{:04o}", mode.0)
    }
}

impl TryFrom<String> for FileMode {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let digits = (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
        match u32::from_str_radix(&text, 8) {
            Ok(bits) if digits && bits <= 0o777 => Ok(FileMode(bits)),
            _ => Err("permission bits in octal, from \"0000\" to \"0777\"".to_owned()),
        }
    }
}

/// `node.metrics`: the Prometheus endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// Address and port to listen on.
    pub listen: SocketAddr,
}

/// `node.log`: the log on standard error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// How a line looks.
    pub format: LogFormat,
    /// What is logged.
    pub level: LogLevel,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: an object a line.
    Json,
}

/// The least serious thing that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Only what failed.
    Error,
    /// And what may fail soon.
    Warn,
    /// And what changed.
    #[default]
    Info,
    /// And why.
    Debug,
    /// And every protocol message.
    Trace,
}

/// `[[volume]]`: what a disk's bytes are kept in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Volume {
    /// Its name, unique among volumes.
    pub name: String,
    /// No device may write it.
    #[serde(default)]
    pub read_only: bool,
    /// Logical block size in bytes, 512 or 4096.
    pub block_size: u32,
    /// Whether a completed write may still be in a volatile cache.
    pub cache: Cache,
    /// Several devices may write it at once.
    #[serde(default)]
    pub shared: bool,
    /// Requests that a core gives at once to what it is kept in, of all tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// How what it is kept in is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// What it is kept in: exactly one of the keys `null`, `memory`, `file`, `device`, `nbd`.
    #[serde(flatten)]
    pub backend: Backend,
}

/// `volume.encryption`: never the key itself, only where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Encryption {
    /// Which cipher, as cryptsetup says it.
    pub cipher: Cipher,
    /// A file with the bytes of the key. Absolute once it was read from a site file. Either this or `keyring`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// The name of a key in the kernel's keyring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyring: Option<String>,
    /// Bytes that are encrypted as one, 512 or 4096.
    pub sector_size: u32,
    /// Whether discards are passed on.
    pub discard: EncryptedDiscard,
}

/// How sectors are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cipher {
    /// AES in XTS mode, sectors numbered in 64 bits.
    #[default]
    #[serde(rename = "aes-xts-plain64")]
    AesXtsPlain64,
}

impl Cipher {
    /// How a site file, `status` and dm-crypt call it.
    pub const AES_XTS_PLAIN64: &str = "aes-xts-plain64";
}

impl std::fmt::Display for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(Cipher::AES_XTS_PLAIN64)
    }
}

/// What a discard of an encrypted volume does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EncryptedDiscard {
    /// It is not offered to the guest.
    #[default]
    Ignore,
    /// What the volume is kept in gets it.
    Pass,
}

/// Whether a completed write may still be in a volatile cache (virtio 1.3 §5.2.5, `writeback`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// A write is stable after the next flush.
    #[default]
    WriteBack,
    /// A write is stable when it completes.
    WriteThrough,
}

/// What a volume is kept in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Nothing: reads give zeroes, writes are dropped.
    Null {
        /// The size it claims.
        size: Bytes,
    },
    /// Memory of the daemon; empty at every start.
    Memory {
        /// Its size.
        size: Bytes,
    },
    /// A file in a file system.
    File(FileBackend),
    /// A block device of the host.
    Device(DeviceBackend),
    /// An export of an NBD server.
    Nbd(NbdBackend),
}

impl Backend {
    /// The key that selects it in a site file.
    pub fn kind(&self) -> &'static str {
        match self {
            Backend::Null { .. } => "null",
            Backend::Memory { .. } => "memory",
            Backend::File(_) => "file",
            Backend::Device(_) => "device",
            Backend::Nbd(_) => "nbd",
        }
    }

    /// The size the site file gives it, where it gives one.
    pub fn size(&self) -> Option<Bytes> {
        match self {
            Backend::Null { size } | Backend::Memory { size } => Some(*size),
            Backend::File(file) => file.size,
            Backend::Device(_) | Backend::Nbd(_) => None,
        }
    }
}

/// `volume.file`: a file in a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileBackend {
    /// Where it is. Absolute once it was read from a site file.
    pub path: PathBuf,
    /// The size it is created with. A file that is there keeps its own and may not be smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// Make the file where it does not exist; needs `size`.
    pub create: bool,
    /// Go around the page cache (O_DIRECT).
    pub direct: bool,
    /// What a discard does.
    pub discard: Discard,
}

/// `volume.device`: a block device of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceBackend {
    /// Its node, such as `/dev/nvme0n1`.
    pub path: PathBuf,
    /// Go around the page cache (O_DIRECT).
    pub direct: bool,
    /// What a discard does.
    pub discard: Discard,
}

/// What a discard does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discard {
    /// Gives the space back: a hole in a file, a discard on a device.
    #[default]
    Unmap,
    /// Discard is not offered to the guest.
    Ignore,
}

/// `volume.nbd`: an export of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NbdBackend {
    /// Where it is: `nbd://host:port/export` or `nbd+unix:///export?socket=PATH`.
    pub uri: NbdUri,
    /// How long a request may be unanswered before the connection counts as dead.
    pub timeout: Span,
    /// What happens to requests while the server is away.
    pub reconnect: Reconnect,
}

/// How long requests wait for a server that went away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Reconnect {
    /// Until it is back.
    #[default]
    Forever,
    /// This long; then they fail with an I/O error, and softdpu goes on trying for the requests to come.
    For(Span),
    /// Not at all: they fail at once, and the volume stays failed.
    Never,
}

impl From<Reconnect> for String {
    fn from(reconnect: Reconnect) -> String {
        match reconnect {
            Reconnect::Forever => "forever".to_owned(),
            Reconnect::Never => "never".to_owned(),
            Reconnect::For(span) => span.to_string(),
        }
    }
}

impl TryFrom<String> for Reconnect {
    type Error = super::units::UnitError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "forever" => Ok(Reconnect::Forever),
            "never" => Ok(Reconnect::Never),
            _ => text.parse().map(Reconnect::For),
        }
    }
}

/// `[[device]]`: what a guest attaches to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its name, unique among devices.
    pub name: String,
    /// The tenant whose work it is.
    pub tenant: String,
    /// The guest whose memory it shares; devices of one guest name one domain. Empty for a TAP, which has no guest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// The cores its queues are spread over; all data-plane cores where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<Vec<u32>>,
    /// What kind of device it is.
    #[serde(flatten)]
    pub kind: DeviceKind,
}

impl Device {
    /// The volume it serves, where it is a disk.
    pub fn volume(&self) -> Option<&str> {
        self.disk().map(|blk| blk.volume.as_str())
    }

    /// The disk, where it is one.
    pub fn disk(&self) -> Option<&VirtioBlk> {
        match &self.kind {
            DeviceKind::VirtioBlk(blk) => Some(blk),
            DeviceKind::VirtioNet(_) | DeviceKind::Tap(_) => None,
        }
    }

    /// The socket its driver connects to; none for a TAP, whose driver is the kernel.
    pub fn access(&self) -> Option<&SocketAccess> {
        match &self.kind {
            DeviceKind::VirtioBlk(blk) => Some(&blk.access),
            DeviceKind::VirtioNet(net) => Some(&net.access),
            DeviceKind::Tap(_) => None,
        }
    }
}

/// The kinds of devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A virtio block device over vhost-user.
    VirtioBlk(VirtioBlk),
    /// A virtio network device over vhost-user.
    VirtioNet(Box<VirtioNet>),
    /// A TAP interface of the host.
    Tap(Box<Tap>),
}

impl DeviceKind {
    /// The key that selects it in a site file.
    pub fn name(&self) -> &'static str {
        match self {
            DeviceKind::VirtioBlk(_) => "virtio-blk",
            DeviceKind::VirtioNet(_) => "virtio-net",
            DeviceKind::Tap(_) => "tap",
        }
    }
}

/// `device.virtio-blk`: a virtio block device over vhost-user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct VirtioBlk {
    /// The volume it serves.
    pub volume: String,
    /// How many request queues it has.
    pub queues: u16,
    /// How many descriptors a queue may have at the most: a power of two.
    pub queue_size: u16,
    /// The serial number the guest sees, at most 20 bytes (virtio 1.3 §5.2.6).
    pub serial: String,
    /// The guest may not write.
    #[serde(default)]
    pub read_only: bool,
    /// Offer packed virtqueues beside split ones (virtio 1.3 §2.8).
    pub packed: bool,
    /// How many data segments a request may have.
    pub seg_max: u32,
    /// Its socket.
    #[serde(flatten)]
    pub access: SocketAccess,
}
