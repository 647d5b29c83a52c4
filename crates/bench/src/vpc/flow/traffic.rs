//! What the cases send, and where: a network of endpoints of which some are behind tunnels, frames of numbered flows,
//! and the order in which they come.

use std::net::{IpAddr, Ipv4Addr};

use softdpu_sched::{Measure, Rate};
use softdpu_vpc::spec::{
    EndpointSpec, MembershipSpec, MeterAlgorithm, MeterSpec, NamedAcl, NeighborSpec, NetworkSpec, Place, PolicySpec,
    Spec, SubnetSpec, UnderlaySpec, VXLAN_PORT,
};
use softdpu_vpc::{Mac, PortId, Vni};

use super::super::acl;

/// Bytes of a frame.
pub(super) const FRAME: usize = 64;
/// Endpoints that send, and as many that receive.
pub(super) const SENDERS: u32 = 1024;
/// Packets in the order in which they come, over and over: of 4 M flows as many as come at all.
pub(super) const ORDER: usize = 1 << 22;
/// Different packets where no flows are kept.
pub(super) const FEW: u32 = 1 << 16;
/// The port of the network between nodes.
pub(super) const UNDERLAY: PortId = PortId(2 * SENDERS);
const REMOTE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
/// The node that sends by a tunnel.
const SENDER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const VNI: Vni = Vni::new(5001).unwrap();
/// Bytes of outer headers over IPv4.
pub(super) const OUTER: usize = 50;
/// The list that all endpoints have, where they have one.
const LIST: &str = "list";

/// What the node does with packets' tunnels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tunnels {
    /// Packets go from a guest of this node to another: none.
    Local,
    /// Packets of a guest go into a tunnel.
    Encap,
    /// Packets come out of a tunnel, to a guest.
    Decap,
    /// Packets come out of a tunnel and go into another.
    Transit,
}

impl Tunnels {
    pub fn decapsulates(self) -> bool {
        matches!(self, Tunnels::Decap | Tunnels::Transit)
    }

    fn encapsulates(self) -> bool {
        matches!(self, Tunnels::Encap | Tunnels::Transit)
    }
}

/// Which flow's packet comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Uniform,
    /// The n-th most frequent comes about 1/n times as often as the first.
    Zipf,
    /// Every packet is one flow's.
    Elephant,
}

impl Order {
    /// [`ORDER`] of so many flows, others with another `seed`.
    pub fn of(self, flows: u32, seed: u64) -> Vec<u32> {
        let mut random = fastrand::Rng::with_seed(seed);
        let one = |_| match self {
            Order::Uniform => random.u32(0..flows),
            Order::Zipf => f64::from(flows).powf(random.f64()) as u32 - 1,
            Order::Elephant => 7,
        };
        (0..ORDER).map(one).collect()
    }
}

/// What the node is like.
#[derive(Clone, Copy)]
pub(super) struct Site {
    pub tunnels: Tunnels,
    /// It keeps so many flows at most; 0: none.
    pub flows: u32,
    /// Each endpoint that sends has a meter that lets everything pass, and a burst is of one of them, as the engine's
    /// are.
    pub has_meters: bool,
    /// A list of so many rules is asked about every flow's first packet; 0: none is.
    pub rules: u32,
}

impl Site {
    pub const fn plain(tunnels: Tunnels, flows: u32) -> Site {
        Site { tunnels, flows, has_meters: false, rules: 0 }
    }

    pub fn spec(&self) -> Result<Spec, String> {
        let Site { tunnels, flows, has_meters, rules } = *self;
        let acls = match rules {
            0 => Vec::new(),
            rules => vec![NamedAcl { name: LIST.into(), list: acl::allowing(rules)? }],
        };
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
            policy: PolicySpec { groups: Vec::new(), acls },
            transit: tunnels == Tunnels::Transit,
            tenant: None,
        };
        let meter = |number: u32| {
            let plenty = Rate { rate: 1 << 40, burst: 1 << 30 };
            MeterSpec {
                name: meter_name(number),
                algorithm: MeterAlgorithm::Rfc2698,
                measure: Measure::Bytes,
                committed: plenty,
                second: plenty,
            }
        };
        let is_metered = |number| has_meters && number < SENDERS;
        let endpoint = |number: u32| EndpointSpec {
            network: "bench".into(),
            mac: mac(number),
            addresses: vec![address(number).into()],
            place: match number >= SENDERS {
                true if tunnels.encapsulates() => Place::Host(REMOTE),
                false if tunnels.decapsulates() => Place::Host(SENDER.into()),
                _ => Place::Port(PortId(number)),
            },
            mtu: None,
            spoof_check: true,
            policy: MembershipSpec {
                acl: (rules != 0).then(|| LIST.into()),
                meters: is_metered(number).then(|| meter_name(number)).into_iter().collect(),
                ..MembershipSpec::default()
            },
        };
        let underlay = UnderlaySpec {
            port: UNDERLAY,
            addresses: vec![HERE.into()],
            mac: Mac([2, 0, 0, 0, 0, 1]),
            udp_port: VXLAN_PORT,
            mtu: 1600,
            dont_fragment: true,
        };
        Ok(Spec {
            networks: vec![network],
            endpoints: (0..2 * SENDERS).map(endpoint).collect(),
            underlay: Some(underlay),
            neighbors: [REMOTE, SENDER.into()].map(|host| NeighborSpec { host, mac: Mac([2, 0, 0, 0, 0, 2]) }).into(),
            meters: (0..SENDERS).filter(|number| is_metered(*number)).map(meter).collect(),
            without_flows: flows == 0,
            ..Spec::default()
        })
    }
}

fn meter_name(number: u32) -> String {
    format!("meter-{number}")
}

fn mac(number: u32) -> Mac {
    let [a, b, c, d] = number.to_be_bytes();
    Mac([2, 0x5d, a, b, c, d])
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0002 + number)
}

/// Frames of numbered flows.
pub(super) struct Frames {
    template: [u8; FRAME],
    outer: [u8; OUTER],
}

impl Frames {
    pub fn new() -> Frames {
        let mut template = [0; FRAME];
        template[..6].copy_from_slice(&[2, 0xff, 0, 0, 0, 1]);
        template[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, FRAME as u8 - 14, 0, 0, 0x40, 0, 64, 17]);
        template[36..40].copy_from_slice(&[0x20, 0, 0, FRAME as u8 - 34]);
        Frames { template, outer: outer() }
    }

    /// Writes one of `flow`; the number of the endpoint that sends it.
    #[inline]
    pub fn write(&self, bytes: &mut [u8; FRAME], flow: u32) -> u32 {
        let (from, to, port) = (flow % SENDERS, SENDERS + flow / SENDERS % SENDERS, flow / SENDERS / SENDERS);
        *bytes = self.template;
        bytes[6..12].copy_from_slice(&mac(from).0);
        bytes[26..30].copy_from_slice(&address(from).octets());
        bytes[30..34].copy_from_slice(&address(to).octets());
        bytes[34..36].copy_from_slice(&(port as u16).to_be_bytes());
        from
    }

    /// What is before one that comes by a tunnel.
    pub fn outer(&self) -> &[u8; OUTER] {
        &self.outer
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
    outer[46..49].copy_from_slice(&VNI.get().to_be_bytes()[1..]);
    outer
}
