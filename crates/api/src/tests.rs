//! The protocol from both ends.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use softdpu_site::{
    Bytes, DeviceChange, MemberChange, NetworkPart, device_from_json, endpoint_from_json, function_change_from_json,
    function_from_json, nats_from_json, network_from_json, policies_from_json, routings_from_json,
    steering_change_from_json, tenant_from_json, volume_from_json,
};

const RUN: &str = "/run/softdpu";

fn decode(line: &str) -> Result<(Id, Request), Rejected> {
    decode_request(line.as_bytes(), Path::new(RUN))
}

fn every_query() -> Vec<Query> {
    let name = || "a".to_owned();
    vec![
        Query::Status,
        Query::VolumeList,
        Query::DeviceList,
        Query::DeviceArgs { name: name() },
        Query::NetworkList,
        Query::FunctionList,
        Query::TenantList,
        Query::ControlPlaneAdd(ControlPlaneTask { name: name(), pid: Some(7), cgroup: None, minimum: 20 }),
        Query::ControlPlaneRemove { name: name() },
        Query::Upgrade(Upgrade { program: "/usr/bin/softdpu".into(), force: true, only: None }),
        Query::Shutdown,
        Query::TracePacket(PacketTrace { ports: vec![name()], tiers: true, ..PacketTrace::default() }),
        Query::TraceExplain(serde_json::from_value(json!({"from": "d", "to": "10.0.0.9"})).unwrap()),
        Query::TraceReplay { port: name() },
    ]
}

fn every_change() -> Vec<Change> {
    let name = || "a".to_owned();
    vec![
        Change::VolumeCreate(volume_from_json(&json!({"name": "v", "memory": {"size": "1 GiB"}})).unwrap()),
        Change::VolumeGrow { name: name(), size: Bytes(2 << 30) },
        Change::VolumeDelete { name: name() },
        Change::DeviceAdd(
            device_from_json(&json!({"name": "d", "virtio-blk": {"volume": "v"}}), Path::new(RUN)).unwrap(),
        ),
        Change::DeviceSet(DeviceChange {
            name: name(),
            security_groups: Some(vec!["web".to_owned()]),
            acl: Some(None),
            meter: Some(None),
            functions: Some(vec!["guard".to_owned()]),
        }),
        Change::DeviceRemove { name: name() },
        Change::NetworkAdd(Box::new(network_from_json(&json!({"name": "n", "vni": 5, "cidr": "10.0.0.0/16"})).unwrap())),
        Change::NetworkRemove { name: name() },
        Change::NetworkEndpoints(EndpointChange {
            network: name(),
            add: vec![
                endpoint_from_json(&json!({"address": "10.0.0.9", "mac": "02:5d:00:00:00:09", "host": "192.0.2.2"}))
                    .unwrap(),
            ],
            remove: vec!["10.0.0.8".parse().unwrap()],
        }),
        Change::NetworkLoad(LoadFile { path: "/srv/guests.csv".into() }),
        Change::NetworkUnload(Unload {
            network: name(),
            addresses: vec!["10.0.0.9".parse().unwrap()],
            prefixes: vec!["10.9.0.0/16".parse().unwrap()],
        }),
        Change::NetworkEntries(EntryChanges {
            network: name(),
            changes: vec![
                EntryEdit {
                    host: Some("192.0.2.3".parse().unwrap()),
                    ..EntryEdit::route(EntryOp::Replace, "10.9.0.0/16".parse().unwrap())
                },
                EntryEdit::guest(EntryOp::Delete, "10.0.0.9".parse().unwrap()),
            ],
        }),
        Change::NetworkPolicy(
            policies_from_json(&json!({
                "network": "n",
                "security-group": [{"name": "web", "rule": [
                    {"direction": "ingress", "protocol": "tcp", "ports": 443},
                    {"direction": "egress", "cidr": "10.0.0.0/8"},
                    {"direction": "egress", "protocol": "udp", "ports": "1-9", "group": "web"},
                ]}],
                "acl": [{"name": "edge", "default": "deny", "rule": [
                    {"priority": 7, "action": "allow", "protocol": "udp", "source": "10.0.0.0/8", "source-ports": "1-1023"},
                ]}],
            }))
            .unwrap(),
        ),
        Change::NetworkNat(
            nats_from_json(&json!({
                "network": "n",
                "nat": [{
                    "exit": "10.0.0.254",
                    "floating": [{"inside": "10.0.0.9", "outside": "203.0.113.9"}],
                    "forward": [{"protocol": "udp", "outside": "203.0.113.1:53", "inside": "10.0.0.3:5353"}],
                    "shared": [{"source": "10.0.0.0/28", "address": "203.0.113.1", "ports-per-guest": 2000}],
                }],
            }))
            .unwrap(),
        ),
        Change::NetworkRouting(
            routings_from_json(
                &json!({"network": [{"name": "n", "peer": ["m"]}, {"name": "m", "peer": ["n"]}]}),
            )
            .unwrap(),
        ),
        Change::NetworkRouting(
            routings_from_json(&json!({
                "network": "n",
                "peer": ["m"],
                "ecmp": [{"name": "far", "member": [
                    {"host": "192.0.2.3", "weight": 2, "zone": "a"}, {"address": "10.0.0.4", "down": true},
                ]}],
                "route": [{"prefix": "172.16.0.0/12", "ecmp": "far"}, {"prefix": "10.9.0.0/16", "host": "192.0.2.3"}],
                "route-table": [{"name": "t", "source": ["10.0.0.0/24"], "route": [
                    {"prefix": "0.0.0.0/0", "address": "10.0.0.4"},
                ]}],
            }))
            .unwrap(),
        ),
        Change::NetworkMember(MemberChange {
            network: name(),
            ecmp: "far".into(),
            member: "192.0.2.3".parse().unwrap(),
            down: Some(true),
            weight: Some(3),
        }),
        Change::FunctionAdd(
            function_from_json(&json!({"name": "flows", "tenant": "t", "monitor": {"collector": "192.0.2.9:4739"}})).unwrap(),
        ),
        Change::FunctionAdd(
            function_from_json(&json!({"name": "top", "analytics": {"filter": "tcp port 80", "by": "flow"}})).unwrap(),
        ),
        Change::FunctionSet(
            function_change_from_json(&json!({"name": "guard", "firewall": {"rule": [
                {"direction": "ingress", "priority": 7, "action": "allow", "protocol": "udp", "ports": "1-9"},
            ]}}))
            .unwrap(),
        ),
        Change::FunctionRemove { name: name() },
        Change::NetworkSteer(
            steering_change_from_json(
                &json!({"mode": "manual", "add": [{"vni": 5, "core": 1}], "remove": [{"vni": 6}]}),
            )
            .unwrap(),
        ),
        Change::TenantAdd(
            tenant_from_json(&json!({"name": "t", "weight": 3, "class": "latency", "limits": {"packets": 9}})).unwrap(),
        ),
        Change::TenantRemove { name: name() },
        Change::TenantSet(softdpu_site::TenantChange {
            name: name(),
            weight: Some(2),
            class: None,
            guarantee: None,
            limits: None,
            meter: Some(None),
        }),
        Change::QueueMove(QueuePlacement { device: name(), queue: 1, core: 2 }),
    ]
}

fn every_request() -> Vec<Request> {
    let files = vec![
        Request::NetworksFile { part: NetworkPart::Policy, path: "/srv/policy.toml".into() },
        Request::NetworksFile { part: NetworkPart::Routing, path: "/srv/routing.toml".into() },
        Request::NetworksFile { part: NetworkPart::Nat, path: "/srv/nat.toml".into() },
    ];
    let (queries, changes) =
        (every_query().into_iter().map(Request::from), every_change().into_iter().map(Request::from));
    queries.chain(changes).chain(files).collect()
}

#[test]
fn every_method_is_among_those_that_are_tried() {
    let tried: BTreeSet<&str> = every_request().iter().map(Request::method).collect();
    assert_eq!(tried, methods().collect());
}

#[test]
fn what_the_processes_say_to_each_other_of_a_change_is_what_a_client_says() {
    for change in every_change() {
        let said = serde_json::to_value(&change).unwrap();
        assert_eq!(said["method"], change.method());
        // Networks are a list on the link; a client may name one alone.
        if !matches!(change, Change::NetworkPolicy(_) | Change::NetworkRouting(_) | Change::NetworkNat(_)) {
            assert_eq!(said["params"], change.parameters());
        }
        assert_eq!(serde_json::from_value::<Change>(said).unwrap(), change);
    }
}

#[test]
fn every_request_is_read_as_it_was_written() {
    for request in every_request() {
        let id = Id::Text("x".to_owned());
        let line = encode_request(&id, &request);
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(decode(line.trim_end()), Ok((id, request)));
    }
}

#[test]
fn what_is_wrong_with_an_endpoint_is_said_with_its_place() {
    let entry = |mac: &str| json!({"address": "10.0.0.9", "mac": mac, "host": "192.0.2.2"});
    let parameters =
        json!({"network": "n", "add": [entry("02:5d:00:00:00:09"), entry("02:5d")], "remove": ["10.0.0.8", "x"]});
    let line = json!({"softdpu": 1, "id": 1, "method": "network.endpoints", "params": parameters}).to_string();
    let error = decode(&line).unwrap_err().error;
    assert_eq!(error.code, ErrorCode::InvalidParams);
    assert!(error.message.contains("add[1]: ") && error.message.contains("remove[1]: "), "{error}");
    assert!(!error.message.contains("add[0]") && !error.message.contains("remove[0]"), "{error}");
    let many: Vec<_> = (0..1000).map(|_| entry("x")).collect();
    let line = json!({"softdpu": 1, "id": 1, "method": "network.endpoints", "params": {"network": "n", "add": many}});
    let error = decode(&line.to_string()).unwrap_err().error;
    assert!(error.message.ends_with("and 990 more") && error.message.len() < 4000, "{error}");
}

#[test]
fn a_request_that_is_none_says_why_and_to_whom() {
    for (line, id, code, message) in [
        ("{", None, ErrorCode::BadRequest, "the line is not JSON"),
        ("[]", None, ErrorCode::BadRequest, "the line is not a JSON object"),
        ("{\"id\":1}", Some(1), ErrorCode::BadRequest, "\"softdpu\":1 is missing"),
        ("{\"softdpu\":2,\"id\":1}", Some(1), ErrorCode::UnsupportedVersion, "this daemon speaks version 1"),
        ("{\"softdpu\":1,\"method\":\"status\"}", None, ErrorCode::BadRequest, "\"id\" is missing"),
        ("{\"softdpu\":1,\"id\":1,\"method\":1}", Some(1), ErrorCode::BadRequest, "\"method\" is missing or not"),
        ("{\"softdpu\":1,\"id\":1,\"method\":\"status\",\"x\":1}", Some(1), ErrorCode::BadRequest, "member \"x\""),
        ("{\"softdpu\":1,\"id\":1,\"method\":\"volum.grow\"}", Some(1), ErrorCode::UnknownMethod, "`volume.grow`"),
        (
            "{\"softdpu\":1,\"id\":1,\"method\":\"volume.grow\",\"params\":[\"a\",\"1 B\"]}",
            Some(1),
            ErrorCode::InvalidParams,
            "not an object",
        ),
        (
            "{\"softdpu\":1,\"id\":1,\"method\":\"volume.grow\",\"params\":{\"name\":\"a\",\"size\":5}}",
            Some(1),
            ErrorCode::InvalidParams,
            "expected a string",
        ),
        (
            "{\"softdpu\":1,\"id\":1,\"method\":\"volume.create\",\"params\":{\"name\":\"a\",\"memroy\":{}}}",
            Some(1),
            ErrorCode::InvalidParams,
            "did you mean `memory`?",
        ),
    ] {
        let rejected = decode(line).unwrap_err();
        assert_eq!((rejected.id, rejected.error.code.clone()), (id.map(Id::Number), code), "{line}");
        assert!(rejected.error.to_string().contains(message), "{line}: {}", rejected.error);
    }
}

/// A daemon that answers the first request of its only connection with `lines`, then hangs up when told to.
fn daemon(lines: Vec<String>, stay: bool) -> (tempfile::TempDir, PathBuf, thread::JoinHandle<String>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = String::new();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        reader.read_line(&mut request).unwrap();
        for line in lines {
            stream.write_all(line.as_bytes()).unwrap();
        }
        if stay {
            // Until the client hangs up.
            let _ = reader.read_line(&mut String::new());
        }
        request
    });
    (folder, path, thread)
}

fn answer(id: u64, outcome: Result<serde_json::Value, ApiError>) -> String {
    encode_response(&Response { id: Some(Id::Number(id)), outcome, more: false })
}

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(20);

#[test]
fn the_client_gives_the_result_of_its_own_request() {
    let (_folder, path, thread) = daemon(vec![answer(99, Ok(json!("late"))), answer(1, Ok(json!({})))], false);
    let mut client = Client::connect(&path, LONG).unwrap();
    assert_eq!(client.call::<Empty>(Query::Shutdown).unwrap(), Empty {});
    let request = thread.join().unwrap();
    assert_eq!(decode(request.trim_end()), Ok((Id::Number(1), Query::Shutdown.into())));
}

#[test]
fn a_refusal_reaches_the_user_with_its_hint() {
    let error = ApiError::new(ErrorCode::Refused, "a volume cannot shrink").hint("make a new one");
    let (_folder, path, thread) = daemon(vec![answer(1, Err(error))], false);
    let mut client = Client::connect(&path, LONG).unwrap();
    let error = client.call::<Empty>(Query::Shutdown).unwrap_err();
    assert_eq!(error.to_string(), "a volume cannot shrink (make a new one)");
    thread.join().unwrap();
}

#[test]
fn an_error_code_of_a_later_release_is_kept_and_shown() {
    let error = json!({ "code": "quota-exceeded", "message": "tenant acme has 64 volumes", "hint": "delete one" });
    let line = format!("{}\n", json!({ "softdpu": 1, "id": 1, "error": error }));
    let (_folder, path, thread) = daemon(vec![line], false);
    let mut client = Client::connect(&path, LONG).unwrap();
    let found = client.call::<Empty>(Query::Shutdown).unwrap_err();
    assert_eq!(found.to_string(), "tenant acme has 64 volumes [quota-exceeded] (delete one)");
    let ClientError::Refused(found) = found else { panic!("{found:?}") };
    assert_eq!(found.code, ErrorCode::Other("quota-exceeded".into()));
    assert_eq!(json!(found), error, "it is passed on as it came");
    thread.join().unwrap();
}

#[test]
fn whatever_is_wrong_with_the_daemon_is_said_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let error = Client::connect(&folder.path().join("none.sock"), SHORT).unwrap_err();
    assert!(error.to_string().contains("is softdpu running?"), "{error}");

    for (lines, stay, patience, expected) in [
        (vec![], true, SHORT, "did not answer status within 0.2 s"),
        (vec![], false, LONG, "closed the connection before it answered status"),
        (vec!["nonsense\n".to_owned()], false, LONG, "cannot be read"),
        (vec!["{\"softdpu\":7,\"id\":1,\"result\":{}}\n".to_owned()], false, LONG, "it has version 7"),
    ] {
        let (_folder, path, thread) = daemon(lines, stay);
        let mut client = Client::connect(&path, patience).unwrap();
        let error = client.status().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        drop(client);
        thread.join().unwrap();
    }
}

proptest! {
    #[test]
    fn arbitrary_lines_never_panic(line in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_request(&line, Path::new(RUN));
        let _ = decode_response(&line);
    }

    #[test]
    fn arbitrary_parameters_never_panic(method in prop::sample::select(vec!["volume.create", "device.add", "queue.move", "network.add", "network.endpoints"]),
                                        key in "[a-z-]{0,8}", value in any::<i64>()) {
        let line = json!({"softdpu": 1, "id": "é", "method": method, "params": {key: value, "name": value}}).to_string();
        prop_assert!(decode_request(line.as_bytes(), Path::new(RUN)).is_err());
    }
}

#[test]
fn a_control_plane_task_is_one_process_or_one_cgroup() {
    let read = |params: serde_json::Value| {
        let line = json!({"softdpu": 1, "id": 1, "method": "control-plane.add", "params": params}).to_string();
        decode_request(line.as_bytes(), Path::new("/run/softdpu")).map_err(|rejected| rejected.error.message)
    };
    let (_, request) = read(json!({"name": "a", "cgroup": "/sys/fs/cgroup/a"})).unwrap();
    let cgroup = Some("/sys/fs/cgroup/a".into());
    let task = ControlPlaneTask { name: "a".into(), pid: None, cgroup, minimum: ControlPlaneTask::MINIMUM };
    assert_eq!(request, Query::ControlPlaneAdd(task).into());
    for (params, why) in [
        (json!({"name": "a"}), "a task is either a \"pid\" or a \"cgroup\""),
        (json!({"name": "a", "pid": 1, "cgroup": "/g"}), "a task is either a \"pid\" or a \"cgroup\""),
        (json!({"name": "a", "cgroup": "g"}), "\"cgroup\" is g, which is not an absolute path"),
        (json!({"name": "a/b", "pid": 1}), "\"a/b\" is no name: letters, digits, '.', '_' and '-', at most 63"),
        (json!({"name": "a", "pid": 1, "minimum": 1_000_000}), "\"minimum\" is 1000000 %, and 819200 % is the most"),
    ] {
        assert_eq!(read(params).unwrap_err(), format!("control-plane.add: {why}"));
    }
}
