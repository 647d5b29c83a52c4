//! The queues of a core.

use super::RunningQueue;
use crate::ids::QueueKey;

/// The queues of a core, in the order in which their rings are polled, and those of them with used entries to publish.
#[derive(Default)]
pub(crate) struct QueueTable {
    /// By queue number.
    slots: Vec<Option<Box<RunningQueue>>>,
    /// Numbers of the queues that are here, in the order of arrival.
    numbers: Vec<u32>,
    /// Which of `numbers` is polled first: each in turn, as the first may fill its tenant's channel.
    first: usize,
    unpublished: Unpublished,
}

/// Numbers of the queues with used entries that are not in their rings yet, and of some that have left.
#[derive(Default)]
pub(crate) struct Unpublished(Vec<u32>);

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

    /// The queue with this key. None: it is not here, though another of its number may be.
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

    /// The queues, in the order of arrival.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RunningQueue> {
        self.numbers.iter().filter_map(|number| self.get(*number))
    }

    /// How many queues are here.
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
