//! The status as programs read it.

use std::collections::{BTreeMap, BTreeSet};

use super::sample::sample;
use super::*;

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
    assert_eq!(value("softdpu_device_demoted", &[("device", "acme-vm1-disk")]), 1.0);
    let queue = [("device", "acme-vm1-disk"), ("queue", "0")];
    assert_eq!(value("softdpu_queue_stalls_total", &queue), 6.0);
    assert_eq!(value("softdpu_queue_stall_seconds_total", &queue), 2.5);
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
