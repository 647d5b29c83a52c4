//! What an I/O queue pair of an NVMe controller is for.

use std::sync::Arc;

use softdpu_device::nvme::{Command, Commands};
use softdpu_ring::Chain;
use softdpu_storage::Volume;

/// Commands of an I/O queue pair of an NVMe controller.
pub struct NvmeQueue {
    /// Parses them.
    pub commands: Commands,
    /// The volumes behind the namespaces of the controller, by namespace identifier.
    pub namespaces: Vec<(u32, Arc<Volume>)>,
}

impl NvmeQueue {
    /// Bytes that commands move, about.
    #[inline]
    pub(crate) fn bytes(&self, chains: &[Chain]) -> u64 {
        chains.iter().map(|chain| self.commands.estimate(&Command::read(&chain.buffer))).sum()
    }
}
