//! Operations of a disk.

/// What to do with a range of a disk (virtio 1.3 §5.2.6, `VIRTIO_BLK_T_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOp {
    /// Disk to guest memory.
    Read,
    /// Guest memory to disk.
    Write,
    /// All writes that completed before this was submitted are on stable storage when it completes. It has no range.
    Flush,
    /// The content of the range is no longer needed. What is read from it afterwards is either the old content or
    /// zeroes.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// Whether the space may be deallocated.
        unmap: bool,
    },
}

impl BlockOp {
    /// Whether it changes the disk.
    #[inline]
    pub fn is_write(self) -> bool {
        matches!(self, BlockOp::Write | BlockOp::Discard | BlockOp::WriteZeroes { .. })
    }
}
