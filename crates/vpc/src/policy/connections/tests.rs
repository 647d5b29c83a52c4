use std::net::IpAddr;
use std::os::fd::AsFd;

use proptest::prelude::*;

use super::super::conntrack::{Segment, TcpHeader};
use super::super::tuple::Transport;
use super::*;
use crate::kept::{Kept, KeptFiles};

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
        let all = Connections::new(1 << 16, None);
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
        let [one, many] = [1 << 12, 1 << 15].map(|capacity| Connections::new(capacity, None));
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
    let all = Connections::new(1 << 15, None);
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
    let all = Connections::new(1 << 15, None);
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
    let all = Connections::new(1 << 15, None);
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
    let all = Connections::new(1 << 15, None);
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

/// The connections of a process, and what is there for the next.
fn process(capacity: u32, epoch: u64, before: &[&KeptFiles]) -> (Connections, Arc<Keeper>, KeptFiles) {
    let (keeper, files) = Keeper::new(capacity, epoch).unwrap();
    let keeper = Arc::new(keeper);
    before.iter().for_each(|files| keeper.inherit_connections(files.connections.as_fd()).unwrap());
    (Connections::new(capacity, Some(Arc::clone(&keeper))), keeper, files)
}

/// Asks about a packet, of which the rules of both ends allow none to begin a connection.
fn ask_strictly(all: &Connections, key: Key, content: Content, now: u64) -> Result<Passage, DropReason> {
    let none = EndpointGroups::build(&[]).unwrap();
    let end = End { rules: Some(&none), member_of: &[], stamp: Stamp::default() };
    let Key { source, destination, protocol, .. } = key;
    let transport = Transport::Ports { source: key.source_port, destination: key.destination_port };
    let tuple = Tuple { source, destination, protocol, transport };
    let subject = Subject::Segment(Segment { key, content });
    all.ask(&Question { now, subject, tuple, from: end, to: end }, |_| true, |_| {})
}

fn tcp(flags: u8) -> Content {
    Content::Tcp(TcpHeader { flags, sequence: 100, acknowledgement: 101, window: 1000, len: 0, scale: None })
}

fn shake(all: &Connections, key: Key, now: u64) {
    for (key, flags) in [(key, SYN), (key.reversed(), SYN | ACK), (key, ACK)] {
        let content = Content::Tcp(TcpHeader {
            flags,
            sequence: 100 + u32::from(flags == ACK),
            acknowledgement: 101,
            window: 1000,
            len: 0,
            scale: None,
        });
        ask(all, Subject::Segment(Segment { key, content }), key, now, &mut Vec::new()).unwrap();
    }
}

const MS: u64 = 1_000_000;

#[test]
fn a_reply_passes_in_the_next_process_and_what_begins_there_does_not() {
    let (before, _, files) = process(1 << 12, 1_000 * MS, &[]);
    // A zone's number says nothing in another process.
    let zone = before.set_networks(&["red", "blue"])[1];
    let one = Key { protocol: 6, ..key(zone, 7, 40_000) };
    shake(&before, one, 5 * MS);
    // No copy at the switch: what is left is found by the packet. The clock of this process begins anew.
    let (after, keeper, _) = process(1 << 12, 1_010 * MS, &[&files]);
    let zone = after.set_networks(&["green", "red", "blue"])[2];
    let one = Key { zone, ..one };
    let answer = one.reversed();
    assert_eq!(ask_strictly(&after, Key { source_port: 81, ..answer }, tcp(ACK), MS), Err(DropReason::SecurityGroup));
    let other_network = Key { zone: Zone(1), ..answer };
    assert_eq!(ask_strictly(&after, other_network, tcp(ACK), MS), Err(DropReason::SecurityGroup));
    let passage =
        ask(&after, Subject::Segment(Segment { key: answer, content: tcp(ACK) }), answer, MS, &mut Vec::new());
    assert!(matches!(passage, Ok(Passage::Connected(_))), "flows of it are kept at once: {passage:?}");
    assert_eq!((after.stats().0, keeper.taken()[0]), (1, Kept { taken: 1, left: 0 }));
    assert_eq!(ask_strictly(&after, answer, tcp(ACK), 2 * MS).map(|_| ()), Ok(()), "admitted by these rules");
}

#[test]
fn what_the_rules_of_today_forbid_does_not_go_on() {
    let (before, _, files) = process(1 << 12, 0, &[]);
    let one = Key { protocol: 6, ..key(before.set_networks(&["red"])[0], 7, 40_000) };
    shake(&before, one, 0);
    let (after, ..) = process(1 << 12, 0, &[&files]);
    after.set_networks(&["red"]);
    for key in [one, one.reversed()] {
        assert_eq!(ask_strictly(&after, key, tcp(ACK), MS), Err(DropReason::SecurityGroup));
    }
}

#[test]
fn all_is_taken_over_a_slice_at_a_time_and_through_several_processes() {
    let (before, _, mut files) = process(1 << 13, 0, &[]);
    let zone = before.set_networks(&["red"])[0];
    let all: Vec<Key> = (0..3_000).map(|host| key(zone, host, 7)).collect();
    all.iter().for_each(|key| assert!(open(&before, *key).is_ok()));
    for generation in 1..4 {
        let (after, keeper, next) = process(1 << 13, 0, &[&files]);
        after.set_networks(&["red"]);
        let mut slices = 0;
        while !after.take_over(MS, 100) {
            slices += 1;
        }
        assert!((30..40).contains(&slices), "{slices} of 100");
        assert_eq!((after.stats().0, keeper.taken()[0]), (3_000, Kept { taken: 3_000, left: 0 }), "{generation}");
        assert!(!keeper.connections.inherits());
        assert!(
            all.iter().all(|key| ask_strictly(&after, key.reversed(), Content::Udp, MS).is_err() && after.has(key, MS))
        );
        files = next;
    }
}

#[test]
fn a_process_that_dies_while_it_takes_over_leaves_two() {
    let (before, _, first) = process(1 << 12, 0, &[]);
    let zone = before.set_networks(&["red"])[0];
    let all: Vec<Key> = (0..200).map(|host| key(zone, host, 7)).collect();
    all.iter().for_each(|key| assert!(open(&before, *key).is_ok()));
    let (dies, _, second) = process(1 << 12, 0, &[&first]);
    dies.set_networks(&["red"]);
    assert!(!dies.take_over(MS, 50));
    let (after, keeper, _) = process(1 << 12, 0, &[&second, &first]);
    after.set_networks(&["red"]);
    while !after.take_over(MS, 64) {}
    assert_eq!((after.stats().0, keeper.taken()[0].taken), (200, 200));
}

#[test]
fn what_has_ended_is_not_taken_over() {
    const SECOND: u64 = 1_000 * MS;
    let (before, keeper, files) = process(1 << 12, 0, &[]);
    let zone = before.set_networks(&["red", "blue"])[0];
    let gone = key(Zone(1), 9, 9);
    open(&before, key(zone, 1, 7)).unwrap();
    open(&before, gone).unwrap();
    let reset = Key { protocol: 6, ..key(zone, 2, 7) };
    shake(&before, reset, 0);
    ask(&before, Subject::Segment(Segment { key: reset, content: tcp(4) }), reset, 0, &mut Vec::new()).unwrap();
    before.set_networks(&["red"]);
    let taken = |now| {
        let (after, keeper, _) = process(1 << 12, 0, &[&files]);
        after.set_networks(&["red", "blue"]);
        while !after.take_over(now, 64) {}
        (after.stats().0, keeper.taken()[0].taken)
    };
    assert_eq!(taken(MS), (2, 2), "that of a network that is gone is gone");
    assert_eq!(taken(11 * SECOND), (1, 1), "the reset one is over after 10 s");
    assert_eq!(taken(121 * SECOND), (0, 0), "UDP after 120");
    // Its room is another's.
    before.age(121 * SECOND);
    (0..4_000).for_each(|host| assert!(open(&before, key(zone, host, 8)).is_ok()));
    assert_eq!(taken(MS).0, before.stats().0.min(4_000));
    drop(keeper);
}

#[test]
fn a_network_gets_no_more_than_its_share_of_what_was_left() {
    let (before, _, files) = process(1 << 12, 0, &[]);
    let zone = before.set_networks(&["red"])[0];
    (0..4_000).for_each(|host| assert!(open(&before, key(zone, host, 7)).is_ok()));
    let (after, keeper, _) = process(1 << 12, 0, &[&files]);
    let blue = after.set_networks(&["red", "blue"])[1];
    while !after.take_over(MS, 4_096) {}
    assert_eq!(keeper.taken()[0].taken, 4_000, "there is room as long as no other needs it");
    (0..1_000).for_each(|host| assert!(open(&after, key(blue, host, 7)).is_ok()));
    assert_eq!(after.networks().iter().map(|(_, stats)| stats.known).collect::<Vec<_>>(), [1_000, 3_096]);
}

proptest! {
    /// Words that anything may have written: whatever is taken up is a connection of the network that it says.
    #[test]
    fn forged_records_are_connections_or_nothing(
        forged in prop::collection::vec((any::<[u64; 5]>(), any::<[u64; 8]>(), any::<bool>(), any::<u8>()), 1..40),
        now in any::<u64>(),
    ) {
        let (keeper, files) = Keeper::new(1 << 12, 0).unwrap();
        let name = softdpu_kept::name(b"red");
        for ([low, low_high, high, high_high, rest], tail, is_plain, bits) in forged {
            // Most random words are no ends at all.
            let fixed = match is_plain {
                true => [name, low & 0xffff, 0, high | 1 << 20, 0, rest & 0xffff_ffff_0000_0000 | u64::from(bits) << 8],
                false => [name, low, low_high, high, high_high, rest],
            };
            let tail = if bits & 1 == 0 { tail } else { [tail[0], u64::from(bits) << 7 & 0x307, 0, 0, 0, 0, 0, 0] };
            keeper.connections.insert(rest, &fixed, &tail);
        }
        let (after, keeper, _) = process(1 << 12, 0, &[&files]);
        after.set_networks(&["red"]);
        while !after.take_over(now, 64) {}
        prop_assert_eq!(after.stats().0 as u64, keeper.taken()[0].taken);
        after.age(now.saturating_add(u64::MAX / 2));
    }
}
