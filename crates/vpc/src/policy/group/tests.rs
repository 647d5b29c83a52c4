use proptest::prelude::*;

use super::super::acl::tests::Chance;
use super::super::{Ports, Transport};
use super::*;

fn tcp_from(source: &str, port: u16) -> Tuple {
    let transport = Transport::Ports { source: 40_000, destination: port };
    Tuple { source: source.parse().unwrap(), destination: "10.0.0.2".parse().unwrap(), protocol: 6, transport }
}

fn rule(peer: Peer, port: u16) -> GroupRule {
    GroupRule { peer, service: Service::tcp(Ports::one(port)) }
}

#[test]
fn a_web_tier_takes_anybody_and_a_database_only_the_web_tier() {
    let (web, ssh) = (SecurityGroupId(7), SecurityGroupId(9));
    let public = GroupSpec { ingress: vec![rule(Peer::Any, 443)], egress: None };
    let database = GroupSpec { ingress: vec![rule(Peer::Group(web), 5432)], egress: Some(Vec::new()) };
    let admin = GroupSpec { ingress: vec![rule(Peer::Prefix("192.0.2.0/24".parse().unwrap()), 22)], egress: None };
    let members = Members::build(&[
        (1, "10.0.0.5".parse().unwrap(), vec![SecurityGroupId(3), web]),
        (2, "10.0.0.6".parse().unwrap(), vec![web]),
        (1, "10.0.0.7".parse().unwrap(), vec![ssh]),
    ]);
    let endpoint = EndpointGroups::build(&[&database, &admin]).unwrap();
    let admit = |source: &str, port| {
        let tuple = tcp_from(source, port);
        endpoint.admit(RuleDirection::Ingress, &tuple, members.of(1, tuple.source))
    };
    assert_eq!(admit("10.0.0.5", 5432), Admission::Rule { group: 0, rule: 0 });
    assert_eq!(admit("10.0.0.6", 5432), Admission::Denied, "a member in another network");
    assert_eq!(admit("10.0.0.7", 5432), Admission::Denied, "a member of another group");
    assert_eq!(admit("192.0.2.9", 22), Admission::Rule { group: 1, rule: 0 });
    assert_eq!(endpoint.admit(RuleDirection::Egress, &tcp_from("10.0.0.5", 80), &[web]), Admission::Denied);
    let front = EndpointGroups::build(&[&public]).unwrap();
    assert_eq!(
        front.admit(RuleDirection::Ingress, &tcp_from("8.8.8.8", 443), &[]),
        Admission::Rule { group: 0, rule: 0 }
    );
    assert_eq!(front.admit(RuleDirection::Egress, &tcp_from("10.0.0.5", 80), &[]), Admission::Unrestricted);
}

#[test]
fn an_endpoint_without_groups_gets_nothing_and_sends_anything() {
    let none = EndpointGroups::build(&[]).unwrap();
    assert_eq!(none.admit(RuleDirection::Ingress, &tcp_from("10.0.0.5", 80), &[]), Admission::Denied);
    assert_eq!(none.admit(RuleDirection::Egress, &tcp_from("10.0.0.5", 80), &[]), Admission::Unrestricted);
}

#[test]
fn a_wrong_rule_is_named() {
    let icmp = Service::Icmpv6 { kind: None, code: None };
    let wrong = GroupRule { peer: Peer::Prefix("10.0.0.0/8".parse().unwrap()), service: icmp };
    let spec = GroupSpec { ingress: Vec::new(), egress: Some(vec![rule(Peer::Any, 1), wrong]) };
    let error = EndpointGroups::build(&[&GroupSpec::default(), &spec]).unwrap_err();
    assert!(error.to_string().starts_with("group 1, egress rule 1: 10.0.0.0/8 is not of the"), "{error}");
    assert_eq!(EndpointGroups::build(&[&spec; 17]).unwrap_err(), GroupError::TooManyGroups(17));
}

fn group_rule(chance: &mut Chance) -> GroupRule {
    let is_ipv6 = chance.below(2) == 0;
    let peer = match chance.below(3) {
        0 => Peer::Group(SecurityGroupId(chance.below(5) as u32 * 1000)),
        _ => chance.prefix(is_ipv6).map_or(Peer::Any, Peer::Prefix),
    };
    GroupRule { peer, service: chance.service(is_ipv6) }
}

fn spec(chance: &mut Chance) -> GroupSpec {
    let rules = |chance: &mut Chance| (0..chance.below(6)).map(|_| group_rule(chance)).collect::<Vec<_>>();
    let ingress = rules(chance);
    GroupSpec { ingress, egress: (chance.below(3) != 0).then(|| rules(chance)) }
}

/// Whether a rule's service has the packet, field by field.
fn serves(service: Service, tuple: &Tuple) -> bool {
    let numbers = match tuple.transport {
        Transport::Ports { source, destination } => Some((source, destination)),
        Transport::Icmp { kind, code } => Some((kind.into(), code.into())),
        Transport::Other | Transport::Later => None,
    };
    let is_in = |ports: Ports, number: u16| (ports.first()..=ports.last()).contains(&number);
    let is = |wanted: Option<u8>, number: u16| wanted.is_none_or(|wanted| u16::from(wanted) == number);
    match service {
        Service::Any => true,
        Service::Protocol(protocol) => tuple.protocol == protocol,
        Service::Tcp { source, destination } | Service::Udp { source, destination } => {
            let protocol = if matches!(service, Service::Tcp { .. }) { 6 } else { 17 };
            tuple.protocol == protocol && numbers.is_none_or(|(a, b)| is_in(source, a) && is_in(destination, b))
        }
        Service::Icmp { kind, code } | Service::Icmpv6 { kind, code } => {
            let v6 = matches!(service, Service::Icmpv6 { .. });
            tuple.protocol == if v6 { 58 } else { 1 }
                && tuple.source.is_ipv6() == v6
                && numbers.is_none_or(|(a, b)| is(kind, a) && is(code, b))
        }
    }
}

fn naive(groups: &[&GroupSpec], direction: RuleDirection, tuple: &Tuple, peer: &[SecurityGroupId]) -> Admission {
    if direction == RuleDirection::Egress && groups.iter().all(|group| group.egress.is_none()) {
        return Admission::Unrestricted;
    }
    for (group, spec) in groups.iter().enumerate() {
        let (rules, address) = match direction {
            RuleDirection::Ingress => (Some(&spec.ingress), tuple.source),
            RuleDirection::Egress => (spec.egress.as_ref(), tuple.destination),
        };
        for (at, rule) in rules.into_iter().flatten().enumerate() {
            let is_peer = match rule.peer {
                Peer::Any => true,
                Peer::Prefix(prefix) => prefix.contains(address),
                Peer::Group(group) => peer.contains(&group),
            };
            if is_peer && serves(rule.service, tuple) {
                return Admission::Rule { group: group as u32, rule: at as u32 };
            }
        }
    }
    Admission::Denied
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn it_says_what_trying_one_rule_after_the_other_says(seed in any::<u64>()) {
        let mut chance = Chance(seed);
        let specs: Vec<GroupSpec> = (0..chance.below(5)).map(|_| spec(&mut chance)).collect();
        let groups: Vec<&GroupSpec> = specs.iter().collect();
        let endpoint = EndpointGroups::build(&groups).unwrap();
        for _ in 0..10 {
            let tuple = chance.tuple();
            let peer: Vec<SecurityGroupId> = (0..chance.below(4)).map(|_| SecurityGroupId(chance.below(6) as u32 * 1000)).collect();
            for direction in [RuleDirection::Ingress, RuleDirection::Egress] {
                let admission = endpoint.admit(direction, &tuple, &peer);
                prop_assert_eq!(admission, naive(&groups, direction, &tuple, &peer), "{:?} from {:?}: {:?}", tuple, peer, specs);
            }
        }
    }
}
