//! `docs/management-protocol.md` is held to what the daemon reads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use softdpu_api::status::{
    AnalyticsStatus, FirewallStatus, FunctionStatus, MonitorStatus, RuleStatus, TopItem, TopStatus, WindowStatus,
};
use softdpu_api::status::{
    BfdStatus, ClosedFrontEnds, ConnectionStatus, ControlPlaneStatus, ControlPlaneTaskStatus, CoreState, CoreStatus,
    DataPlaneState, DataPlaneStatus, DeviceState, DeviceStatus, EcmpMemberStatus, EcmpStatus, HeavyFlowStatus,
    IsolationStatus, MeterStatus, NatStatus, NetworkStatus, NodeStatus, Peer, PortCounts, PortStatus, QueueStatus,
    RouteLookup, SteeringRuleStatus, SteeringShare, SteeringStatus, TakenOverStatus, TaskState, TenantOnCore,
    TenantStatus, TraceStatus, UnderlayAbsence, UnderlayPath, UnderlayStatus, UpgradeStatus, VolumeState, VolumeStatus,
};
use softdpu_api::{Change, ControlPlaneCpus, ErrorCode, Query, decode_request, methods};
use softdpu_site::{Bytes, BytesPerSecond, TenantLimits};

fn reference() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/management-protocol.md");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_method_is_documented_with_an_example_of_its_own() {
    let text = reference();
    let sections: Vec<(&str, &str)> = text
        .split("\n### `")
        .skip(1)
        .map(|section| {
            let (method, rest) = section.split_once('`').unwrap();
            (method, rest.split("```json\n").nth(1).unwrap().split('\n').next().unwrap())
        })
        .collect();
    let documented: Vec<&str> = sections.iter().map(|(method, _)| *method).collect();
    assert_eq!(documented.iter().copied().collect::<BTreeSet<_>>(), methods().collect());
    for declared in [Query::METHODS, Change::METHODS] {
        let of_these: Vec<&str> = documented.iter().copied().filter(|method| declared.contains(method)).collect();
        assert_eq!(of_these, declared, "once each, and in the same order");
    }
    for (method, example) in sections {
        let (_, request) = decode_request(example.as_bytes(), Path::new("/run/softdpu")).unwrap();
        assert_eq!(request.method(), method);
    }
}

#[test]
fn every_documented_error_code_exists() {
    let text = reference();
    let codes = text.split("| code | meaning |").nth(1).unwrap().split("\n## ").next().unwrap();
    let codes: Vec<&str> =
        codes.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(code, _)| code).collect();
    assert_eq!(codes.len(), 10);
    for code in codes {
        let known = serde_json::from_value::<ErrorCode>(code.into()).unwrap();
        assert!(!matches!(known, ErrorCode::Other(_)), "{code}");
    }
}

/// A status in which nothing is left out. Those members that may be are named, so that one more of them does not
/// compile here.
fn whole() -> NodeStatus {
    let queue = QueueStatus { broken_reason: Some("r".into()), ..QueueStatus::default() };
    let device = DeviceStatus {
        name: "d".into(),
        tenant: "t".into(),
        domain: "g".into(),
        kind: "k".into(),
        state: DeviceState::Running,
        broken_reason: Some("r".into()),
        volume: Some("v".into()),
        socket: "/s".into(),
        peer: Some(Peer { pid: 1, uid: 2, gid: 3 }),
        queues: vec![queue],
        port: Some(PortStatus { counts: PortCounts::default(), ..PortStatus::default() }),
        features: vec!["f".into()],
        protocol_errors: 0,
        demoted: false,
        pause_us: Some(1),
        closed_front_ends: Some(ClosedFrontEnds::default()),
    };
    NodeStatus {
        supervisor_upgrade: Some(UpgradeStatus::default()),
        version: "1".into(),
        uptime_s: 0,
        supervisor_pid: 1,
        data_plane: DataPlaneStatus { upgrade: Some(UpgradeStatus::default()), ..DataPlaneStatus::default() },
        cores: vec![CoreStatus {
            heavy_flows: vec![HeavyFlowStatus { vni: Some(1), ..HeavyFlowStatus::default() }],
            ..CoreStatus::default()
        }],
        devices: vec![device],
        volumes: vec![VolumeStatus {
            error: Some("e".into()),
            encryption: Some("aes".into()),
            ..VolumeStatus::default()
        }],
        tenants: vec![TenantStatus {
            limits: TenantLimits {
                iops: Some(1),
                iops_burst: Some(1),
                bandwidth: Some(BytesPerSecond(1)),
                bandwidth_burst: Some(Bytes(1)),
                packets: Some(1),
                packets_burst: Some(1),
                received_bandwidth: Some(BytesPerSecond(1)),
                received_bandwidth_burst: Some(Bytes(1)),
                received_packets: Some(1),
                received_packets_burst: Some(1),
            },
            cores: vec![TenantOnCore { iops_limit: Some(1), ..TenantOnCore::default() }],
            ..TenantStatus::default()
        }],
        networks: vec![NetworkStatus {
            tenant: Some("t".into()),
            peers: vec!["p".into()],
            pending_peers: vec!["q".into()],
            ecmp: vec![EcmpStatus {
                members: vec![EcmpMemberStatus {
                    zone: Some("z".into()),
                    bfd: Some(BfdStatus::default()),
                    ..EcmpMemberStatus::default()
                }],
                ..EcmpStatus::default()
            }],
            nat: vec![NatStatus::default()],
            lookups: vec![RouteLookup {
                table: Some("t".into()),
                because: Some("b".into()),
                overlapping: Some(["w".into(), "n".into()]),
                ..RouteLookup::default()
            }],
            ..NetworkStatus::default()
        }],
        underlay: Some(UnderlayStatus {
            path: Some(UnderlayPath { mode: Some("m".into()), queues: Some(1), ..UnderlayPath::default() }),
            absence: Some(UnderlayAbsence::default()),
            ..UnderlayStatus::default()
        }),
        load_error: Some("e".into()),
        unsaved: Some(String::new()),
        functions: vec![function()],
        traces: vec![TraceStatus { filter: Some("f".into()), ..TraceStatus::default() }],
        meters: vec![MeterStatus::default()],
        connections: Some(ConnectionStatus::default()),
        taken_over: Some(TakenOverStatus::default()),
        isolation: Some(IsolationStatus {
            setting: "on".to_owned(),
            user: 65_520,
            capabilities: vec!["CAP_NET_RAW".to_owned()],
            calls: true,
            missing: Vec::new(),
            refused: BTreeMap::new(),
        }),
        control_plane: Some(ControlPlaneStatus {
            cpus: ControlPlaneCpus::default(),
            tasks: vec![ControlPlaneTaskStatus {
                name: "t".into(),
                pid: Some(1),
                cgroup: Some("/g".into()),
                minimum: 5,
                state: TaskState::Idle,
                processes: 1,
                threads: 1,
                ran_us: 0,
                waited_us: 0,
                guaranteed_us: 0,
                error: Some("e".into()),
            }],
        }),
        steering: Some(SteeringStatus {
            cores: vec![SteeringShare::default()],
            rules: vec![SteeringRuleStatus::default()],
            ..SteeringStatus::default()
        }),
    }
}

/// A function of every kind at once.
fn function() -> FunctionStatus {
    let rule = || RuleStatus { rule: "r".into(), ..RuleStatus::default() };
    let top = TopStatus { by: "flow".into(), items: vec![TopItem::default()] };
    FunctionStatus {
        tenant: Some("t".into()),
        monitor: Some(MonitorStatus { error: Some("e".into()), ..MonitorStatus::default() }),
        analytics: Some(AnalyticsStatus {
            filter: Some("f".into()),
            last: Some(WindowStatus { top: vec![top], ..WindowStatus::default() }),
            ..AnalyticsStatus::default()
        }),
        firewall: Some(FirewallStatus {
            rules: vec![rule()],
            default: rule(),
            established: rule(),
            refused: rule(),
            no_room: rule(),
            dropped: rule(),
            ..FirewallStatus::default()
        }),
        ..FunctionStatus::default()
    }
}

/// The members of each object in `value`, by the object's place. Objects without members have names of their own
/// choice.
fn members(place: &str, value: &Value, found: &mut BTreeMap<String, BTreeSet<String>>) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            found.insert(place.to_owned(), object.keys().cloned().collect());
            for (key, member) in object {
                members(&if place == "status" { key.clone() } else { format!("{place}.{key}") }, member, found);
            }
        }
        Value::Array(array) => array.iter().for_each(|member| members(&format!("{place}[]"), member, found)),
        _ => {}
    }
}

#[test]
fn every_member_of_status_is_documented_and_every_documented_member_exists() {
    let text = reference();
    let mut documented: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for section in text.split("\n#### ").skip(1) {
        let (places, rest) = section.split_once('\n').unwrap();
        let rows = rest.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
        let keys: BTreeSet<String> = rows.map(|(key, _)| key.to_owned()).collect();
        for place in places.split(", ") {
            documented.insert(place.trim_matches('`').to_owned(), keys.clone());
        }
    }
    let mut found = BTreeMap::new();
    members("status", &serde_json::to_value(whole()).unwrap(), &mut found);
    assert_eq!(documented, found);
}

#[test]
fn every_state_is_documented() {
    let text = reference();
    let row = |place: &str| {
        let section = text.split(&format!("\n#### `{place}`\n")).nth(1).unwrap();
        section.lines().find(|line| line.starts_with("| `state` ")).unwrap().to_owned()
    };
    let states = |place: &str, names: Vec<String>| {
        for name in names {
            assert!(row(place).contains(&format!("`{name}`")), "{place}: {name}");
        }
    };
    states("data_plane", DataPlaneState::ALL.iter().map(ToString::to_string).collect());
    states("cores[]", CoreState::ALL.iter().map(ToString::to_string).collect());
    states("devices[]", DeviceState::ALL.iter().map(ToString::to_string).collect());
    states("volumes[]", VolumeState::ALL.iter().map(ToString::to_string).collect());
}
