//! What people write: site files, files of policy, of routing and of a firewall, lines of a file to load. Any text, or
//! a sample with lines that are others, gone or twice. Nothing panics; what is wrong is said; what is right is
//! understood in the same way when it comes as JSON, as clients send it; lines that are right are loaded, or refused
//! with their number.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use serde::Serialize;
use softdpu_site::{
    self as config, LoadLine, LoadVia, MacAddress, NetworkChanges, NetworkPart, Problem, Report, Severity, load_line,
    schema,
};
use softdpu_vpc::spec::{NetworkSpec, Prefix, Spec, SubnetSpec, TableCapacity};
use softdpu_vpc::tables::Loading;
use softdpu_vpc::{Mac, Tables, Vni};

static SECTIONS: LazyLock<Vec<schema::Section>> = LazyLock::new(schema::sections);

const SAMPLES: [&str; 12] = [
    include_str!("../../lab/sites/demo.toml"),
    include_str!("../../lab/sites/demo-networks.toml"),
    include_str!("../../lab/sites/ecmp.toml"),
    include_str!("../../lab/sites/gateway.toml"),
    include_str!("../../lab/sites/networks.toml"),
    include_str!("../../lab/sites/two-hosts-a.toml"),
    SITE,
    POLICY,
    ROUTING,
    FIREWALL,
    LINES,
    "",
];

/// What the samples lack.
const SITE: &str = r#"
[node]
dataplane = { cores = [0, 1], mode = "performance", idle-sleep = "50 us" }
fairness = "weighted"
api = { socket = "/run/softdpu.sock", socket-mode = "0660" }
metrics = { listen = "127.0.0.1:9100" }
log = { format = "json", level = "info" }
underlay = { interface = "eth0", address = ["192.0.2.1", "2001:db8:ff::1"], port = 4789, mtu = 1600 }
tables = { endpoints = 1000, routes = 1000, hosts = 10, flows = 1000, connections = 1000 }
zone = "a"
flow-tier = true
[node.steering]
mode = "manual"
cores = [0]
rule = [{ vni = 1, protocol = "tcp", source = "10.0.0.9:4000", destination = "10.0.0.2:80", core = 1 }]
[[tenant]]
name = "acme"
weight = 3
class = "latency"
guarantee = "10 %"
limits = { iops = 1000, bandwidth = "1 GiB/s", packets = 1000, received-packets = 1000, received-bandwidth = "1 GiB/s" }
meter = { committed = "1 Mbit/s", committed-burst = "64 KiB", peak = "2 Mbit/s", peak-burst = "64 KiB" }
[[network]]
name = "acme"
vni = 1
cidr = ["10.0.0.0/16", "fd00::/64"]
mtu = 1400
[[network.endpoint]]
address = "10.0.0.9"
mac = "02:5d:00:00:00:09"
host = "192.0.2.2"
security-groups = "web"
[[network.security-group]]
name = "web"
rule = [{ direction = "ingress", protocol = "tcp", ports = "80-90", cidr = "0.0.0.0/0" }, { direction = "egress", group = "web" }]
[[network.acl]]
name = "edge"
default = "allow"
rule = [{ priority = 1, action = "deny", protocol = "udp", source = "10.0.0.0/8", ports = 53 }]
[[function]]
name = "guard"
tenant = "acme"
firewall = { connections = 100, rule = [{ priority = 1, action = "deny", protocol = "tcp", ports = 22 }] }
[[device]]
name = "nic"
tenant = "acme"
virtio-net = { network = "acme", address = "10.0.0.2", security-groups = ["web"], acl = "edge", functions = "guard" }
"#;
const POLICY: &str = r#"
network = "acme"
[[security-group]]
name = "web"
rule = [{ direction = "ingress", protocol = "icmp" }, { direction = "ingress", protocol = "tcp", ports = "1-2", group = "web" }]
[[acl]]
name = "edge"
default = "deny"
rule = [{ priority = 10, action = "allow", protocol = "tcp", source = "10.0.0.0/8", destination = "10.1.0.0/16", source-ports = 1 }]
"#;
const ROUTING: &str = r#"
network = "acme"
peer = ["tools"]
[[ecmp]]
name = "far"
member = [{ host = "192.0.2.3", weight = 3, zone = "a" }, { address = "10.0.0.3", down = true }]
[[route]]
prefix = "10.2.0.0/16"
ecmp = "far"
[[route]]
prefix = "fd00::/8"
host = "2001:db8::1"
[[route-table]]
name = "some"
source = "10.0.0.2/32"
route = [{ prefix = "0.0.0.0/0", address = "10.0.0.3" }]
"#;
const FIREWALL: &str = r#"
connections = 100
default = "deny"
rule = [{ priority = 1, action = "allow", protocol = "tcp", ports = "22", source = "10.0.0.0/8" }]
"#;
const LINES: &str = "\
# guests
endpoint,red,10.0.0.3,,192.0.2.2
endpoint,red,fd00::3,02:00:00:00:00:03,192.0.2.2
route,red,10.9.0.0/16,192.0.2.3
route,blue,fd00:9::/32,ecmp:far
";

/// Behind an equals sign, and fields of lines to load.
const VALUES: [&str; 56] = [
    "true",
    "0",
    "1",
    "-1",
    "65535",
    "65536",
    "16777216",
    "4294967296",
    "9223372036854775807",
    "1.5",
    "nan",
    "1979-05-27",
    "\"\"",
    "\"a\"",
    "\"acme\"",
    "\"web\"",
    "\"far\"",
    "\"ä\u{301}\"",
    "\"\\u0000\"",
    "\"192.0.2.1\"",
    "\"192.0.2.2\"",
    "\"10.0.0.1\"",
    "\"10.0.0.0/8\"",
    "\"10.0.0.0/0\"",
    "\"0.0.0.0/0\"",
    "\"10.0.0.1/8\"",
    "\"::/0\"",
    "\"::ffff:10.0.0.1\"",
    "\"fd00::/129\"",
    "\"fd00::2\"",
    "\"224.0.0.1\"",
    "\"255.255.255.255\"",
    "\"02:5d:00:00:00:01\"",
    "\"ff:ff:ff:ff:ff:ff\"",
    "\"1 GiB\"",
    "\"18446744073709551615 GiB\"",
    "\"1 Tbit/s\"",
    "\"100 %\"",
    "\"10 s\"",
    "\"tcp\"",
    "\"icmp6\"",
    "\"255\"",
    "\"80-90\"",
    "\"90-80\"",
    "\"0-65535\"",
    "\"allow\"",
    "\"ingress\"",
    "\"latency\"",
    "[]",
    "[[]]",
    "[\"a\", \"a\"]",
    "[\"10.0.0.0/8\", \"10.0.0.0/16\"]",
    "{}",
    "{ a = 1 }",
    "[{}]",
    "\"\"\"",
];

fn one_of<T: Copy>(all: &[T], at: u8) -> T {
    all[usize::from(at) % all.len()]
}

/// The text that `data` stands for.
fn text(data: &[u8]) -> Option<String> {
    let (&kind, rest) = data.split_first()?;
    if kind % 16 == 15 {
        return Some(String::from_utf8_lossy(rest).into_owned());
    }
    let sample = one_of(&SAMPLES, kind);
    let mut lines: Vec<String> = sample.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    for edit in rest.chunks_exact(4) {
        let [what, at, key, value] = *edit else { return None };
        let at = usize::from(at) % (lines.len() + 1);
        let section = &SECTIONS[usize::from(key) % SECTIONS.len()];
        let (key, value) = (one_of(&section.keys, what >> 3), one_of(&VALUES, value));
        match (what % 8, lines.get(at).cloned()) {
            (0, Some(_)) => drop(lines.remove(at)),
            (1, Some(line)) => lines.push(line),
            (2 | 3, Some(line)) if line.contains('=') => {
                // The value of one of its keys.
                let places: Vec<usize> = line.match_indices('=').map(|(place, _)| place).collect();
                let from = one_of(&places, what >> 4) + 1;
                let to = line[from..].find([',', '}', ']']).map_or(line.len(), |end| from + end);
                lines[at].replace_range(from..to, value);
            }
            (2 | 3, Some(line)) if line.contains(',') => {
                let mut fields: Vec<&str> = line.split(',').collect();
                let field = usize::from(what >> 4) % fields.len();
                fields[field] = value.trim_matches('"');
                lines[at] = fields.join(",");
            }
            (4, _) => lines.insert(at, format!("[[{key}]]")),
            (5, _) => lines.insert(at, format!("[{key}]")),
            _ => lines.insert(at, format!("{key} = {value}")),
        }
    }
    Some(lines.join("\n"))
}

/// What is wrong is said, each thing where it is.
fn is_told(report: &Report) {
    assert!(report.has_errors(), "{report:?}");
    assert!(!report.to_string().is_empty());
}

/// What was understood is understood in the same way as JSON.
fn goes_round<T: Serialize + PartialEq + std::fmt::Debug>(
    value: &T,
    read: impl FnOnce(&serde_json::Value) -> Result<T, Vec<Problem>>,
) {
    let json = serde_json::to_value(value).expect("JSON");
    assert_eq!(read(&json).as_ref(), Ok(value), "{json}");
}

/// Each change of a network is understood in the same way as the parameters of its method.
fn each_goes_round<T: Clone + Serialize + PartialEq + std::fmt::Debug>(
    changes: &[T],
    read: fn(&serde_json::Value) -> Result<Vec<T>, Vec<Problem>>,
) {
    for change in changes {
        let only = |mut changes: Vec<T>| if changes.len() == 1 { changes.pop() } else { None };
        goes_round(&Some(change.clone()), |json| read(json).map(only));
    }
}

fn site(text: &str) {
    let loaded = config::parse(text, "site.toml", Path::new("/etc/softdpu"), None);
    assert_eq!(loaded.site.is_none(), loaded.report.has_errors(), "{:?}", loaded.report);
    let _ = loaded.report.to_string();
    let Some(site) = loaded.site else { return is_told(&loaded.report) };
    assert!(!config::summary(&site).is_empty());
    assert!(site.problems().iter().all(|problem| problem.severity == Severity::Warning));
    for network in &site.networks {
        goes_round(network, config::network_from_json);
    }
    for tenant in &site.tenants {
        goes_round(tenant, config::tenant_from_json);
    }
    for volume in &site.volumes {
        goes_round(volume, config::volume_from_json);
    }
    for function in &site.functions {
        goes_round(function, config::function_from_json);
    }
    for device in &site.devices {
        goes_round(device, |json| config::device_from_json(json, Path::new("/run/softdpu")));
    }
}

fn changes(text: &str) {
    for part in [NetworkPart::Policy, NetworkPart::Routing, NetworkPart::Nat] {
        match config::networks_change_from_text(part, text, "change.toml") {
            Ok(NetworkChanges::Policy(changes)) => each_goes_round(&changes, config::policies_from_json),
            Ok(NetworkChanges::Routing(changes)) => each_goes_round(&changes, config::routings_from_json),
            Ok(NetworkChanges::Nat(changes)) => each_goes_round(&changes, config::nats_from_json),
            Err(report) => is_told(&report),
        }
    }
    if let Err(report) = config::firewall_from_text(text, "firewall.toml") {
        is_told(&report);
    }
}

fn network(name: &str, vni: u32) -> NetworkSpec {
    let subnet = |prefix: &str, gateway: &str| SubnetSpec {
        prefix: prefix.parse().expect("a prefix"),
        gateway: gateway.parse().expect("an address"),
    };
    NetworkSpec {
        name: name.into(),
        vni: Vni::new(vni).expect("a VNI"),
        subnets: vec![subnet("10.0.0.0/16", "10.0.0.1"), subnet("fd00::/64", "fd00::1")],
        gateway_mac: Mac(MacAddress::derived(name, "10.0.0.1".parse().expect("an address")).0),
        mtu: 1500,
        dns: Vec::new(),
        policy: Default::default(),
        transit: true,
        tenant: None,
    }
}

/// As a daemon loads them.
fn lines(text: &str) {
    let networks = [network("red", 1), network("blue", 2)];
    let own = ["192.0.2.1".parse().expect("an address")];
    let capacity = TableCapacity { endpoints: 64, routes: 64, hosts: 8 };
    let mut loading = Loading::new(&networks, &own, capacity, 0).with_groups([("blue", "far")]);
    for (number, line) in (1..).zip(text.lines()) {
        let result = match load_line(line) {
            Ok(None) => continue,
            Err(error) => Err(error),
            Ok(Some(LoadLine::Endpoint { network, address, mac, host })) => {
                loading.endpoint(number, network, address, Mac(mac.0), host).map_err(|error| error.to_string())
            }
            Ok(Some(LoadLine::Route { network, address, length, via })) => {
                Prefix::new(address, length).map_err(|error| error.to_string()).and_then(|prefix| match via {
                    LoadVia::Host(host) => {
                        loading.route(number, network, prefix, host).map_err(|error| error.to_string())
                    }
                    LoadVia::Ecmp(group) => {
                        loading.route_to_group(number, network, prefix, group).map_err(|error| error.to_string())
                    }
                })
            }
        };
        if let Err(error) = result {
            assert!(!error.is_empty());
        }
    }
    match loading.finish() {
        Ok(loaded) => {
            let spec = Spec { networks: networks.to_vec(), ..Spec::default() };
            let _ = Tables::build(&spec, Some(loaded.into())).map_err(|error| error.to_string());
        }
        Err(error) => assert!(text.lines().nth(error.line as usize - 1).is_some(), "{error:?}"),
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(text) = text(data) else { return };
    site(&text);
    changes(&text);
    lines(&text);
});
