//! Bits and offsets of both formats, as the specification gives them.

/// Bytes of a descriptor, of either format (virtio 1.3 §2.7.5, §2.8.13).
pub(crate) const DESCRIPTOR: usize = 16;

/// VIRTQ_DESC_F_NEXT: the chain goes on (virtio 1.3 §2.7.5, §2.8.6).
pub(crate) const NEXT: u16 = 1;
/// VIRTQ_DESC_F_WRITE: device-writable (virtio 1.3 §2.7.5, §2.8.5).
pub(crate) const WRITE: u16 = 2;
/// VIRTQ_DESC_F_INDIRECT: the memory is a table of descriptors (virtio 1.3 §2.7.5.3, §2.8.7).
pub(crate) const INDIRECT: u16 = 4;
/// VIRTQ_DESC_F_AVAIL, packed only (virtio 1.3 §2.8.1).
pub(crate) const AVAIL: u16 = 1 << 7;
/// VIRTQ_DESC_F_USED, packed only (virtio 1.3 §2.8.1).
pub(crate) const USED: u16 = 1 << 15;

/// VIRTQ_AVAIL_F_NO_INTERRUPT (virtio 1.3 §2.7.6).
pub(crate) const NO_INTERRUPT: u16 = 1;
/// VIRTQ_USED_F_NO_NOTIFY (virtio 1.3 §2.7.8).
pub(crate) const NO_NOTIFY: u16 = 1;

/// RING_EVENT_FLAGS_ENABLE (virtio 1.3 §2.8.10).
pub(crate) const EVENT_ENABLE: u16 = 0;
/// RING_EVENT_FLAGS_DISABLE (virtio 1.3 §2.8.10).
pub(crate) const EVENT_DISABLE: u16 = 1;
/// RING_EVENT_FLAGS_DESC, only with VIRTIO_F_EVENT_IDX (virtio 1.3 §2.8.10).
pub(crate) const EVENT_DESC: u16 = 2;
/// Bytes of an event suppression structure (virtio 1.3 §2.8.14).
pub(crate) const EVENT: usize = 4;

/// Whether a side that asked for a notification at `event` is to be notified, now that an index went from `old` to
/// `new` (virtio 1.3 §2.7.10.1, `vring_need_event`).
#[inline]
pub(crate) fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A descriptor of a ring or an indirect table, read once as two 64-bit words: its address, and everything else.
pub(crate) trait Descriptor: Copy {
    fn from_words(addr: u64, meta: u64) -> Self;

    /// Its first word.
    fn addr(self) -> u64;

    /// Its second word.
    fn meta(self) -> u64;
}

macro_rules! descriptor {
    ($(#[$doc:meta])* $name:ident: $third:ident, $fourth:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $name {
            pub addr: u64,
            pub len: u32,
            pub $third: u16,
            pub $fourth: u16,
        }

        impl Descriptor for $name {
            #[inline(always)]
            fn from_words(addr: u64, meta: u64) -> Self {
                $name { addr, len: meta as u32, $third: (meta >> 32) as u16, $fourth: (meta >> 48) as u16 }
            }

            #[inline(always)]
            fn addr(self) -> u64 {
                self.addr
            }

            #[inline(always)]
            fn meta(self) -> u64 {
                u64::from(self.len) | u64::from(self.$third) << 32 | u64::from(self.$fourth) << 48
            }
        }
    };
}

descriptor! {
    /// `struct virtq_desc` (virtio 1.3 §2.7.5).
    SplitDescriptor: flags, next
}

descriptor! {
    /// `struct pvirtq_desc` (virtio 1.3 §2.8.13), available or used.
    PackedDescriptor: id, flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_due_when_the_index_passes_it_also_across_the_wrap() {
        assert!(need_event(5, 6, 5));
        assert!(!need_event(5, 5, 4));
        assert!(!need_event(5, 7, 6));
        assert!(need_event(0xffff, 0, 0xffff));
        assert!(need_event(0xffff, 3, 0xfff0));
        assert!(!need_event(3, 3, 0xfff0));
    }
}
