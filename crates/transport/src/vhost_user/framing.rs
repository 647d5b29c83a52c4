//! The 12-byte header in front of every message (vhost-user: Message Specification, Header).

use super::error::FramingError;

/// Bytes of a header: request, flags and payload size, 32 bits each, in native byte order.
pub const HEADER_SIZE: usize = 12;

/// The largest payload that is read. The largest message this back end understands is GET/SET_CONFIG with 12 + 256
/// bytes; the rest is room to read, and refuse in good order, messages of later protocol versions. The `vhost` crate
/// stops at the same 4096.
pub const MAX_PAYLOAD: u32 = 4096;

/// The most file descriptors one message carries: one for each of the eight regions of SET_MEM_TABLE (vhost-user:
/// Multiple Memory regions description).
pub const MAX_FDS: usize = 8;

const VERSION_MASK: u32 = 0b11;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
const KNOWN_FLAGS: u32 = VERSION_MASK | REPLY | NEED_REPLY;

/// A header with checked version, flags and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The request id. Ids of front-end and back-end requests are separate number spaces.
    pub request: u32,
    /// Bit 2 of the flags: this is the reply to a request of that id.
    pub reply: bool,
    /// Bit 3 of the flags: the sender waits for a status (vhost-user: REPLY_ACK).
    pub need_reply: bool,
    /// Bytes of payload that follow, at most [`MAX_PAYLOAD`].
    pub size: u32,
}

impl Header {
    /// The header of a request.
    pub fn request(request: u32, need_reply: bool, size: u32) -> Self {
        Header { request, reply: false, need_reply, size }
    }

    /// The header of a reply.
    pub fn reply(request: u32, size: u32) -> Self {
        Header { request, reply: true, need_reply: false, size }
    }

    /// Checks the first twelve bytes of a message. After an error nothing that follows on the socket can be trusted:
    /// close the connection.
    pub fn parse(bytes: &[u8; HEADER_SIZE]) -> Result<Self, FramingError> {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (request, flags, size) = (word(0), word(4), word(8));
        if flags & VERSION_MASK != VERSION {
            return Err(FramingError::Version { request, found: flags & VERSION_MASK });
        }
        if flags & !KNOWN_FLAGS != 0 {
            return Err(FramingError::Flags { request, found: flags & !KNOWN_FLAGS });
        }
        if size > MAX_PAYLOAD {
            return Err(FramingError::Size { request, found: size });
        }
        Ok(Header { request, reply: flags & REPLY != 0, need_reply: flags & NEED_REPLY != 0, size })
    }

    /// The header as it is sent.
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut flags = VERSION;
        if self.reply {
            flags |= REPLY;
        }
        if self.need_reply {
            flags |= NEED_REPLY;
        }
        let mut bytes = [0; HEADER_SIZE];
        bytes[0..4].copy_from_slice(&self.request.to_ne_bytes());
        bytes[4..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_ne_bytes());
        bytes
    }

    /// The header followed by `payload`; its length replaces `size`.
    pub(crate) fn frame(mut self, payload: &[u8]) -> Vec<u8> {
        self.size = payload.len() as u32;
        let mut bytes = Vec::with_capacity(HEADER_SIZE + payload.len());
        bytes.extend_from_slice(&self.encode());
        bytes.extend_from_slice(payload);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(request: u32, flags: u32, size: u32) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        bytes[0..4].copy_from_slice(&request.to_ne_bytes());
        bytes[4..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&size.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_header_survives_the_wire() {
        for (reply, need_reply) in [(false, false), (true, false), (false, true), (true, true)] {
            let header = Header { request: 24, reply, need_reply, size: 268 };
            assert_eq!(Header::parse(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn flag_bits_are_where_the_specification_puts_them() {
        let header = Header::parse(&raw(7, 0b1101, 0)).unwrap();
        assert!(header.reply && header.need_reply);
        assert_eq!(Header::request(1, false, 0).encode(), raw(1, 0b0001, 0));
        assert_eq!(Header::request(1, true, 8).encode(), raw(1, 0b1001, 8));
        assert_eq!(Header::reply(1, 8).encode(), raw(1, 0b0101, 8));
    }

    #[test]
    fn other_versions_unknown_flags_and_oversized_payloads_are_refused() {
        assert_eq!(Header::parse(&raw(1, 0, 0)), Err(FramingError::Version { request: 1, found: 0 }));
        assert_eq!(Header::parse(&raw(1, 2, 0)), Err(FramingError::Version { request: 1, found: 2 }));
        assert_eq!(Header::parse(&raw(1, 0x11, 0)), Err(FramingError::Flags { request: 1, found: 0x10 }));
        assert_eq!(Header::parse(&raw(1, 1, MAX_PAYLOAD)).unwrap().size, MAX_PAYLOAD);
        assert_eq!(Header::parse(&raw(5, 1, 4097)), Err(FramingError::Size { request: 5, found: 4097 }));
        assert_eq!(Header::parse(&raw(5, 1, u32::MAX)), Err(FramingError::Size { request: 5, found: u32::MAX }));
    }
}
