//! What can be done with bytes, what it gives, and what it costs.

use std::sync::Arc;

use aho_corasick::AhoCorasick;
use sha2::{Digest as _, Sha256};
use softdpu_sched::Nanos;
use thiserror::Error;

use crate::{SECTOR, Xts};

/// The kinds of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Encrypts and decrypts.
    Crypto,
    /// Compresses and decompresses.
    Compression,
    /// Makes digests.
    Hash,
    /// Finds patterns.
    Match,
}

/// What to do with a request's bytes.
#[derive(Clone, Debug)]
pub enum Operation {
    /// AES-XTS over whole sectors.
    Encrypt {
        /// With this key.
        key: Arc<Xts>,
        /// Where on the disk the first sector begins, bytes, a multiple of 512.
        offset: u64,
    },
    /// The reverse.
    Decrypt {
        /// With this key.
        key: Arc<Xts>,
        /// As above.
        offset: u64,
    },
    /// Into an LZ4 block.
    Compress,
    /// Of an LZ4 block.
    Decompress {
        /// The most bytes that may come out.
        most: usize,
    },
    /// A digest.
    Hash(Algorithm),
    /// Where patterns are.
    Match {
        /// Which.
        patterns: Arc<Patterns>,
        /// Ends after so many.
        most: usize,
    },
}

/// How a digest is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256 (FIPS 180-4).
    Sha256,
    /// CRC-32C (RFC 3720 appendix B.4).
    Crc32c,
}

/// A digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    /// Of SHA-256.
    Sha256([u8; 32]),
    /// Of CRC-32C.
    Crc32c(u32),
}

/// A set of patterns, made ready for search.
#[derive(Clone, Debug)]
pub struct Patterns(AhoCorasick);

/// A pattern that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Which pattern, by its place in the set.
    pub pattern: usize,
    /// Where it begins.
    pub start: usize,
}

/// What came of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The request's bytes have become others.
    Bytes,
    /// They are as they were, and this is their digest.
    Digest(Digest),
    /// They are as they were, and these are in them, in the order of their ends, not overlapping.
    Found(Vec<Found>),
}

/// Why an operation was not done.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Failure {
    /// Ciphers take whole sectors.
    #[error("{len} bytes at {offset} are not whole sectors of {sector} bytes")]
    Sectors {
        /// Bytes there were.
        len: usize,
        /// Where they are on the disk.
        offset: u64,
        /// Bytes of a sector.
        sector: u32,
    },
    /// What was to be decompressed is no LZ4 block, or more than was allowed would come of it.
    #[error("these bytes cannot be decompressed into at most {most} bytes")]
    NotCompressed {
        /// The most bytes that were allowed.
        most: usize,
    },
}

impl Patterns {
    /// Makes a set of patterns ready; none where it is too large to search for.
    pub fn new<P: AsRef<[u8]>>(patterns: impl IntoIterator<Item = P>) -> Option<Patterns> {
        AhoCorasick::new(patterns).ok().map(Patterns)
    }
}

impl Operation {
    /// Which engine does it.
    pub fn kind(&self) -> Kind {
        match self {
            Operation::Encrypt { .. } | Operation::Decrypt { .. } => Kind::Crypto,
            Operation::Compress | Operation::Decompress { .. } => Kind::Compression,
            Operation::Hash(_) => Kind::Hash,
            Operation::Match { .. } => Kind::Match,
        }
    }

    /// What it is expected to cost for `len` bytes, in the time a core of 2.5 GHz needs. The ratios matter: a policy is told
    /// what an operation took when it is done.
    pub fn expected(&self, len: usize) -> Nanos {
        // (before the first byte, ns; per KiB, ns): `softdpu bench accel` on an x86-64 with AES-NI.
        let (fixed, per_kib) = match self {
            Operation::Encrypt { .. } | Operation::Decrypt { .. } => (100, 430),
            Operation::Compress => (500, 2_000),
            Operation::Decompress { .. } => (100, 600),
            Operation::Hash(Algorithm::Sha256) => (100, 3_000),
            Operation::Hash(Algorithm::Crc32c) => (20, 100),
            Operation::Match { .. } => (100, 1_500),
        };
        Nanos(fixed + (len as u64).saturating_mul(per_kib) / 1024)
    }

    /// Does it to `data`.
    ///
    /// # Errors
    /// [`Failure`]; `data` is then as it was.
    pub fn run(&self, data: &mut Vec<u8>) -> Result<Output, Failure> {
        match self {
            Operation::Encrypt { key, offset } => {
                sectors(key, *offset, data)?;
                key.encrypt(*offset, data);
                Ok(Output::Bytes)
            }
            Operation::Decrypt { key, offset } => {
                sectors(key, *offset, data)?;
                key.decrypt(*offset, data);
                Ok(Output::Bytes)
            }
            Operation::Compress => {
                *data = lz4_flex::block::compress(data);
                Ok(Output::Bytes)
            }
            Operation::Decompress { most } => {
                *data = lz4_flex::block::decompress(data, *most).map_err(|_| Failure::NotCompressed { most: *most })?;
                Ok(Output::Bytes)
            }
            Operation::Hash(Algorithm::Sha256) => Ok(Output::Digest(Digest::Sha256(Sha256::digest(data).into()))),
            Operation::Hash(Algorithm::Crc32c) => Ok(Output::Digest(Digest::Crc32c(crc32c::crc32c(data)))),
            Operation::Match { patterns, most } => {
                let found = patterns.0.find_iter(&data[..]).take(*most);
                let found = found.map(|found| Found { pattern: found.pattern().as_usize(), start: found.start() });
                Ok(Output::Found(found.collect()))
            }
        }
    }
}

fn sectors(key: &Xts, offset: u64, data: &[u8]) -> Result<(), Failure> {
    let sector = key.sector_size();
    if data.len().is_multiple_of(sector as usize) && offset.is_multiple_of(SECTOR) {
        return Ok(());
    }
    Err(Failure::Sectors { len: data.len(), offset, sector })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(operation: &Operation, data: &[u8]) -> (Result<Output, Failure>, Vec<u8>) {
        let mut data = data.to_vec();
        (operation.run(&mut data), data)
    }

    #[test]
    fn what_was_encrypted_comes_back_and_half_a_sector_is_refused() {
        let key = Arc::new(Xts::new(&(0..64).collect::<Vec<u8>>(), 512).unwrap());
        let (encrypt, decrypt) = (
            Operation::Encrypt { key: Arc::clone(&key), offset: 4096 },
            Operation::Decrypt { key: Arc::clone(&key), offset: 4096 },
        );
        let (result, secret) = run(&encrypt, &[7; 1024]);
        assert!(result == Ok(Output::Bytes) && secret != [7; 1024]);
        assert_eq!(run(&decrypt, &secret).1, [7; 1024]);
        let (refused, same) = run(&encrypt, &[7; 100]);
        assert_eq!((refused, same.len()), (Err(Failure::Sectors { len: 100, offset: 4096, sector: 512 }), 100));
        let misplaced = Operation::Encrypt { key, offset: 100 };
        assert!(run(&misplaced, &[7; 512]).0.is_err());
    }

    #[test]
    fn what_was_compressed_comes_back_and_no_more_than_was_allowed() {
        let text: Vec<u8> = b"again and again, ".iter().copied().cycle().take(10_000).collect();
        let (result, small) = run(&Operation::Compress, &text);
        assert!(result == Ok(Output::Bytes) && small.len() < 1000);
        assert_eq!(run(&Operation::Decompress { most: 10_000 }, &small), (Ok(Output::Bytes), text));
        let most = Failure::NotCompressed { most: 9_999 };
        assert_eq!(run(&Operation::Decompress { most: 9_999 }, &small), (Err(most), small.clone()));
        let (nonsense, kept) = run(&Operation::Decompress { most: 10_000 }, &[0xff; 40]);
        assert_eq!((nonsense, kept), (Err(Failure::NotCompressed { most: 10_000 }), vec![0xff; 40]));
    }

    #[test]
    fn digests_are_those_of_the_standards() {
        // FIPS 180-4's "abc" and RFC 3720's 32 bytes of zeroes.
        let (sha, _) = run(&Operation::Hash(Algorithm::Sha256), b"abc");
        let Ok(Output::Digest(Digest::Sha256(sha))) = sha else { panic!("{sha:?}") };
        assert_eq!(
            (sha[..4].to_vec(), sha[28..].to_vec()),
            (vec![0xba, 0x78, 0x16, 0xbf], vec![0xf2, 0x00, 0x15, 0xad])
        );
        let (crc, _) = run(&Operation::Hash(Algorithm::Crc32c), &[0; 32]);
        assert_eq!(crc, Ok(Output::Digest(Digest::Crc32c(0x8a91_36aa))));
    }

    #[test]
    fn patterns_are_found_in_order_and_not_more_than_asked_for() {
        let patterns = Arc::new(Patterns::new(["evil", "bad"]).unwrap());
        let found = |most| run(&Operation::Match { patterns: Arc::clone(&patterns), most }, b"a bad, an evil, a bad").0;
        let all = [Found { pattern: 1, start: 2 }, Found { pattern: 0, start: 10 }, Found { pattern: 1, start: 18 }];
        assert_eq!(found(10), Ok(Output::Found(all.to_vec())));
        assert_eq!(found(2), Ok(Output::Found(all[..2].to_vec())));
    }
}
