//! Connections in a list, looked through from the beginning, by the rules of the documentation, one after the
//! other.

use super::*;

/// Timeouts end just before a tick of the wheel, so that both sides forget at the same time.
fn timeouts() -> Timeouts {
    let ticks = |ticks: u64| ticks * SECOND - 1;
    Timeouts {
        syn_sent: ticks(4),
        syn_received: ticks(3),
        established: ticks(40),
        fin_wait: ticks(6),
        last_ack: ticks(2),
        time_wait: ticks(5),
        closed: ticks(1),
        udp: ticks(3),
        udp_answered: ticks(9),
        icmp: ticks(4),
        other: ticks(20),
    }
}

/// The first sequence number of the end that sends with this key: each end has always the same.
fn first_of(key: &Key) -> u32 {
    let IpAddr::V4(address) = key.source else { unreachable!("all are IPv4") };
    (address.to_bits() % 7).wrapping_mul(0x3fff_fff1).wrapping_add(key.source_port.into())
}

#[derive(Clone, Debug)]
struct Connection {
    key: Key,
    answered: bool,
    deadline: u64,
    /// When it began to stand where it does.
    since: u64,
    stands: Stands,
    announced: bool,
    state: Option<TcpState>,
    sent: [Sent; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    syn: bool,
    fin: bool,
    /// Highest acknowledgement number sent, less the other side's first.
    ack: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Open,
    Half,
    Over,
}

#[derive(Default)]
struct Model {
    all: Vec<Connection>,
    shares: Vec<u32>,
    capacity: usize,
    clock: u64,
    ended: Vec<(Key, End)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Syn,
    SynAck,
    /// Whether it acknowledges the other side's FIN.
    Ack(bool),
    Fin(bool),
    /// Distance from the byte that is expected.
    Reset(u32),
    /// The answer to a SYN.
    Refuse,
}

impl Model {
    fn end(&mut self, at: usize, why: End) {
        let gone = self.all.remove(at);
        if !gone.announced {
            self.ended.push((gone.key, why));
        }
    }

    fn expire(&mut self, now: u64) {
        while let Some(at) = self.all.iter().position(|connection| connection.deadline <= now) {
            self.end(at, End::Expired);
        }
    }

    fn packet(&mut self, key: Key, event: Option<Event>, is_request: bool, now: u64) -> Result<(), Refused> {
        if let Some(at) = self.all.iter().position(|known| known.key == key || known.key == key.reversed()) {
            let reply = self.all[at].key != key;
            match self.step(at, reply, event, now) {
                Err(None) => self.end(at, End::Closed),
                Err(Some(refused)) => return Err(refused),
                Ok(()) => return Ok(()),
            }
        }
        let opens = match event {
            Some(Event::Syn) => Some(TcpState::SynSent),
            None if key.protocol != 1 || is_request => None,
            _ => return Err(Refused::NoConnection),
        };
        let zone = key.zone.index();
        let used = self.all.iter().filter(|other| other.key.zone == key.zone).count();
        let full = match self.shares[zone] as usize {
            0 => return Err(Refused::NoShare),
            share if used >= share => Some(Refused::ShareFull),
            _ if self.all.len() >= self.capacity => Some(Refused::TableFull),
            _ => None,
        };
        if let Some(refused) = full {
            let oldest = |stands| {
                let own = |other: &(usize, &Connection)| other.1.key.zone == key.zone && other.1.stands == stands;
                self.all.iter().enumerate().filter(own).min_by_key(|(_, other)| other.since).map(|(at, _)| at)
            };
            let at = oldest(Stands::Half).or_else(|| oldest(Stands::Over)).ok_or(refused)?;
            self.end(at, End::Evicted);
        }
        self.clock += 1;
        let mut connection = Connection {
            key,
            answered: false,
            deadline: 0,
            since: self.clock,
            stands: Stands::Half,
            announced: false,
            state: opens,
            sent: [Sent { syn: opens.is_some(), ..Sent::default() }, Sent::default()],
        };
        connection.deadline = now + connection.timeout();
        self.all.push(connection);
        Ok(())
    }

    /// Err(None): a new one begins.
    fn step(&mut self, at: usize, reply: bool, event: Option<Event>, now: u64) -> Result<(), Option<Refused>> {
        let connection = &mut self.all[at];
        if let Some(event) = event
            && !connection.tcp(reply, event)?
        {
            return Ok(());
        }
        connection.answered |= reply;
        connection.deadline = now + connection.timeout();
        let stands = connection.stands();
        if stands != connection.stands {
            self.clock += 1;
            (connection.stands, connection.since) = (stands, self.clock);
        }
        if stands == Stands::Over && !std::mem::replace(&mut connection.announced, true) {
            let why = if connection.state == Some(TcpState::Closed) { End::Reset } else { End::Closed };
            self.ended.push((connection.key, why));
        }
        Ok(())
    }
}

impl Connection {
    fn timeout(&self) -> u64 {
        let timeouts = timeouts();
        match (self.state, self.key.protocol) {
            (Some(TcpState::SynSent), _) => timeouts.syn_sent,
            (Some(TcpState::SynReceived), _) => timeouts.syn_received,
            (Some(TcpState::Established), _) => timeouts.established,
            (Some(TcpState::FinWait), _) => timeouts.fin_wait,
            (Some(TcpState::LastAck), _) => timeouts.last_ack,
            (Some(TcpState::TimeWait), _) => timeouts.time_wait,
            (Some(TcpState::Closed), _) => timeouts.closed,
            (None, 17) if self.answered => timeouts.udp_answered,
            (None, 17) => timeouts.udp,
            (None, 1) => timeouts.icmp,
            _ => timeouts.other,
        }
    }

    fn stands(&self) -> Stands {
        match self.state {
            Some(TcpState::SynSent | TcpState::SynReceived) => Stands::Half,
            Some(TcpState::TimeWait | TcpState::Closed) => Stands::Over,
            Some(_) => Stands::Open,
            None if self.answered => Stands::Open,
            None => Stands::Half,
        }
    }

    /// Whether it keeps the connection alive.
    fn tcp(&mut self, reply: bool, event: Event) -> Result<bool, Option<Refused>> {
        use TcpState::*;
        let state = self.state.expect("TCP");
        let (me, you) = (usize::from(reply), usize::from(!reply));
        match (state, event, reply) {
            (TimeWait | Closed, Event::Syn, _) => return Err(None),
            (TimeWait | Closed, _, _) => return Ok(false),

            (_, Event::Reset(distance), _) => {
                let expected = self.sent[you].ack;
                let last = self.sent[me].syn.then(|| 1 + u32::from(self.sent[me].fin));
                let place = expected.or(last).unwrap_or(0).wrapping_add(distance);
                if Some(place) == expected || Some(place) == last {
                    self.state = Some(Closed);
                } else if expected.is_some_and(|ack| place.wrapping_sub(ack) <= 1000) {
                    return Ok(false);
                } else {
                    return Err(Some(Refused::Reset));
                }
            }
            (_, Event::Refuse, _) => {
                // Its sequence number is 0, which is no end's; its acknowledgement is right behind the SYN.
                let answers = self.sent[you].ack.is_none() && self.sent[you].syn && !self.sent[you].fin;
                if !answers {
                    return Err(Some(Refused::Reset));
                }
                self.state = Some(Closed);
            }

            (SynSent, Event::Syn, false) => {}
            (SynSent, Event::Syn, true) => {
                self.state = Some(SynReceived);
                self.sent[1].syn = true;
            }
            (SynSent, Event::SynAck, true) => {
                self.state = Some(SynReceived);
                self.sent[1] = Sent { syn: true, fin: false, ack: Some(1) };
            }
            (SynSent, _, _) => return Err(Some(Refused::Handshake)),

            (SynReceived, Event::Syn, _) => return Ok(!self.sent[me].fin),
            (SynReceived, Event::SynAck, _) => {
                self.sent[me].ack = self.sent[me].ack.max(Some(1));
                if !reply {
                    self.state = Some(Established);
                }
            }
            (_, Event::Syn | Event::SynAck, _) => return Ok(false),

            (_, Event::Ack(all) | Event::Fin(all), _) => {
                self.sent[me].fin |= matches!(event, Event::Fin(_));
                self.sent[me].ack = self.sent[me].ack.max(Some(1 + u32::from(all)));
                if state != SynReceived || !reply {
                    let fins = self.sent.iter().filter(|side| side.fin).count();
                    let both = self.sent.iter().all(|side| side.ack == Some(2));
                    self.state = Some(match fins {
                        0 => Established,
                        1 => FinWait,
                        _ if both => TimeWait,
                        _ => LastAck,
                    });
                }
            }
        }
        Ok(true)
    }
}

/// The segment of an event, as the model sees it: a SYN has number 0, data 1, a FIN is number 1.
fn segment(model: &Model, key: Key, event: Event) -> Segment {
    let known = model.all.iter().find(|known| known.key == key || known.key == key.reversed());
    let sides = known.map_or([Sent::default(); 2], |known| known.sent);
    let reply = known.is_some_and(|known| known.key != key);
    let (me, you) = (sides[usize::from(reply)], sides[usize::from(!reply)]);
    let (mine, yours) = (first_of(&key), first_of(&key.reversed()));
    let ack = |all: bool| yours.wrapping_add(1 + u32::from(all));
    let next = mine.wrapping_add(1 + u32::from(me.fin));
    match event {
        Event::Syn => tcp(key, SYN, mine, 0),
        Event::SynAck => tcp(key, SYN | ACK, mine, ack(false)),
        Event::Ack(all) => tcp(key, ACK, next, ack(all)),
        Event::Fin(all) => tcp(key, FIN | ACK, mine.wrapping_add(1), ack(all)),
        Event::Reset(distance) => {
            let last = me.syn.then(|| 1 + u32::from(me.fin));
            let place = you.ack.or(last).unwrap_or(0);
            tcp(key, RST, mine.wrapping_add(place).wrapping_add(distance), 0)
        }
        Event::Refuse => tcp(key, RST | ACK, mine.wrapping_add(0x5000_0000), ack(false)),
    }
}

pub fn compare(chance: &mut Chance) -> Result<(), TestCaseError> {
    let capacity = 3 + chance.below(6) as usize;
    let shares: Vec<u32> = (0..3).map(|_| chance.below(6) as u32).collect();
    let mut table = Conntrack::new(Config { timeouts: timeouts(), ..config(capacity, &shares) });
    let mut model = Model { shares, capacity, ..Model::default() };
    let mut now = SECOND;
    for _ in 0..chance.below(60) {
        now += SECOND * [0, 0, 0, 0, 1, 1, 3, 50][chance.below(8) as usize];
        let mut ended = Vec::new();
        while table.age(now, 3, &mut ended) {}
        model.expire(now);
        let protocol = [6, 6, 6, 17, 1, 47][chance.below(6) as usize];
        let (a, b) = ((1, 1 + chance.below(3) as u16), (2, 80));
        let (a, b) = if protocol == 47 { ((1, 0), (2, 0)) } else { (a, b) };
        let mut from = key(chance.below(3) as u32, a, b, protocol);
        if chance.below(2) == 0 {
            from = from.reversed();
        }
        let is_request = from.destination_port == 80;
        let (segment, event) = match protocol {
            6 => {
                let known = model.all.iter().find(|known| known.key == from || known.key == from.reversed());
                let sent = known.map(|known| known.sent[usize::from(known.key == from)]);
                let all = sent.is_some_and(|sent| sent.fin) && chance.below(3) != 0;
                let event = match chance.below(10) {
                    0 => Event::Syn,
                    1 | 2 => Event::SynAck,
                    3..=5 => Event::Ack(all),
                    6 | 7 => Event::Fin(all),
                    8 => Event::Refuse,
                    _ => Event::Reset([0, 1, 1000, 1001, 0x4000_0000, u32::MAX][chance.below(6) as usize]),
                };
                // A connection begins with its SYN, mostly.
                let event = if known.is_none() && chance.below(4) != 0 { Event::Syn } else { event };
                (segment(&model, from, event), Some(event))
            }
            17 => (udp(from), None),
            1 => (Segment { key: from, content: Content::Echo { is_request } }, None),
            _ => (Segment { key: from, content: Content::Other }, None),
        };
        let expected = model.packet(from, event, is_request, now);
        let passed = pass(&mut table, &segment, now, &mut ended);
        prop_assert_eq!(passed.map(drop), expected, "{:?} of {:?}, {:?}", event, from, model.all);
        let known = model.all.iter().find(|known| known.key == from || known.key == from.reversed());
        if let (Ok(tracked), Some(known)) = (passed, known) {
            let direction = if known.key == from { Direction::Original } else { Direction::Reply };
            prop_assert_eq!(tracked.direction, direction);
            prop_assert_eq!(table.tcp_state(tracked.connection), known.state, "after {:?} of {:?}", event, from);
            prop_assert_eq!(tracked.is_lasting, known.stands == Stands::Open);
            if chance.below(8) == 0 && !known.announced {
                let at = model.all.iter().position(|other| other.key == known.key).expect("it is there");
                prop_assert!(table.touch(tracked.connection, now));
                model.all[at].deadline = now + model.all[at].timeout();
            }
        }
        let mut told: Vec<_> = ended.iter().map(|ended| (ended.keys[0], ended.why)).collect();
        prop_assert!(ended.iter().all(|ended| ended.keys[1] == ended.keys[0].reversed()));
        let order = |(key, why): &(Key, End)| {
            (key.zone, key.protocol, key.source, key.source_port, key.destination_port, *why as u8)
        };
        told.sort_by_key(order);
        model.ended.sort_by_key(order);
        prop_assert_eq!(&told, &model.ended);
        model.ended.clear();
        prop_assert_eq!(table.len(), model.all.len());
        for zone in (0..3).map(Zone) {
            let used = model.all.iter().filter(|known| known.key.zone == zone).count();
            prop_assert_eq!(table.used(zone) as usize, used);
        }
    }
    Ok(())
}
