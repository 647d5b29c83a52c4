//! A submission queue entry.

use softdpu_memory::GuestBuffer;

use super::Status;

/// Bytes of a submission queue entry (Base §3.3.3.1).
pub const COMMAND: usize = 64;

/// Namespace identifier of all namespaces (Base §3.2.1.2).
pub const BROADCAST: u32 = 0xffff_ffff;

/// A submission queue entry (Base §3.3.3.1): a copy that nobody else can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command(pub [u8; COMMAND]);

impl Command {
    /// The first 64 bytes of `buffer`, which is a copy of a command. A shorter one is followed by zeroes.
    #[inline]
    pub fn read(buffer: &GuestBuffer) -> Command {
        let mut bytes = [0; COMMAND];
        // The queue hands out whole ones.
        let _ = buffer.read_at(0, &mut bytes);
        Command(bytes)
    }

    /// Command dword `index`, 0 to 15.
    #[inline]
    pub fn dword(&self, index: usize) -> u32 {
        let mut word = [0; 4];
        if let Some(bytes) = self.0.get(index * 4..index * 4 + 4) {
            word.copy_from_slice(bytes);
        }
        u32::from_le_bytes(word)
    }

    /// Dwords `index` (low) and `index + 1`.
    #[inline]
    pub fn qword(&self, index: usize) -> u64 {
        u64::from(self.dword(index)) | u64::from(self.dword(index + 1)) << 32
    }

    /// Opcode: CDW0 bits 0 to 7.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Command Identifier: CDW0 bits 16 to 31.
    pub fn id(&self) -> u16 {
        u16::from_le_bytes([self.0[2], self.0[3]])
    }

    /// Namespace Identifier: dword 1.
    #[inline]
    pub fn nsid(&self) -> u32 {
        self.dword(1)
    }

    /// PSDT: CDW0 bits 14 and 15. 0: PRPs; 1, 2: SGLs.
    #[inline]
    pub fn psdt(&self) -> u8 {
        self.0[1] >> 6
    }

    /// Checks FUSE, CDW0 bits 8 and 9: no fused operation is supported (Identify, FUSES 0).
    #[inline]
    pub(super) fn check_unfused(&self) -> Result<(), Status> {
        if self.0[1] & 3 == 0 { Ok(()) } else { Err(Status::INVALID_FIELD) }
    }

    /// As an admin command of a PCIe controller, which has PRPs and is not fused (Base §4.1.2).
    pub(super) fn check_admin(&self) -> Result<(), Status> {
        self.check_unfused()?;
        if self.psdt() == 0 { Ok(()) } else { Err(Status::INVALID_FIELD) }
    }
}
