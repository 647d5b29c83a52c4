//! Commands that ask a running daemon.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use softdpu_api::status::{DeviceStatus, FunctionStatus, NetworkStatus, TenantStatus, VolumeStatus};
use softdpu_api::{
    Change, Client, ClientError, DeviceArgs, Empty, LoadResult, Query, QueuePlacement, Request, find_socket,
};
use softdpu_site::{self as config, DeviceChange, Problem};

use crate::arguments::{
    Command, Connection, DeviceAdd, DeviceCommand, DeviceSet, MeterOptions, QueueCommand, ShareOptions, TenantAdd,
    TenantCommand, TenantSet, VolumeCommand, VolumeCreate,
};
use crate::function::{self, FunctionCommand};
use crate::network::{self, NetworkCommand, SteerCommand};
use crate::output::print;
use crate::status;

/// Connects to the daemon.
pub fn connect(connection: &Connection) -> Result<Client, String> {
    if connection.timeout.nanos() == 0 {
        return Err("--timeout has to be longer than zero".to_owned());
    }
    let client = Client::connect(&find_socket(connection.socket.clone()), connection.timeout.0).map_err(text)?;
    Ok(client.warn(|warning| crate::output::error_line!("softdpu: warning: {warning}")))
}

fn text(error: ClientError) -> String {
    error.to_string()
}

/// Asks the daemon for what `command` says and prints what came of it.
pub fn execute(connection: &Connection, command: Command) -> Result<(), String> {
    let request: Request = match command {
        Command::Status { json } => {
            let status = connect(connection)?.status().map_err(text)?;
            return print(&if json { json_line(&status) } else { status::table(&status) });
        }
        Command::Top => return top(connection),
        Command::Upgrade(options) => return crate::upgrade::execute(connection, &options),
        Command::Volume(VolumeCommand::List { json }) => {
            let volumes: Vec<VolumeStatus> = connect(connection)?.call(Query::VolumeList).map_err(text)?;
            return print(&if json { json_line(&volumes) } else { status::volume_table(&volumes) });
        }
        Command::Device(DeviceCommand::List { json }) => {
            let devices: Vec<DeviceStatus> = connect(connection)?.call(Query::DeviceList).map_err(text)?;
            return print(&if json { json_line(&devices) } else { status::device_table(&devices) });
        }
        Command::Device(DeviceCommand::Add(options)) => return add_device(connection, &options),
        Command::Network(NetworkCommand::List { json }) => {
            let networks: Vec<NetworkStatus> = connect(connection)?.call(Query::NetworkList).map_err(text)?;
            let table = || {
                let more =
                    [status::ecmp_table(&networks), status::nat_table(&networks), status::lookup_table(&networks)];
                let more = more.into_iter().filter(|table| !table.is_empty()).map(|table| format!("\n{table}"));
                status::network_table(&networks) + &more.collect::<String>()
            };
            return print(&if json { json_line(&networks) } else { table() });
        }
        Command::Network(ref command @ (NetworkCommand::Load { json, .. } | NetworkCommand::Unload { json, .. })) => {
            let loaded: LoadResult = connect(connection)?.call(network::request(command.clone())?).map_err(text)?;
            return print(&if json { json_line(&loaded) } else { network::loaded(&loaded) });
        }
        Command::Network(ref command @ NetworkCommand::Route(_)) => {
            return connect(connection)?.call(network::request(command.clone())?).map(|_: LoadResult| ()).map_err(text);
        }
        Command::Function(FunctionCommand::List { json }) => {
            let functions: Vec<FunctionStatus> = connect(connection)?.call(Query::FunctionList).map_err(text)?;
            return print(&if json { json_line(&functions) } else { status::function_table(&functions) });
        }
        Command::Function(command) => function::request(&command)?,
        Command::Network(NetworkCommand::Steer(SteerCommand::List { json })) => {
            let status = connect(connection)?.status().map_err(text)?;
            let table = match &status.steering {
                Some(_) => status::steering_table(&status),
                None => "packets from tunnels are worked on where they are read\n".to_owned(),
            };
            return print(&if json { json_line(&status.steering.unwrap_or_default()) } else { table });
        }
        Command::Network(
            command @ (NetworkCommand::Policy { .. } | NetworkCommand::Routing { .. } | NetworkCommand::Nat { .. }),
        ) => {
            let request = network::request(command)?;
            return network::change_by_file(&mut connect(connection)?, &request);
        }
        Command::Network(command) => network::request(command)?,
        Command::Volume(VolumeCommand::Create(options)) => create_volume(&options)?.into(),
        Command::Volume(VolumeCommand::Grow { name, size }) => Change::VolumeGrow { name, size }.into(),
        Command::Volume(VolumeCommand::Delete { name }) => Change::VolumeDelete { name }.into(),
        Command::Device(DeviceCommand::Set(options)) => set_device(*options)?.into(),
        Command::Device(DeviceCommand::Remove { name }) => Change::DeviceRemove { name }.into(),
        Command::Tenant(TenantCommand::List { json }) => {
            let tenants: Vec<TenantStatus> = connect(connection)?.call(Query::TenantList).map_err(text)?;
            return print(&if json { json_line(&tenants) } else { status::tenant_table(&tenants) });
        }
        Command::Tenant(TenantCommand::Add(options)) => add_tenant(&options)?.into(),
        Command::Tenant(TenantCommand::Set(options)) => set_tenant(connection, &options)?.into(),
        Command::Tenant(TenantCommand::Remove { name }) => Change::TenantRemove { name }.into(),
        Command::Queue(QueueCommand::Move { device, queue, core }) => {
            Change::QueueMove(QueuePlacement { device, queue, core }).into()
        }
        Command::Shutdown => Query::Shutdown.into(),
        Command::Check { .. }
        | Command::Bench(_)
        | Command::Twin(_)
        | Command::Plan(_)
        | Command::Run { .. }
        | Command::DataPlane
        | Command::SupervisorFormats
        | Command::SupervisorCheck
        | Command::SupervisorResume(_)
        | Command::ControlPlane(_)
        | Command::Trace(_)
        | Command::Completions { .. }
        | Command::Device(_) => {
            return Err("this command does not ask a daemon".to_owned());
        }
    };
    connect(connection)?.call::<Empty>(request).map(|Empty {}| ()).map_err(text)
}

pub fn json_line(value: &impl serde::Serialize) -> String {
    json!(value).to_string() + "\n"
}

fn top(connection: &Connection) -> Result<(), String> {
    if !std::io::stdout().is_terminal() {
        return Err("`top` needs a terminal: use `softdpu status`, or `softdpu status --json`".to_owned());
    }
    let mut client = Some(connect(connection)?);
    // A daemon that went away is looked for again at the next refresh.
    status::run_top(|| {
        let mut connected = match client.take() {
            Some(connected) => connected,
            None => connect(connection)?,
        };
        let status = connected.status().map_err(text)?;
        client = Some(connected);
        Ok(status)
    })
    .map_err(|error| format!("the terminal: {error}"))
}

/// The daemon has another current folder.
pub fn absolute(path: &Path) -> Result<PathBuf, String> {
    let path = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
    // Requests are JSON, which is UTF-8.
    match path.to_str() {
        Some(_) => Ok(path),
        None => Err(format!("{path:?} is not UTF-8: it cannot be sent to the daemon; give the file another name")),
    }
}

pub fn problems(problems: Vec<Problem>) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n         ")
}

/// An object of those members that have a value.
pub fn object(members: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let members = members.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(members.map(|(key, value)| (key.to_owned(), value)).collect())
}

/// The meter that is to be from now on. None: none is given.
pub fn meter(options: &MeterOptions) -> Option<Value> {
    let MeterOptions { committed, committed_burst, peak, peak_burst, excess, excess_burst } = options;
    let meter = || {
        object([
            ("algorithm", json!(excess.as_ref().map(|_| "rfc4115"))),
            ("committed", json!(committed)),
            ("committed-burst", json!(committed_burst)),
            ("peak", json!(peak)),
            ("peak-burst", json!(peak_burst)),
            ("excess", json!(excess)),
            ("excess-burst", json!(excess_burst)),
        ])
    };
    committed.is_some().then(meter)
}

fn set_device(options: DeviceSet) -> Result<Change, String> {
    let meter = meter(&options.meter).or(options.no_meter.then_some(Value::Null));
    let meter = meter.map(serde_json::from_value).transpose().map_err(|error| error.to_string())?;
    let DeviceSet { name, security_group, no_security_group, acl, no_acl, functions, no_functions, .. } = options;
    Ok(Change::DeviceSet(DeviceChange {
        name,
        security_groups: security_group.or(no_security_group.then(Vec::new)),
        acl: acl.map(Some).or(no_acl.then_some(None)),
        meter,
        functions: functions.or(no_functions.then(Vec::new)),
    }))
}

/// The limits that are given.
fn limits(options: &ShareOptions) -> Value {
    object([
        ("iops", json!(options.iops)),
        ("iops-burst", json!(options.iops_burst)),
        ("bandwidth", json!(options.bandwidth)),
        ("bandwidth-burst", json!(options.bandwidth_burst)),
        ("packets", json!(options.packets)),
        ("packets-burst", json!(options.packets_burst)),
        ("received-bandwidth", json!(options.received_bandwidth)),
        ("received-bandwidth-burst", json!(options.received_bandwidth_burst)),
        ("received-packets", json!(options.received_packets)),
        ("received-packets-burst", json!(options.received_packets_burst)),
    ])
}

/// A tenant of which what is given is said, with `limits` and `meter`, where they are not null.
fn tenant(name: &str, options: &ShareOptions, limits: Value, meter: Value) -> Value {
    object([
        ("name", json!(name)),
        ("weight", json!(options.weight)),
        ("class", json!(options.class)),
        ("guarantee", json!(options.guarantee)),
        ("limits", limits),
        ("meter", meter),
    ])
}

fn add_tenant(TenantAdd { name, share }: &TenantAdd) -> Result<Change, String> {
    let tenant = tenant(name, share, limits(share), json!(meter(&share.meter)));
    config::tenant_from_json(&tenant).map(Change::TenantAdd).map_err(problems)
}

fn set_tenant(connection: &Connection, options: &TenantSet) -> Result<Change, String> {
    let mut limits = limits(&options.share);
    let is_limited = limits.as_object().is_some_and(|limits| !limits.is_empty()) || options.no_limits;
    if is_limited && !options.no_limits {
        // The daemon puts limits in the place of all that there are.
        let status = connect(connection)?.status().map_err(text)?;
        let before = status.tenants.into_iter().find(|tenant| tenant.name == options.name);
        let before = before.map(|tenant| json!(tenant.limits));
        keep_limits(&mut limits, before.as_ref().and_then(Value::as_object));
    }
    let limits = if is_limited { limits } else { Value::Null };
    let mut change = tenant(&options.name, &options.share, limits, json!(meter(&options.share.meter)));
    if options.no_meter {
        change["meter"] = Value::Null;
    }
    config::tenant_change_from_json(&change).map(Change::TenantSet).map_err(problems)
}

/// Adds the limits of `before` that are of a rate which is not among `limits`.
fn keep_limits(limits: &mut Value, before: Option<&serde_json::Map<String, Value>>) {
    let (Some(limits), Some(before)) = (limits.as_object_mut(), before) else { return };
    let given: Vec<String> = limits.keys().cloned().collect();
    let is_given = |key: &str| given.iter().any(|given| given == key.trim_end_matches("-burst"));
    limits.extend(before.iter().filter(|(key, _)| !is_given(key)).map(|(key, value)| (key.clone(), value.clone())));
}

fn create_volume(options: &VolumeCreate) -> Result<Change, String> {
    let VolumeCreate { size, direct, discard, .. } = options;
    let (kind, backend) = if let Some(path) = &options.file {
        (
            "file",
            object([
                ("path", json!(absolute(path)?)),
                ("size", json!(size)),
                ("direct", json!(direct)),
                ("discard", json!(discard)),
            ]),
        )
    } else if let Some(path) = &options.device {
        ("device", object([("path", json!(absolute(path)?)), ("direct", json!(direct)), ("discard", json!(discard))]))
    } else if let Some(uri) = &options.nbd {
        let (timeout, reconnect) = (&options.nbd_timeout, &options.nbd_reconnect);
        ("nbd", object([("uri", json!(uri)), ("timeout", json!(timeout)), ("reconnect", json!(reconnect))]))
    } else {
        (if options.memory { "memory" } else { "null" }, object([("size", json!(size))]))
    };
    let encryption = match (&options.key_file, &options.keyring) {
        (None, None) if options.sector_size.is_some() => {
            return Err("--sector-size is for encrypted volumes: add --key-file or --keyring".to_owned());
        }
        (None, None) => Value::Null,
        (file, keyring) => object([
            ("cipher", json!("aes-xts-plain64")),
            ("key-file", json!(file.as_deref().map(absolute).transpose()?)),
            ("keyring", json!(keyring)),
            ("sector-size", json!(options.sector_size)),
        ]),
    };
    let volume = object([
        ("name", json!(options.name)),
        ("encryption", encryption),
        ("block-size", json!(options.block_size)),
        ("cache", json!(options.cache)),
        ("read-only", json!(options.read_only)),
        ("shared", json!(options.shared)),
        ("depth", json!(options.depth)),
        (kind, backend),
    ]);
    config::volume_from_json(&volume).map(Change::VolumeCreate).map_err(problems)
}

fn add_device(connection: &Connection, options: &DeviceAdd) -> Result<(), String> {
    let device_socket = options.device_socket.as_deref().map(absolute).transpose()?;
    let access = [
        ("socket", json!(device_socket)),
        ("socket-owner", json!(options.socket_owner)),
        ("socket-group", json!(options.socket_group)),
        ("socket-mode", json!(options.socket_mode)),
    ];
    let queues = [
        ("queues", json!(options.queues)),
        ("queue-size", json!(options.queue_size)),
        ("packed", json!(options.packed)),
    ];
    if options.volume.is_some() && options.meter.committed.is_some() {
        return Err(
            "--meter-committed is for interfaces: a disk's requests are limited by its tenant's limits".to_owned()
        );
    }
    let (kind, keys) = match (&options.volume, &options.interface) {
        (Some(volume), _) => {
            // What was not given is the daemon's to choose; a flag that was not given is no.
            let disk = [
                ("volume", json!(volume)),
                ("serial", json!(options.serial)),
                ("read-only", json!(options.read_only)),
                ("seg-max", json!(options.seg_max)),
            ];
            ("virtio-blk", object(disk.into_iter().chain(queues).chain(access)))
        }
        (None, None) => ("virtio-net", object(network::port(options).into_iter().chain(queues).chain(access))),
        (None, Some(interface)) => {
            let interface = [("interface", json!(interface))];
            ("tap", object(network::port(options).into_iter().chain(queues).chain(interface)))
        }
    };
    let device = object([
        ("name", json!(options.name)),
        ("tenant", json!(options.tenant)),
        ("domain", json!(options.domain)),
        ("cores", json!(options.cores)),
        (kind, keys),
    ]);
    // As it is: what is left out, such as the socket, is the daemon's to choose.
    let result: DeviceArgs = connect(connection)?.call_method("device.add", &device).map_err(text)?;
    if let Some(access) = result.devices.first().and_then(|device| device.access()) {
        print(&format!("{}\n", access.socket.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_no_request_can_name_is_refused() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/srv/\xff.toml"));
        assert!(absolute(path).unwrap_err().contains("is not UTF-8"));
        assert_eq!(absolute(Path::new("/srv/f.toml")).unwrap(), Path::new("/srv/f.toml"));
    }

    #[test]
    fn a_limit_that_is_not_given_stays_and_one_that_is_brings_its_own_burst() {
        let before = json!({"iops": 500, "iops-burst": 64, "bandwidth": "1 GiB/s", "bandwidth-burst": "4 MiB"});
        let mut limits = json!({"bandwidth": "2 GiB/s"});
        keep_limits(&mut limits, before.as_object());
        assert_eq!(limits, json!({"iops": 500, "iops-burst": 64, "bandwidth": "2 GiB/s"}));
    }
}
