//! Lists that use their chains again.

use super::*;
use crate::{Chains, Sink};

fn shapes(chains: &[Chain]) -> Vec<(usize, u64, usize, u16)> {
    chains.iter().map(|chain| (chain.buffer.pieces(), chain.buffer.len(), chain.readable, chain.descriptors)).collect()
}

#[test]
fn a_chain_that_is_used_again_has_nothing_of_what_it_was() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 16);
        let mut fresh = Rig::new(format, 16);
        let mut queue = rig.queue();
        let mut other = fresh.queue();
        let mut chains = Chains::new();
        for pieces in [[6, 3, 1], [1, 1, 2], [2, 5, 1], [1, 1, 1]] {
            for rig in [&mut rig, &mut fresh] {
                for pieces in pieces {
                    rig.request(pieces).unwrap();
                }
                rig.driver.publish();
            }
            queue.pop(&mut chains, usize::MAX).unwrap();
            let expected = pop(&mut other);
            assert_eq!(shapes(&chains), shapes(&expected));
            queue.complete(&used(chains.take(3))).unwrap();
            other.complete(&used(&expected)).unwrap();
            assert!(chains.is_empty());
            assert_eq!(rig.taken().len(), 3);
            assert_eq!(fresh.taken().len(), 3);
        }
    }
}

#[test]
fn what_is_taken_is_in_order_however_far_the_list_has_come() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 128);
        let mut queue = rig.queue();
        let mut chains = Chains::new();
        let (mut made, mut seen) = (Vec::new(), Vec::new());
        // Then some always wait, so that those have to come to the front time and again.
        let emptied = [(5, 2), (4, 3), (3, 0), (6, 7), (2, 8), (9, 9), (0, 0), (1, 1), (6, 4)];
        for (requests, done) in emptied.into_iter().chain([(4, 4); 20]).chain([(0, 2)]) {
            for _ in 0..requests {
                let pieces = 1 + made.len() % 3;
                rig.request(pieces).unwrap();
                made.push(pieces + 2);
                rig.driver.publish();
                queue.pop(&mut chains, 1).unwrap();
            }
            let done = chains.take(done);
            seen.extend(done.iter().map(|chain| chain.buffer.pieces()));
            let done = used(done);
            queue.complete(&done).unwrap();
            assert_eq!(rig.taken().len(), done.len());
        }
        assert!(chains.is_empty());
        assert_eq!(seen.len(), made.len());
        // A request has a header and a status besides its pieces.
        let extra = seen[0] - (made[0] - 2);
        assert!(made.iter().zip(&seen).all(|(made, seen)| made - 2 + extra == *seen), "{made:?} {seen:?}");
    }
}

#[test]
fn a_released_list_pins_no_memory() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 16);
        let mut queue = rig.queue();
        let mut chains = Chains::new();
        for _ in 0..3 {
            rig.request(1).unwrap();
        }
        rig.driver.publish();
        queue.pop(&mut chains, 3).unwrap();
        let before = Arc::downgrade(chains[0].buffer.view());
        queue.complete(&used(chains.take(2))).unwrap();
        queue.remap(&rig.view).unwrap();
        chains.release();
        assert_eq!(chains.len(), 1, "one is not done with");
        assert!(before.upgrade().is_some());
        queue.complete(&used(chains.take(1))).unwrap();
        // The next one is found in the memory of now, and gives up what it was pinned to.
        rig.request(1).unwrap();
        rig.driver.publish();
        queue.pop(&mut chains, 1).unwrap();
        assert!(before.upgrade().is_none(), "{format:?}: the memory of before can be unmapped");
        let now = Arc::downgrade(chains[0].buffer.view());
        queue.complete(&used(chains.take(1))).unwrap();
        chains.release();
        drop(queue);
        assert!(now.upgrade().is_none());
    }
}

#[test]
fn chains_can_be_taken_out_of_the_list() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 16);
        let mut queue = rig.queue();
        let mut chains = Chains::new();
        for pieces in [1, 2, 3, 1] {
            rig.request(pieces).unwrap();
        }
        rig.driver.publish();
        queue.pop(&mut chains, 4).unwrap();
        let shapes = shapes(&chains);
        chains.take(1);
        let out: Vec<Chain> = chains.drain(2).collect();
        assert_eq!(self::shapes(&out), shapes[1..3]);
        assert_eq!(self::shapes(&chains), shapes[3..]);
        assert_eq!(chains.drain(5).len(), 1);
        assert!(chains.is_empty());
        chains.cut(0);
    }
}
