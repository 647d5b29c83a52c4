//! Connections beside the kernel's: random streams through a firewall of `nft`, and which packets pass.
//!
//! Connections begin inside: a packet from outside passes only if it is of one that is known. So what passes tells what
//! both hold for a connection.

#![allow(missing_docs)]

#[path = "conntrack/intended.rs"]
mod intended;
#[path = "conntrack/kernel.rs"]
mod kernel;
#[path = "conntrack/streams.rs"]
mod streams;

use std::collections::BTreeMap;

use intended::{Intended, Ours, Stream};
use kernel::Kernel;
use softdpu_tests::{Failure, Lab};
use softdpu_vpc::packet::parse;
use softdpu_vpc::policy::conntrack::{Config, ConnectionId, Conntrack, Look, Subject, Timeouts, Zone};
use streams::Packet;

/// Streams of TCP, and as many of others.
const STREAMS: u32 = 10_000;
/// Streams that are on their way at once.
const AT_ONCE: u32 = 200;

/// softdpu's connections, which begin inside.
struct Tracker(Conntrack);

impl Tracker {
    fn new(pickup: bool) -> Tracker {
        let capacity = 2 * STREAMS;
        let (shares, timeouts) = (vec![capacity], Timeouts::default());
        Tracker(Conntrack::new(Config {
            capacity: capacity as usize,
            shares,
            rest_is_shared: false,
            timeouts,
            pickup,
            any_reset: false,
        }))
    }

    /// `last`: the connection that the stream's last packet was of.
    fn decide(&mut self, packet: &Packet, last: &mut Option<ConnectionId>) -> Ours {
        let parsed = parse(&packet.frame, packet.frame.len()).expect("a good frame");
        let ended = &mut Vec::new();
        match Subject::of(Zone(0), parsed.ip().expect("an IP packet"), &packet.frame) {
            Subject::Segment(segment) => match self.0.look(&segment, 0, ended) {
                Ok(Look::Tracked(tracked)) => *last = Some(tracked.connection),
                Ok(Look::New(opening)) if packet.from == 0 => match self.0.open(&opening, 0, ended) {
                    Ok(tracked) => *last = Some(tracked.connection),
                    Err(refused) => return Ours::Refused(refused),
                },
                Ok(Look::New(_)) => return Ours::Denied,
                Err(refused) => return Ours::Refused(refused),
            },
            Subject::Error(quoted) if self.0.related(&quoted, 0).is_some() => {}
            Subject::Error(_) | Subject::Untracked => return Ours::Denied,
        }
        Ours::Passes
    }
}

#[derive(Default)]
struct Side {
    stream: Stream,
    last: Option<ConnectionId>,
    /// What both have said so far.
    said: Vec<(Ours, bool)>,
    /// Both may hold something else for the connection, as it is meant: nothing is compared any more.
    over: bool,
}

#[derive(Default)]
struct Found {
    packets: usize,
    pass: usize,
    /// Streams that were compared to their end.
    whole: usize,
    intended: BTreeMap<Intended, usize>,
}

fn compare(lab: &Lab, pickup: bool, seed: u64) -> Result<Found, Failure> {
    let loose = if pickup { "1" } else { "0" };
    let settings = [("nf_conntrack_tcp_be_liberal", "1"), ("nf_conntrack_tcp_loose", loose)];
    let mut kernel = Kernel::new(lab, loose, &settings)?;
    let mut tracker = Tracker::new(pickup);
    let mark = streams::mark();
    let mut found = Found::default();
    for first in (0..STREAMS).step_by(AT_ONCE as usize) {
        let streams =
            (first..first + AT_ONCE).flat_map(|number| [streams::tcp(seed, number), streams::datagrams(seed, number)]);
        let streams: Vec<Vec<Packet>> = streams.collect();
        let mut sides: Vec<Side> = streams.iter().map(|_| Side::default()).collect();
        for turn in 0..streams.iter().map(Vec::len).max().unwrap_or(0) {
            let there = |at: &usize| !sides[*at].over && turn < streams[*at].len();
            let now: Vec<usize> = (0..streams.len()).filter(there).collect();
            let packet = |at: usize| &streams[at][turn];
            let frames: Vec<(usize, &[u8])> = now.iter().map(|at| (packet(*at).from, &packet(*at).frame[..])).collect();
            let answers = kernel.forward(&frames, &mark)?;
            for (at, theirs) in now.into_iter().zip(answers) {
                let side = &mut sides[at];
                let state = |tracker: &Tracker, side: &Side| side.last.and_then(|handle| tracker.0.tcp_state(handle));
                let before = state(&tracker, side);
                let ours = tracker.decide(packet(at), &mut side.last);
                let after = state(&tracker, side);
                side.said.push((ours, theirs));
                found.packets += 1;
                found.pass += usize::from(theirs);
                let intended = side.stream.intended(packet(at), [before, after], ours, theirs);
                if let Some(intended) = intended {
                    *found.intended.entry(intended).or_default() += 1;
                    side.over = !intended.goes_on();
                } else if (ours == Ours::Passes) != theirs {
                    let story = streams[at].iter().zip(&side.said).map(|(packet, (ours, theirs))| {
                        format!(
                            "\n    {}: {ours:?}, the kernel {}",
                            packet.about,
                            if *theirs { "lets it pass" } else { "drops it" }
                        )
                    });
                    let story: String = story.collect();
                    return Err(Failure::new(format!(
                        "seed {seed}, pickup {pickup}: both differ about the last packet, in state {before:?}:{story}"
                    )));
                }
            }
        }
        found.whole += sides.iter().filter(|side| !side.over).count();
    }
    Ok(found)
}

#[test]
fn connections_are_tracked_as_the_kernel_tracks_them() {
    if !kernel::is_possible("conntrack") {
        return;
    }
    // The same streams in every run, unless `SOFTDPU_SEED` asks for others.
    let seed = std::env::var("SOFTDPU_SEED").map_or(0, |seed| seed.parse().expect("SOFTDPU_SEED is a number"));
    for pickup in [false, true] {
        Lab::run("conntrack", |lab| {
            let Found { packets, pass, whole, intended } = compare(lab, pickup, seed)?;
            println!(
                "seed {seed}, pickup {pickup}: {packets} packets, {pass} pass, {whole} streams to their end, meant otherwise: {intended:?}"
            );
            assert!((packets / 3..packets * 9 / 10).contains(&pass), "{pass} of {packets} packets pass");
            assert!(whole > STREAMS as usize * 2 * 8 / 10, "{whole} streams were compared to their end");
            for one in Intended::ALL {
                assert!(intended.contains_key(&one), "{one:?} is listed, and does not happen");
            }
            Ok(())
        });
    }
}
