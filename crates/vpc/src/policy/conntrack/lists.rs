//! Doubly linked lists over numbered elements, in memory that is reserved at the beginning and taken as it is used:
//! what is 0 was never touched. Each element is in one list at most.

/// No element: others stand as their number and 1.
const NONE: u32 = 0;

/// Lists 0 to n - 1 of elements 0 to m - 1.
#[derive(Clone, Debug)]
pub struct Lists {
    links: Box<[Link]>,
    ends: Box<[Link]>,
}

/// Of an element: the neighbours before and after it. Of a list: its last and its first element. An array, as memory
/// for that is taken zeroed.
type Link = [u32; 2];

const BEFORE: usize = 0;
const AFTER: usize = 1;

fn element(stands: u32) -> Option<u32> {
    stands.checked_sub(1)
}

impl Lists {
    pub fn new(elements: usize, lists: usize) -> Lists {
        Lists { links: vec![[NONE; 2]; elements].into(), ends: vec![[NONE; 2]; lists].into() }
    }

    /// At least so many lists.
    pub fn grow(&mut self, lists: usize) {
        let mut ends = std::mem::take(&mut self.ends).into_vec();
        ends.resize(lists.max(ends.len()), [NONE; 2]);
        self.ends = ends.into();
    }

    #[inline]
    pub fn first(&self, list: usize) -> Option<u32> {
        self.ends.get(list).and_then(|ends| element(ends[AFTER]))
    }

    /// The one behind element `at` in its list.
    #[inline]
    pub fn after(&self, at: u32) -> Option<u32> {
        self.links.get(at as usize).and_then(|link| element(link[AFTER]))
    }

    /// Puts element `at`, which is in no list, at the end of `list`.
    pub fn push(&mut self, list: usize, at: u32) {
        let last = self.ends[list][BEFORE];
        self.links[at as usize] = [last, NONE];
        self.behind(list, last)[AFTER] = at + 1;
        self.ends[list][BEFORE] = at + 1;
    }

    /// Takes element `at` out of `list`, which it is in.
    pub fn remove(&mut self, list: usize, at: u32) {
        let [before, after] = std::mem::replace(&mut self.links[at as usize], [NONE; 2]);
        self.behind(list, before)[AFTER] = after;
        match element(after) {
            None => self.ends[list][BEFORE] = before,
            Some(after) => self.links[after as usize][BEFORE] = before,
        }
    }

    /// Where it says what comes after `before`.
    fn behind(&mut self, list: usize, before: u32) -> &mut Link {
        match element(before) {
            None => &mut self.ends[list],
            Some(before) => &mut self.links[before as usize],
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
        fn they_are_lists(steps in prop::collection::vec((0_usize..3, 0_u32..12), 0..200)) {
            let mut lists = Lists::new(12, 3);
            let mut model = vec![VecDeque::new(); 3];
            for (list, element) in steps {
                match model.iter().position(|there| there.contains(&element)) {
                    Some(there) => {
                        lists.remove(there, element);
                        model[there].retain(|other| *other != element);
                    }
                    None => {
                        lists.push(list, element);
                        model[list].push_back(element);
                    }
                }
                for (list, expected) in model.iter().enumerate() {
                    let all: Vec<_> = std::iter::successors(lists.first(list), |at| lists.after(*at)).collect();
                    prop_assert!(expected.iter().eq(&all));
                }
            }
        }
    }
}
