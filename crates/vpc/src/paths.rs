//! Which way packets took through the tiers, by where they go (Zephyrus §3.2, figure 3).

/// Where a packet leaves to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A port of this node.
    Port,
    /// Another node, from a port of this one.
    Tunnel,
    /// Another node, from another node.
    Transit,
}

impl Destination {
    /// All, in the order of their numbers.
    pub const ALL: [Destination; 3] = [Destination::Port, Destination::Tunnel, Destination::Transit];

    /// What users see.
    pub fn word(self) -> &'static str {
        match self {
            Destination::Port => "port",
            Destination::Tunnel => "tunnel",
            Destination::Transit => "transit",
        }
    }
}

/// The tier that decided about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datapath {
    /// The switch tier alone, without a state.
    Switch,
    /// The flow tier, as for the packet before.
    Fast,
    /// The software tier: policies were asked.
    Software,
}

impl Datapath {
    /// All, in the order of their numbers.
    pub const ALL: [Datapath; 3] = [Datapath::Switch, Datapath::Fast, Datapath::Software];

    /// What users see.
    pub fn word(self) -> &'static str {
        match self {
            Datapath::Switch => "switch",
            Datapath::Fast => "fast",
            Datapath::Software => "software",
        }
    }
}

/// Packets that left, by both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths([[u64; Datapath::ALL.len()]; Destination::ALL.len()]);

impl Paths {
    /// How many left that way.
    pub fn get(&self, to: Destination, by: Datapath) -> u64 {
        self.0[to as usize][by as usize]
    }

    #[inline]
    pub(crate) fn add(&mut self, to: Destination, by: Datapath, packets: u64) {
        self.0[to as usize][by as usize] += packets;
    }
}
