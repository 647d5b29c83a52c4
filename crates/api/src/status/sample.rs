//! A node's status with something of everything, for tests.

use std::collections::BTreeMap;

use softdpu_api::ControlPlaneCpus;
use softdpu_api::status::*;

fn functions() -> Vec<FunctionStatus> {
    let rule = |rule: &str, packets| RuleStatus { rule: rule.to_owned(), packets, bytes: packets * 100 };
    let item = |key: &str, weight, error| TopItem { key: key.to_owned(), weight, error };
    let named = |name: &str, kind: &str| FunctionStatus {
        name: name.to_owned(),
        kind: kind.to_owned(),
        devices: vec!["vm1".to_owned()],
        ..FunctionStatus::default()
    };
    let monitor = MonitorStatus {
        collector: "192.0.2.9:4739".to_owned(),
        flows: 12,
        packets: 3000,
        exported: 40,
        ..MonitorStatus::default()
    };
    let items = vec![item("tcp 443", 2048, 512), item("udp 53", 10, 0)];
    let last =
        WindowStatus { top: vec![TopStatus { by: "destination-port".to_owned(), items }], ..WindowStatus::default() };
    let analytics = AnalyticsStatus { rank: "bytes".to_owned(), last: Some(last), ..AnalyticsStatus::default() };
    let firewall = FirewallStatus {
        rules: vec![rule("ingress 10 deny tcp", 7)],
        default: rule("", 5),
        dropped: rule("", 7),
        connections: 3,
        ..FirewallStatus::default()
    };
    vec![
        FunctionStatus { monitor: Some(monitor), ..named("flows", "monitor") },
        FunctionStatus { analytics: Some(analytics), ..named("talkers", "analytics") },
        FunctionStatus { firewall: Some(firewall), ..named("guard", "firewall") },
    ]
}

pub fn sample() -> NodeStatus {
    NodeStatus {
        version: "0.1.0".to_owned(),
        uptime_s: 93_784,
        supervisor_pid: 10,
        data_plane: DataPlaneStatus {
            pid: Some(11),
            state: DataPlaneState::Running,
            version: Some("0.1.0".to_owned()),
            restarts: 2,
            last_exit: Some("killed by SIGKILL".to_owned()),
            time_to_ready_us: Some(12_345),
            first_completion_after_restart_us: Some(20_000),
            upgrade: None,
        },
        supervisor_upgrade: None,
        cores: vec![CoreStatus {
            cpu: 1,
            state: CoreState::Sleeping,
            busy_ns: 250_000_000,
            idle_ns: 750_000_000,
            loops: 1_234_567,
            grants: 45_678,
            wakeups: 7,
            yields: YieldStatus {
                expired: 4,
                preempted: 2,
                wakeups: WakeupCounts { kick: 1, message: 1, back_end: 0, socket: 0, timer: 5 },
                threshold: 256,
                slice_ns: 100_000,
            },
            travelled: 5,
            queues: 2,
            frames: FrameCounts { flow: 1_000, switch: 20, software: 3 },
            paths: PathCounts {
                port: WayCounts { switch: 4, fast: 900, software: 2 },
                tunnel: WayCounts { switch: 5, fast: 100, software: 0 },
                transit: WayCounts::default(),
            },
            flows: FlowTableStatus { known: 17, capacity: 65_536, unkept: 6, ..FlowTableStatus::default() },
            heavy_flows: vec![HeavyFlowStatus {
                device: "acme-vm1-nic".to_owned(),
                network: "acme-vpc".to_owned(),
                vni: Some(5001),
                protocol: "tcp".to_owned(),
                source: "10.0.0.2:4000".to_owned(),
                destination: "[2001:db8::7]:80".to_owned(),
                packets_per_s: 21_000,
                bytes_per_s: 30 << 20,
                share: 874,
                elephant: true,
            }],
        }],
        devices: vec![DeviceStatus {
            name: "acme-vm1-disk".to_owned(),
            tenant: "acme".to_owned(),
            domain: "acme-vm1".to_owned(),
            kind: "virtio-blk".to_owned(),
            state: DeviceState::Broken,
            broken_reason: Some("queue 0: descriptor 7\nloops \x1b[2J".to_owned()),
            volume: Some("acme-root".to_owned()),
            socket: "/run/softdpu/a-very-long-path-that-does-not-fit/acme-vm1-disk.sock".into(),
            peer: Some(Peer { pid: 4711, uid: 64055, gid: 64055 }),
            queues: vec![QueueStatus {
                index: 0,
                core: Some(1),
                size: 256,
                running: true,
                requests: RequestCounts { reads: 5_000, writes: 12, ..RequestCounts::default() },
                read_bytes: 20_480_000,
                inflight: 3,
                stalls: 6,
                stalled_ns: 2_500_000_000,
                ..QueueStatus::default()
            }],
            port: Some(PortStatus {
                network: "acme-vpc".to_owned(),
                counts: PortCounts {
                    dropped_in: BTreeMap::from([("spoofed-mac".to_owned(), 3)]),
                    dropped_out: BTreeMap::from([("no-buffer".to_owned(), 4)]),
                    ..PortCounts::default()
                },
                ..PortStatus::default()
            }),
            features: vec!["VIRTIO_F_VERSION_1".to_owned()],
            protocol_errors: 41,
            demoted: true,
            pause_us: Some(1_500),
            closed_front_ends: Some(ClosedFrontEnds { count: 2, reason: "it is poison".to_owned(), accepts_in_s: 7 }),
        }],
        volumes: vec![VolumeStatus {
            name: "acme-root".to_owned(),
            kind: "nbd".to_owned(),
            state: VolumeState::Recovering,
            size: 20 << 30,
            block_size: 512,
            users: 1,
            errors: 9,
            counters: VolumeErrors { timeout: 2, gone: 7, disconnects: 3, replayed: 64, ..VolumeErrors::default() },
            error: Some("connection refused".to_owned()),
            detail: "nbd://storage1.example.com/\"quoted\\".to_owned(),
            ..VolumeStatus::default()
        }],
        tenants: vec![TenantStatus {
            name: "acme".to_owned(),
            weight: 4,
            served: 5_012,
            cores: vec![TenantOnCore { cpu: 1, served: 5_012, ..TenantOnCore::default() }],
            ..TenantStatus::default()
        }],
        networks: vec![NetworkStatus {
            name: "acme-vpc".to_owned(),
            vni: 5001,
            nat: vec![NatStatus { exit: "10.0.0.254".to_owned(), translations: 12, exhausted: 3 }],
            lookups: vec![
                RouteLookup { family: "ipv4".to_owned(), ..RouteLookup::default() },
                RouteLookup {
                    of: RoutesOf::RouteTable,
                    table: Some("branch".to_owned()),
                    family: "ipv4".to_owned(),
                    by: LookupBy::Lpm,
                    because: Some("10.1.0.0/16 is inside 10.0.0.0/8".to_owned()),
                    overlapping: Some(["10.0.0.0/8", "10.1.0.0/16"].map(str::to_owned)),
                },
            ],
            ..NetworkStatus::default()
        }],
        load_error: Some("the loaded entries:7: there is no network gone".to_owned()),
        unsaved: None,
        underlay: Some(UnderlayStatus {
            interface: "eth7".to_owned(),
            absence: Some(UnderlayAbsence {
                reason: "eth7: no such network interface".to_owned(),
                for_s: 75,
                attempts: 5,
                next_in_s: 14,
            }),
            ..UnderlayStatus::default()
        }),
        functions: functions(),
        traces: vec![
            TraceStatus { id: 3, captured: 12, for_s: 5, ..TraceStatus::default() },
            TraceStatus {
                id: 7,
                ports: vec!["vm1".to_owned(), "vm2".to_owned()],
                filter: Some("icmp or arp".to_owned()),
                captured: 4_200,
                lost: 17,
                for_s: 61,
            },
        ],
        meters: vec![MeterStatus {
            name: "device vm1".to_owned(),
            green: ColourCount { packets: 3, bytes: 300 },
            ..MeterStatus::default()
        }],
        connections: Some(ConnectionStatus { known: 2, capacity: 100, opened: 9, ..ConnectionStatus::default() }),
        taken_over: Some(TakenOverStatus { connections: 2, translations: 1, left: 4, unread: 1, done: true }),
        isolation: Some(IsolationStatus {
            setting: "on".to_owned(),
            user: 65_520,
            capabilities: Vec::new(),
            calls: true,
            missing: Vec::new(),
            refused: BTreeMap::from([("execve".to_owned(), 3)]),
        }),
        control_plane: Some(ControlPlaneStatus {
            cpus: ControlPlaneCpus { cpus: vec![0, 1], own: vec![0] },
            tasks: vec![
                ControlPlaneTaskStatus {
                    name: "backup".to_owned(),
                    cgroup: Some("/sys/fs/cgroup/backup".into()),
                    minimum: 20,
                    state: TaskState::Guaranteed,
                    processes: 2,
                    threads: 9,
                    ran_us: 61_000_000,
                    waited_us: 5_000_000,
                    guaranteed_us: 1_500_000,
                    ..ControlPlaneTaskStatus::default()
                },
                ControlPlaneTaskStatus {
                    name: "make-77".to_owned(),
                    pid: Some(77),
                    minimum: 5,
                    processes: 1,
                    threads: 1,
                    ..ControlPlaneTaskStatus::default()
                },
            ],
        }),
        steering: Some(SteeringStatus {
            mode: "auto".to_owned(),
            cores: vec![SteeringShare { cpu: 1, buckets: 200, handed: 7, taken: 12_000 }],
            staying: 56,
            rules: vec![SteeringRuleStatus {
                what: "udp 10.0.0.2:4000 -> 10.0.0.3:53".to_owned(),
                cpu: 1,
                automatic: true,
                packets: 21_000,
            }],
            moved: 3,
        }),
    }
}
