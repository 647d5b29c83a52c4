//! The queues of a core.

use std::collections::VecDeque;

use super::{Role, RunningQueue};
use crate::ids::QueueKey;

/// The queues of a core, in the order in which their rings are polled, and those of them with used entries to publish.
#[derive(Default)]
pub(crate) struct QueueTable {
    /// By queue number.
    slots: Vec<Option<Box<RunningQueue>>>,
    /// Numbers of the queues on this core, in the order of arrival.
    numbers: Vec<u32>,
    /// Which of `numbers` is polled first: each in turn, as the first may fill its tenant's channel.
    first: usize,
    unpublished: Unpublished,
    /// Queues that are broken and that the core has not [settled](Self::next_broken) yet, and why.
    broken: VecDeque<(QueueKey, String)>,
    /// Queues that made the core wait and that it has not [settled](Self::next_stall) yet, and for how long,
    /// nanoseconds.
    stalled: Vec<(QueueKey, u64)>,
}

/// Numbers of the queues with used entries that are not in their rings yet, and of some that have left.
#[derive(Default)]
pub(crate) struct Unpublished(Vec<u32>);

/// What [arming](QueueTable::arm) the queues came to.
#[derive(Default)]
pub(crate) struct Armed {
    /// Queues that were visited, from the first on.
    count: usize,
    /// A ring has work, or is only polled: the core does not sleep.
    has_work: bool,
    /// Queues that were broken by their drivers, and how.
    broken: Vec<(u32, String)>,
}

impl Armed {
    /// Whether the core may sleep.
    pub(crate) fn may_sleep(&self) -> bool {
        !self.has_work && self.broken.is_empty()
    }
}

impl Unpublished {
    /// Adds a queue that has used entries.
    #[inline]
    pub(crate) fn add(&mut self, queue: &mut RunningQueue) {
        if !queue.is_unpublished {
            queue.is_unpublished = true;
            self.0.push(queue.key.number);
        }
    }
}

impl QueueTable {
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&RunningQueue> {
        self.slots.get(number as usize)?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut RunningQueue> {
        self.slots.get_mut(number as usize)?.as_deref_mut()
    }

    /// The queue with this key. None: it is not on this core, though another of its number may be.
    #[inline]
    pub(crate) fn find(&mut self, key: QueueKey) -> Option<&mut RunningQueue> {
        self.get_mut(key.number).filter(|queue| queue.key == key)
    }

    /// As [`find`](Self::find), with the list to [add](Unpublished::add) it to once it has used entries.
    #[inline]
    pub(crate) fn find_to_finish(&mut self, key: QueueKey) -> Option<(&mut RunningQueue, &mut Unpublished)> {
        let queue = self.slots.get_mut(key.number as usize)?.as_deref_mut().filter(|queue| queue.key == key)?;
        Some((queue, &mut self.unpublished))
    }

    /// As [`find_to_finish`](Self::find_to_finish), by number.
    #[inline]
    pub(crate) fn get_to_finish(&mut self, number: u32) -> Option<(&mut RunningQueue, &mut Unpublished)> {
        Some((self.slots.get_mut(number as usize)?.as_deref_mut()?, &mut self.unpublished))
    }

    /// Chains that a transmit queue has lent came back. False: the queue is not on this core.
    pub(crate) fn take_back(&mut self, key: QueueKey, numbers: &[u64]) -> bool {
        let Some((queue, unpublished)) = self.find_to_finish(key) else { return false };
        if let Role::Transmit(transmit) = &mut queue.spec.role {
            numbers.iter().for_each(|number| transmit.loans.take_back(*number, &mut queue.finished));
        }
        // Also where nothing is finished: it may be the last that a stop waits for.
        unpublished.add(queue);
        true
    }

    /// The queues, in the order of arrival.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RunningQueue> {
        self.numbers.iter().filter_map(|number| self.get(*number))
    }

    /// How many queues are on this core.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The number of the queue at this place of the order of arrival.
    #[inline]
    pub(crate) fn number_at(&self, place: usize) -> Option<u32> {
        self.numbers.get(place).copied()
    }

    /// Polling begins with the next queue.
    #[inline]
    pub(crate) fn rotate(&mut self) {
        self.first = if self.first + 1 < self.numbers.len() { self.first + 1 } else { 0 };
    }

    /// The number of the queue that is polled at this step, from 0, of a round.
    #[inline]
    pub(crate) fn polled_at(&self, step: usize) -> Option<u32> {
        let place = self.first + step;
        let count = self.numbers.len();
        self.number_at(if place < count { place } else { place - count })
    }

    /// A queue made the core wait for so long, nanoseconds. The core settles that at the end of its round.
    #[cold]
    pub(crate) fn stalled(&mut self, number: u32, time: u64) {
        if let Some(queue) = self.get_mut(number) {
            let key = queue.key;
            self.stalled.push((key, time));
        }
    }

    /// A queue that made the core wait, and for how long, nanoseconds.
    #[inline]
    pub(crate) fn next_stall(&mut self) -> Option<(QueueKey, u64)> {
        self.stalled.pop()
    }

    /// Adds a queue. One with used entries is to be published.
    pub(crate) fn insert(&mut self, mut queue: Box<RunningQueue>) {
        let number = queue.key.number;
        queue.is_unpublished = false;
        if !queue.finished.is_empty() {
            self.unpublished.add(&mut queue);
        }
        if self.slots.len() <= number as usize {
            self.slots.resize_with(number as usize + 1, || None);
        }
        self.slots[number as usize] = Some(queue);
        self.numbers.push(number);
    }

    /// Removes a queue.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Box<RunningQueue>> {
        let mut queue = self.slots.get_mut(number as usize)?.take()?;
        self.numbers.retain(|other| *other != number);
        // The list to publish may be walked right now: the number stays in it, and means nothing.
        queue.is_unpublished = false;
        Some(queue)
    }

    /// Breaks a queue, which is inert from now on. The core settles its accounts when the work at hand is done with.
    #[cold]
    pub(crate) fn break_queue(&mut self, number: u32, reason: String) {
        if let Some(queue) = self.get_mut(number)
            && queue.set_broken()
        {
            let key = queue.key;
            self.broken.push_back((key, reason));
        }
    }

    /// The next queue that broke and is to be settled, and why.
    #[inline]
    pub(crate) fn next_broken(&mut self) -> Option<(QueueKey, String)> {
        self.broken.pop_front()
    }

    /// Arms the notifications of the polled queues, in the order of arrival, until one has work or cannot be waited
    /// for. `is_kept` says which queues are left as they are.
    pub(crate) fn arm(&mut self, is_kept: impl Fn(&RunningQueue) -> bool) -> Armed {
        let mut armed = Armed::default();
        while armed.count < self.numbers.len() && !armed.has_work {
            let number = self.numbers[armed.count];
            armed.count += 1;
            let Some(queue) = self.get_mut(number) else { continue };
            if !queue.is_polled() || is_kept(queue) {
                continue;
            }
            if queue.spec.kick.is_none() {
                armed.has_work = true;
                continue;
            }
            match queue.spec.ring.arm() {
                Ok(has_work) => armed.has_work |= has_work,
                Err(error) => armed.broken.push((number, error.to_string())),
            }
        }
        armed
    }

    /// Disarms the notifications that were armed, and breaks those that could not be armed.
    pub(crate) fn disarm(&mut self, armed: Armed) {
        for place in 0..armed.count {
            if let Some(number) = self.number_at(place)
                && let Some(queue) = self.get_mut(number)
                && queue.is_polled()
            {
                queue.spec.ring.disarm();
            }
        }
        for (number, reason) in armed.broken {
            self.break_queue(number, reason);
        }
    }

    /// Whether any queue may have used entries to publish.
    #[inline]
    pub(crate) fn is_any_unpublished(&self) -> bool {
        !self.unpublished.0.is_empty()
    }

    /// Takes the numbers of the queues to publish. Some may have left. The caller clears `is_unpublished` of each that
    /// it publishes, and gives the list [back](Self::return_unpublished).
    #[inline]
    pub(crate) fn take_unpublished(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.unpublished.0)
    }

    /// Gives back the list, empty, behind which others may have been added.
    #[inline]
    pub(crate) fn return_unpublished(&mut self, mut numbers: Vec<u32>) {
        numbers.clear();
        if !self.unpublished.0.is_empty() {
            numbers.append(&mut self.unpublished.0);
        }
        self.unpublished.0 = numbers;
    }

    /// The place of the list to publish at which `number` is, from 0; for a walk through it in place.
    #[inline]
    pub(crate) fn unpublished_at(&self, place: usize) -> Option<u32> {
        self.unpublished.0.get(place).copied()
    }

    /// Puts a queue of the list at an earlier place of it.
    #[inline]
    pub(crate) fn keep_unpublished(&mut self, place: usize, number: u32) {
        self.unpublished.0[place] = number;
    }

    /// Only the first `count` of the list are still to be published.
    #[inline]
    pub(crate) fn truncate_unpublished(&mut self, count: usize) {
        self.unpublished.0.truncate(count);
    }
}
