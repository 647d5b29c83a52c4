//! Groups and access control lists of networks, and what they come to for each endpoint.
//!
//! A group and a list are objects with versions; an endpoint's version changes with those of its own. What was compiled
//! for the tables before is reused where its objects have the same versions.

use std::collections::HashMap;
use std::sync::Arc;

use super::Tables;
use super::error::Problem;
use super::objects::{Numbering, ObjectKind};
use crate::id::NetworkId;
use crate::policy::EndpointPolicy;
use crate::policy::acl::{Acl, AclSpec};
use crate::policy::connections::Connections;
use crate::policy::conntrack::Zone;
use crate::policy::group::{EndpointGroups, GroupRule, GroupSpec, Peer, SecurityGroupId};
use crate::spec::{EndpointSpec, NetworkSpec, Place, RulePeer, SecurityGroupSpec, SecurityRule, Spec};
use crate::stamp::Stamp;

/// Compiled policies, by the versions of what they were compiled from.
#[derive(Debug, Default)]
pub(super) struct Policies {
    acls: HashMap<Stamp, Arc<Acl>>,
    /// By the list's version, or nothing's, then those of the groups in their order.
    endpoints: HashMap<Box<[Stamp]>, Arc<EndpointPolicy>>,
    pub connections: Option<Arc<Connections>>,
    /// Names of groups, for traces.
    names: HashMap<SecurityGroupId, Box<str>>,
}

impl Policies {
    /// The name of a group.
    pub fn group_name(&self, group: SecurityGroupId) -> Option<&str> {
        self.names.get(&group).map(|name| &**name)
    }
}

/// Policies while tables are built.
#[derive(Debug, Default)]
pub(super) struct PolicyBuilder<'a> {
    groups: HashMap<(NetworkId, &'a str), (SecurityGroupId, Stamp, GroupSpec)>,
    lists: HashMap<(NetworkId, &'a str), (Stamp, &'a AclSpec)>,
    policies: Policies,
}

/// What an endpoint's memberships resolve to.
#[derive(Debug, Default)]
pub(super) struct Membership {
    pub groups: Box<[SecurityGroupId]>,
    /// The compiled policy of an endpoint at a port of this node.
    pub policy: Option<Arc<EndpointPolicy>>,
    /// The list and the groups with their versions.
    pub key: Box<[Stamp]>,
}

impl<'a> PolicyBuilder<'a> {
    /// Adds the groups and lists of a network.
    pub fn network(
        &mut self,
        network: NetworkId,
        spec: &'a NetworkSpec,
        objects: &mut Numbering<'_>,
    ) -> Result<(), Problem> {
        let mut ids = HashMap::with_capacity(spec.policy.groups.len());
        for group in &spec.policy.groups {
            // The number by which rules name it, whatever its own rules are.
            let object = objects.object(ObjectKind::SecurityGroup, &(&spec.name, &group.name), &())?;
            let id = SecurityGroupId(object.number());
            if ids.insert(group.name.as_str(), id).is_some() {
                return Err(Problem::GroupTaken(group.name.clone()));
            }
            self.policies.names.insert(id, group.name.as_str().into());
        }
        for group in &spec.policy.groups {
            let resolved = resolve(group, &ids)?;
            let object = objects.object(ObjectKind::SecurityRules, &(&spec.name, &group.name), &resolved)?;
            let id = ids.get(group.name.as_str()).copied().unwrap_or_default();
            self.groups.insert((network, &group.name), (id, objects.stamp(object), resolved));
        }
        for list in &spec.policy.acls {
            let object = objects.object(ObjectKind::Acl, &(&spec.name, &list.name), &list.list)?;
            if self.lists.insert((network, &list.name), (objects.stamp(object), &list.list)).is_some() {
                return Err(Problem::AclTaken(list.name.clone()));
            }
        }
        Ok(())
    }

    /// Resolves the groups and the list of an endpoint of a network.
    pub fn endpoint(
        &mut self,
        network: NetworkId,
        spec: &EndpointSpec,
        previous: Option<&Tables>,
    ) -> Result<Membership, Problem> {
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
            return Ok(Membership::default());
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
        Ok(Membership { groups: ids, policy, key })
    }

    /// All policies, and the zones that `networks`, those with endpoints in groups, have for their connections.
    pub fn finish(mut self, networks: &[&str], previous: Option<&Tables>, spec: &Spec) -> (Policies, Vec<Zone>) {
        let before = previous.and_then(|tables| tables.policies.connections.clone());
        if networks.is_empty() && before.is_none() {
            return (self.policies, Vec::new());
        }
        let connections =
            before.unwrap_or_else(|| Arc::new(Connections::new(spec.connections.0, spec.keeping.0.clone())));
        let zones = connections.set_networks(networks);
        self.policies.connections = Some(connections);
        (self.policies, zones)
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

/// Replaces groups' names in rules by numbers.
fn resolve(group: &SecurityGroupSpec, ids: &HashMap<&str, SecurityGroupId>) -> Result<GroupSpec, Problem> {
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
