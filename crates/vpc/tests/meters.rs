//! What a metered guest gets, by the counted time of a simulated clock.

mod common;

use std::sync::Arc;

use common::*;
use softdpu_vpc::policy::MeterCount;
use softdpu_vpc::spec::{Measure, MeterAlgorithm, MeterSpec, Rate, Spec};
use softdpu_vpc::{DropReason, Mac, PortId, Tables, Verdict, Vpc};

/// Bytes of a frame here.
const FRAME: u64 = 1000;
const SECOND: u64 = 1_000_000_000;

fn meter(name: &str, algorithm: MeterAlgorithm, committed: u64, second: u64) -> MeterSpec {
    let rate = |rate| Rate { rate, burst: 10 * FRAME };
    let (committed, second) = (rate(committed), rate(second));
    MeterSpec { name: name.into(), algorithm, measure: Measure::Bytes, committed, second }
}

/// Red's guests 1 and 2 pass the meters of these names.
fn metered(meters: Vec<MeterSpec>, of: [&[&str]; 2]) -> Spec {
    let mut spec = spec(Family::V4, 1);
    spec.meters = meters;
    for (last, names) in [1, 2].into_iter().zip(of) {
        let red = spec.endpoints.iter_mut().find(|one| one.network == "red" && one.mac == mac(last));
        red.expect("of the site").policy.meters = names.iter().map(|name| (*name).into()).collect();
    }
    spec
}

fn frame(from: Mac, source: &str, destination: &str) -> Vec<u8> {
    udp_of(from, GATEWAY, source, destination, 64, &vec![0; FRAME as usize - 42])
}

/// Whether a frame passes; None: dropped for another reason than its meter.
fn passes(vpc: &mut Vpc, now: u64, port: PortId, frame: &[u8]) -> bool {
    let mut verdicts = Vec::new();
    vpc.forward(now, &mut [packet(port, frame)], &mut verdicts);
    match verdicts[0] {
        Verdict::Local { .. } => true,
        Verdict::Drop(DropReason::Metered) => false,
        other => panic!("{other:?}"),
    }
}

fn counts(vpc: &Vpc, name: &str) -> [MeterCount; 3] {
    vpc.tables().meter_counts().find(|(known, _)| *known == name).expect("a meter of this name").1
}

/// Frames that pass of those that come in every `interval`, from second `from` on, for `seconds`.
fn run(vpc: &mut Vpc, from: u64, seconds: u64, interval: u64, sends: &[(PortId, Vec<u8>)]) -> u64 {
    let times = (from * SECOND..(from + seconds) * SECOND).step_by(interval as usize);
    times
        .flat_map(|now| sends.iter().map(move |send| (now, send)))
        .filter(|(now, (port, frame))| passes(vpc, *now, *port, frame))
        .count() as u64
}

fn one() -> (PortId, Vec<u8>) {
    (RED_1, frame(mac(1), "10.0.0.2", "10.0.0.3"))
}

fn two() -> (PortId, Vec<u8>) {
    (RED_2, frame(mac(2), "10.0.0.3", "10.0.0.2"))
}

#[test]
fn a_guest_gets_its_peak_rate_and_is_green_for_its_committed_rate() {
    for (algorithm, second, peak) in [(MeterAlgorithm::Rfc2698, 300, 300), (MeterAlgorithm::Rfc4115, 200, 300)] {
        let spec = metered(vec![meter("device", algorithm, 100 * FRAME, second * FRAME)], [&["device"], &[]]);
        let mut vpc = vpc(&spec);
        // A thousand frames a second for twenty seconds: far more than it may.
        let passed = run(&mut vpc, 1, 20, SECOND / 1000, &[one()]);
        let bursts = 20;
        assert!((20 * peak..=20 * peak + bursts).contains(&passed), "{algorithm:?}: {passed}");
        let [green, yellow, red] = counts(&vpc, "device");
        assert!((20 * 100..=20 * 100 + 10).contains(&green.packets), "{algorithm:?}: {green:?}");
        assert_eq!((green.packets + yellow.packets, red.packets), (passed, 20_000 - passed));
        assert_eq!(red.bytes, red.packets * FRAME);
        assert_eq!(vpc.stats().drops(DropReason::Metered), red.packets);
        assert!(vpc.stats().cached > 19_990, "flows carry the meter");
        // What it does not send to is not metered.
        assert_eq!(run(&mut vpc, 30, 1, SECOND / 1000, &[two()]), 1000);
    }
}

#[test]
fn a_burst_passes_as_its_packets_would_one_by_one() {
    // Meters that have not enough for a run of packets, and ones that mostly have.
    for (limit, plenty) in
        [MeterAlgorithm::Rfc2698, MeterAlgorithm::Rfc4115].into_iter().flat_map(|of| [(of, 1), (of, 20)])
    {
        bursts_pass_as_their_packets_would_one_by_one(limit, plenty);
    }
}

fn bursts_pass_as_their_packets_would_one_by_one(limit: MeterAlgorithm, plenty: u64) {
    let own = meter("own", limit, 5 * plenty * FRAME, 8 * plenty * FRAME);
    let mut meters = vec![own, meter("tenant", limit, 10 * plenty * FRAME, 10 * plenty * FRAME)];
    for meter in &mut meters {
        (meter.committed.burst, meter.second.burst) = (10 * plenty * FRAME, 10 * plenty * FRAME);
    }
    let spec = metered(meters, [&["own", "tenant"], &["tenant"]]);
    // Runs of one guest's packets and the other's, in the middle of them some that are too long for their flow to
    // decide.
    let short = udp_of(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3", 64, &[0; 58]);
    let long = udp_of(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3", 64, &[0; 1600]);
    let (one, two) = (one(), two());
    let burst = |round: usize| -> Vec<(PortId, Vec<u8>)> {
        (0..150)
            .map(|at| match (at + round) % 23 {
                0..13 => one.clone(),
                13..17 => (RED_1, short.clone()),
                17 => (RED_1, long.clone()),
                _ => two.clone(),
            })
            .collect()
    };
    let (mut at_once, mut one_by_one) = (vpc(&spec), vpc(&spec));
    let mut passed = 0;
    for round in 0..20 {
        let now = SECOND + round as u64 * SECOND / 3;
        let frames = burst(round);
        let mut packets: Vec<_> = frames.iter().map(|(port, frame)| packet(*port, frame)).collect();
        let (mut verdicts, mut expected) = (Vec::new(), Vec::new());
        at_once.forward(now, &mut packets, &mut verdicts);
        for (port, frame) in &frames {
            one_by_one.forward(now, &mut [packet(*port, frame)], &mut expected);
        }
        assert_eq!(verdicts, expected, "round {round}");
        passed += verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Local { .. })).count();
    }
    let dropped = at_once.stats().drops(DropReason::Metered);
    assert!(passed > 100 && (plenty > 1 || dropped > 100), "{passed} passed, {dropped} did not");
    assert!(at_once.stats().cached > 1000, "flows decide");
    for name in ["own", "tenant"] {
        assert_eq!(counts(&at_once, name), counts(&one_by_one, name), "{name}");
    }
}

#[test]
fn a_packet_that_goes_on_in_fragments_is_metered_as_it_came() {
    let meter = meter("device", MeterAlgorithm::Rfc2698, FRAME, FRAME);
    let mut vpc = vpc(&metered(vec![meter], [&["device"], &[]]));
    let mut frame = udp_of(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3", 64, &[0; 4000]);
    // Its sender allows that.
    frame[20] &= !0x40;
    frame[24..26].fill(0);
    let sum = softdpu_vpc::packet::checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let verdicts = [0; 3].map(|_| {
        let mut verdicts = Vec::new();
        vpc.forward(SECOND, &mut [packet(RED_1, &frame)], &mut verdicts);
        verdicts[0]
    });
    // A burst is ten frames of a thousand bytes.
    assert_eq!(verdicts, [Verdict::Software, Verdict::Software, Verdict::Drop(DropReason::Metered)]);
    let [green, _, red] = counts(&vpc, "device");
    assert_eq!((green.bytes, red.bytes), (2 * frame.len() as u64, frame.len() as u64));
}

#[test]
fn two_guests_of_a_tenant_share_its_rate_whatever_each_may() {
    let limit = MeterAlgorithm::Rfc2698;
    let meters = vec![meter("tenant", limit, 100 * FRAME, 100 * FRAME), meter("own", limit, 20 * FRAME, 20 * FRAME)];
    let tables = build(&metered(meters, [&["own", "tenant"], &["tenant"]]));
    // Each on a core of its own.
    let mut cores = [Vpc::new(Arc::clone(&tables)), Vpc::new(tables)];
    let [mut first, mut second] = [0, 0];
    for now in (SECOND..11 * SECOND).step_by(SECOND as usize / 500) {
        first += u64::from(passes(&mut cores[0], now, one().0, &one().1));
        second += u64::from(passes(&mut cores[1], now, two().0, &two().1));
    }
    assert!((10 * 100..=10 * 100 + 10).contains(&(first + second)), "{first} and {second}");
    assert!(first <= 10 * 20 + 10 && first > 0, "{first}");
    let [green, yellow, red] = counts(&cores[0], "tenant");
    assert_eq!(green.packets + yellow.packets, first + second);
    // What is red at the guest's own meter is red at the tenant's, and takes nothing from it.
    assert_eq!(red.packets, 10_000 - first - second);
}

#[test]
fn another_rate_counts_at_once_and_makes_no_flow_stale() {
    let spec = |rate: u64, of: [&[&str]; 2]| {
        metered(vec![meter("device", MeterAlgorithm::Rfc2698, rate * FRAME, rate * FRAME)], of)
    };
    let mut vpc = vpc(&spec(100, [&["device"], &[]]));
    assert!((1000..=1010).contains(&run(&mut vpc, 1, 10, SECOND / 1000, &[one()])));
    let before = counts(&vpc, "device");
    change(&mut vpc, &spec(400, [&["device"], &[]]));
    assert_eq!(counts(&vpc, "device"), before, "it goes on counting");
    // So it does by a core that has not gone on yet.
    let next = vpc.tables().rebuild(&spec(300, [&["device"], &[]]), None).expect("a good spec");
    passes(&mut vpc, 11 * SECOND, one().0, &one().1);
    vpc.rest();
    let counted = |counts: [MeterCount; 3]| counts.iter().map(|count| count.packets).sum::<u64>();
    let (_, later) = next.meter_counts().next().expect("a meter");
    assert_eq!(counted(later), counted(before) + 1);
    assert!((4000..=4010).contains(&run(&mut vpc, 11, 10, SECOND / 1000, &[one()])));
    assert_eq!(vpc.stats().recomputed, 0);
    // A change of something else leaves the meter as full as it was.
    let mut other = spec(400, [&["device"], &[]]);
    other.endpoints[2].mtu = Some(1400);
    let full = run(&mut vpc, 40, 1, SECOND / 1000, &[one()]);
    change(&mut vpc, &other);
    let passed = run(&mut vpc, 41, 1, SECOND / 1000, &[one()]);
    assert!(full > passed && (399..=401).contains(&passed), "{full}, {passed}");
    // Without a meter everything passes; the flow finds out by the version of its endpoint.
    change(&mut vpc, &spec(400, [&[], &[]]));
    assert_eq!(run(&mut vpc, 50, 1, SECOND / 1000, &[one()]), 1000);
    assert_eq!(vpc.stats().recomputed, 1);
}

#[test]
fn a_spec_says_which_meter_is_wrong() {
    let good = || meter("device", MeterAlgorithm::Rfc2698, 1, 1);
    let error = |spec: &Spec| Tables::build(spec, None).expect_err("a bad spec").to_string();
    assert_eq!(error(&metered(vec![good(), good()], [&[], &[]])), "meter device: another meter has this name");
    let unknown = error(&metered(vec![good()], [&["devise"], &[]]));
    assert_eq!(unknown, "endpoint 02:5d:00:00:00:01 of network red: there is no meter devise");
    let many = error(&metered(vec![good()], [&["device", "device", "device"], &[]]));
    assert_eq!(many, "endpoint 02:5d:00:00:00:01 of network red: it has 3 meters: 2 are the most");
}
