//! A virtio-net driver in this process: one queue pair.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softdpu_device::net::{Net, NetConfig};
use softdpu_engine::{Engine, PortCounters, PortSpec, QueueKey, QueueSpec, RateLimit, Receive, Role, Transmit};
use softdpu_memory::{GuestAddress, Mapping, UserAddress, View, Window};
use softdpu_ring::driver::{Driver, Layout, Piece};
use softdpu_ring::{Format, Position, Positions, Queue};
use softdpu_sched::TenantId;
use softdpu_vpc::packet::Mac;
use softdpu_vpc::spec::{EndpointSpec, NetworkSpec, Place, Spec, SubnetSpec};
use softdpu_vpc::{PortId, Tables, Vni};

use super::{GuestMemory, SIZE, queue_config};

const TX_AT: u64 = 0x1000;
const RX_AT: u64 = 0x10_000;
const TX_BUFFERS: u64 = 0x10_0000;
const RX_BUFFERS: u64 = 0x200_0000;
const TX_SLOT: u64 = 0x1_1000;
pub const RX_SLOT: u64 = 2048;
const MEMORY: u64 = 0x400_0000;
/// Bytes of the virtio header (virtio 1.3 §5.1.6).
pub const HEADER: usize = 12;
/// That of a finished frame.
pub const PLAIN: [u8; HEADER] = [0; HEADER];

/// A guest's interface.
pub struct Nic {
    pub port: PortId,
    pub mac: [u8; 6],
    /// The tenant that is charged with its frames.
    pub tenant: TenantId,
    /// Frames it sends lie behind their header in one descriptor.
    pub in_one_piece: bool,
    memory: GuestMemory,
    format: Format,
    tx: Driver,
    rx: Driver,
    tx_free: Vec<u64>,
    tx_busy: HashMap<u16, u64>,
    rx_busy: HashMap<u16, u64>,
    pub features: u64,
    /// What it receives at the most, from its start on.
    pub receive_limit: Option<RateLimit>,
}

impl Nic {
    pub fn new(port: u32, format: Format, features: u64) -> Nic {
        let memory = GuestMemory::new(MEMORY);
        let (tx, rx) = (memory.driver(format, TX_AT), memory.driver(format, RX_AT));
        Nic {
            port: PortId(port),
            in_one_piece: false,
            tenant: TenantId(0),
            mac: [2, 0x5d, 0, 0, 0, port as u8 + 1],
            memory,
            format,
            tx,
            rx,
            tx_free: (0..64).collect(),
            tx_busy: HashMap::new(),
            rx_busy: HashMap::new(),
            features,
            receive_limit: None,
        }
    }

    fn queue(&self, at: u64, index: u16, role: Role, position: Position) -> QueueSpec {
        let addresses = Layout::new(self.format, SIZE).addresses(UserAddress(at));
        let positions = Mapping::heap(Positions::bytes(self.format, SIZE));
        let positions = Positions::new(Window::of_mapping(positions));
        let config = queue_config(self.format, 64);
        let ring = Queue::in_order(&self.memory.view, config, addresses, position, positions).unwrap();
        self.memory.spec(&format!("nic{}", self.port.0), index, self.tenant, role, ring)
    }

    /// Adds the port and starts both queues.
    pub fn start(&self, engine: &mut Engine, limit: Option<RateLimit>) -> [QueueKey; 2] {
        let _ = self.add_port(engine);
        self.start_queues(engine, limit, [Position::start(self.format); 2])
    }

    /// As [`start`](Self::start), and what the port counts, core by core.
    pub fn start_counted(&self, engine: &mut Engine) -> (Vec<Arc<PortCounters>>, [QueueKey; 2]) {
        (self.add_port(engine), self.start_queues(engine, None, [Position::start(self.format); 2]))
    }

    fn add_port(&self, engine: &mut Engine) -> Vec<Arc<PortCounters>> {
        let name: Arc<str> = format!("nic{}", self.port.0).as_str().into();
        let receive_limit = self.receive_limit.clone();
        let spec = PortSpec { name, tenant: Some(self.tenant), receive_limit, ..PortSpec::default() };
        engine.add_port(self.port, spec, None).unwrap()
    }

    /// Starts both queues where they were stopped.
    pub fn restart(&self, engine: &mut Engine, positions: [Position; 2]) -> [QueueKey; 2] {
        self.start_queues(engine, None, positions)
    }

    fn start_queues(
        &self,
        engine: &mut Engine,
        limit: Option<RateLimit>,
        [rx_at, tx_at]: [Position; 2],
    ) -> [QueueKey; 2] {
        self.specs(limit, [rx_at, tx_at]).map(|spec| engine.start_queue(None, spec).unwrap())
    }

    /// The device's ends of both queues, that were not used yet.
    pub fn fresh(&self) -> [QueueSpec; 2] {
        self.specs(None, [Position::start(self.format); 2])
    }

    fn specs(&self, limit: Option<RateLimit>, [rx_at, tx_at]: [Position; 2]) -> [QueueSpec; 2] {
        let model = Net::new(NetConfig::new(self.mac)).unwrap();
        let features = model.features() & self.features;
        let rx = Role::Receive(Receive::new(self.port, model.receive(features)));
        let tx = Role::Transmit(Transmit::new(self.port, model.transmit(features), limit));
        [self.queue(RX_AT, 0, rx, rx_at), self.queue(TX_AT, 1, tx, tx_at)]
    }

    /// Its memory.
    pub fn view(&self) -> &Arc<View> {
        &self.memory.view
    }

    /// The same memory, as a front end tells of it again.
    pub fn same_memory(&self) -> Arc<View> {
        View::new(self.memory.view.regions().to_vec()).unwrap()
    }

    /// Whether it was interrupted since it was asked last.
    pub fn was_interrupted(&self) -> bool {
        self.memory.call.drain()
    }

    /// How many frames the device has given back since this was asked last, or a frame was sent.
    pub fn sent_back(&mut self) -> usize {
        let before = self.tx_free.len();
        while let Some(done) = self.tx.take() {
            self.tx_free.push(self.tx_busy.remove(&done.id).expect("sent twice"));
        }
        self.tx_free.len() - before
    }

    /// Sends what no driver may: a buffer to be written to.
    pub fn send_writable(&mut self) {
        self.tx.add(&[Piece::writable(GuestAddress(TX_BUFFERS), 64)]).unwrap();
        self.tx.publish();
    }

    /// Gives `count` receive buffers.
    pub fn give(&mut self, count: usize) {
        for _ in 0..count {
            let slot = (0..u64::from(SIZE)).find(|slot| !self.rx_busy.values().any(|busy| busy == slot)).unwrap();
            let piece = Piece::writable(GuestAddress(RX_BUFFERS + slot * RX_SLOT), RX_SLOT as u32);
            let id = self.rx.add(&[piece]).unwrap();
            self.rx_busy.insert(id, slot);
        }
        self.rx.publish();
    }

    /// Sends a frame behind a virtio header; false: no room.
    pub fn send(&mut self, header: &[u8; HEADER], frame: &[u8]) -> bool {
        self.sent_back();
        let Some(slot) = self.tx_free.pop() else { return false };
        let at = TX_BUFFERS + slot * TX_SLOT;
        self.memory.write(at, header);
        self.memory.write(at + HEADER as u64, frame);
        // As Linux does, or as drivers do that keep headers elsewhere.
        let whole = [Piece::readable(GuestAddress(at), (HEADER + frame.len()) as u32)];
        let pieces = [
            Piece::readable(GuestAddress(at), HEADER as u32),
            Piece::readable(GuestAddress(at + HEADER as u64), frame.len() as u32),
        ];
        let id = self.tx.add(if self.in_one_piece { &whole } else { &pieces }).unwrap();
        self.tx_busy.insert(id, slot);
        if self.tx.publish() {
            self.memory.kick.ring();
        }
        true
    }

    /// The next frame, with its virtio header, and how many buffers it took.
    pub fn receive(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (mut bytes, mut left) = (Vec::new(), 1);
        while left > 0 {
            let done = match self.rx.take() {
                Some(done) => done,
                None if bytes.is_empty() => return None,
                None => panic!("a frame's buffers are not given back together"),
            };
            let slot = self.rx_busy.remove(&done.id).expect("filled twice");
            let part = self.memory.read(RX_BUFFERS + slot * RX_SLOT, done.written as usize);
            if bytes.is_empty() {
                left = u16::from_le_bytes([part[10], part[11]]);
            }
            bytes.extend(part);
            left -= 1;
        }
        let frame = bytes.split_off(HEADER);
        Some((bytes, frame))
    }

    /// Waits for a frame.
    pub fn wait(&mut self) -> (Vec<u8>, Vec<u8>) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(frame) = self.receive() {
                return frame;
            }
            assert!(Instant::now() < deadline, "no frame at port {} within 60 s", self.port.0);
            std::thread::yield_now();
        }
    }
}

/// Two guests of one network and a third of another with the first one's address.
pub fn tables() -> Arc<Tables> {
    let network = |name, vni| network(name, vni, 1500);
    let endpoint = |network, port, host| endpoint(network, port, host, Place::Port(PortId(port)));
    let spec = Spec {
        networks: vec![network("acme", 1), network("globex", 2)],
        endpoints: vec![endpoint("acme", 0, 2), endpoint("acme", 1, 3), endpoint("globex", 2, 2)],
        ..Spec::default()
    };
    Arc::new(Tables::build(&spec, None).unwrap())
}

/// A network of 10.0.0.0/24.
pub fn network(name: &str, vni: u32, mtu: u16) -> NetworkSpec {
    NetworkSpec {
        name: name.to_owned(),
        vni: Vni::new(vni).unwrap(),
        subnets: vec![SubnetSpec { prefix: "10.0.0.0/24".parse().unwrap(), gateway: "10.0.0.1".parse().unwrap() }],
        gateway_mac: Mac([2, 0x5d, 0, 0, 0, 0xff]),
        mtu,
        dns: Vec::new(),
        policy: Default::default(),
        transit: false,
        tenant: None,
    }
}

/// The endpoint of a guest with this number and address.
pub fn endpoint(network: &str, number: u32, host: u8, place: Place) -> EndpointSpec {
    EndpointSpec {
        network: network.to_owned(),
        mac: Mac(mac(number)),
        addresses: vec![address(host)],
        place,
        mtu: None,
        spoof_check: true,
        policy: Default::default(),
    }
}

pub fn mac(port: u32) -> [u8; 6] {
    [2, 0x5d, 0, 0, 0, port as u8 + 1]
}

pub fn address(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

/// A UDP datagram from one port's guest to another's; `mark` and the length are its payload.
pub fn datagram(from: (u32, u8), to: (u32, u8), mark: u32, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(mac(to.0));
    frame.extend(mac(from.0));
    frame.extend([0x08, 0x00]);
    let total = (20 + 8 + len) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(total.to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, from.1, 10, 0, 0, to.1]);
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    frame.extend([0x30, 0x39, 0, 9]);
    frame.extend(((8 + len) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(mark.to_be_bytes());
    frame.extend((4..len).map(|at| at as u8));
    frame
}
