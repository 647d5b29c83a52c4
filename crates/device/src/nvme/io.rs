//! I/O commands: from a copy of a submission queue entry to what a volume is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use softdpu_memory::{GuestBuffer, View};

use super::abi::io;
use super::command::BROADCAST;
use super::config::{ControllerConfig, NamespaceConfig};
use super::data::word;
use super::{Command, Status};

/// A namespace as all queues of its controller see it.
#[derive(Debug)]
pub(super) struct Namespace {
    pub config: NamespaceConfig,
    /// log2 of the block size.
    pub shift: u32,
    /// Logical blocks.
    pub blocks: AtomicU64,
    /// Whether it is attached to the controller (Base §3.2.1.5): active.
    pub attached: AtomicBool,
}

/// What the controller and the parsers of its queues share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Ascending by namespace identifier.
    pub namespaces: Vec<Namespace>,
    /// Volatile Write Cache, WCE (Base §5.27.1.4).
    pub write_cache: AtomicBool,
    /// Bytes of a transfer at most.
    pub max_transfer: u64,
}

impl Shared {
    pub fn new(config: &ControllerConfig) -> Shared {
        let mut namespaces: Vec<Namespace> = config
            .namespaces
            .iter()
            .map(|namespace| Namespace {
                shift: namespace.block_size.trailing_zeros(),
                blocks: AtomicU64::new(namespace.capacity / u64::from(namespace.block_size)),
                attached: AtomicBool::new(true),
                config: namespace.clone(),
            })
            .collect();
        namespaces.sort_by_key(|namespace| namespace.config.nsid);
        Shared { namespaces, write_cache: AtomicBool::new(true), max_transfer: config.max_transfer.into() }
    }

    /// A namespace that there is, attached or not.
    pub fn find(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces.iter().find(|namespace| namespace.config.nsid == nsid)
    }

    /// A namespace that is attached.
    #[inline]
    pub fn active(&self, nsid: u32) -> Option<&Namespace> {
        self.find(nsid).filter(|namespace| namespace.attached.load(Ordering::Acquire))
    }

    /// Those that are attached, ascending.
    pub fn all_active(&self) -> impl Iterator<Item = &Namespace> {
        self.namespaces.iter().filter(|namespace| namespace.attached.load(Ordering::Acquire))
    }
}

/// What a volume is asked.
#[derive(Debug)]
pub enum NvmeOp {
    /// Volume to guest memory.
    Read(GuestBuffer),
    /// Guest memory to volume.
    Write(GuestBuffer),
    /// All completed writes are on stable storage when it completes.
    Flush,
    /// The range reads as zeroes afterwards; `unmap`: its space may be deallocated.
    WriteZeroes {
        /// DEAC.
        unmap: bool,
    },
    /// The ranges (offset and length in bytes) are not needed any more. There is at least one.
    Discard(Vec<(u64, u64)>),
    /// The range is read, and compared with guest memory: [`Status::COMPARE_FAILURE`] where it differs.
    Compare(GuestBuffer),
    /// The range is read, to see whether it can be.
    Verify,
}

/// A command that is a volume's work. It has been checked against the namespace.
#[derive(Debug)]
pub struct NvmeIo {
    /// The namespaces that it is for.
    pub nsid: u32,
    /// What to do.
    pub op: NvmeOp,
    /// First byte on the volume.
    pub offset: u64,
    /// Bytes; of [`NvmeOp::Discard`] those of all ranges.
    pub len: u64,
    /// On stable storage before it completes: FUA, or no volatile write cache.
    pub durable: bool,
}

/// What a command came to.
#[derive(Debug)]
pub enum NvmeParsed {
    /// A volume has to do it.
    Io(NvmeIo),
    /// It is over.
    Finished(Status),
}

/// The parser of the I/O commands of a controller's queues. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Commands {
    pub(super) shared: Arc<Shared>,
}

impl Commands {
    /// Understands a command of an I/O queue, with guest memory as it is now.
    #[inline]
    pub fn parse(&self, command: &Command, view: &Arc<View>) -> NvmeParsed {
        match self.understand(command, view) {
            Ok(io) => NvmeParsed::Io(io),
            Err(status) => NvmeParsed::Finished(status),
        }
    }

    /// The namespaces that are attached, ascending: what a [flush](NvmeOp::Flush) of all of them is for.
    pub fn active(&self) -> impl Iterator<Item = u32> + '_ {
        self.shared.all_active().map(|namespace| namespace.config.nsid)
    }

    /// About how many bytes a command moves, of namespaces that there are: for shares and limits, before it is parsed.
    #[inline]
    pub fn estimate(&self, command: &Command) -> u64 {
        match command.opcode() {
            io::READ | io::WRITE | io::COMPARE | io::VERIFY => {
                let shift = self.shared.active(command.nsid()).map_or(0, |namespace| namespace.shift);
                (u64::from(command.dword(12) & 0xffff) + 1) << shift
            }
            _ => super::command::COMMAND as u64,
        }
    }

    fn understand(&self, command: &Command, view: &Arc<View>) -> Result<NvmeIo, Status> {
        let opcode = command.opcode();
        if !is_supported(opcode) {
            return Err(Status::INVALID_OPCODE);
        }
        command.check_unfused()?;
        let nsid = command.nsid();
        if opcode == io::FLUSH && nsid == BROADCAST {
            // VWC bits 2:1 are 11b: all namespaces (Base §7.1).
            return Ok(NvmeIo { nsid, op: NvmeOp::Flush, offset: 0, len: 0, durable: false });
        }
        let namespace = match self.shared.active(nsid) {
            Some(namespace) => namespace,
            // Of a namespace that is not attached: Invalid Field (Base §3.2.1.4); others are invalid.
            None if self.shared.find(nsid).is_some() => return Err(Status::INVALID_FIELD),
            None => return Err(Status::INVALID_NAMESPACE),
        };
        let writes = matches!(opcode, io::WRITE | io::WRITE_ZEROES)
            || opcode == io::DATASET && command.dword(11) & io::ATTRIBUTE_DEALLOCATE != 0;
        if writes && namespace.config.read_only {
            return Err(Status::WRITE_PROTECTED);
        }
        match opcode {
            io::FLUSH => Ok(NvmeIo { nsid, op: NvmeOp::Flush, offset: 0, len: 0, durable: false }),
            io::DATASET => self.dataset(command, namespace, view),
            _ => self.range(command, namespace, view),
        }
    }

    /// A command with a first logical block and a number of them.
    #[inline]
    fn range(&self, command: &Command, namespace: &Namespace, view: &Arc<View>) -> Result<NvmeIo, Status> {
        let (opcode, control) = (command.opcode(), command.dword(12));
        if control & io::PRINFO != 0 {
            // The formats have no protection information (NVM §5.2).
            return Err(Status::PROTECTION_INFORMATION);
        }
        let blocks = u64::from(control & 0xffff) + 1;
        let len = blocks << namespace.shift;
        // VSL, too (NVM §4.1.5.2).
        if len > self.shared.max_transfer && opcode != io::WRITE_ZEROES {
            return Err(Status::INVALID_FIELD);
        }
        let offset = namespace.bytes(command.qword(10), blocks)?;
        let fua = control & io::FUA != 0;
        let op = match opcode {
            io::READ => NvmeOp::Read(command.data(view, len)?),
            io::WRITE => NvmeOp::Write(command.data(view, len)?),
            io::COMPARE => NvmeOp::Compare(command.data(view, len)?),
            io::VERIFY => NvmeOp::Verify,
            _ => NvmeOp::WriteZeroes { unmap: control & io::DEALLOCATE != 0 },
        };
        let writes = matches!(opcode, io::WRITE | io::WRITE_ZEROES);
        let durable = writes && (fua || !self.shared.write_cache.load(Ordering::Acquire));
        Ok(NvmeIo { nsid: namespace.config.nsid, op, offset, len, durable })
    }

    /// Dataset Management (NVM §3.2.3).
    fn dataset(&self, command: &Command, namespace: &Namespace, view: &Arc<View>) -> Result<NvmeIo, Status> {
        let count = (command.dword(10) & 0xff) as usize + 1;
        let buffer = command.data(view, (count * io::RANGE) as u64)?;
        if command.dword(11) & io::ATTRIBUTE_DEALLOCATE == 0 {
            // The other attributes are hints.
            return Err(Status::SUCCESS);
        }
        let mut bytes = [0; io::RANGES * io::RANGE];
        let bytes = &mut bytes[..count * io::RANGE];
        buffer.read_at(0, bytes).map_err(|_| Status::DATA_TRANSFER)?;
        let mut ranges: Vec<(u64, u64)> = Vec::with_capacity(count);
        let mut total = 0;
        for range in bytes.chunks_exact(io::RANGE) {
            // Context attributes, length in blocks, first block.
            let (head, first) = range.split_at(8);
            let blocks = word(head) >> 32;
            if blocks == 0 {
                continue;
            }
            let offset = namespace.bytes(word(first), blocks)?;
            let len = blocks << namespace.shift;
            total += len;
            match ranges.last_mut() {
                Some((start, before)) if *start + *before == offset => *before += len,
                _ => ranges.push((offset, len)),
            }
        }
        if ranges.is_empty() || !namespace.config.discard {
            return Err(Status::SUCCESS);
        }
        let durable = !self.shared.write_cache.load(Ordering::Acquire);
        let nsid = namespace.config.nsid;
        Ok(NvmeIo { nsid, op: NvmeOp::Discard(ranges), offset: 0, len: total, durable })
    }
}

impl Namespace {
    /// Byte offset of `blocks` blocks from `lba`, if they are inside.
    #[inline]
    fn bytes(&self, lba: u64, blocks: u64) -> Result<u64, Status> {
        // Acquire: the volume was made larger before.
        let size = self.blocks.load(Ordering::Acquire);
        if lba > size || blocks > size - lba {
            return Err(Status::LBA_RANGE);
        }
        Ok(lba << self.shift)
    }
}

/// Whether there is such an I/O command.
pub(super) fn is_supported(opcode: u8) -> bool {
    matches!(opcode, io::FLUSH | io::WRITE | io::READ | io::COMPARE | io::WRITE_ZEROES | io::DATASET | io::VERIFY)
}
