//! The NBD protocol's numbers and fixed-size messages (NetworkBlockDevice/nbd, doc/proto.md). All big-endian.

use serde::{Deserialize, Serialize};

/// "NBDMAGIC" ("Newstyle negotiation").
pub(crate) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT".
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Option replies ("Option haggling").
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Handshake flags.
pub(crate) const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
pub(crate) const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Option types.
pub(crate) const OPT_ABORT: u32 = 2;
pub(crate) const OPT_GO: u32 = 7;

/// Option reply types; errors have the top bit.
pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const REP_ERROR: u32 = 1 << 31;
pub(crate) const REP_ERR_UNSUP: u32 = REP_ERROR | 1;
pub(crate) const REP_ERR_POLICY: u32 = REP_ERROR | 2;
pub(crate) const REP_ERR_TLS_REQD: u32 = REP_ERROR | 5;
pub(crate) const REP_ERR_UNKNOWN: u32 = REP_ERROR | 6;
pub(crate) const REP_ERR_BLOCK_SIZE_REQD: u32 = REP_ERROR | 8;

/// Information types.
pub(crate) const INFO_EXPORT: u16 = 0;
pub(crate) const INFO_BLOCK_SIZE: u16 = 3;

/// Transmission flags.
pub(crate) const HAS_FLAGS: u16 = 1 << 0;
pub(crate) const READ_ONLY: u16 = 1 << 1;
pub(crate) const SEND_FLUSH: u16 = 1 << 2;
pub(crate) const SEND_FUA: u16 = 1 << 3;
pub(crate) const SEND_TRIM: u16 = 1 << 5;
pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;

/// Transmission phase.
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Errors have Linux's numbers; this one says that the server is about to go.
pub(crate) const ESHUTDOWN: u32 = 108;

/// Request types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
}

/// Command flags.
pub(crate) const CMD_FUA: u16 = 1 << 0;
pub(crate) const CMD_NO_HOLE: u16 = 1 << 1;

pub(crate) const REQUEST_LEN: usize = 28;
pub(crate) const REPLY_LEN: usize = 16;

/// Without block size information a server takes at least this much at a time ("Block size constraints").
pub(crate) const DEFAULT_MAX_PAYLOAD: u32 = 32 << 20;

/// A request header.
pub(crate) fn request(command: Command, flags: u16, cookie: u64, offset: u64, len: u32) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..28].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// A simple reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub error: u32,
    pub cookie: u64,
}

impl Reply {
    /// # Errors
    /// The magic it has instead.
    pub(crate) fn parse(bytes: &[u8; REPLY_LEN]) -> Result<Reply, u32> {
        let [a, b, c, d, e, f, g, h, cookie @ ..] = *bytes;
        let magic = u32::from_be_bytes([a, b, c, d]);
        if magic != SIMPLE_REPLY_MAGIC {
            return Err(magic);
        }
        Ok(Reply { error: u32::from_be_bytes([e, f, g, h]), cookie: u64::from_be_bytes(cookie) })
    }
}

/// What a server said about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Export {
    pub size: u64,
    pub flags: u16,
    pub min_block: u32,
    pub preferred_block: u32,
    pub max_payload: u32,
}

impl Export {
    pub(crate) fn can(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}
