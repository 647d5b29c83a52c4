//! Longest prefix match: many routing tables, IPv4 and IPv6, in one structure that is changed in place.
//!
//! ```text
//!   table ─► default route
//!         ─► top     the first 18 or 24 bits at once, where a table is large ─► step, of IPv4: the last 8 at once
//!         ─► node    six bits: which prefixes end here, which go on    ─► node ─► …
//!              └───► values, in the order of their bits
//! ```
//!
//! - [`node`]: a node decides six bits and has everything as bitmaps; a table of a few routes takes a few hundred bytes
//! - [`pool`]: nodes and values of all tables lie in two arrays of blocks that are taken and given back
//! - [`trie`]: adding and removing: one list grows or shrinks by one, whatever the prefix covers
//! - [`top`]: what makes a table with the Internet's routes fast
//! - [`steps`]: and what fast look-ups of single addresses take behind it
//! - [`prefix`]: what routes are of: addresses that begin with the same bits
//! - [`lookup`]: one address, or a batch of them in passes, each step's memory fetched a pass ahead
//! - [`coalesce`](mod@coalesce): the tables that need no longest prefix match, because no two of their prefixes overlap
//!
//! One owner changes it, readers share what is not changed: how changes reach cores that forward meanwhile is decision
//! 006.

#![forbid(unsafe_code)]

mod bits;
pub mod coalesce;
mod free;
mod lookup;
mod node;
mod pool;
mod prefix;
mod steps;
mod top;
mod trie;

use std::net::IpAddr;

use thiserror::Error;

pub use bits::Address;
use bits::Bits;
pub use prefix::{Prefix, PrefixError, mask};
use top::{Size, Top};
use trie::Trie;

/// Parts of an array, of 64 slots each, that are filled with every change of a table that is to get one.
const PARTS: usize = 4;

/// How much fits. Memory is reserved for it and used as it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Tables: their numbers are below this.
    pub tables: usize,
    /// Routes in all tables together.
    pub routes: usize,
    /// Nodes in all tables together, of 32 bytes each; at most 2^26.
    pub nodes: usize,
}

impl Capacity {
    /// Room for `routes` routes in `tables` tables whatever they are: a prefix needs one node for every six bits.
    pub const fn worst_case(tables: usize, routes: usize) -> Capacity {
        // Lists of nodes have a power of two of them: at most twice what is needed.
        Capacity { tables, routes, nodes: 256 + tables * 2 + routes * 44 }
    }
}

/// What does not fit any more.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Full {
    /// No such table.
    #[error("there is no routing table {table}: there is room for {tables}; set the capacity for more tables")]
    Table {
        /// Its number.
        table: u32,
        /// How many there can be.
        tables: usize,
    },
    /// Too many routes.
    #[error("there are {0} routes, as many as there is room for; remove some or set the capacity for more routes")]
    Routes(usize),
    /// No nodes left.
    #[error("no node is left for the route; remove some routes or set the capacity for more nodes")]
    Nodes,
    /// No room for values in one piece.
    #[error("no room is left for the route's value; remove some routes or set the capacity for more routes")]
    Values,
    /// Not that much memory.
    #[error("there is not enough memory for {0} nodes; set the capacity for fewer")]
    Memory(usize),
}

/// What is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Routes.
    pub routes: usize,
    /// Nodes that are taken.
    pub nodes: usize,
    /// Units for values that are taken.
    pub values: usize,
    /// Memory that is its own, bytes: what is taken, and what was and will be again.
    pub bytes: usize,
}

/// One family of a table.
#[derive(Clone, Debug)]
struct Root<V> {
    /// The first node's unit, or 0.
    node: u32,
    routes: u32,
    /// The value of the prefix of no bits.
    default: Option<V>,
    /// The arrays that look-ups use.
    top: Option<Box<Top<V>>>,
    /// Those that are being filled and will be used instead.
    next: Option<Box<Top<V>>>,
}

impl<V> Default for Root<V> {
    fn default() -> Root<V> {
        Root { node: 0, routes: 0, default: None, top: None, next: None }
    }
}

/// Routing tables by number, from prefixes to values: next hops' numbers.
#[derive(Clone, Debug)]
pub struct Lpm<V> {
    /// By number; IPv4 and IPv6.
    tables: Box<[[Root<V>; 2]]>,
    trie: Trie<V>,
    routes: usize,
    capacity: Capacity,
}

impl<V: Copy + Default> Lpm<V> {
    /// Tables without routes.
    ///
    /// # Errors
    /// [`Full::Memory`]: there is not that much memory.
    pub fn new(capacity: Capacity) -> Result<Lpm<V>, Full> {
        // Lists of values have a power of two of units, and free blocks may be too small.
        let trie = Trie::new(capacity.nodes, capacity.routes.saturating_mul(4));
        Ok(Lpm {
            tables: vec![Default::default(); capacity.tables].into(),
            trie: trie.ok_or(Full::Memory(capacity.nodes))?,
            routes: 0,
            capacity,
        })
    }

    /// Gives `prefix` of table `table` a value. The one it had before, if it had one.
    ///
    /// # Errors
    /// [`Full`]; everything is as it was.
    pub fn insert(&mut self, table: u32, prefix: Prefix, value: V) -> Result<Option<V>, Full> {
        match prefix.address() {
            IpAddr::V4(address) => self.insert_bits(table, address.bits(), prefix.length().into(), value),
            IpAddr::V6(address) => self.insert_bits(table, address.bits(), prefix.length().into(), value),
        }
    }

    /// Removes `prefix` from table `table`; the value it had.
    pub fn remove(&mut self, table: u32, prefix: Prefix) -> Option<V> {
        match prefix.address() {
            IpAddr::V4(address) => self.remove_bits(table, address.bits(), prefix.length().into()),
            IpAddr::V6(address) => self.remove_bits(table, address.bits(), prefix.length().into()),
        }
    }

    /// The value of `prefix` itself in table `table`.
    pub fn get(&self, table: u32, prefix: Prefix) -> Option<V> {
        match prefix.address() {
            IpAddr::V4(address) => self.get_bits(table, address.bits(), prefix.length().into()),
            IpAddr::V6(address) => self.get_bits(table, address.bits(), prefix.length().into()),
        }
    }

    /// Makes all arrays of large tables whole at once, which changes would do part by part: to be called after many
    /// changes that nothing waited for. Takes some 0.1 s for a table of a million routes.
    pub fn settle(&mut self) {
        for [four, six] in &mut self.tables {
            while four.next.as_ref().is_some_and(|next| !next.is_full()) {
                four.keep_up::<u64>(&self.trie, self.capacity.routes);
            }
            while six.next.is_some() {
                six.keep_up::<u128>(&self.trie, self.capacity.routes);
            }
        }
    }

    /// How much fits.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Has room for at least so many tables from now on; new ones are empty.
    pub fn grow(&mut self, tables: usize) {
        if tables > self.tables.len() {
            let mut all = std::mem::take(&mut self.tables).into_vec();
            all.resize_with(tables, Default::default);
            self.tables = all.into();
            self.capacity.tables = tables;
        }
    }

    /// Whether no table has a route.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.routes == 0
    }

    /// How many routes a table has, of IPv4 and of IPv6.
    pub fn counts(&self, table: u32) -> [usize; 2] {
        let families = self.tables.get(table as usize);
        families.map_or([0; 2], |families| families.each_ref().map(|root| root.routes as usize))
    }

    /// What is in it.
    pub fn usage(&self) -> Usage {
        let tops = self.tables.iter().flatten().flat_map(|root| root.top.iter().chain(&root.next));
        let (nodes, values) = (&self.trie.nodes, &self.trie.values);
        let bytes = size_of_val(&*self.tables) + nodes.bytes() + values.bytes();
        let bytes = bytes + tops.map(|top| top.bytes()).sum::<usize>();
        Usage { routes: self.routes, nodes: nodes.used(), values: values.used(), bytes }
    }

    #[inline(always)]
    fn root<B: Bits>(&self, table: u32) -> Option<&Root<V>> {
        self.tables.get(table as usize).map(|families| &families[B::FAMILY])
    }

    fn get_bits<B: Bits>(&self, table: u32, bits: B, length: u32) -> Option<V> {
        let root = self.root::<B>(table)?;
        if length == 0 {
            return root.default;
        }
        Some(*self.trie.values.get(self.trie.unit(root.node, bits, length)?))
    }

    fn insert_bits<B: Bits>(&mut self, table: u32, bits: B, length: u32, value: V) -> Result<Option<V>, Full> {
        let tables = self.tables.len();
        let Some(families) = self.tables.get_mut(table as usize) else {
            return Err(Full::Table { table, tables });
        };
        let root = &mut families[B::FAMILY];
        let old = if length == 0 {
            root.default.replace(value)
        } else {
            let unit = self.trie.unit(root.node, bits, length);
            unit.map(|unit| std::mem::replace(self.trie.values.get_mut(unit), value))
        };
        if old.is_none() && self.routes == self.capacity.routes {
            if length == 0 {
                root.default = None;
            }
            return Err(Full::Routes(self.routes));
        }
        let mut changed = None;
        if length != 0 && old.is_none() {
            changed = self.trie.insert(&mut root.node, bits, length, value)?;
        }
        if old.is_none() {
            self.routes += 1;
            root.routes += 1;
        }
        let node = root.node;
        for top in root.tops() {
            if length != 0 {
                top.added(bits, length, value);
                top.stepped(&self.trie, node, bits, length);
            }
            if let Some(level) = changed {
                top.relink(&self.trie, node, bits, level);
            }
        }
        root.keep_up::<B>(&self.trie, self.capacity.routes);
        Ok(old)
    }

    fn remove_bits<B: Bits>(&mut self, table: u32, bits: B, length: u32) -> Option<V> {
        let root = &mut self.tables.get_mut(table as usize)?[B::FAMILY];
        let (value, changed) =
            if length == 0 { (root.default.take()?, None) } else { self.trie.remove(&mut root.node, bits, length)? };
        self.routes -= 1;
        root.routes -= 1;
        let node = root.node;
        for top in root.tops() {
            if length != 0 {
                top.removed(&self.trie, node, bits, length);
                top.stepped(&self.trie, node, bits, length);
            }
            if let Some(level) = changed {
                top.relink(&self.trie, node, bits, level);
            }
        }
        root.keep_up::<B>(&self.trie, self.capacity.routes);
        Some(value)
    }
}

impl<V: Copy + Default> Root<V> {
    fn tops(&mut self) -> impl Iterator<Item = &mut Top<V>> {
        self.top.iter_mut().chain(&mut self.next).map(|top| &mut **top)
    }

    /// Sees to it that the table gets the arrays that fit its size, a part with each change.
    #[inline]
    fn keep_up<B: Bits>(&mut self, trie: &Trie<V>, routes: usize) {
        if self.top.as_ref().is_some_and(|top| top.is_full()) {
            // It stays where it is not asked, so that no other is made.
            self.next = self.top.take();
        }
        let now = self.top.as_ref().map(|top| top.size());
        let wanted = Size::of(self.routes as usize, now);
        if wanted == now {
            self.next = None;
            return;
        }
        let Some(size) = wanted else {
            (self.top, self.next) = (None, None);
            return;
        };
        if self.next.as_ref().is_none_or(|next| next.size() != size) {
            self.next = Top::new::<B>(size, routes).map(Box::new);
        }
        if let Some(next) = &mut self.next {
            for _ in 0..PARTS {
                next.fill::<B>(trie, self.node);
            }
            if next.is_whole() {
                self.top = self.next.take();
            }
        }
    }
}
