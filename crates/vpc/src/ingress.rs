//! The owner of a packet that the underlay brings, ahead of the tiers: so that a core can charge its tenant, or let it
//! wait, before anything else is done with it.
//!
//! ```text
//!   outer headers ─► VNI ─► network ─┬─ of a tenant ───────────────────────────► Tenant
//!                                    └─ of several ─► inner destination's port ─► Port
//!   no tunnel of this node's, an unknown network, a destination elsewhere ──────► Node
//! ```

use softdpu_sched::TenantId;

use crate::exact::ExactKey;
use crate::id::{NetworkId, PortId};
use crate::packet::{Packet, parse};
use crate::switch::{Last, Outer, outer_at_underlay};
use crate::tables::{Egress, Tables};

/// The owner of a packet from the underlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IngressOwner {
    /// The tenant of its network.
    Tenant(TenantId),
    /// Its network has no tenant: the tenant of the port that it is for.
    Port(PortId),
    /// No tenant of this node is known for it.
    Node,
}

/// The owners of packets that came by the underlay's port, one for each of `packets`, appended to `owners`.
pub(crate) fn owners(tables: &Tables, packets: &[Packet], owners: &mut Vec<IngressOwner>) {
    let mut last = Last::default();
    let mut known: Option<(NetworkId, TenantId)> = None;
    owners.extend(packets.iter().map(|packet| {
        let Some(outer) = outer_at_underlay(tables, packet, &mut last) else { return IngressOwner::Node };
        if let Some((network, tenant)) = known
            && network == outer.network
        {
            return IngressOwner::Tenant(tenant);
        }
        match tables.network(outer.network).and_then(|network| network.tenant) {
            Some(tenant) => {
                known = Some((outer.network, tenant));
                IngressOwner::Tenant(tenant)
            }
            None => destination(tables, packet, &outer).map_or(IngressOwner::Node, IngressOwner::Port),
        }
    }));
}

/// The port of the endpoint that has the inner packet's destination, if it is one of this node.
fn destination(tables: &Tables, packet: &Packet, outer: &Outer) -> Option<PortId> {
    let inner = packet.head.bytes().get(outer.len.into()..)?;
    let inner = inner.get(..inner.len().min(outer.inner))?;
    let destination = parse(inner, outer.inner).ok()?.ip()?.destination;
    let entry = tables.addresses().get(&ExactKey::address(outer.network.number(), destination))?;
    match tables.hop(entry.hop()?)?.egress {
        Egress::Port(port) => Some(port),
        Egress::Tunnel(_) => None,
    }
}
