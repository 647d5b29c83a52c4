//! Numbers that name things, each of a type of its own, so that a network's is never taken for a next hop's.
//!
//! ```text
//!   PortId                   a port of this node
//!   ObjectId                 what flows are computed from: endpoints, routes, groups …       1 to 2^23 - 1
//!   ├ EndpointId             an endpoint
//!   HopId                    a next hop: an object's number, or from 2^23 on a loaded entry's     24 bits
//!   Vni                      a network, in tunnels                                            24 bits
//!   NetworkId, SubnetId, TunnelId, RouteTableId, EcmpId                        places in the tables of these
//! ```

use serde::{Deserialize, Serialize};

/// A port of this node: a guest's interface, a TAP, the underlay. Small and dense: an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u32);

/// Defines numbers that name things within the crate.
macro_rules! ids {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub(crate) struct $name(u32);

        #[allow(dead_code, reason = "each number is of one kind, and few need all of this")]
        impl $name {
            #[inline(always)]
            pub const fn new(number: u32) -> $name {
                $name(number)
            }

            #[inline(always)]
            pub const fn number(self) -> u32 {
                self.0
            }

            /// The number as a place in a table.
            #[inline(always)]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

pub(crate) use ids;

ids! {
    /// An object that flows are computed from (`tables/objects.rs`). 0 is none's.
    ObjectId;
    /// An endpoint: the number of the object that it is.
    EndpointId;
    /// A next hop: the number of the object that it is, or from [`HopId::FIRST_LOADED`] on a loaded entry's.
    HopId;
    /// A network, by its place in the spec.
    NetworkId;
    /// A subnet, by its place among those of all networks.
    SubnetId;
    /// A tunnel to another node.
    TunnelId;
    /// A table of policy routes, by its place in the spec.
    RouteTableId;
    /// An ECMP group. It keeps its number from build to build.
    EcmpId;
}

/// A VXLAN network identifier (RFC 7348 §5): the number of a network in tunnels, the same on all nodes. A network's is
/// from 1 to 2^24 − 1. A header may have 0,
/// which is [no network's](Vni::NONE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
#[repr(transparent)]
pub struct Vni(u32);

impl Vni {
    /// No network's: what a header may have where no frame of a network is.
    pub const NONE: Vni = Vni(0);
    /// The smallest of a network; 0 is what VXLAN gateways use for frames of no network.
    pub const MIN: u32 = 1;
    /// The largest: the field has 24 bits.
    pub const MAX: u32 = (1 << 24) - 1;

    /// `None` outside 1 to 2^24 − 1.
    pub const fn new(number: u32) -> Option<Vni> {
        if number >= Vni::MIN && number <= Vni::MAX { Some(Vni(number)) } else { None }
    }

    /// As it stands in a header.
    #[inline(always)]
    pub(crate) const fn from_bytes([a, b, c]: [u8; 3]) -> Vni {
        Vni(u32::from_be_bytes([0, a, b, c]))
    }

    /// As it is written to a header.
    #[inline(always)]
    pub(crate) const fn to_bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }

    /// The number.
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl From<Vni> for u32 {
    fn from(vni: Vni) -> u32 {
        vni.0
    }
}

impl TryFrom<u32> for Vni {
    type Error = String;
    fn try_from(number: u32) -> Result<Vni, String> {
        Vni::new(number).ok_or_else(|| format!("{number} is no VNI: expected {} to {}", Vni::MIN, Vni::MAX))
    }
}

impl std::fmt::Display for Vni {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl From<EndpointId> for ObjectId {
    #[inline(always)]
    fn from(endpoint: EndpointId) -> ObjectId {
        ObjectId(endpoint.0)
    }
}

impl From<EndpointId> for HopId {
    /// The next hop that leads to the endpoint.
    #[inline(always)]
    fn from(endpoint: EndpointId) -> HopId {
        HopId(endpoint.0)
    }
}

impl From<ObjectId> for HopId {
    /// The next hop that is an object.
    #[inline(always)]
    fn from(object: ObjectId) -> HopId {
        HopId(object.0)
    }
}

impl HopId {
    /// Bits of a next hop's number.
    pub const BITS: u32 = 24;
    /// The first number of a loaded entry's next hop. Objects' numbers are below.
    pub const FIRST_LOADED: u32 = 1 << (HopId::BITS - 1);
    /// Loaded entries that have numbers.
    pub const MOST_LOADED: usize = (1 << HopId::BITS) - HopId::FIRST_LOADED as usize;

    /// The next hop of the loaded entry at `index`.
    pub const fn loaded(index: usize) -> HopId {
        HopId(HopId::FIRST_LOADED + index as u32)
    }

    /// The place of the loaded entry that the next hop is of.
    #[inline]
    pub fn loaded_index(self) -> Option<usize> {
        Some(self.0.checked_sub(HopId::FIRST_LOADED)? as usize)
    }

    /// Whether it is a loaded entry's.
    #[inline]
    pub const fn is_loaded(self) -> bool {
        self.0 >= HopId::FIRST_LOADED
    }

    /// The object that the next hop is, unless it is a loaded entry's.
    #[inline]
    pub fn object(self) -> Option<ObjectId> {
        (!self.is_loaded()).then_some(ObjectId(self.0))
    }
}
