//! The status as it is shown.

use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use softdpu_api::status::*;

use super::sample::sample;
use super::table::*;
use super::top::Top;

#[test]
fn functions_show_what_they_did_and_which_keys_have_the_most() {
    let text = table(&sample());
    for line in [
        "flows     monitor    vm1        3.0 k     0 B  12 flows, 40 records to 192.0.2.9:4739, 0 lost",
        "guard     firewall   vm1           12  1.2 KiB  7 dropped, 3 connections",
        "talkers  destination-port  tcp 443  2.0 KiB            512 B",
        "guard     ingress 10 deny tcp        7    700 B",
        "acme-vpc  10.0.0.254            12        3",
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
    assert!(lines.next().is_some_and(|line| line.contains("KEY") && line.contains("LESS BY")), "{shown}");
    for (key, has) in [("tcp 443", "2.0 KiB"), ("udp 53", "10 B")] {
        let line = lines.next().unwrap_or_default();
        assert!(["talkers", "destination-port", key, has].iter().all(|word| line.contains(word)), "{line}\n{shown}");
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
fn one_restart_is_not_plural_and_a_long_time_is_in_seconds() {
    let mut status = sample();
    let plane = DataPlaneStatus { pid: Some(7), restarts: 1, last_exit: None, ..status.data_plane.clone() };
    let slow = Some(1_808_700);
    status.data_plane = DataPlaneStatus { time_to_ready_us: slow, first_completion_after_restart_us: slow, ..plane };
    let lines = table(&status);
    let state = status.data_plane.state;
    for line in [&*format!("data plane {state}, pid 7, 1 restart"), "ready after 1.8 s, first completion after 1.8 s"] {
        assert!(lines.lines().any(|shown| shown == line), "{line}\n{lines}");
    }
    let mut top = Top::default();
    top.update(Instant::now(), Ok(status.clone()));
    assert!(screen(&top, 120, 60).contains("(1 restart)"));
    status.data_plane.restarts = 2;
    assert!(table(&status).contains("pid 7, 2 restarts\n"));
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
    assert!(text.contains("taken over: 2 connections, 1 translations, 4 not, 1 files not read\n"), "{text}");
    let metrics = prometheus(&sample());
    for line in [
        "softdpu_meter_packets_total{meter=\"device vm1\",colour=\"green\"} 3\n",
        "softdpu_meter_bytes_total{meter=\"device vm1\",colour=\"green\"} 300\n",
        "softdpu_connections 2\n",
        "softdpu_taken_over_connections 2\n",
        "softdpu_taken_over_translations 1\n",
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
