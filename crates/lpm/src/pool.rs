//! Where nodes and values lie: blocks of 1 to 256 units in one long array, by the buddy system. What is given back
//! joins its neighbour again, and the lowest free block is taken first, so that memory that was used is used again.
//!
//! A block holds a list in order; it has the least power of two of units that the list needs.

use softdpu_sys::{pages, prefetch};

use crate::free::Free;

/// Units that the largest block has.
const PAGE: usize = 256;
/// Sizes of blocks: 2^0 to 2^8 units.
const ORDERS: usize = PAGE.ilog2() as usize + 1;
/// Most units a pool can have: a [`slot`](super::top) has room for the numbers of twice as many.
pub const MOST_UNITS: usize = 1 << 26;

/// Units, taken in blocks.
#[derive(Debug)]
pub struct Pool<T> {
    units: Vec<T>,
    /// By order: free blocks, by their number among those of their size.
    free: [Free; ORDERS],
    most: usize,
    used: usize,
}

/// The order of the block that a list of `len` items has, `len` ≥ 1.
fn order(len: usize) -> usize {
    len.next_power_of_two().trailing_zeros() as usize
}

impl<T: Copy + Default> Pool<T> {
    /// A pool of at most `most` units, fewer than [`MOST_UNITS`]. Memory is reserved for all and used as they are. None
    /// where there is not that much.
    pub fn new(most: usize) -> Option<Pool<T>> {
        let most = most.clamp(PAGE, MOST_UNITS).next_multiple_of(PAGE);
        let mut units = Vec::new();
        units.try_reserve_exact(most).ok()?;
        pages::prefer_large(&mut units);
        Some(Pool { units, free: std::array::from_fn(|order| Free::new(most >> order)), most, used: 0 })
    }

    /// Units in blocks that are taken.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Bytes that were ever used and thus are this pool's.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.units) + self.free.iter().map(Free::bytes).sum::<usize>()
    }

    /// The unit `at`.
    #[inline(always)]
    pub fn get(&self, at: u32) -> &T {
        &self.units[at as usize]
    }

    /// Has the unit `at` fetched into the cache; there need not be one.
    #[inline(always)]
    pub fn prefetch(&self, at: u32) {
        prefetch::read(self.units.as_ptr().wrapping_add(at as usize));
    }

    /// The unit `at`.
    pub fn get_mut(&mut self, at: u32) -> &mut T {
        &mut self.units[at as usize]
    }

    /// A block of one unit that is `item`. None: the pool is full.
    pub fn put(&mut self, item: T) -> Option<u32> {
        let block = self.take(0)?;
        self.units[block as usize] = item;
        Some(block)
    }

    /// Makes `item` number `at` of the list of `len` in `block`. The list's block from now on; None: the pool is full,
    /// and everything as it was.
    pub fn insert(&mut self, block: u32, len: usize, at: usize, item: T) -> Option<u32> {
        if len == 0 {
            return self.put(item);
        }
        let old = block as usize;
        if !len.is_power_of_two() {
            self.units.copy_within(old + at..old + len, old + at + 1);
            self.units[old + at] = item;
            return Some(block);
        }
        let block = self.take(order(len) + 1)?;
        let new = block as usize;
        self.units.copy_within(old..old + at, new);
        self.units.copy_within(old + at..old + len, new + at + 1);
        self.units[new + at] = item;
        self.give(old, order(len));
        Some(block)
    }

    /// Takes item `at` out of the list of `len` in `block`, which stays where it is.
    pub fn remove(&mut self, block: u32, len: usize, at: usize) -> T {
        let start = block as usize;
        let item = self.units[start + at];
        self.units.copy_within(start + at + 1..start + len, start + at);
        let before = order(len);
        match len - 1 {
            0 => self.give(start, 0),
            rest if order(rest) < before => self.give(start + (1 << (before - 1)), before - 1),
            _ => {}
        }
        item
    }

    /// A block that holds `items`, at least one and at most 256. None: the pool is full.
    pub fn put_list(&mut self, items: &[T]) -> Option<u32> {
        let block = self.take(order(items.len()))?;
        self.units[block as usize..block as usize + items.len()].copy_from_slice(items);
        Some(block)
    }

    /// Gives back the block of a list of `len` items; of none where that is 0.
    pub fn give_list(&mut self, block: u32, len: usize) {
        if len != 0 {
            self.give(block as usize, order(len));
        }
    }

    fn take(&mut self, order: usize) -> Option<u32> {
        let found = (order..ORDERS).find_map(|larger| Some((larger, self.free[larger].take_first()? << larger)));
        let (larger, block) = found.or_else(|| self.page())?;
        // Its upper halves stay free.
        for half in order..larger {
            self.free[half].put((block >> half) + 1);
        }
        self.used += 1 << order;
        Some(block as u32)
    }

    /// Units that were never used.
    fn page(&mut self) -> Option<(usize, usize)> {
        let start = self.units.len();
        if start + PAGE > self.most {
            return None;
        }
        self.units.resize(start + PAGE, T::default());
        Some((ORDERS - 1, start))
    }

    fn give(&mut self, block: usize, order: usize) {
        self.used -= 1 << order;
        let mut number = block >> order;
        let mut order = order;
        while order < ORDERS - 1 && self.free[order].take(number ^ 1) {
            number >>= 1;
            order += 1;
        }
        self.free[order].put(number);
    }
}

impl<T: Clone> Clone for Pool<T> {
    /// The copy has room for as much as this one.
    fn clone(&self) -> Pool<T> {
        let mut units = Vec::with_capacity(self.most);
        pages::prefer_large(&mut units);
        units.extend_from_slice(&self.units);
        Pool { units, free: self.free.clone(), most: self.most, used: self.used }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_keep_what_they_have_and_nothing_is_lost(
            steps in prop::collection::vec((0usize..12, any::<bool>(), any::<u16>()), 0..2000),
        ) {
            let mut pool = Pool::new(4 * PAGE).unwrap();
            let mut lists = vec![(0u32, Vec::new()); 12];
            for (list, insert, random) in steps {
                let (block, items) = &mut lists[list];
                if insert && items.len() < PAGE {
                    let at = usize::from(random) % (items.len() + 1);
                    if let Some(new) = pool.insert(*block, items.len(), at, random) {
                        *block = new;
                        items.insert(at, random);
                    }
                } else if !items.is_empty() {
                    let at = usize::from(random) % items.len();
                    prop_assert_eq!(pool.remove(*block, items.len(), at), items.remove(at));
                }
                for (block, items) in &lists {
                    let start = *block as usize;
                    prop_assert!(items.is_empty() || pool.units[start..start + items.len()] == items[..]);
                }
                let used: usize = lists.iter().filter(|list| !list.1.is_empty()).map(|list| 1 << order(list.1.len())).sum();
                prop_assert_eq!(pool.used(), used);
            }
            for (block, items) in &mut lists {
                while !items.is_empty() {
                    pool.remove(*block, items.len(), 0);
                    items.remove(0);
                }
            }
            // All is one again: what was used is a row of whole pages.
            let pages = pool.units.len() / PAGE;
            prop_assert!((0..pages).all(|page| pool.take(ORDERS - 1) == Some((page * PAGE) as u32)));
        }
    }
}
