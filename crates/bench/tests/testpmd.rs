//! Two ports of DPDK's testpmd, a vhost-user-net server of another project, carry frames between two guests.
//!
//! Skipped, with a line that says so, where `dpdk-testpmd` is not installed (Debian: `dpdk-dev`).

use std::time::Duration;

use softdpu_bench::net::comparison::{Plan, connect};
use softdpu_bench::net::report::{Route, draw};
use softdpu_bench::net::subject::{NetService, NetSubject, TESTPMD};
use softdpu_frontend::load::Waiting;
use softdpu_frontend::load::frames::{FrameLoad, run};
use softdpu_frontend::{Format, Frames, Station};

/// Long enough for some thousand frames on a busy machine.
const DURATION: Duration = Duration::from_millis(300);

fn load(frames: Frames, waiting: Waiting) -> FrameLoad {
    let warm_up = Duration::from_millis(50);
    FrameLoad {
        frames,
        flows: 8,
        from: Station::A,
        to: Station::B,
        queue_size: 256,
        waiting,
        warm_up,
        duration: DURATION,
        profile: false,
    }
}

/// testpmd, or a line that says that it is missing.
fn testpmd() -> Option<NetSubject> {
    let subject = NetSubject::testpmd();
    if subject.is_none() {
        softdpu_testing::skip("frames beside testpmd", &format!("{TESTPMD} is not installed"));
    }
    subject
}

#[test]
fn frames_of_all_lengths_pass_over_both_formats_with_both_clients() {
    let Some(testpmd) = testpmd() else { return };
    // With as many as have to pass for their mean to say something.
    let frames = [(Frames::Smallest, 0), (Frames::Imix, 20), (Frames::Mtu, 0), (Frames::Tso, 0)];
    let ways = [(Format::Split, Waiting::Polling), (Format::Packed, Waiting::Blocking)];
    for ((frames, least), (format, waiting)) in frames.into_iter().flat_map(|frames| ways.map(|way| (frames, way))) {
        let running =
            testpmd.start(&NetService { queue_size: 256, cpu: 0, frames, route: Route::Guest }, None).unwrap();
        let load = load(frames, waiting);
        let (mut a, mut b) = connect(running.sockets(), &load, format).unwrap();
        let outcome = run(&mut a, &mut b, &load).unwrap();
        assert!(outcome.received.requests > least, "{frames} {format:?} {waiting}: {outcome:?}");
        let mean = outcome.bytes as f64 / outcome.received.requests as f64;
        assert!((mean / frames.mean() - 1.0).abs() < 0.5, "{frames} {format:?} {waiting}: {mean} bytes a frame");
    }
}

#[test]
fn a_comparison_measures_tabulates_and_draws() {
    let Some(testpmd) = testpmd() else { return };
    if std::thread::available_parallelism().map_or(1, |cpus| cpus.get()) < 2 {
        return softdpu_testing::skip("a comparison of frames", "it needs two CPUs");
    }
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan {
        subjects: vec![testpmd],
        routes: vec![Route::Guest, Route::Underlay],
        frames: vec![Frames::Smallest],
        flows: 64,
        formats: vec![Format::Split],
        queue_size: 256,
        clients: vec![Waiting::Polling],
        rounds: 1,
        duration: DURATION,
        client_cpu: 0,
        server_cpu: 1,
    };
    let report = softdpu_bench::net::comparison::run(&plan, |_| {}).unwrap();
    // Without the privilege for network namespaces there is no underlay.
    assert_eq!(report.measurements.len() + report.left_out.len(), 2);
    for measurement in &report.measurements {
        assert!(measurement.rates.median() > 0.0 && measurement.client.is_some(), "{}", measurement.case);
    }
    let plot = folder.path().join("net.svg");
    draw(&report, &plot).unwrap();
    assert!(std::fs::read_to_string(&plot).unwrap().contains("frames received a second"));
}
