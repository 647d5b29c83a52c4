//! Frames from wires belong to tenants: charged, granted, and dropped at the tenant that has too many. One core by
//! hand, where each unit costs the same, so that counts are what is compared.

#[allow(dead_code, reason = "each program of tests uses a part of it")]
mod common;

use std::sync::Arc;
use std::time::Instant;

use common::disk::{Guest, memory_volume};
use common::nic::{Nic, datagram, endpoint, network};
use common::tunnel::{NAME, UNDERLAY, encapsulated, end_point, neighbor, underlay};
use softdpu_engine::{ByHand, Engine, Injector, PortCounters, PortSpec, RateLimit, TenantCounters};
use softdpu_ring::Format;
use softdpu_sched::{Cost, Nanos, Policy, Share, TenantId, TokenBucket, Tuning, Weighted};
use softdpu_sys::clock;
use softdpu_vpc::spec::{NetworkSpec, Place, Spec};
use softdpu_vpc::{DropReason, PortId, Tables};

const A: TenantId = TenantId(0);
const B: TenantId = TenantId(1);
/// Networks of each, and one of both.
const OF_A: u32 = 1;
const OF_B: u32 = 2;
const SHARED: u32 = 3;
/// Frames that wait for a tenant at the most.
const BACKLOG: u64 = 256;
/// What a unit of work costs by hand, nanoseconds.
const UNIT: u64 = 100;

/// Interfaces of A at ports 0 and 2, of B at ports 1 and 3, the last two in the network of both.
fn tables() -> Arc<Tables> {
    let of = |name, vni, tenant| NetworkSpec { tenant, ..network(name, vni, 1450) };
    let here = |name, port| endpoint(name, port, 10 + port as u8, Place::Port(PortId(port)));
    let there = |name| endpoint(name, 8, 9, Place::Host(end_point(2)));
    let spec = Spec {
        networks: vec![of("a", OF_A, Some(A)), of("b", OF_B, Some(B)), of("shared", SHARED, None)],
        endpoints: vec![
            here("a", 0),
            here("b", 1),
            here("shared", 2),
            here("shared", 3),
            there("a"),
            there("b"),
            there("shared"),
        ],
        underlay: Some(underlay()),
        neighbors: vec![neighbor()],
        ..Spec::default()
    };
    Arc::new(Tables::build(&spec, None).unwrap())
}

/// A frame to the interface at `port`, in the tunnel of a network.
fn tunnelled(vni: u32, port: u32, mark: u32) -> Vec<u8> {
    encapsulated(vni, &datagram((8, 9), (port, 10 + port as u8), mark, 64))
}

struct Scene {
    engine: Engine,
    core: ByHand,
    way_in: Injector,
    underlay: Vec<Arc<PortCounters>>,
    nics: Vec<Nic>,
    /// By interface, the marks of what it has received.
    received: Vec<Vec<u32>>,
    disk: Guest,
    answers: u64,
}

impl Scene {
    /// A disk of B's, the interfaces of both, and tenants of these weights.
    fn new(weights: [u32; 2]) -> Scene {
        let (mut engine, mut core) = Engine::by_hand_with(64, Policy::default()).unwrap();
        for (tenant, weight) in [A, B].into_iter().zip(weights) {
            engine.configure_tenant(tenant, Share { weight, ..Share::default() });
        }
        drop(engine.set_tables(&tables()));
        let spec = PortSpec { name: NAME.into(), ..PortSpec::default() };
        let underlay = engine.add_port(UNDERLAY, spec, None).unwrap();
        let way_in = engine.injector(UNDERLAY, NAME).unwrap();
        let mut nics: Vec<Nic> = (0..4).map(|port| Nic::new(port, Format::Split, u64::MAX)).collect();
        for (nic, tenant) in nics.iter_mut().zip([A, B, A, B]) {
            nic.tenant = tenant;
            nic.start(&mut engine, None);
            nic.give(256);
        }
        let disk = Guest::new(Format::Split);
        engine.start_queue(None, disk.spec(&memory_volume(1 << 20), B.0)).unwrap();
        core.round();
        Scene { engine, core, way_in, underlay, nics, received: vec![Vec::new(); 4], disk, answers: 0 }
    }

    fn round(&mut self) {
        self.core.round();
        for (nic, received) in self.nics.iter_mut().zip(&mut self.received) {
            while let Some((_, frame)) = nic.receive() {
                received.push(u32::from_be_bytes([frame[42], frame[43], frame[44], frame[45]]));
                nic.give(1);
            }
        }
        while let Some((status, _)) = self.disk.take() {
            assert_eq!(status, 0);
            self.answers += 1;
        }
    }

    /// B asks its disk for so many blocks.
    fn ask(&mut self, count: u64) {
        (0..count).for_each(|sector| assert!(self.disk.submit(None, sector), "no room in the ring"));
        self.disk.publish();
    }

    /// Goes on until nothing is left to do.
    fn drain(&mut self) {
        for _ in 0..10_000 {
            if !self.core.round() {
                return self.round();
            }
            self.round();
        }
        panic!("there is work after 10,000 rounds");
    }

    fn counters(&self, tenant: TenantId) -> &TenantCounters {
        &self.engine.tenant(tenant)[0]
    }

    /// What a tenant has been charged: its units cost the same, its bytes do not.
    fn price(&self, tenant: TenantId) -> f64 {
        let counters = self.counters(tenant);
        let (time, bytes) = (Nanos(counters.core_ns.get()), counters.bytes.get());
        Weighted::new(Tuning::default()).price(Cost { time, bytes, ..Cost::default() }) as f64
    }

    /// Frames from wires that went on and that were dropped.
    fn frames(&self, tenant: TenantId) -> [u64; 2] {
        [self.counters(tenant).ingress_frames.get(), self.counters(tenant).ingress_dropped.get()]
    }

    fn dropped_at_underlay(&self) -> u64 {
        self.underlay.iter().map(|core| core.dropped_in[DropReason::IngressFull as usize].get()).sum()
    }
}

#[test]
fn what_nothing_competes_with_goes_on_at_once_and_is_charged_to_its_tenant() {
    let mut scene = Scene::new([1, 1]);
    scene.way_in.inject((0..100).map(|mark| tunnelled(OF_A, 0, mark)).collect());
    scene.round();
    assert_eq!(scene.received[0], (0..100).collect::<Vec<_>>());
    let account = |tenant| {
        let counters = scene.counters(tenant);
        [counters.served.get(), counters.core_ns.get(), counters.ingress_frames.get(), counters.ingress_dropped.get()]
    };
    assert_eq!((account(A), account(B)), ([100, 100 * UNIT, 100, 0], [0; 4]));
    assert!(scene.counters(A).bytes.get() >= 100 * 64);
}

#[test]
fn a_network_of_several_tenants_is_charged_by_the_interface_that_a_frame_is_for() {
    let mut scene = Scene::new([1, 1]);
    scene.way_in.inject((0..30).map(|mark| tunnelled(SHARED, if mark % 3 == 0 { 2 } else { 3 }, mark)).collect());
    scene.drain();
    assert_eq!((scene.frames(A), scene.frames(B)), ([10, 0], [20, 0]));
}

#[test]
fn what_no_tenant_is_known_for_is_the_nodes() {
    let mut scene = Scene::new([1, 1]);
    // An unknown network, an address of no guest, and no tunnel at all.
    let frames = [tunnelled(77, 0, 0), tunnelled(SHARED, 7, 0), datagram((8, 9), (0, 10), 0, 64)];
    scene.way_in.inject(frames.to_vec());
    scene.drain();
    assert_eq!((scene.frames(A), scene.frames(B)), ([0; 2], [0; 2]));
    assert_eq!([A, B].map(|tenant| scene.counters(tenant).core_ns.get()), [0; 2]);
}

#[test]
fn a_flood_from_the_wire_leaves_others_their_shares_and_is_dropped_at_its_tenant_alone() {
    for weights in [[1, 1], [3, 1], [1, 4]] {
        let mut scene = Scene::new(weights);
        scene.core.set_turn(1);
        let (mut sent_to_a, mut sent_to_b) = (0, 0);
        for _ in 0..2_000 {
            // Frames for B come in between those of the flood.
            let mut frames = Vec::new();
            for at in 0..200 {
                frames.push(tunnelled(OF_A, 0, sent_to_a));
                sent_to_a += 1;
                if at % 100 == 0 {
                    frames.push(tunnelled(OF_B, 1, sent_to_b));
                    sent_to_b += 1;
                }
            }
            scene.way_in.inject(frames);
            let room = 64 - scene.disk.outstanding() as u64;
            scene.ask(room);
            scene.round();
        }
        let [a, b] = [A, B].map(|tenant| scene.price(tenant));
        let (ratio, due) = (a / b, f64::from(weights[0]) / f64::from(weights[1]));
        assert!((0.98..1.02).contains(&(ratio / due)), "weights {weights:?}: A has {ratio} times what B has");
        scene.drain();
        let [went_on, dropped] = scene.frames(A);
        assert!(dropped > 0 && went_on + dropped == u64::from(sent_to_a), "{went_on} + {dropped} of {sent_to_a}");
        assert_eq!(scene.frames(B), [sent_to_b.into(), 0], "none of the tenant beside it is dropped");
        assert_eq!(scene.dropped_at_underlay(), dropped, "nor anything elsewhere");
        assert_eq!(scene.received[1], (0..sent_to_b).collect::<Vec<_>>());
        assert_eq!(scene.received[0].len() as u64, went_on);
        assert!(scene.received[0].is_sorted(), "in order");
        let all = scene.counters(B).served.get();
        assert_eq!(all, scene.answers + u64::from(sent_to_b), "disk and frames are all that B has had");
    }
}

#[test]
fn a_tenants_frames_stay_in_order_when_others_come_and_go() {
    let mut scene = Scene::new([1, 1]);
    scene.core.set_turn(1);
    let (mut sent, mut sizes) = (0, Vec::new());
    for round in 0..600 {
        // Others have work in some rounds, and there are more or fewer frames.
        if round / 7 % 2 == 0 {
            let room = 64 - scene.disk.outstanding() as u64;
            scene.ask(room);
        }
        let count = [1, 40, 5, 0, 12][round % 5];
        scene.way_in.inject((sent..sent + count).map(|mark| tunnelled(OF_A, 0, mark)).collect());
        sent += count;
        scene.round();
        sizes.push(u64::from(sent) - scene.received[0].len() as u64);
    }
    scene.drain();
    assert_eq!(scene.frames(A), [sent.into(), 0], "there was room");
    assert_eq!(scene.received[0], (0..sent).collect::<Vec<_>>());
    assert!(sizes.iter().any(|waiting| *waiting > 32) && sizes.contains(&0), "some waited, some did not: {sizes:?}");
}

#[test]
fn a_backlog_holds_so_many_frames_and_drops_those_behind_them() {
    let mut scene = Scene::new([1, 1]);
    scene.core.set_turn(0);
    scene.ask(1);
    scene.round();
    // B's request waits.
    scene.way_in.inject((0..300).map(|mark| tunnelled(OF_A, 0, mark)).collect());
    scene.round();
    assert_eq!((scene.frames(A), scene.dropped_at_underlay()), ([0, 300 - BACKLOG], 300 - BACKLOG));
    scene.core.set_turn(u32::MAX);
    scene.drain();
    assert_eq!(scene.received[0], (0..BACKLOG as u32).collect::<Vec<_>>());
    assert_eq!(scene.answers, 1);
}

#[test]
fn what_wires_bring_beyond_a_tenants_limit_is_dropped_there_alone() {
    let mut scene = Scene::new([1, 1]);
    let began = Instant::now();
    let limit = RateLimit::new(Some(TokenBucket::new(1, 20, Nanos(clock::now()))), None);
    scene.engine.limit_ingress(A, Some(limit));
    let frames = |mark| [tunnelled(OF_A, 0, mark), tunnelled(OF_B, 1, mark)];
    scene.way_in.inject((0..100).flat_map(frames).collect());
    scene.drain();
    let (most, [went_on, dropped]) = (21 + began.elapsed().as_secs(), scene.frames(A));
    assert!((20..=most).contains(&went_on) && dropped == 0, "{went_on} went on, {dropped} found no room");
    assert_eq!(scene.received[0], (0..went_on as u32).collect::<Vec<_>>(), "what came first");
    let policed = scene.underlay.iter().map(|core| core.dropped_in[DropReason::Policed as usize].get()).sum::<u64>();
    assert_eq!([policed, scene.counters(A).ingress_limited.get()], [100 - went_on; 2]);
    assert_eq!((scene.frames(B), scene.counters(B).ingress_limited.get()), ([100, 0], 0));

    scene.engine.limit_ingress(A, None);
    scene.way_in.inject((100..200).map(|mark| tunnelled(OF_A, 0, mark)).collect());
    scene.drain();
    assert_eq!(scene.frames(A), [went_on + 100, 0]);
}

#[test]
fn a_light_tenant_waits_for_a_grant_of_the_flood_at_the_most() {
    let mut scene = Scene::new([1, 1]);
    scene.core.set_turn(1);
    let mut waits = Vec::new();
    let mut asked = None;
    for round in 0..1_000 {
        scene.way_in.inject((0..256).map(|mark| tunnelled(OF_A, 0, mark)).collect());
        let before = scene.answers;
        if asked.is_none() {
            scene.ask(1);
            asked = Some((round, scene.frames(A)[0]));
        }
        scene.round();
        if scene.answers > before
            && let Some((at, went_on)) = asked.take()
        {
            waits.push((round - at, scene.frames(A)[0] - went_on));
        }
    }
    let (rounds, frames) = waits.iter().fold((0, 0), |(a, b), wait| (a.max(wait.0), b.max(wait.1)));
    assert!(waits.len() > 400 && rounds <= 1, "{rounds} rounds, {frames} frames at the most, {} times", waits.len());
}
