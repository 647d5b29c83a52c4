//! Status codes of completions.

/// A status field (Base §3.3.3.2.1) without the phase tag: code in bits 0 to 7, code type in 8 to 10, Do Not Retry in
/// 14.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

/// Do Not Retry: the same command would fail again.
const DNR: u16 = 1 << 14;

const fn generic(code: u16) -> Status {
    Status(code | DNR)
}

const fn specific(code: u16) -> Status {
    Status(1 << 8 | code | DNR)
}

impl Status {
    /// Generic (Base §3.3.3.2.1.1).
    pub const SUCCESS: Status = Status(0);
    /// 01h.
    pub const INVALID_OPCODE: Status = generic(0x01);
    /// 02h.
    pub const INVALID_FIELD: Status = generic(0x02);
    /// 04h.
    pub const DATA_TRANSFER: Status = generic(0x04);
    /// 06h: may be tried again.
    pub const INTERNAL: Status = Status(0x06);
    /// 07h.
    pub const ABORT_REQUESTED: Status = Status(0x07);
    /// 0Bh: the namespace or its format is invalid.
    pub const INVALID_NAMESPACE: Status = generic(0x0b);
    /// 0Ch.
    pub const SEQUENCE: Status = generic(0x0c);
    /// 0Dh.
    pub const SGL_SEGMENT: Status = generic(0x0d);
    /// 0Eh.
    pub const SGL_COUNT: Status = generic(0x0e);
    /// 0Fh.
    pub const SGL_DATA_LENGTH: Status = generic(0x0f);
    /// 11h.
    pub const SGL_TYPE: Status = generic(0x11);
    /// 13h.
    pub const PRP_OFFSET: Status = generic(0x13);
    /// 20h.
    pub const WRITE_PROTECTED: Status = generic(0x20);
    /// 80h (NVM §3.1).
    pub const LBA_RANGE: Status = generic(0x80);
    /// 81h (NVM §3.1).
    pub const CAPACITY_EXCEEDED: Status = generic(0x81);

    /// Command specific (Base §3.3.3.2.1.2). 00h.
    pub const CQ_INVALID: Status = specific(0x00);
    /// 01h.
    pub const QUEUE_IDENTIFIER: Status = specific(0x01);
    /// 02h.
    pub const QUEUE_SIZE: Status = specific(0x02);
    /// 03h.
    pub const ABORT_LIMIT: Status = specific(0x03);
    /// 05h.
    pub const EVENT_LIMIT: Status = specific(0x05);
    /// 08h.
    pub const INTERRUPT_VECTOR: Status = specific(0x08);
    /// 09h.
    pub const LOG_PAGE: Status = specific(0x09);
    /// 0Ch.
    pub const QUEUE_DELETION: Status = specific(0x0c);
    /// 0Dh.
    pub const NOT_SAVEABLE: Status = specific(0x0d);
    /// 0Eh.
    pub const NOT_CHANGEABLE: Status = specific(0x0e);
    /// 2Dh: the I/O command set is not supported (Base §5.17).
    pub const COMMAND_SET: Status = specific(0x2d);
    /// 80h (NVM §3.1).
    pub const CONFLICTING_ATTRIBUTES: Status = specific(0x80);
    /// 81h: protection information (NVM §3.1).
    pub const PROTECTION_INFORMATION: Status = specific(0x81);

    /// Media and data integrity (Base §3.3.3.2.1.3). 80h (NVM §3.1).
    pub const WRITE_FAULT: Status = Status(2 << 8 | 0x80);
    /// 81h (NVM §3.1).
    pub const UNRECOVERED_READ: Status = Status(2 << 8 | 0x81);
    /// 85h (NVM §3.1).
    pub const COMPARE_FAILURE: Status = Status(2 << 8 | 0x85 | DNR);

    /// Whether the command ended well.
    pub fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// The code, without its type.
    pub fn code(self) -> u8 {
        self.0 as u8
    }

    /// The code's type: 0 generic, 1 command specific, 2 media.
    pub fn code_type(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }
}
