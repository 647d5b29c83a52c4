//! Numbers in the order in which they were put at the end: each once, from 0 up to a capacity.

/// The end of a list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(super) struct List {
    /// Before and after each; [`NONE`] at the ends, and of those that are not in it.
    links: Vec<[u32; 2]>,
    first: u32,
    last: u32,
}

impl List {
    pub fn new(capacity: usize) -> List {
        List { links: Vec::with_capacity(capacity), first: NONE, last: NONE }
    }

    pub fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Puts `at`, which is not in it, at the end.
    pub fn push(&mut self, at: u32) {
        if self.links.len() <= at as usize {
            self.links.resize(at as usize + 1, [NONE; 2]);
        }
        self.links[at as usize] = [self.last, NONE];
        match self.last {
            NONE => self.first = at,
            last => self.links[last as usize][1] = at,
        }
        self.last = at;
    }

    /// Takes `at`, which is in it, out.
    pub fn remove(&mut self, at: u32) {
        let [before, after] = std::mem::replace(&mut self.links[at as usize], [NONE; 2]);
        match before {
            NONE => self.first = after,
            before => self.links[before as usize][1] = after,
        }
        match after {
            NONE => self.last = before,
            after => self.links[after as usize][0] = before,
        }
    }

    /// Moves `at`, which is in it, to the end.
    #[inline]
    pub fn touch(&mut self, at: u32) {
        if self.last != at {
            self.remove(at);
            self.push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_queue_that_can_be_reordered(steps in prop::collection::vec((0u32..8, any::<bool>()), 0..200)) {
            let (mut list, mut model) = (List::new(8), VecDeque::new());
            for (at, removes) in steps {
                match (model.iter().position(|other| *other == at), removes) {
                    (None, _) => { list.push(at); model.push_back(at); }
                    (Some(place), true) => { list.remove(at); model.remove(place); }
                    (Some(place), false) => { list.touch(at); model.remove(place); model.push_back(at); }
                }
                prop_assert_eq!(list.first(), model.front().copied());
            }
            while let Some(first) = model.pop_front() {
                prop_assert_eq!(list.first(), Some(first));
                list.remove(first);
            }
            prop_assert_eq!(list.first(), None);
        }
    }
}
