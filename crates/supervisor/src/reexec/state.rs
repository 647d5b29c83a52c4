//! What one program of a supervisor leaves to the next: a sealed memory file with a version, a length and a checksum.
//!
//! ```text
//!  0  magic  8  format  12  descriptors: N  16  length: L  24  checksum  32  N numbers  32 + 4N  L bytes of JSON
//! ```
//!
//! Integers are little-endian. Descriptors are those of the process, which execve(2) does not change; the JSON speaks
//! of their places in the table. A release reads the formats [`OLDEST`] to [`NEWEST`] and writes each of them, so that
//! the releases beside it can follow it and be followed by it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::formats;
pub(crate) use super::formats::{NEWEST, OLDEST};
use super::{ArrivalState, FdIndex, Moment};
use crate::calls::CallsState;
use crate::changes::ChangesState;
use crate::clients::ClientsState;
use crate::front_ends::FrontEndsState;
use crate::plane::PlaneState;
use softdpu_api::status::UpgradeStatus;

const MAGIC: [u8; 8] = *b"sdpu-sup";
const HEADER: usize = 32;

/// The longest JSON: what is on its way to a data plane is at most 64 MiB, which are twice as many digits.
const LONGEST: u64 = 256 << 20;

/// The most descriptors: as many as a process may have.
const MOST_FDS: u32 = 1 << 20;

/// Everything that a supervisor has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// The release that has written it.
    pub(crate) version: String,
    pub(crate) started: Moment,
    pub(crate) changes: ChangesState,
    pub(crate) plane: PlaneState,
    pub(crate) front_ends: FrontEndsState,
    pub(crate) clients: ClientsState,
    pub(crate) vault: std::collections::BTreeMap<String, FdIndex>,
    pub(crate) calls: CallsState,
    /// The last upgrade of the data plane.
    pub(crate) upgrade: Option<UpgradeStatus>,
    /// The service manager was told that the data plane is ready.
    pub(crate) notified: bool,
    /// The locked file in the run directory.
    pub(crate) lock: Option<FdIndex>,
    /// Where metrics are served.
    pub(crate) metrics: Option<FdIndex>,
    /// The upgrade that it is for.
    pub(crate) arrival: ArrivalState,
}

/// Why a state cannot be taken up.
#[derive(Debug, Error)]
pub(crate) enum BadState {
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("it is not sealed: it could change while it is read")]
    NotSealed,
    #[error("it is no state of a supervisor")]
    Magic,
    #[error("it has format {0}, and those from {OLDEST} to {NEWEST} are understood")]
    Format(u32),
    #[error("it is {found} bytes long and says {said}")]
    Length { found: u64, said: u64 },
    #[error("its checksum is wrong")]
    Checksum,
    #[error("what it says is not understood: {0}")]
    Json(#[from] serde_json::Error),
}

/// Writes `state`, in `format`, which is one that this release writes, with the descriptors `fds`.
pub(crate) fn seal(state: &State, format: u32, fds: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let json = formats::write(serde_json::to_value(state)?, format).to_string();
    let numbers: Vec<u8> = fds.iter().flat_map(|fd| fd.as_raw_fd().to_le_bytes()).collect();
    let mut bytes = Vec::with_capacity(HEADER + numbers.len() + json.len());
    bytes.extend(MAGIC);
    bytes.extend(format.to_le_bytes());
    bytes.extend((fds.len() as u32).to_le_bytes());
    bytes.extend((json.len() as u64).to_le_bytes());
    bytes.extend(checksum(&[&numbers, json.as_bytes()]).to_le_bytes());
    bytes.extend(numbers);
    bytes.extend(json.into_bytes());
    let file = File::from(memfd_create("supervisor-state", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all_at(&bytes, 0)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// Nothing of it changes any more.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// A state that was read.
pub(crate) struct Read {
    pub(crate) state: State,
    /// The descriptors' numbers, by their places.
    pub(crate) numbers: Vec<RawFd>,
    pub(crate) checksum: u64,
}

/// Reads what [`seal`] has written, in this release or one beside it.
pub(crate) fn read(file: impl AsFd) -> Result<Read, BadState> {
    let file = File::from(file.as_fd().try_clone_to_owned()?);
    if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS)) {
        return Err(BadState::NotSealed);
    }
    let found = file.metadata()?.len();
    let mut header = [0; HEADER];
    if found < HEADER as u64 {
        return Err(BadState::Magic);
    }
    file.read_exact_at(&mut header, 0)?;
    let (magic, rest) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(BadState::Magic);
    }
    let format = word(rest, 0);
    if !(OLDEST..=NEWEST).contains(&format) {
        return Err(BadState::Format(format));
    }
    let (fds, length) = (word(rest, 4), long(rest, 8));
    let said = HEADER as u64 + u64::from(fds) * 4 + length.min(LONGEST);
    if fds > MOST_FDS || length > LONGEST || said != found {
        return Err(BadState::Length { found, said });
    }
    let mut bytes = vec![0; (found - HEADER as u64) as usize];
    file.read_exact_at(&mut bytes, HEADER as u64)?;
    let (numbers, json) = bytes.split_at(fds as usize * 4);
    let checksum = checksum(&[numbers, json]);
    if checksum != long(rest, 16) {
        return Err(BadState::Checksum);
    }
    let numbers = numbers.chunks_exact(4).map(|bytes| word(bytes, 0) as RawFd).collect();
    let state = serde_json::from_value(formats::read(serde_json::from_slice(json)?, format))?;
    Ok(Read { state, numbers, checksum })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// FNV-1a, 64 bits: nothing that is torn or cut short passes for whole. It is no protection against a forged state.
fn checksum(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().copied().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The checksum of a state that was sealed here.
pub(crate) fn checksum_of(file: impl AsFd) -> io::Result<u64> {
    let file = File::from(file.as_fd().try_clone_to_owned()?);
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, 24)?;
    Ok(u64::from_le_bytes(bytes))
}
