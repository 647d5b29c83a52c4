//! The status of a node for people: as tables, and live.

#[cfg(test)]
#[path = "../../../api/src/status/sample.rs"]
mod sample;
mod table;
#[cfg(test)]
mod tests;
mod top;

pub use table::{
    device_table, ecmp_table, function_table, lookup_table, nat_table, network_table, steering_table, table,
    task_table, tenant_table, volume_table,
};
pub use top::run as run_top;
