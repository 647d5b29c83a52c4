//! Objects that flows are computed from, each with a number and a version (Zephyrus §4.3).
//!
//! A flow is computed from few things: the endpoint it comes from, the endpoint or the routes by which its destination was found,
//! the endpoint that it goes to. Security groups and access control lists are objects, too; the version of an endpoint follows those
//! of its own.
//! Tables that are built after others give what is the same the same number and version, and what has changed another version;
//! so a flow is known to be computed from what is in force by comparing a few words.
//!
//! ```text
//!   version = number of the build in which the object got its present content. Builds are numbered through in the process:
//!   no version comes twice, not for a number that was another object's before, and not in tables built after others.
//! ```
//!
//! To add a kind: an identity (what stays when it is changed), a content (all that flows look at), one call of
//! [`Numbering::object`] when it is built, and its [stamp](super::Tables::stamp) among the sources of flows that use it.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::Problem;
use crate::stamp::Stamp;

/// The number of the build under way. 40 bits of it are used: at a thousand a second they last 34 years.
static BUILDS: AtomicU64 = AtomicU64::new(1);

/// What kind of object it is: a part of its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Endpoint,
    /// The way of a network to another host, for its routes.
    Way,
    /// The way to another host as a member of an ECMP group.
    Member,
    /// Who is in an ECMP group.
    Members,
    /// Routes of some sources.
    RouteTable,
    /// All that finds destinations in a network which are no endpoint's.
    Routes,
    /// A security group, whatever its rules are.
    GroupName,
    /// Its rules.
    Group,
    Acl,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    number: u32,
    /// 128 bits of its content, by a hash whose seed nobody knows.
    content: u128,
}

/// The objects of tables.
#[derive(Debug)]
pub(super) struct Objects {
    seeds: [RandomState; 2],
    /// By 128 bits of kind and identity.
    known: HashMap<u128, Known>,
    /// By number; [`Stamp::default`] for numbers that no object has.
    stamps: Box<[Stamp]>,
}

impl Objects {
    #[inline]
    pub fn stamp(&self, number: u32) -> Stamp {
        self.stamps.get(number as usize).copied().unwrap_or_default()
    }

    #[inline]
    pub fn is_current(&self, stamp: Stamp) -> bool {
        self.stamps.get(stamp.number()) == Some(&stamp)
    }
}

/// Gives numbers and versions while tables are built.
#[derive(Debug)]
pub(super) struct Numbering<'a> {
    previous: Option<&'a Objects>,
    seeds: [RandomState; 2],
    known: HashMap<u128, Known>,
    stamps: Vec<Stamp>,
    /// The next number to see whether it is free.
    next: usize,
    build: u64,
}

impl<'a> Numbering<'a> {
    pub fn after(previous: Option<&'a Objects>) -> Numbering<'a> {
        Numbering {
            seeds: previous.map_or_else(|| [RandomState::new(), RandomState::new()], |objects| objects.seeds.clone()),
            known: HashMap::with_capacity(previous.map_or(0, |objects| objects.known.len())),
            stamps: vec![Stamp::default()],
            previous,
            next: 1,
            build: BUILDS.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn digest(&self, of: &impl Hash) -> u128 {
        let [high, low] = &self.seeds;
        u128::from(high.hash_one(of)) << 64 | u128::from(low.hash_one(of))
    }

    /// The number of an object: the one it had before, or one that nothing had.
    ///
    /// # Errors
    /// [`Problem::TooManyObjects`].
    pub fn object(&mut self, kind: Kind, identity: &impl Hash, content: &impl Hash) -> Result<u32, Problem> {
        let (identity, content) = (self.digest(&(kind, identity)), self.digest(content));
        if let Some(known) = self.known.get(&identity) {
            return Ok(known.number);
        }
        let before = self.previous.and_then(|previous| Some((previous, previous.known.get(&identity)?)));
        let (number, stamp) = match before {
            Some((previous, known)) if known.content == content => (known.number, previous.stamp(known.number)),
            Some((_, known)) => (known.number, self.fresh(known.number)),
            None => {
                let number = self.unused()?;
                (number, self.fresh(number))
            }
        };
        let at = number as usize;
        if self.stamps.len() <= at {
            self.stamps.resize(at + 1, Stamp::default());
        }
        self.stamps[at] = stamp;
        self.known.insert(identity, Known { number, content });
        Ok(number)
    }

    /// Of an object that has its number.
    pub fn stamp(&self, number: u32) -> Stamp {
        self.stamps.get(number as usize).copied().unwrap_or_default()
    }

    /// The stamp of what has changed in the tables under way and is no object: `number` is above all objects'.
    pub fn changed(&self, number: u32) -> Stamp {
        self.fresh(number)
    }

    /// The number of the build under way.
    pub fn build(&self) -> u64 {
        self.build
    }

    /// 128 bits of a hash that is the same in all tables that follow each other.
    pub fn digest_of(&self, of: &impl Hash) -> u128 {
        self.digest(of)
    }

    fn fresh(&self, number: u32) -> Stamp {
        Stamp::new(self.build, number)
    }

    /// A number that no object has, nor had in the tables before.
    fn unused(&mut self) -> Result<u32, Problem> {
        let taken = |at: usize| self.previous.is_some_and(|previous| previous.stamp(at as u32) != Stamp::default());
        while taken(self.next) {
            self.next += 1;
        }
        let number = self.next;
        self.next += 1;
        // Those above are loaded entries' (their next hops'), which have no version of their own.
        let most = super::loaded::FIRST as usize;
        if number < most { Ok(number as u32) } else { Err(Problem::TooManyObjects(most)) }
    }

    pub fn finish(self) -> Objects {
        Objects { seeds: self.seeds, known: self.known, stamps: self.stamps.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(previous: Option<&Objects>, all: &[(&str, u32)]) -> (Objects, Vec<Stamp>) {
        let mut numbering = Numbering::after(previous);
        let number = |(name, content): &(&str, u32)| numbering.object(Kind::Endpoint, name, content).expect("few");
        let numbers: Vec<u32> = all.iter().map(number).collect();
        let objects = numbering.finish();
        let stamps = numbers.iter().map(|&number| objects.stamp(number)).collect();
        (objects, stamps)
    }

    #[test]
    fn what_is_the_same_keeps_number_and_version() {
        let (first, [a, b, c]) = (objects(None, &[("a", 1), ("b", 1), ("c", 1)]), [0, 1, 2]);
        let (objects_first, stamps) = first;
        // In another order, b with another content, c gone, d new.
        let (second, after) = objects(Some(&objects_first), &[("d", 1), ("b", 2), ("a", 1)]);
        assert_eq!(after[2], stamps[a]);
        assert_eq!(after[1].number(), stamps[b].number());
        assert!(after[1] != stamps[b] && second.is_current(stamps[a]));
        assert!(!second.is_current(stamps[b]) && !second.is_current(stamps[c]));
        assert!(stamps.iter().all(|stamp| stamp.number() != after[0].number()), "a number that was just freed");
    }

    #[test]
    fn a_number_that_is_given_again_is_not_confused_with_what_it_was() {
        let (first, stamps) = objects(None, &[("a", 1), ("b", 1)]);
        let (second, _) = objects(Some(&first), &[("a", 1)]);
        let (third, after) = objects(Some(&second), &[("a", 1), ("c", 1)]);
        assert_eq!(after[1].number(), stamps[1].number());
        assert!(after[1] != stamps[1] && !third.is_current(stamps[1]));
        // Nor is an object that comes back, even if as it was.
        let (fourth, again) = objects(Some(&second), &[("a", 1), ("b", 1)]);
        assert!(again[1] != stamps[1] && !fourth.is_current(stamps[1]) && !fourth.is_current(after[1]));
    }

    #[test]
    fn nothing_is_current_in_tables_that_were_not_built_after_those_it_is_from() {
        let (_, stamps) = objects(None, &[("a", 1)]);
        let (others, _) = objects(None, &[("a", 1)]);
        assert!(!others.is_current(stamps[0]));
        assert!(others.is_current(Stamp::default()));
    }
}
