//! The memory of an AF_XDP socket's frames.

use rustix::io::Errno;

use crate::port::mapping::Mapping;

/// Bytes of a chunk, which holds one frame: a page, which every driver takes.
pub(super) const CHUNK: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Chunks that frames are received into, then chunks that frames are sent from. At any time a chunk is the kernel's or
/// ours; only ours are ever referred to.
pub(super) struct Umem {
    mapping: Mapping,
    huge: bool,
}

impl Umem {
    /// Memory for `chunks` chunks: in huge pages, if the system has that many free.
    pub(super) fn new(chunks: usize) -> Result<Self, Errno> {
        let len = (chunks * CHUNK).next_multiple_of(HUGE_PAGE);
        if let Ok(mapping) = Mapping::anonymous(len, true) {
            return Ok(Umem { mapping, huge: true });
        }
        Ok(Umem { mapping: Mapping::anonymous(len, false)?, huge: false })
    }

    pub(super) fn is_huge(&self) -> bool {
        self.huge
    }

    /// Its registration with the kernel.
    pub(super) fn registration(&self) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.mapping.base().expose_provenance() as u64,
            len: self.mapping.len() as u64,
            chunk_size: CHUNK as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        }
    }

    /// `len` bytes from `address` on, if they are in one chunk.
    ///
    /// # Safety
    /// The chunk is ours and nothing else refers to it for as long as the slice lives.
    pub(super) unsafe fn bytes<'a>(&self, address: u64, len: usize) -> Option<&'a mut [u8]> {
        let address = usize::try_from(address).ok()?;
        if address >= self.mapping.len() || address % CHUNK + len > CHUNK {
            return None;
        }
        // SAFETY: inside the mapping, which is a whole number of chunks; initialised (anonymous memory, and what the
        // kernel wrote); exclusive by the caller's promise.
        Some(unsafe { std::slice::from_raw_parts_mut(self.mapping.base().add(address), len) })
    }
}
