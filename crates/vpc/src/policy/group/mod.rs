//! Security groups: what an endpoint's peers may send it, and where it may send itself. Rules only allow.
//!
//! ```text
//!   first packet ─► members: the peer's groups ─► the endpoint's rules for that direction ─► allowed, by which rule
//! ```
//!
//! An endpoint is in several groups; what any of them allows is allowed. **Ingress** that no rule allows is denied.
//! **Egress** is allowed as long as none of its groups says where it may go; once one does, only that is allowed, and
//! what the others that say so allow. Replies pass by [`conntrack`](super::conntrack), so a rule is only asked about a
//! connection's first packet. Later fragments match rules by all but their ports, as in an [`acl`](super::acl).
//!
//! A rule may name a group instead of a prefix: then the peer has to be a member. Members are looked up when a
//! connection begins ([`Members`]), so that a new member changes no endpoint's rules.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;

use thiserror::Error;

use super::acl::{self, RULES, RuleProblem};
use super::classifier::{Classifier, Pattern};
use super::rule::Service;
use super::tuple::Tuple;
use crate::exact::{ExactKey, ExactTable};
use softdpu_lpm::Prefix;

/// Most groups that an address is in.
pub const GROUPS: usize = 16;

/// A group, by its number on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecurityGroupId(pub u32);

/// A group as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GroupSpec {
    /// What peers may send to members.
    pub ingress: Vec<GroupRule>,
    /// What members may send; None: the group does not say.
    pub egress: Option<Vec<GroupRule>>,
}

/// Something that is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupRule {
    /// The other end.
    pub peer: Peer,
    /// Protocol, ports, ICMP type.
    pub service: Service,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Any address.
    Any,
    /// The addresses of a prefix.
    Prefix(Prefix),
    /// Any member of this group in the same network.
    Group(SecurityGroupId),
}

/// The direction in which a connection is opened, as its endpoint sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleDirection {
    /// To it: the peer is the source.
    Ingress,
    /// By it: the peer is the destination.
    Egress,
}

impl fmt::Display for RuleDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RuleDirection::Ingress => "ingress",
            RuleDirection::Egress => "egress",
        })
    }
}

/// What is wrong with an endpoint's groups.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum GroupError {
    /// Too many groups.
    #[error("an endpoint is in {0} groups: {GROUPS} are the most")]
    TooManyGroups(usize),
    /// Too many rules in all its groups.
    #[error("an endpoint's groups have {0} rules for one direction: {RULES} are the most")]
    TooManyRules(usize),
    /// A rule that no packet can match.
    #[error("group {group}, {direction} rule {rule}: {problem}")]
    Rule {
        /// Place of the group among the endpoint's, from 0.
        group: usize,
        /// The list of that direction.
        direction: RuleDirection,
        /// Place of the rule in it, from 0.
        rule: usize,
        /// What is wrong.
        problem: RuleProblem,
    },
}

/// What an endpoint's groups say about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// A rule allows it.
    Rule {
        /// Place of the rule's group among the endpoint's.
        group: u32,
        /// Place of the rule in its list.
        rule: u32,
    },
    /// Egress, about which no group says anything.
    Unrestricted,
    /// Nothing allows it.
    Denied,
}

/// The rules of an endpoint's groups, ready to be asked.
#[derive(Clone, Debug)]
pub struct EndpointGroups {
    ingress: Rules,
    egress: Option<Rules>,
}

#[derive(Clone, Debug)]
struct Rules {
    classifier: Classifier,
    /// Groups that rules name, in order: the classifier knows them by their places here.
    named: Box<[SecurityGroupId]>,
    /// Group and place of each rule.
    places: Box<[(u32, u32)]>,
}

impl EndpointGroups {
    /// Of an endpoint that is in these groups.
    ///
    /// # Errors
    /// [`GroupError`] says which rule is wrong, and why.
    pub fn build(groups: &[&GroupSpec]) -> Result<EndpointGroups, GroupError> {
        if groups.len() > GROUPS {
            return Err(GroupError::TooManyGroups(groups.len()));
        }
        let ingress: Vec<_> = groups.iter().map(|group| group.ingress.as_slice()).collect();
        // One that says nothing takes nothing away from what the others say.
        let egress: Vec<_> = groups.iter().map(|group| group.egress.as_deref().unwrap_or_default()).collect();
        let is_restricted = groups.iter().any(|group| group.egress.is_some());
        Ok(EndpointGroups {
            ingress: Rules::build(&ingress, RuleDirection::Ingress)?,
            egress: is_restricted.then(|| Rules::build(&egress, RuleDirection::Egress)).transpose()?,
        })
    }

    /// Whether a connection may begin with this packet, the peer of which is in the groups `peer`.
    #[inline]
    pub fn admit(&self, direction: RuleDirection, tuple: &Tuple, peer: &[SecurityGroupId]) -> Admission {
        match (direction, &self.egress) {
            (RuleDirection::Ingress, _) => self.ingress.admit(tuple, peer),
            (RuleDirection::Egress, Some(rules)) => rules.admit(tuple, peer),
            (RuleDirection::Egress, None) => Admission::Unrestricted,
        }
    }

    /// Bytes of its tables.
    pub fn size(&self) -> usize {
        self.ingress.classifier.size() + self.egress.as_ref().map_or(0, |rules| rules.classifier.size())
    }
}

impl Rules {
    /// Of the lists of all groups.
    fn build<'a>(lists: &[&'a [GroupRule]], direction: RuleDirection) -> Result<Rules, GroupError> {
        let of =
            |(group, list): (usize, &&'a [GroupRule])| list.iter().enumerate().map(move |(at, rule)| (group, at, rule));
        let all = || lists.iter().enumerate().flat_map(of);
        let count = lists.iter().map(|list| list.len()).sum();
        if count > RULES {
            return Err(GroupError::TooManyRules(count));
        }
        let mut named: Vec<SecurityGroupId> = all()
            .filter_map(|(_, _, rule)| match rule.peer {
                Peer::Group(group) => Some(group),
                Peer::Any | Peer::Prefix(_) => None,
            })
            .collect();
        named.sort_unstable();
        named.dedup();
        let mut patterns = Vec::with_capacity(count);
        for (group, at, rule) in all() {
            let (prefix, named) = match rule.peer {
                Peer::Any => (None, None),
                Peer::Prefix(prefix) => (Some(prefix), None),
                Peer::Group(group) => (None, named.binary_search(&group).ok().map(|at| at as u32)),
            };
            let (source, destination) =
                if direction == RuleDirection::Ingress { (prefix, None) } else { (None, prefix) };
            acl::check(source, destination, rule.service).map_err(|problem| GroupError::Rule {
                group,
                direction,
                rule: at,
                problem,
            })?;
            patterns.push(Pattern { source, destination, service: rule.service, is_followed: true, group: named });
        }
        Ok(Rules {
            classifier: Classifier::build(&patterns),
            named: named.into(),
            places: all().map(|(group, at, _)| (group as u32, at as u32)).collect(),
        })
    }

    #[inline]
    fn admit(&self, tuple: &Tuple, peer: &[SecurityGroupId]) -> Admission {
        let (mut known, mut count) = ([0; GROUPS], 0);
        for at in peer.iter().take(GROUPS).filter_map(|group| self.named.binary_search(group).ok()) {
            known[count] = at as u32;
            count += 1;
        }
        let found = self.classifier.find(tuple, &known[..count]).and_then(|at| self.places.get(at as usize));
        found.map_or(Admission::Denied, |(group, rule)| Admission::Rule { group: *group, rule: *rule })
    }
}

/// Which groups an address is in.
#[derive(Clone, Debug)]
pub struct Members {
    addresses: ExactTable<[u32; 2]>,
    groups: Box<[SecurityGroupId]>,
}

impl Members {
    /// Of addresses by the number of their network, each once, with the groups that they are in. Of more than
    /// [`GROUPS`], the first count.
    pub fn build(members: &[(u32, IpAddr, Vec<SecurityGroupId>)]) -> Members {
        let (mut addresses, mut all) = (Vec::with_capacity(members.len()), Vec::new());
        for (network, address, groups) in members {
            let start = all.len() as u32;
            all.extend(groups.iter().take(GROUPS));
            addresses.push((ExactKey::address(*network, *address), [start, all.len() as u32]));
        }
        Members { addresses: ExactTable::build(&addresses, 0), groups: all.into() }
    }

    /// The groups that an address of a network is in.
    #[inline]
    pub fn of(&self, network: u32, address: IpAddr) -> &[SecurityGroupId] {
        let found = self.addresses.get(&ExactKey::address(network, address));
        found.and_then(|[start, end]| self.groups.get(start as usize..end as usize)).unwrap_or_default()
    }
}
