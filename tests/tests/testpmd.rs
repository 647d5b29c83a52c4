//! DPDK's testpmd as the driver of softdpu's interfaces: another virtio driver than Linux', with split and packed
//! queues, one and several pairs, that is killed and started again, and whose data plane is killed while packets flow.
//!
//! Two of them throw packets back and forth (`5tswap`), so that one that is lost, doubled or changed shows in the
//! counts of both and of softdpu. Their sources vary, which spreads them over all queue pairs; all of them are the
//! interface's own.

#![allow(missing_docs)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use softdpu_tests::{Context, Counts, Daemon, Failure, Interval, Lab, Site, Testpmd, TestpmdPort, skip, wait_until};

const WAIT: Duration = Duration::from_secs(60);
/// Windows in which a rate is measured: the fewest that have an interval.
const WINDOWS: usize = 6;

/// Queue pairs of drivers that are killed, or whose data plane is.
const PAIRS: [usize; 2] = [1, 4];

/// How many packets have to pass for a step to be believed.
const ENOUGH: u64 = 1000;

/// The interfaces: name, MAC address.
const A: (&str, &str) = ("a", "02:5d:00:00:00:0a");
const B: (&str, &str) = ("b", "02:5d:00:00:00:0b");

/// Runs a scenario, where the machine has testpmd.
fn run(test: &str, scenario: impl FnOnce(&Lab) -> Result<(), Failure>) {
    match Testpmd::is_installed() {
        true => Lab::run(test, scenario),
        false => skip(test, "dpdk-testpmd is not installed (Debian: dpdk-dev)"),
    }
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
    let interface = |(name, mac): (&str, &str), addresses: &str, more: &str| {
        let keys = format!("network = 'acme', address = [{addresses}], mac = '{mac}', queues = 4");
        format!("virtio-net = {{ {keys}, {more}socket = '{name}.sock' }}")
    };
    Site::on(&[0])
        .network("acme", 5001, &["10.0.0.0/16"])
        .device(A.0, &interface(A, &sources.join(", "), more))
        .device(B.0, &interface(B, "'10.0.0.10'", ""))
        .to_string()
}

/// How a driver uses its interface.
#[derive(Clone, Copy)]
struct Setup {
    queues: usize,
    /// Options of the virtio-user device.
    options: &'static str,
    /// More of testpmd's arguments.
    arguments: &'static [&'static str],
}

fn start(lab: &Lab, (name, mac): (&str, &str), setup: Setup, forward: &str) -> Result<Testpmd, Failure> {
    let (socket, peer): (PathBuf, _) = (lab.path().join(format!("{name}.sock")), if mac == A.1 { B.1 } else { A.1 });
    let forward = format!("--forward-mode={forward}");
    let mut arguments = vec![forward.as_str(), "--tx-ip=10.0.0.11,10.0.0.10", "--txonly-multi-flow"];
    arguments.extend(setup.arguments);
    let port =
        TestpmdPort { socket: &socket, mac, peer, queues: setup.queues, options: setup.options, arguments: &arguments };
    Testpmd::start(lab.path(), name, &port)
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
fn none(setup: Setup) -> Counts {
    Counts { rx: vec![0; setup.queues], tx: vec![0; setup.queues], rx_bytes: 0 }
}

/// Packets go back and forth, and none is lost, made or dropped.
fn exchange(lab: &Lab, daemon: &Daemon, setup: Setup) -> Result<(), Failure> {
    let what = format!("{} queue pairs, `{}` {:?}", setup.queues, setup.options, setup.arguments);
    let counted = |(name, _): (&str, &str)| {
        let port = daemon.device(name)?["port"].clone();
        let of = |key: &str| port[key].as_u64().ok_or_else(|| Failure::new(format!("status has no {key}: {port}")));
        Ok::<_, Failure>((of("frames_in")?, of("frames_out")?))
    };
    let before = (counted(A)?, counted(B)?);
    let mut b = start(lab, B, setup, "5tswap")?;
    let mut a = start(lab, A, setup, "5tswap")?;
    b.ask("start")?;
    // Few enough for a queue to hold them all, whatever their flows: none has to be dropped.
    a.ask("start tx_first 1")?;
    receives(&format!("packets to come back: {what}"), &mut a, &none(setup), ENOUGH)?;
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
        let device = daemon.device(at.0)?;
        let dropped = [&device["port"]["dropped_in"], &device["port"]["dropped_out"]];
        assert!(
            dropped.iter().all(|drops| drops.as_object().is_some_and(serde_json::Map::is_empty)),
            "{what}: {device}"
        );
        assert_eq!(device["protocol_errors"], 0, "{what}: {device}");
        let queues = device["queues"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert!(
            queues.len() >= 2 * setup.queues && queues.iter().all(|queue| queue["errors"] == 0),
            "{what}: {device}"
        );
        let format = if setup.options.contains("packed_vq=1") { "packed" } else { "split" };
        assert!(queues[..2 * setup.queues].iter().all(|queue| queue["format"] == format), "{what}: {device}");
        let negotiated =
            |feature: &str| device["features"].as_array().is_some_and(|all| all.iter().any(|f| f == feature));
        assert_eq!(negotiated("IN_ORDER"), !setup.options.contains("in_order=0"), "{what}: {device}");
        assert_eq!(negotiated("MRG_RXBUF"), !setup.options.contains("mrg_rxbuf=0"), "{what}: {device}");
    }
    a.quit()?;
    b.quit()
}

/// One data plane serves drivers of all setups, one after the other.
fn exchanges(test: &str, setups: &[Setup]) {
    run(test, |lab| {
        let daemon = Daemon::start(lab.path(), &site())?;
        setups.iter().try_for_each(|setup| exchange(lab, &daemon, *setup))?;
        daemon.stop()
    });
}

/// Transmit chains of three pieces; receive buffers that take three for a packet of 1,200 bytes.
///
/// Not over packed queues: in those DPDK's driver calls the header of a chain of several pieces device-writable, which
/// breaks the queue.
const PIECES: &[&str] = &["--txpkts=400,400,400", "--mbuf-size=640", "--enable-scatter", "--burst=8"];

#[test]
fn packets_come_back_over_split_queues() {
    exchanges(
        "testpmd-split",
        &[
            Setup { queues: 1, options: "", arguments: &[] },
            Setup { queues: 4, options: "", arguments: &[] },
            Setup { queues: 4, options: "in_order=0", arguments: PIECES },
            Setup { queues: 1, options: "mrg_rxbuf=0,in_order=0", arguments: &[] },
            Setup { queues: 4, options: "mrg_rxbuf=0,vectorized=1", arguments: &[] },
        ],
    );
}

#[test]
fn packets_come_back_over_packed_queues() {
    exchanges(
        "testpmd-packed",
        &[
            Setup { queues: 1, options: "packed_vq=1", arguments: &[] },
            Setup { queues: 4, options: "packed_vq=1", arguments: &[] },
            Setup { queues: 4, options: "packed_vq=1,in_order=0", arguments: &[] },
            Setup { queues: 1, options: "packed_vq=1,mrg_rxbuf=0,in_order=0", arguments: &[] },
            Setup { queues: 4, options: "packed_vq=1,mrg_rxbuf=0", arguments: &[] },
        ],
    );
}

/// Packets of 1,200 bytes lie over three receive buffers each, whole.
fn scatters(test: &str, options: &'static str) {
    const LENGTH: u64 = 1200;
    run(test, |lab| {
        let daemon = Daemon::start(lab.path(), &site())?;
        let (sender, receiver): (&[_], &[_]) = (&["--txpkts=1200"], &["--mbuf-size=640", "--enable-scatter"]);
        let setup = Setup { queues: 4, options, arguments: receiver };
        let mut b = start(lab, B, setup, "rxonly")?;
        let mut a = start(lab, A, Setup { arguments: sender, ..setup }, "txonly")?;
        b.ask("start")?;
        a.ask("start")?;
        let received = receives("packets to arrive", &mut b, &none(setup), ENOUGH)?;
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

/// Drivers that are killed while packets flow disturb no other driver, and find their interface again.
fn reconnects(test: &str, options: &'static str) {
    run(test, |lab| {
        let daemon = Daemon::start(lab.path(), &site())?;
        for queues in PAIRS {
            reconnect(lab, &daemon, Setup { queues, options, arguments: &[] })?;
        }
        daemon.stop()
    });
}

/// A sender, a receiver to which packets flow, and what that has counted.
fn flow(lab: &Lab, setup: Setup) -> Result<(Testpmd, Testpmd, Counts), Failure> {
    let mut b = start(lab, B, setup, "rxonly")?;
    let mut a = start(lab, A, setup, "txonly")?;
    b.ask("start")?;
    a.ask("start")?;
    let counts = receives("packets to arrive", &mut b, &none(setup), ENOUGH)?;
    Ok((a, b, counts))
}

fn reconnect(lab: &Lab, daemon: &Daemon, setup: Setup) -> Result<(), Failure> {
    let (mut a, b, _) = flow(lab, setup)?;
    b.kill()?;
    wait_until("the receiver's end to be noticed", WAIT, || Ok(daemon.device(B.0)?["peer"].is_null().then_some(())))?;
    let sent = a.counts()?.sent();
    wait_until("the sender to go on without a receiver", WAIT, || {
        Ok((a.counts()?.sent() > sent + ENOUGH).then_some(()))
    })?;
    let mut b = start(lab, B, setup, "rxonly")?;
    b.ask("start")?;
    let before = receives("packets to arrive at the new receiver", &mut b, &none(setup), ENOUGH)?;

    a.kill()?;
    wait_until("the sender's end to be noticed", WAIT, || Ok(daemon.device(A.0)?["peer"].is_null().then_some(())))?;
    let mut a = start(lab, A, setup, "txonly")?;
    let before = wait_until("the killed sender's packets to have arrived", WAIT, || {
        let now = b.counts()?;
        Ok((now.received() == b.counts()?.received() && now.received() >= before.received()).then_some(now))
    })?;
    a.ask("start")?;
    receives("packets of the new sender", &mut b, &before, ENOUGH)?;
    for at in [A, B] {
        assert_eq!(daemon.device(at.0)?["protocol_errors"], 0);
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
    for queues in PAIRS {
        run(test, |lab| kill(test, lab, Setup { queues, options, arguments: &[] }));
    }
}

fn kill(test: &str, lab: &Lab, setup: Setup) -> Result<(), Failure> {
    const KILLS: u64 = 5;
    let mut daemon = Daemon::start(lab.path(), &site())?;
    let (mut a, mut b, mut before) = flow(lab, setup)?;
    let peers =
        |daemon: &Daemon| Ok::<_, Failure>((daemon.device(A.0)?["peer"].clone(), daemon.device(B.0)?["peer"].clone()));
    let connected = peers(&daemon)?;
    for kill in 1..=KILLS {
        let time = daemon.kill_data_plane()?;
        eprintln!("{test}: kill {kill}: data plane back after {:.0} ms", time.as_secs_f64() * 1e3);
        before = receives(&format!("packets after kill {kill}"), &mut b, &before, ENOUGH)?;
        // It began to take packets before the sender sent some.
        let port = daemon.device(B.0)?["port"].clone();
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
fn limited(test: &str, rate: &str, setup: Setup) {
    const TIME: Duration = Duration::from_millis(700);
    /// Packets a second that pass, the most that the burst adds, and the fewest a second in most windows.
    const RATE: f64 = 1000.0;
    const BURST: f64 = 600.0;
    const LEAST: f64 = 600.0;
    run(test, |lab| {
        let daemon = Daemon::start(lab.path(), &site_with(&format!("rate = {{ {rate} }}, ")))?;
        let mut b = start(lab, B, setup, "rxonly")?;
        let mut a = start(lab, A, setup, "txonly")?;
        b.ask("start")?;
        a.ask("start")?;
        // Behind the burst, which lets a machine that is away for a moment catch up.
        receives("the burst to arrive", &mut b, &none(setup), 600)?;
        let frames_of_a = || Ok::<_, Failure>(daemon.port(A.0)?.count("frames_in"));
        let mut rates = Vec::new();
        for _ in 0..WINDOWS {
            let asked = Instant::now();
            let (came, arrived) = (frames_of_a()?, b.counts()?.received());
            let begun = Instant::now();
            std::thread::sleep(TIME);
            let least = begun.elapsed().as_secs_f64();
            let (came, arrived) = (frames_of_a()? - came, b.counts()?.received() - arrived);
            // What was counted was counted within this time: of the sleep, and of what it takes to ask.
            let most = asked.elapsed().as_secs_f64();
            for count in [came, arrived] {
                assert!(count as f64 <= RATE * most + BURST, "{came} came in, {arrived} arrived in {most:.1} s");
            }
            rates.push(came.min(arrived) as f64 / least);
        }
        let rates = Interval::new(rates)?;
        eprintln!("{test}: {rates} frames/s came in and arrived");
        assert!(rates.median() >= LEAST, "{rates} frames/s came in and arrived");
        let device = daemon.device(A.0)?;
        assert!(device["port"]["dropped_in"].as_object().is_some_and(serde_json::Map::is_empty), "{device}");
        if setup.queues > 1 {
            let sent = |index: usize| device["queues"][2 * index + 1]["frames"].as_u64().unwrap_or_default();
            assert!((0..setup.queues).all(|pair| sent(pair) > 0), "a queue sent nothing: {device}");
        }
        a.quit()?;
        b.quit()?;
        daemon.stop()
    });
}

#[test]
fn a_guest_sends_as_many_packets_as_its_rate_says() {
    let setup = Setup { queues: 1, options: "", arguments: &[] };
    limited("testpmd-packets", "packets = 1000, packets-burst = 500", setup);
}

#[test]
fn two_queue_pairs_of_a_guest_have_one_rate_together() {
    let setup = Setup { queues: 2, options: "", arguments: &[] };
    limited("testpmd-shared", "packets = 1000, packets-burst = 500", setup);
}

#[test]
fn a_guest_sends_as_many_bytes_as_its_rate_says() {
    // Frames of 1,000 bytes, of which 8 Mbit/s are 1,000 a second.
    let setup = Setup { queues: 1, options: "", arguments: &["--txpkts=1000"] };
    limited("testpmd-bandwidth", "bandwidth = \"8 Mbit/s\", bandwidth-burst = \"512 KiB\"", setup);
}
