//! Where things are in the file.

use softdpu_sys::words::OthersWords;
use thiserror::Error;

/// Words before the chains.
const HEADER: usize = 16;
/// "softdpu" and the format of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"softdpu\x01");
/// Most words of a file: 8 GiB.
pub(crate) const MOST_WORDS: usize = 1 << 30;

/// What records are, and how many words each of their parts has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Of which kind, with its version: what another kind or version wrote is not read.
    pub kind: u64,
    /// Words that stay the same.
    pub fixed: usize,
    /// Words that change.
    pub tail: usize,
}

/// Why what a predecessor wrote is not read.
#[derive(Debug, Error)]
pub enum NotRead {
    /// It cannot be mapped.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// Another release wrote it.
    #[error("it is of another format")]
    Format,
    /// Its lengths contradict each other.
    #[error("it is no table")]
    Layout,
}

/// The numbers of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub format: Format,
    /// A power of two; each has a lock where the file is written, and records and chains of its own.
    pub shards: usize,
    /// Records of a shard.
    pub slots: usize,
    /// Chains of a shard, a power of two.
    pub chains: usize,
    /// For hashes: what is in a record may have been chosen so as to collide.
    pub seed: [u64; 2],
}

/// No record: others stand as their number and 1.
pub(crate) const NONE: u32 = 0;

/// The links of a record, and its chain's number, in a word each.
pub(crate) const LINKS: usize = 0;
pub(crate) const CHAIN: usize = 1;
pub(crate) const FIXED_CHECK: usize = 2;
pub(crate) const FIXED: usize = 3;

impl Layout {
    pub fn record_words(&self) -> usize {
        FIXED + self.format.fixed + 1 + self.format.tail
    }

    pub fn tail_check(&self) -> usize {
        FIXED + self.format.fixed
    }

    pub fn words(&self) -> Option<usize> {
        let records = self.shards.checked_mul(self.slots)?.checked_mul(self.record_words())?;
        let before = self.shards.checked_mul(self.chains.checked_add(1)?)?.checked_add(HEADER)?;
        let words = records.checked_add(before)?;
        (words <= MOST_WORDS && self.records() < u32::MAX as usize).then_some(words)
    }

    /// How many there can be.
    pub fn records(&self) -> usize {
        self.shards * self.slots
    }

    /// The word that says how many records of a shard were ever used.
    pub fn used(&self, shard: usize) -> usize {
        HEADER + shard
    }

    /// The word of a chain, by its number among those of all shards.
    pub fn chain(&self, chain: usize) -> usize {
        HEADER + self.shards + chain
    }

    /// The first word of a record, by its number among those of all shards.
    pub fn record(&self, record: usize) -> usize {
        HEADER + self.shards + self.shards * self.chains + record * self.record_words()
    }

    /// The chain of a hash, among those of all shards, and its shard.
    #[inline]
    pub fn chain_of(&self, hash: u64) -> (usize, usize) {
        let shard = hash as usize & (self.shards - 1);
        (shard * self.chains + ((hash >> 32) as usize & (self.chains - 1)), shard)
    }

    pub fn header(&self) -> [u64; HEADER] {
        let Format { kind, fixed, tail } = self.format;
        let [shards, slots, chains] = [self.shards, self.slots, self.chains].map(|number| number as u64);
        let mut header = [0; HEADER];
        let words = [MAGIC, kind, fixed as u64, tail as u64, shards, slots, chains, self.seed[0], self.seed[1]];
        header[..words.len()].copy_from_slice(&words);
        header
    }

    /// The layout of a file that may have been written by anything.
    pub fn read(words: &OthersWords, format: Format) -> Result<Layout, NotRead> {
        let [magic, kind, fixed, tail, shards, slots, chains, one, other] = std::array::from_fn(|at| words.load(at));
        if [magic, kind, fixed, tail] != [MAGIC, format.kind, format.fixed as u64, format.tail as u64] {
            return Err(NotRead::Format);
        }
        let number = |number: u64| usize::try_from(number).ok().filter(|number| *number <= MOST_WORDS);
        let numbers = number(shards).zip(number(slots)).zip(number(chains));
        let ((shards, slots), chains) = numbers.ok_or(NotRead::Layout)?;
        if !shards.is_power_of_two() || !chains.is_power_of_two() {
            return Err(NotRead::Layout);
        }
        let layout = Layout { format, shards, slots, chains, seed: [one, other] };
        let is_whole = layout.words().is_some_and(|needed| needed <= words.count());
        if is_whole { Ok(layout) } else { Err(NotRead::Layout) }
    }
}
