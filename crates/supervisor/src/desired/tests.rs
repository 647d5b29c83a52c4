mod by_file;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Value, json};
use softdpu_api::{Change, EndpointChange, ErrorCode, LoadFile, LoadResult};
use softdpu_site::{
    self as config, Bytes, Device, DeviceChange, FunctionChange, MemberChange, Site, TenantChange, Volume,
};

use super::check::{is_within, length};
use super::*;

fn site(folder: &Path) -> Site {
    let text = r#"
        [[volume]]
        name = "a"
        memory = { size = "1 MiB" }
        [[device]]
        name = "d"
        domain = "vm"
        virtio-blk = { volume = "a" }
    "#;
    let loaded = config::parse(text, "site.toml", folder, None);
    let mut site = loaded.site.unwrap_or_else(|| panic!("{:?}", loaded.report));
    site.node.state_directory = folder.join("state");
    site
}

fn volume(name: &str) -> Volume {
    config::volume_from_json(&serde_json::json!({"name": name, "null": {"size": "4 MiB"}})).unwrap()
}

fn device(name: &str, volume: &str) -> Device {
    let parameters = serde_json::json!({"name": name, "domain": "vm", "virtio-blk": {"volume": volume}});
    config::device_from_json(&parameters, Path::new("/run/softdpu")).unwrap()
}

#[test]
fn kept_changes_are_for_the_daemon_alone_and_have_names_that_are_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(site(folder.path())).unwrap();
    let path = folder.path().join("state").join(FILE);
    fs::create_dir_all(folder.path().join("state")).unwrap();
    // As an interrupted save leaves it.
    fs::write(path.with_extension("new"), "{").unwrap();
    desired.commit(&Change::VolumeCreate(volume("fresh"))).unwrap();
    desired.commit(&Change::DeviceAdd(device("added", "fresh"))).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let text = fs::read_to_string(&path).unwrap();
    for (good, wrong) in [("added", "../added"), ("fresh", "a/b"), ("vm", "v m"), ("added", "-a")] {
        let quoted = |name: &str| format!("\"{name}\"");
        fs::write(&path, text.replace(&quoted(good), &quoted(wrong))).unwrap();
        let error = Desired::load(site(folder.path())).unwrap_err().to_string();
        assert!(error.contains(wrong) && error.contains("is no name"), "{error}");
    }
}

#[test]
fn kept_changes_that_are_no_file_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state").join(FILE);
    fs::create_dir_all(folder.path().join("state")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let error = Desired::load(site(folder.path())).unwrap_err().to_string();
    assert!(error.contains("not a file"), "{error}");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    let error = Desired::load(site(folder.path())).unwrap_err().to_string();
    assert!(error.contains("not a file"), "{error}");
}

#[test]
fn changes_survive_the_supervisor_and_are_laid_over_the_site_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(site(folder.path())).unwrap();
    let changes = [
        Change::VolumeCreate(volume("b")),
        Change::VolumeGrow { name: "b".into(), size: Bytes(8 << 20) },
        Change::VolumeGrow { name: "a".into(), size: Bytes(2 << 20) },
        Change::DeviceAdd(device("e", "b")),
        Change::DeviceRemove { name: "d".into() },
    ];
    for change in &changes {
        desired.check(change, None).unwrap();
        desired.commit(change).unwrap();
    }
    let again = Desired::load(site(folder.path())).unwrap();
    assert_eq!(again.site(), desired.site());
    assert!(again.site().device("d").is_none() && again.site().device("e").is_some());
    assert_eq!(again.site().volume("a").unwrap().backend.size(), Some(Bytes(2 << 20)));
    assert_eq!(again.site().volume("b").unwrap().backend.size(), Some(Bytes(8 << 20)));
}

#[test]
fn routes_and_states_of_members_survive_the_supervisor() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(networked(folder.path())).unwrap();
    let routing = |text: &str| {
        Change::from(config::networks_change_from_text(config::NetworkPart::Routing, text, "routes.toml").unwrap())
    };
    let group = "network = \"a\"\nroute = [{ prefix = \"10.9.0.0/16\", ecmp = \"g\" }]\n\
                 ecmp = [{ name = \"g\", member = [{ host = \"192.0.2.2\" }, { host = \"192.0.2.3\" }] }]";
    let set = |down, weight| {
        let member = "192.0.2.3".parse().unwrap();
        Change::NetworkMember(MemberChange { network: "a".into(), ecmp: "g".into(), member, down, weight })
    };
    assert_eq!(desired.check(&set(Some(true), None), None).unwrap_err().code, ErrorCode::NotFound);
    for change in [routing(group), set(Some(true), None), set(None, Some(7))] {
        desired.check(&change, None).unwrap();
        desired.commit(&change).unwrap();
        let again = Desired::load(networked(folder.path())).unwrap();
        assert_eq!(again.site(), desired.site(), "after {change:?}");
    }
    let member = |desired: &Desired| desired.site().network("a").unwrap().ecmp[0].members[1].clone();
    assert_eq!((member(&desired).down, member(&desired).weight), (true, 7));
    assert_eq!(desired.check(&set(None, Some(1001)), None).unwrap_err().code, ErrorCode::Refused);
    assert_eq!(desired.check(&set(None, None), None).unwrap_err().code, ErrorCode::Refused);
    // A file says everything anew.
    desired.commit(&routing(group)).unwrap();
    let again = Desired::load(networked(folder.path())).unwrap();
    assert_eq!((member(&again).down, again.site()), (false, desired.site()));
    // Who is a next hop stays, and so does a peer.
    let by = "network = \"a\"\nroute = [{ prefix = \"10.9.0.0/16\", address = \"10.0.0.4\" }]";
    desired.commit(&routing(by)).unwrap();
    assert_eq!(desired.check(&Change::DeviceRemove { name: "d".into() }, None).unwrap_err().code, ErrorCode::Refused);
    let json = serde_json::json!({"name": "b", "vni": 2, "cidr": "10.1.0.0/16", "peer": "a"});
    desired.commit(&Change::NetworkAdd(config::network_from_json(&json).unwrap())).unwrap();
    assert_eq!(desired.check(&Change::NetworkRemove { name: "a".into() }, None).unwrap_err().code, ErrorCode::Busy);
    let back = routing("network = \"a\"\npeer = \"b\"");
    desired.check(&back, None).unwrap();
    desired.commit(&back).unwrap();
    assert_eq!(Desired::load(networked(folder.path())).unwrap().site(), desired.site());
    assert_eq!(desired.check(&Change::NetworkRemove { name: "b".into() }, None).unwrap_err().code, ErrorCode::Busy);
    assert_eq!(desired.check(&routing("network = \"x\""), None).unwrap_err().code, ErrorCode::NotFound);
}

fn endpoint(address: &str, host: &str) -> config::Endpoint {
    let last = address.rsplit('.').next().unwrap();
    let mac = format!("02:5d:00:00:00:{last:0>2}");
    config::endpoint_from_json(&serde_json::json!({"address": address, "mac": mac, "host": host})).unwrap()
}

fn members(network: &str, add: &[(&str, &str)], remove: &[&str]) -> Change {
    Change::NetworkEndpoints(EndpointChange {
        network: network.to_owned(),
        add: add.iter().map(|(address, host)| endpoint(address, host)).collect(),
        remove: remove.iter().map(|address| address.parse().unwrap()).collect(),
    })
}

fn networked(folder: &Path) -> Site {
    let text = r#"
        [node]
        underlay = { interface = "eth0", address = "192.0.2.1" }
        [[network]]
        name = "a"
        vni  = 1
        cidr = "10.0.0.0/16"
        [[network.endpoint]]
        address = "10.0.0.2"
        mac     = "02:5d:00:00:00:02"
        host    = "192.0.2.2"
        [[network.endpoint]]
        address = "10.0.0.3"
        mac     = "02:5d:00:00:00:03"
        host    = "192.0.2.2"
        [[device]]
        name = "d"
        tap  = { network = "a", address = "10.0.0.4", interface = "t0" }
    "#;
    let loaded = config::parse(text, "site.toml", folder, None);
    let mut site = loaded.site.unwrap_or_else(|| panic!("{:?}", loaded.report));
    site.node.state_directory = folder.join("state");
    site
}

#[test]
fn networks_and_who_is_in_them_survive_the_supervisor() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(networked(folder.path())).unwrap();
    let made = config::network_from_json(&serde_json::json!({"name": "b", "vni": 2, "cidr": "10.0.0.0/16"})).unwrap();
    let changes = [
        Change::NetworkAdd(made),
        members("b", &[("10.0.0.5", "192.0.2.2"), ("10.0.0.6", "192.0.2.2")], &[]),
        members("b", &[("10.0.0.5", "192.0.2.3")], &["10.0.0.5", "10.0.0.6"]),
        members("a", &[("10.0.0.2", "192.0.2.3"), ("10.0.0.7", "192.0.2.3")], &["10.0.0.2", "10.0.0.3"]),
        members("a", &[("10.0.0.7", "192.0.2.4")], &["10.0.0.7"]),
    ];
    for change in &changes {
        desired.check(change, None).unwrap();
        desired.commit(change).unwrap();
        let again = Desired::load(networked(folder.path())).unwrap();
        assert_eq!(again.site(), desired.site(), "after {change:?}");
    }
    let hosts = |network: &str| -> Vec<String> {
        let network = desired.site().network(network).unwrap();
        network.endpoints.iter().map(|it| format!("{} on {}", it.addresses[0], it.host)).collect()
    };
    assert_eq!(hosts("a"), ["10.0.0.2 on 192.0.2.3", "10.0.0.7 on 192.0.2.4"]);
    assert_eq!(hosts("b"), ["10.0.0.5 on 192.0.2.3"]);
    desired.commit(&Change::NetworkRemove { name: "b".into() }).unwrap();
    desired.commit(&Change::DeviceRemove { name: "d".into() }).unwrap();
    desired.commit(&Change::NetworkRemove { name: "a".into() }).unwrap();
    assert!(Desired::load(networked(folder.path())).unwrap().site().networks.is_empty());
}

#[test]
fn what_devices_are_put_into_and_what_is_loaded_survives_the_supervisor() {
    let folder = tempfile::tempdir().unwrap();
    let site = || {
        let mut site = networked(folder.path());
        let policy =
            serde_json::json!({"network": "a", "security-group": [{"name": "web"}], "acl": [{"name": "edge"}]});
        apply(&mut site, &Change::NetworkPolicy(config::policies_from_json(&policy).unwrap()));
        site.node.tables.endpoints = 6;
        site
    };
    let mut desired = Desired::load(site()).unwrap();
    let set = |groups: Option<&[&str]>, acl: Option<Option<&str>>| {
        Change::DeviceSet(DeviceChange {
            name: "d".into(),
            security_groups: groups.map(|groups| groups.iter().map(|name| (*name).to_owned()).collect()),
            acl: acl.map(|name| name.map(str::to_owned)),
            ..DeviceChange::default()
        })
    };
    assert_eq!(desired.check(&set(Some(&["none"]), None), None).unwrap_err().code, ErrorCode::Refused);
    let networks = BTreeMap::from([("a".to_owned(), softdpu_api::NetworkEntries { endpoints: 3, routes: 0 })]);
    let found = LoadResult { endpoints: 3, networks, ..LoadResult::default() };
    let load = Change::NetworkLoad(LoadFile { path: "/f".into() });
    for change in [set(Some(&["web"]), None), set(None, Some(Some("edge"))), load, set(Some(&[]), None)] {
        desired.check(&change, None).unwrap();
        match change {
            Change::NetworkLoad(_) => desired.commit_load("loaded-1.csv", &found).unwrap(),
            _ => desired.commit(&change).unwrap(),
        }
        let again = Desired::load(site()).unwrap();
        assert_eq!((again.site(), again.loaded()), (desired.site(), desired.loaded()), "after {change:?}");
    }
    assert_eq!(desired.loaded(), Some("loaded-1.csv"));
    let port = desired.site().device("d").and_then(Device::port).unwrap();
    assert_eq!((port.security_groups.len(), port.acl.as_deref()), (0, Some("edge")));
    // Two of the site file and three that are loaded: there is room for one.
    desired.check(&members("a", &[("10.0.0.7", "192.0.2.3")], &[]), None).unwrap();
    let two = members("a", &[("10.0.0.7", "192.0.2.3"), ("10.0.0.8", "192.0.2.3")], &[]);
    let full = desired.check(&two, None).unwrap_err().message;
    assert_eq!(full, "add[1], 10.0.0.8: the table of endpoints is full: it has room for 6, and 7 are wanted");
    desired.commit(&Change::DeviceRemove { name: "d".into() }).unwrap();
    assert_eq!(desired.check(&Change::NetworkRemove { name: "a".into() }, None).unwrap_err().code, ErrorCode::Busy);
}

#[test]
fn functions_and_who_has_them_survive_the_supervisor() {
    let folder = tempfile::tempdir().unwrap();
    let function = |name: &str, ports: u16| {
        let rule = json!({"priority": 1, "action": "allow", "protocol": "tcp", "ports": ports});
        config::function_from_json(&json!({"name": name, "firewall": {"rule": [rule]}})).unwrap()
    };
    let site = || {
        let mut site = networked(folder.path());
        site.functions.push(function("guard", 22));
        site
    };
    let mut desired = Desired::load(site()).unwrap();
    let add = |name: &str, ports| Change::FunctionAdd(function(name, ports));
    let set = |name: &str, ports| {
        let config::Function { name, kind, .. } = function(name, ports);
        Change::FunctionSet(FunctionChange { name, kind })
    };
    let remove = |name: &str| Change::FunctionRemove { name: name.into() };
    let give = |device: &str, names: &[&str]| {
        let functions = Some(names.iter().map(|name| (*name).to_owned()).collect());
        Change::DeviceSet(DeviceChange { name: device.into(), functions, ..DeviceChange::default() })
    };
    let refused = |desired: &Desired, change: &Change| {
        let error = desired.check(change, None).unwrap_err();
        (error.code, error.to_string())
    };
    for change in [
        add("flows", 80),
        give("d", &["guard", "flows"]),
        set("guard", 443),
        set("flows", 81),
        give("d", &["flows"]),
        remove("guard"),
        add("guard", 25),
    ] {
        desired.check(&change, None).unwrap_or_else(|error| panic!("{change:?}: {error}"));
        desired.commit(&change).unwrap();
        let again = Desired::load(site()).unwrap();
        assert_eq!(again.site(), desired.site(), "after {change:?}");
    }
    assert_eq!(desired.site().function("flows"), Some(&function("flows", 81)));
    assert_eq!(desired.site().function("guard"), Some(&function("guard", 25)));

    let monitor = json!({"name": "guard", "monitor": {"collector": "192.0.2.9:4739"}});
    let monitor = Change::FunctionSet(config::function_change_from_json(&monitor).unwrap());
    let nine: Vec<String> = (0..9).map(|number| format!("f{number}")).collect();
    for (change, code, words) in [
        (add("flows", 1), ErrorCode::Exists, "there is a function called \"flows\" already"),
        (set("flow", 1), ErrorCode::NotFound, "there is no function called \"flow\""),
        (remove("flow"), ErrorCode::NotFound, "there is no function called \"flow\""),
        (remove("flows"), ErrorCode::Busy, "in use by d (take it from them by `device set --functions` first)"),
        (monitor, ErrorCode::Refused, "function \"guard\" is of kind `firewall`, not `monitor`"),
        (give("e", &["flows"]), ErrorCode::NotFound, "there is no device called \"e\""),
        (give("d", &["flaws"]), ErrorCode::Refused, "there is no function `flaws`"),
        (give("d", &["flows", "flows"]), ErrorCode::Refused, "function `flows` is named twice"),
        (give("d", &nine.iter().map(String::as_str).collect::<Vec<_>>()), ErrorCode::Refused, "at most 8"),
    ] {
        let (found, message) = refused(&desired, &change);
        assert!(found == code && message.contains(words), "{change:?}: {message}");
    }
    for number in 0..62 {
        desired.commit(&add(&format!("f{number}"), 1)).unwrap();
    }
    let (code, message) = refused(&desired, &add("f62", 1));
    assert!(code == ErrorCode::Refused && message.contains("too many functions") && message.contains("at most 64"));
}

/// What is found in a file of so many guests of a network.
fn found(network: &str, endpoints: u64) -> LoadResult {
    let networks = BTreeMap::from([(network.to_owned(), softdpu_api::NetworkEntries { endpoints, routes: 0 })]);
    LoadResult { endpoints, networks, ..LoadResult::default() }
}

#[test]
fn endpoints_that_go_make_room_once_each_and_new_networks_need_room_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = networked(folder.path());
    site.node.tables.endpoints = 5;
    // One guest has two addresses.
    site.networks[0].endpoints[0].addresses.push("10.0.1.2".parse().unwrap());
    let mut desired = Desired::load(site).unwrap();
    desired.commit_load("loaded-1.csv", &found("a", 3)).unwrap();
    let refused = |change: &Change| desired.check(change, None).unwrap_err();
    let two = [("10.0.0.7", "192.0.2.3"), ("10.0.0.8", "192.0.2.3")];
    let full = "add[1], 10.0.0.8: the table of endpoints is full: it has room for 5, and 6 are wanted";
    desired.check(&members("a", &two[..1], &["10.0.0.2"]), None).unwrap();
    desired.check(&members("a", &two, &["10.0.0.2", "10.0.0.3"]), None).unwrap();
    assert_eq!(refused(&members("a", &two, &["10.0.0.3", "10.0.0.3"])).message, full);
    assert_eq!(refused(&members("a", &two, &["10.0.0.2", "10.0.1.2"])).message, full);
    let guest = json!({"address": "10.0.0.9", "mac": "02:5d:00:00:00:09", "host": "192.0.2.2"});
    let network = |guests: Value| {
        let network = json!({"name": "b", "vni": 2, "cidr": ["10.0.0.0/16"], "endpoint": guests});
        Change::NetworkAdd(config::network_from_json(&network).unwrap())
    };
    desired.check(&network(json!([])), None).unwrap();
    let full = "endpoint[0], 10.0.0.9: the table of endpoints is full: it has room for 5, and 6 are wanted";
    assert_eq!(refused(&network(json!([guest]))).message, full);
}

#[test]
fn routes_have_room_beside_loaded_ones_or_the_command_and_the_start_say_which_table_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let site = |routes: u32, own: usize| {
        let mut site = networked(folder.path());
        site.node.tables.routes = routes;
        let change = json!({"network": "a", "route": routed(own)});
        apply(&mut site, &Change::NetworkRouting(config::routings_from_json(&change).unwrap()));
        site
    };
    let mut desired = Desired::load(site(5, 1)).unwrap();
    let networks = BTreeMap::from([("a".to_owned(), softdpu_api::NetworkEntries { endpoints: 0, routes: 3 })]);
    let found = LoadResult { routes: 3, networks, ..LoadResult::default() };
    desired.commit_load("loaded-1.csv", &found).unwrap();
    let routing = |own: usize| {
        let change = json!({"network": "a", "route": routed(own)});
        Change::NetworkRouting(config::routings_from_json(&change).unwrap())
    };
    desired.check(&routing(2), None).unwrap();
    let error = desired.check(&routing(3), None).unwrap_err();
    let full = "network[0].route[2]: the table of routes is full: it has room for 5, and 6 are wanted";
    assert!(error.message.starts_with(full) && error.message.contains("set `routes` in node.tables"), "{error}");
    // The site file may say so as well.
    assert!(Desired::load(site(4, 1)).is_ok());
    let error = Desired::load(site(3, 1)).unwrap_err().to_string();
    assert!(error.contains("the table of routes is full: it has room for 3, and 4 are wanted"), "{error}");
}

/// So many routes of a network.
fn routed(count: usize) -> Value {
    (0..count).map(|at| json!({"prefix": format!("172.16.{at}.0/24"), "host": "192.0.2.2"})).collect()
}

#[test]
fn a_site_file_without_a_network_of_loaded_entries_is_a_contradiction() {
    let folder = tempfile::tempdir().unwrap();
    let site = || {
        let mut site = networked(folder.path());
        site.networks.push(config::Network {
            name: "b".into(),
            vni: config::Vni::new(2).unwrap(),
            ..site.networks[0].clone()
        });
        site.networks[1].endpoints.clear();
        site
    };
    let mut desired = Desired::load(site()).unwrap();
    desired.commit_load("loaded-1.csv", &found("b", 3)).unwrap();
    assert_eq!(Desired::load(site()).unwrap().loaded(), Some("loaded-1.csv"));
    let error = Desired::load(networked(folder.path())).unwrap_err();
    assert!(matches!(error, StateError::Contradiction { .. }), "{error}");
    let said = "there is no network \"b\", of which 3 endpoints and 0 routes are loaded";
    assert!(error.to_string().contains(said), "{error}");
}

#[test]
fn of_a_change_of_endpoints_all_is_made_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let desired = Desired::load(networked(folder.path())).unwrap();
    let refused = |change: &Change| desired.check(change, None).unwrap_err();
    let unknown = refused(&members("a", &[("10.0.0.9", "192.0.2.2")], &["10.0.0.2", "10.0.0.8"]));
    assert!(unknown.code == ErrorCode::NotFound && unknown.message.starts_with("remove[1]: "), "{unknown}");
    assert_eq!(refused(&members("x", &[], &[])).code, ErrorCode::NotFound);
    // A second one of an address, an address of a device, one outside, one on this host.
    for (address, host) in
        [("10.0.0.2", "192.0.2.2"), ("10.0.0.4", "192.0.2.2"), ("10.1.0.2", "192.0.2.2"), ("10.0.0.9", "192.0.2.1")]
    {
        let error = refused(&members("a", &[("10.0.0.8", "192.0.2.2"), (address, host)], &[]));
        assert_eq!(error.code, ErrorCode::Refused, "{address} on {host}: {error}");
    }
    assert_eq!(refused(&Change::NetworkRemove { name: "a".into() }).code, ErrorCode::Busy);
    assert_eq!(refused(&Change::NetworkRemove { name: "x".into() }).code, ErrorCode::NotFound);
}

#[test]
fn what_was_made_and_removed_again_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(site(folder.path())).unwrap();
    desired.commit(&Change::VolumeCreate(volume("b"))).unwrap();
    desired.commit(&Change::VolumeDelete { name: "b".into() }).unwrap();
    assert_eq!(desired.overlay, Overlay::default());
}

#[test]
fn an_endpoint_that_the_site_file_never_had_leaves_nothing_behind_when_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(networked(folder.path())).unwrap();
    desired.commit(&members("a", &[("10.0.0.7", "192.0.2.3")], &[])).unwrap();
    desired.commit(&members("a", &[("10.0.0.7", "192.0.2.4")], &["10.0.0.7"])).unwrap();
    desired.commit(&members("a", &[], &["10.0.0.7"])).unwrap();
    assert_eq!(desired.overlay, Overlay::default());

    // One of the site file's that moved and went stays gone.
    desired.commit(&members("a", &[("10.0.0.2", "192.0.2.3")], &["10.0.0.2"])).unwrap();
    desired.commit(&members("a", &[], &["10.0.0.2"])).unwrap();
    let again = Desired::load(networked(folder.path())).unwrap();
    let addresses = |desired: &Desired| -> Vec<IpAddr> {
        let network = desired.site().network("a").unwrap();
        network.endpoints.iter().flat_map(|endpoint| endpoint.addresses.clone()).collect()
    };
    assert_eq!(addresses(&again), ["10.0.0.3".parse::<IpAddr>().unwrap()]);
    assert_eq!(addresses(&again), addresses(&desired));
}

#[test]
fn what_a_tenant_may_do_survives_the_supervisor() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(site(folder.path())).unwrap();
    let set = |weight, guarantee| {
        Change::TenantSet(TenantChange {
            name: "default".into(),
            weight,
            class: None,
            guarantee,
            limits: None,
            meter: None,
        })
    };
    for change in [set(Some(7), None), set(None, Some(config::Percent(250)))] {
        desired.check(&change, None).unwrap();
        desired.commit(&change).unwrap();
    }
    let again = Desired::load(site(folder.path())).unwrap();
    assert_eq!(again.site(), desired.site());
    let tenant = again.site().tenant("default").unwrap();
    assert_eq!((tenant.weight, tenant.guarantee), (7, config::Percent(250)));
    let refused = desired.check(&set(None, Some(config::Percent(1_000))), None).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Refused, "{refused}");
}

#[test]
fn tenants_come_and_go_and_are_as_they_were_left_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let with_two = || {
        let mut site = site(folder.path());
        site.tenants.extend(["acme", "globex"].map(config::Tenant::called));
        site
    };
    let mut desired = Desired::load(with_two()).unwrap();
    let weight = |name: &str, weight| {
        Change::TenantSet(TenantChange {
            name: name.into(),
            weight: Some(weight),
            class: None,
            guarantee: None,
            limits: None,
            meter: None,
        })
    };
    let of = |name: &str, volume: &str, tenant: &str| config::Device {
        tenant: tenant.into(),
        domain: tenant.into(),
        ..device(name, volume)
    };
    for change in [
        weight("globex", 5),
        Change::TenantRemove { name: "globex".into() },
        // Who comes back begins anew.
        Change::TenantAdd(config::Tenant::called("globex")),
        Change::TenantAdd(config::Tenant { weight: 2, ..config::Tenant::called("initech") }),
        weight("initech", 3),
        Change::VolumeCreate(volume("v")),
        Change::DeviceAdd(of("e", "v", "initech")),
        Change::TenantRemove { name: "acme".into() },
    ] {
        desired.check(&change, None).unwrap_or_else(|error| panic!("{change:?}: {error}"));
        desired.commit(&change).unwrap();
    }
    let again = Desired::load(with_two()).unwrap();
    let weights = |desired: &Desired| {
        let mut weights: Vec<_> = desired.site().tenants.iter().map(|it| (it.name.clone(), it.weight)).collect();
        weights.sort();
        weights
    };
    let expected = [("default", 1), ("globex", 1), ("initech", 3)].map(|(name, weight)| (name.to_owned(), weight));
    assert_eq!((weights(&again), weights(&desired)), (expected.to_vec(), expected.to_vec()));
    let refused = |change: Change| again.check(&change, None).unwrap_err();
    let busy = refused(Change::TenantRemove { name: "initech".into() });
    assert_eq!(busy.code, ErrorCode::Busy);
    assert!(busy.message.contains("device \"e\""), "{busy}");
    assert_eq!(refused(Change::TenantRemove { name: "acme".into() }).code, ErrorCode::NotFound);
    assert_eq!(refused(Change::TenantRemove { name: "default".into() }).code, ErrorCode::Refused);
    assert_eq!(refused(Change::TenantAdd(config::Tenant::called("default"))).code, ErrorCode::Refused);
    assert_eq!(refused(Change::TenantAdd(config::Tenant::called("globex"))).code, ErrorCode::Exists);
    let too_much = config::Tenant { guarantee: config::Percent(950), ..config::Tenant::called("hooli") };
    assert_eq!(refused(Change::TenantAdd(too_much)).code, ErrorCode::Refused);
}

#[test]
fn who_is_made_anew_has_nothing_of_one_that_the_site_file_had() {
    let folder = tempfile::tempdir().unwrap();
    let with_more = || {
        let mut site = site(folder.path());
        site.tenants.push(config::Tenant::called("globex"));
        site.volumes.push(volume("v"));
        site
    };
    let mut desired = Desired::load(with_more()).unwrap();
    let weight = TenantChange {
        name: "globex".into(),
        weight: Some(5),
        class: None,
        guarantee: None,
        limits: None,
        meter: None,
    };
    for change in [Change::TenantSet(weight), Change::VolumeGrow { name: "v".into(), size: Bytes(64 << 20) }] {
        desired.check(&change, None).unwrap();
        desired.commit(&change).unwrap();
    }
    let size = |desired: &Desired| desired.site().volume("v").unwrap().backend.size();
    assert_eq!(size(&desired), Some(Bytes(64 << 20)));
    // The site file has neither any more.
    let mut desired = Desired::load(site(folder.path())).unwrap();
    let globex = config::Tenant { weight: 2, ..config::Tenant::called("globex") };
    for change in [Change::TenantAdd(globex), Change::VolumeCreate(volume("v"))] {
        desired.check(&change, None).unwrap();
        desired.commit(&change).unwrap();
    }
    let again = Desired::load(site(folder.path())).unwrap();
    assert_eq!(again.site().tenant("globex").unwrap().weight, 2);
    assert_eq!(size(&again), volume("v").backend.size());
}

#[test]
fn a_check_tells_of_a_site_that_contradicts_what_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(site(folder.path())).unwrap();
    super::check_kept(site(folder.path())).unwrap();
    desired.commit(&Change::VolumeCreate(volume("v"))).unwrap();
    super::check_kept(site(folder.path())).unwrap();
    let mut contradicts = site(folder.path());
    contradicts.volumes.push(volume("v"));
    let error = super::check_kept(contradicts).unwrap_err().to_string();
    assert!(error.contains("desired.json"), "{error}");
}

#[test]
fn changes_that_contradict_the_site_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let desired = Desired::load(site(folder.path())).unwrap();
    let code = |change: &Change| desired.check(change, None).unwrap_err().code;
    assert_eq!(code(&Change::VolumeCreate(volume("a"))), ErrorCode::Exists);
    assert_eq!(code(&Change::DeviceAdd(device("d", "a"))), ErrorCode::Exists);
    assert_eq!(code(&Change::VolumeGrow { name: "x".into(), size: Bytes(1) }), ErrorCode::NotFound);
    assert_eq!(code(&Change::DeviceRemove { name: "x".into() }), ErrorCode::NotFound);
    assert_eq!(code(&Change::VolumeDelete { name: "a".into() }), ErrorCode::Busy);
    assert_eq!(code(&Change::DeviceAdd(device("e", "missing"))), ErrorCode::Refused);
}

#[test]
fn a_damaged_state_file_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path());
    fs::create_dir_all(&site.node.state_directory).unwrap();
    fs::write(site.node.state_directory.join(FILE), "{").unwrap();
    let error = Desired::load(site).unwrap_err().to_string();
    assert!(error.contains("desired.json"), "{error}");
}

#[test]
fn where_packets_from_tunnels_go_is_there_after_a_restart_and_rules_that_are_not_there_cannot_go() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(site(folder.path())).unwrap();
    let steer = |json: Value| Change::NetworkSteer(config::steering_change_from_json(&json).unwrap());
    for change in [
        json!({ "mode": "auto", "cores": [1], "add": [{ "vni": 5, "core": 1 }, { "vni": 6, "core": 1 }] }),
        json!({ "remove": [{ "vni": 5 }] }),
    ] {
        let change = steer(change);
        desired.check(&change, None).unwrap();
        desired.commit(&change).unwrap();
    }
    let again = Desired::load(site(folder.path())).unwrap();
    assert_eq!(again.site(), desired.site());
    let steering = &again.site().node.steering;
    assert_eq!((steering.mode.word(), &steering.cores[..], steering.rules.len()), ("auto", &[1][..], 1));
    let code = |json| desired.check(&steer(json), None).unwrap_err();
    assert_eq!(code(json!({ "remove": [{ "vni": 5 }] })).code, ErrorCode::NotFound);
    let refused = code(json!({ "add": [{ "vni": 7, "core": 3 }] }));
    assert_eq!(refused.code, ErrorCode::Refused);
    assert!(refused.message.contains("CPU 3 is not one of the data plane's"), "{refused}");
}

#[test]
fn a_site_that_is_told_is_told_whatever_its_members_come_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let member = |last: u8| json!({"host": format!("192.0.2.{last}")});
    let members: Vec<_> = (2..100).map(member).collect();
    let network = json!({"name": "a", "vni": 1, "cidr": ["10.0.0.0/24"], "ecmp": [{"name": "g", "member": members}]});
    let mut site = site(folder.path());
    site.networks.push(config::network_from_json(&network).unwrap());
    let as_long_as_it_is = length(&site);
    let wanted = is_within(&site, as_long_as_it_is).expect_err("its members may be set down");
    assert_eq!(is_within(&site, wanted - 1), Err(wanted));
    assert_eq!(is_within(&site, wanted), Ok(()));
    for last in 2..100 {
        let member = format!("192.0.2.{last}").parse().unwrap();
        let change =
            MemberChange { network: "a".into(), ecmp: "g".into(), member, down: Some(true), weight: Some(1000) };
        change.check().unwrap();
        apply(&mut site, &Change::NetworkMember(change));
        assert_eq!(is_within(&site, wanted), Ok(()), "no change of a member is too much: {last}");
    }
    assert_eq!(length(&site), wanted, "and no more is kept free than that");
}
