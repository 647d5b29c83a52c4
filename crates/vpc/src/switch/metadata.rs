//! What goes from tier to tier with a frame (Zephyrus §4.3, figure 6).
//!
//! ```text
//!   on the wire        Ethernet │ IP … payload
//!   between the tiers  Ethernet │ Metadata │ IP … payload          the same bytes of metadata both ways
//! ```
//!
//! The frame stays as it came, its Ethernet header included, until the tier that it leaves by writes the one that it leaves with.
//! Whatever a tier has found that another one needs is here, by number, so that none has to look for it again. Each tier takes it
//! and gives it back, of one length:
//!
//! | tier | takes | fills in |
//! |---|---|---|
//! | switch, before | the port | identifier, network, where it is from, hash, next hop, versions of what said so |
//! | flow | hash, versions | meter, connection, next hop of a flow that it knows ([`Action`](crate::flow::Action): what an entry keeps of this) |
//! | software | network, both ends, versions | meter, connection |
//! | switch, after | next hop, flags, connection | nothing: the packet leaves |
//!
//! What [parsing](Frame) the frame gives is beside it, as any tier could parse the frame again.

use crate::flow::NONE;
use crate::packet::{Checksum, Parsed};
use crate::policy::connections::Link;
use crate::stamp::{SOURCES, Stamp};

/// The private key between the tiers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Metadata {
    /// Given at ingress to a packet that somebody watches; 0: nobody does.
    pub trace: u32,
    /// Whose tables decide: the number of its network (Zephyrus: policy-routing identifier).
    pub network: u32,
    /// Of the 5-tuple.
    pub hash: u32,
    /// Number of the endpoint by whose port it came, or of the tunnel.
    from: u32,
    /// Number of the next hop.
    pub hop: u32,
    /// Of a frame from a tunnel: number of the next hop towards its source, or [`NONE`].
    back: u32,
    /// Number of the meter that it passes, or [`NONE`].
    pub meter: u32,
    /// Slot and generation of its connection, or [`NONE`] and 0.
    connection: [u32; 2],
    flags: u32,
    /// Versions of what it is decided by, read before it is decided (Zephyrus §4.3).
    pub sources: [Stamp; SOURCES],
}

const _: () = assert!(size_of::<Metadata>() == 72, "one length, both ways");

/// It came by a tunnel.
const TUNNEL: u32 = 1;
/// Source and destination are in one subnet: no router between them.
const BESIDE: u32 = 1 << 1;
/// A route said where it goes, and not the owner of its destination.
const ROUTED: u32 = 1 << 2;
/// Its next hop is a port of this node.
const HERE: u32 = 1 << 3;
/// Of a frame from a tunnel: `back` is the owner of its source.
const OWNED: u32 = 1 << 4;
/// It goes to a member of an ECMP group, which is counted.
const MEMBER: u32 = 1 << 5;
/// It is decided by more than a flow is compared with: no flow is made of it.
const ALONE: u32 = 1 << 6;

impl Metadata {
    /// Of a frame of `network` that came by the port of endpoint `number`.
    pub fn from_endpoint(trace: u32, network: u32, number: u32) -> Metadata {
        Metadata {
            trace,
            network,
            hash: 0,
            from: number,
            hop: NONE,
            back: NONE,
            meter: NONE,
            connection: [NONE, 0],
            flags: 0,
            sources: [Stamp::default(); SOURCES],
        }
    }

    /// Of one that came by tunnel `number`.
    pub fn from_tunnel(trace: u32, network: u32, number: u32) -> Metadata {
        Metadata { flags: TUNNEL, ..Metadata::from_endpoint(trace, network, number) }
    }

    /// The endpoint by whose port it came.
    #[inline]
    pub fn endpoint(&self) -> Option<u32> {
        (self.flags & TUNNEL == 0).then_some(self.from)
    }

    /// The tunnel by which it came.
    #[inline]
    pub fn tunnel(&self) -> Option<u32> {
        (self.flags & TUNNEL != 0).then_some(self.from)
    }

    /// The next hop towards the source of a frame from a tunnel, where that is an endpoint's.
    #[inline]
    pub fn back(&self) -> Option<u32> {
        (self.back != NONE).then_some(self.back)
    }

    /// Of a frame from a tunnel: the next hop towards its source, and whether that owns the source address.
    #[inline]
    pub fn set_back(&mut self, hop: Option<u32>, is_owner: bool) {
        self.back = hop.unwrap_or(NONE);
        self.set(OWNED, is_owner);
    }

    #[inline]
    pub fn is_owned(&self) -> bool {
        self.flags & OWNED != 0
    }

    #[inline]
    pub fn is_beside(&self) -> bool {
        self.flags & BESIDE != 0
    }

    #[inline]
    pub fn set_beside(&mut self, is_beside: bool) {
        self.set(BESIDE, is_beside);
    }

    #[inline]
    pub fn is_routed(&self) -> bool {
        self.flags & ROUTED != 0
    }

    #[inline]
    pub fn set_routed(&mut self, is_routed: bool) {
        self.set(ROUTED, is_routed);
    }

    #[inline]
    pub fn is_here(&self) -> bool {
        self.flags & HERE != 0
    }

    #[inline]
    pub fn set_here(&mut self, is_here: bool) {
        self.set(HERE, is_here);
    }

    #[inline]
    pub fn is_to_member(&self) -> bool {
        self.flags & MEMBER != 0
    }

    #[inline]
    pub fn set_to_member(&mut self, is_to_member: bool) {
        self.set(MEMBER, is_to_member);
    }

    /// Whether no flow is made of it.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.flags & ALONE != 0
    }

    #[inline]
    pub fn set_alone(&mut self) {
        self.set(ALONE, true);
    }

    /// It is decided by these, too: each is taken down once.
    #[inline]
    pub fn decided_by<const N: usize>(&mut self, stamps: [Stamp; N]) {
        for stamp in stamps {
            if stamp == Stamp::default() || self.sources.contains(&stamp) {
                continue;
            }
            match self.sources.iter_mut().find(|source| **source == Stamp::default()) {
                Some(room) => *room = stamp,
                None => self.set_alone(),
            }
        }
    }

    #[inline]
    fn set(&mut self, flag: u32, to: bool) {
        self.flags = if to { self.flags | flag } else { self.flags & !flag };
    }

    /// Its connection; of none, the slot is [`NONE`].
    #[inline]
    pub fn link(&self) -> Link {
        let [slot, generation] = self.connection;
        Link { slot, generation }
    }

    #[inline]
    pub fn set_link(&mut self, link: Link) {
        self.connection = [link.slot, link.generation];
    }
}

/// What parsing a frame gives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// The inner frame's headers.
    pub parsed: Parsed,
    /// Bytes of outer headers.
    pub outer: u16,
    /// ECN of the outer header.
    pub ecn: u8,
    /// What is left to do of the inner frame's checksum.
    pub checksum: Checksum,
}
