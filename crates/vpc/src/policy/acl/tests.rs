use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::super::{Ports, Transport};
use super::*;
use softdpu_lpm::mask;

fn prefix(text: &str) -> Option<Prefix> {
    Some(text.parse().unwrap())
}

fn rule(priority: u32, action: Action, source: Option<Prefix>, service: Service) -> RuleSpec {
    RuleSpec { priority, action, source, destination: None, service }
}

fn acl(rules: Vec<RuleSpec>) -> Acl {
    Acl::build(&AclSpec { rules, default: Action::Deny }).unwrap()
}

fn tuple(source: &str, protocol: u8, transport: Transport) -> Tuple {
    let source: IpAddr = source.parse().unwrap();
    let destination = if source.is_ipv4() { "10.0.0.9" } else { "2001:db8::9" }.parse().unwrap();
    Tuple { source, destination, protocol, transport }
}

fn to(port: u16) -> Transport {
    Transport::Ports { source: 40_000, destination: port }
}

#[test]
fn the_least_priority_decides_then_the_order_in_which_they_are_written() {
    let https = Service::tcp(Ports::one(443));
    let acl = acl(vec![
        rule(20, Action::Deny, prefix("10.0.0.0/8"), https),
        rule(10, Action::Allow, prefix("10.1.0.0/16"), https),
        rule(20, Action::Allow, prefix("10.2.0.0/16"), https),
    ]);
    let decide = |source| acl.decide(&tuple(source, 6, to(443)));
    assert_eq!(decide("10.1.0.1"), Decision { action: Action::Allow, rule: Some(1) });
    assert_eq!(decide("10.2.0.1"), Decision { action: Action::Deny, rule: Some(0) });
    assert_eq!(decide("11.0.0.1"), Decision { action: Action::Deny, rule: None });
    assert_eq!(acl.decide(&tuple("10.1.0.1", 17, to(443))).rule, None, "UDP is not TCP");
}

#[test]
fn any_address_is_of_both_families_and_icmp_of_one() {
    let acl = acl(vec![
        rule(1, Action::Allow, None, Service::Icmp { kind: Some(8), code: None }),
        rule(2, Action::Allow, None, Service::Icmpv6 { kind: Some(128), code: Some(0) }),
        rule(3, Action::Allow, None, Service::udp(Ports::one(53))),
    ]);
    let icmp = |kind, code| Transport::Icmp { kind, code };
    assert_eq!(acl.decide(&tuple("10.0.0.1", 1, icmp(8, 3))).rule, Some(0));
    assert_eq!(acl.decide(&tuple("2001:db8::1", 1, icmp(8, 0))).rule, None);
    assert_eq!(acl.decide(&tuple("2001:db8::1", 58, icmp(128, 0))).rule, Some(1));
    assert_eq!(acl.decide(&tuple("2001:db8::1", 58, icmp(128, 1))).rule, None);
    assert_eq!(acl.decide(&tuple("10.0.0.1", 17, to(53))).rule, Some(2));
    assert_eq!(acl.decide(&tuple("2001:db8::1", 17, to(53))).rule, Some(2));
}

#[test]
fn later_fragments_match_allow_rules_by_the_rest_and_deny_rules_only_without_ports() {
    let acl = acl(vec![
        rule(1, Action::Deny, None, Service::udp(Ports::one(53))),
        rule(2, Action::Deny, prefix("10.6.6.0/24"), Service::Any),
        rule(3, Action::Allow, prefix("10.0.0.0/8"), Service::udp(Ports::new(1000, 2000).unwrap())),
    ]);
    assert_eq!(acl.decide(&tuple("10.0.0.1", 17, Transport::Later)).rule, Some(2));
    assert_eq!(acl.decide(&tuple("10.6.6.1", 17, Transport::Later)).rule, Some(1));
    assert_eq!(acl.decide(&tuple("10.0.0.1", 6, Transport::Later)).rule, None);
}

#[test]
fn a_rule_that_nothing_matches_is_refused_with_its_place() {
    let spec = |rule| AclSpec { rules: vec![rule], default: Action::Allow };
    let mixed = RuleSpec { destination: prefix("::/0"), ..rule(7, Action::Allow, prefix("10.0.0.0/8"), Service::Any) };
    assert_eq!(
        Acl::build(&spec(mixed)).unwrap_err().to_string(),
        "rule 0, priority 7: 10.0.0.0/8 and ::/0 are not of one address family"
    );
    let icmp = rule(7, Action::Allow, prefix("::/0"), Service::Icmp { kind: None, code: None });
    assert!(Acl::build(&spec(icmp)).unwrap_err().to_string().ends_with("icmp is for IPv4, icmpv6 for IPv6"));
    let many = AclSpec { rules: vec![rule(1, Action::Allow, None, Service::Any); RULES + 1], default: Action::Deny };
    assert_eq!(Acl::build(&many).unwrap_err(), AclError::TooMany(10_001));
}

/// What a rule says, in the words of its fields and without any of the classifier's code.
fn matches(rule: &RuleSpec, tuple: &Tuple) -> bool {
    let inside = |prefix: Option<Prefix>, address| prefix.is_none_or(|prefix| prefix.contains(address));
    let is_later = tuple.transport == Transport::Later;
    let follows = is_later && rule.action == Action::Allow;
    let in_ports = |ports: Ports, port| ports.first() <= port && port <= ports.last();
    let transport = |protocol, source: Ports, destination: Ports| {
        tuple.protocol == protocol
            && match tuple.transport {
                Transport::Ports { source: from, destination: to } => {
                    in_ports(source, from) && in_ports(destination, to)
                }
                _ => follows || (is_later && source == Ports::ALL && destination == Ports::ALL),
            }
    };
    let icmp = |protocol, v6, kind: Option<u8>, code: Option<u8>| {
        tuple.protocol == protocol
            && tuple.source.is_ipv6() == v6
            && match tuple.transport {
                Transport::Icmp { kind: k, code: c } => {
                    kind.is_none_or(|kind| kind == k) && code.is_none_or(|code| code == c)
                }
                _ => follows || (is_later && kind.is_none() && code.is_none()),
            }
    };
    inside(rule.source, tuple.source)
        && inside(rule.destination, tuple.destination)
        && match rule.service {
            Service::Any => true,
            Service::Protocol(number) => tuple.protocol == number,
            Service::Tcp { source, destination } => transport(6, source, destination),
            Service::Udp { source, destination } => transport(17, source, destination),
            Service::Icmp { kind, code } => icmp(1, false, kind, code),
            Service::Icmpv6 { kind, code } => icmp(58, true, kind, code),
        }
}

fn naive(spec: &AclSpec, tuple: &Tuple) -> Decision {
    let mut first: Option<(usize, &RuleSpec)> = None;
    for (position, rule) in spec.rules.iter().enumerate() {
        if matches(rule, tuple) && first.is_none_or(|(_, other)| rule.priority < other.priority) {
            first = Some((position, rule));
        }
    }
    first.map_or(Decision { action: spec.default, rule: None }, |(position, rule)| Decision {
        action: rule.action,
        rule: Some(position as u32),
    })
}

/// Bits that look like chance, from a seed: cheaper than a strategy for each field.
pub(crate) struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ bits >> 31) % end
    }

    /// Few addresses, so that rules and packets meet.
    pub fn address(&mut self, is_ipv6: bool) -> IpAddr {
        let bits = self.below(32);
        if is_ipv6 {
            Ipv6Addr::from_bits(u128::from(bits).rotate_right(3)).into()
        } else {
            Ipv4Addr::from_bits((bits as u32).rotate_right(3)).into()
        }
    }

    pub fn prefix(&mut self, is_ipv6: bool) -> Option<Prefix> {
        if self.below(3) == 0 {
            return None;
        }
        let most = if is_ipv6 { 128 } else { 32 };
        let length = [0, 1, 2, 3, most - 2, most - 1, most][self.below(7) as usize];
        let address = self.address(is_ipv6);
        Prefix::new(mask(address, length), length).ok()
    }

    pub fn port(&mut self) -> u16 {
        [0, 1, 2, 3, 80, 443, 65_534, 65_535][self.below(8) as usize]
    }

    pub fn ports(&mut self) -> Ports {
        match self.below(3) {
            0 => Ports::ALL,
            1 => Ports::one(self.port()),
            _ => {
                let (a, b) = (self.port(), self.port());
                Ports::new(a.min(b), a.max(b)).expect("in order")
            }
        }
    }

    pub fn service(&mut self, is_ipv6: bool) -> Service {
        let mut maybe = |end| Some(self.below(end) as u8).filter(|number| *number != 0);
        let (kind, code) = (maybe(4), maybe(3));
        match self.below(6) {
            0 => Service::Any,
            1 => Service::Protocol([0, 6, 17, 47, 255][self.below(5) as usize]),
            2 if is_ipv6 => Service::Icmpv6 { kind, code },
            2 => Service::Icmp { kind, code },
            3 => Service::Udp { source: self.ports(), destination: self.ports() },
            _ => Service::Tcp { source: self.ports(), destination: self.ports() },
        }
    }

    pub fn tuple(&mut self) -> Tuple {
        let is_ipv6 = self.below(2) == 0;
        let protocol = [0, 1, 6, 6, 17, 17, 47, 58][self.below(8) as usize];
        let transport = match protocol {
            _ if self.below(6) == 0 => Transport::Later,
            6 | 17 => Transport::Ports { source: self.port(), destination: self.port() },
            1 | 58 => Transport::Icmp { kind: self.below(4) as u8, code: self.below(3) as u8 },
            _ => Transport::Other,
        };
        Tuple { source: self.address(is_ipv6), destination: self.address(is_ipv6), protocol, transport }
    }

    fn rule(&mut self) -> RuleSpec {
        let is_ipv6 = self.below(2) == 0;
        RuleSpec {
            priority: self.below(10) as u32,
            action: if self.below(2) == 0 { Action::Allow } else { Action::Deny },
            source: self.prefix(is_ipv6),
            destination: self.prefix(is_ipv6),
            service: self.service(is_ipv6),
        }
    }

    fn spec(&mut self, rules: u64) -> AclSpec {
        let default = if self.below(2) == 0 { Action::Allow } else { Action::Deny };
        AclSpec { rules: (0..rules).map(|_| self.rule()).collect(), default }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12_000))]

    #[test]
    fn it_says_what_trying_one_rule_after_the_other_says(seed in any::<u64>()) {
        let mut chance = Chance(seed);
        let rules = [2, 4, 8, 16, 70][chance.below(5) as usize];
        let count = chance.below(rules);
        let spec = chance.spec(count);
        let acl = Acl::build(&spec).unwrap();
        for _ in 0..16 {
            let tuple = chance.tuple();
            prop_assert_eq!(acl.decide(&tuple), naive(&spec, &tuple), "{:?} of {:?}", tuple, spec);
        }
    }
}

/// More ends than there are pieces, so that sets have rules too many, with all values in use.
#[test]
fn thousands_of_rules_with_ends_everywhere() {
    let mut chance = Chance(7);
    let rules = (0..4_000)
        .map(|_| {
            let address = Ipv4Addr::from_bits(chance.below(1 << 14) as u32).into();
            let length = 22 + chance.below(11) as u8;
            let ports = |a: u64, b: u64| Ports::new(a.min(b) as u16, a.max(b) as u16).unwrap();
            let source = Prefix::new(mask(address, length), length).ok();
            let destination = ports(chance.below(5_000), chance.below(5_000));
            rule(chance.below(1_000) as u32, Action::Allow, source, Service::tcp(destination))
        })
        .collect();
    let spec = AclSpec { rules, default: Action::Deny };
    let acl = Acl::build(&spec).unwrap();
    let mut undecided = 0;
    for _ in 0..3_000 {
        let source = Ipv4Addr::from_bits(chance.below(1 << 14) as u32);
        let tuple = tuple(&source.to_string(), 6, to(chance.below(5_200) as u16));
        let decision = acl.decide(&tuple);
        assert_eq!(decision, naive(&spec, &tuple), "{tuple:?}");
        undecided += u32::from(decision.rule.is_none());
    }
    assert!((1..2_900).contains(&undecided), "{undecided} of 3000 match nothing");
}
