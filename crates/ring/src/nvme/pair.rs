//! A submission queue with its completion queue, as the device serves them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use softdpu_memory::{GuestAddress, View, Window};

use super::doorbell::PairDoorbells;
use super::records::Slots;
use super::{COMMAND, COMPLETION, Doorbells, MAX_ENTRIES, PairRecords, Shadow};
use crate::area::log_entries;
use crate::sync::publish;
use crate::{Chain, Position, QueueError, Sink, Used};

/// One of the two queues of a pair, contiguous in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueMemory {
    /// Queue identifier; 0 is the admin queue.
    pub id: u16,
    /// Of its first entry.
    pub address: GuestAddress,
    /// Entries, 2 to [`MAX_ENTRIES`].
    pub size: u16,
}

/// How a pair was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairConfig {
    /// The submission queue.
    pub sq: QueueMemory,
    /// The completion queue.
    pub cq: QueueMemory,
    /// Interrupts Enabled (Base 2.0 §5.4, CDW11.IEN).
    pub interrupts: bool,
    /// It ran in a process before this one: its record tells how far it came and what is in flight.
    pub resumed: bool,
}

/// Both queues as they are mapped.
struct Rings {
    sq: Window,
    cq: Window,
}

impl Rings {
    fn new(view: &Arc<View>, config: &PairConfig) -> Result<Rings, QueueError> {
        let find = |what, queue: &QueueMemory, entry: usize| {
            let (address, len, align) = (queue.address, usize::from(queue.size) * entry, 8);
            let unmapped = |_| QueueError::GuestUnmapped { what, address, len, align };
            view.guest_window(address, len, align).map_err(unmapped)
        };
        let sq = find("submission queue", &config.sq, COMMAND)?;
        Ok(Rings { sq, cq: find("completion queue", &config.cq, COMPLETION)? })
    }
}

/// The phase tag of a completion by its number, from 0: 1 on the first pass through the queue (Base 2.0 §3.3.3.2).
#[inline(always)]
fn phase(number: u64, size: u16) -> u64 {
    (number / u64::from(size) + 1) & 1
}

/// The bit of an entry's second half that is the phase tag: dword 3, bit 16.
const PHASE_BIT: u32 = 48;

/// The device side of a queue pair. One core (or the control thread, for the admin queue) owns it.
///
/// After an error the pair is inert, as a [`Queue`](crate::Queue) is.
pub struct QueuePair {
    config: PairConfig,
    view: Arc<View>,
    rings: Rings,
    doorbells: PairDoorbells,
    slots: Slots,
    /// The next submission queue entry to take: the SQ Head Pointer.
    head: u16,
    /// Entry of the completion queue that the next completion goes into.
    tail: u16,
    /// The completion queue's head as the host said last.
    cq_head: u16,
    /// In flight since before a restart and not handed out again yet.
    recovered: Vec<u16>,
    in_flight: u16,
    broken: bool,
}

impl QueuePair {
    /// A new pair, or one that goes on where `records` say that it stood.
    ///
    /// # Errors
    /// What is wrong with the sizes, the addresses or the records.
    pub fn new(
        view: &Arc<View>,
        config: PairConfig,
        doorbells: Doorbells,
        shadow: Option<Shadow>,
        records: PairRecords,
    ) -> Result<QueuePair, QueueError> {
        for queue in [&config.sq, &config.cq] {
            if !(2..=MAX_ENTRIES).contains(&queue.size) {
                return Err(QueueError::Entries { size: queue.size, most: MAX_ENTRIES });
            }
        }
        let view = view.replica();
        let rings = Rings::new(&view, &config)?;
        let doorbells = PairDoorbells::new(&view, doorbells, (config.sq.id, config.cq.id), shadow)?;
        if !config.resumed {
            doorbells.reset();
        }
        let (sq_size, cq_size) = (config.sq.size, config.cq.size);
        let is_visible = |number: u64| {
            let entry = (number % u64::from(cq_size)) as usize * COMPLETION;
            (rings.cq.u64(entry + 8).load(Relaxed) >> PHASE_BIT) & 1 == phase(number, cq_size)
        };
        let (slots, recovered) = Slots::open(records, (sq_size, cq_size), config.resumed, is_visible)?;
        let (taken, posted) = (slots.taken, slots.posted);
        let mut pair = QueuePair {
            config,
            view,
            rings,
            doorbells,
            slots,
            head: (taken % u64::from(sq_size)) as u16,
            tail: (posted % u64::from(cq_size)) as u16,
            cq_head: 0,
            in_flight: recovered.len() as u16,
            recovered,
            broken: false,
        };
        let head = pair.doorbells.head();
        pair.cq_head = pair.checked("completion queue head", head, pair.tail, cq_size)?;
        Ok(pair)
    }

    /// A doorbell's value as an index.
    #[inline(always)]
    fn checked(&self, doorbell: &'static str, value: u32, last: u16, size: u16) -> Result<u16, QueueError> {
        if value < u32::from(size) {
            return Ok(value as u16);
        }
        Err(QueueError::DoorbellValue { doorbell, id: self.config.sq.id, value, last, size })
    }

    #[inline(always)]
    fn usable(&self) -> Result<(), QueueError> {
        if self.broken { Err(QueueError::Broken) } else { Ok(()) }
    }

    #[inline(always)]
    fn or_break<T>(&mut self, result: Result<T, QueueError>) -> Result<T, QueueError> {
        self.broken |= result.is_err();
        result
    }

    /// Entries of the completion queue that the host has not taken.
    #[inline(always)]
    fn unread(&self) -> u16 {
        distance(self.cq_head, self.tail, self.config.cq.size)
    }

    /// Looks how far the host has read the completion queue.
    fn read_head(&mut self) -> Result<(), QueueError> {
        let head = self.doorbells.head();
        self.move_head(head)
    }

    fn move_head(&mut self, value: u32) -> Result<(), QueueError> {
        const HEAD: &str = "completion queue head";
        let (last, size) = (self.cq_head, self.config.cq.size);
        let head = self.checked(HEAD, value, last, size)?;
        // Beyond what was posted, or backwards: it removes entries that are empty (Base 2.0 §5.2).
        if distance(last, head, size) > self.unread() {
            return Err(QueueError::DoorbellValue { doorbell: HEAD, id: self.config.cq.id, value, last, size });
        }
        self.cq_head = head;
        Ok(())
    }

    /// How many commands may be taken: as many as there is room for completions.
    #[inline(always)]
    fn room(&self) -> usize {
        let free = self.config.cq.size - 1 - self.unread();
        usize::from(free.saturating_sub(self.in_flight)).min(self.slots.room())
    }

    /// As [`Queue::resubmit`](crate::Queue::resubmit).
    ///
    /// # Errors
    /// [`QueueError::Broken`].
    pub fn resubmit(&mut self, out: &mut impl Sink) -> Result<usize, QueueError> {
        self.usable()?;
        let recovered = std::mem::take(&mut self.recovered);
        for slot in &recovered {
            self.hand_out(*slot, out)?;
        }
        Ok(recovered.len())
    }

    #[inline(always)]
    fn hand_out(&mut self, slot: u16, out: &mut impl Sink) -> Result<(), QueueError> {
        let (view, address) = (self.slots.view(), self.slots.command(slot));
        let chain: &mut Chain = out.add(view);
        (chain.id, chain.descriptors, chain.readable) = (slot, 1, 1);
        if chain.buffer.set(address, COMMAND as u64).is_none() {
            out.cut_last();
            self.broken = true;
            return Err(QueueError::RecordsDamaged {
                field: "a command",
                value: slot.into(),
                size: self.config.sq.size,
            });
        }
        Ok(())
    }

    /// As [`Queue::pop`](crate::Queue::pop): a chain's only piece is the copy of a command, 64 bytes. At most as many
    /// as the completion queue has room for.
    ///
    /// # Errors
    /// [`QueueError::DoorbellValue`] where the host's doorbells make no sense; the pair is then broken.
    #[inline]
    pub fn pop(&mut self, out: &mut impl Sink, max: usize) -> Result<usize, QueueError> {
        self.usable()?;
        let before = out.len();
        if !self.recovered.is_empty() {
            self.resubmit(out)?;
        }
        let size = self.config.sq.size;
        let tail = self.checked("submission queue tail", self.doorbells.tail(), self.head, size);
        let tail = self.or_break(tail)?;
        let ready = usize::from(distance(self.head, tail, size)).min(max);
        if ready == 0 {
            return Ok(out.len() - before);
        }
        if self.room() < ready {
            let read = self.read_head();
            self.or_break(read)?;
        }
        let count = ready.min(self.room());
        for _ in 0..count {
            let at = usize::from(self.head) * COMMAND;
            let sq = &self.rings.sq;
            let Some(slot) = self.slots.take(|word| sq.u64(at + word * 8).load(Relaxed)) else { break };
            self.head = next(self.head, size);
            self.in_flight += 1;
            self.hand_out(slot, out)?;
        }
        if count > 0 {
            self.slots.commit_taken();
        }
        Ok(out.len() - before)
    }

    /// As [`Queue::complete`](crate::Queue::complete): [`Used::written`] is the status field of each, and dword 0 of
    /// its entry is 0.
    ///
    /// # Errors
    /// [`QueueError::NotInFlight`]; the pair is then broken.
    #[inline]
    pub fn complete(&mut self, done: &[Used]) -> Result<bool, QueueError> {
        self.post(done.iter().map(|used| (used.id, 0, used.written as u16)))
    }

    /// Posts completions, each of a slot with dword 0 and the status field (Base 2.0 §3.3.3.2.1: bits 31 to 17 of dword
    /// 3, so a value of 15 bits). Returns whether the host is to be interrupted.
    ///
    /// # Errors
    /// [`QueueError::NotInFlight`], [`QueueError::CompletionQueueFull`]; the pair is then broken.
    pub fn post(&mut self, done: impl Iterator<Item = (u16, u32, u16)> + Clone) -> Result<bool, QueueError> {
        self.usable()?;
        let mut count = 0;
        for (slot, ..) in done.clone() {
            if !self.slots.is_busy(slot) {
                self.broken = true;
                return Err(QueueError::NotInFlight { id: slot, descriptors: 1 });
            }
            count += 1;
        }
        if count == 0 {
            return Ok(false);
        }
        if usize::from(self.config.cq.size - 1 - self.unread()) < count {
            let read = self.read_head();
            self.or_break(read)?;
            if usize::from(self.config.cq.size - 1 - self.unread()) < count {
                self.broken = true;
                return Err(QueueError::CompletionQueueFull { id: self.config.cq.id });
            }
        }
        let first = self.tail;
        for (slot, result, status) in done.clone() {
            self.put(slot, result, status);
        }
        self.slots.completed(done.map(|(slot, ..)| slot));
        self.in_flight = self.in_flight.saturating_sub(count as u16);
        let (at, size) = (self.rings.cq.guest(), self.config.cq.size);
        log_entries(&self.view, Some(at), COMPLETION, size, first, count as u16);
        Ok(self.config.interrupts)
    }

    /// Writes one entry, the half with the phase tag last.
    #[inline(always)]
    fn put(&mut self, slot: u16, result: u32, status: u16) {
        let size = self.config.cq.size;
        let at = usize::from(self.tail) * COMPLETION;
        let command = (self.slots.first_word(slot) >> 16) & 0xffff;
        let phase = phase(self.slots.posted, size);
        let word = u64::from(self.head)
            | u64::from(self.config.sq.id) << 16
            | command << 32
            | phase << PHASE_BIT
            | u64::from(status & 0x7fff) << (PHASE_BIT + 1);
        self.slots.posting(slot);
        publish(self.rings.cq.u64(at), u64::from(result));
        publish(self.rings.cq.u64(at + 8), word);
        self.tail = next(self.tail, size);
    }

    /// As [`Queue::arm`](crate::Queue::arm): with shadow doorbells their event indices are set, of the completion
    /// queue where commands wait for room in it.
    ///
    /// # Errors
    /// As [`pop`](Self::pop).
    pub fn arm(&mut self) -> Result<bool, QueueError> {
        self.usable()?;
        if !self.recovered.is_empty() {
            return Ok(true);
        }
        let found = self.doorbells.arm_tail(&self.view, self.head);
        if found == u32::from(self.head) {
            return Ok(false);
        }
        if self.room() == 0 {
            let read = self.read_head();
            self.or_break(read)?;
        }
        if self.room() > 0 {
            return Ok(true);
        }
        let head = self.doorbells.arm_head(&self.view, self.cq_head);
        let moved = self.move_head(head);
        self.or_break(moved)?;
        Ok(self.room() > 0)
    }

    /// As [`Queue::has_work`](crate::Queue::has_work).
    #[inline]
    pub fn has_work(&self) -> bool {
        if self.broken {
            return false;
        }
        if !self.recovered.is_empty() {
            return true;
        }
        self.doorbells.peek_tail() != u32::from(self.head)
            && (self.room() > 0 || self.doorbells.peek_head() != u32::from(self.cq_head))
    }

    /// The host has configured shadow doorbells.
    ///
    /// # Errors
    /// [`QueueError::GuestUnmapped`]; the pair is then broken.
    pub fn set_shadow(&mut self, shadow: Shadow) -> Result<(), QueueError> {
        self.usable()?;
        let seen = (self.head, self.cq_head);
        let view = Arc::clone(&self.view);
        let switched = self.doorbells.switch(&view, shadow, seen);
        self.or_break(switched)
    }

    /// As [`Queue::remap`](crate::Queue::remap).
    ///
    /// # Errors
    /// [`QueueError::GuestUnmapped`]; the pair is then broken.
    pub fn remap(&mut self, view: &Arc<View>) -> Result<(), QueueError> {
        let view = view.replica();
        let rings = Rings::new(&view, &self.config);
        self.rings = self.or_break(rings)?;
        let doorbells = self.doorbells.remap(&view);
        self.or_break(doorbells)?;
        self.view = view;
        Ok(())
    }

    /// Stops for good. With nothing in flight the record still tells how far the pair came.
    pub fn retire(&mut self) -> Position {
        self.broken = true;
        self.position()
    }

    /// Stops for good and gives the record up: the queue is deleted.
    pub fn delete(&mut self) {
        self.broken = true;
        self.slots.retire();
    }

    /// How far it has come.
    pub fn position(&self) -> Position {
        Position::Pair { head: self.head }
    }

    /// Commands handed out and not completed.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// The number under which the command in flight in a slot was taken, from 1; 0: it is not in flight. It names a
    /// command across restarts.
    pub fn number(&self, slot: u16) -> u64 {
        self.slots.number(slot)
    }

    /// The identifier of the command in flight in a slot (Base 2.0 §3.3.3.1, CID).
    pub fn command_id(&self, slot: u16) -> Option<u16> {
        self.slots.is_busy(slot).then(|| (self.slots.first_word(slot) >> 16) as u16)
    }

    /// Guest memory as the pair has it, under a reference count of its own.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// As it was created.
    pub fn pair_config(&self) -> &PairConfig {
        &self.config
    }

    /// Whether it is inert.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    pub(crate) fn break_off(&mut self) {
        self.broken = true;
    }

    pub(crate) fn is_faulted(&self) -> bool {
        self.slots.is_faulted()
    }
}

/// From one index of a queue of `size` on to another, around its end. Both are below `size`.
#[inline(always)]
fn distance(from: u16, to: u16, size: u16) -> u16 {
    if to >= from { to - from } else { size - from + to }
}

#[inline(always)]
fn next(index: u16, size: u16) -> u16 {
    if index + 1 < size { index + 1 } else { 0 }
}
