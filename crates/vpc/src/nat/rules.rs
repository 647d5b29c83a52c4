//! What must hold over the rules of an exit: each outside address and port leads to one inside address, and back.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::error::{NatError, NatProblem, NatRule};
use super::shared::{blocks, size};
use crate::spec::{ForwardSpec, NatSpec, Prefix, SharedSpec};

fn is_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback() || is_broadcast)
}

fn host(address: IpAddr) -> Result<(), NatProblem> {
    if is_host(address) { Ok(()) } else { Err(NatProblem::NotAHost(address)) }
}

/// Whether the rules of `spec` go together, in a network with these subnets.
///
/// # Errors
/// The first rule that does not.
pub fn check(spec: &NatSpec, subnets: &[Prefix]) -> Result<(), NatError> {
    let at = |rule: NatRule| move |problem| NatError { rule, problem };
    let outside = |address: IpAddr| {
        host(address)?;
        match subnets.iter().find(|subnet| subnet.contains(address)) {
            Some(subnet) => Err(NatProblem::OutsideInSubnet(address, *subnet)),
            None => Ok(()),
        }
    };
    let (mut whole, mut inside) = (HashSet::new(), HashSet::new());
    for (number, one) in spec.floating.iter().enumerate() {
        let mut check = || {
            host(one.inside)?;
            outside(one.outside)?;
            if one.inside.is_ipv4() != one.outside.is_ipv4() {
                return Err(NatProblem::Families(one.inside, one.outside));
            }
            if !whole.insert(one.outside) {
                return Err(NatProblem::OutsideTaken(one.outside));
            }
            if inside.insert(one.inside) { Ok(()) } else { Err(NatProblem::InsideTaken(one.inside)) }
        };
        check().map_err(at(NatRule::Floating(number)))?;
    }
    let mut ranges = HashMap::new();
    let mut sources: Vec<Prefix> = Vec::new();
    for (number, one) in spec.shared.iter().enumerate() {
        let at = at(NatRule::Shared(number));
        check_room(one).map_err(at)?;
        for prefix in &one.sources {
            if let Some(other) = sources.iter().find(|other| other.overlaps(*prefix)) {
                return Err(at(NatProblem::SourcesOverlap(*other, *prefix)));
            }
            sources.push(*prefix);
        }
        for address in &one.addresses {
            outside((*address).into()).map_err(at)?;
            if whole.contains(&(*address).into()) || ranges.insert(*address, one.ports).is_some() {
                return Err(at(NatProblem::OutsideTaken((*address).into())));
            }
        }
    }
    let (mut ports, mut targets) = (HashSet::new(), HashSet::new());
    for (number, one) in spec.forwards.iter().enumerate() {
        let mut check = || {
            let ForwardSpec { protocol, outside: (address, port), inside: (target, target_port) } = *one;
            host(target.into())?;
            outside(address.into())?;
            if port == 0 || target_port == 0 {
                return Err(NatProblem::NoPort);
            }
            if whole.contains(&address.into()) {
                return Err(NatProblem::OutsideTaken(address.into()));
            }
            if ranges.get(&address).is_some_and(|(first, last)| (*first..=*last).contains(&port)) {
                return Err(NatProblem::PortShared(address, port));
            }
            if !ports.insert((protocol, address, port)) {
                return Err(NatProblem::PortTaken(address, port));
            }
            let is_new = targets.insert((protocol, target, target_port));
            if is_new { Ok(()) } else { Err(NatProblem::TargetTaken(target, target_port)) }
        };
        check().map_err(at(NatRule::Forward(number)))?;
    }
    Ok(())
}

fn check_room(spec: &SharedSpec) -> Result<(), NatProblem> {
    let SharedSpec { sources, addresses, ports: (first, last), ports_per_guest } = spec;
    if sources.is_empty() || addresses.is_empty() {
        return Err(NatProblem::Empty);
    }
    if let Some(prefix) = sources.iter().find(|prefix| prefix.address().is_ipv6()) {
        return Err(NatProblem::NotIpv4(*prefix));
    }
    let in_address =
        if *ports_per_guest == 0 || first > last || *first == 0 { 0 } else { blocks(spec.ports, *ports_per_guest) };
    if in_address == 0 {
        return Err(NatProblem::Ports { first: *first, last: *last, per_guest: *ports_per_guest });
    }
    let wanted = sources.iter().map(|prefix| size(*prefix)).sum();
    let blocks = in_address * addresses.len() as u64;
    if wanted > blocks { Err(NatProblem::Room { sources: wanted, blocks }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::spec::{FloatingSpec, NatProtocol};

    const OUT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
    const IN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn good() -> NatSpec {
        NatSpec {
            network: "red".into(),
            exit: IN.into(),
            floating: vec![FloatingSpec { inside: IN.into(), outside: [203, 0, 113, 9].into() }],
            forwards: vec![ForwardSpec { protocol: NatProtocol::Tcp, outside: (OUT, 80), inside: (IN, 8080) }],
            shared: vec![SharedSpec {
                sources: vec!["10.0.0.0/24".parse().unwrap()],
                addresses: vec![OUT],
                ports: (1024, 65_535),
                ports_per_guest: 252,
            }],
        }
    }

    fn problem(change: impl FnOnce(&mut NatSpec)) -> Option<NatProblem> {
        let mut spec = good();
        change(&mut spec);
        check(&spec, &["10.0.0.0/16".parse().unwrap()]).err().map(|error| error.problem)
    }

    #[test]
    fn rules_that_overlap_are_refused() {
        assert_eq!(problem(|_| {}), None);
        let out = IpAddr::from(OUT);
        assert_eq!(problem(|spec| spec.floating[0].outside = out), Some(NatProblem::OutsideTaken(out)));
        assert_eq!(
            problem(|spec| spec.floating.push(spec.floating[0])),
            Some(NatProblem::OutsideTaken([203, 0, 113, 9].into()))
        );
        let second = FloatingSpec { inside: IN.into(), outside: [203, 0, 113, 8].into() };
        assert_eq!(problem(|spec| spec.floating.push(second)), Some(NatProblem::InsideTaken(IN.into())));
        assert_eq!(problem(|spec| spec.forwards[0].outside.1 = 1024), Some(NatProblem::PortShared(OUT, 1024)));
        assert_eq!(problem(|spec| spec.forwards.push(spec.forwards[0])), Some(NatProblem::PortTaken(OUT, 80)));
        let second = ForwardSpec { outside: (OUT, 81), ..good().forwards[0] };
        assert_eq!(problem(|spec| spec.forwards.push(second)), Some(NatProblem::TargetTaken(IN, 8080)));
        let twice = |spec: &mut NatSpec| {
            let more = SharedSpec { addresses: vec![[203, 0, 113, 2].into()], ..spec.shared[0].clone() };
            spec.shared.push(more);
        };
        let prefix: Prefix = "10.0.0.0/24".parse().unwrap();
        assert_eq!(problem(twice), Some(NatProblem::SourcesOverlap(prefix, prefix)));
        let address = |spec: &mut NatSpec| spec.shared[0].addresses.push(OUT);
        assert_eq!(problem(address), Some(NatProblem::OutsideTaken(out)));
    }

    #[test]
    fn rules_without_room_or_sense_are_refused() {
        let room = Some(NatProblem::Room { sources: 256, blocks: 254 });
        assert_eq!(problem(|spec| spec.shared[0].ports_per_guest = 253), room);
        let ports = |first, per_guest| Some(NatProblem::Ports { first, last: 65_535, per_guest });
        assert_eq!(problem(|spec| spec.shared[0].ports_per_guest = 0), ports(1024, 0));
        assert_eq!(problem(|spec| spec.shared[0].ports.0 = 0), ports(0, 252));
        assert_eq!(problem(|spec| spec.shared[0].sources.clear()), Some(NatProblem::Empty));
        let v6: Prefix = "fd00::/120".parse().unwrap();
        assert_eq!(problem(|spec| spec.shared[0].sources = vec![v6]), Some(NatProblem::NotIpv4(v6)));
        let own = IpAddr::from([10, 0, 9, 9]);
        let subnet = "10.0.0.0/16".parse().unwrap();
        assert_eq!(problem(|spec| spec.floating[0].outside = own), Some(NatProblem::OutsideInSubnet(own, subnet)));
        let far: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(problem(|spec| spec.floating[0].outside = far), Some(NatProblem::Families(IN.into(), far)));
        assert_eq!(problem(|spec| spec.forwards[0].inside.1 = 0), Some(NatProblem::NoPort));
        let none = IpAddr::from([0; 4]);
        assert_eq!(problem(|spec| spec.floating[0].inside = none), Some(NatProblem::NotAHost(none)));
    }
}
