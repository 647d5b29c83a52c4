//! Nodes and values of all tables, and how a trie of them is walked and changed. A trie is known by the unit of its
//! first node, 0 where it has none.

use crate::Full;
use crate::bits::Bits;
use crate::node::{Node, STRIDE};
use crate::pool::Pool;

/// Most nodes on the way to an address's last bits.
const LEVELS: usize = (128u32.div_ceil(STRIDE)) as usize;

/// Nodes and values.
#[derive(Clone, Debug)]
pub struct Trie<V> {
    /// Unit 0 is the node that has nothing: where there is no child, a look-up may go on there.
    pub nodes: Pool<Node>,
    pub values: Pool<V>,
}

/// Where a prefix of at least one bit ends: in the node of this level, after so many of its bits.
fn end(length: u32) -> (usize, u32) {
    let level = (length - 1) / STRIDE;
    (level as usize, length - level * STRIDE)
}

fn six<B: Bits>(bits: B, level: usize) -> u32 {
    bits.skip(level as u32 * STRIDE).six()
}

impl<V: Copy + Default> Trie<V> {
    /// Room for `nodes` and for `values`, units each. None where there is not that much memory.
    pub fn new(nodes: usize, values: usize) -> Option<Trie<V>> {
        let mut nodes = Pool::new(nodes)?;
        nodes.put(Node::default())?;
        Some(Trie { nodes, values: Pool::new(values)? })
    }

    /// The node of `level` on the way along `bits`, or the last one before it; its level. None: there is not even a
    /// first one.
    fn reach<B: Bits>(&self, root: u32, bits: B, level: usize) -> Option<(usize, u32)> {
        let (mut at, mut node) = (0, root);
        while at < level {
            match self.nodes.get(node).child(six(bits, at)) {
                0 => break,
                child => (at, node) = (at + 1, child),
            }
        }
        (node != 0).then_some((at, node))
    }

    /// The node of `level` on the way along `bits`, 0 where there is none.
    pub fn node_at<B: Bits>(&self, root: u32, bits: B, level: usize) -> u32 {
        self.reach(root, bits, level).map_or(0, |(at, node)| if at == level { node } else { 0 })
    }

    /// The unit of the value of the prefix of the first `length` (at least 1) of `bits`.
    pub fn unit<B: Bits>(&self, root: u32, bits: B, length: u32) -> Option<u32> {
        let (level, local) = end(length);
        let node = self.nodes.get(self.node_at(root, bits, level));
        let six = six(bits, level);
        node.has(six, local).then(|| node.values() + node.value_rank(six, local) as u32)
    }

    /// The longest prefix of 1 to `most` bits that contains `bits`: its length and value.
    pub fn longest_within<B: Bits>(&self, root: u32, bits: B, most: u32) -> Option<(u32, V)> {
        let (mut node, mut rest, mut depth, mut found) = (root, bits, 0, None);
        while node != 0 && depth < most {
            let (here, six) = (self.nodes.get(node), rest.six());
            if let Some(length) = here.longest_within(six, most - depth) {
                let unit = here.values() + here.value_rank(six, length) as u32;
                found = Some((depth + length, *self.values.get(unit)));
            }
            (node, depth) = (here.child(six), depth + STRIDE);
            rest = rest.skip(STRIDE);
        }
        found
    }

    /// Adds the prefix of the first `length` (at least 1) of `bits`, which is not there yet. Gives the level of the
    /// node that has a child more now, if there is one.
    ///
    /// # Errors
    /// [`Full`]; everything is as it was.
    pub fn insert<B: Bits>(&mut self, root: &mut u32, bits: B, length: u32, value: V) -> Result<Option<usize>, Full> {
        let (level, local) = end(length);
        let reached = self.reach(*root, bits, level);
        if let Some((at, number)) = reached
            && at == level
        {
            let (node, six) = (*self.nodes.get(number), six(bits, level));
            let rank = node.value_rank(six, local);
            let block = self.values.insert(node.values(), node.value_count(), rank, value).ok_or(Full::Values)?;
            self.nodes.get_mut(number).change_value(six, local, block);
            return Ok(None);
        }
        let first = reached.map_or(0, |(at, _)| at + 1);
        let branch = self.branch(bits, first, level, local, value)?;
        let (at, added) = match reached {
            None => (None, self.nodes.put(branch).map(|unit| *root = unit)),
            Some((at, number)) => {
                let (node, six) = (*self.nodes.get(number), six(bits, at));
                let block = self.nodes.insert(node.children(), node.child_count(), node.child_rank(six), branch);
                (Some(at), block.map(|block| self.nodes.get_mut(number).change_child(six, block)))
            }
        };
        match added {
            Some(()) => Ok(at),
            None => {
                self.discard(branch);
                Err(Full::Nodes)
            }
        }
    }

    /// Nodes for levels `first` to `level`, with nothing but a value behind the last. The first is given, and not in a
    /// block.
    fn branch<B: Bits>(&mut self, bits: B, first: usize, level: usize, local: u32, value: V) -> Result<Node, Full> {
        let unit = self.values.put(value).ok_or(Full::Values)?;
        let mut branch = Node::with_value(six(bits, level), local, unit);
        for above in (first..level).rev() {
            match self.nodes.put(branch) {
                Some(unit) => branch = Node::with_child(six(bits, above), unit),
                None => {
                    self.discard(branch);
                    return Err(Full::Nodes);
                }
            }
        }
        Ok(branch)
    }

    /// Gives back what hangs on a branch.
    fn discard(&mut self, mut branch: Node) {
        while branch.child_count() == 1 {
            branch = self.nodes.remove(branch.children(), 1, 0);
        }
        self.values.remove(branch.values(), 1, 0);
    }

    /// Removes the prefix of the first `length` (at least 1) of `bits`, and nodes that have nothing any more. Gives its
    /// value and the level of the node that has a child less now, if there is one. None: there was no such prefix.
    pub fn remove<B: Bits>(&mut self, root: &mut u32, bits: B, length: u32) -> Option<(V, Option<usize>)> {
        let (level, local) = end(length);
        let mut way = [0; LEVELS];
        let mut number = *root;
        for (at, step) in way[..=level].iter_mut().enumerate() {
            *step = number;
            number = self.nodes.get(number).child(six(bits, at));
        }
        let (node, last) = (*self.nodes.get(way[level]), six(bits, level));
        if !node.has(last, local) {
            return None;
        }
        let value = self.values.remove(node.values(), node.value_count(), node.value_rank(last, local));
        self.nodes.get_mut(way[level]).change_value(last, local, node.values());
        let mut changed = None;
        for at in (0..=level).rev() {
            if !self.nodes.get(way[at]).is_empty() {
                break;
            }
            let Some(above) = at.checked_sub(1) else {
                self.nodes.remove(*root, 1, 0);
                *root = 0;
                return Some((value, None));
            };
            let (parent, six) = (*self.nodes.get(way[above]), six(bits, above));
            self.nodes.remove(parent.children(), parent.child_count(), parent.child_rank(six));
            self.nodes.get_mut(way[above]).change_child(six, parent.children());
            changed = Some(above);
        }
        Some((value, changed))
    }
}
