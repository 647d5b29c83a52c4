//! Chains that come back to their queue to be used again.

use super::*;

fn shapes(chains: &[Chain]) -> Vec<(usize, u64, usize, u16)> {
    chains.iter().map(|chain| (chain.buffer.pieces(), chain.buffer.len(), chain.readable, chain.descriptors)).collect()
}

#[test]
fn a_recycled_chain_has_nothing_of_what_it_was() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 16);
        let mut fresh = Rig::new(format, 16);
        let mut queue = rig.queue();
        let mut other = fresh.queue();
        for pieces in [[6, 3, 1], [1, 1, 2], [2, 5, 1], [1, 1, 1]] {
            for rig in [&mut rig, &mut fresh] {
                for pieces in pieces {
                    rig.request(pieces).unwrap();
                }
                rig.driver.publish();
            }
            let mut chains = pop(&mut queue);
            let expected = pop(&mut other);
            assert_eq!(shapes(&chains), shapes(&expected));
            queue.complete(&used(&chains)).unwrap();
            other.complete(&used(&expected)).unwrap();
            queue.recycle(&mut chains);
            assert!(chains.is_empty());
            assert_eq!(rig.taken().len(), 3);
            assert_eq!(fresh.taken().len(), 3);
        }
    }
}

#[test]
fn recycled_chains_pin_no_memory_but_that_of_their_queue() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 16);
        let mut queue = rig.queue();
        rig.request(1).unwrap();
        rig.driver.publish();
        let mut chains = pop(&mut queue);
        let before = Arc::downgrade(chains[0].buffer.view());
        queue.complete(&used(&chains)).unwrap();
        queue.recycle(&mut chains);
        rig.request(1).unwrap();
        rig.driver.publish();
        let mut late = pop(&mut queue);
        queue.recycle(&mut chains);
        queue.remap(&rig.view).unwrap();
        // One that was taken before the memory changed comes back after.
        queue.complete(&used(&late)).unwrap();
        queue.recycle(&mut late);
        assert!(late.is_empty());
        assert!(before.upgrade().is_none(), "{format:?}: the memory of before can be unmapped");
        rig.request(1).unwrap();
        rig.driver.publish();
        let view = Arc::downgrade(pop(&mut queue)[0].buffer.view());
        drop(queue);
        assert!(view.upgrade().is_none());
    }
}

#[test]
fn a_queue_keeps_no_more_chains_than_it_can_have_in_flight() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 4);
        let mut queue = rig.queue();
        let mut held = Vec::new();
        for _ in 0..3 {
            for _ in 0..4 {
                rig.request(1).unwrap();
            }
            rig.driver.publish();
            let chains = pop(&mut queue);
            queue.complete(&used(&chains)).unwrap();
            assert_eq!(rig.taken().len(), 4);
            held.extend(chains);
        }
        let view = Arc::downgrade(held[0].buffer.view());
        let pins = view.strong_count();
        queue.recycle(&mut held);
        assert!(held.is_empty());
        assert_eq!(view.strong_count(), pins - 8, "4 of 12 are kept");
    }
}
