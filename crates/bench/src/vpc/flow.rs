//! Packets whose flow is known: 64-byte UDP frames over IPv4 from one endpoint to another, in bursts of 32, each with its key read,
//! its flow found, its version, path MTU and hop limit checked, its meter passed, its headers rewritten and its flow's counters
//! moved on. Filling the heads, which a device does by copying, is measured as a case of its own: what remains is told as the
//! figure `hit`.

use std::net::Ipv4Addr;
use std::sync::Arc;

use softdpu_sys::clock;
use softdpu_vpc::spec::{EndpointSpec, NeighborSpec, NetworkSpec, Place, Spec, SubnetSpec, UnderlaySpec, VXLAN_PORT};
use softdpu_vpc::{Checksum, Head, Mac, Packet, PortId, Tables, Verdict, Vpc};

use super::{Case, Load};

/// A burst, as of the engine.
const BURST: usize = 32;
const FRAME: usize = 64;
/// Endpoints that send, and as many that receive.
const SENDERS: u32 = 1024;
/// Different packets where no flows are kept.
const FEW: u32 = 1 << 16;
/// Packets whose time is looked at as one.
const CHUNK: u64 = 4096;
/// Packets in the order in which they come, over and over.
const ORDER: usize = 1 << 20;
const UNDERLAY: PortId = PortId(2 * SENDERS);
const REMOTE: std::net::IpAddr = std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
/// The node that sends by a tunnel.
const SENDER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const VNI: u32 = 5001;
/// Bytes of outer headers over IPv4.
const OUTER: usize = 50;

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    let hit = |flows, name, order, way| -> Box<dyn Case> { Box::new(Hit { flows, name, order, way }) };
    let mut cases = vec![
        hit(1 << 16, "hit, 64 k flows", Order::Uniform, Way::Beside),
        hit(1 << 20, "hit, 1 M flows", Order::Uniform, Way::Beside),
        hit(1 << 22, "hit, 4 M flows", Order::Uniform, Way::Beside),
        hit(1 << 24, "hit, 16 M flows", Order::Uniform, Way::Beside),
        hit(1 << 16, "hit, Zipf over 64 k flows", Order::Zipf, Way::Beside),
        hit(1 << 22, "hit, Zipf over 4 M flows", Order::Zipf, Way::Beside),
        hit(1 << 24, "hit, Zipf over 16 M flows", Order::Zipf, Way::Beside),
        hit(1 << 16, "hit, an elephant among 64 k flows", Order::Elephant, Way::Beside),
        hit(1 << 16, "hit and VXLAN, 64 k flows", Order::Uniform, Way::Out),
        hit(1 << 22, "hit and VXLAN, 4 M flows", Order::Uniform, Way::Out),
        hit(1 << 16, "hit from VXLAN, 64 k flows", Order::Uniform, Way::In),
        hit(1 << 16, "hit from VXLAN to VXLAN, 64 k flows", Order::Uniform, Way::Through),
        hit(0, "no flows, from VXLAN", Order::Uniform, Way::In),
        hit(0, "no flows, from VXLAN to VXLAN", Order::Uniform, Way::Through),
    ];
    cases.push(Box::new(After { flows: 1 << 20, is_changed: false }));
    cases.push(Box::new(After { flows: 1 << 20, is_changed: true }));
    cases
}

/// From where to where packets go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// From a guest here to another.
    Beside,
    /// From a guest here into a tunnel.
    Out,
    /// From a tunnel to a guest here.
    In,
    /// From a tunnel into another.
    Through,
}

impl Way {
    fn is_from_tunnel(self) -> bool {
        matches!(self, Way::In | Way::Through)
    }

    fn is_to_tunnel(self) -> bool {
        matches!(self, Way::Out | Way::Through)
    }
}

/// Which flow's packet comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Uniform,
    /// The n-th most frequent comes about 1/n times as often as the first.
    Zipf,
    /// Every packet is one flow's.
    Elephant,
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

impl Order {
    fn of(self, flows: u32) -> Vec<u32> {
        let mut state = 0x2545_f491_4f6c_dd1d;
        let one = |_| {
            let bits = random(&mut state) >> 11;
            match self {
                Order::Uniform => (bits % u64::from(flows)) as u32,
                Order::Zipf => f64::from(flows).powf(bits as f64 / (1u64 << 53) as f64) as u32 - 1,
                Order::Elephant => 7,
            }
        };
        (0..ORDER).map(one).collect()
    }
}

fn mac(number: u32) -> Mac {
    let [a, b, c, d] = number.to_be_bytes();
    Mac([2, 0x5d, a, b, c, d])
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0002 + number)
}

fn spec(way: Way, flows: u32) -> Spec {
    let network = NetworkSpec {
        name: "bench".into(),
        vni: VNI,
        subnets: vec![SubnetSpec {
            prefix: "10.0.0.0/8".parse().expect("a prefix"),
            gateway: Ipv4Addr::new(10, 0, 0, 1).into(),
        }],
        gateway_mac: Mac([2, 0xff, 0, 0, 0, 1]),
        mtu: 1500,
        dns: Vec::new(),
        policy: Default::default(),
        transit: way == Way::Through,
    };
    let endpoint = |number: u32| EndpointSpec {
        network: "bench".into(),
        mac: mac(number),
        addresses: vec![address(number).into()],
        place: match number >= SENDERS {
            true if way.is_to_tunnel() => Place::Host(REMOTE),
            false if way.is_from_tunnel() => Place::Host(SENDER.into()),
            _ => Place::Port(PortId(number)),
        },
        mtu: None,
        spoof_check: true,
        policy: Default::default(),
    };
    let underlay = UnderlaySpec {
        port: UNDERLAY,
        addresses: vec![HERE.into()],
        mac: Mac([2, 0, 0, 0, 0, 1]),
        udp_port: VXLAN_PORT,
        mtu: 1600,
        dont_fragment: true,
    };
    Spec {
        networks: vec![network],
        endpoints: (0..2 * SENDERS).map(endpoint).collect(),
        underlay: Some(underlay),
        neighbors: [REMOTE, SENDER.into()].map(|host| NeighborSpec { host, mac: Mac([2, 0, 0, 0, 0, 2]) }).into(),
        without_flows: flows == 0,
        ..Spec::default()
    }
}

/// The outer headers of a frame from the other node: Ethernet, IPv4, UDP without a checksum, VXLAN (RFC 7348 §5).
fn outer() -> [u8; OUTER] {
    let mut outer = [0; OUTER];
    outer[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    let len = |from: usize| ((OUTER + FRAME - from) as u16).to_be_bytes();
    outer[14..16].copy_from_slice(&[0x45, 0]);
    outer[16..18].copy_from_slice(&len(14));
    outer[20..24].copy_from_slice(&[0x40, 0, 64, 17]);
    outer[26..30].copy_from_slice(&SENDER.octets());
    outer[30..34].copy_from_slice(&HERE.octets());
    outer[34..36].copy_from_slice(&[0xc0, 0]);
    outer[36..38].copy_from_slice(&VXLAN_PORT.to_be_bytes());
    outer[38..40].copy_from_slice(&len(34));
    outer[42] = 8;
    outer[46..49].copy_from_slice(&VNI.to_be_bytes()[1..]);
    outer
}

/// A core with flows, and the packets that come.
struct Core {
    vpc: Vpc,
    flows: u32,
    packets: Vec<Packet>,
    verdicts: Vec<Verdict>,
    template: [u8; FRAME],
    outer: [u8; OUTER],
    way: Way,
    now: u64,
    order: Vec<u32>,
    at: usize,
    /// Packets in the tiers, and the time of those since the last chunk was full.
    packets_inside: u64,
    since: u64,
    /// Nanoseconds a packet in the tiers, chunk by chunk: short enough that few of them have lost their processor.
    chunks: Vec<f32>,
}

impl Core {
    fn new(flows: u32, order: Vec<u32>, way: Way) -> Result<Core, String> {
        let tables = Tables::build(&spec(way, flows)).map_err(|error| error.to_string())?;
        let packet = Packet {
            head: Head::with_len(FRAME),
            tail: 0,
            checksum: Checksum::Complete,
            segmentation: None,
            port: PortId(0),
        };
        let mut template = [0; FRAME];
        template[..6].copy_from_slice(&[2, 0xff, 0, 0, 0, 1]);
        template[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, FRAME as u8 - 14, 0, 0, 0x40, 0, 64, 17]);
        template[36..40].copy_from_slice(&[0x20, 0, 0, FRAME as u8 - 34]);
        Ok(Core {
            vpc: Vpc::with_flows(Arc::new(tables), flows as usize),
            flows,
            packets: vec![packet; BURST],
            verdicts: Vec::with_capacity(BURST),
            template,
            outer: outer(),
            way,
            now: 1,
            order,
            at: 0,
            packets_inside: 0,
            since: 0,
            chunks: Vec::new(),
        })
    }

    /// Makes the packet at `at` one of a flow.
    #[inline]
    fn fill(&mut self, at: usize, flow: u32) {
        let (from, to, port) = (flow % SENDERS, SENDERS + flow / SENDERS % SENDERS, flow / SENDERS / SENDERS);
        let packet = &mut self.packets[at];
        packet.port = if self.way.is_from_tunnel() { UNDERLAY } else { PortId(from) };
        packet.head.reset(FRAME);
        let bytes: &mut [u8; FRAME] = packet.head.bytes_mut().first_chunk_mut().expect("its length");
        *bytes = self.template;
        bytes[6..12].copy_from_slice(&mac(from).0);
        bytes[26..30].copy_from_slice(&address(from).octets());
        bytes[30..34].copy_from_slice(&address(to).octets());
        bytes[34..36].copy_from_slice(&(port as u16).to_be_bytes());
        if self.way.is_from_tunnel()
            && let Some(headers) = packet.head.prepend(OUTER)
        {
            headers.copy_from_slice(&self.outer);
        }
    }

    /// A burst of the packets that come next.
    fn burst(&mut self) {
        self.fill_next();
        self.forward();
    }

    fn fill_next(&mut self) {
        for at in 0..BURST {
            let flow = self.order[(self.at + at) % ORDER];
            self.fill(at, flow);
        }
        self.at = (self.at + BURST) % ORDER;
    }

    fn forward(&mut self) {
        self.verdicts.clear();
        let start = clock::now();
        self.now += 1_000;
        self.vpc.forward(self.now, &mut self.packets, &mut self.verdicts);
        self.since += clock::now() - start;
        self.packets_inside += BURST as u64;
        if self.packets_inside.is_multiple_of(CHUNK) {
            self.chunks.push((self.since as f64 / CHUNK as f64) as f32);
            self.since = 0;
        }
    }

    /// Makes all flows known, if any are kept.
    fn learn(&mut self) -> Result<(), String> {
        if self.flows == 0 {
            self.flows = FEW;
            return Ok(());
        }
        let mut flow = 0;
        while flow < self.flows {
            for at in 0..BURST {
                self.fill(at, (flow + at as u32) % self.flows);
            }
            self.forward();
            flow += BURST as u32;
        }
        let known = self.vpc.flows() as f64 / f64::from(self.flows);
        if known < 0.999 {
            return Err(format!("only {:.2}% of the flows are known", known * 100.0));
        }
        (self.packets_inside, self.since) = (0, 0);
        self.chunks.clear();
        Ok(())
    }

    /// Nanoseconds a packet in the tiers: the median of all chunks.
    fn nanos(&self) -> f64 {
        let mut chunks = self.chunks.clone();
        chunks.sort_unstable_by(f32::total_cmp);
        chunks.get(chunks.len() / 2).copied().unwrap_or(f32::NAN).into()
    }

    fn figures(&self, decided: u64) -> Vec<(&'static str, &'static str, f64)> {
        let mut figures = vec![
            ("hit", "ns", self.nanos()),
            ("hit-rate", "1/s", 1e9 / self.nanos()),
            ("by-flow", "%", decided as f64 / self.packets_inside as f64 * 100.0),
        ];
        if let Some(ticks) = clock::ticks_per_nanosecond() {
            figures.push(("hit-cycles", "1", self.nanos() * ticks));
        }
        figures
    }
}

/// Packets of flows that are known.
struct Hit {
    flows: u32,
    name: &'static str,
    order: Order,
    way: Way,
}

impl Case for Hit {
    fn name(&self) -> String {
        format!("flow: {}", self.name)
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let order = self.order.of(if self.flows == 0 { FEW } else { self.flows });
        let mut core = Core::new(self.flows, order, self.way)?;
        core.learn()?;
        let before = core.vpc.stats().cached;
        Ok(Box::new(Hitting { core, before }))
    }
}

struct Hitting {
    core: Core,
    before: u64,
}

impl Load for Hitting {
    fn run(&mut self, operations: u64) -> u64 {
        let bursts = operations.div_ceil(BURST as u64);
        for _ in 0..bursts {
            self.core.burst();
        }
        bursts * BURST as u64
    }

    fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        self.core.figures(self.core.vpc.stats().cached - self.before)
    }
}

/// Packets of flows that are met for the first time after a change.
struct After {
    flows: u32,
    /// Of what each of them uses; otherwise of something else.
    is_changed: bool,
}

impl Case for After {
    fn name(&self) -> String {
        let what = if self.is_changed { "what they use" } else { "something else" };
        format!("flow: first packets after a change of {what}, 1 M flows")
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let mut core = Core::new(self.flows, (0..ORDER as u32).map(|at| at % self.flows).collect(), Way::Beside)?;
        core.learn()?;
        Ok(Box::new(Changing { core, is_changed: self.is_changed, rounds: 0 }))
    }
}

struct Changing {
    core: Core,
    is_changed: bool,
    rounds: u32,
}

impl Changing {
    /// Other tables come into force.
    fn change(&mut self) {
        self.rounds += 1;
        let mut spec = spec(Way::Beside, self.core.flows);
        if self.is_changed {
            let is_even = self.rounds.is_multiple_of(2);
            spec.endpoints[..SENDERS as usize].iter_mut().for_each(|endpoint| endpoint.spoof_check = is_even);
        } else {
            spec.services.lease = self.rounds;
        }
        let tables = self.core.vpc.tables().rebuild(&spec).expect("as good as the one before");
        self.core.vpc.replace(Arc::new(tables));
    }
}

impl Load for Changing {
    fn run(&mut self, operations: u64) -> u64 {
        // Half a burst: as many as one computes anew.
        let bursts = operations.div_ceil(BURST as u64);
        for _ in 0..bursts {
            if self.core.at == 0 {
                self.change();
            }
            self.core.burst();
        }
        bursts * BURST as u64
    }

    fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        let (stats, nanos) = (self.core.vpc.stats(), self.core.nanos());
        vec![
            ("inside", "ns", nanos),
            ("revalidated", "1", stats.revalidated as f64),
            ("recomputed", "1", stats.recomputed as f64),
            ("refused", "1", stats.drops(softdpu_vpc::DropReason::Recomputing) as f64),
        ]
    }
}
