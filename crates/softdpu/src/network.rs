//! `softdpu network`, and what `softdpu device add` takes of interfaces.

use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ipnet::IpNet;
use serde_json::{Value, json};
use softdpu_api::{
    Change, Client, ClientError, Empty, EndpointChange, EntryChanges, EntryEdit, EntryOp, ErrorCode, Id,
    LONGEST_REQUEST, LoadFile, LoadResult, Query, Request, Unload, encode_request,
};
use softdpu_site::{self as config, MemberChange, NetworkPart};

use crate::arguments::DeviceAdd;
use crate::daemon::{absolute, meter, object, problems};

/// `softdpu network …`
#[derive(Clone, Debug, Subcommand)]
pub enum NetworkCommand {
    /// Add a network
    Add(NetworkAdd),
    /// Forget a network that no device is attached to
    Remove {
        /// The network
        name: String,
    },
    /// List networks
    List {
        /// Print a JSON array instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Guests of a network on other hosts
    #[command(subcommand)]
    Endpoint(EndpointCommand),
    /// Put other loaded entries in the place of all there are: guests on other hosts and routes, millions at once
    Load {
        /// A line for each: `endpoint,NETWORK,ADDRESS,MAC,HOST` or `route,NETWORK,PREFIX,HOST` (or `ecmp:GROUP`); an
        /// empty file unloads all
        file: PathBuf,
        /// Print what was loaded as a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove some loaded entries of a network
    Unload {
        /// The network
        network: String,
        /// Addresses of guests on other hosts, and prefixes of routes
        #[arg(required = true)]
        entry: Vec<String>,
        /// Print what is left as a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Single loaded routes, while packets pass
    #[command(subcommand)]
    Route(RouteCommand),
    /// Put other security groups and access control lists in the place of all that a network has
    Policy {
        /// A TOML file: `network`, and the keys `[[security-group]]` and `[[acl]]` as under `[[network]]` of a site
        /// file; or a `[[network]]` with its `name` for each of several, of which all are changed or none
        file: PathBuf,
    },
    /// Put other routes, ECMP groups, route tables and peers in the place of all that a network has
    Routing {
        /// A TOML file: `network`, and the keys `peer`, `[[route]]`, `[[ecmp]]` and `[[route-table]]` as under
        /// `[[network]]` of a site file; or a `[[network]]` with its `name` for each of several, of which all are
        /// changed or none
        file: PathBuf,
    },
    /// Put other rules of translation (NAT) in the place of all that a network has
    Nat {
        /// A TOML file: `network`, and the key `[[nat]]` as under `[[network]]` of a site file; or a `[[network]]` with
        /// its `name` for each of several, of which all are changed or none
        file: PathBuf,
    },
    /// Set a member of an ECMP group down or up, or give it another weight
    Member(MemberSet),
    /// On which cores packets from tunnels are worked on
    #[command(subcommand)]
    Steer(SteerCommand),
}

/// `softdpu network add`: the keys of `[[network]]`.
#[derive(Clone, Debug, Args)]
pub struct NetworkAdd {
    /// Its name
    pub name: String,
    /// Its VXLAN network identifier
    #[arg(long)]
    pub vni: u32,
    /// The prefixes of its subnets
    #[arg(long, value_name = "PREFIX", value_delimiter = ',', required = true)]
    pub cidr: Vec<String>,
    /// The subnets' gateways, where they are not the first hosts
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub gateway: Option<Vec<String>>,
    /// The only tenant that may attach devices
    #[arg(long)]
    pub tenant: Option<String>,
    /// Its largest IP packet
    #[arg(long)]
    pub mtu: Option<u16>,
    /// The name servers that guests get by DHCP
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub dns: Option<Vec<String>>,
    /// Packets that come by a tunnel may leave by another: this node is a gateway between hosts
    #[arg(long)]
    pub transit: bool,
    /// Peer networks, as far as they name this one as well
    #[arg(long, value_name = "NETWORK", value_delimiter = ',')]
    pub peer: Option<Vec<String>>,
}

/// `softdpu network member …`
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("change").multiple(true).required(true))]
pub struct MemberSet {
    /// The network
    pub network: String,
    /// The ECMP group
    pub ecmp: String,
    /// The member: its host, or its address in the network
    pub member: IpAddr,
    /// It gets no packets from now on
    #[arg(long, group = "change", conflicts_with = "up")]
    pub down: bool,
    /// It gets its share of packets again
    #[arg(long, group = "change")]
    pub up: bool,
    /// How many flows it gets relative to the others; 0: none
    #[arg(long, group = "change")]
    pub weight: Option<u16>,
}

/// `softdpu network steer …`
#[derive(Clone, Debug, Subcommand)]
pub enum SteerCommand {
    /// List cores' shares and rules
    List {
        /// Print a JSON object instead of tables
        #[arg(long)]
        json: bool,
    },
    /// Send packets of a network, or of one flow, to a core; a rule for the same packets goes
    Add {
        /// Which packets
        #[command(flatten)]
        what: SteerMatch,
        /// The CPU, one of the data plane's
        #[arg(long)]
        core: u32,
    },
    /// Remove a rule
    Remove {
        /// Which packets it is for
        #[command(flatten)]
        what: SteerMatch,
    },
    /// Set what decides, and over which cores flows are spread by hash
    #[command(group = clap::ArgGroup::new("change").multiple(true).required(true))]
    Set {
        /// off: nothing; manual: you; auto: the data plane as well
        #[arg(long, group = "change")]
        mode: Option<String>,
        /// CPUs over which flows are spread
        #[arg(long, group = "change", value_delimiter = ',', conflicts_with = "no_cores")]
        cores: Option<Vec<u32>>,
        /// What no rule takes stays where it is read
        #[arg(long, group = "change")]
        no_cores: bool,
    },
}

/// Which packets from tunnels a rule takes: those that match all that is given.
#[derive(Clone, Debug, Args)]
pub struct SteerMatch {
    /// Those of the network with this VNI
    #[arg(long)]
    pub vni: Option<u32>,
    /// Those of one flow: its protocol, tcp or udp
    #[arg(long)]
    pub protocol: Option<String>,
    /// Its source, such as 10.0.0.2:4000
    #[arg(long)]
    pub source: Option<String>,
    /// Its destination, such as 10.0.0.3:53
    #[arg(long)]
    pub destination: Option<String>,
}

impl SteerMatch {
    fn rule(&self, core: Option<u32>) -> Value {
        object([
            ("vni", json!(self.vni)),
            ("protocol", json!(self.protocol)),
            ("source", json!(self.source)),
            ("destination", json!(self.destination)),
            ("core", json!(core)),
        ])
    }
}

/// `softdpu network route …`
#[derive(Clone, Debug, Subcommand)]
pub enum RouteCommand {
    /// Add a route to a prefix that has none
    Add(RouteSet),
    /// Add a route, or put it in the place of the one to its prefix
    Replace(RouteSet),
    /// Remove the routes to these prefixes, all or none
    Del {
        /// The network
        network: String,
        /// The prefixes
        #[arg(required = true)]
        prefix: Vec<IpNet>,
    },
}

/// A loaded route.
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("to").required(true))]
pub struct RouteSet {
    /// The network
    pub network: String,
    /// The prefix
    pub prefix: IpNet,
    /// The tunnel end point of the host that it leads to
    #[arg(long, group = "to")]
    pub host: Option<IpAddr>,
    /// The ECMP group of the network that it leads to
    #[arg(long, group = "to")]
    pub ecmp: Option<String>,
}

impl RouteCommand {
    fn changes(self) -> EntryChanges {
        let (op, RouteSet { network, prefix, host, ecmp }) = match self {
            RouteCommand::Add(route) => (EntryOp::Add, route),
            RouteCommand::Replace(route) => (EntryOp::Replace, route),
            RouteCommand::Del { network, prefix } => {
                let gone = prefix.into_iter().map(|prefix| EntryEdit::route(EntryOp::Delete, prefix));
                return EntryChanges { network, changes: gone.collect() };
            }
        };
        EntryChanges { network, changes: vec![EntryEdit { host, ecmp, ..EntryEdit::route(op, prefix) }] }
    }
}

/// `softdpu network endpoint …`
#[derive(Clone, Debug, Subcommand)]
pub enum EndpointCommand {
    /// A guest is on another host
    Add {
        /// The network
        network: String,
        /// Its addresses in the network
        #[arg(long, value_delimiter = ',', required = true)]
        address: Vec<IpAddr>,
        /// Its MAC address
        #[arg(long)]
        mac: String,
        /// The tunnel end point of its host
        #[arg(long)]
        host: String,
        /// Its first address is known already: it has moved, and this takes the place of what was known
        #[arg(long)]
        replace: bool,
    },
    /// Guests are no more
    Remove {
        /// The network
        network: String,
        /// An address of each
        #[arg(required = true)]
        address: Vec<IpAddr>,
    },
}

/// What `command` asks of the daemon.
pub fn request(command: NetworkCommand) -> Result<Request, String> {
    match command {
        NetworkCommand::Add(options) => {
            let network = object([
                ("name", json!(options.name)),
                ("vni", json!(options.vni)),
                ("cidr", json!(options.cidr)),
                ("gateway", json!(options.gateway)),
                ("tenant", json!(options.tenant)),
                ("mtu", json!(options.mtu)),
                ("dns", json!(options.dns)),
                ("transit", json!(options.transit.then_some(true))),
                ("peer", json!(options.peer)),
            ]);
            config::network_from_json(&network)
                .map(|network| Change::NetworkAdd(Box::new(network)).into())
                .map_err(problems)
        }
        NetworkCommand::Remove { name } => Ok(Change::NetworkRemove { name }.into()),
        NetworkCommand::List { .. } => Ok(Query::NetworkList.into()),
        NetworkCommand::Load { file, .. } => Ok(Change::NetworkLoad(LoadFile { path: absolute(&file)? }).into()),
        NetworkCommand::Unload { network, entry, .. } => {
            let mut unload = Unload { network, addresses: Vec::new(), prefixes: Vec::new() };
            for text in entry {
                match (text.parse(), text.parse()) {
                    (Ok(address), _) => unload.addresses.push(address),
                    (_, Ok(prefix)) => unload.prefixes.push(prefix),
                    _ => return Err(format!("{text:?} is neither an address nor a prefix")),
                }
            }
            Ok(Change::NetworkUnload(unload).into())
        }
        NetworkCommand::Route(command) => Ok(Change::NetworkEntries(command.changes()).into()),
        NetworkCommand::Policy { file } => networks_file(NetworkPart::Policy, &file),
        NetworkCommand::Routing { file } => networks_file(NetworkPart::Routing, &file),
        NetworkCommand::Nat { file } => networks_file(NetworkPart::Nat, &file),
        NetworkCommand::Member(MemberSet { network, ecmp, member, down, up, weight }) => {
            let down = (down || up).then_some(down);
            Ok(Change::NetworkMember(MemberChange { network, ecmp, member, down, weight }).into())
        }
        NetworkCommand::Steer(SteerCommand::List { .. }) => Ok(Query::Status.into()),
        NetworkCommand::Steer(command) => {
            let change = match command {
                SteerCommand::Add { what, core } => json!({ "add": [what.rule(Some(core))] }),
                SteerCommand::Remove { what } => json!({ "remove": [what.rule(None)] }),
                SteerCommand::Set { mode, cores, no_cores } => {
                    let cores = if no_cores { Some(Vec::new()) } else { cores };
                    object([("mode", json!(mode)), ("cores", json!(cores))])
                }
                SteerCommand::List { .. } => json!({}),
            };
            config::steering_change_from_json(&change)
                .map(|change| Change::NetworkSteer(change).into())
                .map_err(problems)
        }
        NetworkCommand::Endpoint(EndpointCommand::Add { network, address, mac, host, replace }) => {
            let endpoint = json!({ "address": address, "mac": mac, "host": host });
            let endpoint = config::endpoint_from_json(&endpoint).map_err(problems)?;
            let remove = endpoint.addresses.first().filter(|_| replace).copied().into_iter().collect();
            Ok(Change::NetworkEndpoints(EndpointChange { network, add: vec![endpoint], remove }).into())
        }
        NetworkCommand::Endpoint(EndpointCommand::Remove { network, address }) => {
            Ok(Change::NetworkEndpoints(EndpointChange { network, add: Vec::new(), remove: address }).into())
        }
    }
}

fn networks_file(part: NetworkPart, file: &Path) -> Result<Request, String> {
    Ok(Request::NetworksFile { part, path: absolute(file)? })
}

/// Asks the daemon to read a file. One that it cannot read, as what a shell's `<(…)` names, is sent where it fits into
/// a request.
pub fn change_by_file(client: &mut Client, request: &Request) -> Result<(), String> {
    let Request::NetworksFile { part, path } = request else { return Err("no file is named".to_owned()) };
    let asked = for_daemon(path).map(|path| client.call::<Empty>(Request::NetworksFile { part: *part, path }));
    // A daemon that knows no `path` says that the parameters are wrong, as one does that has found the file wrong.
    let (unread, is_wrong) = match asked {
        None => (
            format!("{}: it is no regular file, and too long for a request: put it into a file", path.display()),
            false,
        ),
        Some(Ok(Empty {})) => return Ok(()),
        Some(Err(ClientError::Refused(error))) if error.code == ErrorCode::Failed => (error.to_string(), false),
        Some(Err(ClientError::Refused(error))) if error.code == ErrorCode::InvalidParams => (error.to_string(), true),
        Some(Err(error)) => return Err(error.to_string()),
    };
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(LONGEST_REQUEST as u64).read_to_string(&mut text));
    match read {
        Ok(length) if length < LONGEST_REQUEST => {}
        _ => return Err(unread),
    }
    let name = path.display().to_string();
    let change = match config::networks_change_from_text(*part, &text, &name) {
        Ok(change) => change,
        Err(_) if is_wrong => return Err(unread),
        Err(report) => return Err(report.to_string()),
    };
    let request = Request::from(Change::from(change));
    if encode_request(&Id::Number(u64::MAX), &request).len() > LONGEST_REQUEST {
        return Err(unread);
    }
    client.call::<Empty>(request).map(|Empty {}| ()).map_err(|error| error.to_string())
}

/// What the daemon is to open for `path`; None for what only this process can read: its standard input, a pipe, a FIFO.
/// Opening a FIFO and closing it again would take its writer away.
fn for_daemon(path: &Path) -> Option<PathBuf> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => {
            let real = std::fs::canonicalize(path).ok()?;
            (real.is_file() && real.to_str().is_some()).then_some(real)
        }
        Ok(found) if !found.is_dir() => None,
        // The daemon may see more than this process; if not, it says why.
        _ => Some(path.to_owned()),
    }
}

/// What was loaded, for people.
pub fn loaded(result: &LoadResult) -> String {
    let LoadResult { endpoints, routes, hosts, took_us, .. } = result;
    let seconds = *took_us as f64 / 1e6;
    format!("{endpoints} endpoints and {routes} routes, on {hosts} hosts, in {seconds:.2} s\n")
}

/// The keys that guests' interfaces and TAPs have in common.
pub fn port(options: &DeviceAdd) -> [(&'static str, Value); 11] {
    let rate = |packets: [Option<u64>; 2], bandwidth: [&Option<String>; 2]| {
        let rate = object([
            ("packets", json!(packets[0])),
            ("packets-burst", json!(packets[1])),
            ("bandwidth", json!(bandwidth[0])),
            ("bandwidth-burst", json!(bandwidth[1])),
        ]);
        let is_limited = rate.as_object().is_some_and(|rate| !rate.is_empty());
        if is_limited { rate } else { Value::Null }
    };
    let sent = rate(
        [options.rate_packets, options.rate_packets_burst],
        [&options.rate_bandwidth, &options.rate_bandwidth_burst],
    );
    let received = rate(
        [options.receive_rate_packets, options.receive_rate_packets_burst],
        [&options.receive_rate_bandwidth, &options.receive_rate_bandwidth_burst],
    );
    [
        ("network", json!(options.network)),
        ("address", json!(options.address)),
        ("mac", json!(options.mac)),
        ("mtu", json!(options.mtu)),
        ("security-groups", json!(options.security_group)),
        ("acl", json!(options.acl)),
        ("functions", json!(options.functions)),
        ("rate", sent),
        ("receive-rate", received),
        ("meter", json!(meter(&options.meter))),
        ("spoof-check", json!(options.no_spoof_check.then_some(false))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_left_to_the_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("f.toml"), folder.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let real = std::fs::canonicalize(&file).unwrap();
        assert_eq!((for_daemon(&file), for_daemon(&link)), (Some(real.clone()), Some(real.clone())));
        // An open file is this process's to name, and a pipe is no other process's at all.
        use std::os::fd::AsRawFd;
        let open = std::fs::File::open(&file).unwrap();
        assert_eq!(for_daemon(Path::new(&format!("/dev/fd/{}", open.as_raw_fd()))), Some(real));
        let (pipe, _end) = std::io::pipe().unwrap();
        assert_eq!(for_daemon(Path::new(&format!("/dev/fd/{}", pipe.as_raw_fd()))), None);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(for_daemon(Path::new(&format!("/proc/self/fd/{}", open.as_raw_fd()))), None);
        assert_eq!(for_daemon(&file), Some(file));
    }
}
