//! When to look whether a connection's time is over: a wheel of one-second ticks. A packet that prolongs a connection
//! does not touch it: what is found to have time left is put further on.

use super::lists::Lists;

/// Nanoseconds of a tick.
const TICK: u64 = 1_000_000_000;
/// Ticks of a turn. What has longer is looked at once a turn.
const SLOTS: u64 = 512;

#[derive(Clone, Debug)]
pub struct Wheel {
    lists: Lists,
    /// The tick at which each element is looked at.
    ticks: Box<[u64]>,
    /// The last tick that nothing is left of.
    done: u64,
}

/// What [`Wheel::next`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// To be looked at; it is still in the wheel.
    Element(u32),
    /// A tick without elements, or none left.
    Tick,
    /// Up to now nothing is left.
    Done,
}

/// The first tick by which `deadline` has passed.
fn due(deadline: u64) -> u64 {
    deadline / TICK + 1
}

impl Wheel {
    pub fn new(elements: usize) -> Wheel {
        Wheel { lists: Lists::new(elements, SLOTS as usize), ticks: vec![0; elements].into(), done: 0 }
    }

    /// Puts `element` in, which is not.
    pub fn insert(&mut self, element: u32, deadline: u64) {
        let tick = due(deadline).clamp(self.done + 1, self.done + SLOTS - 1);
        self.ticks[element as usize] = tick;
        self.lists.push((tick % SLOTS) as usize, element);
    }

    pub fn remove(&mut self, element: u32) {
        self.lists.remove((self.ticks[element as usize] % SLOTS) as usize, element);
    }

    /// `element` has another deadline.
    #[inline]
    pub fn set(&mut self, element: u32, deadline: u64) {
        // A later one is found out when it is looked at.
        if due(deadline) < self.ticks[element as usize] {
            self.again(element, deadline);
        }
    }

    /// `element` was looked at and has until `deadline`.
    pub fn again(&mut self, element: u32, deadline: u64) {
        self.remove(element);
        self.insert(element, deadline);
    }

    /// One step towards `now`.
    pub fn next(&mut self, now: u64) -> Turn {
        let now = now / TICK;
        if self.done >= now {
            return Turn::Done;
        }
        // After a long time each slot is visited once.
        self.done = self.done.max(now.saturating_sub(SLOTS));
        match self.lists.first(((self.done + 1) % SLOTS) as usize) {
            Some(element) => Turn::Element(element),
            None => {
                self.done += 1;
                Turn::Tick
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_is_forgotten_and_nothing_comes_before_its_time(
            steps in prop::collection::vec((0_u64..2_000, 0_u64..3_000), 1..60),
        ) {
            let (mut wheel, mut now, mut left) = (Wheel::new(60), 0, Vec::new());
            for (element, (pause, timeout)) in (0_u32..).zip(steps) {
                now += pause * TICK / 7;
                let mut over = Vec::new();
                loop {
                    match wheel.next(now) {
                        Turn::Done => break,
                        Turn::Tick => {}
                        Turn::Element(element) => {
                            let (_, deadline) = *left.iter().find(|(other, _)| *other == element).unwrap();
                            if deadline <= now {
                                wheel.remove(element);
                                over.push(element);
                            } else {
                                wheel.again(element, deadline);
                            }
                        }
                    }
                }
                let must = |deadline: u64| deadline + TICK <= now;
                for (element, deadline) in &left {
                    prop_assert!(over.contains(element) || !must(*deadline), "{} of {} at {}", element, deadline, now);
                }
                left.retain(|(element, _)| !over.contains(element));
                let deadline = now + timeout * TICK / 5;
                wheel.insert(element, deadline);
                left.push((element, deadline));
                // Some are shortened, some prolonged.
                if let Some(other) = left.first_mut() {
                    other.1 = now + (timeout / 9) * TICK;
                    wheel.set(other.0, other.1);
                }
            }
        }
    }
}
