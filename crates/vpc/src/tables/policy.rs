//! Groups and access control lists of networks, and what they come to for each endpoint.
//!
//! A group and a list are objects with versions; an endpoint's version follows those of its own. What was compiled for tables
//! before is taken over where its objects have the versions that they had.

use std::collections::HashMap;
use std::sync::Arc;

use super::Tables;
use super::error::Problem;
use super::objects::{Kind, Numbering};
use crate::policy::EndpointPolicy;
use crate::policy::acl::{Acl, AclSpec};
use crate::policy::connections::Connections;
use crate::policy::group::{EndpointGroups, GroupId, GroupRule, GroupSpec, Peer};
use crate::spec::{EndpointSpec, NetworkSpec, Place, RulePeer, SecurityGroupSpec, SecurityRule};
use crate::stamp::Stamp;

/// What was compiled, by the versions of what it was compiled from.
#[derive(Debug, Default)]
pub(super) struct Policies {
    acls: HashMap<Stamp, Arc<Acl>>,
    /// By the list's version, or none, then the groups' in their order.
    endpoints: HashMap<Box<[Stamp]>, Arc<EndpointPolicy>>,
    pub connections: Option<Arc<Connections>>,
    /// Names of groups, for people.
    names: HashMap<GroupId, Box<str>>,
}

impl Policies {
    /// The name of a group.
    pub fn group_name(&self, group: GroupId) -> Option<&str> {
        self.names.get(&group).map(|name| &**name)
    }
}

/// While tables are built.
#[derive(Debug, Default)]
pub(super) struct Building<'a> {
    /// By network and name.
    groups: HashMap<(u32, &'a str), (GroupId, Stamp, GroupSpec)>,
    lists: HashMap<(u32, &'a str), (Stamp, &'a AclSpec)>,
    policies: Policies,
}

/// An endpoint's part in policies.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub groups: Box<[GroupId]>,
    /// Where it is at a port of this node.
    pub policy: Option<Arc<EndpointPolicy>>,
    /// The versions of all that.
    pub key: Box<[Stamp]>,
}

impl<'a> Building<'a> {
    /// The groups and lists of a network.
    pub fn network(&mut self, number: u32, spec: &'a NetworkSpec, objects: &mut Numbering<'_>) -> Result<(), Problem> {
        let mut ids = HashMap::with_capacity(spec.policy.groups.len());
        for group in &spec.policy.groups {
            // Rules that name it know it by this, whatever its own rules are.
            let id = objects.object(Kind::GroupName, &(&spec.name, &group.name), &())?;
            if ids.insert(group.name.as_str(), GroupId(id)).is_some() {
                return Err(Problem::GroupTaken(group.name.clone()));
            }
            self.policies.names.insert(GroupId(id), group.name.as_str().into());
        }
        for group in &spec.policy.groups {
            let resolved = resolve(group, &ids)?;
            let object = objects.object(Kind::Group, &(&spec.name, &group.name), &resolved)?;
            let id = ids.get(group.name.as_str()).copied().unwrap_or_default();
            self.groups.insert((number, &group.name), (id, objects.stamp(object), resolved));
        }
        for list in &spec.policy.acls {
            let object = objects.object(Kind::Acl, &(&spec.name, &list.name), &list.list)?;
            if self.lists.insert((number, &list.name), (objects.stamp(object), &list.list)).is_some() {
                return Err(Problem::AclTaken(list.name.clone()));
            }
        }
        Ok(())
    }

    /// What an endpoint of a network is in.
    pub fn endpoint(&mut self, network: u32, spec: &EndpointSpec, previous: Option<&Tables>) -> Result<Part, Problem> {
        let mut groups = Vec::with_capacity(spec.policy.groups.len());
        for name in &spec.policy.groups {
            let group = self.groups.get(&(network, name.as_str()));
            groups.push(group.ok_or_else(|| Problem::NoGroup(name.clone()))?);
        }
        let list = match &spec.policy.acl {
            Some(name) => Some(*self.lists.get(&(network, name.as_str())).ok_or_else(|| Problem::NoAcl(name.clone()))?),
            None => None,
        };
        if groups.is_empty() && list.is_none() {
            return Ok(Part::default());
        }
        let first = list.map_or(Stamp::default(), |(stamp, _)| stamp);
        let key: Box<[Stamp]> = std::iter::once(first).chain(groups.iter().map(|(_, stamp, _)| *stamp)).collect();
        let ids = groups.iter().map(|(id, ..)| *id).collect();
        let policy = match (spec.place, self.policies.endpoints.get(&key)) {
            (Place::Host(_), _) => None,
            (Place::Port(_), Some(known)) => Some(Arc::clone(known)),
            (Place::Port(_), None) => {
                let before = previous.map(|tables| &tables.policies);
                let policy = match before.and_then(|policies| policies.endpoints.get(&key)) {
                    Some(known) => Arc::clone(known),
                    None => {
                        let specs: Vec<&GroupSpec> = groups.iter().map(|(.., spec)| spec).collect();
                        let groups = (!specs.is_empty()).then(|| EndpointGroups::build(&specs)).transpose();
                        let acl = list.map(|(stamp, list)| acl(&mut self.policies.acls, stamp, list, before));
                        Arc::new(EndpointPolicy { groups: groups.map_err(Problem::Group)?, acl: acl.transpose()? })
                    }
                };
                if let Some(acl) = &policy.acl {
                    self.policies.acls.insert(first, Arc::clone(acl));
                }
                self.policies.endpoints.insert(key.clone(), Arc::clone(&policy));
                Some(policy)
            }
        };
        Ok(Part { groups: ids, policy, key })
    }

    /// All of it, and the numbers by which `networks` (by name, with their numbers), those whose endpoints are in groups, are known
    /// to the connections.
    pub fn finish(mut self, networks: &[&str], previous: Option<&Tables>, capacity: u32) -> (Policies, Vec<u32>) {
        if networks.is_empty() {
            return (self.policies, Vec::new());
        }
        let before = previous.and_then(|tables| tables.policies.connections.clone());
        let connections = before.unwrap_or_else(|| Arc::new(Connections::new(capacity)));
        let numbers = connections.set_networks(networks);
        self.policies.connections = Some(connections);
        (self.policies, numbers)
    }
}

fn acl(
    known: &mut HashMap<Stamp, Arc<Acl>>,
    stamp: Stamp,
    list: &AclSpec,
    before: Option<&Policies>,
) -> Result<Arc<Acl>, Problem> {
    let same = known.get(&stamp).or_else(|| before?.acls.get(&stamp));
    match same {
        Some(acl) => Ok(Arc::clone(acl)),
        None => Acl::build(list).map(Arc::new).map_err(Problem::Acl),
    }
}

/// With numbers instead of groups' names.
fn resolve(group: &SecurityGroupSpec, ids: &HashMap<&str, GroupId>) -> Result<GroupSpec, Problem> {
    let rule = |rule: &SecurityRule| {
        let peer = match &rule.peer {
            RulePeer::Any => Peer::Any,
            RulePeer::Prefix(prefix) => Peer::Prefix(*prefix),
            RulePeer::Group(name) => {
                Peer::Group(*ids.get(name.as_str()).ok_or_else(|| Problem::NoGroup(name.clone()))?)
            }
        };
        Ok(GroupRule { peer, service: rule.service })
    };
    Ok(GroupSpec {
        ingress: group.ingress.iter().map(rule).collect::<Result<_, Problem>>()?,
        egress: match &group.egress {
            Some(rules) => Some(rules.iter().map(rule).collect::<Result<_, Problem>>()?),
            None => None,
        },
    })
}
