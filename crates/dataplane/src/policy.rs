//! The site's policies, in the form the tables take.

use ipnet::IpNet;
use softdpu_vpc::policy::acl::{AclSpec, Action, RuleSpec};
use softdpu_vpc::policy::{Ports, Service};
use softdpu_vpc::spec::{MembershipSpec, NamedAcl, PolicySpec, Prefix, RulePeer, SecurityGroupSpec, SecurityRule};

use softdpu_site::{Acl, AclAction, AclRule, Direction, GroupRule, Network, PortRange, Protocol, SecurityGroup};

/// The groups and lists of a network.
pub(super) fn spec(network: &Network) -> Result<PolicySpec, String> {
    let policy = || -> Result<PolicySpec, String> {
        Ok(PolicySpec {
            groups: network.security_groups.iter().map(group).collect::<Result<_, _>>()?,
            acls: network.acls.iter().map(acl).collect::<Result<_, _>>()?,
        })
    };
    policy().map_err(|error| format!("network '{}': {error}", network.name))
}

/// What an interface is in.
pub(super) fn membership(groups: &[String], acl: Option<&String>) -> MembershipSpec {
    MembershipSpec { groups: groups.to_vec(), acl: acl.cloned(), meters: Vec::new() }
}

pub(super) fn prefix(cidr: IpNet) -> Result<Prefix, String> {
    Prefix::new(cidr.network(), cidr.prefix_len()).map_err(|error| error.to_string())
}

fn ports(range: Option<PortRange>) -> Result<Ports, String> {
    let ports = range.map_or(Ok(Ports::ALL), |range| Ports::new(range.first, range.last));
    ports.map_err(|error| error.to_string())
}

fn service(protocol: Option<Protocol>, from: Option<PortRange>, to: Option<PortRange>) -> Result<Service, String> {
    let (source, destination) = (ports(from)?, ports(to)?);
    Ok(match protocol {
        None => Service::Any,
        Some(Protocol::Tcp) => Service::Tcp { source, destination },
        Some(Protocol::Udp) => Service::Udp { source, destination },
        Some(Protocol::Icmp) => Service::Icmp { kind: None, code: None },
        Some(Protocol::Icmpv6) => Service::Icmpv6 { kind: None, code: None },
    })
}

fn group(group: &SecurityGroup) -> Result<SecurityGroupSpec, String> {
    let rule = |rule: &GroupRule| {
        let peer = match (&rule.group, rule.cidr) {
            (Some(name), _) => RulePeer::Group(name.clone()),
            (None, Some(cidr)) => RulePeer::Prefix(prefix(cidr)?),
            (None, None) => RulePeer::Any,
        };
        Ok(SecurityRule { peer, service: service(rule.protocol, None, rule.ports)? })
    };
    let of = |direction| group.rules.iter().filter(move |rule| rule.direction == direction);
    let egress = of(Direction::Egress).map(rule).collect::<Result<Vec<_>, String>>()?;
    Ok(SecurityGroupSpec {
        name: group.name.clone(),
        ingress: of(Direction::Ingress).map(rule).collect::<Result<_, String>>()?,
        egress: (!egress.is_empty()).then_some(egress),
    })
}

pub(super) fn action(action: AclAction) -> Action {
    match action {
        AclAction::Allow => Action::Allow,
        AclAction::Deny => Action::Deny,
    }
}

/// A rule of a list or of a firewall.
pub(super) fn rule(rule: &AclRule) -> Result<RuleSpec, String> {
    Ok(RuleSpec {
        priority: rule.priority,
        action: action(rule.action),
        source: rule.source.map(prefix).transpose()?,
        destination: rule.destination.map(prefix).transpose()?,
        service: service(rule.protocol, rule.source_ports, rule.ports)?,
    })
}

fn acl(acl: &Acl) -> Result<NamedAcl, String> {
    let mut rules = Vec::with_capacity(acl.rules.len());
    for one in &acl.rules {
        rules.push(rule(one)?);
    }
    Ok(NamedAcl { name: acl.name.clone(), list: AclSpec { rules, default: action(acl.default) } })
}
