use std::net::IpAddr;

use proptest::prelude::*;

use super::super::acl::tests::Chance;
use super::tcp::{ACK, FIN, RST, SYN};
use super::*;
use crate::hash::MIX;

mod endpoints;
mod model;

const SECOND: u64 = 1_000_000_000;

fn key(zone: u32, source: (u8, u16), destination: (u8, u16), protocol: u8) -> Key {
    let address = |last: u8| IpAddr::from([10, 0, 0, last]);
    Key {
        zone: Zone(zone),
        source: address(source.0),
        destination: address(destination.0),
        protocol,
        source_port: source.1,
        destination_port: destination.1,
    }
}

fn config(capacity: usize, shares: &[u32]) -> Config {
    Config {
        capacity,
        shares: shares.to_vec(),
        rest_is_shared: false,
        timeouts: Timeouts::default(),
        pickup: false,
        any_reset: false,
    }
}

fn udp(key: Key) -> Segment {
    Segment { key, content: Content::Udp }
}

fn tcp(key: Key, flags: u8, sequence: u32, acknowledgement: u32) -> Segment {
    let header = TcpHeader { flags, sequence, acknowledgement, window: 1000, len: 0, scale: None };
    Segment { key, content: Content::Tcp(header) }
}

/// Looks and, where it is new, opens.
fn pass(table: &mut Conntrack, segment: &Segment, now: u64, ended: &mut Vec<Ended>) -> Result<Tracked, Refused> {
    match table.look(segment, now, ended)? {
        Look::Tracked(tracked) => Ok(tracked),
        Look::New(opening) => table.open(&opening, now, ended),
    }
}

fn established(table: &mut Conntrack, key: Key, ended: &mut Vec<Ended>) -> Tracked {
    pass(table, &tcp(key, SYN, 100, 0), 0, ended).unwrap();
    pass(table, &tcp(key.reversed(), SYN | ACK, 500, 101), 0, ended).unwrap();
    pass(table, &tcp(key, ACK, 101, 501), 0, ended).unwrap()
}

#[test]
fn a_reset_has_to_be_where_its_receiver_takes_it() {
    let key = key(0, (1, 4000), (2, 80), 6);
    let (mut table, mut ended) = (Conntrack::new(config(10, &[10])), Vec::new());
    let tracked = established(&mut table, key, &mut ended);
    assert!(tracked.is_lasting && tracked.direction == Direction::Original);
    // The receiver of resets from `key` expects byte 101, and offers 1000 bytes.
    for (sequence, expected) in [(100, Err(Refused::Reset)), (1102, Err(Refused::Reset)), (1101, Ok(()))] {
        let passed = table.look(&tcp(key, RST, sequence, 0), 0, &mut ended);
        assert_eq!(passed.map(drop), expected, "reset at {sequence}");
        assert_eq!(table.tcp_state(tracked.connection), Some(TcpState::Established), "reset at {sequence}");
    }
    assert!(ended.is_empty());
    let Ok(Look::Tracked(last)) = table.look(&tcp(key, RST, 101, 0), 0, &mut ended) else { panic!() };
    assert!(!last.is_lasting, "no flow of a connection that is over");
    let keys = [key, key.reversed()];
    assert_eq!(ended, [Ended { connection: tracked.connection, why: End::Reset, keys }]);
    assert!(!table.touch(tracked.connection, 0), "a flow of it is stale");
    // A new one between the same ends.
    assert!(matches!(table.look(&tcp(key, SYN, 9, 0), 1, &mut ended), Ok(Look::New(_))));
    assert_eq!((ended.len(), table.len()), (1, 0), "it is said once");
    assert_eq!(table.stats().refused[Refused::Reset as usize], 2);
}

/// Connections of an attacker with the code but not the seed: what it can choose of one factor of the hash is what is
/// known of the other, or of its constants, so that the factor is zero where the seed does not hide it.
fn crafted() -> Vec<Vec<Key>> {
    const MANY: u32 = 20_000;
    const PORT: u16 = 443;
    let udp = |source: IpAddr, destination: IpAddr, ports: [u16; 2]| Key {
        zone: Zone(0),
        source,
        destination,
        protocol: 17,
        source_port: ports[0],
        destination_port: ports[1],
    };
    let ports = |low: u16, high: u16| u64::from(low) << 32 | u64::from(high) << 16 | 17;
    let v6 = |high: u64, low: u64| IpAddr::from((u128::from(high) << 64 | u128::from(low)).to_be_bytes());
    let mut sets = vec![
        // The higher address is what the ports are: 1.187.0.17.
        (0..MANY)
            .map(|low| udp((low + 1).to_be_bytes().into(), (ports(0, PORT) as u32).to_be_bytes().into(), [0, PORT]))
            .collect(),
        (0..MANY).map(|at| udp([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), [at as u16, (at >> 16) as u16])).collect(),
    ];
    for known in [0, u64::MAX, MIX[0], MIX[1], MIX[2], ports(PORT, PORT), !ports(PORT, PORT)] {
        let count = || 1..=u64::from(MANY);
        sets.push(count().map(|at| udp(v6(0, at), v6(1 << 63, known), [PORT; 2])).collect());
        sets.push(count().map(|at| udp(v6(at, 5), v6(known | 1 << 63, 5), [PORT; 2])).collect());
        sets.push(count().map(|at| udp(v6(0, known), v6(1 << 63, at), [PORT; 2])).collect());
        sets.push(count().map(|at| udp(v6(known >> 1, 5), v6(1 << 63 | at, 5), [PORT; 2])).collect());
        sets.push(count().map(|at| udp(v6(at, at), v6(1 << 63 | at, at), [PORT; 2])).collect());
    }
    sets
}

#[test]
fn crafted_connections_do_not_meet_in_one_bucket() {
    for (set, keys) in crafted().into_iter().enumerate() {
        let capacity = keys.len();
        let (mut table, mut ended) = (Conntrack::new(config(capacity, &[capacity as u32])), Vec::new());
        for key in &keys {
            pass(&mut table, &udp(*key), 0, &mut ended).unwrap_or_else(|refused| panic!("set {set}: {refused:?}"));
        }
        let longest = (0..table.buckets as u32).map(|bucket| table.chain(bucket).count()).max();
        assert!(longest < Some(MAX_CHAIN / 2), "set {set}: {longest:?} in one bucket");
    }
}

#[test]
fn a_chain_is_bounded_though_the_seed_is_known() {
    let (mut table, mut ended) = (Conntrack::new(config(10_000, &[10_000])), Vec::new());
    let every = (0..60_000).map(|port| key(0, (1, port), (2, 80), 17));
    // A table with few buckets, as one with an attacker that finds the seed.
    table.buckets = 4;
    let outcomes: Vec<_> = every.map(|key| pass(&mut table, &udp(key), 0, &mut ended)).collect();
    assert!(outcomes.contains(&Err(Refused::TableFull)));
    assert_eq!(table.len(), 4 * MAX_CHAIN);
    assert!((0..table.buckets as u32).all(|bucket| table.chain(bucket).count() == MAX_CHAIN));
}

#[test]
fn a_flood_of_syns_displaces_itself() {
    let (mut table, mut ended) = (Conntrack::new(config(100, &[40, 60])), Vec::new());
    let good = established(&mut table, key(0, (1, 1), (2, 2), 6), &mut ended);
    let other = pass(&mut table, &udp(key(1, (1, 1), (2, 2), 17)), 0, &mut ended).unwrap();
    for port in 0..5_000 {
        let flood = tcp(key(0, (3, port), (2, 80), 6), SYN, 7, 0);
        pass(&mut table, &flood, 1, &mut ended).expect("one of its own makes room");
    }
    assert_eq!((table.used(Zone(0)), table.used(Zone(1))), (40, 1));
    assert!(table.touch(good.connection, 2) && table.touch(other.connection, 2));
    assert!(ended.iter().all(|ended| ended.why == End::Evicted && ended.keys[0].zone == Zone(0)));
    assert_eq!(ended.len(), 5_000 - 39);
}

#[test]
fn without_anything_to_displace_a_new_connection_is_refused() {
    let (mut table, mut ended) = (Conntrack::new(config(3, &[2, 2, 0])), Vec::new());
    for port in [1, 2] {
        established(&mut table, key(0, (1, port), (2, 80), 6), &mut ended);
    }
    established(&mut table, key(1, (1, 1), (2, 80), 6), &mut ended);
    let refused = |table: &mut Conntrack, zone| pass(table, &udp(key(zone, (5, 5), (6, 6), 17)), 0, &mut Vec::new());
    assert_eq!(refused(&mut table, 0), Err(Refused::ShareFull));
    assert_eq!(refused(&mut table, 1), Err(Refused::TableFull));
    assert_eq!(refused(&mut table, 2), Err(Refused::NoShare));
    assert_eq!(refused(&mut table, 3), Err(Refused::NoShare));
    table.forget(Zone(0), &mut ended);
    assert_eq!((table.len(), ended.len(), ended[0].why), (1, 2, End::Forgotten));
    assert!(refused(&mut table, 1).is_ok());
}

#[test]
fn who_has_more_than_its_share_gives_room_to_who_has_less() {
    let (mut table, mut ended) = (Conntrack::new(config(4, &[4])), Vec::new());
    for port in 0..3 {
        established(&mut table, key(0, (1, port), (2, 80), 6), &mut ended);
    }
    let half_open = pass(&mut table, &udp(key(0, (1, 9), (2, 53), 17)), 0, &mut ended).unwrap();
    table.set_shares(&[2, 2]);
    assert!(!table.reclaim(Zone(0), &mut ended), "it has more than its share itself");
    assert!(!table.reclaim(Zone(2), &mut ended), "it has no share");
    let open =
        |table: &mut Conntrack, port| pass(table, &tcp(key(1, (1, port), (2, 80), 6), SYN, 7, 0), 1, &mut Vec::new());
    assert_eq!(open(&mut table, 1), Err(Refused::TableFull));
    assert!(table.reclaim(Zone(1), &mut ended));
    assert_eq!(
        ended.iter().map(|it| (it.connection, it.why)).collect::<Vec<_>>(),
        [(half_open.connection, End::Evicted)]
    );
    assert!(open(&mut table, 1).is_ok());
    assert!(table.reclaim(Zone(1), &mut ended), "nobody of them is half open or over any more");
    assert!(open(&mut table, 2).is_ok());
    assert_eq!((table.used(Zone(0)), table.used(Zone(1)), ended.len()), (2, 2, 2));
    assert!(!table.reclaim(Zone(1), &mut ended), "both have their shares");
}

#[test]
fn a_zone_that_opens_without_end_leaves_another_its_share() {
    let shared = |capacity, shares: &[u32]| Config { rest_is_shared: true, ..config(capacity, shares) };
    let (mut table, mut ended) = (Conntrack::new(shared(100, &[25, 25])), Vec::new());
    // Connections that last, of the first zone: as many as there is room for.
    let mut refused = None;
    for port in 0..200 {
        let key = key(0, (1, port), (2, 80), 6);
        match pass(&mut table, &tcp(key, SYN, 100, 0), 0, &mut ended) {
            Ok(_) => {
                pass(&mut table, &tcp(key.reversed(), SYN | ACK, 500, 101), 0, &mut ended).unwrap();
                pass(&mut table, &tcp(key, ACK, 101, 501), 0, &mut ended).unwrap();
            }
            Err(why) => refused = Some(why),
        }
    }
    assert_eq!((table.used(Zone(0)), refused), (100, Some(Refused::ShareFull)), "the rest is for all");
    assert_eq!(table.zone_stats(Zone(0)), ZoneStats { known: 100, no_room: 100, evicted: 0 });
    // The second opens as many as its share, and they stay whatever the first does.
    let second: Vec<Tracked> =
        (0..25).map(|port| established(&mut table, key(1, (1, port), (2, 80), 6), &mut ended)).collect();
    for port in 1000..5000 {
        let _ = pass(&mut table, &tcp(key(0, (3, port), (2, 80), 6), SYN, 7, 0), 1, &mut ended);
    }
    assert_eq!((table.used(Zone(0)), table.used(Zone(1))), (75, 25));
    assert!(second.iter().all(|tracked| table.touch(tracked.connection, 2)));
    assert_eq!(table.zone_stats(Zone(0)).evicted, 25);
    // Beyond its share it takes nothing from the first.
    let more = pass(&mut table, &udp(key(1, (9, 9), (2, 53), 17)), 2, &mut ended);
    assert_eq!(more.map(drop), Err(Refused::ShareFull));
    assert_eq!(table.zone_stats(Zone(1)), ZoneStats { known: 25, no_room: 1, evicted: 0 });
}

#[test]
fn aging_is_bounded_and_forgets_only_what_is_over() {
    let (mut table, mut ended) = (Conntrack::new(config(1000, &[1000])), Vec::new());
    for port in 0..1000 {
        pass(&mut table, &udp(key(0, (1, port), (2, 53), 17)), 0, &mut ended).unwrap();
    }
    let kept = pass(&mut table, &udp(key(0, (1, 7), (2, 53), 17).reversed()), 29 * SECOND, &mut ended).unwrap();
    assert!(table.age(32 * SECOND, 100, &mut ended), "there is more to do");
    assert!(ended.len() <= 100);
    while table.age(32 * SECOND, 100, &mut ended) {}
    assert_eq!((table.len(), ended.len()), (1, 999));
    assert!(table.touch(kept.connection, 32 * SECOND));
    // After a long time without being asked.
    while table.age(1_000_000 * SECOND, 100, &mut ended) {}
    assert!(table.is_empty());
}

#[test]
fn an_error_about_a_connection_goes_against_the_packet_it_quotes() {
    let (mut table, mut ended) = (Conntrack::new(config(10, &[10, 10])), Vec::new());
    let key = key(0, (1, 4000), (2, 53), 17);
    let tracked = pass(&mut table, &udp(key), 0, &mut ended).unwrap();
    let found = table.related(&key, 1).unwrap();
    assert_eq!((found.connection, found.direction), (tracked.connection, Direction::Reply));
    assert_eq!(table.related(&key.reversed(), 1).unwrap().direction, Direction::Original);
    assert!(table.related(&Key { zone: Zone(1), ..key }, 1).is_none());
    assert!(table.related(&key, 30 * SECOND).is_none(), "it keeps nothing alive");
}

#[test]
fn a_connection_is_picked_up_in_the_middle_only_where_that_is_wanted() {
    let key = key(0, (1, 4000), (2, 80), 6);
    let mut ended = Vec::new();
    let middle = tcp(key, ACK, 5_000, 9_000);
    let mut strict = Conntrack::new(config(10, &[10]));
    assert_eq!(pass(&mut strict, &middle, 0, &mut ended), Err(Refused::NoConnection));
    let mut table = Conntrack::new(Config { pickup: true, ..config(10, &[10]) });
    let first = pass(&mut table, &middle, 0, &mut ended).unwrap();
    assert!(!first.is_lasting, "half open until it is answered");
    let answer = pass(&mut table, &tcp(key.reversed(), ACK, 9_000, 5_000), 1, &mut ended).unwrap();
    assert!(answer.is_lasting);
    assert_eq!(table.look(&tcp(key.reversed(), RST, 77, 0), 1, &mut ended).map(drop), Err(Refused::Reset));
    table.look(&tcp(key.reversed(), RST, 9_000, 0), 1, &mut ended).unwrap();
    assert_eq!(ended[0].why, End::Reset);
}

#[test]
fn flags_that_nobody_sends_and_answers_to_nothing_are_refused() {
    let key = key(0, (1, 4000), (2, 80), 6);
    let (mut table, mut ended) = (Conntrack::new(config(10, &[10])), Vec::new());
    for (flags, expected) in [
        (0, Refused::TcpFlags),
        (SYN | FIN, Refused::TcpFlags),
        (SYN | RST, Refused::TcpFlags),
        (FIN, Refused::TcpFlags),
        (SYN | ACK, Refused::NoConnection),
        (RST | ACK, Refused::NoConnection),
        (FIN | ACK, Refused::NoConnection),
    ] {
        assert_eq!(table.look(&tcp(key, flags, 1, 1), 0, &mut ended).map(drop), Err(expected), "{flags:#x}");
    }
    pass(&mut table, &tcp(key, SYN, 100, 0), 0, &mut ended).unwrap();
    let refused = |table: &mut Conntrack, segment| table.look(&segment, 0, &mut Vec::new()).map(drop).unwrap_err();
    assert_eq!(refused(&mut table, tcp(key.reversed(), SYN | ACK, 1, 102)), Refused::Handshake);
    assert_eq!(refused(&mut table, tcp(key, ACK, 101, 1)), Refused::Handshake);
    assert_eq!(refused(&mut table, tcp(key.reversed(), RST | ACK, 0, 102)), Refused::Reset);
    let echo = Segment { key: Key { protocol: 1, ..key }, content: Content::Echo { is_request: false } };
    assert_eq!(refused(&mut table, echo), Refused::NoConnection);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn it_does_what_the_plain_model_does(seed in any::<u64>()) {
        model::compare(&mut Chance(seed))?;
    }

    #[test]
    fn honest_ends_are_never_refused_and_strangers_close_nothing(seed in any::<u64>()) {
        endpoints::talk(&mut Chance(seed))?;
    }
}
