//! What a TAP's interface may leave undone.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::at;
use crate::port::PortError;

/// What an interface may leave to the next sender of the frame: unfinished checksums and large frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Checksums of TCP and UDP.
    pub csum: bool,
    /// Segmentation of TCP over IPv4.
    pub tso4: bool,
    /// Segmentation of TCP over IPv6.
    pub tso6: bool,
    /// Segmentation of TCP with ECN.
    pub tso_ecn: bool,
    /// Segmentation of UDP, both IP versions (Linux 6.2).
    pub uso: bool,
}

impl Offloads {
    /// All of them.
    pub const ALL: Offloads = Offloads { csum: true, tso4: true, tso6: true, tso_ecn: true, uso: true };

    /// As TUNSETOFFLOAD wants them: segmentation needs checksums.
    fn bits(self) -> libc::c_uint {
        let mut bits = 0;
        let tso = self.tso4 || self.tso6;
        for (wanted, bit) in [
            (self.csum, libc::TUN_F_CSUM),
            (self.csum && self.tso4, libc::TUN_F_TSO4),
            (self.csum && self.tso6, libc::TUN_F_TSO6),
            (self.csum && tso && self.tso_ecn, libc::TUN_F_TSO_ECN),
            (self.csum && self.uso, libc::TUN_F_USO4 | libc::TUN_F_USO6),
        ] {
            if wanted {
                bits |= bit;
            }
        }
        bits
    }

    /// What is left of them after the rules in `bits`.
    fn effective(self) -> Offloads {
        let csum = self.csum;
        let (tso4, tso6) = (csum && self.tso4, csum && self.tso6);
        Offloads { csum, tso4, tso6, tso_ecn: (tso4 || tso6) && self.tso_ecn, uso: csum && self.uso }
    }
}

/// Sets what the kernel has of `wanted`: older ones know no USO.
pub(super) fn negotiate(fd: BorrowedFd<'_>, name: &str, wanted: Offloads) -> Result<Offloads, PortError> {
    for offloads in [wanted, Offloads { uso: false, ..wanted }] {
        // SAFETY: TUNSETOFFLOAD takes its bits by value.
        let answer =
            unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, libc::c_ulong::from(offloads.bits())) };
        if answer == 0 {
            return Ok(offloads.effective());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(at(name, "setting its offloads", error));
        }
    }
    let (name, what) = (name.to_owned(), "segmentation and checksum offload on TAP");
    Err(PortError::Unsupported { name, what, remedy: "use Linux 5.15 or later" })
}
