//! AES in XTS mode (IEEE 1619-2018, NIST SP 800-38E), as disks are encrypted with it.
//!
//! ```text
//!  tweak of a sector's block j:  T(j) = AES(key 2, sector number) · α^j      (in GF(2^128), α^128 = α^7 + α^2 + α + 1)
//!  block j:                      C = AES(key 1, P ⊕ T(j)) ⊕ T(j)
//! ```
//!
//! Sectors are whole blocks here, so there is no ciphertext stealing. The block cipher is the `aes` crate's, which uses
//! the processor's instructions (AES-NI and VAES, ARMv8) where it has them; the mode is done here, because it is fast
//! only over runs of bytes: see `docs/decisions/010-xts-over-runs-of-bytes.md`.

use aes::cipher::consts::U16;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256};
use thiserror::Error;

/// The unit in which sectors are numbered, bytes, whatever their size: dm-crypt's `plain64`.
pub const SECTOR: u64 = 512;

/// Bytes of one AES block.
const BLOCK: usize = 16;
/// Bytes that are encrypted at a time: their tweaks and they stay in the fastest cache.
const RUN: usize = 512;
/// Sectors with tweaks begun at a time, so that the cipher's latency is paid once for all of them.
const BEGUN: usize = 16;

type Block = Array<u8, U16>;

/// Why a key is none.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    /// It has another length.
    #[error("a key of AES-XTS has 32 bytes (AES-128) or 64 bytes (AES-256), this one has {found}")]
    Length {
        /// Bytes it has.
        found: usize,
    },
    /// FIPS 140-3 Implementation Guidance C.I: such a key takes away what the tweak is for.
    #[error("the two halves of the key are equal, which weakens AES-XTS and FIPS 140 forbids")]
    EqualHalves,
}

#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "a box would put a key where its owner did not")]
enum Ciphers {
    Aes128 { data: Aes128, tweak: Aes128 },
    Aes256 { data: Aes256, tweak: Aes256 },
}

/// A key of AES-XTS, made ready, and the size of the sectors it is for. Overwrites itself when dropped.
#[derive(Clone)]
pub struct Xts {
    ciphers: Ciphers,
    /// Bytes, a multiple of [`SECTOR`].
    sector: usize,
}

impl Xts {
    /// Makes a key ready for sectors of `sector_size` bytes, such as 512 or 4096: dm-crypt's `sector_size`.
    ///
    /// # Errors
    /// [`KeyError`] where the key is none.
    ///
    /// # Panics
    /// When `sector_size` is zero or no multiple of 512.
    pub fn new(key: &[u8], sector_size: u32) -> Result<Xts, KeyError> {
        let sector = sector_size as usize;
        assert!(sector > 0 && sector.is_multiple_of(SECTOR as usize), "sectors of {sector} bytes");
        let wrong = KeyError::Length { found: key.len() };
        let (data, tweak) = key.split_at(key.len() / 2);
        let ciphers = match key.len() {
            32 => Ciphers::Aes128 {
                data: Aes128::new_from_slice(data).map_err(|_| wrong)?,
                tweak: Aes128::new_from_slice(tweak).map_err(|_| wrong)?,
            },
            64 => Ciphers::Aes256 {
                data: Aes256::new_from_slice(data).map_err(|_| wrong)?,
                tweak: Aes256::new_from_slice(tweak).map_err(|_| wrong)?,
            },
            _ => return Err(wrong),
        };
        // A program that can time this has the key's owner's trust already: keys come from the administrator, not from
        // guests.
        if data == tweak { Err(KeyError::EqualHalves) } else { Ok(Xts { ciphers, sector }) }
    }

    /// Bits of the key, both halves: 256 for AES-128, 512 for AES-256.
    pub fn key_bits(&self) -> u32 {
        match self.ciphers {
            Ciphers::Aes128 { .. } => 256,
            Ciphers::Aes256 { .. } => 512,
        }
    }

    /// Bytes of a sector.
    pub fn sector_size(&self) -> u32 {
        self.sector as u32
    }

    /// Encrypts whole sectors in place; the first begins at byte `offset` of the disk, which is a multiple of 512.
    ///
    /// # Panics
    /// When `data` is not whole sectors.
    pub fn encrypt(&self, offset: u64, data: &mut [u8]) {
        match &self.ciphers {
            Ciphers::Aes128 { data: cipher, tweak } => {
                self.run(tweak, offset, data, |blocks| cipher.encrypt_blocks(blocks))
            }
            Ciphers::Aes256 { data: cipher, tweak } => {
                self.run(tweak, offset, data, |blocks| cipher.encrypt_blocks(blocks))
            }
        }
    }

    /// Decrypts whole sectors in place, as [`encrypt`](Self::encrypt).
    ///
    /// # Panics
    /// When `data` is not whole sectors.
    pub fn decrypt(&self, offset: u64, data: &mut [u8]) {
        match &self.ciphers {
            Ciphers::Aes128 { data: cipher, tweak } => {
                self.run(tweak, offset, data, |blocks| cipher.decrypt_blocks(blocks))
            }
            Ciphers::Aes256 { data: cipher, tweak } => {
                self.run(tweak, offset, data, |blocks| cipher.decrypt_blocks(blocks))
            }
        }
    }

    /// The mode around `blocks`, which encrypts or decrypts some blocks.
    #[inline]
    fn run<C>(&self, tweak: &C, offset: u64, data: &mut [u8], blocks: impl Fn(&mut [Block]))
    where
        C: BlockCipherEncrypt<BlockSize = U16>,
    {
        assert!(data.len().is_multiple_of(self.sector), "{} bytes in sectors of {}", data.len(), self.sector);
        let mut number = offset / SECTOR;
        let step = self.sector as u64 / SECTOR;
        let mut tweaks = [0; RUN];
        for group in data.chunks_mut(self.sector * BEGUN) {
            let mut first = [Block::default(); BEGUN];
            let sectors = group.len() / self.sector;
            for block in &mut first[..sectors] {
                // plain64: the number in little-endian order, and zeroes.
                block[..8].copy_from_slice(&number.to_le_bytes());
                number = number.wrapping_add(step);
            }
            tweak.encrypt_blocks(&mut first[..sectors]);
            for (sector, begun) in group.chunks_exact_mut(self.sector).zip(first) {
                let mut at = u128::from_le_bytes(begun.into());
                for run in sector.chunks_mut(RUN) {
                    let tweaks = &mut tweaks[..run.len()];
                    for tweak in tweaks.chunks_exact_mut(BLOCK) {
                        tweak.copy_from_slice(&at.to_le_bytes());
                        at = times_alpha(at);
                    }
                    xor(run, tweaks);
                    let (whole, _) = Block::slice_as_chunks_mut(run);
                    blocks(whole);
                    xor(run, tweaks);
                }
            }
        }
    }
}

impl std::fmt::Debug for Xts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Xts({} bits, sectors of {})", self.key_bits(), self.sector)
    }
}

/// The next block's tweak (IEEE 1619 §5.2).
#[inline(always)]
fn times_alpha(tweak: u128) -> u128 {
    // All ones where a bit is shifted out, without a branch on what is secret.
    let carry = (tweak as i128 >> 127) as u128;
    (tweak << 1) ^ (carry & 0x87)
}

/// Over plain runs of bytes, which the compiler turns into vector instructions.
#[inline(always)]
fn xor(data: &mut [u8], with: &[u8]) {
    for (byte, with) in data.iter_mut().zip(with) {
        *byte ^= *with;
    }
}

#[cfg(test)]
mod tests;
