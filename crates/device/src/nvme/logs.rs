//! Get Log Page (Base §5.16).

use std::collections::VecDeque;

use super::abi::{io, log};
use super::admin::Done;
use super::events::CHANGED;
use super::{BROADCAST, Command, Controller, Status, admin, features};

/// Entries of the error log: ELPE + 1.
pub(super) const ERRORS: usize = 64;

/// What the SMART log page tells of use (Base §5.16.1.3), by whoever counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// 512-byte blocks read.
    pub blocks_read: u64,
    /// 512-byte blocks written.
    pub blocks_written: u64,
    /// Read and Compare commands.
    pub reads: u64,
    /// Write commands.
    pub writes: u64,
    /// Hours since the device was started.
    pub hours: u64,
    /// A volume is read-only because its back end failed (critical warning, bit 3).
    pub degraded: bool,
}

/// An entry of the error log (Base §5.16.1.2).
#[derive(Clone, Copy, Debug)]
struct ErrorEntry {
    number: u64,
    sq: u16,
    command: u16,
    status: u16,
    nsid: u32,
}

/// The error log, newest first.
#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    entries: VecDeque<ErrorEntry>,
    count: u64,
}

impl ErrorLog {
    pub fn add(&mut self, sq: u16, command: u16, status: Status, nsid: u32) {
        self.count += 1;
        self.entries.truncate(ERRORS - 1);
        self.entries.push_front(ErrorEntry { number: self.count, sq, command, status: status.0 << 1, nsid });
    }

    /// An error that belongs to no command: its identifier is FFFFh.
    pub fn add_event(&mut self, sq: u16) {
        self.add(sq, 0xffff, Status::SUCCESS, 0);
    }
}

impl Controller {
    /// An I/O command failed: for the error log.
    pub fn command_failed(&mut self, sq: u16, command: u16, status: Status, nsid: u32) {
        self.errors.add(sq, command, status, nsid);
    }

    pub(super) fn get_log_page(&mut self, command: &Command) -> Result<Done, Status> {
        let (cdw10, cdw11) = (command.dword(10), command.dword(11));
        let (page, retain) = (cdw10 as u8, cdw10 & 1 << 15 != 0);
        // NUMDL and NUMDU, 0's based, dwords; LPOL and LPOU, bytes.
        let dwords = u64::from(cdw10 >> 16) | u64::from(cdw11 & 0xffff) << 16;
        let (len, offset) = ((dwords + 1) * 4, command.qword(12));
        if offset & 3 != 0 || len > self.shared.max_transfer {
            return Err(Status::INVALID_FIELD);
        }
        // OT: offsets of entries are not supported. CSI: the NVM command set.
        if command.dword(14) & 1 << 23 != 0 || page == log::EFFECTS && command.dword(14) >> 24 != 0 {
            return Err(Status::INVALID_FIELD);
        }
        // Logs of a controller: whatever namespace but one that cannot be (Base §5.16.1.3).
        let nsid = command.nsid();
        if page == log::HEALTH && nsid != 0 && nsid != BROADCAST {
            return Err(Status::INVALID_FIELD);
        }
        let data = match page {
            log::SUPPORTED => supported(),
            log::ERRORS => self.error_log(),
            log::HEALTH => self.health_log(),
            log::FIRMWARE => firmware(),
            log::CHANGED => self.changed_namespaces(),
            log::EFFECTS => self.effects(),
            log::FEATURES => features_supported(),
            _ => return Err(Status::LOG_PAGE),
        };
        if offset > data.len() as u64 {
            return Err(Status::INVALID_FIELD);
        }
        // What lies beyond the page reads as zeroes.
        let mut part = vec![0; len as usize];
        let from = &data[offset as usize..];
        let count = from.len().min(part.len());
        part[..count].copy_from_slice(&from[..count]);
        self.give(command, &part)?;
        if !retain {
            self.log_was_read(page);
        }
        Ok(Done::Now(0))
    }

    fn error_log(&self) -> Vec<u8> {
        let mut data = vec![0; ERRORS * 64];
        for (entry, to) in self.errors.entries.iter().zip(data.chunks_exact_mut(64)) {
            to[..8].copy_from_slice(&entry.number.to_le_bytes());
            to[8..10].copy_from_slice(&entry.sq.to_le_bytes());
            to[10..12].copy_from_slice(&entry.command.to_le_bytes());
            to[12..14].copy_from_slice(&entry.status.to_le_bytes());
            // Parameter Error Location: not known.
            to[14..16].copy_from_slice(&0xffff_u16.to_le_bytes());
            to[24..28].copy_from_slice(&entry.nsid.to_le_bytes());
        }
        data
    }

    /// SMART / Health Information (Base §5.16.1.3).
    fn health_log(&self) -> Vec<u8> {
        let Health { blocks_read, blocks_written, reads, writes, hours, degraded } = self.health;
        let mut data = vec![0; 512];
        data[0] = u8::from(degraded) << 3;
        // 40 °C, in Kelvin: there is no sensor.
        data[1..3].copy_from_slice(&313_u16.to_le_bytes());
        // Available spare and its threshold, per cent.
        data[3] = 100;
        data[4] = 10;
        let mut put = |at: usize, value: u64| data[at..at + 8].copy_from_slice(&value.to_le_bytes());
        // Thousands of blocks, rounded up.
        put(32, blocks_read.div_ceil(1000));
        put(48, blocks_written.div_ceil(1000));
        put(64, reads);
        put(80, writes);
        put(128, hours);
        put(176, self.errors.count);
        data
    }

    /// Changed Namespace List (Base §5.16.1.5).
    fn changed_namespaces(&self) -> Vec<u8> {
        let changed = &self.events.changed;
        let mut data = vec![0; CHANGED * 4];
        if changed.len() > CHANGED {
            data[..4].copy_from_slice(&BROADCAST.to_le_bytes());
            return data;
        }
        for (nsid, to) in changed.iter().zip(data.chunks_exact_mut(4)) {
            to.copy_from_slice(&nsid.to_le_bytes());
        }
        data
    }

    /// Commands Supported and Effects (Base §5.16.1.6): by opcode, admin commands, then I/O commands.
    fn effects(&self) -> Vec<u8> {
        /// CSUPP, and LBCC: logical block content may change.
        const SUPPORTED: u32 = 1;
        const CHANGES_BLOCKS: u32 = 1 << 1;
        let mut data = vec![0; 4096];
        let mut put = |at: usize, value: u32| data[at..at + 4].copy_from_slice(&value.to_le_bytes());
        for opcode in 0..=u8::MAX {
            let at = 4 * usize::from(opcode);
            if admin::is_supported(opcode, self.config.shadow_doorbells) {
                put(at, SUPPORTED);
            }
            if super::io::is_supported(opcode) {
                let changes = matches!(opcode, io::WRITE | io::WRITE_ZEROES | io::DATASET);
                put(1024 + at, SUPPORTED | if changes { CHANGES_BLOCKS } else { 0 });
            }
        }
        data
    }
}

/// Supported Log Pages (Base §5.16.1.1).
fn supported() -> Vec<u8> {
    let mut data = vec![0; 1024];
    let pages = [log::SUPPORTED, log::ERRORS, log::HEALTH, log::FIRMWARE, log::CHANGED, log::EFFECTS, log::FEATURES];
    for page in pages {
        data[4 * usize::from(page)] = 1;
    }
    data
}

/// Firmware Slot Information (Base §5.16.1.4): slot 1 is active.
fn firmware() -> Vec<u8> {
    let mut data = vec![0; 512];
    data[0] = 1;
    let release = env!("CARGO_PKG_VERSION").bytes().chain(std::iter::repeat(b' '));
    for (to, from) in data[8..16].iter_mut().zip(release) {
        *to = from;
    }
    data
}

/// Feature Identifiers Supported and Effects (Base §5.16.1.18): FSUPP.
fn features_supported() -> Vec<u8> {
    let mut data = vec![0; 1024];
    for id in 0..=u8::MAX {
        data[4 * usize::from(id)] = features::is_supported(id).into();
    }
    data
}
