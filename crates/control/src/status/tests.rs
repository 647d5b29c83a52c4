//! The status as it is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;

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

#[test]
fn functions_show_what_they_did_and_who_has_the_most() {
    let text = table(&sample());
    for line in [
        "flows     monitor    vm1        3.0 k     0 B  12 flows, 40 records to 192.0.2.9:4739, 0 lost",
        "guard     firewall   vm1           12  1.2 KiB  7 dropped, 3 connections",
        "talkers  destination-port  tcp 443  2.0 KiB            512 B",
        "guard     ingress 10 deny tcp        7    700 B",
    ] {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert!(text.lines().any(|shown| words(shown) == words(line)), "{line}\n{text}");
    }
    assert!(text.contains("TOP OF   BY "), "{text}");
    let metrics = prometheus(&sample());
    for (key, weight) in [("tcp 443", 2048), ("udp 53", 10)] {
        let line =
            format!("softdpu_analytics_top{{function=\"talkers\",by=\"destination-port\",key=\"{key}\"}} {weight}\n");
        assert!(metrics.contains(&line), "{line} is missing:\n{metrics}");
    }
    let mut top = Top::default();
    top.update(Instant::now(), Ok(sample()));
    let shown = screen(&top, 120, 60);
    let mut lines = shown.lines().skip_while(|line| !line.contains("TOP OF"));
    assert!(lines.next().is_some_and(|line| line.contains("WHO") && line.contains("LESS BY")), "{shown}");
    for (key, has) in [("tcp 443", "2.0 KiB"), ("udp 53", "10 B")] {
        let line = lines.next().unwrap_or_default();
        assert!(["talkers", "destination-port", key, has].iter().all(|word| line.contains(word)), "{line}\n{shown}");
    }
}

fn sample() -> NodeStatus {
    NodeStatus {
        version: "0.1.0".to_owned(),
        uptime_s: 93_784,
        supervisor_pid: 10,
        data_plane: DataPlaneStatus {
            pid: Some(11),
            state: DataPlaneState::Running,
            restarts: 2,
            last_exit: Some("killed by SIGKILL".to_owned()),
            time_to_ready_us: Some(12_345),
            first_completion_after_restart_us: Some(20_000),
        },
        cores: vec![CoreStatus {
            cpu: 1,
            state: CoreState::Sleeping,
            busy_ns: 250_000_000,
            idle_ns: 750_000_000,
            loops: 1_234_567,
            grants: 45_678,
            wakeups: 7,
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
            counters: softdpu_storage::ErrorCounts {
                timeout: 2,
                gone: 7,
                disconnects: 3,
                replayed: 64,
                ..softdpu_storage::ErrorCounts::default()
            },
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

#[test]
fn an_interfaces_queues_show_their_frames() {
    let mut status = sample();
    let device = &mut status.devices[0];
    device.volume = None;
    let queue = |index| QueueStatus {
        index,
        frames: 4200 + u64::from(index),
        frame_bytes: 3 << 20,
        dropped_frames: 17,
        ..QueueStatus::default()
    };
    device.queues = vec![queue(0), queue(1)];
    let text = table(&status);
    for (name, way) in [("acme-vm1-disk.0", "receive"), ("acme-vm1-disk.1", "transmit")] {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {text}"));
        let shown: Vec<&str> = line.split_whitespace().skip(4).take(6).collect();
        assert_eq!(shown, [way, "4.2", "k", "3.0", "MiB", "17"], "{line}");
    }
    let metrics = prometheus(&status);
    let sample = "softdpu_queue_frames_total{device=\"acme-vm1-disk\",queue=\"1\"} 4201\n";
    assert!(metrics.contains(sample), "{metrics}");
}

#[test]
fn a_queue_that_never_ran_has_no_ring() {
    let mut status = sample();
    status.devices[0].queues =
        vec![QueueStatus::default(), QueueStatus { size: 128, index: 1, ..QueueStatus::default() }];
    let text = table(&status);
    let row = |queue: &str| {
        let line = text.lines().find(|line| line.starts_with(queue)).unwrap_or_else(|| panic!("no {queue}: {text}"));
        line.split_whitespace().skip(1).take(3).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("acme-vm1-disk.0"), "- - stopped");
    assert_eq!(row("acme-vm1-disk.1"), "- split 128");
}

#[test]
fn the_table_says_how_frames_get_to_the_underlay() {
    let path = |backend: &str, mode: Option<&str>, queues| UnderlayPath {
        backend: backend.to_owned(),
        mode: mode.map(str::to_owned),
        queues,
    };
    let text = |path| {
        let underlay = UnderlayStatus { interface: "eth7".to_owned(), path: Some(path), ..UnderlayStatus::default() };
        table(&NodeStatus { underlay: Some(underlay), ..sample() })
    };
    let xdp = "UNDERLAY  BACKEND  MODE       QUEUES\neth7      af-xdp   zero-copy       2\n";
    assert!(text(path("af-xdp", Some("zero-copy"), Some(2))).contains(xdp));
    let packet = "UNDERLAY  BACKEND    MODE  QUEUES\neth7      af-packet  -          -\n";
    assert!(text(path("af-packet", None, None)).contains(packet));
    assert!(!table(&sample()).contains("BACKEND"), "it is away");
}

#[test]
fn the_table_fits_and_says_what_is_broken_first() {
    let text = table(&sample());
    assert!(text.starts_with("PROBLEMS\n  ! volume acme-root is recovering: connection refused\n"), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= TABLE_WIDTH, "{line}");
        assert!(!line.chars().any(char::is_control), "a guest's text reached the terminal: {line:?}");
    }
    assert!(text.contains("device acme-vm1-disk was closed: it is poison; another is accepted in 7 s"), "{text}");
    let away = "the underlay eth7 is away for 1m15s: eth7: no such network interface; tried 5 times, again in 14";
    assert!(text.contains(away), "{text}");
    let not_loaded = "the entries that were loaded by file are not in force: the loaded entries:7: there is no";
    assert!(text.contains(not_loaded), "{text}");
    let traces = "TRACE  PORTS    FILTER       CAPTURED  LOST    FOR\n    3  all      -                  12     0     5s\n    7  vm1 vm2  icmp or arp     4.2 k    17  1m01s\n";
    assert!(text.contains(traces), "{text}");
    let refused = text.lines().position(|line| line.ends_with("REFUSED")).unwrap();
    assert!(text.lines().nth(refused + 1).unwrap().ends_with("  41"), "{text}");
    for shown in ["up 1d02h", "12.3 ms", "25.0%", "acme-vm1-disk", "20 GiB", "killed by SIGKILL", "5.0 k"] {
        assert!(text.contains(shown), "{shown} is missing:\n{text}");
    }
}

#[test]
fn the_list_of_devices_says_where_to_connect() {
    let mut devices = sample().devices;
    devices[0].socket = "/run/softdpu/acme-vm1-disk.sock".into();
    assert_eq!(
        device_table(&devices),
        "DEVICE         STATE   KIND        VOLUME     SOCKET\n\
         acme-vm1-disk  broken  virtio-blk  acme-root  /run/softdpu/acme-vm1-disk.sock\n"
    );
    assert_eq!(device_table(&[]), "");
}

#[test]
fn a_healthy_node_has_no_problems_and_an_empty_one_no_tables() {
    let mut status = NodeStatus::default();
    status.data_plane.state = DataPlaneState::Running;
    assert_eq!(status.problems(), Vec::<String>::new());
    assert_eq!(table(&status).lines().count(), 2, "{}", table(&status));
}

#[test]
fn a_volume_that_waits_for_its_fence_is_a_problem_that_says_what_it_waits_for() {
    let mut status = NodeStatus::default();
    status.data_plane.state = DataPlaneState::Running;
    let volume = |detail: &str| VolumeStatus { name: "v".to_owned(), detail: detail.to_owned(), ..Default::default() };
    status.volumes = vec![volume("its file is locked"), volume("")];
    assert_eq!(status.problems(), ["volume v is not fenced yet: its file is locked"]);
}

#[test]
fn a_table_fits_whatever_its_contents() {
    let mut status = sample();
    let long = "ä".repeat(300);
    status.devices[0].name.clone_from(&long);
    status.devices[0].tenant.clone_from(&long);
    status.volumes[0].detail.clone_from(&long);
    status.version.clone_from(&long);
    status.devices[0].queues[0].read_bytes = u64::MAX;
    status.volumes[0].requests.reads = u64::MAX;
    for line in table(&status).lines() {
        assert!(line.chars().count() <= TABLE_WIDTH, "{line}");
    }
}

#[test]
fn the_status_survives_json() {
    let json = serde_json::to_string(&sample()).unwrap();
    assert_eq!(serde_json::from_str::<NodeStatus>(&json).unwrap(), sample());
}

#[test]
fn states_are_called_the_same_everywhere() {
    fn same<S: serde::Serialize + std::fmt::Display>(all: &[S]) {
        for state in all {
            assert_eq!(serde_json::to_value(state).unwrap(), state.to_string());
        }
    }
    same(DataPlaneState::ALL);
    same(CoreState::ALL);
    same(DeviceState::ALL);
    same(QueueFormat::ALL);
    same(VolumeState::ALL);
}

/// `docs/operations.md` lists every metric, and no other.
#[test]
fn the_metrics_are_documented() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let table = text.split("| metric | labels | meaning |").nth(1).unwrap().split("\n\n").next().unwrap();
    let documented: BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect();
    let metrics: BTreeSet<String> = read_exposition(&prometheus(&sample())).into_keys().collect();
    assert_eq!(documented, metrics);
}

/// A metric's type and its samples by label set.
type Read = (String, BTreeMap<Vec<(String, String)>, f64>);

/// A strict reader of the text exposition format: name → (type, samples by label set).
fn read_exposition(text: &str) -> BTreeMap<String, Read> {
    let mut metrics: BTreeMap<String, Read> = BTreeMap::new();
    let (mut helped, mut current) = (BTreeSet::new(), String::new());
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty() && helped.insert(name.to_owned()), "HELP twice: {line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(helped.contains(name), "TYPE without HELP: {line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(metrics.insert(name.to_owned(), (kind.to_owned(), BTreeMap::new())).is_none(), "twice: {line}");
            current = name.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = match series.split_once('{') {
                Some((name, labels)) => (name, read_labels(labels)),
                None => (series, Vec::new()),
            };
            assert_eq!(name, current, "samples of one metric stand together: {line}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{line}");
            let samples = &mut metrics.get_mut(name).unwrap().1;
            assert!(samples.insert(labels, value.parse().unwrap()).is_none(), "the series is there twice: {line}");
        }
    }
    metrics
}

/// Reads `a="b",c="d\"e"}`.
fn read_labels(mut text: &str) -> Vec<(String, String)> {
    let mut labels = Vec::new();
    loop {
        let (name, rest) = text.split_once("=\"").unwrap();
        let (mut value, mut characters) = (String::new(), rest.char_indices());
        let end = loop {
            match characters.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next().unwrap().1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("unknown escape {c}"),
                }),
                (_, c) => value.push(c),
            }
        };
        labels.push((name.to_owned(), value));
        match &rest[end + 1..] {
            "}" => return labels,
            more => text = more.strip_prefix(',').unwrap(),
        }
    }
}

#[test]
fn the_metrics_are_valid_exposition_and_hold_the_status() {
    let mut status = sample();
    status.tenants[0].name = "quote \" backslash \\ newline \n end".to_owned();
    let metrics = read_exposition(&prometheus(&status));
    let value = |name: &str, labels: &[(&str, &str)]| {
        let labels: Vec<(String, String)> = labels.iter().map(|(l, v)| ((*l).to_owned(), (*v).to_owned())).collect();
        metrics[name].1[&labels]
    };
    let queue = [("device", "acme-vm1-disk"), ("queue", "0"), ("type", "read")];
    assert_eq!(value("softdpu_queue_requests_total", &queue), 5000.0);
    assert_eq!(value("softdpu_core_busy_seconds_total", &[("cpu", "1")]), 0.25);
    assert_eq!(value("softdpu_device_state", &[("device", "acme-vm1-disk"), ("state", "broken")]), 1.0);
    assert_eq!(value("softdpu_device_state", &[("device", "acme-vm1-disk"), ("state", "running")]), 0.0);
    assert_eq!(value("softdpu_device_protocol_errors_total", &[("device", "acme-vm1-disk")]), 41.0);
    assert_eq!(value("softdpu_device_front_ends_closed_total", &[("device", "acme-vm1-disk")]), 2.0);
    let volume = ("volume", "acme-root");
    assert_eq!(value("softdpu_volume_errors_total", &[volume, ("kind", "timeout")]), 2.0);
    assert_eq!(value("softdpu_volume_errors_total", &[volume, ("kind", "gone")]), 7.0);
    assert_eq!(value("softdpu_volume_errors_total", &[volume, ("kind", "no-space")]), 0.0);
    assert_eq!(value("softdpu_volume_disconnects_total", &[volume]), 3.0);
    assert_eq!(value("softdpu_volume_replayed_total", &[volume]), 64.0);
    assert_eq!(value("softdpu_volume_abandoned_total", &[volume]), 0.0);
    assert_eq!(value("softdpu_underlay_up", &[("interface", "eth7")]), 0.0);
    assert_eq!(value("softdpu_tenant_weight", &[("tenant", &status.tenants[0].name)]), 4.0);
    assert!(read_exposition(&prometheus(&NodeStatus::default())).len() >= 4);
}

fn screen(top: &Top, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| top.draw(frame)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn top_shows_what_changed_per_second() {
    let (mut top, start) = (Top::default(), Instant::now());
    assert!(screen(&top, 100, 24).contains("asking softdpu"));
    top.update(start, Ok(sample()));
    assert!(!screen(&top, 100, 24).contains("k/s"), "no rates from one status");

    let mut later = sample();
    later.devices[0].queues[0].requests.reads += 250_000;
    later.devices[0].queues[0].read_bytes += 2 * (512 << 20);
    later.cores[0].busy_ns += 1_500_000_000;
    later.cores[0].idle_ns += 500_000_000;
    top.update(start + Duration::from_secs(2), Ok(later));
    let shown = screen(&top, 100, 24);
    for expected in ["125 k", "512 MiB", "75.0%", "! volume acme-root is recovering", "acme-vm1-disk"] {
        assert!(shown.contains(expected), "{expected} is missing:\n{shown}");
    }
}

#[test]
fn routes_that_are_no_exact_match_are_shown_with_the_reason() {
    let text = table(&sample());
    let line = "acme-vpc  table branch  ipv4    longest prefix  10.1.0.0/16 is inside 10.0.0.0/8\n";
    assert!(text.contains(line), "{text}");
    let json = serde_json::to_value(&sample().networks[0].lookups).unwrap();
    assert_eq!(json[0], serde_json::json!({ "of": "network", "family": "ipv4", "by": "exact" }));
    assert_eq!((&json[1]["by"], &json[1]["of"]), (&"lpm".into(), &"route-table".into()));
}

#[test]
fn datapaths_and_heavy_flows_are_shown_and_exported() {
    let text = table(&sample());
    assert!(
        text.contains("CORE  FRAMES TO  SWITCH ONLY  FAST PATH  SOFTWARE\n1     port                 4        900         2\n1     tunnel               5        100         0\n\n"),
        "{text}"
    );
    let heavy = "1     tcp 10.0.0.2:4000 > [2001:db8::7]:80  acme-vm1-nic     21.0 k  30.0 MiB    87.4 %  elephant\n";
    assert!(text.contains(heavy), "{text}");
    let metrics = prometheus(&sample());
    for line in [
        "softdpu_core_datapath_frames_total{cpu=\"1\",to=\"port\",datapath=\"fast\"} 900\n",
        "softdpu_core_flows_unkept_total{cpu=\"1\"} 6\n",
        "softdpu_core_elephants{cpu=\"1\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line} is missing:\n{metrics}");
    }
    let mut top = Top::default();
    top.update(Instant::now(), Ok(sample()));
    assert!(screen(&top, 120, 40).contains("tcp 10.0.0.2:4000 > [2001:db8::7]:80"), "{}", screen(&top, 120, 40));
}

#[test]
fn where_packets_from_tunnels_are_worked_on_is_shown_and_exported() {
    let text = table(&sample());
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    for line in ["1 auto 200/256 7 12.0 k", "1 udp 10.0.0.2:4000 -> 10.0.0.3:53 elephant 21.0 k"] {
        assert!(text.lines().any(|shown| words(shown) == words(line)), "{line}\n{text}");
    }
    let metrics = prometheus(&sample());
    for line in [
        "softdpu_steering_buckets{cpu=\"1\"} 200\n",
        "softdpu_steering_taken_total{cpu=\"1\"} 12000\n",
        "softdpu_steering_rule_packets_total{cpu=\"1\",match=\"udp 10.0.0.2:4000 -> 10.0.0.3:53\",by=\"elephant\"} 21000\n",
        "softdpu_steering_moved_total 3\n",
    ] {
        assert!(metrics.contains(line), "{line} is missing:\n{metrics}");
    }
}

#[test]
fn colours_of_meters_are_shown_and_exported() {
    let text = table(&sample());
    assert!(
        text.contains(
            "METER       GREEN  BYTES  YELLOW  BYTES  RED  BYTES\ndevice vm1      3  300 B       0    0 B    0    0 B\n"
        ),
        "{text}"
    );
    assert!(
        text.contains("CONNECTIONS  ROOM FOR  OPENED  ENDED  PACKETS REFUSED\n          2       100       9"),
        "{text}"
    );
    let metrics = prometheus(&sample());
    for line in [
        "softdpu_meter_packets_total{meter=\"device vm1\",colour=\"green\"} 3\n",
        "softdpu_meter_bytes_total{meter=\"device vm1\",colour=\"green\"} 300\n",
        "softdpu_connections 2\n",
    ] {
        assert!(metrics.contains(line), "{line} is missing:\n{metrics}");
    }
    let (mut top, start) = (Top::default(), Instant::now());
    top.update(start, Ok(sample()));
    let mut later = sample();
    later.meters[0].red = ColourCount { packets: 246_000, bytes: 3 << 20 };
    top.update(start + Duration::from_secs(2), Ok(later));
    let shown = screen(&top, 100, 40);
    assert!(shown.contains("123 k") && shown.contains("1.5 MiB") && shown.contains("device vm1"), "{shown}");
}

#[test]
fn top_shows_what_passes_ports_and_why_frames_are_dropped() {
    let (mut top, start) = (Top::default(), Instant::now());
    top.update(start, Ok(sample()));
    let mut later = sample();
    let counts = &mut later.devices[0].port.as_mut().unwrap().counts;
    counts.frames_in += 246_000;
    counts.bytes_out += 3 << 20;
    counts.dropped_in.insert("firewall".to_owned(), 10);
    *counts.dropped_out.get_mut("no-buffer").unwrap() += 2_000;
    later.underlay.as_mut().unwrap().counts.frames_out += 18_000;
    top.update(start + Duration::from_secs(2), Ok(later));
    let shown = screen(&top, 120, 50);
    let line = |of: &str| shown.lines().rfind(|line| line.contains(of)).unwrap_or_else(|| panic!("{of}\n{shown}"));
    let port = line("acme-vpc");
    for expected in ["123 k", "1.5 MiB", "1.0 k", "no-buffer, firewall"] {
        assert!(port.contains(expected), "{expected} is missing:\n{shown}");
    }
    assert!(!port.contains("spoofed-mac"), "nothing was dropped for that meanwhile:\n{shown}");
    let underlay = line("underlay");
    assert!(underlay.contains("9.0 k") && underlay.contains("down") && !underlay.contains("-0"), "{shown}");
}

#[test]
fn top_survives_a_restart_a_lost_daemon_and_a_tiny_terminal() {
    let (mut top, start) = (Top::default(), Instant::now());
    top.update(start, Ok(sample()));
    let mut restarted = sample();
    restarted.devices[0].queues[0].requests.reads = 2_000;
    top.update(start + Duration::from_secs(1), Ok(restarted));
    assert!(screen(&top, 100, 24).contains("2.0 k"), "counted from zero: {}", screen(&top, 100, 24));
    top.update(start + Duration::from_secs(2), Err("nothing listens".to_owned()));
    let shown = screen(&top, 100, 24);
    assert!(shown.contains("! nothing listens") && shown.contains("acme-vm1-disk"), "{shown}");
    for (width, height) in [(1, 1), (20, 3), (300, 100)] {
        screen(&top, width, height);
    }
}
