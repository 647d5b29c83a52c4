//! The site's routes, ECMP groups, route tables, peers and rules of NAT, in the form the tables take.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use softdpu_vpc::spec::{
    EcmpMemberSpec, EcmpSpec, EndpointSpec, MemberVia, PeeringSpec, Place, RouteSpec, RouteTableSpec, Spec, Via,
};

use super::policy::prefix;
use super::underlay::bfd::SessionStatus;
use softdpu_site::{EcmpMember, Network, Route, Site};

/// Adds them to a spec that has everything else. An endpoint that is not attached yet, or behind an underlay that is
/// not open yet, is not reached: what routes lead there is dropped. An exit that is not attached yet translates
/// nothing.
pub(super) fn add(
    networks: &[Network],
    sessions: &BTreeMap<IpAddr, SessionStatus>,
    spec: &mut Spec,
) -> Result<(), String> {
    let named = |endpoint: &EndpointSpec| {
        let name = endpoint.network.clone();
        endpoint.addresses.iter().map(|address| (name.clone(), *address)).collect::<Vec<_>>()
    };
    let known: HashSet<(String, IpAddr)> = spec.endpoints.iter().flat_map(named).collect();
    let is_here = |endpoint: &&EndpointSpec| matches!(endpoint.place, Place::Port(_));
    let ports: HashSet<(String, IpAddr)> = spec.endpoints.iter().filter(is_here).flat_map(named).collect();
    let has_underlay = spec.underlay.is_some();
    for network in networks {
        let via = |route: &Route| match (route.host, route.address, &route.ecmp) {
            (Some(host), ..) if has_underlay => Via::Host(host),
            (_, Some(address), _) if known.contains(&(network.name.clone(), address)) => Via::Endpoint(address),
            (.., Some(group)) => Via::Ecmp(group.clone()),
            _ => Via::Nowhere,
        };
        let named = |error: String| format!("network '{}': {error}", network.name);
        for group in &network.ecmp {
            let forwards = |host: &IpAddr| sessions.get(host).is_some_and(SessionStatus::forwards);
            let is_up = |member: &EcmpMember| !member.down && (!group.bfd || member.host.as_ref().is_none_or(forwards));
            let members = group.members.iter().map(|of| member(of, is_up(of))).collect();
            spec.ecmp.push(EcmpSpec { network: network.name.clone(), name: group.name.clone(), members });
        }
        for route in &network.routes {
            let prefix = prefix(route.prefix).map_err(named)?;
            spec.routes.push(RouteSpec { network: network.name.clone(), prefix, via: via(route) });
        }
        for table in &network.route_tables {
            let route = |route: &Route| Ok((prefix(route.prefix)?, via(route)));
            spec.route_tables.push(RouteTableSpec {
                network: network.name.clone(),
                name: table.name.clone(),
                sources: table.sources.iter().map(|source| prefix(*source)).collect::<Result<_, _>>().map_err(named)?,
                routes: table.routes.iter().map(route).collect::<Result<_, _>>().map_err(named)?,
            });
        }
    }
    for network in networks {
        let is_attached = |exit: &IpAddr| ports.contains(&(network.name.clone(), *exit));
        for nat in network.nats.iter().filter(|nat| is_attached(&nat.exit)) {
            let rules = nat.spec(&network.name).map_err(|error| format!("network '{}': {error}", network.name))?;
            spec.nat.push(rules);
        }
    }
    let peering = |(one, other): (&str, &str)| PeeringSpec { networks: [one.to_owned(), other.to_owned()] };
    spec.peerings.extend(Site::peerings(networks).map(peering));
    Ok(())
}

fn member(member: &EcmpMember, is_up: bool) -> EcmpMemberSpec {
    let via = member.via();
    EcmpMemberSpec {
        via: if member.host.is_some() { MemberVia::Host(via) } else { MemberVia::Endpoint(via) },
        weight: member.weight,
        zone: member.zone.clone(),
        is_up,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use softdpu_vpc::Mac;
    use softdpu_vpc::id::PortId;
    use softdpu_vpc::spec::MembershipSpec;

    use super::*;

    fn exit(place: Place) -> Spec {
        let endpoint = EndpointSpec {
            network: "acme".into(),
            mac: Mac([2, 0x5d, 0, 0, 0, 1]),
            addresses: vec!["10.0.0.254".parse().unwrap()],
            place,
            mtu: None,
            spoof_check: false,
            policy: MembershipSpec::default(),
        };
        Spec { endpoints: vec![endpoint], ..Spec::default() }
    }

    #[test]
    fn an_exit_translates_once_it_is_attached_at_this_node() {
        let nat = json!({"exit": "10.0.0.254", "floating": [{"inside": "10.0.0.2", "outside": "203.0.113.2"}]});
        let network = json!({"name": "acme", "vni": 1, "cidr": ["10.0.0.0/16"], "gateway": ["10.0.0.1"], "nat": [nat]});
        let networks: Vec<Network> = vec![serde_json::from_value(network).unwrap()];
        for (place, translates) in [(Some(Place::Port(PortId(3))), true), (None, false)] {
            let mut spec = place.map_or_else(Spec::default, exit);
            add(&networks, &BTreeMap::new(), &mut spec).unwrap();
            assert_eq!(spec.nat.len(), usize::from(translates), "{place:?}");
        }
        let mut elsewhere = exit(Place::Host([192, 0, 2, 2].into()));
        add(&networks, &BTreeMap::new(), &mut elsewhere).unwrap();
        assert!(elsewhere.nat.is_empty());
    }
}
