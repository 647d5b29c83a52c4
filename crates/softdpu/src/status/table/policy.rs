//! What policies of networks found.

use super::{layout, short, size};
use softdpu_api::status::NodeStatus;

/// What meters found, a line each.
pub(super) fn meters(status: &NodeStatus) -> String {
    let rows = status.meters.iter().map(|meter| {
        let mut row = vec![meter.name.clone()];
        for colour in [meter.green, meter.yellow, meter.red] {
            row.extend([short(colour.packets), size(colour.bytes)]);
        }
        row
    });
    layout(&["METER", "GREEN>", "BYTES>", "YELLOW>", "BYTES>", "RED>", "BYTES>"], rows.collect())
}

/// The connections of interfaces in security groups.
pub(super) fn connections(status: &NodeStatus) -> String {
    let rows = status
        .connections
        .iter()
        .map(|all| [all.known, all.capacity, all.opened, all.ended, all.refused].into_iter().map(short).collect());
    layout(&["CONNECTIONS>", "ROOM FOR>", "OPENED>", "ENDED>", "PACKETS REFUSED>"], rows.collect())
}
