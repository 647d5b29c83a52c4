//! Lists whose links lie in their members: no allocation, and removal from anywhere in constant time.

use super::index::{Maybe, RowIndex, Table};

/// A member's place in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link<I> {
    next: Maybe<I>,
    prev: Maybe<I>,
}

impl<I: RowIndex> Default for Link<I> {
    fn default() -> Self {
        Link { next: Maybe::NONE, prev: Maybe::NONE }
    }
}

/// Something that can be in one list of the kind `K` at a time.
pub(super) trait Linked<I, const K: usize> {
    fn link(&mut self) -> &mut Link<I>;
}

/// The kind of lists of what is ready, or is held back.
pub(super) const READY: usize = 0;
/// The kind of lists by time.
pub(super) const TIMER: usize = 1;

/// A list of rows of a table, which every call names anew. What is in no list has the links of [`Link::default`], and
/// so has the only member of a list: what comes and goes alone is not looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<I, const K: usize> {
    head: Maybe<I>,
    tail: Maybe<I>,
}

impl<I: RowIndex, const K: usize> Default for List<I, K> {
    fn default() -> Self {
        List { head: Maybe::NONE, tail: Maybe::NONE }
    }
}

impl<I: RowIndex, const K: usize> List<I, K> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == Maybe::NONE
    }

    #[inline]
    pub(super) fn front(&self) -> Option<I> {
        self.head.get()
    }

    /// Whether there is more than one.
    #[inline]
    pub(super) fn has_several(&self) -> bool {
        self.head != self.tail
    }

    /// Puts a member that is in no list of the kind behind the others.
    #[inline(always)]
    pub(super) fn push_back<T: Linked<I, K>>(&mut self, members: &mut Table<I, T>, index: I) {
        match self.tail.get() {
            // Its links are those of one that is in no list.
            None => self.head = index.into(),
            Some(tail) => {
                members[tail].link().next = index.into();
                members[index].link().prev = tail.into();
            }
        }
        self.tail = index.into();
    }

    #[inline]
    pub(super) fn pop_front<T: Linked<I, K>>(&mut self, members: &mut Table<I, T>) -> Option<I> {
        let index = self.front()?;
        if self.has_several() {
            self.head = std::mem::take(members[index].link()).next;
            if let Some(head) = self.head.get() {
                members[head].link().prev = Maybe::NONE;
            }
        } else {
            *self = List::default();
        }
        Some(index)
    }

    /// Takes out a member, which has to be in this list.
    #[inline]
    pub(super) fn remove<T: Linked<I, K>>(&mut self, members: &mut Table<I, T>, index: I) {
        if !self.has_several() {
            *self = List::default();
            return;
        }
        let link = std::mem::take(members[index].link());
        match link.prev.get() {
            None => self.head = link.next,
            Some(prev) => members[prev].link().next = link.next,
        }
        match link.next.get() {
            None => self.tail = link.prev,
            Some(next) => members[next].link().prev = link.prev,
        }
    }

    /// The first becomes the last.
    #[inline]
    pub(super) fn rotate<T: Linked<I, K>>(&mut self, members: &mut Table<I, T>) {
        if self.has_several()
            && let Some(first) = self.pop_front(members)
        {
            self.push_back(members, first);
        }
    }
}
