//! Doubly linked lists over numbered elements, all in memory that is there from the beginning. Each element is in one
//! list at most.

/// No element.
const NONE: u32 = u32::MAX;

/// Lists 0 to n - 1 of elements 0 to m - 1.
#[derive(Clone, Debug)]
pub struct Lists {
    links: Box<[Link]>,
    ends: Box<[Link]>,
}

/// Of an element: its neighbours. Of a list: its last and its first element.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

const ALONE: Link = Link { before: NONE, after: NONE };

impl Lists {
    pub fn new(elements: usize, lists: usize) -> Lists {
        Lists { links: vec![ALONE; elements].into(), ends: vec![ALONE; lists].into() }
    }

    /// At least so many lists.
    pub fn grow(&mut self, lists: usize) {
        let mut ends = std::mem::take(&mut self.ends).into_vec();
        ends.resize(lists.max(ends.len()), ALONE);
        self.ends = ends.into();
    }

    #[inline]
    pub fn first(&self, list: usize) -> Option<u32> {
        self.ends.get(list).map(|ends| ends.after).filter(|first| *first != NONE)
    }

    /// The one behind `element` in its list.
    #[inline]
    pub fn after(&self, element: u32) -> Option<u32> {
        self.links.get(element as usize).map(|link| link.after).filter(|after| *after != NONE)
    }

    /// Puts `element`, which is in no list, at the end of `list`.
    pub fn push(&mut self, list: usize, element: u32) {
        let last = self.ends[list].before;
        self.links[element as usize] = Link { before: last, after: NONE };
        self.behind(list, last).after = element;
        self.ends[list].before = element;
    }

    /// Takes `element` out of `list`, which it is in.
    pub fn remove(&mut self, list: usize, element: u32) {
        let Link { before, after } = std::mem::replace(&mut self.links[element as usize], ALONE);
        self.behind(list, before).after = after;
        match after {
            NONE => self.ends[list].before = before,
            after => self.links[after as usize].before = before,
        }
    }

    /// Where it says what comes after `before`.
    fn behind(&mut self, list: usize, before: u32) -> &mut Link {
        match before {
            NONE => &mut self.ends[list],
            before => &mut self.links[before as usize],
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
