//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use softdpu_site::{Bytes, Span};

use crate::attach::DEFAULT_MEMORY;

/// A software DPU: cloud disks for the guests of an ordinary server
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
pub struct Arguments {
    /// How to reach a running daemon.
    #[command(flatten)]
    pub connection: Connection,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How to reach a running daemon.
#[derive(Clone, Debug, Args)]
pub struct Connection {
    /// The daemon's management socket [env: SOFTDPU_SOCKET] [default: /run/softdpu/api.sock, else
    /// ./run/softdpu/api.sock]
    #[arg(long, global = true, value_name = "PATH", help_heading = "Connection")]
    pub socket: Option<PathBuf>,
    /// How long to wait for the daemon's answer
    #[arg(long, global = true, value_name = "TIME", default_value = "10 s", help_heading = "Connection")]
    pub timeout: Span,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Validate a site file and show what it would run
    Check {
        /// The site file
        site: PathBuf,
        /// Print one JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Start the daemon in the foreground
    Run {
        /// The site file
        site: PathBuf,
        /// Record what each core's policy is asked and decides, for `softdpu twin replay`; as `record` in [node]
        #[arg(long, value_name = "FILE")]
        record: Option<PathBuf>,
    },
    /// The data plane, on the link that the supervisor passes as standard input
    #[command(hide = true)]
    DataPlane,
    /// Tell what this program understands as a supervisor
    #[command(hide = true)]
    SupervisorFormats,
    /// Tell whether this program can take up the state of a supervisor that is on standard input
    #[command(hide = true)]
    SupervisorCheck,
    /// Go on as a supervisor, in its process
    #[command(hide = true)]
    SupervisorResume(SupervisorResume),
    /// Show devices, queues, cores, volumes and tenants of a running daemon
    Status {
        /// Print one JSON object instead of tables
        #[arg(long)]
        json: bool,
    },
    /// The same, live; q quits
    Top,
    /// Create, grow, delete and list volumes of a running daemon
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Add, remove, list and attach devices of a running daemon
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Add, remove and list networks of a running daemon, and tell it of guests on other hosts
    #[command(subcommand)]
    Network(crate::network::NetworkCommand),
    /// Add, change, remove and list functions of a running daemon: flow monitors, analytics, firewalls
    #[command(subcommand)]
    Function(crate::function::FunctionCommand),
    /// Add, change, remove and list tenants of a running daemon
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Move queues of a running daemon between cores
    #[command(subcommand)]
    Queue(QueueCommand),
    /// Run programs on the idle time of the data plane's cores: control-plane tasks
    #[command(subcommand, name = "cp")]
    ControlPlane(crate::control_plane::ControlPlaneCommand),
    /// Follow frames through the ports of a running daemon, and bring some in
    #[command(subcommand)]
    Trace(crate::trace::TraceCommand),
    /// Measure, beside the peers that are installed
    #[command(subcommand)]
    Bench(crate::bench::BenchCommand),
    /// Simulate: a paper's figure, a recorded core, a sweep with injected faults
    #[command(subcommand)]
    Twin(crate::twin::TwinCommand),
    /// Plan: the cores and memory that a demand takes, and their price beside a DPU's
    Plan(crate::plan::PlanOptions),
    /// Have another program go on as the supervisor and the data plane of a running daemon, guests attached
    Upgrade(UpgradeOptions),
    /// Stop a running daemon
    Shutdown,
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// `softdpu volume …`
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create a volume
    Create(Box<VolumeCreate>),
    /// Make a volume larger; its guests see the new size at once
    Grow {
        /// The volume
        name: String,
        /// Its new size, such as "30 GiB"
        size: Bytes,
    },
    /// Forget a volume that no device uses; its data stays where it is
    Delete {
        /// The volume
        name: String,
    },
    /// List volumes
    List {
        /// Print a JSON array instead of a table
        #[arg(long)]
        json: bool,
    },
}

/// `softdpu volume create`: the keys of `[[volume]]`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("backend").required(true).args(["null", "memory", "file", "device", "nbd"]))]
pub struct VolumeCreate {
    /// Its name
    pub name: String,
    /// Keep nothing: writes are dropped, reads leave the guest's buffer as it is
    #[arg(long, requires = "size")]
    pub null: bool,
    /// Keep it in the daemon's memory
    #[arg(long, requires = "size")]
    pub memory: bool,
    /// Keep it in this file, which is created if --size is given
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Keep it in this block device
    #[arg(long, value_name = "PATH")]
    pub device: Option<PathBuf>,
    /// Keep it in this export of an NBD server
    #[arg(long, value_name = "URI")]
    pub nbd: Option<String>,
    /// Its size, such as "20 GiB"
    #[arg(long, conflicts_with_all = ["device", "nbd"])]
    pub size: Option<Bytes>,
    /// Go around the page cache
    #[arg(long, conflicts_with_all = ["null", "memory", "nbd"], value_name = "BOOL")]
    pub direct: Option<bool>,
    /// What becomes of blocks that the guest discards, in a file: unmap or ignore
    #[arg(long, conflicts_with_all = ["null", "memory", "nbd"])]
    pub discard: Option<String>,
    /// How long the NBD server may take to answer a request, such as "30 s"
    #[arg(long, requires = "nbd", value_name = "TIME")]
    pub nbd_timeout: Option<String>,
    /// How long requests wait for an NBD server that is away: a time, forever or never
    #[arg(long, requires = "nbd", value_name = "TIME")]
    pub nbd_reconnect: Option<String>,
    /// Logical block size in bytes, 512 or 4096
    #[arg(long, value_name = "BYTES")]
    pub block_size: Option<u32>,
    /// write-back or write-through
    #[arg(long)]
    pub cache: Option<String>,
    /// Encrypt it, with the 32 or 64 bytes of this file as the key of AES-XTS
    #[arg(long, value_name = "PATH", conflicts_with_all = ["null", "keyring"])]
    pub key_file: Option<PathBuf>,
    /// Encrypt it, with this key of the kernel's keyring
    #[arg(long, value_name = "NAME", conflicts_with = "null")]
    pub keyring: Option<String>,
    /// Bytes that are encrypted as one, 512 or 4096
    #[arg(long, value_name = "BYTES")]
    pub sector_size: Option<u32>,
    /// No device may write it
    #[arg(long)]
    pub read_only: bool,
    /// Several devices may write it
    #[arg(long)]
    pub shared: bool,
    /// Requests that a core gives at once to the disk or server that it is on, of all tenants
    #[arg(long, value_name = "REQUESTS", conflicts_with_all = ["null", "memory"])]
    pub depth: Option<u32>,
}

/// `softdpu device …`
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Add a device: a disk (--volume), an interface (--network), or a TAP (--network and --interface)
    Add(Box<DeviceAdd>),
    /// Put an interface into other security groups, under another access control list or meter, or give it other
    /// functions
    Set(Box<DeviceSet>),
    /// Stop a device and close its socket
    Remove {
        /// The device
        name: String,
    },
    /// List devices
    List {
        /// Print a JSON array instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Print what attaches a device: QEMU arguments, libvirt XML, ...
    Args(DeviceArgs),
}

/// `softdpu device set`: what changes; the rest stays.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true)
    .args(["security_group", "no_security_group", "acl", "no_acl", "committed", "no_meter", "functions", "no_functions"]))]
pub struct DeviceSet {
    /// The device
    pub name: String,
    /// The security groups of its network that it is in from now on
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub security_group: Option<Vec<String>>,
    /// It is in no security group: everything passes
    #[arg(long, conflicts_with = "security_group")]
    pub no_security_group: bool,
    /// The access control list of its network that is asked about its packets
    #[arg(long, value_name = "NAME")]
    pub acl: Option<String>,
    /// No list is asked
    #[arg(long, conflicts_with = "acl")]
    pub no_acl: bool,
    /// The functions that its frames pass from now on, in this order both ways
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub functions: Option<Vec<String>>,
    /// Its frames pass no function
    #[arg(long, conflicts_with = "functions")]
    pub no_functions: bool,
    #[command(flatten)]
    pub meter: MeterOptions,
    /// No meter any more
    #[arg(long, conflicts_with = "committed")]
    pub no_meter: bool,
}

/// The keys of `meter`: what packets pass by their colour.
#[derive(Debug, Args)]
pub struct MeterOptions {
    /// Meter: the rate that is green, such as "1 Gbit/s"; with --peak or --excess
    #[arg(long = "meter-committed", value_name = "RATE")]
    pub committed: Option<String>,
    /// How many bytes of it may come at once, such as "256 KiB"
    #[arg(long = "meter-committed-burst", value_name = "SIZE", requires = "committed")]
    pub committed_burst: Option<String>,
    /// The peak rate of all packets, up to which they are yellow (RFC 2698)
    #[arg(long = "meter-peak", value_name = "RATE", requires = "committed")]
    pub peak: Option<String>,
    /// How many bytes of it may come at once
    #[arg(long = "meter-peak-burst", value_name = "SIZE", requires = "peak")]
    pub peak_burst: Option<String>,
    /// The rate in excess of the committed one that is yellow (RFC 4115)
    #[arg(long = "meter-excess", value_name = "RATE", requires = "committed", conflicts_with = "peak")]
    pub excess: Option<String>,
    /// How many bytes of it may come at once
    #[arg(long = "meter-excess-burst", value_name = "SIZE", requires = "excess")]
    pub excess_burst: Option<String>,
}

/// `softdpu device add`: the keys of `[[device]]` and of its kind.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("kind").required(true).args(["volume", "network"]))]
pub struct DeviceAdd {
    /// Its name
    pub name: String,
    /// The volume that a disk serves
    #[arg(long)]
    pub volume: Option<String>,
    /// The network that an interface is in
    #[arg(long, requires = "address")]
    pub network: Option<String>,
    /// The interface's addresses in the network
    #[arg(long, value_delimiter = ',', requires = "network")]
    pub address: Vec<String>,
    /// The interface's MAC address
    #[arg(long, requires = "network")]
    pub mac: Option<String>,
    /// The interface's largest IP packet, where it is smaller than the network's
    #[arg(long, requires = "network")]
    pub mtu: Option<u16>,
    /// The security groups of the network that the interface is in
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "network")]
    pub security_group: Option<Vec<String>>,
    /// The access control list of the network that is asked about its packets
    #[arg(long, value_name = "NAME", requires = "network")]
    pub acl: Option<String>,
    /// The functions that the interface's frames pass, in this order both ways
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "network")]
    pub functions: Option<Vec<String>>,
    /// Limit: packets a second that the interface sends
    #[arg(long, value_name = "PACKETS", requires = "network")]
    pub rate_packets: Option<u64>,
    /// How many of them may come at once
    #[arg(long, value_name = "PACKETS", requires = "rate_packets")]
    pub rate_packets_burst: Option<u64>,
    /// Limit: what the interface sends, such as "1 Gbit/s"
    #[arg(long, value_name = "RATE", requires = "network")]
    pub rate_bandwidth: Option<String>,
    /// How many bytes of it may come at once, such as "256 KiB"
    #[arg(long, value_name = "SIZE", requires = "rate_bandwidth")]
    pub rate_bandwidth_burst: Option<String>,
    /// Limit: packets a second that the interface receives
    #[arg(long, value_name = "PACKETS", requires = "network")]
    pub receive_rate_packets: Option<u64>,
    /// How many of them may come at once
    #[arg(long, value_name = "PACKETS", requires = "receive_rate_packets")]
    pub receive_rate_packets_burst: Option<u64>,
    /// Limit: what the interface receives, such as "1 Gbit/s"
    #[arg(long, value_name = "RATE", requires = "network")]
    pub receive_rate_bandwidth: Option<String>,
    /// How many bytes of it may come at once, such as "256 KiB"
    #[arg(long, value_name = "SIZE", requires = "receive_rate_bandwidth")]
    pub receive_rate_bandwidth_burst: Option<String>,
    #[command(flatten)]
    pub meter: MeterOptions,
    /// Let the interface send as others: a router, a NAT appliance
    #[arg(long, requires = "network")]
    pub no_spoof_check: bool,
    /// The host's interface that is made: a TAP instead of a guest's interface
    #[arg(long, value_name = "NAME", requires = "network", conflicts_with_all = ["device_socket", "socket_owner", "socket_group", "socket_mode", "queue_size", "packed"])]
    pub interface: Option<String>,
    /// The tenant that its requests are charged to
    #[arg(long)]
    pub tenant: Option<String>,
    /// The domain: the guest that it shares memory with
    #[arg(long)]
    pub domain: Option<String>,
    /// CPUs its queues are spread over
    #[arg(long, value_delimiter = ',')]
    pub cores: Option<Vec<u32>>,
    /// Request queues of a disk, queue pairs of an interface
    #[arg(long)]
    pub queues: Option<u16>,
    /// Descriptors of a queue
    #[arg(long)]
    pub queue_size: Option<u16>,
    /// Whether a driver is offered packed queues beside split ones
    #[arg(long, value_name = "BOOL")]
    pub packed: Option<bool>,
    /// The most segments of a disk's request
    #[arg(long, requires = "volume")]
    pub seg_max: Option<u32>,
    /// Its vhost-user socket
    #[arg(long = "device-socket", value_name = "PATH")]
    pub device_socket: Option<PathBuf>,
    /// Owner of the socket
    #[arg(long)]
    pub socket_owner: Option<String>,
    /// Which group the socket belongs to
    #[arg(long)]
    pub socket_group: Option<String>,
    /// Mode of the socket, such as 0660
    #[arg(long)]
    pub socket_mode: Option<String>,
    /// The serial number the guest sees
    #[arg(long, requires = "volume")]
    pub serial: Option<String>,
    /// The guest may not write
    #[arg(long, requires = "volume")]
    pub read_only: bool,
}

/// `softdpu device args`
#[derive(Debug, Args)]
pub struct DeviceArgs {
    /// The device
    pub name: String,
    /// The program that attaches it
    #[arg(long, value_enum, default_value = "qemu")]
    pub format: ArgsFormat,
    /// With --format libvirt: only the `disk` element instead of a whole domain
    #[arg(long)]
    pub fragment: bool,
    /// With --format libvirt: how the domain runs
    #[arg(long, value_enum, default_value = "auto")]
    pub accel: AccelChoice,
    /// With --format qemu: the QEMU it is for, such as 7.2: options for connecting again differ between versions
    /// [default: that of this machine's qemu-system-x86_64]
    #[arg(long, value_name = "VERSION")]
    pub qemu_version: Option<String>,
    /// The guest's memory
    #[arg(long, default_value_t = DEFAULT_MEMORY, value_name = "SIZE")]
    pub memory: Bytes,
    /// Read the device from a site file instead of asking a running daemon
    #[arg(long, value_name = "FILE")]
    pub site: Option<PathBuf>,
}

/// How a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccelChoice {
    /// With KVM where /dev/kvm can be opened
    Auto,
    /// With KVM
    Kvm,
    /// Without KVM
    Tcg,
}

/// The program that attaches a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArgsFormat {
    /// Arguments for qemu-system-*
    Qemu,
    /// XML for libvirt
    Libvirt,
    /// Image options for qemu-img and qemu-io
    Libblkio,
    /// Variables for a shell
    Env,
}

/// `softdpu tenant …`
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Add a tenant
    Add(Box<TenantAdd>),
    /// Change a tenant's weight, class, guarantee, limits or meter; what is not given stays
    Set(Box<TenantSet>),
    /// Forget a tenant that has no device, network or function
    Remove {
        /// The tenant
        name: String,
    },
    /// List tenants
    List {
        /// Print a JSON array instead of a table
        #[arg(long)]
        json: bool,
    },
}

/// `softdpu tenant set`: the keys of `[[tenant]]`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true).args(
    ["weight", "class", "guarantee", "iops", "bandwidth", "packets", "received_bandwidth", "received_packets", "no_limits", "committed", "no_meter"]
))]
pub struct TenantSet {
    /// The tenant
    pub name: String,
    #[command(flatten)]
    pub share: ShareOptions,
    /// Limit nothing any more
    #[arg(long, conflicts_with_all = ["iops", "bandwidth", "packets"])]
    pub no_limits: bool,
    /// No meter any more
    #[arg(long, conflicts_with = "committed")]
    pub no_meter: bool,
}

/// `softdpu tenant add`: the keys of `[[tenant]]`.
#[derive(Debug, Args)]
pub struct TenantAdd {
    /// Its name
    pub name: String,
    #[command(flatten)]
    pub share: ShareOptions,
}

/// What a tenant may claim, and what it may not exceed.
#[derive(Debug, Args)]
pub struct ShareOptions {
    /// Its share beside the other tenants'
    #[arg(long)]
    pub weight: Option<u32>,
    /// latency, normal or background
    #[arg(long)]
    pub class: Option<String>,
    /// What it has of all cores' time while it has work, such as "20 %"; "0 %" for none
    #[arg(long, value_name = "PART")]
    pub guarantee: Option<String>,
    /// Limit: requests of disks a second
    #[arg(long)]
    pub iops: Option<u64>,
    /// How many of them may come at once
    #[arg(long, requires = "iops", value_name = "REQUESTS")]
    pub iops_burst: Option<u64>,
    /// Limit: bytes a second, such as "2 GiB/s"
    #[arg(long, value_name = "RATE")]
    pub bandwidth: Option<String>,
    /// How many of them may come at once, such as "64 MiB"
    #[arg(long, requires = "bandwidth", value_name = "SIZE")]
    pub bandwidth_burst: Option<String>,
    /// Limit: packets that are sent, a second
    #[arg(long)]
    pub packets: Option<u64>,
    /// How many of them may come at once
    #[arg(long, requires = "packets", value_name = "PACKETS")]
    pub packets_burst: Option<u64>,
    /// Limit: bytes a second that the underlay and TAPs bring, such as "2 GiB/s"
    #[arg(long, value_name = "RATE")]
    pub received_bandwidth: Option<String>,
    /// How many of them may come at once, such as "64 MiB"
    #[arg(long, requires = "received_bandwidth", value_name = "SIZE")]
    pub received_bandwidth_burst: Option<String>,
    /// Limit: packets a second that the underlay and TAPs bring
    #[arg(long, value_name = "PACKETS")]
    pub received_packets: Option<u64>,
    /// How many of them may come at once
    #[arg(long, requires = "received_packets", value_name = "PACKETS")]
    pub received_packets_burst: Option<u64>,
    #[command(flatten)]
    pub meter: MeterOptions,
}

/// `softdpu queue …`
#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// Let another core serve a queue, while it runs
    Move {
        /// The device
        device: String,
        /// Which of its queues, from 0
        queue: u16,
        /// The CPU, one of the data plane's
        core: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}

/// What the program before has left.
#[derive(Debug, clap::Args)]
pub struct SupervisorResume {
    /// The descriptor of its state
    #[arg(long)]
    pub state: i32,
    /// The descriptor of its program
    #[arg(long)]
    pub before: i32,
    /// Why another program could not go on
    #[arg(long)]
    pub failed: Option<String>,
}

/// Which program takes over.
#[derive(Debug, clap::Args)]
pub struct UpgradeOptions {
    /// The softdpu program; without it, the one that this command is
    #[arg(long, value_name = "PATH")]
    pub binary: Option<PathBuf>,
    /// Switch although some volumes could not be opened
    #[arg(long)]
    pub force: bool,
    /// Upgrade this part alone
    #[arg(long, value_name = "PART", value_parser = ["supervisor", "data-plane"])]
    pub only: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}
