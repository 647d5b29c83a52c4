//! Tells a whole network that an endpoint is here: the ports of this node that are in it, and every other host of it.
//! softdpu itself goes by its configuration; this is for switches behind ports and tunnel end points of other makes,
//! which learn where an address is from the frames they see.

use super::in_tunnel;
use crate::id::PortId;
use crate::service::rarp;
use crate::tables::{Attachment, Tables};
use crate::verdict::Reply;

/// The most hosts that are told: those that learn are few, a gateway's loaded entries may be of any number of others.
const MOST_HOSTS: usize = 1024;

/// Announces the endpoint at `port`. `id` identifies the first outer IPv4 packet, those behind it have the next ones.
pub(crate) fn announce(tables: &Tables, port: PortId, id: u16, out: &mut Vec<Reply>) {
    let Attachment::Endpoint(endpoint) = tables.attachment(port) else { return };
    let Some(endpoint) = tables.endpoint(endpoint) else { return };
    let Some(network) = tables.network(endpoint.network) else { return };
    let frame = rarp::announcement(endpoint.mac);
    let here = tables.ports_of(endpoint.network).filter(|other| *other != port);
    out.extend(here.map(|port| Reply { port, frame: frame.clone() }));
    let tunnels = (0..).zip(tables.tunnels_of(endpoint.network).take(MOST_HOSTS));
    out.extend(tunnels.filter_map(|(more, to)| in_tunnel(to, network.vni, 0, &frame, id.wrapping_add(more))));
}
