//! Numbers of NVMe, with the section that gives them: *Base* is NVM Express Base Specification 2.0, *NVM* is NVM
//! Command Set 1.0, *PCIe* is NVMe over PCIe Transport 1.0.

/// Properties: offsets in BAR0 (Base §3.1.3).
pub mod register {
    /// Controller Capabilities, 64 bits (§3.1.3.1).
    pub const CAP: u64 = 0x00;
    /// Version (§3.1.3.2).
    pub const VS: u64 = 0x08;
    /// Interrupt Mask Set (§3.1.3.3).
    pub const INTMS: u64 = 0x0c;
    /// Interrupt Mask Clear (§3.1.3.4).
    pub const INTMC: u64 = 0x10;
    /// Controller Configuration (§3.1.3.5).
    pub const CC: u64 = 0x14;
    /// Controller Status (§3.1.3.6).
    pub const CSTS: u64 = 0x1c;
    /// Admin Queue Attributes (§3.1.3.8).
    pub const AQA: u64 = 0x24;
    /// Admin Submission Queue Base Address, 64 bits (§3.1.3.9).
    pub const ASQ: u64 = 0x28;
    /// Admin Completion Queue Base Address, 64 bits (§3.1.3.10).
    pub const ACQ: u64 = 0x30;
    /// Controller Ready Timeouts.
    pub const CRTO: u64 = 0x68;
    /// Submission Queue 0 Tail Doorbell; the others follow (PCIe §3.1.2.1).
    pub const DOORBELLS: u64 = 0x1000;

    /// CC.EN.
    pub const CC_EN: u32 = 1;
    /// CSTS.RDY.
    pub const CSTS_RDY: u32 = 1;
    /// CSTS.CFS: Controller Fatal Status.
    pub const CSTS_CFS: u32 = 1 << 1;
    /// CSTS.SHST, shift.
    pub const CSTS_SHST: u32 = 2;
}

/// Version 2.0 (Base §3.1.3.2).
pub const VERSION: u32 = 0x0002_0000;

/// The only memory page size: CAP.MPSMIN and CAP.MPSMAX are 0 (Base §3.1.3.1).
pub const PAGE: u64 = 4096;

/// Admin command opcodes (Base §5).
pub mod admin {
    /// Delete I/O Submission Queue (§5.7).
    pub const DELETE_SQ: u8 = 0x00;
    /// Create I/O Submission Queue (§5.5).
    pub const CREATE_SQ: u8 = 0x01;
    /// Get Log Page (§5.16).
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O Completion Queue (§5.6).
    pub const DELETE_CQ: u8 = 0x04;
    /// Create I/O Completion Queue (§5.4).
    pub const CREATE_CQ: u8 = 0x05;
    /// Identify (§5.17).
    pub const IDENTIFY: u8 = 0x06;
    /// Abort (§5.1).
    pub const ABORT: u8 = 0x08;
    /// Set Features (§5.27).
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features (§5.15).
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request (§5.2).
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Doorbell Buffer Config (§5.11).
    pub const DOORBELL_BUFFER: u8 = 0x7c;
}

/// NVM command opcodes (NVM §3.2; Flush: Base §7.1).
pub mod io {
    /// Flush (Base §7.1).
    pub const FLUSH: u8 = 0x00;
    /// Write (§3.2.6).
    pub const WRITE: u8 = 0x01;
    /// Read (§3.2.4).
    pub const READ: u8 = 0x02;
    /// Compare (§3.2.1).
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes (§3.2.8).
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management (§3.2.3).
    pub const DATASET: u8 = 0x09;
    /// Verify (§3.2.5).
    pub const VERIFY: u8 = 0x0c;

    /// FUA, in CDW12 (§3.2.6).
    pub const FUA: u32 = 1 << 30;
    /// DEAC, in CDW12 of Write Zeroes (§3.2.8).
    pub const DEALLOCATE: u32 = 1 << 25;
    /// PRINFO, in CDW12: protection information, which no namespace here has (§3.2.6).
    pub const PRINFO: u32 = 0xf << 26;
    /// AD, in CDW11 of Dataset Management (§3.2.3).
    pub const ATTRIBUTE_DEALLOCATE: u32 = 1 << 2;
    /// The most ranges of Dataset Management: NR has 8 bits and is 0's based (§3.2.3).
    pub const RANGES: usize = 256;
    /// Bytes of such a range (§3.2.3).
    pub const RANGE: usize = 16;
}

/// Feature identifiers (Base §5.27.1; NVM §4.1.3).
pub mod feature {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power Management.
    pub const POWER: u8 = 0x02;
    /// Temperature Threshold.
    pub const TEMPERATURE: u8 = 0x04;
    /// Error Recovery (NVM §4.1.3.2).
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile Write Cache.
    pub const WRITE_CACHE: u8 = 0x06;
    /// Number of Queues.
    pub const QUEUES: u8 = 0x07;
    /// Interrupt Coalescing.
    pub const COALESCING: u8 = 0x08;
    /// Interrupt Vector Configuration.
    pub const VECTOR: u8 = 0x09;
    /// Write Atomicity Normal (NVM §4.1.3.3).
    pub const ATOMICITY: u8 = 0x0a;
    /// Asynchronous Event Configuration.
    pub const EVENTS: u8 = 0x0b;
    /// Timestamp.
    pub const TIMESTAMP: u8 = 0x0e;
    /// Host Behavior Support.
    pub const HOST_BEHAVIOR: u8 = 0x16;
    /// Host Identifier.
    pub const HOST_ID: u8 = 0x81;
}

/// Log page identifiers (Base §5.16.1).
pub mod log {
    /// Supported Log Pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Error Information.
    pub const ERRORS: u8 = 0x01;
    /// SMART / Health Information.
    pub const HEALTH: u8 = 0x02;
    /// Firmware Slot Information.
    pub const FIRMWARE: u8 = 0x03;
    /// Changed Namespace List.
    pub const CHANGED: u8 = 0x04;
    /// Commands Supported and Effects.
    pub const EFFECTS: u8 = 0x05;
    /// Feature Identifiers Supported and Effects.
    pub const FEATURES: u8 = 0x12;
}

/// Asynchronous events (Base §5.2): type, information, log page.
pub mod event {
    /// Error status.
    pub const ERROR: u8 = 0;
    /// Notice.
    pub const NOTICE: u8 = 2;
    /// Error: write to a doorbell register of a queue that does not exist.
    pub const INVALID_DOORBELL: u8 = 0;
    /// Error: invalid doorbell write value.
    pub const INVALID_DOORBELL_VALUE: u8 = 1;
    /// Notice: the attributes of a namespace, or the list of active ones, have changed.
    pub const NAMESPACES_CHANGED: u8 = 0;
    /// Asynchronous Event Configuration and OAES: Namespace Attribute Notices (§5.27.1.8).
    pub const ENABLE_NAMESPACES: u32 = 1 << 8;
}
