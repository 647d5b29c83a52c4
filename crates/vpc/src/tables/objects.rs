//! Objects that flows are computed from, each with a number and a version (Zephyrus §4.3).
//!
//! A flow is computed from few objects: the endpoint that it comes from, the endpoint or the routes by which its
//! destination was found, the endpoint that it goes to. Security groups and access control lists are objects, too; an
//! endpoint's version changes with those of its own. A build gives an unchanged object the number and version that it
//! had, and a changed one another version. So comparing a few words tells whether a flow was computed from the tables
//! in force.
//!
//! ```text
//!   version = number of the build in which the object got its present content. Builds are numbered within the process:
//!   no version comes twice, neither for a number that was another object's before, nor in tables built after others.
//! ```
//!
//! To add a kind: an identity (what stays when it is changed), a content (all that flows look at), one call of
//! [`Numbering::object`] when it is built, and its [stamp](super::Tables::stamp) among the sources of flows that use
//! it.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::Problem;
use crate::id::{HopId, ObjectId};
use crate::stamp::{Stamp, StampSubject};

/// The number of the build under way. 40 bits of it are used: at a thousand a second they last 34 years.
static BUILDS: AtomicU64 = AtomicU64::new(1);

/// The kind of an object, a part of its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ObjectKind {
    Endpoint,
    /// The next hop of a network's routes to another host.
    RouteHop,
    /// The next hop of a member of an ECMP group.
    MemberHop,
    /// The members of an ECMP group.
    EcmpMembers,
    /// A table of policy routes.
    RouteTable,
    /// All that finds destinations in a network which are no endpoint's.
    Routes,
    /// A security group, whatever its rules are.
    SecurityGroup,
    /// The rules of a security group.
    SecurityRules,
    Acl,
}

#[derive(Clone, Copy, Debug)]
struct KnownObject {
    id: ObjectId,
    /// 128 bits of a keyed hash of its content.
    content: u128,
}

/// The objects of tables.
#[derive(Debug)]
pub(super) struct Objects {
    seeds: [RandomState; 2],
    /// By 128 bits of a keyed hash of kind and identity.
    known: HashMap<u128, KnownObject>,
    /// By number; [`Stamp::default`] for numbers that no object has.
    stamps: Box<[Stamp]>,
}

impl Objects {
    #[inline]
    pub fn stamp(&self, object: ObjectId) -> Stamp {
        self.stamps.get(object.index()).copied().unwrap_or_default()
    }

    #[inline]
    pub fn is_current(&self, stamp: Stamp) -> bool {
        self.stamps.get(stamp.number() as usize) == Some(&stamp)
    }
}

/// Gives numbers and versions while tables are built.
#[derive(Debug)]
pub(super) struct Numbering<'a> {
    previous: Option<&'a Objects>,
    seeds: [RandomState; 2],
    known: HashMap<u128, KnownObject>,
    stamps: Vec<Stamp>,
    /// The next number to try.
    next: u32,
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

    /// The number of an object: the one it had before, or an unused one.
    ///
    /// # Errors
    /// [`Problem::TooManyObjects`].
    pub fn object(&mut self, kind: ObjectKind, identity: &impl Hash, content: &impl Hash) -> Result<ObjectId, Problem> {
        let (identity, content) = (self.digest(&(kind, identity)), self.digest(content));
        if let Some(known) = self.known.get(&identity) {
            return Ok(known.id);
        }
        let before = self.previous.and_then(|previous| Some((previous, previous.known.get(&identity)?)));
        let (id, stamp) = match before {
            Some((previous, known)) if known.content == content => (known.id, previous.stamp(known.id)),
            Some((_, known)) => (known.id, self.changed(StampSubject::Object(known.id))),
            None => {
                let id = self.unused()?;
                (id, self.changed(StampSubject::Object(id)))
            }
        };
        let at = id.index();
        if self.stamps.len() <= at {
            self.stamps.resize(at + 1, Stamp::default());
        }
        self.stamps[at] = stamp;
        self.known.insert(identity, KnownObject { id, content });
        Ok(id)
    }

    /// The stamp of an object of the build under way.
    pub fn stamp(&self, object: ObjectId) -> Stamp {
        self.stamps.get(object.index()).copied().unwrap_or_default()
    }

    /// The stamp of a subject with content that changes with the build under way.
    pub fn changed(&self, subject: StampSubject) -> Stamp {
        Stamp::new(self.build, subject)
    }

    /// The number of the build under way.
    pub fn build(&self) -> u64 {
        self.build
    }

    /// 128 bits of a hash that is the same in all tables that follow each other.
    pub fn digest_of(&self, of: &impl Hash) -> u128 {
        self.digest(of)
    }

    /// A number that no object has, nor had in the tables before.
    fn unused(&mut self) -> Result<ObjectId, Problem> {
        let is_taken = |id| self.previous.is_some_and(|previous| previous.stamp(id) != Stamp::default());
        while is_taken(ObjectId::new(self.next)) {
            self.next += 1;
        }
        let number = self.next;
        self.next += 1;
        // An object's number is its next hop's; those above are loaded entries', which have no version of their own.
        let most = HopId::FIRST_LOADED;
        if number < most { Ok(ObjectId::new(number)) } else { Err(Problem::TooManyObjects(most as usize)) }
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
        let id = |(name, content): &(&str, u32)| numbering.object(ObjectKind::Endpoint, name, content).expect("few");
        let ids: Vec<ObjectId> = all.iter().map(id).collect();
        let objects = numbering.finish();
        let stamps = ids.iter().map(|&id| objects.stamp(id)).collect();
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
