//! From tables to the typed site, section by section.
//!
//! Every section gives a value even where something in it is wrong, so that the rules over the whole site can find what
//! else is wrong. A site that was read with errors is never handed out.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use softdpu_nbd::{NbdServer, NbdUri, NbdUriError};

use super::diagnostic::Problem;
use super::function;
use super::network;
use super::reader::{Reader, join};
use super::service::ServiceDirectories;
use super::site::*;
use super::steering;
use super::tenant;
use super::units::{Bytes, Span};
use super::value::Data;

/// The largest number of request queues. virtio allows 65,535 (virtio 1.3 §5.2.4); a guest uses one per CPU at the
/// most.
const MOST_QUEUES: u16 = 256;
/// The smallest queue that carries a request: header, one data segment, status, rounded up to a power of two.
const SMALLEST_QUEUE: u16 = 4;
/// The largest queue: QEMU, the front end in use nearly everywhere, refuses more (VIRTQUEUE_MAX_SIZE).
const LARGEST_QUEUE: u16 = 1024;
/// What a core's io_uring has room for.
const DEEPEST: u32 = 1024;
const DEFAULT_QUEUE_SIZE: u16 = 256;
/// A request takes a descriptor for its header and one for its status beside its data (virtio 1.3 §5.2.6).
pub(super) const DESCRIPTORS_WITHOUT_DATA: u32 = 2;
/// Bytes of the serial number (virtio 1.3 §5.2.6, VIRTIO_BLK_T_GET_ID).
const SERIAL_BYTES: usize = 20;

/// The management socket in the run directory.
const API_SOCKET: &str = "api.sock";

const WHAT_SIZE: &str = "a size with a unit such as \"20 GiB\"";
const WHAT_SPAN: &str = "a time with a unit such as \"50 us\"";

pub(super) fn site(reader: &Reader<'_>, directories: &ServiceDirectories) -> Site {
    let node = reader.table("node", "[node]", |table| node(table, directories));
    let node = node.unwrap_or_else(|| default_node(reader, directories));
    let tenants = reader.tables("tenant", "[[tenant]]", tenant::tenant);
    let volumes = reader.tables("volume", "[[volume]]", volume);
    let networks = reader.tables("network", "[[network]]", network::read::network);
    let functions = reader.tables("function", "[[function]]", function::function);
    let devices = reader.tables("device", "[[device]]", |table| device(table, &node.run_directory));
    let mut site = Site { node, tenants, volumes, networks, functions, devices };
    site.declare_default_tenant();
    site
}

fn default_node(reader: &Reader<'_>, directories: &ServiceDirectories) -> Node {
    let run_directory = default_run_directory(reader, directories);
    Node {
        state_directory: default_state_directory(&run_directory, directories),
        api: SocketAccess::at(run_directory.join(API_SOCKET)),
        run_directory,
        ..Node::default()
    }
}

fn default_run_directory(reader: &Reader<'_>, directories: &ServiceDirectories) -> PathBuf {
    directories.run.clone().unwrap_or_else(|| reader.default_path(&Node::default().run_directory))
}

fn default_state_directory(run_directory: &Path, directories: &ServiceDirectories) -> PathBuf {
    directories.state.clone().unwrap_or_else(|| run_directory.join("state"))
}

fn node(reader: &Reader<'_>, directories: &ServiceDirectories) -> Node {
    let dataplane = reader.table("dataplane", "node.dataplane", dataplane).unwrap_or_default();
    let fairness = reader.choice("fairness", &Fairness::choices(), &[]);
    let record = reader.path("record");
    let run_directory = reader.path("run-directory").unwrap_or_else(|| default_run_directory(reader, directories));
    let state_directory =
        reader.path("state-directory").unwrap_or_else(|| default_state_directory(&run_directory, directories));
    let api_socket = run_directory.join(API_SOCKET);
    let api = reader
        .table("api", "node.api", |table| socket_access(table, &api_socket))
        .unwrap_or_else(|| SocketAccess::at(api_socket));
    let metrics = reader.table("metrics", "node.metrics", |table| {
        let listen = table
            .converted("listen", "an address and a port such as \"127.0.0.1:9477\"", |text| socket_address(text, 9477));
        if table.value("listen").is_none() {
            table.missing("listen", "listen = \"127.0.0.1:9477\"");
        }
        listen.map(|listen| Metrics { listen })
    });
    let metrics = metrics.flatten();
    let log = reader.table("log", "node.log", log).unwrap_or_default();
    let underlay = reader.table("underlay", "node.underlay", network::read::underlay);
    let flow_tier = reader.boolean("flow-tier").unwrap_or(true);
    let tables = reader.table("tables", "node.tables", network::read::tables).unwrap_or_default();
    let zone = reader.name("zone");
    let steering = reader.table("steering", "node.steering", steering::steering).unwrap_or_default();
    let isolation = reader.choice(
        "isolation",
        &[("on", Isolation::On), ("required", Isolation::Required), ("off", Isolation::Off)],
        &[],
    );
    let user = reader.string("user").map(|(text, _)| text.to_owned());
    Node {
        dataplane,
        fairness: fairness.unwrap_or_default(),
        record,
        run_directory,
        state_directory,
        api,
        metrics,
        log,
        underlay,
        flow_tier,
        tables,
        zone,
        steering,
        isolation: isolation.unwrap_or_default(),
        user,
    }
}

/// An address and a port, or what is wrong with it; `port` is one for examples.
pub(super) fn socket_address(text: &str, port: u16) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Err(format!("add the port: \"{}\"", SocketAddr::new(address, port)));
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(match text.parse::<u16>() {
            Ok(port) => format!("add the address: \"127.0.0.1:{port}\""),
            Err(_) => "a port is a number up to 65535, after an address and a colon".to_owned(),
        });
    }
    let (host, written) = text.rsplit_once(':').unwrap_or((text, ""));
    let Ok(number) = (if written.is_empty() { Ok(port) } else { written.parse::<u16>() }) else {
        return Err(format!("`{written}` is no port: a number up to 65535"));
    };
    let host = host.trim_matches(['[', ']']);
    Err(match host.parse::<IpAddr>() {
        Ok(address) => format!("write \"{}\"", SocketAddr::new(address, number)),
        Err(_) if host == "localhost" => format!("names are not looked up: write \"127.0.0.1:{number}\""),
        Err(_) => format!("names are not looked up: write the address of `{host}`"),
    })
}

/// The most cores that a data plane may have: receive steering tells so many apart (`softdpu_vpc::steer::CORES`).
const MOST_CORES: u32 = 255;

fn dataplane(reader: &Reader<'_>) -> Dataplane {
    let default = Dataplane::default();
    let idle_sleep = reader
        .converted("idle-sleep", "a time with a unit such as \"50 us\", or \"never\"", |text| {
            IdleSleep::try_from(text.to_owned()).map_err(|error| error.to_string())
        })
        .unwrap_or(default.idle_sleep);
    let yields = reader.choice("yield", &[("adaptive", Yield::Adaptive), ("off", Yield::Off)], &[]);
    if let (IdleSleep::Never, Some(Yield::Adaptive), Some(value)) = (idle_sleep, yields, reader.value("yield")) {
        let problem = reader.wrong("yield", value, "\"off\", or nothing, beside `idle-sleep = \"never\"`");
        reader.report(problem.help("a core that never sleeps yields to nothing; leave out one of the two"));
    }
    Dataplane {
        cores: reader.cores("cores").unwrap_or(default.cores),
        mode: reader
            .choice("mode", &[("performance", Mode::Performance)], &["zero-cost", "hybrid"])
            .unwrap_or(default.mode),
        idle_sleep,
        yields: yields.unwrap_or(default.yields),
        domain_memory: reader.parsed("domain-memory", WHAT_SIZE),
        max_cores: reader.integer("max-cores", 1..=MOST_CORES),
    }
}

/// The parameters of `node.scale`.
pub(super) fn scale_change(reader: &Reader<'_>) -> ScaleChange {
    if reader.value("cores").is_none() {
        reader.missing("cores", "cores = [1, 2]");
    }
    ScaleChange { cores: reader.cores("cores").unwrap_or_default() }
}

fn log(reader: &Reader<'_>) -> Log {
    let format = reader.choice("format", &[("text", LogFormat::Text), ("json", LogFormat::Json)], &[]);
    let level = reader.choice(
        "level",
        &[
            ("error", LogLevel::Error),
            ("warn", LogLevel::Warn),
            ("info", LogLevel::Info),
            ("debug", LogLevel::Debug),
            ("trace", LogLevel::Trace),
        ],
        &[],
    );
    Log { format: format.unwrap_or_default(), level: level.unwrap_or_default() }
}

pub(super) fn socket_access(reader: &Reader<'_>, default: &Path) -> SocketAccess {
    SocketAccess {
        socket: reader.path("socket").unwrap_or_else(|| default.to_owned()),
        socket_owner: reader.string("socket-owner").map(|(text, _)| text.to_owned()),
        socket_group: reader.string("socket-group").map(|(text, _)| text.to_owned()),
        socket_mode: reader
            .converted("socket-mode", "permission bits in octal such as \"0660\"", |text| {
                FileMode::try_from(text.to_owned())
            })
            .unwrap_or_default(),
    }
}

pub(super) fn name(reader: &Reader<'_>, example: &str) -> String {
    if reader.value("name").is_none() {
        reader.missing("name", &format!("name = \"{example}\""));
    }
    reader.name("name").unwrap_or_default()
}

/// `[[volume]]`, or the parameters of `volume.create`.
pub(super) fn volume(reader: &Reader<'_>) -> Volume {
    let name = name(reader, "acme-root");
    let block_size = match reader.value("block-size") {
        None => 512,
        Some(value) => match value.data {
            Data::Integer(512) => 512,
            Data::Integer(4096) => 4096,
            _ => {
                reader.report(reader.wrong("block-size", value, "512 or 4096"));
                512
            }
        },
    };
    const BACKENDS: &[&str] = &["null", "memory", "file", "device", "nbd"];
    // Every table is read, so that mistakes in a second backend are found too.
    let null = reader.table("null", "volume.null", |table| Backend::Null { size: only_size(table) });
    let memory = reader.table("memory", "volume.memory", |table| Backend::Memory { size: only_size(table) });
    let read_only = reader.boolean("read-only").unwrap_or(false);
    let encryption = reader.table("encryption", "volume.encryption", |table| encryption(table, block_size));
    let file = reader.table("file", "volume.file", |table| file(table, read_only));
    let device = reader.table("device", "volume.device", block_device);
    let nbd = reader.table("nbd", "volume.nbd", nbd);
    reader.exactly_one(BACKENDS, "file = { path = \"disk.img\", size = \"20 GiB\" }");

    Volume {
        name,
        read_only,
        block_size,
        cache: reader
            .choice("cache", &[("write-back", Cache::WriteBack), ("write-through", Cache::WriteThrough)], &[])
            .unwrap_or_default(),
        shared: reader.boolean("shared").unwrap_or(false),
        depth: reader.integer("depth", 1..=DEEPEST),
        encryption,
        // Where none could be read an error was reported, and this stands in for it: one valid block.
        backend: null
            .or(memory)
            .or(file)
            .or(device)
            .or(nbd)
            .unwrap_or(Backend::Null { size: Bytes(u64::from(block_size)) }),
    }
}

fn encryption(reader: &Reader<'_>, block_size: u32) -> Encryption {
    let cipher = reader.choice("cipher", &[(Cipher::AES_XTS_PLAIN64, Cipher::AesXtsPlain64)], &[]);
    if reader.value("cipher").is_none() {
        reader.missing("cipher", "cipher = \"aes-xts-plain64\"");
    }
    reader.exactly_one(&["key-file", "keyring"], "key-file = \"/etc/softdpu/acme-root.key\"");
    let keyring = reader.string("keyring").and_then(|(text, value)| {
        if text.is_empty() || text.contains('\0') {
            reader.report(reader.wrong("keyring", value, "the name of a key, such as \"softdpu:acme-root\""));
            return None;
        }
        Some(text.to_owned())
    });
    let sector_size = match reader.value("sector-size") {
        None => 512,
        Some(value) => match value.data {
            Data::Integer(512) => 512,
            Data::Integer(4096) if block_size == 4096 => 4096,
            Data::Integer(4096) => {
                let wrong =
                    reader.wrong("sector-size", value, format!("at most the volume's block size, {block_size}"));
                reader.report(wrong.help("add `block-size = 4096` to the volume, or leave `sector-size` out"));
                512
            }
            _ => {
                reader.report(reader.wrong("sector-size", value, "512 or 4096"));
                512
            }
        },
    };
    let discards = [("ignore", EncryptedDiscard::Ignore), ("pass", EncryptedDiscard::Pass)];

    Encryption {
        cipher: cipher.unwrap_or_default(),
        key_file: reader.path("key-file"),
        keyring,
        sector_size,
        discard: reader.choice("discard", &discards, &[]).unwrap_or_default(),
    }
}

/// A size that is no size was reported already; 4096 is a multiple of either block size.
const STAND_IN_SIZE: Bytes = Bytes(4096);

fn only_size(reader: &Reader<'_>) -> Bytes {
    if reader.value("size").is_none() {
        reader.missing("size", "size = \"20 GiB\"");
    }

    reader.parsed("size", WHAT_SIZE).unwrap_or(STAND_IN_SIZE)
}

fn file(reader: &Reader<'_>, read_only: bool) -> Backend {
    if reader.value("path").is_none() {
        reader.missing("path", "path = \"disk.img\"");
    }
    let size = reader.parsed("size", WHAT_SIZE);
    let create = reader.boolean("create");
    if create == Some(true) && reader.value("size").is_none() {
        reader.missing("size", "size = \"20 GiB\"");
    }
    let file = FileBackend {
        path: reader.path("path").unwrap_or_default(),
        size,
        create: create.unwrap_or(size.is_some() && !read_only),
        direct: reader.boolean("direct").unwrap_or(false),
        discard: reader
            .choice("discard", &[("unmap", Discard::Unmap), ("ignore", Discard::Ignore)], &[])
            .unwrap_or_default(),
    };
    Backend::File(file)
}

fn block_device(reader: &Reader<'_>) -> Backend {
    if reader.value("path").is_none() {
        reader.missing("path", "path = \"/dev/nvme0n1\"");
    }
    let device = DeviceBackend {
        path: reader.path("path").unwrap_or_default(),
        direct: reader.boolean("direct").unwrap_or(true),
        discard: reader.choice("discard", &[("unmap", Discard::Unmap)], &["ignore"]).unwrap_or_default(),
    };
    Backend::Device(device)
}

/// A URI that is none was reported already.
pub(super) fn stand_in_uri() -> NbdUri {
    "nbd://stand-in.invalid".parse().expect("a host is enough")
}

fn nbd(reader: &Reader<'_>) -> Backend {
    if reader.value("uri").is_none() {
        reader.missing("uri", "uri = \"nbd://localhost:10809/export\"");
    }
    let uri = reader.converted("uri", "an NBD URI such as \"nbd://host:10809/export\"", |text| {
        let uri: NbdUri = text.parse().map_err(|error: NbdUriError| error.to_string())?;
        match (reader.base(), uri.server()) {
            (Some(base), _) => uri.relative_to(base).map_err(|error| error.to_string()),
            (None, NbdServer::Unix(path)) if path.is_relative() => Err("the socket's path must be absolute".to_owned()),
            (None, _) => Ok(uri),
        }
    });
    let nbd = NbdBackend {
        uri: uri.unwrap_or_else(stand_in_uri),
        timeout: reader.parsed("timeout", WHAT_SPAN).unwrap_or(Span::from_secs(30)),
        reconnect: reader
            .converted("reconnect", "a time with a unit such as \"60 s\", or \"forever\", or \"never\"", |text| {
                Reconnect::try_from(text.to_owned()).map_err(|error| error.to_string())
            })
            .unwrap_or_default(),
    };
    Backend::Nbd(nbd)
}

/// `[[device]]`, or the parameters of `device.add`. Sockets that are not given are put into `run_directory`.
pub(super) fn device(reader: &Reader<'_>, run_directory: &Path) -> Device {
    let name = name(reader, "acme-vm1-disk");
    let tenant = reader.name("tenant").unwrap_or_else(|| DEFAULT_TENANT.to_owned());
    let domain = reader.name("domain").unwrap_or_else(|| name.clone());
    let cores = reader.cores("cores");
    // Every table is read, so that mistakes in a second kind are found too.
    let blk = reader.table("virtio-blk", "device.virtio-blk", |table| {
        DeviceKind::VirtioBlk(virtio_blk(table, &name, run_directory))
    });
    let net = reader.table("virtio-net", "device.virtio-net", |table| {
        DeviceKind::VirtioNet(Box::new(network::read::virtio_net(table, &name, run_directory)))
    });
    let tap = reader.table("tap", "device.tap", |table| DeviceKind::Tap(Box::new(network::read::tap(table))));
    reader.exactly_one(&["virtio-blk", "virtio-net", "tap"], "virtio-blk = { volume = \"acme-root\" }");
    let kind = blk.or(net).or(tap).unwrap_or_else(|| DeviceKind::VirtioBlk(VirtioBlk::stand_in(&name, run_directory)));
    let domain = match (&kind, reader.value("domain")) {
        (DeviceKind::Tap(_), Some(value)) => {
            let message = "a `tap` has no `domain`: it is an interface of the host, not of a guest";
            reader.report(
                Problem::error(join(&reader.path, "domain"), message).at(value.span.clone()).help("remove `domain`"),
            );
            String::new()
        }
        (DeviceKind::Tap(_), None) => String::new(),
        _ => domain,
    };
    Device { name, tenant, domain, cores, kind }
}

impl VirtioBlk {
    /// What stands in for a device that could not be read, whose error was reported.
    fn stand_in(name: &str, run_directory: &Path) -> VirtioBlk {
        VirtioBlk {
            volume: String::new(),
            queues: 1,
            queue_size: DEFAULT_QUEUE_SIZE,
            serial: String::new(),
            read_only: false,
            packed: true,
            seg_max: u32::from(DEFAULT_QUEUE_SIZE) - DESCRIPTORS_WITHOUT_DATA,
            access: SocketAccess::at(run_directory.join(format!("{name}.sock"))),
        }
    }
}

fn virtio_blk(reader: &Reader<'_>, device: &str, run_directory: &Path) -> VirtioBlk {
    let default = VirtioBlk::stand_in(device, run_directory);
    if reader.value("volume").is_none() {
        reader.missing("volume", "volume = \"acme-root\"");
    }
    let queue_size = reader.integer("queue-size", SMALLEST_QUEUE..=LARGEST_QUEUE).unwrap_or(default.queue_size);
    let serial = reader.converted("serial", "at most 20 printable ASCII characters", |text| {
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if text.len() <= SERIAL_BYTES && printable { Ok(text.to_owned()) } else { Err(String::new()) }
    });

    VirtioBlk {
        volume: reader.name("volume").unwrap_or_default(),
        queues: reader.integer("queues", 1..=MOST_QUEUES).unwrap_or(default.queues),
        queue_size,
        serial: serial.unwrap_or_else(|| device.chars().take(SERIAL_BYTES).collect()),
        read_only: reader.boolean("read-only").unwrap_or(default.read_only),
        packed: reader.boolean("packed").unwrap_or(default.packed),
        seg_max: reader
            .integer("seg-max", 1..=u32::from(LARGEST_QUEUE) - DESCRIPTORS_WITHOUT_DATA)
            .unwrap_or_else(|| u32::from(queue_size).saturating_sub(DESCRIPTORS_WITHOUT_DATA).max(1)),
        access: socket_access(reader, &default.access.socket),
    }
}
