//! Access control lists beside DPDK's `rte_acl`: 10,000 random rule sets, and which rule decides about each of some
//! packets.
//!
//! `dpdk-test-acl` has one list: each set is given source addresses of its own, so that many sets fit into one.

#![allow(missing_docs)]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use softdpu_tests::{Random, skip};
use softdpu_vpc::policy::acl::{Acl, AclSpec, Action, RuleSpec};
use softdpu_vpc::policy::{Ports, Service, Transport, Tuple};
use softdpu_vpc::spec::Prefix;

/// DPDK's own test of rte_acl (Debian: `dpdk-dev`).
const DPDK: &str = "dpdk-test-acl";
const SETS: u32 = 10_000;
/// Sets that it is given at once.
const AT_ONCE: u32 = 500;
/// Packets for each.
const PACKETS: u32 = 16;
/// Bits of source addresses that tell which set is meant.
const OWN: u8 = 16;
/// Protocols: some with ports, some without.
const PROTOCOLS: [u8; 6] = [6, 6, 17, 17, 47, 1];

/// The bits of few addresses, so that rules and packets meet, in a prefix of so many bits.
fn address(random: &mut Random, own: u32, length: u8) -> u32 {
    let free = u32::MAX.checked_shr(length.into()).unwrap_or(0);
    own | (random.below(8).rotate_right(u32::from(length) + 2) | random.below(4)) & free
}

fn prefix(random: &mut Random, own: u32, length: u8) -> (u32, u8) {
    let more = random.one_of([0, 0, 0, 1, 2, 30 - length, 32 - length]);
    let mask = u32::MAX.checked_shl(32 - u32::from(length + more)).unwrap_or(0);
    (address(random, own, length) & mask, length + more)
}

fn port(random: &mut Random) -> u16 {
    random.one_of([0, 1, 2, 80, 443, 8080, 65_534, 65_535])
}

fn ports(random: &mut Random) -> (u16, u16) {
    let (a, b) = (port(random), port(random));
    random.one_of([(0, u16::MAX), (a, a), (a.min(b), a.max(b))])
}

/// A rule as both know it.
struct Rule {
    priority: u32,
    source: (u32, u8),
    destination: (u32, u8),
    /// None: whatever it is.
    protocol: Option<u8>,
    ports: [(u16, u16); 2],
}

impl Rule {
    fn new(random: &mut Random, own: u32) -> Rule {
        let protocol = random.one_of([None, Some(6), Some(6), Some(17), Some(17), Some(47), Some(1)]);
        let has_ports = matches!(protocol, Some(6 | 17));
        let mut ports = || if has_ports { ports(random) } else { (0, u16::MAX) };
        let ports = [ports(), ports()];
        Rule {
            priority: random.below(8),
            source: prefix(random, own, OWN),
            destination: prefix(random, 0, 0),
            protocol,
            ports,
        }
    }

    fn spec(&self, action: Action) -> RuleSpec {
        let prefix = |(bits, length)| Prefix::new(Ipv4Addr::from_bits(bits).into(), length).expect("a prefix");
        let [source, destination] = self.ports.map(|(low, high)| Ports::new(low, high).expect("in order"));
        let service = match self.protocol {
            None => Service::Any,
            Some(6) => Service::Tcp { source, destination },
            Some(17) => Service::Udp { source, destination },
            Some(other) => Service::Protocol(other),
        };
        let (from, to) = (prefix(self.source), prefix(self.destination));
        RuleSpec { priority: self.priority, action, source: Some(from), destination: Some(to), service }
    }

    /// In the format of ClassBench, which the other program reads.
    fn line(&self) -> String {
        let prefix = |(bits, length)| format!("{}/{length}", Ipv4Addr::from_bits(bits));
        let [from, to] = self.ports.map(|(low, high)| format!("{low} : {high}"));
        let protocol = self.protocol.map_or("0x00/0x00".to_owned(), |number| format!("{number:#04x}/0xff"));
        format!("@{}\t{}\t{from}\t{to}\t{protocol}\n", prefix(self.source), prefix(self.destination))
    }
}

/// Some sets: what both are asked, and what softdpu answers.
#[derive(Default)]
struct Round {
    rules: String,
    packets: String,
    /// By line of `rules`: the rule's place in its set.
    places: Vec<u32>,
    /// By line of `packets`.
    decided: Vec<Option<u32>>,
    /// By line of `packets`, for people.
    asked: Vec<String>,
}

impl Round {
    fn add(&mut self, set: u32) {
        let random = &mut Random::new(set.into());
        let own = set << (32 - OWN);
        let rules: Vec<Rule> = (0..1 + random.below(12)).map(|_| Rule::new(random, own)).collect();
        let specs = rules.iter().map(|rule| rule.spec(random.one_of([Action::Allow, Action::Deny])));
        let acl = Acl::build(&AclSpec { rules: specs.collect(), default: Action::Deny }).expect("good rules");
        // The first that matches decides: by priority, then as they are written.
        let mut order: Vec<(u32, &Rule)> = (0..).zip(&rules).collect();
        order.sort_by_key(|(_, rule)| rule.priority);
        for (place, rule) in order {
            self.rules += &rule.line();
            self.places.push(place);
        }
        for _ in 0..PACKETS {
            let (source, destination) = (address(random, own, OWN), address(random, 0, 0));
            let protocol = random.one_of(PROTOCOLS);
            let ports = if matches!(protocol, 6 | 17) { (port(random), port(random)) } else { (0, 0) };
            let transport = match protocol {
                6 | 17 => Transport::Ports { source: ports.0, destination: ports.1 },
                1 => Transport::Icmp { kind: 8, code: 0 },
                _ => Transport::Other,
            };
            let address = |bits| IpAddr::V4(Ipv4Addr::from_bits(bits));
            let tuple = Tuple { source: address(source), destination: address(destination), protocol, transport };
            writeln!(self.packets, "{source} {destination} {} {} {protocol}", ports.0, ports.1).expect("a string");
            self.decided.push(acl.decide(&tuple).rule);
            self.asked.push(format!("set {set}: {tuple:?}"));
        }
    }

    /// What rte_acl answers, by line of `packets`.
    fn ask(&self) -> Vec<Option<u32>> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("a file");
            path.display().to_string()
        };
        let (rules, packets) = (file("rules", &self.rules), file("packets", &self.packets));
        let output = Command::new(DPDK)
            .args(["--no-huge", "--no-pci", "-m", "1024", "-l", "0", "--file-prefix", "softdpu-tests", "--"])
            .args([format!("--rulesf={rules}"), format!("--tracef={packets}"), "--verbose=3".into()])
            .output()
            .expect("it was started before");
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success(), "{DPDK}: {}: {text}", output.status);
        let answer = |line: &str| {
            let (number, result) = line.strip_prefix("ipv4_5tuple: ")?.split_once(", category: 0, result: ")?;
            let number: usize = number.parse().ok()?;
            let place = match result.trim().parse().ok()? {
                u32::MAX => None,
                line => Some(self.places[line as usize]),
            };
            Some((number - 1, place))
        };
        let answers: HashMap<usize, Option<u32>> = text.lines().filter_map(answer).collect();
        assert_eq!(answers.len(), self.decided.len(), "{DPDK} answers about each packet: {text}");
        (0..self.decided.len()).map(|number| answers[&number]).collect()
    }
}

#[test]
fn ten_thousand_rule_sets_are_decided_as_rte_acl_does() {
    if Command::new(DPDK).output().is_err() {
        return skip("acl", "there is no dpdk-test-acl here (Debian: dpdk-dev)");
    }
    let (mut matched, mut asked) = (0, 0);
    for first in (0..SETS).step_by(AT_ONCE as usize) {
        let mut round = Round::default();
        (first..first + AT_ONCE).for_each(|set| round.add(set));
        let answers = round.ask();
        for ((decided, answer), about) in round.decided.iter().zip(&answers).zip(&round.asked) {
            assert_eq!(decided, answer, "softdpu's rule and rte_acl's, {about}");
        }
        matched += round.decided.iter().flatten().count();
        asked += round.decided.len();
    }
    println!("{SETS} sets, {asked} packets, of which {matched} match a rule");
    assert!((asked / 5..asked * 9 / 10).contains(&matched), "{matched} of {asked} packets match a rule");
}
