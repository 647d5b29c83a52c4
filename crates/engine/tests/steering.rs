//! Packets from tunnels on other cores than the one that reads them, over real cores.

#[allow(dead_code, reason = "each program of tests uses a part of it")]
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::cores::engine;
use common::nic::{Nic, address, datagram, endpoint, network};
use common::tunnel::{NAME, UNDERLAY, checksum, encapsulated, end_point, neighbor, underlay};
use softdpu_engine::{CoreIndex, Engine, Injector, PortCounters, PortSpec, SteeringMode, SteeringSpec};
use softdpu_ring::Format;
use softdpu_sched::Nanos;
use softdpu_sys::clock;
use softdpu_vpc::spec::{Place, Spec};
use softdpu_vpc::steer::{FiveTuple, Match};
use softdpu_vpc::{DropReason, PortId, Tables, Vni};

const VNI: u32 = 1;
/// Of another network, with guests of the same addresses.
const OTHER: u32 = 2;
/// The guest here, and the one on the other host.
const HERE: u8 = 3;
const THERE: u8 = 9;
const FLOWS: u16 = 32;
/// Frames that are injected and not received yet: no more than the guest has buffers.
const AHEAD: u32 = 128;

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

/// One guest here, at port 1, and one behind a tunnel; the same in another network, at port 2, which has no driver.
fn tables() -> Arc<Tables> {
    let network = |name, vni| network(name, vni, 1450);
    let spec = Spec {
        networks: vec![network("acme", VNI), network("globex", OTHER)],
        endpoints: vec![
            endpoint("acme", 1, HERE, Place::Port(PortId(1))),
            endpoint("acme", 8, THERE, Place::Host(end_point(2))),
            endpoint("globex", 1, HERE, Place::Port(PortId(2))),
            endpoint("globex", 8, THERE, Place::Host(end_point(2))),
        ],
        underlay: Some(underlay()),
        neighbors: vec![neighbor()],
        ..Spec::default()
    };
    Arc::new(Tables::build(&spec, None).unwrap())
}

/// A datagram of a flow from the other host, in the tunnel; its payload is `number`.
fn tunnelled(flow: u16, number: u32) -> Vec<u8> {
    let mut inner = datagram((8, THERE), (1, HERE), number, 64);
    inner[34..36].copy_from_slice(&(1000 + flow).to_be_bytes());
    encapsulated(VNI, &inner)
}

/// The frame in a tunnel of the other network.
fn of_other(mut frame: Vec<u8>) -> Vec<u8> {
    frame[46..49].copy_from_slice(&OTHER.to_be_bytes()[1..]);
    frame
}

/// The first fragment of what is in it: no flow decides about that.
fn fragment(mut frame: Vec<u8>) -> Vec<u8> {
    let ip = &mut frame[64..84];
    ip[6] |= 0x20;
    ip[10..12].fill(0);
    checksum(ip);
    frame
}

fn five_tuple(flow: u16) -> FiveTuple {
    FiveTuple { source: address(THERE), destination: address(HERE), protocol: 17, ports: [1000 + flow, 9] }
}

struct Scene {
    engine: Engine,
    guest: Nic,
    underlay: Vec<Arc<PortCounters>>,
    way_in: Injector,
    injected: u32,
    received: u32,
    /// By flow: the number behind the last.
    next: Vec<u32>,
    sent: Vec<u32>,
}

impl Scene {
    /// Brings `frames` over and over for a while, always more than the core that reads has taken, and has the balancer
    /// look; counts them.
    fn flood_and_balance(&mut self, frames: &[Vec<u8>], injected: &mut u64) {
        let look = Instant::now() + Duration::from_millis(50);
        while Instant::now() < look {
            while self.way_in.taken() + 8_000 > *injected {
                *injected += frames.len() as u64;
                self.way_in.inject(frames.to_vec());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        self.engine.balance_tunnels(Nanos(clock::now()), Some(UNDERLAY));
    }

    fn new(sleeps: Option<Duration>) -> Scene {
        let mut engine = engine(sleeps);
        assert!(engine.set_tables(&tables()).wait(Duration::from_secs(10)), "cores do not answer");
        let spec = PortSpec { name: NAME.into(), ..PortSpec::default() };
        let underlay = engine.add_port(UNDERLAY, spec, None).unwrap();
        // Before there are queues: it is the first core that frames come in by.
        let way_in = engine.injector(UNDERLAY, NAME).unwrap();
        let mut guest = Nic::new(1, Format::Split, u64::MAX);
        guest.start(&mut engine, None);
        guest.give(256);
        let flows = usize::from(FLOWS);
        Scene { engine, guest, underlay, way_in, injected: 0, received: 0, next: vec![0; flows], sent: vec![0; flows] }
    }

    /// Sends a datagram of a flow.
    fn frame(&mut self, flow: u16) -> Vec<u8> {
        let number = &mut self.sent[usize::from(flow)];
        *number += 1;
        self.injected += 1;
        tunnelled(flow, *number - 1)
    }

    /// Takes what has come. Each flow's datagrams are to be in order; some may be missing.
    fn take(&mut self) {
        while let Some((_, frame)) = self.guest.receive() {
            let flow = u16::from_be_bytes([frame[34], frame[35]]) - 1000;
            let number = u32::from_be_bytes([frame[42], frame[43], frame[44], frame[45]]);
            let next = &mut self.next[usize::from(flow)];
            assert!(number >= *next, "flow {flow}: {number} comes behind {}", *next - 1);
            *next = number + 1;
            self.received += 1;
            self.guest.give(1);
        }
    }

    fn dropped(&self) -> u64 {
        let all = |counters: &Arc<PortCounters>| counters.dropped_in.iter().map(|counter| counter.get()).sum::<u64>();
        self.underlay.iter().map(all).sum()
    }

    fn take_until(&mut self, what: &str, is_so: impl Fn(&Scene) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so(self) {
            self.take();
            let state = (self.injected, self.received, self.dropped());
            assert!(Instant::now() < deadline, "{what}: injected, received and dropped {state:?} after 60 s");
            // The cores are to have the CPUs.
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Of the first core and the second: packets that each worked on for the other.
    fn taken(&self) -> Vec<u64> {
        self.engine.cores().map(|(_, core)| core.steering.taken.get()).collect()
    }

    fn handed(&self) -> Vec<u64> {
        self.engine.cores().map(|(_, core)| core.steering.handed.get()).collect()
    }
}

fn spec(spread: &[usize], rules: &[(Match, usize)]) -> SteeringSpec {
    SteeringSpec {
        mode: SteeringMode::Manual,
        spread: spread.iter().map(|core| CoreIndex(*core)).collect(),
        rules: rules.iter().map(|(what, core)| (*what, CoreIndex(*core))).collect(),
    }
}

#[test]
fn a_flow_stays_in_order_however_often_it_moves() {
    // Cores that spin leave little to the driver where there are no more than two CPUs.
    for (sleeps, rounds) in [(None, 10), (Some(Duration::from_micros(20)), 200)] {
        let mut scene = Scene::new(sleeps);
        let flow = Match::Flow(None, five_tuple(3));
        let tables = [
            spec(&[0, 1], &[]),
            spec(&[1, 0], &[]),
            spec(&[], &[]),
            spec(&[1], &[(flow, 0)]),
            spec(&[0, 0, 1], &[(flow, 1)]),
            spec(&[], &[(Match::Vni(vni(VNI)), 1), (flow, 0)]),
            spec(&[1, 1, 0], &[(Match::Vni(vni(VNI)), 0)]),
            SteeringSpec { mode: SteeringMode::Off, ..spec(&[1], &[]) },
        ];
        // In each some 200 buckets move, or rules.
        for round in 0..rounds {
            scene.engine.set_steering(tables[round * 5 % tables.len()].clone()).unwrap();
            for burst in 0..4 {
                let frames = (0..40).map(|at| scene.frame(((at * 7 + burst) % FLOWS as usize) as u16)).collect();
                scene.way_in.inject(frames);
                scene.take_until("room for more", |scene| {
                    u64::from(scene.injected) <= u64::from(scene.received + AHEAD) + scene.dropped()
                });
            }
        }
        scene.take_until("all that was sent", |scene| {
            u64::from(scene.injected) == u64::from(scene.received) + scene.dropped()
        });
        assert_eq!(scene.dropped(), 0, "there was room for everything");
        let marks: u64 = scene.engine.cores().map(|(_, core)| core.steering.marks.get()).sum();
        assert!(marks > rounds as u64 / 4, "{marks} marks in {rounds} changes");
        let (handed, taken) = (scene.handed(), scene.taken());
        assert_eq!(handed.iter().sum::<u64>(), taken.iter().sum::<u64>());
        assert!(handed[0] > u64::from(scene.injected) / 10, "{handed:?} of {}", scene.injected);
    }
}

#[test]
fn a_rule_sends_a_networks_packets_to_the_core_it_names_and_counts_them() {
    let mut scene = Scene::new(Some(Duration::from_micros(50)));
    scene.engine.set_steering(spec(&[], &[(Match::Vni(vni(VNI)), 1), (Match::Flow(None, five_tuple(1)), 0)])).unwrap();
    let frames = (0..60).map(|at| scene.frame(at % 3)).collect();
    scene.way_in.inject(frames);
    scene.take_until("all", |scene| scene.received == 60);
    assert_eq!((scene.handed(), scene.taken()), (vec![40, 0], vec![0, 40]));
    let report = scene.engine.steering();
    let counted: Vec<_> = report.rules.iter().map(|rule| (rule.what, rule.core.0, rule.packets)).collect();
    assert_eq!(counted, [(Match::Vni(vni(VNI)), 1, 40), (Match::Flow(None, five_tuple(1)), 0, 20)]);
    assert_eq!((report.buckets, report.staying), (vec![0, 0], 256));
    // One that goes and comes again counts anew, whatever has its number meanwhile.
    scene.engine.set_steering(spec(&[], &[(Match::Vni(vni(2)), 1)])).unwrap();
    scene.engine.set_steering(spec(&[], &[(Match::Vni(vni(VNI)), 1)])).unwrap();
    assert_eq!(scene.engine.steering().rules[0].packets, 0);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut scene = Scene::new(Some(Duration::from_micros(50)));
    let good = spec(&[0, 1], &[(Match::Vni(vni(5)), 1)]);
    scene.engine.set_steering(good).unwrap();
    let before = scene.engine.steering();
    let twice = [(Match::Vni(vni(7)), 0), (Match::Vni(vni(7)), 1)];
    let many: Vec<_> = (1..=65).map(|number| (Match::Vni(vni(number)), 0)).collect();
    for bad in [spec(&[2], &[]), spec(&[], &[(Match::Vni(vni(7)), 2)]), spec(&[], &twice), spec(&[], &many)] {
        let error = scene.engine.set_steering(bad.clone());
        assert!(error.is_err(), "{bad:?}");
        assert_eq!(scene.engine.steering(), before, "{bad:?}");
    }
}

#[test]
fn what_a_core_has_no_room_for_is_counted_and_dropped_where_it_was_read() {
    let mut scene = Scene::new(Some(Duration::from_micros(50)));
    scene.engine.set_steering(spec(&[1], &[])).unwrap();
    // In one piece, so that the core that reads takes it in one go, whatever the other does meanwhile.
    let frames = (0..20_000).map(|at| scene.frame(at % FLOWS)).collect();
    scene.way_in.inject(frames);
    scene.take_until("everything is somewhere", |scene| {
        let no_buffer = |counters: &Vec<Arc<PortCounters>>| {
            counters.iter().map(|core| core.dropped_in[DropReason::CoreFull as usize].get()).sum::<u64>()
        };
        scene.taken()[1] + no_buffer(&scene.underlay) == 20_000
    });
    // Still in order, with gaps.
    scene.take();
}

#[test]
fn flows_leave_a_busy_core_for_an_idle_one_by_themselves_and_only_where_they_may() {
    let mut scene = Scene::new(Some(Duration::from_micros(50)));
    let manual = spec(&[], &[]);
    let frames: Vec<Vec<u8>> = (0..1_000).map(|at| scene.frame(at % FLOWS)).collect();
    let mut injected = 0;
    for (mode, moves) in [(SteeringMode::Manual, false), (SteeringMode::Auto, true)] {
        scene.engine.set_steering(SteeringSpec { mode, ..manual.clone() }).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut looks = 0;
        while if moves { scene.taken()[1] < 1_000 } else { looks < 20 } {
            assert!(Instant::now() < deadline, "nothing moves: {:?}", scene.engine.steering());
            // There is always more for the core that reads. The guest takes nothing: what finds no room there is
            // dropped.
            scene.flood_and_balance(&frames, &mut injected);
            looks += 1;
        }
        let report = scene.engine.steering();
        assert_eq!(report.moved > 0, moves, "{report:?}");
        if !moves {
            assert_eq!((scene.taken()[1], report.staying), (0, 256));
        }
    }
}

#[test]
fn an_elephant_gets_a_place_of_its_own_and_another_networks_flow_stays_where_a_rule_has_it() {
    let mut scene = Scene::new(Some(Duration::from_micros(50)));
    let elephant = Match::Flow(Some(vni(VNI)), five_tuple(0));
    // It is one of several flows of its bucket, and the other core has work that stays there: all of another network,
    // in which there is a flow with the elephant's addresses. So the bucket is too much to be moved as it is.
    let is_beside = |flow: &u16| five_tuple(*flow).bucket() == five_tuple(0).bucket();
    let beside: Vec<u16> = (1..50_000).filter(is_beside).take(6).collect();
    let frames: Vec<Vec<u8>> = (0..1_000)
        .map(|at| match at % 20 {
            0..8 => tunnelled(0, at),
            of @ 8..11 => tunnelled(beside[(of - 8 + at / 20 % 2 * 3) as usize], at),
            11..14 => of_other(tunnelled(0, at)),
            _ => of_other(fragment(tunnelled(0, at))),
        })
        .collect();
    let auto = SteeringSpec { mode: SteeringMode::Auto, ..spec(&[], &[(Match::Vni(vni(OTHER)), 1)]) };
    scene.engine.set_steering(auto).unwrap();
    let deadline = Instant::now() + Duration::from_secs(90);
    let mut injected = 0;
    let own = loop {
        let report = scene.engine.steering();
        let own = report.rules.iter().find(|rule| rule.what == elephant).cloned();
        // In its bucket are the others.
        if let Some(own) = own
            && own.packets > 1_000
            && (own.core.0 == 1) != (report.buckets[1] == 1)
        {
            break own;
        }
        assert!(report.rules.len() <= 2, "others are pinned: {report:?}");
        assert!(Instant::now() < deadline, "it has no place of its own: {report:?}");
        scene.flood_and_balance(&frames, &mut injected);
    };
    assert!(own.is_automatic);
    // What has its addresses in the other network goes by the rule that was made for that.
    let counts = |scene: &Scene| {
        let rules = scene.engine.steering().rules;
        [elephant, Match::Vni(vni(OTHER))]
            .map(|what| rules.iter().find(|rule| rule.what == what).map_or(0, |rule| rule.packets))
    };
    let settled = |scene: &Scene| {
        let mut before = counts(scene);
        loop {
            std::thread::sleep(Duration::from_millis(50));
            let now = counts(scene);
            if scene.way_in.taken() == injected && std::mem::replace(&mut before, now) == now {
                break now;
            }
            assert!(Instant::now() < deadline, "{} taken of {injected}", scene.way_in.taken());
        }
    };
    let before = settled(&scene);
    scene.way_in.inject((0..100).map(|number| of_other(tunnelled(0, number))).collect());
    while counts(&scene) != [before[0], before[1] + 100] {
        assert!(Instant::now() < deadline, "{before:?}, then {:?}", counts(&scene));
        std::thread::sleep(Duration::from_millis(10));
    }
}
