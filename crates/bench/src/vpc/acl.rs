//! Access control lists and security groups: what the decision about a flow's first packet costs, and what a change
//! does.

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

use fastrand::Rng;
use softdpu_vpc::policy::acl::{Acl, AclSpec, Action, RuleSpec};
use softdpu_vpc::policy::group::{
    EndpointGroups, GroupRule, GroupSpec, Members, Peer as GroupPeer, RuleDirection, SecurityGroupId,
};
use softdpu_vpc::policy::{Ports, Service, Transport, Tuple};
use softdpu_vpc::spec::Prefix;

use super::{Case, Load, Peer};

/// DPDK's own benchmark of rte_acl (Debian: `dpdk-dev`).
const DPDK: &str = "dpdk-test-acl";
/// Packets that look-ups go through.
const PACKETS: usize = 1 << 16;

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Box<dyn Case>> = Vec::new();
    for (rules, size) in [(1_000, "1 k"), (10_000, "10 k")] {
        for is_ipv6 in [false, true] {
            for matching in [true, false] {
                cases.push(Box::new(Decide { rules, size, is_ipv6, matching }));
            }
        }
    }
    cases.push(Box::new(Admit));
    for (rules, size) in [(1_000, "1 k"), (10_000, "10 k")] {
        cases.push(Box::new(Build { rules, size }));
    }
    cases
}

/// One of `all`.
fn one_of<T: Copy, const N: usize>(random: &mut Rng, all: [T; N]) -> T {
    all[random.usize(0..N)]
}

/// A rule as both programs know it.
struct Rule {
    source: (u32, u8),
    destination: (u32, u8),
    ports: (u16, u16),
    protocol: Option<u8>,
}

/// All addresses are in 10.0.0.0/12; of IPv6, in a prefix with these 32 bits at the end.
const NET: u32 = 0x0a00_0000;
const HOSTS: u32 = 1 << 20;

/// Rules that overlap: prefixes of all lengths, any address, any port, ranges.
fn rules(count: u32) -> Vec<Rule> {
    let mut random = Rng::with_seed(1);
    let mut rules = Vec::new();
    while rules.len() < count as usize {
        let mut prefix = || {
            let length = one_of(&mut random, [0, 0, 8, 16, 16, 24, 24, 28, 32, 32]);
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            ((NET | random.u32(0..HOSTS)) & mask, length)
        };
        let (source, destination) = (prefix(), prefix());
        let low = random.u32(0..60_000) as u16;
        let ports = match random.u32(0..4) {
            0 => (0, u16::MAX),
            1 => (1024, u16::MAX),
            2 => (low % 1024, low % 1024),
            _ => (low, low + random.u32(0..5_000) as u16),
        };
        let protocol = one_of(&mut random, [None, Some(17), Some(6), Some(6), Some(6)]);
        // One that matches almost everything would decide almost everything.
        if source.1 >= 16 || destination.1 >= 16 {
            rules.push(Rule { source, destination, ports, protocol });
        }
    }
    rules
}

fn address(bits: u32, is_ipv6: bool) -> IpAddr {
    if is_ipv6 { Ipv6Addr::from_bits(u128::from(bits) << 64).into() } else { Ipv4Addr::from_bits(bits).into() }
}

impl Rule {
    fn spec(&self, priority: u32, is_ipv6: bool) -> Result<RuleSpec, String> {
        let prefix = |(bits, length): (u32, u8)| {
            let length = if is_ipv6 && length != 0 { length + 32 } else { length };
            Prefix::new(address(bits, is_ipv6), length).map(Some).map_err(|wrong| wrong.to_string())
        };
        let ports = Ports::new(self.ports.0, self.ports.1).map_err(|wrong| wrong.to_string())?;
        let service = match self.protocol {
            Some(17) => Service::udp(ports),
            Some(_) => Service::tcp(ports),
            None => Service::Any,
        };
        let (source, destination) = (prefix(self.source)?, prefix(self.destination)?);
        Ok(RuleSpec { priority, action: Action::Allow, source, destination, service })
    }

    /// In the format of ClassBench, which `dpdk-test-acl` reads. What asks for no protocol asks for no ports either.
    fn line(&self) -> String {
        let prefix = |(bits, length)| format!("{}/{length}", Ipv4Addr::from_bits(bits));
        let (protocol, (low, high)) = match self.protocol {
            Some(protocol) => (format!("0x{protocol:02x}/0xff"), self.ports),
            None => ("0x00/0x00".into(), (0, u16::MAX)),
        };
        format!("@{}\t{}\t0 : 65535\t{low} : {high}\t{protocol}", prefix(self.source), prefix(self.destination))
    }
}

fn acl_spec(count: u32, is_ipv6: bool) -> Result<AclSpec, String> {
    let rules = (0..).zip(rules(count)).map(|(at, rule)| rule.spec(at, is_ipv6)).collect::<Result<_, _>>()?;
    Ok(AclSpec { rules, default: Action::Deny })
}

/// A list of so many rules that lets pass what matches none of them.
pub(super) fn allowing(rules: u32) -> Result<AclSpec, String> {
    Ok(AclSpec { default: Action::Allow, ..acl_spec(rules, false)? })
}

/// Source, destination, ports, protocol of packets; without `matching`, of one that only rules for anything have.
fn packets(matching: bool) -> Vec<(u32, u32, u16, u16, u8)> {
    let mut random = Rng::with_seed(2);
    let packet = |_| {
        let mut host = || NET | random.u32(0..HOSTS);
        let (source, destination) = (host(), host());
        let protocol = if matching { one_of(&mut random, [6, 6, 6, 17]) } else { 47 };
        (source, destination, random.u32(0..65_536) as u16, random.u32(0..65_536) as u16, protocol)
    };
    (0..PACKETS).map(packet).collect()
}

fn tuples(is_ipv6: bool, matching: bool) -> Vec<Tuple> {
    let tuple = |(from, to, source, destination, protocol)| Tuple {
        source: address(from, is_ipv6),
        destination: address(to, is_ipv6),
        protocol,
        transport: if protocol == 47 { Transport::Other } else { Transport::Ports { source, destination } },
    };
    packets(matching).into_iter().map(tuple).collect()
}

struct Decide {
    rules: u32,
    size: &'static str,
    is_ipv6: bool,
    matching: bool,
}

impl Case for Decide {
    fn name(&self) -> String {
        let family = if self.is_ipv6 { "IPv6" } else { "IPv4" };
        let packets = if self.matching { "" } else { ", GRE" };
        format!("acl: {} overlapping {family} rules{packets}", self.size)
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let acl = Acl::build(&acl_spec(self.rules, self.is_ipv6)?).map_err(|wrong| wrong.to_string())?;
        Ok(Box::new(Deciding { acl, tuples: tuples(self.is_ipv6, self.matching), at: 0 }))
    }
}

struct Deciding {
    acl: Acl,
    tuples: Vec<Tuple>,
    at: usize,
}

impl Load for Deciding {
    fn run(&mut self, operations: u64) -> u64 {
        for _ in 0..operations {
            black_box(self.acl.decide(&self.tuples[self.at % PACKETS]));
            self.at += 1;
        }
        operations
    }

    fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        let unmatched = self.tuples.iter().filter(|tuple| self.acl.decide(tuple).rule.is_none()).count();
        vec![("memory", "B", self.acl.size() as f64), ("unmatched", "1", unmatched as f64 / PACKETS as f64)]
    }
}

struct Build {
    rules: u32,
    size: &'static str,
}

impl Case for Build {
    fn name(&self) -> String {
        format!("acl: build {} rules, all", self.size)
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        Ok(Box::new(Building(acl_spec(self.rules, false)?)))
    }
}

struct Building(AclSpec);

impl Load for Building {
    fn run(&mut self, operations: u64) -> u64 {
        for _ in 0..operations {
            black_box(Acl::build(&self.0).is_ok());
        }
        operations
    }
}

/// Five groups with twenty rules each, half of them for members of other groups.
struct Admit;

impl Case for Admit {
    fn name(&self) -> String {
        "acl: 5 security groups of 20 rules, 10 k members".into()
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let mut random = Rng::with_seed(3);
        let mut group = || {
            let rule = |at| {
                let ports = Ports::one(random.u32(0..2_000) as u16);
                let prefix = Prefix::new(address((NET | random.u32(0..HOSTS)) & 0xffff_ff00, false), 24);
                let member = GroupPeer::Group(SecurityGroupId(random.u32(0..100)));
                let peer = if at % 2 == 0 { member } else { prefix.map_or(GroupPeer::Any, GroupPeer::Prefix) };
                GroupRule { peer, service: Service::tcp(ports) }
            };
            GroupSpec { ingress: (0..20).map(rule).collect(), egress: None }
        };
        let specs: Vec<GroupSpec> = (0..5).map(|_| group()).collect();
        let groups = EndpointGroups::build(&specs.iter().collect::<Vec<_>>()).map_err(|wrong| wrong.to_string())?;
        let mut tuples = tuples(false, true);
        let members: Vec<(u32, IpAddr, Vec<SecurityGroupId>)> = (0..10_000_u32)
            .map(|host| {
                (1, address(NET | host, false), (0..3).map(|at| SecurityGroupId((host + at * 37) % 100)).collect())
            })
            .collect();
        for (at, tuple) in tuples.iter_mut().enumerate() {
            tuple.source = members[at % members.len()].1;
        }
        Ok(Box::new(Admitting { groups, members: Members::build(&members), tuples, at: 0 }))
    }
}

struct Admitting {
    groups: EndpointGroups,
    members: Members,
    tuples: Vec<Tuple>,
    at: usize,
}

impl Load for Admitting {
    fn run(&mut self, operations: u64) -> u64 {
        for _ in 0..operations {
            let tuple = &self.tuples[self.at % PACKETS];
            black_box(self.groups.admit(RuleDirection::Ingress, tuple, self.members.of(1, tuple.source)));
            self.at += 1;
        }
        operations
    }
}

/// The same rules and packets in rte_acl.
pub(super) fn peers(cpu: usize) -> Result<Vec<Peer>, String> {
    let folder = tempfile::tempdir().map_err(|wrong| format!("no folder for rules: {wrong}"))?;
    let file = |name: &str| folder.path().join(name);
    let written = |name: &str, text: String| fs::write(file(name), text).map_err(|wrong| format!("{name}: {wrong}"));
    let mut trace = String::new();
    for (from, to, source, destination, protocol) in packets(true) {
        let _ = writeln!(trace, "{from} {to} {source} {destination} {protocol}");
    }
    written("trace", trace)?;
    let mut found = Vec::new();
    for (count, size) in [(1_000, "1 k"), (10_000, "10 k")] {
        written("rules", rules(count).iter().map(|rule| rule.line() + "\n").collect())?;
        let option = |name: &str, value: &str| format!("--{name}={value}");
        let output = Command::new(DPDK)
            .args([
                "--no-huge",
                "--no-pci",
                "-m",
                "2048",
                "-l",
                &cpu.to_string(),
                "--file-prefix",
                "softdpu-bench",
                "--",
            ])
            .arg(option("rulesf", &file("rules").to_string_lossy()))
            .arg(option("tracef", &file("trace").to_string_lossy()))
            .args(["--rulenum=20000", "--tracestep=256", "--iter=20", "--verbose=0"])
            .output()
            .map_err(|wrong| format!("{DPDK} does not start ({wrong}): it is in Debian's dpdk-dev"))?;
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        let rate = packets_per_second(&text).ok_or_else(|| {
            let last = text.lines().last().unwrap_or("nothing");
            format!("{DPDK} found no rate ({}); its last line: {last}", output.status)
        })?;
        found.push(Peer {
            subject: DPDK.into(),
            case: format!("acl: {size} overlapping IPv4 rules"),
            figures: vec![("rate", "1/s", rate), ("time", "ns", 1e9 / rate)],
        });
    }
    Ok(found)
}

fn packets_per_second(output: &str) -> Option<f64> {
    let (before, _) = output.rsplit_once(" pkt/sec")?;
    before.rsplit_once(' ')?.1.parse().ok().filter(|rate| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_other_program_says_is_understood() {
        let line = "1 categories, 176759820 cycles (0.07 sec), 539.43 cycles/pkt, 4634537.42 pkt/sec\n";
        assert_eq!(packets_per_second(line), Some(4_634_537.42));
        assert_eq!(packets_per_second("unknown option"), None);
    }

    #[test]
    fn both_programs_get_the_same_rules() {
        let rule = Rule { source: (0x0a01_0000, 16), destination: (0, 0), ports: (80, 81), protocol: Some(6) };
        assert_eq!(rule.line(), "@10.1.0.0/16\t0.0.0.0/0\t0 : 65535\t80 : 81\t0x06/0xff");
        assert!(acl_spec(1_000, true).is_ok() && acl_spec(1_000, false).is_ok());
    }
}
