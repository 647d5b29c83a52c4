//! Frames that are built in the port's own memory and wait for the kernel.

use super::{MAX_FRAME, VnetHeader};

/// Room for a batch of full-sized Ethernet frames and several large ones.
const BYTES: usize = 512 * 1024;

/// Committed frames lie one behind the other, each right after the header the kernel wants before it.
///
/// ```text
///  │ hdr │ frame │ hdr │ frame │ hdr │ open frame …        │
///        sent ─┘               └─ used                     end
/// ```
/// When all are sent the space is free again, from the start.
pub(super) struct Outbox {
    bytes: Box<[u8]>,
    header_size: usize,
    used: usize,
    /// Length of the frame being written behind `used`.
    open: Option<usize>,
    /// Start and length of each frame with its header.
    frames: Vec<(u32, u32)>,
    /// So many of `frames` are done with.
    done: usize,
}

impl Outbox {
    /// For frames with a header of `header_size` bytes: at most [`VnetHeader::SIZE`].
    pub(super) fn new(header_size: usize) -> Self {
        let bytes = vec![0; BYTES].into_boxed_slice();
        Outbox { bytes, header_size, used: 0, open: None, frames: Vec::with_capacity(1024), done: 0 }
    }

    /// Space for a frame of `len` bytes, none if the box is full or no frame is that long. Its bytes are those of older
    /// frames.
    pub(super) fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.open = None;
        let start = self.used + self.header_size;
        let space = self.bytes.get_mut(start..start + len.min(MAX_FRAME))?;
        if space.len() < len || self.frames.len() == self.frames.capacity() {
            return None;
        }
        self.open = Some(len);
        Some(space)
    }

    /// Takes the reserved frame, shortened to `len` bytes. Whether one was reserved.
    pub(super) fn commit(&mut self, header: VnetHeader, len: usize) -> bool {
        let Some(reserved) = self.open.take() else { return false };
        let whole = self.header_size + len.min(reserved);
        self.bytes[self.used..self.used + self.header_size].copy_from_slice(&header.to_bytes()[..self.header_size]);
        self.frames.push((self.used as u32, whole as u32));
        self.used += whole;
        true
    }

    /// The frames that wait, each with its header.
    pub(super) fn waiting(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.frames[self.done..].iter().map(|&(start, len)| &self.bytes[start as usize..(start + len) as usize])
    }

    /// The first `count` that waited are done with.
    pub(super) fn advance(&mut self, count: usize) {
        self.done = (self.done + count).min(self.frames.len());
        if self.done == self.frames.len() {
            self.frames.clear();
            (self.done, self.used, self.open) = (0, 0, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_wait_in_order_behind_their_headers() {
        let mut outbox = Outbox::new(10);
        let header = VnetHeader { gso_size: 7, num_buffers: 9, ..VnetHeader::default() };
        outbox.reserve(100).unwrap()[..4].copy_from_slice(b"long");
        assert!(outbox.commit(header, 4));
        assert!(!outbox.commit(header, 4), "nothing was reserved");
        outbox.reserve(2).unwrap().copy_from_slice(b"ab");
        assert!(outbox.commit(VnetHeader::default(), 2));
        let waiting: Vec<_> = outbox.waiting().map(<[u8]>::to_vec).collect();
        assert_eq!(waiting, [[&header.to_bytes()[..10], b"long"].concat(), [&[0; 10][..], b"ab"].concat()]);
        outbox.advance(1);
        assert_eq!(outbox.waiting().len(), 1);
        outbox.advance(1);
        assert_eq!((outbox.waiting().len(), outbox.used), (0, 0));
    }

    #[test]
    fn a_full_box_has_no_space_until_it_is_empty() {
        let mut outbox = Outbox::new(12);
        let mut frames = 0;
        while outbox.reserve(MAX_FRAME).is_some() {
            outbox.commit(VnetHeader::default(), MAX_FRAME);
            frames += 1;
        }
        assert!(frames >= 4);
        outbox.advance(frames);
        assert!(outbox.reserve(MAX_FRAME).is_some());
        assert!(outbox.reserve(MAX_FRAME + 1).is_none());
    }
}
