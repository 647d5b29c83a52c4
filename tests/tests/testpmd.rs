//! DPDK's testpmd as the driver of softdpu's interfaces: another virtio driver than Linux', with split and packed
//! queues, one and several pairs, that is killed and started again, and whose data plane is killed while packets flow.
//!
//! Two of them throw packets back and forth (`5tswap`), so that one that is lost, doubled or changed shows in the
//! counts of both and of softdpu. Their sources vary, which spreads them over all queue pairs; all of them are the
//! interface's own.

#![allow(missing_docs)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use softdpu_tests::{Context, Counts, Daemon, Failure, Lab, Testpmd, TestpmdPort, skip, wait_until};

const WAIT: Duration = Duration::from_secs(60);
/// How often a rate is measured, before what it has to show has failed to: the machine may be busy with something else.
const TRIES: usize = 4;

/// Queue pairs of drivers that are killed, or whose data plane is.
const PAIRS: [usize; 2] = [1, 4];

/// How many packets have to pass for a step to be believed.
const ENOUGH: u64 = 1000;

/// The interfaces: name, MAC address.
const A: (&str, &str) = ("a", "02:5d:00:00:00:0a");
const B: (&str, &str) = ("b", "02:5d:00:00:00:0b");

/// Whether the machine has testpmd. Says so loudly where not.
fn possible(test: &str) -> bool {
    if !Testpmd::is_installed() {
        skip(test, "dpdk-testpmd is not installed (Debian: dpdk-dev)");
    }
    Testpmd::is_installed()
}

/// Two interfaces with four queue pairs. The first has all addresses that testpmd sends from with
/// `--txonly-multi-flow`: the destination's, with its third byte varied, plus the number of the thread.
fn site() -> String {
    site_with("")
}

/// The same, with more settings of the first interface.
fn site_with(more: &str) -> String {
    let last = 10 + Testpmd::LCORE;
    let sources: Vec<_> = (0..=255).map(|flow| format!("\"10.0.{flow}.{last}\"")).collect();
    let mut site = String::from("[node]\ndataplane = { cores = [0] }\n");
    site += "\n[[network]]\nname = \"acme\"\nvni = 5001\ncidr = \"10.0.0.0/16\"\n";
    for ((name, mac), addresses, more) in [(A, sources.join(", "), more), (B, "\"10.0.0.10\"".to_owned(), "")] {
        site += &format!("\n[[device]]\nname = \"{name}\"\n");
        site += &format!("virtio-net = {{ network = \"acme\", address = [{addresses}], {more}");
        site += &format!("mac = \"{mac}\", queues = 4, socket = \"{name}.sock\" }}\n");
    }
    site
}

/// How a driver uses its interface.
#[derive(Clone, Copy)]
struct Way {
    queues: usize,
    /// Options of the virtio-user device.
    options: &'static str,
    /// More of testpmd's arguments.
    arguments: &'static [&'static str],
}

fn start(lab: &Lab, (name, mac): (&str, &str), way: Way, forward: &str) -> Result<Testpmd, Failure> {
    let (socket, peer): (PathBuf, _) = (lab.path().join(format!("{name}.sock")), if mac == A.1 { B.1 } else { A.1 });
    let forward = format!("--forward-mode={forward}");
    let mut arguments = vec![forward.as_str(), "--tx-ip=10.0.0.11,10.0.0.10", "--txonly-multi-flow"];
    arguments.extend(way.arguments);
    let port =
        TestpmdPort { socket: &socket, mac, peer, queues: way.queues, options: way.options, arguments: &arguments };
    Testpmd::start(lab.path(), name, &port)
}

/// An interface in `status`.
fn device(daemon: &Daemon, (name, _): (&str, &str)) -> Result<Value, Failure> {
    let status = daemon.status()?;
    let devices = status["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = devices.iter().find(|device| device["name"] == name);
    found.cloned().ok_or_else(|| Failure::new(format!("status has no device {name}: {status}")))
}

/// Waits until a port has received `more` packets than `before`, by each of its queues at least one.
fn receives(what: &str, testpmd: &mut Testpmd, before: &Counts, more: u64) -> Result<Counts, Failure> {
    wait_until(what, WAIT, || {
        let now = testpmd.counts()?;
        let all = now.rx.iter().zip(&before.rx).all(|(now, before)| now > before);
        Ok((all && now.received() >= before.received() + more).then_some(now))
    })
}

/// Before a port has counted anything.
fn none(way: Way) -> Counts {
    Counts { rx: vec![0; way.queues], tx: vec![0; way.queues], rx_bytes: 0 }
}

/// Packets go back and forth, and nobody has lost, made or dropped one.
fn exchange(lab: &Lab, daemon: &Daemon, way: Way) -> Result<(), Failure> {
    let what = format!("{} queue pairs, `{}` {:?}", way.queues, way.options, way.arguments);
    let counted = |at| {
        let port = device(daemon, at)?["port"].clone();
        let of = |key: &str| port[key].as_u64().ok_or_else(|| Failure::new(format!("status has no {key}: {port}")));
        Ok::<_, Failure>((of("frames_in")?, of("frames_out")?))
    };
    let before = (counted(A)?, counted(B)?);
    let mut b = start(lab, B, way, "5tswap")?;
    let mut a = start(lab, A, way, "5tswap")?;
    b.ask("start")?;
    // Few enough for a queue to hold them all, whatever their flows: none has to be dropped.
    a.ask("start tx_first 1")?;
    receives(&format!("packets to come back: {what}"), &mut a, &none(way), ENOUGH)?;
    a.ask("stop")?;
    let after = wait_until(&format!("the last packets to arrive: {what}"), WAIT, || {
        let (sent, received) = (a.counts()?, b.counts()?);
        let after = (counted(A)?, counted(B)?);
        let at = |after: (u64, u64), before: (u64, u64)| (after.0 - before.0, after.1 - before.1);
        let (at_a, at_b) = (at(after.0, before.0), at(after.1, before.1));
        let came = at_a.0 == sent.sent() && at_b.1 == sent.sent() && received.received() == sent.sent();
        let went = received.sent() == sent.sent() && at_b.0 == received.sent() && at_a.1 == received.sent();
        Ok((came && went).then_some((sent, received)))
    })?;
    let (_, received) = &after;
    assert!(received.rx.iter().all(|&packets| packets > 0), "a queue carried nothing: {what}: {after:?}");
    for at in [A, B] {
        let device = device(daemon, at)?;
        let dropped = [&device["port"]["dropped_in"], &device["port"]["dropped_out"]];
        assert!(
            dropped.iter().all(|drops| drops.as_object().is_some_and(serde_json::Map::is_empty)),
            "{what}: {device}"
        );
        assert_eq!(device["protocol_errors"], 0, "{what}: {device}");
        let queues = device["queues"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert!(queues.len() >= 2 * way.queues && queues.iter().all(|queue| queue["errors"] == 0), "{what}: {device}");
        let format = if way.options.contains("packed_vq=1") { "packed" } else { "split" };
        assert!(queues[..2 * way.queues].iter().all(|queue| queue["format"] == format), "{what}: {device}");
        let negotiated =
            |feature: &str| device["features"].as_array().is_some_and(|all| all.iter().any(|f| f == feature));
        assert_eq!(negotiated("IN_ORDER"), !way.options.contains("in_order=0"), "{what}: {device}");
        assert_eq!(negotiated("MRG_RXBUF"), !way.options.contains("mrg_rxbuf=0"), "{what}: {device}");
    }
    a.quit()?;
    b.quit()
}

/// One data plane serves drivers of all ways, one after the other.
fn exchanges(test: &str, ways: &[Way]) {
    if !possible(test) {
        return;
    }
    Lab::run(test, |lab| {
        let daemon = Daemon::start(lab.path(), &site())?;
        ways.iter().try_for_each(|way| exchange(lab, &daemon, *way))?;
        daemon.stop()
    });
}

/// Transmit chains of three pieces; receive buffers that take three for a packet of 1,200 bytes.
///
/// Not over packed queues: in those DPDK's driver calls the header of a chain of several pieces device-writable, which
/// breaks the queue.
const PIECES: &[&str] = &["--txpkts=400,400,400", "--mbuf-size=640", "--enable-scatter", "--burst=8"];

#[test]
fn split_queues() {
    exchanges(
        "testpmd-split",
        &[
            Way { queues: 1, options: "", arguments: &[] },
            Way { queues: 4, options: "", arguments: &[] },
            Way { queues: 4, options: "in_order=0", arguments: PIECES },
            Way { queues: 1, options: "mrg_rxbuf=0,in_order=0", arguments: &[] },
            Way { queues: 4, options: "mrg_rxbuf=0,vectorized=1", arguments: &[] },
        ],
    );
}

#[test]
fn packed_queues() {
    exchanges(
        "testpmd-packed",
        &[
            Way { queues: 1, options: "packed_vq=1", arguments: &[] },
            Way { queues: 4, options: "packed_vq=1", arguments: &[] },
            Way { queues: 4, options: "packed_vq=1,in_order=0", arguments: &[] },
            Way { queues: 1, options: "packed_vq=1,mrg_rxbuf=0,in_order=0", arguments: &[] },
            Way { queues: 4, options: "packed_vq=1,mrg_rxbuf=0", arguments: &[] },
        ],
    );
}

/// Packets of 1,200 bytes lie over three receive buffers each, whole.
fn scatters(test: &str, options: &'static str) {
    const LENGTH: u64 = 1200;
    if !possible(test) {
        return;
    }
    Lab::run(test, |lab| {
        let daemon = Daemon::start(lab.path(), &site())?;
        let (sender, receiver): (&[_], &[_]) = (&["--txpkts=1200"], &["--mbuf-size=640", "--enable-scatter"]);
        let way = Way { queues: 4, options, arguments: receiver };
        let mut b = start(lab, B, way, "rxonly")?;
        let mut a = start(lab, A, Way { arguments: sender, ..way }, "txonly")?;
        b.ask("start")?;
        a.ask("start")?;
        let received = receives("packets to arrive", &mut b, &none(way), ENOUGH)?;
        assert_eq!(received.rx_bytes, received.received() * LENGTH, "{received:?}");
        a.quit()?;
        b.quit()?;
        daemon.stop()
    });
}

#[test]
fn packets_lie_over_several_buffers_of_split_queues() {
    scatters("testpmd-scatter-split", "");
}

#[test]
fn packets_lie_over_several_buffers_of_packed_queues() {
    scatters("testpmd-scatter-packed", "packed_vq=1");
}

/// Drivers that are killed while packets flow disturb nobody, and find their interface again.
fn reconnects(test: &str, options: &'static str) {
    if !possible(test) {
        return;
    }
    Lab::run(test, |lab| {
        let daemon = Daemon::start(lab.path(), &site())?;
        for queues in PAIRS {
            reconnect(lab, &daemon, Way { queues, options, arguments: &[] })?;
        }
        daemon.stop()
    });
}

fn reconnect(lab: &Lab, daemon: &Daemon, way: Way) -> Result<(), Failure> {
    let mut b = start(lab, B, way, "rxonly")?;
    let mut a = start(lab, A, way, "txonly")?;
    b.ask("start")?;
    a.ask("start")?;
    receives("packets to arrive", &mut b, &none(way), ENOUGH)?;

    b.kill()?;
    wait_until("the receiver's end to be noticed", WAIT, || Ok(device(daemon, B)?["peer"].is_null().then_some(())))?;
    let sent = a.counts()?.sent();
    wait_until("the sender to go on without a receiver", WAIT, || {
        Ok((a.counts()?.sent() > sent + ENOUGH).then_some(()))
    })?;
    let mut b = start(lab, B, way, "rxonly")?;
    b.ask("start")?;
    let before = receives("packets to arrive at the new receiver", &mut b, &none(way), ENOUGH)?;

    a.kill()?;
    wait_until("the sender's end to be noticed", WAIT, || Ok(device(daemon, A)?["peer"].is_null().then_some(())))?;
    let mut a = start(lab, A, way, "txonly")?;
    let before = wait_until("the killed sender's packets to have arrived", WAIT, || {
        let now = b.counts()?;
        Ok((now.received() == b.counts()?.received() && now.received() >= before.received()).then_some(now))
    })?;
    a.ask("start")?;
    receives("packets of the new sender", &mut b, &before, ENOUGH)?;
    for at in [A, B] {
        assert_eq!(device(daemon, at)?["protocol_errors"], 0);
    }
    a.quit()?;
    b.quit()
}

#[test]
fn drivers_of_split_queues_are_killed_and_started_again() {
    reconnects("testpmd-again-split", "");
}

#[test]
fn drivers_of_packed_queues_are_killed_and_started_again() {
    reconnects("testpmd-again-packed", "packed_vq=1");
}

/// Packets go on after the data plane was killed under them, over the connections that the supervisor keeps: testpmd's
/// port is a client that does not connect again.
fn kills(test: &str, options: &'static str) {
    if !possible(test) {
        return;
    }
    for queues in PAIRS {
        Lab::run(test, |lab| kill(test, lab, Way { queues, options, arguments: &[] }));
    }
}

fn kill(test: &str, lab: &Lab, way: Way) -> Result<(), Failure> {
    const KILLS: u64 = 5;
    let mut daemon = Daemon::start(lab.path(), &site())?;
    let mut b = start(lab, B, way, "rxonly")?;
    let mut a = start(lab, A, way, "txonly")?;
    let peers =
        |daemon: &Daemon| Ok::<_, Failure>((device(daemon, A)?["peer"].clone(), device(daemon, B)?["peer"].clone()));
    let connected = peers(&daemon)?;
    b.ask("start")?;
    a.ask("start")?;
    let mut before = receives("packets to arrive", &mut b, &none(way), ENOUGH)?;
    for kill in 1..=KILLS {
        let time = daemon.kill_data_plane()?;
        eprintln!("{test}: kill {kill}: data plane back after {:.0} ms", time.as_secs_f64() * 1e3);
        before = receives(&format!("packets after kill {kill}"), &mut b, &before, ENOUGH)?;
        // It began to take packets before anybody sent some.
        let port = device(&daemon, B)?["port"].clone();
        assert!(port["dropped_out"]["port-down"].is_null(), "after kill {kill}: {port}");
    }
    // The other queues of both, too: the sender's receive queues and the receiver's transmit queues.
    a.ask("stop")?;
    b.ask("stop")?;
    for testpmd in [&mut a, &mut b] {
        testpmd.ask("set fwd 5tswap")?;
    }
    let before = a.counts()?;
    b.ask("start")?;
    a.ask("start tx_first 1")?;
    receives("packets to come back after the kills", &mut a, &before, ENOUGH)?;
    assert_eq!(daemon.data_plane().context("the data plane")?.1, KILLS);
    assert_eq!(peers(&daemon)?, connected, "the connections are others");
    a.quit()?;
    b.quit()?;
    daemon.stop()
}

#[test]
fn packets_over_split_queues_go_on_after_kills_of_the_data_plane() {
    kills("testpmd-kill-split", "");
}

#[test]
fn packets_over_packed_queues_go_on_after_kills_of_the_data_plane() {
    kills("testpmd-kill-packed", "packed_vq=1");
}

/// What a guest sends is limited: over some seconds no more than the rate and the burst give has come in and arrived,
/// and not much less. Any machine sends many times that.
fn limited(test: &str, rate: &str, way: Way, packets: std::ops::RangeInclusive<u64>) {
    const TIME: Duration = Duration::from_secs(3);
    if !possible(test) {
        return;
    }
    Lab::run(test, |lab| {
        let daemon = Daemon::start(lab.path(), &site_with(&format!("rate = {{ {rate} }}, ")))?;
        let mut b = start(lab, B, way, "rxonly")?;
        let mut a = start(lab, A, way, "txonly")?;
        b.ask("start")?;
        a.ask("start")?;
        // Behind the burst, which lets a machine that is away for a moment catch up.
        receives("the burst to arrive", &mut b, &none(way), 600)?;
        let frames = |at| Ok::<_, Failure>(device(&daemon, at)?["port"]["frames_in"].as_u64().unwrap_or_default());
        let mut seen = Vec::new();
        loop {
            let asked = Instant::now();
            let (came, arrived) = (frames(A)?, b.counts()?.received());
            let begun = Instant::now();
            std::thread::sleep(TIME);
            let least = begun.elapsed().as_secs_f64();
            let (came, arrived) = (frames(A)? - came, b.counts()?.received() - arrived);
            // What was counted was counted within this time: of the sleep, and of what it takes to ask.
            let most = asked.elapsed().as_secs_f64();
            let per_second = |count: u64| count as f64 / most;
            eprintln!("{test}: {:.0} frames/s came in, {:.0} arrived", per_second(came), per_second(arrived));
            for count in [came, arrived] {
                assert!(per_second(count) <= *packets.end() as f64, "{came} came in, {arrived} arrived in {most:.1} s");
            }
            if came.min(arrived) as f64 >= *packets.start() as f64 * least {
                break;
            }
            seen.push((came, arrived, least));
            assert!(seen.len() < TRIES, "frames that came in, that arrived, in how many seconds: {seen:?}");
        }
        let device = device(&daemon, A)?;
        assert!(device["port"]["dropped_in"].as_object().is_some_and(serde_json::Map::is_empty), "{device}");
        if way.queues > 1 {
            let sent = |index: usize| device["queues"][2 * index + 1]["frames"].as_u64().unwrap_or_default();
            assert!((0..way.queues).all(|pair| sent(pair) > 0), "a queue sent nothing: {device}");
        }
        a.quit()?;
        b.quit()?;
        daemon.stop()
    });
}

#[test]
fn a_guest_sends_as_many_packets_as_its_rate_says() {
    let way = Way { queues: 1, options: "", arguments: &[] };
    limited("testpmd-packets", "packets = 1000, packets-burst = 500", way, 600..=1300);
}

#[test]
fn two_queue_pairs_of_a_guest_have_one_rate_together() {
    let way = Way { queues: 2, options: "", arguments: &[] };
    limited("testpmd-shared", "packets = 1000, packets-burst = 500", way, 600..=1300);
}

#[test]
fn a_guest_sends_as_many_bytes_as_its_rate_says() {
    // Frames of 1,000 bytes, of which 8 Mbit/s are 1,000 a second.
    let way = Way { queues: 1, options: "", arguments: &["--txpkts=1000"] };
    limited("testpmd-bandwidth", "bandwidth = \"8 Mbit/s\", bandwidth-burst = \"512 KiB\"", way, 600..=1300);
}
