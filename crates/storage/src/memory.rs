//! The `memory` volume: a memfd, mapped. The broker keeps the descriptor, so the bytes outlive this process.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use softdpu_memory::{GuestAddress, GuestBuffer, Mapping, Region, UserAddress, View};
use softdpu_sys::iovec;

use crate::{BlockOp, Broker, IoError, Request, VolumeError};

/// From this size on, discarded ranges go back to the kernel; smaller ones are cheaper to overwrite.
const PUNCH_FROM: u64 = 64 << 10;

pub(crate) struct Memory {
    file: OwnedFd,
    /// All of it; replaced by [`Memory::grow`]. Attachments have their own `Arc`.
    whole: Mutex<Arc<GuestBuffer>>,
}

impl Memory {
    pub(crate) fn open(name: &str, size: u64, broker: &dyn Broker) -> Result<(Memory, u64), VolumeError> {
        let os = |what: &str, source: std::io::Error| VolumeError::os(name, what, source);
        let key = kept_key(name);
        let kept = broker.kept(&key).map_err(|e| os("ask for its kept memory", e))?;
        let file = match kept.into_iter().find(|(other, _)| *other == key) {
            Some((_, file)) => file,
            None => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                let file = rustix::fs::memfd_create(format!("softdpu {name}").as_str(), flags)
                    .map_err(|e| os("make its memory", e.into()))?;
                // Sealed: no holder of the descriptor can truncate the memory.
                rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)
                    .and_then(|()| rustix::fs::ftruncate(&file, size))
                    .map_err(|e| os("size its memory", e.into()))?;
                broker.keep(&key, file.as_fd()).map_err(|e| os("have its memory kept", e))?;
                file
            }
        };
        let had = rustix::fs::fstat(&file).map_err(|e| os("look at its memory", e.into()))?.st_size as u64;
        if had < size {
            rustix::fs::ftruncate(&file, size).map_err(|e| os("grow its memory", e.into()))?;
        }
        // It may have been grown at run time to more than the configuration says; nothing is ever cut off.
        let size = had.max(size);
        let whole = Mutex::new(map(name, &file, size)?);
        Ok((Memory { file, whole }, size))
    }

    pub(crate) fn grow(&self, name: &str, size: u64) -> Result<(), VolumeError> {
        let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        rustix::fs::ftruncate(&self.file, size).map_err(|e| VolumeError::os(name, "grow its memory", e))?;
        *whole = map(name, &self.file, size)?;
        Ok(())
    }

    pub(crate) fn whole(&self) -> Arc<GuestBuffer> {
        Arc::clone(&self.whole.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Does `len` bytes of a request, within the volume's size as checked before, from `done` bytes into it on.
    /// `whole` is the caller's copy, made anew where the volume has grown beyond it.
    #[inline]
    pub(crate) fn run(
        &self,
        whole: &mut Arc<GuestBuffer>,
        request: &Request,
        done: u64,
        len: u64,
    ) -> Result<(), IoError> {
        let Request { op, offset, buffer, data, .. } = request;
        let offset = *offset + done;
        let Ok(bytes) = usize::try_from(len) else { return Err(IoError::OutOfRange) };
        let at = || buffer.len_of(0..data.start) + done;
        let run = |whole: &GuestBuffer| match op {
            BlockOp::Read => iovec::copy(whole, offset, buffer, at(), bytes),
            BlockOp::Write => iovec::copy(buffer, at(), whole, offset, bytes),
            BlockOp::Flush => true,
            BlockOp::Discard | BlockOp::WriteZeroes { .. } => self.zero(whole, offset, len),
        };
        if run(whole) {
            return Ok(());
        }
        *whole = self.whole();
        if run(whole) { Ok(()) } else { Err(IoError::Device { errno: rustix::io::Errno::INVAL.raw_os_error() }) }
    }

    fn zero(&self, whole: &GuestBuffer, offset: u64, len: u64) -> bool {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        (len >= PUNCH_FROM && rustix::fs::fallocate(&self.file, punch, offset, len).is_ok())
            || iovec::fill(whole, offset, len as usize, 0)
    }
}

/// The name under which the broker keeps a volume's bytes.
pub(crate) fn kept_key(name: &str) -> String {
    format!("memory/{name}")
}

fn map(name: &str, file: &OwnedFd, size: u64) -> Result<Arc<GuestBuffer>, VolumeError> {
    let refused = |e: String| VolumeError::spec(name, format!("its memory of {size} bytes cannot be mapped: {e}"));
    let mapping = Mapping::file(file.as_fd(), 0, size).map_err(|e| refused(e.to_string()))?;
    let region = Region::new(GuestAddress(0), UserAddress(0), size, mapping, 0);
    let view = View::new(vec![region]).map_err(|e| refused(e.to_string()))?;
    view.buffer(GuestAddress(0), size).map(Arc::new).map_err(|e| refused(e.to_string()))
}
