//! The dirty log: SET_LOG_BASE, SET_LOG_FD (vhost-user: Migration).

use super::command::{Command, FdId};
use super::state::{LogMemory, State};
use super::{Finish, Step};
use crate::vhost_user::codec::Writer;
use crate::vhost_user::error::Fault;
use crate::vhost_user::features::ProtocolFeatures;
use crate::vhost_user::messages::LogDescription;

/// Guest memory that one byte of the log stands for: eight pages of `VHOST_LOG_PAGE`.
const COVERED_BY_BYTE: u64 = 8 * 0x1000;

impl State {
    pub(super) fn set_log_base(&mut self, log: LogDescription, fd: Option<FdId>) -> Result<Step, Fault> {
        self.require(ProtocolFeatures::LOG_SHMFD)?;
        let fd = fd.ok_or(Fault::FileDescriptors { found: 0, expected: 1 })?;
        let LogDescription { size, offset } = log;
        if offset.checked_add(size).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Fault::Wraps { field: "log offset", start: offset, len: size });
        }
        // vhost-user, Migration: the log "should be large enough to cover all known guest addresses". Regions do not
        // wrap.
        let end = self.regions.iter().map(|region| region.guest_address + region.size).max().unwrap_or(0);
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
        let reply = Writer::new().u64(size).u64(offset).done();
        Ok(Step::Then(Command::DirtyLog(self.dirty_log()), Finish::Log(reply)))
    }

    pub(super) fn set_log_fd(&mut self, fd: Option<FdId>) -> Result<Step, Fault> {
        self.log_event = fd;
        Ok(Step::Then(Command::DirtyLog(self.dirty_log()), Finish::Status))
    }
}
