//! Networks, their endpoints, routes and loaded entries.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;
use softdpu_api::{EndpointChange, LoadFile, LoadResult};
use softdpu_site::MemberChange;

use super::super::check::{is_within, length};
use super::*;

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
        commit(&mut desired, &change);
        let again = Desired::load(networked(folder.path())).unwrap();
        assert_eq!(again.site(), desired.site(), "after {change:?}");
    }
    let member = |desired: &Desired| desired.site().network("a").unwrap().ecmp[0].members[1].clone();
    assert_eq!((member(&desired).down, member(&desired).weight), (true, 7));
    assert_eq!(desired.check(&set(None, Some(1001)), None).unwrap_err().code, ErrorCode::Refused);
    assert_eq!(desired.check(&set(None, None), None).unwrap_err().code, ErrorCode::Refused);
    // A file says everything anew.
    commit(&mut desired, &routing(group));
    let again = Desired::load(networked(folder.path())).unwrap();
    assert_eq!((member(&again).down, again.site()), (false, desired.site()));
    // A next hop stays, and so does a peer.
    let by = "network = \"a\"\nroute = [{ prefix = \"10.9.0.0/16\", address = \"10.0.0.4\" }]";
    commit(&mut desired, &routing(by));
    assert_eq!(desired.check(&Change::DeviceRemove { name: "d".into() }, None).unwrap_err().code, ErrorCode::Refused);
    let json = serde_json::json!({"name": "b", "vni": 2, "cidr": "10.1.0.0/16", "peer": "a"});
    commit(&mut desired, &Change::NetworkAdd(Box::new(config::network_from_json(&json).unwrap())));
    assert_eq!(desired.check(&Change::NetworkRemove { name: "a".into() }, None).unwrap_err().code, ErrorCode::Busy);
    let back = routing("network = \"a\"\npeer = \"b\"");
    desired.check(&back, None).unwrap();
    commit(&mut desired, &back);
    assert_eq!(Desired::load(networked(folder.path())).unwrap().site(), desired.site());
    assert_eq!(desired.check(&Change::NetworkRemove { name: "b".into() }, None).unwrap_err().code, ErrorCode::Busy);
    assert_eq!(desired.check(&routing("network = \"x\""), None).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn rules_of_translation_survive_the_supervisor_and_keep_their_exit() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(networked(folder.path())).unwrap();
    let nat = |text: &str| {
        Change::from(config::networks_change_from_text(config::NetworkPart::Nat, text, "nat.toml").unwrap())
    };
    let rules = |exit: &str| {
        nat(&format!(
            "network = \"a\"\n[[nat]]\nexit = \"{exit}\"\nshared = [{{ source = \"10.0.0.0/28\", address = \"203.0.113.1\" }}]\n"
        ))
    };
    let error = desired.check(&rules("10.0.0.77"), None).unwrap_err();
    assert!(error.message.contains("no device of this host has the address 10.0.0.77"), "{error}");
    let change = rules("10.0.0.4");
    desired.check(&change, None).unwrap();
    commit(&mut desired, &change);
    let again = Desired::load(networked(folder.path())).unwrap();
    assert_eq!(again.site(), desired.site());
    assert_eq!(again.site().network("a").unwrap().nats[0].exit.to_string(), "10.0.0.4");
    // The exit stays as long as there are rules for it.
    let remove = Change::DeviceRemove { name: "d".into() };
    assert_eq!(desired.check(&remove, None).unwrap_err().code, ErrorCode::Refused);
    commit(&mut desired, &nat("network = \"a\""));
    assert!(Desired::load(networked(folder.path())).unwrap().site().network("a").unwrap().nats.is_empty());
    desired.check(&remove, None).unwrap();
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

#[test]
fn networks_and_their_endpoints_survive_the_supervisor() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(networked(folder.path())).unwrap();
    let made = config::network_from_json(&serde_json::json!({"name": "b", "vni": 2, "cidr": "10.0.0.0/16"})).unwrap();
    let changes = [
        Change::NetworkAdd(Box::new(made)),
        members("b", &[("10.0.0.5", "192.0.2.2"), ("10.0.0.6", "192.0.2.2")], &[]),
        members("b", &[("10.0.0.5", "192.0.2.3")], &["10.0.0.5", "10.0.0.6"]),
        members("a", &[("10.0.0.2", "192.0.2.3"), ("10.0.0.7", "192.0.2.3")], &["10.0.0.2", "10.0.0.3"]),
        members("a", &[("10.0.0.7", "192.0.2.4")], &["10.0.0.7"]),
    ];
    for change in &changes {
        desired.check(change, None).unwrap();
        commit(&mut desired, change);
        let again = Desired::load(networked(folder.path())).unwrap();
        assert_eq!(again.site(), desired.site(), "after {change:?}");
    }
    let hosts = |network: &str| -> Vec<String> {
        let network = desired.site().network(network).unwrap();
        network.endpoints.iter().map(|it| format!("{} on {}", it.addresses[0], it.host)).collect()
    };
    assert_eq!(hosts("a"), ["10.0.0.2 on 192.0.2.3", "10.0.0.7 on 192.0.2.4"]);
    assert_eq!(hosts("b"), ["10.0.0.5 on 192.0.2.3"]);
    commit(&mut desired, &Change::NetworkRemove { name: "b".into() });
    commit(&mut desired, &Change::DeviceRemove { name: "d".into() });
    commit(&mut desired, &Change::NetworkRemove { name: "a".into() });
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
            Change::NetworkLoad(_) => commit_load(&mut desired, "loaded-1.csv", &found),
            _ => commit(&mut desired, &change),
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
    commit(&mut desired, &Change::DeviceRemove { name: "d".into() });
    assert_eq!(desired.check(&Change::NetworkRemove { name: "a".into() }, None).unwrap_err().code, ErrorCode::Busy);
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
    commit_load(&mut desired, "loaded-1.csv", &found("a", 3));
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
        Change::NetworkAdd(Box::new(config::network_from_json(&network).unwrap()))
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
    commit_load(&mut desired, "loaded-1.csv", &found);
    let routing = |own: usize| {
        let change = json!({"network": "a", "route": routed(own)});
        Change::NetworkRouting(config::routings_from_json(&change).unwrap())
    };
    desired.check(&routing(2), None).unwrap();
    let error = desired.check(&routing(3), None).unwrap_err();
    let full = "network `a`, `route[2]`: the table of routes is full: it has room for 5, and 6 are wanted";
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
    commit_load(&mut desired, "loaded-1.csv", &found("b", 3));
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
fn an_endpoint_that_the_site_file_never_had_leaves_nothing_behind_when_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(networked(folder.path())).unwrap();
    commit(&mut desired, &members("a", &[("10.0.0.7", "192.0.2.3")], &[]));
    commit(&mut desired, &members("a", &[("10.0.0.7", "192.0.2.4")], &["10.0.0.7"]));
    commit(&mut desired, &members("a", &[], &["10.0.0.7"]));
    assert_eq!(desired.overlay, Overlay::default());

    // One of the site file's that moved and went stays gone.
    commit(&mut desired, &members("a", &[("10.0.0.2", "192.0.2.3")], &["10.0.0.2"]));
    commit(&mut desired, &members("a", &[], &["10.0.0.2"]));
    let again = Desired::load(networked(folder.path())).unwrap();
    let addresses = |desired: &Desired| -> Vec<IpAddr> {
        let network = desired.site().network("a").unwrap();
        network.endpoints.iter().flat_map(|endpoint| endpoint.addresses.clone()).collect()
    };
    assert_eq!(addresses(&again), ["10.0.0.3".parse::<IpAddr>().unwrap()]);
    assert_eq!(addresses(&again), addresses(&desired));
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
        commit(&mut desired, &change);
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
fn a_site_that_a_data_plane_can_be_sent_can_be_sent_whatever_its_members_come_to_be() {
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
