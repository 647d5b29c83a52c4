//! The site's routes, ECMP groups, route tables and peers, in the form the tables take.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use softdpu_vpc::spec::{EcmpMemberSpec, EcmpSpec, MemberVia, PeeringSpec, RouteSpec, RouteTableSpec, Spec, Via};

use super::policy::prefix;
use super::underlay::bfd::SessionStatus;
use softdpu_site::{EcmpMember, Network, Route, Site};

/// Adds them to a spec that has everything else. An endpoint that is not attached yet, or behind an underlay that is
/// not open yet, is not reached: what routes lead there is dropped.
pub(super) fn add(
    networks: &[Network],
    sessions: &BTreeMap<IpAddr, SessionStatus>,
    spec: &mut Spec,
) -> Result<(), String> {
    let known: HashSet<(String, IpAddr)> = spec
        .endpoints
        .iter()
        .flat_map(|endpoint| endpoint.addresses.iter().map(|address| (endpoint.network.clone(), *address)))
        .collect();
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
