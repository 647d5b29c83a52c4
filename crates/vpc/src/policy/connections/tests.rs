use std::net::IpAddr;

use proptest::prelude::*;

use super::super::conntrack::{Segment, TcpHeader};
use super::super::tuple::Transport;
use super::*;

const SYN: u8 = 2;
const ACK: u8 = 16;
const UDP: u8 = 17;

fn key(zone: Zone, host: u32, port: u16) -> Key {
    Key {
        zone,
        source: IpAddr::from((0x0a00_0000 + host).to_be_bytes()),
        destination: [10, 255, 0, 1].into(),
        protocol: UDP,
        source_port: port,
        destination_port: 53,
    }
}

/// Asks about a packet between ends without rules. The steps on the way are appended to `notes`.
fn ask(all: &Connections, subject: Subject, key: Key, now: u64, notes: &mut Vec<Note>) -> Result<Passage, DropReason> {
    let end = End { rules: None, member_of: &[], stamp: Stamp::default() };
    let transport = Transport::Ports { source: key.source_port, destination: key.destination_port };
    let Key { source, destination, protocol, .. } = key;
    let tuple = Tuple { source, destination, protocol, transport };
    all.ask(&Question { now, subject, tuple, from: end, to: end }, |_| true, |note| notes.push(note))
}

fn datagram(all: &Connections, key: Key, now: u64) -> Result<Passage, DropReason> {
    ask(all, Subject::Segment(Segment { key, content: Content::Udp }), key, now, &mut Vec::new())
}

fn asked(all: &Connections) -> u64 {
    all.locks_taken()
}

/// Opens a connection that both ends have sent on: it is neither half open nor over.
fn open(all: &Connections, key: Key) -> Result<Passage, DropReason> {
    datagram(all, key, 0)?;
    datagram(all, key.reversed(), 0)
}

fn any_key() -> impl Strategy<Value = Key> {
    let address = prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)];
    (
        0_u32..4,
        address,
        any::<[u8; 16]>(),
        prop_oneof![Just(1_u8), Just(6), Just(17), Just(58), any::<u8>()],
        any::<[u16; 2]>(),
    )
        .prop_map(|(zone, source, other, protocol, [source_port, destination_port])| {
            let [a, b, c, d, ..] = other;
            let destination = if source.is_ipv6() { other.into() } else { [a, b, c, d].into() };
            Key { zone: Zone(zone), source, destination, protocol, source_port, destination_port }
        })
}

proptest! {
    #[test]
    fn both_directions_and_errors_about_them_have_one_shard(keys in prop::collection::vec(any_key(), 1..50)) {
        let all = Connections::new(1 << 16);
        prop_assert_eq!(all.shards.len(), 16);
        for key in keys {
            let shard = all.shard(&key).first;
            prop_assert_eq!(all.shard(&key.reversed()).first, shard);
        }
    }

    /// A table in shards answers like one without, whatever is asked.
    #[test]
    fn shards_are_seen_by_nobody(
        steps in prop::collection::vec((0_u32..6, 0_u16..3, 0_usize..6, any::<bool>(), 0_u64..20), 1..200),
    ) {
        let [one, many] = [1 << 12, 1 << 15].map(Connections::new);
        assert_eq!((one.shards.len(), many.shards.len()), (1, 8));
        for all in [&one, &many] {
            all.set_networks(&["red", "blue"]);
        }
        let mut now = 0;
        for (host, port, kind, is_reply, pause) in steps {
            now += pause * 1_000_000_000;
            let key = key(Zone(host % 2), host, port);
            let (is_tcp, flags) = (kind < 4, [SYN, SYN | ACK, ACK, 1 | ACK][kind % 4]);
            let key = Key { protocol: if is_tcp { 6 } else { UDP }, ..key };
            let key = if is_reply { key.reversed() } else { key };
            let tcp = TcpHeader { flags, sequence: 100, acknowledgement: 101, window: 1000, len: 0, scale: None };
            let content = if is_tcp { Content::Tcp(tcp) } else { Content::Udp };
            let subject = if kind == 5 { Subject::Error(key) } else { Subject::Segment(Segment { key, content }) };
            let [expected, found] = [&one, &many].map(|all| {
                let mut notes = Vec::new();
                let answer = ask(all, subject, key, now, &mut notes);
                (answer.map(|passage| passage.connection().is_some()), notes)
            });
            prop_assert_eq!(found, expected);
            // Those that have timed out are forgotten as it comes.
            let counted = [&one, &many].map(|all| (all.stats().1.opened, all.stats().1.refused));
            prop_assert_eq!(counted[1], counted[0]);
        }
    }
}

#[test]
fn connections_know_their_slots_among_those_of_all_shards() {
    let all = Connections::new(1 << 15);
    let zone = all.set_networks(&["red"])[0];
    let mut slots = HashSet::new();
    for host in 0..4_000 {
        let Ok(Passage::Connected(connection)) = open(&all, key(zone, host, 7)) else { panic!("host {host}") };
        assert!(slots.insert(connection.index()) && all.is_open(connection, 0) && !all.is_over(connection));
        all.close(connection.into());
        assert!(!all.is_open(connection, 0));
    }
    assert!(slots.iter().max() > Some(&(7 * all.size)), "all shards have some");
    assert_eq!(all.stats().0, 4_000);
}

#[test]
fn a_network_that_opens_without_end_leaves_another_its_share() {
    let all = Connections::new(1 << 15);
    let zones = all.set_networks(&["greedy", "modest"]);
    // More connections than there are places, all open.
    let outcomes: Vec<_> = (0..40_000).map(|host| open(&all, key(zones[0], host, 9)).map(drop)).collect();
    assert!(outcomes.contains(&Err(DropReason::ConnectionShareFull)));
    let full = all.stats().0;
    assert_eq!(full, all.capacity(), "what no other network wants is for one");
    // Nine tenths of its share, which is a quarter of all: as a hash spreads them.
    let modest: Vec<ConnectionId> = (0..7_400)
        .map(|host| match open(&all, key(zones[1], host, 9)) {
            Ok(Passage::Connected(connection)) => connection,
            other => panic!("host {host}: {other:?}"),
        })
        .collect();
    for host in 50_000..90_000 {
        let _ = open(&all, key(zones[0], host, 9));
    }
    assert!(modest.iter().all(|connection| !all.is_over(*connection) && all.is_open(*connection, 0)));
    let networks = all.networks();
    let [(_, greedy), (_, modest)] = &networks[..] else { panic!("{networks:?}") };
    assert_eq!((modest.known, modest.no_room, modest.evicted), (7_400, 0, 0));
    assert_eq!((greedy.known as usize, greedy.evicted), (full - 7_400, 7_400));
    assert!(greedy.no_room > 40_000, "{greedy:?}");
}

#[test]
fn flows_ask_no_shard_and_a_question_asks_one() {
    let all = Connections::new(1 << 15);
    let zone = all.set_networks(&["red"])[0];
    let Ok(Passage::Connected(connection)) = open(&all, key(zone, 1, 7)) else { panic!("it is open") };
    let before = asked(&all);
    assert!((0..100_000).all(|at| all.is_open(connection, at * 600)), "for 60 ms");
    assert_eq!(asked(&all), before);
    let mine = all.shard(&key(zone, 1, 7));
    let (of_mine, of_all) = (mine.asked.load(Ordering::Relaxed), asked(&all));
    datagram(&all, key(zone, 1, 7), 0).expect("it is open");
    assert_eq!((mine.asked.load(Ordering::Relaxed) - of_mine, asked(&all) - of_all), (1, 1));
    ask(&all, Subject::Untracked, key(zone, 1, 7), 0, &mut Vec::new()).expect("no rules");
    assert_eq!(asked(&all), of_all + 1, "a later fragment is of no shard");
}

#[test]
fn cores_that_meet_both_directions_at_once_open_each_connection_once() {
    let all = Connections::new(1 << 15);
    let zone = all.set_networks(&["red"])[0];
    std::thread::scope(|scope| {
        for is_reply in [false, true] {
            let all = &all;
            scope.spawn(move || {
                for host in 0..5_000 {
                    let key = key(zone, host, 7);
                    datagram(all, if is_reply { key.reversed() } else { key }, 0).expect("there is room");
                }
            });
        }
    });
    assert_eq!((all.stats().0, all.stats().1.opened), (5_000, 5_000));
}
