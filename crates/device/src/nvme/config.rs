//! How an NVMe controller is configured, and which configurations make no sense.

use thiserror::Error;

use crate::block::Serial;

/// I/O queue pairs that a controller has at most.
pub const MAX_QUEUES: u16 = 64;
/// Entries of a queue at most.
pub const MAX_ENTRIES: u16 = 4096;
/// Namespaces of a controller at most.
pub const MAX_NAMESPACES: usize = 256;

/// The configuration of a controller. [`ControllerConfig::new`] has the defaults; all fields may be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// Serial number (Identify, SN).
    pub serial: Serial,
    /// NVM subsystem qualified name (Identify, SUBNQN), at most 223 bytes.
    pub nqn: String,
    /// Controller identifier in its subsystem (Identify, CNTLID).
    pub id: u16,
    /// I/O queue pairs, 1 to [`MAX_QUEUES`].
    pub queues: u16,
    /// Entries of each queue at most (CAP.MQES + 1): 2 to [`MAX_ENTRIES`].
    pub entries: u16,
    /// Interrupt vectors, 1 to 65: what the MSI-X capability has.
    pub vectors: u16,
    /// Bytes of one transfer: 4,096 times a power of two, at most 1 MiB less than 1,024 pieces of memory (MDTS).
    pub max_transfer: u32,
    /// Offers shadow doorbells (OACS bit 8).
    pub shadow_doorbells: bool,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceConfig>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Namespace identifier, 1 or more.
    pub nsid: u32,
    /// Bytes; a multiple of the block size.
    pub capacity: u64,
    /// Bytes of a logical block: 512 or 4,096.
    pub block_size: u32,
    /// Refuses writes (NSATTR bit 0).
    pub read_only: bool,
    /// NGUID: the same through each controller. Not all zeroes.
    pub nguid: [u8; 16],
    /// Dataset Management frees space; otherwise it does nothing.
    pub discard: bool,
}

impl ControllerConfig {
    /// 4 queue pairs of up to 1,024 entries, a vector for each and one for the admin queue, 512 KiB a transfer, shadow
    /// doorbells.
    pub fn new(serial: Serial, nqn: impl Into<String>) -> ControllerConfig {
        ControllerConfig {
            serial,
            nqn: nqn.into(),
            id: 1,
            queues: 4,
            entries: 1024,
            vectors: 5,
            max_transfer: 512 << 10,
            shadow_doorbells: true,
            namespaces: Vec::new(),
        }
    }

    /// Whether it makes sense; the first thing found that does not.
    ///
    /// # Errors
    /// [`ControllerConfigError`] names the field, the value and what is expected.
    pub fn check(&self) -> Result<(), ControllerConfigError> {
        use ControllerConfigError as E;
        let range = |field, value: u32, least: u32, most: u32| {
            if (least..=most).contains(&value) { Ok(()) } else { Err(E::Range { field, value, least, most }) }
        };
        range("queues", self.queues.into(), 1, MAX_QUEUES.into())?;
        range("entries", self.entries.into(), 2, MAX_ENTRIES.into())?;
        range("vectors", self.vectors.into(), 1, u32::from(MAX_QUEUES) + 1)?;
        range("nqn length", self.nqn.len() as u32, 1, 223)?;
        if !self.max_transfer.is_power_of_two() || !(4096..=1 << 20).contains(&self.max_transfer) {
            return Err(E::MaxTransfer(self.max_transfer));
        }
        if self.namespaces.len() > MAX_NAMESPACES {
            return Err(E::Namespaces(self.namespaces.len()));
        }
        for (at, namespace) in self.namespaces.iter().enumerate() {
            let NamespaceConfig { nsid, capacity, block_size, .. } = *namespace;
            if nsid == 0 || nsid as usize > MAX_NAMESPACES {
                return Err(E::NamespaceId(nsid));
            }
            if self.namespaces[..at].iter().any(|other| other.nsid == nsid) {
                return Err(E::Twice(nsid));
            }
            if block_size != 512 && block_size != 4096 {
                return Err(E::BlockSize { nsid, block_size });
            }
            if capacity == 0 || !capacity.is_multiple_of(block_size.into()) {
                return Err(E::Capacity { nsid, capacity, block_size });
            }
        }
        Ok(())
    }
}

impl NamespaceConfig {
    /// A writable namespace of `capacity` bytes in blocks of 512, with an NGUID of this name: the same text gives the
    /// same one.
    pub fn new(nsid: u32, capacity: u64, name: &str) -> NamespaceConfig {
        NamespaceConfig { nsid, capacity, block_size: 512, read_only: false, nguid: nguid(name), discard: true }
    }
}

/// An identifier from a name: FNV-1a of 128 bits.
fn nguid(name: &str) -> [u8; 16] {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = name.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    (hash | 1).to_be_bytes()
}

/// Why a configuration makes no sense.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ControllerConfigError {
    /// A number out of its range.
    #[error("{field} is {value}; an NVMe controller here has {least} to {most}")]
    Range {
        /// Which one.
        field: &'static str,
        /// As given.
        value: u32,
        /// The least.
        least: u32,
        /// The most.
        most: u32,
    },
    /// MDTS cannot say it.
    #[error("max_transfer is {0} bytes; it is a power of two from 4096 to 1048576")]
    MaxTransfer(u32),
    /// Too many namespaces.
    #[error("{0} namespaces; a controller has at most 256")]
    Namespaces(usize),
    /// Not an identifier.
    #[error("namespace identifier {0} is not one of 1 to 256")]
    NamespaceId(u32),
    /// The same identifier twice.
    #[error("namespace {0} is there twice")]
    Twice(u32),
    /// A format that is not offered.
    #[error("namespace {nsid} has blocks of {block_size} bytes; 512 and 4096 are possible")]
    BlockSize {
        /// The namespace.
        nsid: u32,
        /// As given.
        block_size: u32,
    },
    /// Not whole blocks.
    #[error("namespace {nsid} has {capacity} bytes, which is not a positive multiple of its block size {block_size}")]
    Capacity {
        /// The namespace.
        nsid: u32,
        /// As given.
        capacity: u64,
        /// As given.
        block_size: u32,
    },
}
