//! From descriptors to a checked, pinned [`Chain`]: what both formats have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use softdpu_memory::{AccessError, GuestAddress, GuestBuffer, View};
use softdpu_sys::{IoMemory, prefetch};

use crate::layout::{DESCRIPTOR, Descriptor, INDIRECT, NEXT, PackedDescriptor, SplitDescriptor, WRITE};
use crate::{Chain, Format, QueueError, Sink};

/// What chains of a queue may be.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub format: Format,
    pub max_pieces: usize,
    pub indirect: bool,
}

/// The most entries of an indirect table that are looked at: `next` has 16 bits (virtio 1.3 §2.7.5).
const TABLE_ENTRIES: u32 = 1 << 16;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Fetches the table that a descriptor some requests ahead may point to. Nothing is believed: it is a hint to the
/// processor, and the descriptor is read anew when its turn comes.
#[inline(always)]
pub(crate) fn prefetch_table(view: &View, addr: u64, flags: u16) {
    if flags & INDIRECT != 0
        && let Some(table) = view.contiguous(GuestAddress(addr), DESCRIPTOR as u64)
    {
        prefetch::read(table);
    }
}

/// Appends the chain of one descriptor with its memory in one piece, as most of networks are. False, and nothing has
/// happened, for any other, and for what is wrong: [`Walk`] tells what.
#[inline(always)]
pub(crate) fn single(view: &Arc<View>, id: u16, addr: u64, len: u32, flags: u16, out: &mut impl Sink) -> bool {
    if flags & (INDIRECT | NEXT) != 0 {
        return false;
    }
    let chain = out.add(view);
    let Some(base) = chain.buffer.set(GuestAddress(addr), len.into()) else {
        out.cut_last();
        return false;
    };
    let is_writable = flags & WRITE != 0;
    (chain.id, chain.descriptors, chain.readable) = (id, 1, usize::from(!is_writable));
    // Nothing is read of memory that can be written, as a chain of one has no other part. A small frame behind its
    // header reaches into the second line.
    let second = base.wrapping_add(LINE);
    if is_writable {
        prefetch::write(base);
        prefetch::write(second);
    } else {
        prefetch::read(base);
        prefetch::read(second);
    }
    true
}

/// What a device does first is to read the header, which lies in the first piece, still in the driver's cache. What it
/// does last is to write behind the last byte asked for: a status, a header's count.
#[inline(always)]
fn fetch(buffer: &GuestBuffer, is_writable: bool) {
    if let [first, ..] = buffer.iovecs() {
        prefetch::read(first.base());
    }
    if is_writable && let [.., last] = buffer.iovecs() {
        prefetch::write(last.base().wrapping_add(last.len().wrapping_sub(1)));
    }
}

/// A chain that is being walked, into where it will stay.
pub(crate) struct Walk<'a> {
    view: &'a Arc<View>,
    limits: Limits,
    /// For messages: head descriptor or first slot.
    head: u16,
    chain: &'a mut Chain,
    writable: bool,
    descriptors: usize,
    total: u64,
}

impl<'a> Walk<'a> {
    /// Starts a chain at the end of `out`. After an error the caller takes it off again.
    #[inline(always)]
    pub fn new(view: &'a Arc<View>, limits: Limits, head: u16, out: &'a mut impl Sink) -> Self {
        let chain = out.add(view);
        chain.buffer.clear();
        chain.readable = 0;
        Walk { view, limits, head, chain, writable: false, descriptors: 0, total: 0 }
    }

    /// Adds the memory of one descriptor that is not indirect.
    #[inline(always)]
    fn add(&mut self, addr: u64, len: u32, flags: u16) -> Result<(), QueueError> {
        let head = self.head;
        let limit = self.limits.max_pieces;
        self.descriptors += 1;
        if self.descriptors > limit {
            return Err(QueueError::TooLong { head, limit });
        }
        self.total += u64::from(len);
        if self.total > u64::from(u32::MAX) {
            return Err(QueueError::TooManyBytes { head, len: self.total });
        }
        if flags & WRITE != 0 {
            self.writable = true;
        } else if self.writable {
            return Err(QueueError::ReadableAfterWritable { head });
        }
        // Where regions meet, one descriptor is several pieces: as many as its front end likes.
        let fits = self.chain.buffer.append_at_most(GuestAddress(addr), u64::from(len), limit);
        if !fits.map_err(|source| QueueError::Address { head, source })? {
            return Err(QueueError::TooLong { head, limit });
        }
        if !self.writable {
            self.chain.readable = self.chain.buffer.pieces();
        }
        Ok(())
    }

    /// Adds a descriptor of the ring, and all of the table it may point to.
    #[inline(always)]
    pub fn ring_descriptor(&mut self, addr: u64, len: u32, flags: u16) -> Result<(), QueueError> {
        if flags & INDIRECT == 0 { self.add(addr, len, flags) } else { self.table(addr, len, flags) }
    }

    fn table(&mut self, addr: u64, len: u32, flags: u16) -> Result<(), QueueError> {
        let head = self.head;
        if !self.limits.indirect {
            return Err(QueueError::IndirectNotNegotiated { head });
        }
        if flags & NEXT != 0 {
            return Err(QueueError::IndirectWithNext { head });
        }
        let limit = TABLE_ENTRIES * DESCRIPTOR as u32;
        if len == 0 || len > limit || !len.is_multiple_of(DESCRIPTOR as u32) {
            return Err(QueueError::IndirectLength { head, len, limit });
        }
        let refused = QueueError::Address { head, source: AccessError { address: addr, len: u64::from(len) } };
        let table = Table::new(self.view, GuestAddress(addr), len).ok_or(refused)?;
        let entries = table.entries;
        match self.limits.format {
            Format::Split => self.split_table(&table, entries),
            Format::Packed => {
                // Packed tables have neither NEXT nor `next`: all entries, in order (virtio 1.3 §2.8.7).
                if entries as usize > self.limits.max_pieces {
                    return Err(QueueError::TooLong { head, limit: self.limits.max_pieces });
                }
                for entry in 0..entries {
                    let descriptor: PackedDescriptor = table.read(entry).ok_or(refused)?;
                    if descriptor.flags & INDIRECT != 0 {
                        return Err(QueueError::IndirectInIndirect { head, entry: entry as u16 });
                    }
                    self.add(descriptor.addr, descriptor.len, descriptor.flags)?;
                }
                Ok(())
            }
        }
    }

    #[inline(always)]
    fn split_table(&mut self, table: &Table<'_>, entries: u32) -> Result<(), QueueError> {
        let head = self.head;
        let mut entry = 0u32;
        let mut seen = 0u32;
        loop {
            let descriptor: SplitDescriptor = table.read(entry).ok_or(QueueError::Address {
                head,
                source: AccessError { address: table.address.0, len: u64::from(entries) * DESCRIPTOR as u64 },
            })?;
            let flags = descriptor.flags;
            if flags & INDIRECT != 0 {
                return Err(QueueError::IndirectInIndirect { head, entry: entry as u16 });
            }
            self.add(descriptor.addr, descriptor.len, flags)?;
            if flags & NEXT == 0 {
                return Ok(());
            }
            seen += 1;
            if seen >= entries {
                return Err(QueueError::Loop { head, size: entries });
            }
            entry = u32::from(descriptor.next);
            if entry >= entries {
                return Err(QueueError::NextOutOfRange { head, next: descriptor.next, size: entries });
            }
        }
    }

    /// Completes the chain.
    #[inline(always)]
    pub fn finish(self, id: u16, descriptors: u16) -> Result<(), QueueError> {
        if self.total == 0 {
            return Err(QueueError::Empty { head: self.head });
        }
        fetch(&self.chain.buffer, self.writable);
        self.chain.id = id;
        self.chain.descriptors = descriptors;
        Ok(())
    }
}

/// An indirect table, read in place while the view is held.
struct Table<'a> {
    view: &'a View,
    address: GuestAddress,
    entries: u32,
    /// Where it lies, if in one piece.
    base: Option<*const u8>,
}

impl<'a> Table<'a> {
    /// None where any byte of it is outside.
    #[inline(always)]
    fn new(view: &'a Arc<View>, address: GuestAddress, len: u32) -> Option<Self> {
        let base = view.contiguous(address, u64::from(len));
        if base.is_none() {
            view.buffer(address, u64::from(len)).ok()?;
        }
        Some(Table { view, address, entries: len / DESCRIPTOR as u32, base })
    }

    /// Entry `entry`, each byte read once. None where it is outside the view.
    #[inline(always)]
    fn read<D: Descriptor>(&self, entry: u32) -> Option<D> {
        debug_assert!(entry < self.entries);
        let offset = entry as usize * DESCRIPTOR;
        match self.base {
            Some(base) if base.cast::<AtomicU64>().is_aligned() && entry < self.entries => {
                let words = base.wrapping_add(offset).cast::<AtomicU64>();
                // SAFETY: entry `entry` is inside the `entries * 16` bytes that `contiguous` found, aligned (just
                // checked, and 16 is a multiple of 8), mapped for as long as the view is borrowed; shared memory is
                // accessed as atomics.
                let (addr, meta) = unsafe { ((*words).load(Relaxed), (*words.add(1)).load(Relaxed)) };
                Some(D::from_words(addr, meta))
            }
            _ => self.read_bytes(offset as u64),
        }
    }

    /// Across regions, or not aligned (the specification asks for no alignment of these tables).
    #[cold]
    fn read_bytes<D: Descriptor>(&self, offset: u64) -> Option<D> {
        let mut bytes = [0u8; DESCRIPTOR];
        for (at, byte) in bytes.iter_mut().enumerate() {
            let address = self.address.0.checked_add(offset + at as u64)?;
            let pointer = self.view.contiguous(GuestAddress(address), 1)?;
            // SAFETY: one byte that `contiguous` found, mapped while the view is borrowed.
            *byte = unsafe { (*pointer.cast::<AtomicU8>()).load(Relaxed) };
        }
        let (addr, meta) = bytes.split_at(8);
        Some(D::from_words(u64::from_le_bytes(addr.try_into().ok()?), u64::from_le_bytes(meta.try_into().ok()?)))
    }
}
