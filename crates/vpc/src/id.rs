//! Numbers that name things, each of a type of its own.

/// A port of this node: a guest's interface, a TAP, the underlay. Small and dense: an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u32);
