//! What is to happen, in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events by time; those of one time in the order in which they were entered, so that a run is the same each time.
#[derive(Debug)]
pub struct Agenda<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    number: u64,
}

#[derive(Debug)]
struct Entry<E> {
    time: u64,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.number).cmp(&(other.time, other.number))
    }
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Agenda { heap: BinaryHeap::new(), number: 0 }
    }
}

impl<E> Agenda<E> {
    /// Enters an event at a time, nanoseconds.
    pub fn enter(&mut self, time: u64, event: E) {
        self.number += 1;
        self.heap.push(Reverse(Entry { time, number: self.number, event }));
    }

    /// The time of the next event.
    pub fn first(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.time)
    }

    /// Takes out the next event that is not after `until`, with its time.
    pub fn next(&mut self, until: u64) -> Option<(u64, E)> {
        let Reverse(first) = self.heap.peek()?;
        if first.time > until {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| (entry.time, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_those_of_one_time_as_they_were_entered() {
        let mut agenda = Agenda::default();
        for (time, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b'), (9, 'e')] {
            agenda.enter(time, event);
        }
        let order: String = std::iter::from_fn(|| agenda.next(8).map(|(_, event)| event)).collect();
        assert_eq!(order, "abcd");
        assert_eq!(agenda.next(9), Some((9, 'e')));
    }
}
