//! Which of many rules is the first that a packet matches.
//!
//! ```text
//!   source ──────► piece ─► set ─┐
//!   destination ─► piece ─► set ─┤
//!   protocol ────► piece ─► set ─┼─ and ─► first bit ─► that rule, looked at ─► yes: found; no: the next bit
//!   ports, type ─► piece ─► set ─┤
//!   peer's groups ─► union ──────┘   only where rules ask for groups
//! ```
//!
//! Bit vectors with summaries (Lakshman and Stiliadis, SIGCOMM 1998; Baboescu and Varghese, SIGCOMM 2001). What they
//! cost does not depend on how rules overlap, which tenants choose: five binary searches, at most a bit per rule and
//! axis, and as the number of pieces is bounded, so is the memory, at the price of looking at a bounded number of rules
//! in vain.

mod axis;
mod bits;

use std::net::IpAddr;

use axis::{Axis, Value};
use bits::{Either, Sets, Shape};

use super::rule::{Range, Service};
use super::tuple::Tuple;
use softdpu_lpm::Prefix;

/// What a rule matches.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// None: any address.
    pub source: Option<Prefix>,
    /// None: any address.
    pub destination: Option<Prefix>,
    pub service: Service,
    /// It matches later fragments of packets of which it may match the first: their ports are not asked for.
    pub is_followed: bool,
    /// The group the peer has to be in. Small and dense: an index.
    pub group: Option<u32>,
}

/// Rules, ready to be looked up.
#[derive(Clone, Debug)]
pub struct Classifier {
    v4: Family<u32>,
    v6: Family<u128>,
}

/// The rules of one address family.
#[derive(Clone, Debug)]
struct Family<A> {
    shape: Shape,
    source: Axis<A>,
    destination: Axis<A>,
    protocol: Axis<u8>,
    numbers: [Axis<u16>; 2],
    /// The rules that may match a later fragment.
    later: Box<[u64]>,
    groups: Option<Groups>,
    rules: Box<[Rule<A>]>,
}

/// The rules by the group that they ask for.
#[derive(Clone, Debug)]
struct Groups {
    /// Those that ask for none.
    none: Box<[u64]>,
    sets: Sets,
    count: u32,
}

#[derive(Clone, Copy, Debug)]
struct Rule<A> {
    source: Range<A>,
    destination: Range<A>,
    numbers: [Range<u16>; 2],
    protocol: Range<u8>,
    is_followed: bool,
    /// Its number among the rules of both families.
    number: u32,
    group: Option<u32>,
}

/// An address family's addresses.
trait Address: Value {
    /// All addresses of a prefix that is of this family.
    fn range(prefix: Prefix) -> Option<Range<Self>>;
    const ALL: Range<Self>;
    const IS_IPV6: bool;
}

impl Address for u32 {
    fn range(prefix: Prefix) -> Option<Range<u32>> {
        let IpAddr::V4(address) = prefix.address() else { return None };
        let first = address.to_bits();
        Some((first, first | u32::MAX.checked_shr(prefix.length().into()).unwrap_or(0)))
    }
    const ALL: Range<u32> = (0, u32::MAX);
    const IS_IPV6: bool = false;
}

impl Address for u128 {
    fn range(prefix: Prefix) -> Option<Range<u128>> {
        let IpAddr::V6(address) = prefix.address() else { return None };
        let first = address.to_bits();
        Some((first, first | u128::MAX.checked_shr(prefix.length().into()).unwrap_or(0)))
    }
    const ALL: Range<u128> = (0, u128::MAX);
    const IS_IPV6: bool = true;
}

impl Classifier {
    /// Of `patterns`, the first to be tried first.
    pub fn build(patterns: &[Pattern]) -> Classifier {
        Classifier { v4: Family::build(patterns), v6: Family::build(patterns) }
    }

    /// The number of the first that matches. `groups` are those that the peer is in.
    #[inline]
    pub fn find(&self, tuple: &Tuple, groups: &[u32]) -> Option<u32> {
        match (tuple.source, tuple.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                self.v4.find(source.to_bits(), destination.to_bits(), tuple, groups)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                self.v6.find(source.to_bits(), destination.to_bits(), tuple, groups)
            }
            _ => None,
        }
    }

    /// Bytes of its tables.
    pub fn size(&self) -> usize {
        self.v4.size() + self.v6.size()
    }
}

#[inline]
fn has<T: Ord>((first, last): &Range<T>, value: &T) -> bool {
    first <= value && value <= last
}

impl<A: Address> Rule<A> {
    /// The rule of a pattern that is of this family.
    fn of(number: usize, pattern: &Pattern) -> Option<Rule<A>> {
        let range = |prefix: Option<Prefix>| prefix.map_or(Some(A::ALL), A::range);
        if pattern.service.is_ipv6().is_some_and(|is_ipv6| is_ipv6 != A::IS_IPV6) {
            return None;
        }
        Some(Rule {
            source: range(pattern.source)?,
            destination: range(pattern.destination)?,
            numbers: pattern.service.numbers(),
            protocol: pattern.service.protocols(),
            is_followed: pattern.is_followed,
            number: number as u32,
            group: pattern.group,
        })
    }

    fn has_later(&self) -> bool {
        self.is_followed || self.numbers == Service::Any.numbers()
    }
}

impl<A: Address> Family<A> {
    fn build(patterns: &[Pattern]) -> Family<A> {
        let rules: Box<[Rule<A>]> = patterns.iter().enumerate().filter_map(|(at, p)| Rule::of(at, p)).collect();
        let shape = Shape::of(rules.len());
        let those = |is: &dyn Fn(&Rule<A>) -> bool| {
            let mut set = shape.empty();
            (0..rules.len()).filter(|at| is(&rules[*at])).for_each(|at| shape.put(&mut set, at));
            set
        };
        let numbers =
            |which: usize| Axis::build(shape, &rules.iter().map(|rule| rule.numbers[which]).collect::<Vec<_>>());
        let groups = rules.iter().filter_map(|rule| rule.group).max().map(|last| {
            let mut sets = vec![shape.empty(); last as usize + 1];
            for (at, rule) in rules.iter().enumerate() {
                if let Some(group) = rule.group {
                    shape.put(&mut sets[group as usize], at);
                }
            }
            let none = those(&|rule| rule.group.is_none()).into();
            Groups { none, sets: Sets::new(shape, sets.concat()), count: last + 1 }
        });
        Family {
            shape,
            source: Axis::build(shape, &rules.iter().map(|rule| rule.source).collect::<Vec<_>>()),
            destination: Axis::build(shape, &rules.iter().map(|rule| rule.destination).collect::<Vec<_>>()),
            protocol: Axis::build(shape, &rules.iter().map(|rule| rule.protocol).collect::<Vec<_>>()),
            numbers: [numbers(0), numbers(1)],
            later: those(&Rule::has_later).into(),
            groups,
            rules,
        }
    }

    #[inline]
    fn find(&self, source: A, destination: A, tuple: &Tuple, groups: &[u32]) -> Option<u32> {
        let numbers = tuple.numbers();
        let [from, to] =
            numbers.map_or([&*self.later; 2], |[from, to]| [self.numbers[0].set(from), self.numbers[1].set(to)]);
        let sets =
            [self.source.set(source), self.destination.set(destination), self.protocol.set(tuple.protocol), from, to];
        let either = self.groups.as_ref().map(|all| Either {
            base: &all.none,
            sets: &all.sets,
            others: groups,
            count: all.count,
        });
        // Sets may have a few rules too many.
        let matches = |at: usize| {
            self.rules.get(at).is_some_and(|rule| {
                has(&rule.source, &source)
                    && has(&rule.destination, &destination)
                    && numbers.is_none_or(|[a, b]| has(&rule.numbers[0], &a) && has(&rule.numbers[1], &b))
            })
        };
        let at = self.shape.first(sets, either.as_ref(), matches)?;
        self.rules.get(at).map(|rule| rule.number)
    }

    fn size(&self) -> usize {
        let axes = self.source.size() + self.destination.size() + self.protocol.size();
        let numbers: usize = self.numbers.iter().map(Axis::size).sum();
        let groups = self.groups.as_ref().map_or(0, |groups| size_of_val(&*groups.none) + groups.sets.size());
        axes + numbers + groups + size_of_val(&*self.later) + size_of_val(&*self.rules)
    }
}
