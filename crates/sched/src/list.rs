//! Lists whose links lie in their members: no allocation, and removal from anywhere in constant time.

/// No member.
pub(crate) const NIL: u32 = u32::MAX;

/// A member's place in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    next: u32,
    prev: u32,
}

impl Default for Link {
    fn default() -> Self {
        Link { next: NIL, prev: NIL }
    }
}

/// Something that can be in one list of the kind `K` at a time.
pub(crate) trait Linked<const K: usize> {
    fn link(&mut self) -> &mut Link;
}

/// The kind of lists of what runs, or waits to.
pub(crate) const LINE: usize = 0;
/// The kind of lists by time.
pub(crate) const TIMER: usize = 1;

/// A list of indices into a slice, which every call names anew. Whoever is in no list has the links of
/// [`Link::default`], and so has the only one of a list: what comes and goes alone is not looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<const K: usize> {
    head: u32,
    tail: u32,
}

impl<const K: usize> Default for List<K> {
    fn default() -> Self {
        List { head: NIL, tail: NIL }
    }
}

impl<const K: usize> List<K> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    /// Whether there is more than one.
    #[inline]
    pub(crate) fn has_several(&self) -> bool {
        self.head != self.tail
    }

    /// Puts a member that is in no list of the kind behind the others.
    #[inline(always)]
    pub(crate) fn push_back<T: Linked<K>>(&mut self, members: &mut [T], index: u32) {
        if self.tail == NIL {
            // Its links are those of one that is in no list.
            self.head = index;
        } else {
            members[self.tail as usize].link().next = index;
            members[index as usize].link().prev = self.tail;
        }
        self.tail = index;
    }

    #[inline]
    pub(crate) fn pop_front<T: Linked<K>>(&mut self, members: &mut [T]) -> Option<u32> {
        let index = self.front()?;
        if self.has_several() {
            self.head = std::mem::take(members[index as usize].link()).next;
            members[self.head as usize].link().prev = NIL;
        } else {
            *self = List::default();
        }
        Some(index)
    }

    /// Takes out a member, which has to be in this list.
    #[inline]
    pub(crate) fn remove<T: Linked<K>>(&mut self, members: &mut [T], index: u32) {
        if !self.has_several() {
            *self = List::default();
            return;
        }
        let link = std::mem::take(members[index as usize].link());
        match link.prev {
            NIL => self.head = link.next,
            prev => members[prev as usize].link().next = link.next,
        }
        match link.next {
            NIL => self.tail = link.prev,
            next => members[next as usize].link().prev = link.prev,
        }
    }

    /// The first becomes the last.
    #[inline]
    pub(crate) fn rotate<T: Linked<K>>(&mut self, members: &mut [T]) {
        if self.has_several()
            && let Some(first) = self.pop_front(members)
        {
            self.push_back(members, first);
        }
    }
}
