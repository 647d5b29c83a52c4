//! Packets through the tiers: 64-byte UDP frames over IPv4 from one endpoint to another, in bursts of 32, each with its
//! key read, its flow found, its version, path MTU and hop limit checked, its meter passed, its headers rewritten and
//! its flow's counters moved on. The bursts' time in the tiers is taken by itself: what remains is filling heads, which
//! a device does by copying. It is the figure `hit`.
//!
//! ```text
//!   traffic  what comes, and the node that it comes to        hit     packets of known flows
//!   core     the tiers, and the time in them                  first   of new ones
//!   bare     the same packets through a loop that can less    change  of known ones, after a change
//! ```

mod bare;
mod change;
mod core;
mod first;
mod hit;
mod traffic;

use softdpu_vpc::spec::Spec;

use super::Case;
use change::After;
use first::First;
use hit::Hit;
use traffic::{Order, Site, Tunnels};

const HITS: [Hit; 17] = [
    Hit::new(1 << 16, "hit, 64 k flows", Order::Uniform, Tunnels::Local),
    Hit::new(1 << 20, "hit, 1 M flows", Order::Uniform, Tunnels::Local),
    Hit::new(1 << 22, "hit, 4 M flows", Order::Uniform, Tunnels::Local),
    Hit::new(1 << 24, "hit, 16 M flows", Order::Uniform, Tunnels::Local),
    Hit::metered(1 << 16, "hit and meter, 64 k flows"),
    Hit::metered(1 << 22, "hit and meter, 4 M flows"),
    Hit::new(1 << 16, "hit, Zipf over 64 k flows", Order::Zipf, Tunnels::Local),
    Hit::new(1 << 22, "hit, Zipf over 4 M flows", Order::Zipf, Tunnels::Local),
    Hit::new(1 << 24, "hit, Zipf over 16 M flows", Order::Zipf, Tunnels::Local),
    Hit::through_rules(1 << 22, "Zipf over 4 M flows through 1000 rules", Order::Zipf, 1000),
    Hit::new(1 << 16, "hit, an elephant among 64 k flows", Order::Elephant, Tunnels::Local),
    Hit::new(1 << 16, "hit and VXLAN, 64 k flows", Order::Uniform, Tunnels::Encap),
    Hit::new(1 << 22, "hit and VXLAN, 4 M flows", Order::Uniform, Tunnels::Encap),
    Hit::new(1 << 16, "hit from VXLAN, 64 k flows", Order::Uniform, Tunnels::Decap),
    Hit::new(1 << 16, "hit from VXLAN to VXLAN, 64 k flows", Order::Uniform, Tunnels::Transit),
    Hit::new(0, "no flows, from VXLAN", Order::Uniform, Tunnels::Decap),
    Hit::new(0, "no flows, from VXLAN to VXLAN", Order::Uniform, Tunnels::Transit),
];

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    let hits = HITS.map(|hit| -> Box<dyn Case> { Box::new(hit) });
    let first = [0, 1000].map(|rules| -> Box<dyn Case> { Box::new(First { rules }) });
    let change = [false, true].map(|is_changed| -> Box<dyn Case> { Box::new(After { flows: 1 << 20, is_changed }) });
    hits.into_iter().chain(first).chain(change).collect()
}

/// A node with endpoints in one network, and tunnels to others.
pub(super) fn node() -> Result<Spec, String> {
    Site::plain(Tunnels::Encap, 1).spec()
}
