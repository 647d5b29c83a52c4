//! The first bytes of a frame, with room before them.

use std::fmt;

/// Bytes before the frame: an outer Ethernet (14), IPv6 (40), UDP (8) and VXLAN (8) header, and whatever header the
/// port by which the frame leaves wants before it.
pub const HEADROOM: usize = 96;

/// Most bytes of a frame that are copied out to be looked at: Ethernet, IPv6 with some extension headers, TCP with
/// options.
pub const HEAD: usize = 192;

/// The first bytes of a frame, a private copy with room for headers before it.
#[derive(Clone)]
pub struct Head {
    bytes: [u8; HEADROOM + HEAD],
    start: u16,
    end: u16,
}

impl Head {
    /// A head of `len` bytes to be written through [`bytes_mut`](Self::bytes_mut). More than [`HEAD`] counts as
    /// [`HEAD`].
    #[inline]
    pub fn with_len(len: usize) -> Head {
        let mut head = Head { bytes: [0; HEADROOM + HEAD], start: 0, end: 0 };
        head.reset(len);
        head
    }

    /// A head that holds the first bytes of `frame`, at most [`HEAD`].
    pub fn of(frame: &[u8]) -> Head {
        let mut head = Head::with_len(frame.len());
        let len = head.len();
        head.bytes_mut().copy_from_slice(&frame[..len]);
        head
    }

    /// Starts over with `len` bytes (at most [`HEAD`]) of whatever was there before, to be overwritten.
    #[inline]
    pub fn reset(&mut self, len: usize) {
        self.start = HEADROOM as u16;
        self.end = (HEADROOM + len.min(HEAD)) as u16;
    }

    /// Starts over with `len` bytes (at most [`HEAD`]) behind `before` others, all of which are returned, to be
    /// overwritten. None where there is not so much room for those.
    #[inline(always)]
    pub fn reset_behind(&mut self, before: usize, len: usize) -> Option<&mut [u8]> {
        let from = HEADROOM.checked_sub(before)?;
        self.reset(len);
        self.bytes.get_mut(from..usize::from(self.end))
    }

    /// The bytes, and `header` in the room before them, which is overwritten unless it is there already: what was just
    /// written cannot be read in larger pieces before it is in the cache. None where there is not so much room left.
    #[inline(always)]
    pub fn behind<const N: usize>(&mut self, header: &[u8; N]) -> Option<&[u8]> {
        let from = usize::from(self.start).checked_sub(N)?;
        let bytes = self.bytes.get_mut(from..usize::from(self.end))?;
        let room = bytes.first_chunk_mut()?;
        if room != header {
            *room = *header;
        }
        Some(bytes)
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[usize::from(self.start)..usize::from(self.end)]
    }

    /// The bytes, to be changed.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[usize::from(self.start)..usize::from(self.end)]
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.end - self.start)
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Room for `len` more bytes before the first; returns them. None where there is not so much room left.
    #[inline]
    pub fn prepend(&mut self, len: usize) -> Option<&mut [u8]> {
        let start = usize::from(self.start).checked_sub(len)?;
        let bytes = &mut self.bytes[start..usize::from(self.start)];
        self.start = start as u16;
        Some(bytes)
    }

    /// Keeps the first `len` bytes, where there are more.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.end = self.start + len as u16;
        }
    }

    /// Takes the first `len` bytes off. False, and nothing happens, where there are fewer.
    #[inline]
    pub fn strip(&mut self, len: usize) -> bool {
        let fits = len <= self.len();
        if fits {
            self.start += len as u16;
        }
        fits
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Head({:02x?})", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_grows_to_the_front_and_shrinks_there() {
        let mut head = Head::of(&[1, 2, 3]);
        head.prepend(2).unwrap().copy_from_slice(&[8, 9]);
        assert_eq!(head.bytes(), [8, 9, 1, 2, 3]);
        assert!(head.strip(3));
        assert_eq!(head.bytes(), [2, 3]);
        assert!(!head.strip(3));
        assert_eq!(head.len(), 2);
        head.truncate(3);
        assert_eq!(head.len(), 2);
        head.truncate(1);
        assert_eq!(head.bytes(), [2]);
    }

    #[test]
    fn a_header_before_the_bytes_is_none_of_them() {
        let mut head = Head::of(&[1, 2, 3]);
        assert_eq!(head.behind(&[7, 8]), Some(&[7, 8, 1, 2, 3][..]));
        assert_eq!(head.bytes(), [1, 2, 3]);
        head.reset_behind(2, 4).unwrap().copy_from_slice(&[9, 9, 4, 5, 6, 7]);
        assert_eq!(head.bytes(), [4, 5, 6, 7]);
        head.prepend(HEADROOM - 1).unwrap();
        assert_eq!(head.behind(&[7, 8]), None);
        assert!(head.reset_behind(HEADROOM + 1, 1).is_none());
    }

    #[test]
    fn there_is_an_end_to_the_room() {
        let mut head = Head::of(&[0; HEAD + 1]);
        assert_eq!(head.len(), HEAD);
        assert!(head.prepend(HEADROOM + 1).is_none());
        assert!(head.prepend(HEADROOM).is_some());
        assert!(head.prepend(1).is_none());
    }
}
