//! What is explained of a packet is what becomes of it, and explaining changes nothing.

mod common;

use common::streams::{PAUSE, Step, site, steps};
use common::*;
use proptest::prelude::*;
use softdpu_vpc::spec::{ConnectionLimit, Measure, MeterAlgorithm, MeterSpec, Rate};
use softdpu_vpc::trace::{Outcome, Step as Told, Table, Tier, Watch};
use softdpu_vpc::{
    Asked, DropReason, Explanation, Packet, PortId, RemoteEndpoint, Reply, Verdict, Vpc, through_tunnel,
};

/// Watches one packet.
#[derive(Default)]
struct Watched(Vec<Told>);

impl Watch for Watched {
    fn identifier(&self, at: usize) -> u32 {
        u32::from(at == 0)
    }

    fn step(&mut self, _at: usize, step: Told) {
        self.0.push(step);
    }
}

fn names(port: PortId) -> String {
    format!("port {}", port.0)
}

/// By a clock that stands still.
const ASKED: Asked<'static> = Asked { names: &names, clock: &|| 0 };

fn steps_of(answer: &Explanation) -> Vec<Told> {
    answer.steps.iter().map(|(_, step)| step.clone()).collect()
}

/// What becomes of a packet: the verdict, the frame as it leaves, what the software tier sends, and its steps in the
/// tiers before.
fn pass(
    vpc: &mut Vpc,
    now: u64,
    (packet, frame): (&Packet, &[u8]),
    watches: bool,
) -> (Verdict, Vec<u8>, Vec<Reply>, Vec<Told>) {
    let (mut one, mut verdicts, mut watched) = ([packet.clone()], Vec::new(), Watched::default());
    if watches {
        vpc.forward_watched(now, &mut one, &mut verdicts, &mut watched);
    } else {
        vpc.forward(now, &mut one, &mut verdicts);
    }
    let mut replies = Vec::new();
    let verdict = match verdicts[0] {
        Verdict::Software => vpc.software(packet.port, frame, packet.checksum, packet.segmentation, &mut replies),
        verdict => verdict,
    };
    let [packet] = one;
    let mut leaves = packet.head.bytes().to_vec();
    let tail = frame.get(softdpu_vpc::Head::of(frame).len()..).unwrap_or_default();
    leaves.extend(tail.iter().take(packet.tail as usize));
    (verdict, leaves, replies, watched.0)
}

/// A frame that the other node's guest sends.
fn from_afar(far: &mut Vpc, family: Family, at: usize) -> Option<(Packet, Vec<u8>)> {
    let to = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.1", "172.16.0.1"][at % 5];
    let frame = udp(mac(4), GATEWAY, "10.0.0.5", to);
    let (verdict, mut bytes) = forward(far, RED_3, &frame);
    if family == Family::V6 && bytes.len() > 62 {
        // The outer checksum is not checked here.
        bytes[60] |= 1;
    }
    matches!(verdict, Verdict::Underlay { .. }).then(|| (packet(UNDERLAY, &bytes), bytes))
}

fn tight(family: Family, changes: u64, is_tight: bool) -> softdpu_vpc::spec::Spec {
    let mut spec = site(family, changes);
    if is_tight {
        spec.connections = ConnectionLimit(3);
        spec.services.rate = 40;
        spec.services.burst = 2;
        let rate = |rate| Rate { rate, burst: rate / 10 };
        let meter = |name: &str, algorithm| MeterSpec {
            name: name.into(),
            algorithm,
            measure: Measure::Bytes,
            committed: rate(9_000),
            second: rate(20_000),
        };
        spec.meters.extend([meter("port", MeterAlgorithm::Rfc2698), meter("tenant", MeterAlgorithm::Rfc4115)]);
        for endpoint in spec.endpoints.iter_mut().filter(|endpoint| endpoint.mac == mac(1)) {
            endpoint.policy.meters = vec!["port".into(), "tenant".into()];
        }
    }
    spec
}

fn check(family: Family, steps: &[Step], is_tight: bool) -> Result<(), TestCaseError> {
    let build = |changes| build(&tight(family, changes, is_tight));
    // Each with connections of its own: what is explained of the one must not be missing from the other.
    let (mut explained, mut silent) = (Vpc::new(build(0)), Vpc::new(build(0)));
    let mut far = node(family, 2);
    let (mut changes, mut now) = (0, 0);
    for (at, Step { batch, change, anew }) in steps.iter().enumerate() {
        now += PAUSE;
        if let Some(change) = change {
            changes ^= 1 << change;
            let spec = tight(family, changes, is_tight);
            for vpc in [&mut explained, &mut silent] {
                if *anew { vpc.replace(build(changes)) } else { common::change(vpc, &spec) }
            }
        }
        let sent: Vec<(Packet, Vec<u8>)> =
            batch.iter().map(|sent| sent.with_frame(family)).chain(from_afar(&mut far, family, at)).collect();
        for (packet, frame) in &sent {
            let answer = explained.explain_packet(now, packet.clone(), frame, ASKED);
            let (verdict, leaves, replies, told) = pass(&mut explained, now, (packet, frame), true);
            let expected = pass(&mut silent, now, (packet, frame), false);
            let about = format!("{packet:?}, changes {changes:b}, {:#?}", answer.steps);
            prop_assert_eq!((verdict, &leaves, &replies), (expected.0, &expected.1, &expected.2), "{}", about);
            prop_assert_eq!(answer.verdict, verdict, "{}", about);
            prop_assert_eq!(&answer.frame, &leaves, "{}", about);
            prop_assert_eq!(&answer.replies, &replies, "{}", about);
            prop_assert_eq!(&steps_of(&answer)[..told.len()], &told[..], "{}", about);
            prop_assert_eq!(explained.stats(), silent.stats(), "{}", about);
            prop_assert_eq!(explained.flows(), silent.flows(), "{}", about);
            prop_assert_eq!(explained.flow_counters(packet), silent.flow_counters(packet), "{}", about);
            let connections = |vpc: &Vpc| vpc.tables().connection_stats();
            prop_assert_eq!(connections(&explained), connections(&silent), "{}", about);
        }
        // What is green is counted when leases end.
        let meters = |vpc: &mut Vpc| {
            vpc.rest();
            vpc.tables().meter_counts().map(|(name, counts)| (name.to_owned(), counts)).collect::<Vec<_>>()
        };
        prop_assert_eq!(meters(&mut explained), meters(&mut silent), "step {}", at);
    }
    Ok(())
}

proptest! {
    #[test]
    fn explaining_tells_what_happens_and_changes_nothing(
        steps in steps(),
        is_v6 in any::<bool>(),
        is_tight in any::<bool>(),
    ) {
        check(if is_v6 { Family::V6 } else { Family::V4 }, &steps, is_tight)?;
    }
}

fn told(answer: &Explanation, tier: Tier, table: Table) -> Vec<(Outcome, String)> {
    let those = steps_of(answer).into_iter().filter(|step| step.tier == tier && step.table == table);
    those.map(|step| (step.outcome, step.found)).collect()
}

#[test]
fn the_rule_that_decides_is_named() {
    // Guest 1 is in `web` (TCP 80 from any address) and has the list, which denies TCP from port 4001.
    let vpc = vpc(&site(Family::V4, 1 << 15 | 1 << 19));
    let frame = |source: u16, destination: u16| {
        let builder = etherparse::PacketBuilder::ethernet2(mac(2).0, mac(1).0).ipv4([10, 0, 0, 3], [10, 0, 0, 2], 64);
        let mut frame = Vec::new();
        builder.tcp(source, destination, 1, 1000).syn().write(&mut frame, &[]).expect("a vector");
        frame
    };
    let allowed = vpc.explain(0, RED_2, &frame(4000, 80), ASKED);
    assert!(matches!(allowed.verdict, Verdict::Local { port: RED_1, .. }), "{allowed:#?}");
    let of = |answer: &Explanation, table| told(answer, Tier::Software, table);
    let pass = |found: &str| vec![(Outcome::Pass, found.to_owned())];
    assert_eq!(of(&allowed, Table::Acls), pass("no rule matches: the default allows it"));
    assert_eq!(of(&allowed, Table::SecurityGroups), pass("group web, ingress rule 1 allows it"));
    let denied = vpc.explain(0, RED_2, &frame(4001, 80), ASKED);
    assert_eq!(of(&denied, Table::Acls), [(Outcome::Drop, "rule 1 denies it".to_owned())]);
    let denied = vpc.explain(0, RED_2, &frame(4000, 81), ASKED);
    assert_eq!(of(&denied, Table::SecurityGroups), [(Outcome::Drop, "no ingress rule of web allows it".to_owned())]);
    assert_eq!(vpc.flows(), 0);
}

#[test]
fn a_flow_whose_objects_changed_is_told_with_both_versions() {
    let mut vpc = node(Family::V4, 1);
    let frame = udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3");
    assert!(matches!(forward(&mut vpc, RED_1, &frame).0, Verdict::Local { .. }));
    let hit = vpc.explain(0, RED_1, &frame, ASKED);
    assert_eq!(told(&hit, Tier::Flow, Table::Flows)[0].0, Outcome::Hit);
    assert!(hit.is_flow && hit.steps.iter().all(|(_, step)| step.tier != Tier::Software));
    let mut spec = spec(Family::V4, 1);
    spec.endpoints[1].spoof_check = false;
    change(&mut vpc, &spec);
    let stale = vpc.explain(0, RED_1, &frame, ASKED);
    let steps = steps_of(&stale);
    let flow = steps.iter().find(|step| step.table == Table::Flows).expect("a step");
    assert_eq!(flow.outcome, Outcome::Stale);
    let changed: Vec<_> = flow.versions.iter().filter(|version| version.stored != version.current).collect();
    assert_eq!(changed.len(), 1, "{:?}", flow.versions);
    assert_eq!(changed[0].object, "endpoint 10.0.0.3 of red");
    assert!(changed[0].stored < changed[0].current);
    // It was only asked: the flow is as stale as it was.
    assert_eq!(vpc.explain(0, RED_1, &frame, ASKED), stale);
}

#[test]
fn each_meter_tells_the_colour_that_a_packet_has_behind_it() {
    let mut vpc = vpc(&tight(Family::V4, 0, true));
    // 600 bytes, of which 900 are green at once, and by the port's 2,000 not red.
    let frame = udp_of(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3", 64, &[0; 558]);
    let metered = |steps: Vec<Told>| -> Vec<(String, Outcome, String)> {
        let those = steps.into_iter().filter(|step| (step.tier, step.table) == (Tier::Flow, Table::Meters));
        those.map(|step| (step.key, step.outcome, step.found)).collect()
    };
    let colours = [["green", "green"], ["yellow", "yellow"], ["yellow", "yellow"], ["red", "red: metered"]];
    for (at, [port, tenant]) in colours.into_iter().enumerate() {
        let last = if port == "red" { Outcome::Drop } else { Outcome::Pass };
        let expected =
            [("port".to_owned(), Outcome::Pass, port.to_owned()), ("tenant".to_owned(), last, tenant.to_owned())];
        assert_eq!(metered(steps_of(&vpc.explain(0, RED_1, &frame, ASKED))), expected, "packet {at}, explained");
        // A first packet, and those of its flow.
        let (.., watched) = pass(&mut vpc, 0, (&packet(RED_1, &frame), &frame), true);
        assert_eq!(metered(watched), expected, "packet {at}, watched");
    }
    // An endpoint without meters has no such steps.
    let answer = vpc.explain(0, RED_2, &udp(mac(2), GATEWAY, "10.0.0.3", "10.0.0.2"), ASKED);
    assert!(matches!(answer.verdict, Verdict::Local { .. }), "{answer:#?}");
    assert_eq!(metered(steps_of(&answer)), []);
}

#[test]
fn steps_are_told_with_the_time_that_has_passed() {
    let vpc = node(Family::V4, 1);
    // What the software tier answers as well.
    for to in ["10.0.0.3", "10.0.0.1"] {
        let now = std::cell::Cell::new(1_000);
        let clock = || now.replace(now.get() + 10);
        let frame = udp(mac(1), GATEWAY, "10.0.0.2", to);
        let answer = vpc.explain(0, RED_1, &frame, Asked { names: &names, clock: &clock });
        let times: Vec<u64> = answer.steps.iter().map(|(time, _)| *time).collect();
        assert_eq!(times, (1..=times.len() as u64).map(|step| 10 * step).collect::<Vec<_>>(), "{:#?}", answer.steps);
    }
}

#[test]
fn what_comes_from_another_node_is_explained_as_what_that_one_sends() {
    for family in [Family::V4, Family::V6] {
        let (mut near, mut far) = (node(family, 1), node(family, 2));
        let underlay = spec(family, 1).underlay.expect("an underlay");
        let guest = udp(mac(4), GATEWAY, "10.0.0.5", "10.0.0.2");
        let (verdict, mut real) = forward(&mut far, RED_3, &guest);
        let Verdict::Underlay { overhead, .. } = verdict else { panic!("{verdict:?}") };
        if family == Family::V6 {
            // As the sender completes it.
            real[60] |= 1;
        }
        let inner = &real[usize::from(overhead)..];
        let made_up = |host| through_tunnel(&underlay, host, vni(RED_VNI), inner).expect("its family");
        for _ in 0..2 {
            let answer = near.explain(0, UNDERLAY, &made_up(vtep(family, 2)), ASKED);
            let of_the_real = near.explain(0, UNDERLAY, &real, ASKED);
            assert_eq!(answer, of_the_real);
            let Verdict::Local { port: RED_1, .. } = answer.verdict else { panic!("{answer:#?}") };
            // A first packet, and one of its flow.
            assert!(matches!(forward(&mut near, UNDERLAY, &real).0, Verdict::Local { .. }));
        }
        assert!(near.explain(0, UNDERLAY, &made_up(vtep(family, 2)), ASKED).is_flow);
        let stranger = if family == Family::V4 { ip("192.0.2.99") } else { ip("2001:db8:ff::99") };
        let answer = near.explain(0, UNDERLAY, &made_up(stranger), ASKED);
        assert_eq!(answer.verdict, Verdict::Drop(DropReason::UnknownTunnel), "{answer:#?}");
        let other = if family == Family::V4 { ip("2001:db8::1") } else { ip("192.0.2.1") };
        assert_eq!(through_tunnel(&underlay, other, vni(RED_VNI), inner), None);
        // Places are told of endpoints on other nodes alone.
        let there = RemoteEndpoint { host: vtep(family, 2), mac: mac(4) };
        assert_eq!(near.tables().remote("red", ip("10.0.0.5")), Some(there));
        assert_eq!(near.tables().remote("blue", ip("10.0.0.5")).map(|there| there.mac), Some(mac(2)));
        assert_eq!(near.tables().remote("red", ip("10.0.0.2")), None);
        assert_eq!(near.tables().remote("nobody's", ip("10.0.0.5")), None);
    }
}
