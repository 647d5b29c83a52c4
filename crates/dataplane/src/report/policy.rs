//! What policies of networks counted, for `status`.

use softdpu_vpc::policy::MeterCount;

use crate::networks::Networks;
use softdpu_api::status::{ColourCount, ConnectionStatus, MeterStatus};

/// What meters found, by name.
pub(super) fn meters(networks: &Networks) -> Vec<MeterStatus> {
    let count = |MeterCount { packets, bytes }: MeterCount| ColourCount { packets, bytes };
    let status = |(name, counts): (&str, [MeterCount; 3])| {
        let [green, yellow, red] = counts.map(count);
        MeterStatus { name: name.to_owned(), green, yellow, red }
    };
    networks.tables().map(|tables| tables.meter_counts().map(status).collect()).unwrap_or_default()
}

/// Connections of interfaces in security groups.
pub(super) fn connections(networks: &Networks) -> Option<ConnectionStatus> {
    let tables = networks.tables()?;
    let (known, stats) = tables.connection_stats()?;
    Some(ConnectionStatus {
        known: known as u64,
        capacity: tables.connection_capacity() as u64,
        opened: stats.opened,
        ended: stats.ended.iter().sum(),
        refused: stats.refused.iter().sum(),
    })
}
