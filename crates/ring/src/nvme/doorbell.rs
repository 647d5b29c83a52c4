//! Doorbells: where the host says how far it has come.
//!
//! A queue's doorbell values have one source. That is the page of doorbell registers, which the process that answers
//! register accesses writes (or the host itself, where it has mapped the page), until the host has configured shadow
//! doorbells; from then on it is the buffer in guest memory, and a write to the register only wakes the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use softdpu_memory::{GuestAddress, View, Window};

use crate::QueueError;
use crate::sync::{Word, observe, publish};

/// Bytes between two doorbells: CAP.DSTRD is 0 (PCIe Transport 1.0 §3.1.2).
const STRIDE: usize = 4;

/// Bytes of a buffer of shadow doorbells, and of their event indices: one page (Base 2.0 §5.11).
const SHADOW_BYTES: usize = 4096;

/// The doorbell registers of a controller, from offset 1000h of BAR0, in memory that outlives the process (PCIe
/// Transport 1.0 §3.1.2.1, §3.1.2.2): for queue identifier `n` the tail of submission queue `n`, then the head of
/// completion queue `n`.
#[derive(Debug)]
pub struct Doorbells(Window);

impl Doorbells {
    /// Bytes of a page of doorbells: queue identifiers 0 to 511.
    pub const BYTES: usize = 4096;

    /// The doorbells in `window`. None: it is not aligned to 4 bytes, or shorter than [`BYTES`](Self::BYTES).
    pub fn new(window: Window) -> Option<Doorbells> {
        let fits = window.len() >= Doorbells::BYTES && window.base().cast::<AtomicU32>().is_aligned();
        fits.then_some(Doorbells(window))
    }

    /// A second reference to the same page.
    pub fn share(&self) -> Doorbells {
        // Cannot fail: it is as long as itself.
        Doorbells(self.0.part(0, self.0.len()).expect("all of a window is a part of it"))
    }

    /// The doorbell `index`: two for each queue identifier. None: beyond the page.
    fn word(&self, index: usize) -> Option<&AtomicU32> {
        (index < Doorbells::BYTES / STRIDE).then(|| self.0.u32(index * STRIDE))
    }

    /// Stores the value of a doorbell, by its index in the page. Nothing happens beyond the page.
    pub fn store(&self, index: usize, value: u32) {
        if let Some(word) = self.word(index) {
            publish(word, value);
        }
    }

    /// The value of a doorbell, by its index in the page; 0 beyond it.
    pub fn load(&self, index: usize) -> u32 {
        self.word(index).map_or(0, |word| word.load(Relaxed))
    }

    /// Sets all of them to 0: the controller was reset.
    pub fn clear(&self) {
        (0..Doorbells::BYTES / STRIDE).for_each(|index| self.store(index, 0));
    }
}

/// Where the host keeps shadow doorbells (Base 2.0 §5.11, Doorbell Buffer Config).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// The shadow doorbells, a page (PRP1).
    pub doorbells: GuestAddress,
    /// The event indices, a page (PRP2).
    pub events: GuestAddress,
}

/// Buffers of shadow doorbells as they are mapped.
struct Mapped {
    shadow: Shadow,
    doorbells: Window,
    events: Window,
}

/// The doorbells of one pair.
pub(super) struct PairDoorbells {
    registers: Doorbells,
    /// Index of the submission queue's tail doorbell in either page.
    tail: usize,
    /// Index of the completion queue's head doorbell.
    head: usize,
    shadow: Option<Mapped>,
}

impl PairDoorbells {
    /// Of queues with these identifiers.
    pub fn new(
        view: &Arc<View>,
        registers: Doorbells,
        (sq, cq): (u16, u16),
        shadow: Option<Shadow>,
    ) -> Result<Self, QueueError> {
        let (tail, head) = (2 * usize::from(sq), 2 * usize::from(cq) + 1);
        let most = Doorbells::BYTES / STRIDE;
        if tail.max(head) >= most {
            return Err(QueueError::QueueIdentifier { id: sq.max(cq), most: (most / 2 - 1) as u16 });
        }
        let mut doorbells = PairDoorbells { registers, tail, head, shadow: None };
        doorbells.map(view, shadow)?;
        Ok(doorbells)
    }

    /// The queues are new: their registers are 0, whatever queues of these identifiers were before.
    pub fn reset(&self) {
        self.registers.store(self.tail, 0);
        self.registers.store(self.head, 0);
    }

    /// Finds the shadow doorbells in `view`.
    fn map(&mut self, view: &Arc<View>, shadow: Option<Shadow>) -> Result<(), QueueError> {
        let window = |address: GuestAddress| {
            let unmapped =
                |_| QueueError::GuestUnmapped { what: "doorbell buffer", address, len: SHADOW_BYTES, align: STRIDE };
            view.guest_window(address, SHADOW_BYTES, STRIDE).map_err(unmapped)
        };
        self.shadow = match shadow {
            Some(shadow) => {
                let (doorbells, events) = (window(shadow.doorbells)?, window(shadow.events)?);
                Some(Mapped { shadow, doorbells, events })
            }
            None => None,
        };
        Ok(())
    }

    /// Finds them in another view.
    pub fn remap(&mut self, view: &Arc<View>) -> Result<(), QueueError> {
        self.map(view, self.shadow.as_ref().map(|mapped| mapped.shadow))
    }

    /// The host has configured shadow doorbells for queues that exist: those that it has not written take the
    /// registers' values. `seen` are the tail and the head as the device knows them: their event indices.
    pub fn switch(&mut self, view: &Arc<View>, shadow: Shadow, seen: (u16, u16)) -> Result<(), QueueError> {
        self.map(view, Some(shadow))?;
        let Some(mapped) = &self.shadow else { return Ok(()) };
        for (index, seen) in [(self.tail, seen.0), (self.head, seen.1)] {
            let word = mapped.doorbells.u32(index * STRIDE);
            if word.load(Relaxed) == 0 {
                publish(word, self.registers.load(index));
                view.mark_dirty(GuestAddress(shadow.doorbells.0 + (index * STRIDE) as u64), STRIDE as u64);
            }
            publish(mapped.events.u32(index * STRIDE), seen.into());
            view.mark_dirty(GuestAddress(shadow.events.0 + (index * STRIDE) as u64), STRIDE as u64);
        }
        Ok(())
    }

    #[inline(always)]
    fn source(&self, index: usize) -> &AtomicU32 {
        match &self.shadow {
            Some(mapped) => mapped.doorbells.u32(index * STRIDE),
            None => self.registers.0.u32(index * STRIDE),
        }
    }

    /// The tail as the host has it now, and everything that it stored before.
    #[inline(always)]
    pub fn tail(&self) -> u32 {
        observe(self.source(self.tail))
    }

    /// The completion queue's head as the host has it now.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        observe(self.source(self.head))
    }

    /// As [`tail`](Self::tail), for a look that decides nothing.
    #[inline(always)]
    pub fn peek_tail(&self) -> u32 {
        self.source(self.tail).load(Relaxed)
    }

    /// As [`head`](Self::head), for a look that decides nothing.
    #[inline(always)]
    pub fn peek_head(&self) -> u32 {
        self.source(self.head).load(Relaxed)
    }

    /// Asks the host to write the tail's register when it moves beyond `seen`, and reads the tail once more.
    pub fn arm_tail(&self, view: &View, seen: u16) -> u32 {
        self.arm(view, self.tail, seen)
    }

    /// Asks the host to write the head's register when it moves beyond `seen`, and reads the head once more.
    pub fn arm_head(&self, view: &View, seen: u16) -> u32 {
        self.arm(view, self.head, seen)
    }

    fn arm(&self, view: &View, index: usize, seen: u16) -> u32 {
        let Some(mapped) = &self.shadow else { return observe(self.registers.0.u32(index * STRIDE)) };
        let found = arm(mapped.events.u32(index * STRIDE), seen.into(), mapped.doorbells.u32(index * STRIDE));
        view.mark_dirty(GuestAddress(mapped.shadow.events.0 + (index * STRIDE) as u64), STRIDE as u64);
        found
    }
}

/// The device's half of the hand-shake (Base 2.0 §B.5): it stores the event index, then reads the doorbell. The host
/// stores the doorbell, then reads the event index, so that one of them sees the other's store.
#[inline]
pub fn arm<W: Word<Value = u32>>(event: &W, seen: u32, doorbell: &W) -> u32 {
    crate::sync::publish_then_read(event, seen, doorbell)
}

/// The host's half: whether it has to write the register after its doorbell went from `old` to `new` (Linux,
/// `nvme_dbbuf_need_event`; the event index was read after the store).
#[inline]
pub fn needs_register(event: u32, new: u32, old: u32) -> bool {
    (new.wrapping_sub(event).wrapping_sub(1) as u16) < (new.wrapping_sub(old) as u16)
}
