//! The dirty log: SET_LOG_BASE, SET_LOG_FD (vhost-user: Migration).

use serde::{Deserialize, Serialize};

use super::command::{DirtyLog, FdId};
use crate::vhost_user::codec::Writer;
use crate::vhost_user::error::Fault;
use crate::vhost_user::messages::LogDescription;

/// Guest memory that one byte of the log stands for: eight pages of `VHOST_LOG_PAGE`.
const COVERED_BY_BYTE: u64 = 8 * 0x1000;

/// The log's memory and its eventfd, as far as the front end has sent them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogFiles {
    log: Option<LogMemory>,
    log_event: Option<FdId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LogMemory {
    fd: FdId,
    offset: u64,
    size: u64,
}

impl LogFiles {
    /// SET_LOG_BASE for guest memory that ends at `end`; gives the payload of the reply.
    pub(super) fn set_base(&mut self, log: LogDescription, fd: Option<FdId>, end: u64) -> Result<Vec<u8>, Fault> {
        let fd = fd.ok_or(Fault::FileDescriptors { found: 0, expected: 1 })?;
        let LogDescription { size, offset } = log;
        if offset.checked_add(size).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Fault::Wraps { field: "log offset", start: offset, len: size });
        }
        // vhost-user, Migration: the log "should be large enough to cover all known guest addresses".
        let expected = end.div_ceil(COVERED_BY_BYTE).max(1);
        if size < expected {
            return Err(Fault::LogTooSmall { found: size, expected });
        }
        // A log for all 2^64 addresses has 2^49 bytes; more can only be a mistake.
        if size > u64::MAX / COVERED_BY_BYTE + 1 {
            let most = u64::MAX / COVERED_BY_BYTE + 1;
            return Err(Fault::Range { field: "log size", found: size, least: expected, most });
        }
        self.log = Some(LogMemory { fd, offset, size });
        // The specification asks for a reply and does not say which. QEMU ignores its payload, the `vhost` crate
        // expects the description back.
        Ok(Writer::new().u64(size).u64(offset).done())
    }

    /// SET_LOG_FD.
    pub(super) fn set_event(&mut self, fd: Option<FdId>) {
        self.log_event = fd;
    }

    /// What the device is to know of the log.
    pub(super) fn describe(&self, logging: bool) -> DirtyLog {
        let memory = self.log.map(|log| (log.fd, log.offset, log.size));
        DirtyLog { memory, event: self.log_event, logging }
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = FdId> {
        self.log.map(|log| log.fd).into_iter().chain(self.log_event)
    }
}
