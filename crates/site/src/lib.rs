//! The site file: TOML in, a typed and validated [`Site`] out, or everything that is wrong with it at once.
//!
//! ```text
//!  text ──toml──▶ values with places ──read──▶ Site ──rules──▶ valid Site
//!                        │                │            │
//!                        └──── problems ──┴────────────┴──▶ Report: file:line:column, found, expected, help
//! ```
//!
//! `softdpu check` and `softdpu run` call [`load`]; the management API reads its parameters through
//! [`volume_from_json`], [`network_from_json`] and [`device_from_json`], the same reader with the same defaults and
//! messages, and applies [`Site::problems`] to the site as it would become.

#![forbid(unsafe_code)]

pub mod accounts;
mod diagnostic;
mod function;
mod lookup;
mod machine;
mod network;
mod read;
mod reader;
mod rules;
pub mod schema;
mod service;
mod site;
mod steering;
mod summary;
mod syntax;
mod tenant;
mod units;
mod value;

use std::io::{self, Read};
use std::path::Path;

use reader::{Context, Reader, keys_of};
use value::Data;

pub use diagnostic::{Diagnostic, Problem, Report, Severity, alternatives, nearest};
pub use function::{
    AnalyticsSettings, FirewallRule, FirewallSettings, Function, FunctionChange, FunctionKind, MonitorSettings, Rank,
};
pub use network::{
    Acl, AclAction, AclRule, Bfd, ColourBy, DEFAULT_MTU, DeviceChange, Direction, EcmpGroup, EcmpMember, Endpoint,
    Floating, Forward, ForwardProtocol, GroupRule, LARGEST_MEMBER_WEIGHT, LONGEST_LINE, LoadLine, LoadVia, MacAddress,
    MacError, MemberChange, MeterSettings, Nat, NatChange, Network, NetworkChange, NetworkChanges, NetworkPart,
    NetworkPort, Places, PolicyChange, PortRange, Protocol, RateLimit, Route, RouteTable, RoutingChange, SecurityGroup,
    SharedAddresses, Subnet, TableSizes, TableUse, Tap, Underlay, UnderlayBackend, VXLAN_PORT, VirtioNet, Vni,
    first_beyond, full, hosts, load_line, networks_file,
};
pub use reader::is_name;
pub use service::ServiceDirectories;
pub use site::{
    Backend, Cache, Cipher, DEFAULT_TENANT, Dataplane, Device, DeviceBackend, DeviceKind, Discard, EncryptedDiscard,
    Encryption, Fairness, FileBackend, FileMode, IdleSleep, Isolation, Log, LogFormat, LogLevel, Metrics, Mode,
    NbdBackend, Node, Reconnect, ScaleChange, Site, SocketAccess, VirtioBlk, Volume, Yield,
};
pub use softdpu_nbd::NbdUri;
pub use steering::{SteerRule, Steering, SteeringChange, SteeringMode};
pub use summary::summary;
pub use tenant::{LatencyClass, Tenant, TenantChange, TenantLimits};
pub use units::{BitsPerSecond, Bytes, BytesPerSecond, Percent, Span, UnitError};

/// The largest site file, and the largest file of `network.policy` or `network.routing`, that is read, bytes: thousands
/// of devices fit, a wrong file name (an image) does not.
pub const LARGEST_FILE: u64 = 16 << 20;

/// What became of a site file.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The site, unless there are errors.
    pub site: Option<Site>,
    /// Errors and warnings.
    pub report: Report,
}

/// Reads and checks the site file at `path`. Relative paths in it are relative to its folder. What this machine lacks
/// is reported with the severity `machine`. Directories that a service manager made for this process are its defaults.
pub fn load(path: &Path, machine: Severity) -> Loaded {
    let name = path.display().to_string();
    let text = match read_text(path) {
        Ok(text) => text,
        Err(problem) => {
            return Loaded { site: None, report: Report::unread(&name, Problem::error("", problem)) };
        }
    };
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let base = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    parse_as(&text, &name, &base, Some(machine), &ServiceDirectories::of_this_process())
}

fn read_text(path: &Path) -> Result<String, String> {
    let bytes = read_file(path, LARGEST_FILE).map_err(|error| format!("the site file cannot be read: {error}"))?;
    String::from_utf8(bytes).map_err(|error| {
        format!("the site file is not UTF-8 text (byte {} is wrong)", error.utf8_error().valid_up_to())
    })
}

/// Reads a regular file of at most `most` bytes. A pipe, which would be waited for, and a device, which may never end,
/// are errors.
///
/// # Errors
/// What the operating system says, or what is wrong with the file.
pub fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // Opening a pipe waits for its other end, opening a device may do anything: what it is is looked at first, and
    // again when it is open.
    let check = |metadata: std::fs::Metadata| match metadata {
        metadata if metadata.is_dir() => Err(io::Error::other("it is a folder")),
        metadata if !metadata.is_file() => Err(io::Error::other("it is a pipe, socket or device, not a file")),
        _ => Ok(()),
    };
    check(std::fs::metadata(path)?)?;
    let file = std::fs::File::open(path)?;
    check(file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it is larger than {}: is this the right file?", Bytes(most))));
    }
    Ok(bytes)
}

/// Checks `text`, called `name` in messages. Relative paths are relative to `base`, which is absolute. The machine is
/// looked at only where `machine` says with which severity.
pub fn parse(text: &str, name: &str, base: &Path, machine: Option<Severity>) -> Loaded {
    parse_as(text, name, base, machine, &ServiceDirectories::default())
}

/// As [`parse`], for a process that a service manager gave `directories`.
pub fn parse_as(
    text: &str,
    name: &str,
    base: &Path,
    machine: Option<Severity>,
    directories: &ServiceDirectories,
) -> Loaded {
    let context = Context::new(Some(base));
    let (document, syntax_errors) = toml::de::DeTable::parse_recoverable(text);
    if !syntax_errors.is_empty() {
        // What was read around a syntax error may be in the wrong table: further messages would mislead.
        let problems = syntax::problems(text, &syntax_errors);
        return Loaded { site: None, report: Report::new(name, text, problems, &Default::default()) };
    }
    let root = value::from_toml_table(document.into_inner());
    let site =
        Reader::read(&context, schema::ROOT, String::new(), 0..0, &root, |reader| read::site(reader, directories));
    let mut problems = context.problems.into_inner();
    let spans = context.spans.into_inner();
    let misspelt = context.misspelt.into_inner();
    // What a section with a wrong name declares is not missing.
    let is_cause =
        |problem: &Problem| !problem.undeclared.is_some_and(|section| misspelt.iter().any(|it| it == section));
    problems.extend(site.problems().into_iter().filter(is_cause));
    if let Some(severity) = machine {
        problems.extend(site.machine_problems(severity));
    }
    let report = Report::new(name, text, problems, &spans);
    Loaded { site: (!report.has_errors()).then_some(site), report }
}

/// Reads a volume from the parameters of a management request, which have the shape of `[[volume]]`. Paths are
/// absolute.
pub fn volume_from_json(parameters: &serde_json::Value) -> Result<Volume, Vec<Problem>> {
    from_json(parameters, "[[volume]]", read::volume)
}

/// Reads a network from the parameters of a management request, which have the shape of `[[network]]`.
pub fn network_from_json(parameters: &serde_json::Value) -> Result<Network, Vec<Problem>> {
    from_json(parameters, "[[network]]", network::read::network)
}

/// Reads a tenant from the parameters of a management request, which have the shape of `[[tenant]]`.
pub fn tenant_from_json(parameters: &serde_json::Value) -> Result<Tenant, Vec<Problem>> {
    from_json(parameters, "[[tenant]]", tenant::tenant)
}

/// Reads a change of a tenant from the parameters of a management request, which have the shape of `[[tenant]]`.
pub fn tenant_change_from_json(parameters: &serde_json::Value) -> Result<TenantChange, Vec<Problem>> {
    from_json(parameters, "[[tenant]]", tenant::change)
}

/// Reads a network's guest on another host from what has the shape of `[[network.endpoint]]`.
pub fn endpoint_from_json(parameters: &serde_json::Value) -> Result<Endpoint, Vec<Problem>> {
    from_json(parameters, "[[network.endpoint]]", network::read::endpoint)
}

/// Reads the security groups and lists that networks are to have from now on from the parameters of `network.policy`.
pub fn policies_from_json(parameters: &serde_json::Value) -> Result<Vec<PolicyChange>, Vec<Problem>> {
    network::file::from_json(NetworkPart::Policy, parameters, network::file::policies)
}

/// Reads the routes, ECMP groups, route tables and peers that networks are to have from now on from the parameters of
/// `network.routing`.
pub fn routings_from_json(parameters: &serde_json::Value) -> Result<Vec<RoutingChange>, Vec<Problem>> {
    network::file::from_json(NetworkPart::Routing, parameters, network::file::routings)
}

/// Reads what networks translate from now on from the parameters of `network.nat`.
pub fn nats_from_json(parameters: &serde_json::Value) -> Result<Vec<NatChange>, Vec<Problem>> {
    network::file::from_json(NetworkPart::Nat, parameters, network::file::nats)
}

/// Reads the parameters of one of these from `text`, which is TOML and called `name` in messages.
pub fn networks_change_from_text(part: NetworkPart, text: &str, name: &str) -> Result<NetworkChanges, Report> {
    network::file::from_text(part, text, name)
}

/// Reads a change of `node.steering` from the parameters of `network.steer`.
pub fn steering_change_from_json(parameters: &serde_json::Value) -> Result<SteeringChange, Vec<Problem>> {
    from_json(parameters, "the parameters of network.steer", steering::change)
}

/// Reads other CPUs for the data plane from the parameters of `node.scale`.
pub fn scale_change_from_json(parameters: &serde_json::Value) -> Result<ScaleChange, Vec<Problem>> {
    from_json(parameters, "the parameters of node.scale", read::scale_change)
}

/// Reads a function from the parameters of a management request, which have the shape of `[[function]]`.
pub fn function_from_json(parameters: &serde_json::Value) -> Result<Function, Vec<Problem>> {
    from_json(parameters, "[[function]]", function::function)
}

/// Reads other settings of a function from the parameters of `function.set`.
pub fn function_change_from_json(parameters: &serde_json::Value) -> Result<FunctionChange, Vec<Problem>> {
    from_json(parameters, "a change of a function", function::function_change)
}

/// Reads a firewall from `text`, called `name` in messages: what `function.firewall` has, as TOML.
pub fn firewall_from_text(text: &str, name: &str) -> Result<FirewallSettings, Report> {
    from_text(text, name, "function.firewall", function::firewall)
}

fn from_text<T>(text: &str, name: &str, title: &'static str, read: impl FnOnce(&Reader<'_>) -> T) -> Result<T, Report> {
    let context = Context::new(None);
    let (document, errors) = toml::de::DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(Report::new(name, text, syntax::problems(text, &errors), &Default::default()));
    }
    let root = value::from_toml_table(document.into_inner());
    let change = Reader::read(&context, title, String::new(), 0..0, &root, read);
    let (problems, spans) = (context.problems.into_inner(), context.spans.into_inner());
    if problems.is_empty() { Ok(change) } else { Err(Report::new(name, text, problems, &spans)) }
}

/// Reads a device from the parameters of a management request, which have the shape of `[[device]]`. A socket that is
/// not given is put into `run_directory`.
pub fn device_from_json(parameters: &serde_json::Value, run_directory: &Path) -> Result<Device, Vec<Problem>> {
    from_json(parameters, "[[device]]", |reader| read::device(reader, run_directory))
}

fn from_json<T>(
    parameters: &serde_json::Value,
    title: &'static str,
    read: impl FnOnce(&Reader<'_>) -> T,
) -> Result<T, Vec<Problem>> {
    let value = value::from_json(parameters);
    let Data::Table(table) = &value.data else {
        let keys = alternatives(keys_of(title, read));
        return Err(vec![
            Problem::error("", "the parameters").found(value.describe()).expected(format!("an object with {keys}")),
        ]);
    };
    let context = Context::new(None);
    let result = Reader::read(&context, title, String::new(), 0..0, table, read);
    let problems = context.problems.into_inner();
    if problems.is_empty() { Ok(result) } else { Err(problems) }
}

#[cfg(test)]
mod tests;
