//! Connections: what a packet of a known one costs, a new one, one too many, and aging.

use std::hint::black_box;

use fastrand::Rng;
use softdpu_vpc::policy::conntrack::{
    Config, ConnectionId, Conntrack, Content, Direction, Key, Look, Segment, TcpHeader, Timeouts, Zone,
};

use super::{Case, Load};

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// Connections between two hosts: one for each port.
const PORTS: u32 = 50_000;
const SECOND: u64 = 1_000_000_000;

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Box<dyn Case>> = Vec::new();
    for (connections, size) in [(64_000, "64 k"), (1_000_000, "1 M")] {
        for what in [Operation::Look, Operation::Follow, Operation::Touch] {
            cases.push(Box::new(Established { connections, size, what }));
        }
    }
    cases.push(Box::new(Flood));
    cases.push(Box::new(Age));
    cases
}

/// Of a connection by its number; `direction` is the one in which it goes.
fn segment(number: u32, direction: Direction, flags: u8, sequence: u32, acknowledgement: u32) -> Segment {
    let host = |number: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 | number).into();
    let key = Key {
        zone: Zone(0),
        source: host(1 + number / PORTS),
        destination: host(0xff),
        protocol: 6,
        source_port: (1024 + number % PORTS) as u16,
        destination_port: 443,
    };
    let key = if direction == Direction::Original { key } else { key.reversed() };
    let header = TcpHeader { flags, sequence, acknowledgement, window: 1000, len: 0, scale: None };
    Segment { key, content: Content::Tcp(header) }
}

fn table(capacity: u32) -> Conntrack {
    Conntrack::new(Config {
        capacity: capacity as usize,
        shares: vec![capacity],
        rest_is_shared: false,
        timeouts: Timeouts::default(),
        pickup: false,
        any_reset: false,
    })
}

fn open(table: &mut Conntrack, number: u32, now: u64) -> Result<ConnectionId, String> {
    let mut ended = Vec::new();
    let wrong = |refused| format!("connection {number} was refused: {refused}");
    let Look::New(opening) =
        table.look(&segment(number, Direction::Original, SYN, 0, 0), now, &mut ended).map_err(wrong)?
    else {
        return Err(format!("connection {number} is there twice"));
    };
    Ok(table.open(&opening, now, &mut ended).map_err(wrong)?.connection)
}

fn establish(table: &mut Conntrack, number: u32) -> Result<ConnectionId, String> {
    let handle = open(table, number, 0)?;
    for answer in [segment(number, Direction::Reply, SYN | ACK, 0, 1), segment(number, Direction::Original, ACK, 1, 1)]
    {
        table.look(&answer, 0, &mut Vec::new()).map_err(|refused| format!("{number} was refused: {refused}"))?;
    }
    Ok(handle)
}

#[derive(Clone, Copy)]
enum Operation {
    Look,
    Follow,
    Touch,
}

struct Established {
    connections: u32,
    size: &'static str,
    what: Operation,
}

impl Case for Established {
    fn name(&self) -> String {
        let what = match self.what {
            Operation::Look => "a segment",
            Operation::Follow => "a segment whose connection a flow knows",
            Operation::Touch => "kept alive by its flow",
        };
        format!("conntrack: {what}, of {}", self.size)
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let mut table = table(self.connections);
        let handles = (0..self.connections).map(|number| establish(&mut table, number)).collect::<Result<_, _>>()?;
        Ok(Box::new(Following { table, handles, what: self.what, random: Rng::with_seed(5), ended: Vec::new() }))
    }
}

struct Following {
    table: Conntrack,
    handles: Vec<ConnectionId>,
    what: Operation,
    random: Rng,
    ended: Vec<softdpu_vpc::policy::conntrack::Ended>,
}

impl Load for Following {
    fn run(&mut self, operations: u64) -> u64 {
        let mut passed = 0;
        for _ in 0..operations {
            let number = self.random.u32(0..self.handles.len() as u32);
            let handle = self.handles[number as usize];
            let segment = || segment(number, Direction::Reply, ACK, 1, 1);
            match self.what {
                Operation::Look => passed += u64::from(self.table.look(&segment(), SECOND, &mut self.ended).is_ok()),
                Operation::Follow => {
                    passed += u64::from(self.table.follow(handle, &segment(), SECOND, &mut self.ended).is_ok());
                }
                Operation::Touch => passed += u64::from(self.table.touch(handle, SECOND)),
            }
        }
        black_box(passed);
        operations
    }
}

/// SYNs of a network that has used up its share: each displaces an older one.
struct Flood;

impl Case for Flood {
    fn name(&self) -> String {
        "conntrack: a SYN too many, of 1 M".into()
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let mut table = table(1_000_000);
        for number in 0..1_000_000 {
            open(&mut table, number, 0)?;
        }
        Ok(Box::new(Flooding { table, next: 1_000_000, refused: 0 }))
    }
}

struct Flooding {
    table: Conntrack,
    next: u32,
    refused: u64,
}

impl Load for Flooding {
    fn run(&mut self, operations: u64) -> u64 {
        for _ in 0..operations {
            self.refused += u64::from(open(&mut self.table, self.next, 1).is_err());
            // There are ports and hosts for four times as many as there is room.
            self.next = (self.next + 1) % 4_000_000;
        }
        operations
    }

    fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        vec![("refused", "1", self.refused as f64)]
    }
}

/// Opened, and forgotten again.
struct Age;

impl Case for Age {
    fn name(&self) -> String {
        "conntrack: opened and expired, of 64 k".into()
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        Ok(Box::new(Aging { table: table(64_000), now: 0, ended: Vec::with_capacity(64_000) }))
    }
}

struct Aging {
    table: Conntrack,
    now: u64,
    ended: Vec<softdpu_vpc::policy::conntrack::Ended>,
}

impl Load for Aging {
    fn run(&mut self, operations: u64) -> u64 {
        let rounds = operations.div_ceil(64_000);
        for _ in 0..rounds {
            for number in 0..64_000 {
                let _ = black_box(open(&mut self.table, number, self.now));
            }
            self.now += 200 * SECOND;
            while self.table.age(self.now, 256, &mut self.ended) {}
            self.ended.clear();
        }
        rounds * 64_000
    }

    fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        vec![("left", "1", self.table.len() as f64)]
    }
}
