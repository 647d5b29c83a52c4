//! One core driven by hand, so that what it does can be counted: frames from guest to guest, requests of a disk; and
//! the tiers by themselves, for frames that come by a tunnel.
//!
//! `lab/instructions.sh` runs it under callgrind, which counts the instructions of `measured_round` and of all it
//! calls; the drivers' side and what goes before are outside of it. By itself it only says what it did:
//!
//! `cargo run --release -p softdpu-engine --example instructions -- CASE` (without a case: the list of them)

#[allow(dead_code, missing_docs, unreachable_pub, reason = "drivers of the tests, of which this uses a part")]
#[path = "../tests/common/mod.rs"]
mod common;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::ExitCode;
use std::sync::Arc;

use common::disk::Guest;
use common::nic::{self, HEADER, Nic};
use softdpu_engine::{ByHand, Engine};
use softdpu_ring::Format;
use softdpu_sched::{Policy, TenantId};
use softdpu_storage::{Encryption, KeySource, PathBroker, Volume, VolumeKind, VolumeSpec};
use softdpu_vpc::packet::Mac;
use softdpu_vpc::spec::{EndpointSpec, NeighborSpec, NetworkSpec, Place, Spec, SubnetSpec, UnderlaySpec, VXLAN_PORT};
use softdpu_vpc::{Checksum, Head, Packet, PortId, Tables, Verdict, Vni, Vpc};

/// Rounds before those that are counted: rings wrapped, allocations made, interrupts put off.
const WARM_UP: usize = 24;
/// Rounds that are counted.
const ROUNDS: usize = 40;

/// What is done in a round.
#[derive(Clone, Copy)]
enum Work {
    /// UDP frames of so many bytes, without FCS, of so many tenants, each between two guests.
    Frames(usize, u16),
    /// TCP frames of 44 segments of 1,460 bytes that are not segmented.
    Segments,
    /// Reads of a sector from a volume with nothing behind it, by so many tenants.
    Reads(u16),
    /// Reads or writes of 4 KiB from an encrypted volume in memory: AES-256-XTS, in sectors of 4 KiB.
    Encrypted { is_write: bool },
    /// Frames of 64 bytes from a tunnel, in the tiers alone: into another, or to a guest here; by flows or without
    /// them.
    Tunnelled { is_transit: bool, without_flows: bool },
}

/// Name, work, ring layout, frames or requests in a round.
const CASES: [(&str, Work, Format, usize); 20] = [
    ("net-64-split", Work::Frames(60, 1), Format::Split, 32),
    ("net-64-packed", Work::Frames(60, 1), Format::Packed, 32),
    ("net-64-split-single", Work::Frames(60, 1), Format::Split, 1),
    ("net-64-split-4-tenants", Work::Frames(60, 4), Format::Split, 128),
    ("net-1500-split", Work::Frames(1514, 1), Format::Split, 32),
    ("net-1500-packed", Work::Frames(1514, 1), Format::Packed, 32),
    ("net-64k-split", Work::Segments, Format::Split, 4),
    ("net-64k-packed", Work::Segments, Format::Packed, 4),
    ("block-read-split", Work::Reads(1), Format::Split, 16),
    ("block-read-packed", Work::Reads(1), Format::Packed, 16),
    ("block-read-split-single", Work::Reads(1), Format::Split, 1),
    ("block-read-split-4-tenants", Work::Reads(4), Format::Split, 64),
    // As many as are taken from a ring at once: what backlogged tenants have.
    ("block-read-split-backlog", Work::Reads(1), Format::Split, 64),
    ("block-read-split-4-backlogs", Work::Reads(4), Format::Split, 256),
    ("block-read-encrypted", Work::Encrypted { is_write: false }, Format::Split, 16),
    ("block-write-encrypted", Work::Encrypted { is_write: true }, Format::Split, 16),
    ("tunnel-in", Work::Tunnelled { is_transit: false, without_flows: false }, Format::Split, 32),
    ("tunnel-in-no-flows", Work::Tunnelled { is_transit: false, without_flows: true }, Format::Split, 32),
    ("transit", Work::Tunnelled { is_transit: true, without_flows: false }, Format::Split, 32),
    ("transit-no-flows", Work::Tunnelled { is_transit: true, without_flows: true }, Format::Split, 32),
];

/// Those of them that are also counted with tenants that share by weight: the name with this behind it. Otherwise they
/// are served as they come.
const WEIGHTED: &str = "-weighted";
/// Which.
const ALSO_WEIGHTED: [&str; 7] = [
    "net-64-split",
    "net-64-split-4-tenants",
    "block-read-split",
    "block-read-split-single",
    "block-read-split-4-tenants",
    "block-read-split-backlog",
    "block-read-split-4-backlogs",
];

/// A round that is counted, by its name.
#[inline(never)]
fn measured_round(core: &mut ByHand) -> bool {
    core.round()
}

/// Likewise, of the tiers.
#[inline(never)]
fn measured_round_of_tiers(vpc: &mut Vpc, now: u64, packets: &mut [Packet], verdicts: &mut Vec<Verdict>) {
    vpc.forward(now, packets, verdicts);
}

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1);
    let plain = wanted.as_deref().map(|name| name.strip_suffix(WEIGHTED).unwrap_or(name));
    let fairness = if plain == wanted.as_deref() { Policy::Fcfs } else { Policy::default() };
    match CASES.iter().find(|(name, ..)| Some(*name) == plain) {
        Some(&(_, work, format, batch)) => {
            match work {
                Work::Reads(tenants) => reads(fairness, tenants, format, batch),
                Work::Encrypted { is_write } => encrypted(fairness, is_write, format, batch),
                Work::Tunnelled { is_transit, without_flows } => tunnelled(is_transit, without_flows, batch),
                frames => send(fairness, frames, format, batch),
            }
            println!("units {}", ROUNDS * batch);
            ExitCode::SUCCESS
        }
        None => {
            CASES.iter().for_each(|(name, ..)| println!("{name}"));
            ALSO_WEIGHTED.iter().for_each(|name| println!("{name}{WEIGHTED}"));
            ExitCode::from(if wanted.is_some() { 2 } else { 0 })
        }
    }
}

/// Sends `batch` frames in each round from guests to others of their network, tenants as many each.
fn send(fairness: Policy, work: Work, format: Format, batch: usize) {
    let (header, len, protocol, tenants) = match work {
        Work::Segments => ([1, 1, 54, 0, 0xb4, 5, 34, 0, 16, 0, 0, 0], 54 + 44 * 1460, 6, 1),
        Work::Frames(len, tenants) => ([0; HEADER], len, 17, tenants),
        Work::Reads(_) | Work::Encrypted { .. } | Work::Tunnelled { .. } => return,
    };
    let (mut engine, mut core) = Engine::by_hand_with(64, fairness).expect("a core");
    engine.set_tables(&Arc::new(Tables::build(&spec(2 * u32::from(tenants)), None).expect("a good spec")));
    let batch = batch / usize::from(tenants);
    let buffers = (HEADER + len).div_ceil(nic::RX_SLOT as usize) * batch;
    let mut pairs: Vec<(Nic, Nic, Vec<u8>)> = (0..tenants)
        .map(|tenant| {
            let port = 2 * u32::from(tenant);
            let [mut a, mut b] = [port, port + 1].map(|port| Nic::new(port, format, u64::MAX));
            (a.tenant, b.tenant) = (TenantId(tenant), TenantId(tenant));
            a.in_one_piece = true;
            a.start(&mut engine, None);
            b.start(&mut engine, None);
            b.give(buffers);
            (a, b, packet(protocol, port as u8 + 2, len))
        })
        .collect();
    core.round();
    for round in 0..WARM_UP + ROUNDS {
        for (a, _, frame) in &mut pairs {
            for _ in 0..batch {
                assert!(a.send(&header, frame), "a transmit queue with room");
            }
        }
        let busy = if round < WARM_UP { core.round() } else { measured_round(&mut core) };
        assert!(busy, "a round with frames");
        for (_, b, frame) in &mut pairs {
            for _ in 0..batch {
                let (_, arrived) = b.receive().expect("every frame arrives in its round");
                assert!(arrived == *frame, "as it was sent");
            }
            b.give(buffers);
        }
    }
}

/// Reads `batch` sectors in each round, tenants as many each.
fn reads(fairness: Policy, tenants: u16, format: Format, batch: usize) {
    let requests = |guest: &mut Guest| {
        (0..batch / usize::from(tenants))
            .for_each(|sector| assert!(guest.submit(None, sector as u64), "a queue with room"));
    };
    rounds_of_requests(
        fairness,
        VolumeSpec::new("null", VolumeKind::Null { size: 1 << 20 }),
        tenants,
        format,
        batch,
        requests,
    );
}

/// Reads or writes `batch` blocks of 4 KiB in each round.
fn encrypted(fairness: Policy, is_write: bool, format: Format, batch: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key);
    let bytes: Vec<u8> = (0..64).collect();
    file.and_then(|mut file| file.write_all(&bytes)).expect("a key file");
    let encryption = Some(Encryption { key: KeySource::File(key), sector_size: 4096, discard: false });
    let spec =
        VolumeSpec { block_size: 4096, encryption, ..VolumeSpec::new("memory", VolumeKind::Memory { size: 1 << 20 }) };
    let requests = |guest: &mut Guest| {
        (0..batch).for_each(|block| assert!(guest.submit_long(is_write, 8 * block as u64, 4096), "a queue with room"));
    };
    rounds_of_requests(fairness, spec, 1, format, batch, requests);
}

/// `requests` has a guest hand over its part of `batch`.
fn rounds_of_requests(
    fairness: Policy,
    spec: VolumeSpec,
    tenants: u16,
    format: Format,
    batch: usize,
    requests: impl Fn(&mut Guest),
) {
    let (mut engine, mut core) = Engine::by_hand_with(64, fairness).expect("a core");
    let volume = Volume::open(spec, &PathBroker::new()).expect("a volume");
    volume.activate().expect("no other device has it");
    let mut guests: Vec<Guest> = (0..tenants).map(|_| Guest::new(format)).collect();
    for (tenant, guest) in guests.iter().enumerate() {
        engine.start_queue(None, guest.spec(&volume, tenant as u16)).expect("a queue");
    }
    core.round();
    for round in 0..WARM_UP + ROUNDS {
        for guest in &mut guests {
            requests(guest);
            guest.publish();
        }
        let busy = if round < WARM_UP { core.round() } else { measured_round(&mut core) };
        assert!(busy, "a round with requests");
        for guest in &mut guests {
            for _ in 0..batch / usize::from(tenants) {
                assert_eq!(guest.take().map(|(status, _)| status), Some(0), "every request ends in its round");
            }
        }
    }
}

/// Takes `batch` frames of so many flows from node 2 through the tiers of node 1 in each round: to a guest there, or to
/// node 3.
fn tunnelled(is_transit: bool, without_flows: bool, batch: usize) {
    let host = |node: u8| IpAddr::from([192, 0, 2, node]);
    let node = |number: u8| {
        let mut spec = spec(2);
        spec.networks[0].transit = true;
        let place = |endpoint: &mut EndpointSpec, at: u8| {
            endpoint.place =
                if at == number { Place::Port(PortId(0)) } else { Place::Host(host(if number == 2 { 1 } else { at })) };
        };
        place(&mut spec.endpoints[0], 2);
        place(&mut spec.endpoints[1], if is_transit { 3 } else { 1 });
        spec.underlay = Some(UnderlaySpec {
            port: PortId(2),
            addresses: vec![host(number)],
            mac: Mac([2, 0, 0, 0, 0, number]),
            udp_port: VXLAN_PORT,
            mtu: 1600,
            dont_fragment: true,
        });
        let neighbor = |node| NeighborSpec { host: host(node), mac: Mac([2, 0, 0, 0, 0, node]) };
        spec.neighbors = [1, 2, 3].map(neighbor).into();
        spec.without_flows = without_flows;
        Vpc::new(Arc::new(Tables::build(&spec, None).expect("a good spec")))
    };
    let (mut sender, mut here) = (node(2), node(1));
    let mut frame = packet(17, 2, 64);
    let mut verdicts = Vec::new();
    for round in 0..WARM_UP + ROUNDS {
        let one = |flow: usize| {
            frame[34..36].copy_from_slice(&(flow as u16).to_be_bytes());
            let (head, checksum) = (Head::of(&frame), Checksum::Complete);
            Packet { head, tail: 0, checksum, segmentation: None, port: PortId(0) }
        };
        let mut packets: Vec<Packet> = (0..batch).map(one).collect();
        let now = 1_000_000 * round as u64;
        verdicts.clear();
        sender.forward(now, &mut packets, &mut verdicts);
        packets.iter_mut().for_each(|packet| packet.port = PortId(2));
        verdicts.clear();
        if round < WARM_UP {
            here.forward(now, &mut packets, &mut verdicts);
        } else {
            measured_round_of_tiers(&mut here, now, &mut packets, &mut verdicts);
        }
        let left = |verdict: &Verdict| match verdict {
            Verdict::Local { .. } => !is_transit,
            Verdict::Underlay { .. } => is_transit,
            _ => false,
        };
        assert!(verdicts.len() == batch && verdicts.iter().all(left), "{verdicts:?}");
    }
}

fn mac(host: u8) -> [u8; 6] {
    // As the driver has it: port 0 is host 2.
    [2, 0x5d, 0, 0, 0, host - 1]
}

/// Guests of one network, with the checks that a site has.
fn spec(guests: u32) -> Spec {
    let network = NetworkSpec {
        name: "acme".into(),
        vni: Vni::new(1).unwrap(),
        subnets: vec![SubnetSpec {
            prefix: "10.0.0.0/24".parse().expect("a prefix"),
            gateway: IpAddr::from([10, 0, 0, 1]),
        }],
        gateway_mac: Mac([2, 0x5d, 0, 0, 0, 0xff]),
        mtu: 1500,
        dns: Vec::new(),
        policy: Default::default(),
        transit: false,
        tenant: None,
    };
    let endpoint = |port: u32| {
        let host = port as u8 + 2;
        EndpointSpec {
            network: "acme".into(),
            mac: Mac(mac(host)),
            addresses: vec![IpAddr::from([10, 0, 0, host])],
            place: Place::Port(PortId(port)),
            mtu: None,
            spoof_check: true,
            policy: Default::default(),
        }
    };
    Spec { networks: vec![network], endpoints: (0..guests).map(endpoint).collect(), ..Spec::default() }
}

/// A frame of `len` bytes from the guest that is host `from` to the next, of `protocol` over IPv4.
fn packet(protocol: u8, from: u8, len: usize) -> Vec<u8> {
    let mut frame = [&mac(from + 1)[..], &mac(from), &[8, 0]].concat();
    let total = ((len - 14) as u16).to_be_bytes();
    let mut ip =
        vec![0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, from, 10, 0, 0, from + 1];
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    // Ports, then the length of UDP or the sequence number of TCP.
    frame.extend([0x30, 0x39, 0, 9]);
    match protocol {
        17 => {
            frame.extend(((len - 34) as u16).to_be_bytes());
            frame.extend([0, 0]);
        }
        _ => frame.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]),
    }
    frame.resize(len, 0);
    frame
}
