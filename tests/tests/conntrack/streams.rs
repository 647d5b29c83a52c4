//! Random streams of packets: most as honest ends send them, some in the wrong place, each stream between ports of its
//! own.

use std::net::Ipv6Addr;

use etherparse::{IcmpEchoHeader, Icmpv4Type, Icmpv6Type, IpNumber, PacketBuilder, PacketBuilderStep, TcpHeader};
use softdpu_tests::Random;

use crate::kernel::{ETHERNET, Kernel};

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const URG: u8 = 0x20;
/// The protocol of streams of neither TCP, UDP nor ICMP (RFC 3692: for experiments).
const OTHER: u8 = 253;

/// The last two bytes of the addresses of ends, and of a third host.
const END: [u8; 2] = [7, 7];
const ROUTER: [u8; 2] = [7, 99];

/// A packet, from inside (0) or outside (1).
pub struct Packet {
    pub from: usize,
    pub frame: Vec<u8>,
    /// Of TCP.
    pub flags: Option<u8>,
    /// An error about an echo whose code is another than that of the one that was sent.
    pub other_code: bool,
    /// For people.
    pub about: String,
}

/// The two ends of a stream, and which family they are of.
#[derive(Clone, Copy)]
struct Ends {
    is_ipv6: bool,
    /// Different with each stream.
    ports: [u16; 2],
    /// The last two bytes of both ends' addresses.
    host: [u8; 2],
}

impl Ends {
    /// Of a stream whose ports tell it from others.
    fn new(number: u32, service: u16) -> Ends {
        Ends { is_ipv6: number % 2 == 1, ports: [1_024 + number as u16, service], host: END }
    }

    fn v4(side: usize, [high, low]: [u8; 2]) -> [u8; 4] {
        [10, side as u8, high, low]
    }

    fn v6(side: usize, host: [u8; 2]) -> [u8; 16] {
        Ipv6Addr::new(0x2001, 0xdb8, side as u16, 7, 0, 0, 0, u16::from_be_bytes(host)).octets()
    }

    /// Headers from `from` on, of `source` or of the end itself.
    fn begin(&self, from: usize, source: Option<[u8; 2]>) -> PacketBuilderStep<etherparse::IpHeaders> {
        let (source_mac, destination_mac) = Kernel::ethernet(from);
        let link = PacketBuilder::ethernet2(source_mac, destination_mac);
        let source = source.unwrap_or(self.host);
        if self.is_ipv6 {
            link.ipv6(Ends::v6(from, source), Ends::v6(1 - from, self.host), 64)
        } else {
            link.ipv4(Ends::v4(from, source), Ends::v4(1 - from, self.host), 64)
        }
    }
}

/// What one end of a TCP connection knows.
#[derive(Clone, Copy)]
struct Side {
    first: u32,
    next: u32,
    /// What it expects.
    expects: u32,
}

struct Tcp {
    ends: Ends,
    sides: [Side; 2],
    packets: Vec<Packet>,
}

impl Tcp {
    fn send(&mut self, from: usize, flags: u8, sequence: u32, acknowledgement: u32, len: usize) {
        let [source_port, destination_port] = [self.ends.ports[from], self.ends.ports[1 - from]];
        let mut header = TcpHeader::new(source_port, destination_port, sequence, 1_000);
        header.acknowledgment_number = acknowledgement;
        (header.fin, header.syn, header.rst) = (flags & FIN != 0, flags & SYN != 0, flags & RST != 0);
        (header.psh, header.ack, header.urg) = (flags & PSH != 0, flags & ACK != 0, flags & URG != 0);
        let mut frame = Vec::new();
        let step = self.ends.begin(from, None).tcp_header(header);
        step.write(&mut frame, &vec![0; len]).expect("a frame in memory");
        let name = |(bit, name): (u8, &'static str)| if flags & bit != 0 { name } else { "" };
        let names = [(SYN, "S"), (FIN, "F"), (RST, "R"), (PSH, "P"), (URG, "U"), (ACK, ".")].map(name).concat();
        let side = self.sides[from];
        let other = self.sides[1 - from];
        let about = format!(
            "{} {names} seq {:+} ack {:+} len {len}",
            ["inside", "outside"][from],
            sequence.wrapping_sub(side.next) as i32,
            acknowledgement.wrapping_sub(other.next) as i32
        );
        self.packets.push(Packet { from, frame, flags: Some(flags), other_code: false, about });
    }

    /// As an honest end sends it.
    fn honest(&mut self, from: usize, flags: u8, len: usize) {
        let Side { next, expects, .. } = self.sides[from];
        let acknowledgement = if flags & ACK == 0 { 0 } else { expects };
        self.send(from, flags, next, acknowledgement, len);
        let marks = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        let next = next.wrapping_add(len as u32 + marks);
        self.sides[from].next = next;
        self.sides[1 - from].expects = next;
    }

    fn odd(&mut self, random: &mut Random) {
        let from = random.below(2) as usize;
        let (side, other) = (self.sides[from], self.sides[1 - from]);
        if random.is_one_in(50) {
            // What the other sends is answered by a reset in the window, and followed by the other's reset, which was
            // sent before it.
            self.send(1 - from, ACK | PSH, other.next, other.expects, 1);
            self.send(from, RST | ACK, side.next.wrapping_add(1), other.next.wrapping_add(1), 0);
            return self.honest(1 - from, RST, 0);
        }
        let usual = random.one_of([SYN, SYN | ACK, ACK, ACK | PSH, FIN | ACK, RST, RST | ACK]);
        let never =
            random.one_of([0, SYN | FIN, SYN | RST, FIN, FIN | PSH | URG, SYN | FIN | ACK, RST | FIN, SYN | RST | ACK]);
        let flags = if random.is_one_in(6) { never } else { usual };
        let near = random.one_of([0, 0, 0, 1, 99, 500, 1_500, 70_000]);
        let anywhere = random.below(u32::MAX);
        let sequence = random.one_of([
            side.next,
            side.next.wrapping_add(near),
            side.next.wrapping_sub(near),
            side.first,
            anywhere,
        ]);
        let acknowledged = random.one_of([
            side.expects,
            side.expects,
            other.next.wrapping_add(near),
            side.expects.wrapping_sub(near),
            anywhere,
        ]);
        let acknowledgement = if flags & ACK == 0 && !random.is_one_in(4) { 0 } else { acknowledged };
        let len = if flags & (SYN | RST) == 0 { random.one_of([0, 0, 10, 100]) } else { 0 };
        self.send(from, flags, sequence, acknowledgement, len);
    }

    fn begin(&mut self, random: &mut Random) {
        for side in &mut self.sides {
            let first = random.below(u32::MAX);
            *side = Side { first, next: first, expects: 0 };
        }
        let opener = usize::from(random.is_one_in(12));
        match random.below(14) {
            // In the middle, or the answer without what is answered.
            0 => {
                let [inside, outside] = &mut self.sides;
                (inside.expects, outside.expects) = (outside.next, inside.next);
            }
            // Both at once.
            1 => {
                self.honest(0, SYN, 0);
                self.honest(1, SYN, 0);
                self.sides.iter_mut().for_each(|side| side.next = side.next.wrapping_sub(1));
                let lost = |tcp: &mut Tcp, from: usize| tcp.sides[from].next = tcp.sides[from].next.wrapping_add(1);
                match random.below(8) {
                    // Its answer is lost, and it closes.
                    0 | 1 => {
                        lost(self, 1);
                        self.honest(1, FIN | ACK, 0);
                    }
                    // Those of both are, and what they send next answers as well.
                    2 => {
                        (0..2).for_each(|from| lost(self, from));
                        self.honest(1, ACK, 0);
                        return self.honest(0, ACK, 0);
                    }
                    _ => self.honest(1, SYN | ACK, 0),
                }
                self.honest(0, SYN | ACK, 0);
            }
            much => {
                self.honest(opener, SYN, 0);
                if much == 2 {
                    self.sides[opener].next = self.sides[opener].first;
                    self.honest(opener, SYN, 0);
                }
                if much == 3 {
                    // Nobody wants it.
                    let expects = self.sides[1 - opener].expects;
                    return self.send(1 - opener, RST | ACK, 0, expects, 0);
                }
                self.honest(1 - opener, SYN | ACK, 0);
                self.honest(opener, ACK, 0);
            }
        }
    }
}

/// A stream of TCP: `number` of those of `seed`.
pub fn tcp(seed: u64, number: u32) -> Vec<Packet> {
    let random = &mut Random::new(seed.wrapping_add(number.into()));
    let ends = Ends::new(number, 80);
    let side = Side { first: 0, next: 0, expects: 0 };
    let mut tcp = Tcp { ends, sides: [side; 2], packets: Vec::new() };
    // A third of them has nothing odd.
    let oddness = random.one_of([u32::MAX, 8, 3]);
    for _ in 0..=random.below(2) {
        tcp.begin(random);
        let mut closed = [false; 2];
        for _ in 0..random.below(10) {
            if random.is_one_in(oddness) {
                tcp.odd(random);
                continue;
            }
            let from = random.below(2) as usize;
            match random.below(8) {
                0 | 1 if !closed[from] => {
                    closed[from] = true;
                    tcp.honest(from, FIN | ACK, 0);
                }
                2 if random.is_one_in(3) => tcp.honest(from, RST | random.one_of([0, ACK]), 0),
                3 | 4 if !closed[from] => tcp.honest(from, PSH | ACK, random.one_of([1, 100, 500])),
                _ => tcp.honest(from, ACK, 0),
            }
            if closed == [true; 2] {
                tcp.honest(0, ACK, 0);
                tcp.honest(1, ACK, 0);
            }
        }
        while random.is_one_in(oddness) {
            tcp.odd(random);
        }
    }
    tcp.packets
}

/// A stream of UDP, echoes, or a protocol without ports, with ICMP errors about it.
pub fn datagrams(seed: u64, number: u32) -> Vec<Packet> {
    let random = &mut Random::new(seed.wrapping_add(number.into()));
    let protocol = random.one_of([17, 17, 1, OTHER]);
    let mut ends = Ends::new(number, 53);
    if protocol == OTHER {
        // Without ports, addresses are all that tells streams apart.
        ends.host = [8 + (number >> 8) as u8, number as u8];
    }
    let is_ipv6 = ends.is_ipv6;
    let mut packets: Vec<Packet> = Vec::new();
    for turn in 0..2 + random.below(8) {
        let from = if turn == 0 { usize::from(random.is_one_in(8)) } else { random.below(2) as usize };
        let (mut frame, about);
        if !packets.is_empty() && random.is_one_in(3) {
            let quoted = &packets[random.below(packets.len() as u32) as usize];
            let mut quote = quoted.frame[ETHERNET..].to_vec();
            let header = if is_ipv6 { 40 } else { 20 };
            let damage = random.below(8);
            match damage {
                // Another port, or code of an echo; another port or identifier; another address; too little of it.
                0 => quote[header + 1] ^= 1,
                1 => quote[header + 5] ^= 1,
                2 => quote[header - 1] ^= 1,
                3 => quote.truncate(header + 4),
                _ => {}
            }
            let kind = if is_ipv6 { random.one_of([1, 2, 3, 4]) } else { random.one_of([3, 4, 11, 12]) };
            // Sent back, most often, by the end or by a router on the way.
            let from = if random.is_one_in(6) { quoted.from } else { 1 - quoted.from };
            let step = ends.begin(from, random.one_of([None, Some(ROUTER)]));
            frame = Vec::new();
            if is_ipv6 {
                step.icmpv6_raw(kind, 0, [0; 4]).write(&mut frame, &quote)
            } else {
                step.icmpv4_raw(kind, 0, [0; 4]).write(&mut frame, &quote)
            }
            .expect("a frame in memory");
            about = format!(
                "{} error {kind}, IPv6 {is_ipv6}, damage {damage}, about {}",
                ["inside", "outside"][from],
                quoted.about
            );
            let other_code = protocol == 1 && damage == 0;
            packets.push(Packet { from, frame, flags: None, other_code, about });
            continue;
        }
        let step = ends.begin(from, None);
        frame = Vec::new();
        let payload = [turn as u8; 12];
        let is_request = random.is_one_in(2);
        match protocol {
            17 => step.udp(ends.ports[from], ends.ports[1 - from]).write(&mut frame, &payload),
            1 => {
                let echo = IcmpEchoHeader { id: ends.ports[0], seq: turn as u16 };
                match (is_ipv6, is_request) {
                    (false, true) => step.icmpv4(Icmpv4Type::EchoRequest(echo)).write(&mut frame, &payload),
                    (false, false) => step.icmpv4(Icmpv4Type::EchoReply(echo)).write(&mut frame, &payload),
                    (true, true) => step.icmpv6(Icmpv6Type::EchoRequest(echo)).write(&mut frame, &payload),
                    (true, false) => step.icmpv6(Icmpv6Type::EchoReply(echo)).write(&mut frame, &payload),
                }
            }
            _ => step.write(&mut frame, IpNumber(protocol), &payload),
        }
        .expect("a frame in memory");
        about = format!(
            "{} {}",
            ["inside", "outside"][from],
            match (protocol, is_request) {
                (17, _) => "UDP",
                (1, true) => "echo request",
                (1, false) => "echo reply",
                _ => "other",
            }
        );
        packets.push(Packet { from, frame, flags: None, other_code: false, about });
    }
    packets
}

/// What always passes, from inside.
pub fn mark() -> Vec<u8> {
    let ends = Ends::new(0, 9);
    let mut frame = Vec::new();
    ends.begin(0, Some(ROUTER)).udp(9, 9).write(&mut frame, b"mark").expect("a frame in memory");
    frame
}
