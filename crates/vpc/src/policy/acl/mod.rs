//! Access control lists: rules by priority, the first that matches decides. Stateless: what is allowed one way says
//! nothing about the other.
//!
//! A **fragment** but the first has neither ports nor an ICMP type. An allow rule that asks for them matches it by the
//! rest; a deny rule that asks for them does not. So what is allowed arrives whole; and of what is denied, the first
//! fragment is missing, without which the others are of no use. A fragment that would overwrite the first one's TCP
//! header is refused by [`Tuple::of`].

#[cfg(test)]
pub(in crate::policy) mod tests;

use thiserror::Error;

use super::classifier::{Classifier, Pattern};
use super::rule::Service;
use super::tuple::Tuple;
use softdpu_lpm::Prefix;

/// Most rules of a list.
pub const RULES: usize = 10_000;

/// What is done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// It goes on.
    Allow,
    /// It is dropped.
    Deny,
}

/// A list as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AclSpec {
    /// In any order, at most [`RULES`].
    pub rules: Vec<RuleSpec>,
    /// What is done with a packet that no rule matches.
    pub default: Action,
}

/// A rule. All that it asks for has to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleSpec {
    /// The least is tried first; of two with the same, the one written first.
    pub priority: u32,
    /// What is done with a packet that it matches first.
    pub action: Action,
    /// Where the packet is from; None: anywhere, IPv4 and IPv6.
    pub source: Option<Prefix>,
    /// Where it goes; None: anywhere.
    pub destination: Option<Prefix>,
    /// Protocol, ports, ICMP type.
    pub service: Service,
}

/// What is wrong with a list.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AclError {
    /// Too long.
    #[error("an ACL has {0} rules: {RULES} are the most")]
    TooMany(usize),
    /// A rule that no packet can match.
    #[error("rule {position}, priority {priority}: {problem}")]
    Rule {
        /// Its place in the list as written, from 0.
        position: usize,
        /// Its priority.
        priority: u32,
        /// What is wrong.
        problem: RuleProblem,
    },
}

/// Why no packet can match a rule.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RuleProblem {
    /// Two families.
    #[error("{0} and {1} are not of one address family")]
    Families(Prefix, Prefix),
    /// ICMP is IPv4's, ICMPv6 is IPv6's.
    #[error("{0} is not of the address family of its ICMP: icmp is for IPv4, icmpv6 for IPv6")]
    Icmp(Prefix),
}

/// What a list says about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What is done.
    pub action: Action,
    /// Place of the rule that decided, in the list as written; None: no rule did.
    pub rule: Option<u32>,
}

/// A list, ready to be asked.
#[derive(Clone, Debug)]
pub struct Acl {
    classifier: Classifier,
    decisions: Box<[Decision]>,
    default: Action,
}

impl Acl {
    /// Builds a list. Milliseconds per thousand rules, at most some 6 MiB.
    ///
    /// # Errors
    /// [`AclError`] says which rule is wrong, and why.
    pub fn build(spec: &AclSpec) -> Result<Acl, AclError> {
        if spec.rules.len() > RULES {
            return Err(AclError::TooMany(spec.rules.len()));
        }
        for (position, rule) in spec.rules.iter().enumerate() {
            check(rule.source, rule.destination, rule.service).map_err(|problem| AclError::Rule {
                position,
                priority: rule.priority,
                problem,
            })?;
        }
        let mut order: Vec<usize> = (0..spec.rules.len()).collect();
        order.sort_by_key(|position| spec.rules[*position].priority);
        let rules = || order.iter().map(|position| (*position, &spec.rules[*position]));
        let pattern = |rule: &RuleSpec| Pattern {
            source: rule.source,
            destination: rule.destination,
            service: rule.service,
            is_followed: rule.action == Action::Allow,
            group: None,
        };
        let decision =
            |(position, rule): (usize, &RuleSpec)| Decision { action: rule.action, rule: Some(position as u32) };
        Ok(Acl {
            classifier: Classifier::build(&rules().map(|(_, rule)| pattern(rule)).collect::<Vec<_>>()),
            decisions: rules().map(decision).collect(),
            default: spec.default,
        })
    }

    /// What is done with a packet.
    #[inline]
    pub fn decide(&self, tuple: &Tuple) -> Decision {
        let found = self.classifier.find(tuple, &[]).and_then(|at| self.decisions.get(at as usize));
        found.copied().unwrap_or(Decision { action: self.default, rule: None })
    }

    /// Bytes of its tables.
    pub fn size(&self) -> usize {
        self.classifier.size() + size_of_val(&*self.decisions)
    }
}

/// Whether any packet can match.
pub(super) fn check(source: Option<Prefix>, destination: Option<Prefix>, service: Service) -> Result<(), RuleProblem> {
    let is_ipv6 = |prefix: &Prefix| prefix.address().is_ipv6();
    if let (Some(source), Some(destination)) = (source, destination)
        && is_ipv6(&source) != is_ipv6(&destination)
    {
        return Err(RuleProblem::Families(source, destination));
    }
    match (source.or(destination), service.is_ipv6()) {
        (Some(prefix), Some(family)) if is_ipv6(&prefix) != family => Err(RuleProblem::Icmp(prefix)),
        _ => Ok(()),
    }
}
