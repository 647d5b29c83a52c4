//! Reading and writing the fixed-width fields of payloads.

use super::error::Fault;

/// Reads a payload from front to back. The caller has checked its length; a read beyond the end is still an error.
pub(crate) struct Reader<'a> {
    all: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Reader { all: payload.len(), rest: payload }
    }

    /// Checks the length of the whole payload.
    pub(crate) fn expect(&self, expected: usize) -> Result<(), Fault> {
        if self.all == expected { Ok(()) } else { Err(Fault::PayloadSize { found: self.all, expected }) }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        match self.rest.split_at_checked(len) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => {
                Err(Fault::PayloadSize { found: self.all, expected: (self.all - self.rest.len()).saturating_add(len) })
            }
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Fault> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_ne_bytes)
    }
}

/// Collects a payload.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new() -> Self {
        Writer::default()
    }

    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}
