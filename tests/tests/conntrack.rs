//! Connections beside the kernel's: random streams through a firewall of `nft`, and which packets pass.
//!
//! Connections begin inside: a packet from outside passes only if it is of one that is known. So what passes tells what both hold for a
//! connection.

#![allow(missing_docs)]

#[path = "conntrack/kernel.rs"]
mod kernel;
#[path = "conntrack/streams.rs"]
mod streams;

use std::collections::BTreeMap;

use kernel::Kernel;
use softdpu_tests::{Failure, Lab};
use softdpu_vpc::packet::parse;
use softdpu_vpc::policy::conntrack::{Config, Conntrack, Content, Handle, Look, Subject, TcpState, Timeouts};
use streams::Packet;

/// Streams of TCP, and as many of others.
const STREAMS: u32 = 10_000;
/// Streams that are on their way at once.
const AT_ONCE: u32 = 200;

struct Ours {
    tracker: Conntrack,
}

impl Ours {
    fn new(pickup: bool) -> Ours {
        let capacity = 2 * STREAMS as usize;
        let config = Config { capacity, shares: vec![capacity as u32], timeouts: Timeouts::default(), pickup, any_reset: false };
        Ours { tracker: Conntrack::new(config) }
    }

    fn passes(&mut self, packet: &Packet, last: &mut Option<Handle>) -> bool {
        let parsed = parse(&packet.frame, packet.frame.len()).expect("a good frame");
        let subject = Subject::of(0, parsed.ip().expect("an IP packet"), &packet.frame);
        let ended = &mut Vec::new();
        match subject {
            Subject::Segment(segment) => match self.tracker.look(&segment, 0, ended) {
                Ok(Look::Known(tracked)) => {
                    *last = Some(tracked.handle);
                    true
                }
                Ok(Look::New(opening)) if packet.from == 0 => {
                    *last = Some(self.tracker.open(&opening, 0, ended).expect("room").handle);
                    true
                }
                Ok(Look::New(_)) | Err(_) => false,
            },
            Subject::Error(quoted) => self.tracker.related(&quoted, 0).is_some(),
            Subject::Untracked => false,
        }
    }
}

fn compare(lab: &Lab, pickup: bool) -> Result<(), Failure> {
    let loose = if pickup { "1" } else { "0" };
    let settings = [("nf_conntrack_tcp_be_liberal", "1"), ("nf_conntrack_tcp_loose", loose)];
    let mut kernel = Kernel::new(lab, loose, &settings)?;
    let mut ours = Ours::new(pickup);
    let mark = streams::mark();
    let mut found: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let (mut asked, mut passed, mut parted) = (0, 0, 0);
    for first in (0..STREAMS).step_by(AT_ONCE as usize) {
        let all = (first..first + AT_ONCE).flat_map(|number| [streams::tcp(number), streams::datagrams(number)]);
        let all: Vec<Vec<Packet>> = all.collect();
        let mut over = vec![false; all.len()];
        let mut last: Vec<Option<Handle>> = vec![None; all.len()];
        for turn in 0.. {
            let now: Vec<(usize, &Packet)> = all.iter().enumerate().filter(|(at, _)| !over[*at]).filter_map(|(at, packets)| Some((at, packets.get(turn)?))).collect();
            if now.is_empty() {
                break;
            }
            let frames: Vec<(usize, &[u8])> = now.iter().map(|(_, packet)| (packet.from, &packet.frame[..])).collect();
            let answers = kernel.forward(&frames, &mark)?;
            for ((at, packet), theirs) in now.into_iter().zip(answers) {
                asked += 1;
                passed += usize::from(theirs);
                let before = last[at].and_then(|handle| ours.tracker.tcp_state(handle));
                let decided = ours.passes(packet, &mut last[at]);
                if decided != theirs {
                    over[at] = true;
                    parted += 1;
                    let words: Vec<&str> = packet.about.split(' ').collect();
                    let key = format!("{before:?} {} {}: ours {decided} theirs {theirs}", words[0], words[1]);
                    let story = all[at][..=turn].iter().map(|packet| format!("\n    {}", packet.about)).collect();
                    let entry = found.entry(key).or_insert((0, story));
                    entry.0 += 1;
                }
            }
        }
    }
    println!("pickup {pickup}: {asked} packets, {passed} pass, {parted} streams part");
    for (key, (count, story)) in &found {
        println!("{count} {key}{story}");
    }
    Ok(())
}

#[test]
fn connections_beside_the_kernels() {
    if !kernel::is_possible("conntrack") {
        return;
    }
    for pickup in [false, true] {
        Lab::run("conntrack", |lab| compare(lab, pickup));
    }
}
