//! The NBD protocol's numbers and fixed-size messages (NetworkBlockDevice/nbd, doc/proto.md). All big-endian.

use serde::{Deserialize, Serialize};

/// The most bytes of a string, such as an export's name ("Values").
pub const MAX_STRING: usize = 4096;

/// `NBDMAGIC`, a server's first bytes ("Newstyle negotiation").
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, behind it and before every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before every reply to an option ("Option haggling").
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Handshake flag NBD_FLAG_FIXED_NEWSTYLE: several options can be sent.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag NBD_FLAG_NO_ZEROES: no padding behind the answer to NBD_OPT_EXPORT_NAME.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Option NBD_OPT_ABORT: the client goes away.
pub const OPT_ABORT: u32 = 2;
/// Option NBD_OPT_GO: opens an export.
pub const OPT_GO: u32 = 7;

/// Option reply NBD_REP_ACK: done.
pub const REP_ACK: u32 = 1;
/// Option reply NBD_REP_INFO: one piece of information; more replies follow.
pub const REP_INFO: u32 = 3;
/// The bit that all errors have.
pub const REP_ERROR: u32 = 1 << 31;
/// NBD_REP_ERR_UNSUP: an unknown option.
pub const REP_ERR_UNSUP: u32 = REP_ERROR | 1;
/// NBD_REP_ERR_POLICY: forbidden by the server's configuration.
pub const REP_ERR_POLICY: u32 = REP_ERROR | 2;
/// NBD_REP_ERR_TLS_REQD: only with TLS.
pub const REP_ERR_TLS_REQD: u32 = REP_ERROR | 5;
/// NBD_REP_ERR_UNKNOWN: no such export.
pub const REP_ERR_UNKNOWN: u32 = REP_ERROR | 6;
/// NBD_REP_ERR_BLOCK_SIZE_REQD: only for clients that ask for NBD_INFO_BLOCK_SIZE.
pub const REP_ERR_BLOCK_SIZE_REQD: u32 = REP_ERROR | 8;

/// NBD_INFO_EXPORT: an export's size and transmission flags.
pub const INFO_EXPORT: u16 = 0;
/// NBD_INFO_BLOCK_SIZE: smallest, preferred and largest block.
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Transmission flag NBD_FLAG_HAS_FLAGS: always there.
pub const HAS_FLAGS: u16 = 1 << 0;
/// Transmission flag NBD_FLAG_READ_ONLY.
pub const READ_ONLY: u16 = 1 << 1;
/// Transmission flag NBD_FLAG_SEND_FLUSH: the export takes NBD_CMD_FLUSH.
pub const SEND_FLUSH: u16 = 1 << 2;
/// Transmission flag NBD_FLAG_SEND_FUA: the export takes [`CMD_FUA`].
pub const SEND_FUA: u16 = 1 << 3;
/// Transmission flag NBD_FLAG_SEND_TRIM: the export takes NBD_CMD_TRIM.
pub const SEND_TRIM: u16 = 1 << 5;
/// Transmission flag NBD_FLAG_SEND_WRITE_ZEROES: the export takes NBD_CMD_WRITE_ZEROES.
pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
/// Transmission flag NBD_FLAG_CAN_MULTI_CONN: a flush on one connection covers the writes of all.
pub const CAN_MULTI_CONN: u16 = 1 << 8;

/// NBD_REQUEST_MAGIC, before every request ("Transmission").
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// NBD_SIMPLE_REPLY_MAGIC, before every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// NBD_ESHUTDOWN: the server is about to go. Errors have Linux' numbers.
pub const ESHUTDOWN: u32 = 108;

/// Request types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// NBD_CMD_READ.
    Read = 0,
    /// NBD_CMD_WRITE.
    Write = 1,
    /// NBD_CMD_DISC: the client goes away; there is no reply.
    Disconnect = 2,
    /// NBD_CMD_FLUSH.
    Flush = 3,
    /// NBD_CMD_TRIM.
    Trim = 4,
    /// NBD_CMD_WRITE_ZEROES.
    WriteZeroes = 6,
}

/// Command flag NBD_CMD_FLAG_FUA: on stable storage before the reply.
pub const CMD_FUA: u16 = 1 << 0;
/// Command flag NBD_CMD_FLAG_NO_HOLE: zeroes are written, not punched.
pub const CMD_NO_HOLE: u16 = 1 << 1;

/// Bytes of a request without its data.
pub const REQUEST_LEN: usize = 28;
/// Bytes of a simple reply without its data.
pub const REPLY_LEN: usize = 16;

/// Without block size information a server takes at least this much at a time ("Block size constraints").
pub const DEFAULT_MAX_PAYLOAD: u32 = 32 << 20;

/// The bytes of a request without its data.
pub fn request(command: Command, flags: u16, cookie: u64, offset: u64, len: u32) -> [u8; REQUEST_LEN] {
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
pub struct Reply {
    /// 0, or an error with Linux' number.
    pub error: u32,
    /// That of the request.
    pub cookie: u64,
}

impl Reply {
    /// Reads a reply from its bytes.
    ///
    /// # Errors
    /// The magic they have instead of [`SIMPLE_REPLY_MAGIC`].
    pub fn parse(bytes: &[u8; REPLY_LEN]) -> Result<Reply, u32> {
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
pub struct Export {
    /// Bytes.
    pub size: u64,
    /// Transmission flags.
    pub flags: u16,
    /// Bytes of which offsets and lengths of requests are multiples.
    pub min_block: u32,
    /// Bytes of which they had better be multiples.
    pub preferred_block: u32,
    /// The most bytes of a request's or reply's data.
    pub max_payload: u32,
}

impl Export {
    /// Whether it has that transmission flag.
    pub fn can(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}
