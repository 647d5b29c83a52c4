//! Every interleaving of the two hand-shakes, over loom's atomics.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p softdpu-ring --test loom`
#![cfg(loom)]

use std::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU16, fence};
use loom::thread;
use softdpu_ring::sync::{Word, observe, publish, publish_then_read};

/// A word of shared memory.
struct Shared(AtomicU16);

impl Shared {
    fn new(value: u16) -> Self {
        Shared(AtomicU16::new(value))
    }
}

impl Word for Shared {
    type Value = u16;
    fn get(&self, ordering: Ordering) -> u16 {
        self.0.load(ordering)
    }
    fn set(&self, value: u16, ordering: Ordering) {
        self.0.store(value, ordering);
    }
    fn barrier() {
        fence(Ordering::SeqCst);
    }
}

#[test]
fn who_sees_the_index_sees_the_entries() {
    loom::model(|| {
        let ring = Arc::new(([Shared::new(0), Shared::new(0)], Shared::new(0)));
        let driver = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                for at in 0..2u16 {
                    ring.0[usize::from(at)].set(at + 7, Ordering::Relaxed);
                    publish(&ring.1, at + 1);
                }
            })
        };
        let seen = observe(&ring.1);
        for at in 0..seen {
            assert_eq!(ring.0[usize::from(at)].get(Ordering::Relaxed), at + 7);
        }
        driver.join().unwrap();
    });
}

#[test]
fn a_slot_is_used_again_only_after_it_was_read() {
    // One slot: the driver overwrites it once it has it back.
    loom::model(|| {
        let ring = Arc::new((Shared::new(1), Shared::new(1), Shared::new(0)));
        let device = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let (slot, avail, used) = &*ring;
                if observe(avail) == 1 {
                    assert_eq!(slot.get(Ordering::Relaxed), 1, "the driver has not got it back");
                    publish(used, 1);
                }
            })
        };
        let (slot, avail, used) = &*ring;
        if observe(used) == 1 {
            slot.set(2, Ordering::Relaxed);
            publish(avail, 2);
        }
        device.join().unwrap();
    });
}

/// The consumer asks to be woken and goes to sleep unless something came; the producer publishes and wakes it if it
/// asked.
fn sleep_and_wake(sleep: fn(&Shared, u16, &Shared) -> u16, wake: fn(&Shared, u16, &Shared) -> u16) {
    loom::model(move || {
        let index = Arc::new(Shared::new(0));
        // The index from which on the consumer wants to hear: far away, then here.
        let event = Arc::new(Shared::new(100));
        let kicked = Arc::new(AtomicBool::new(false));
        let producer = {
            let (index, event, kicked) = (Arc::clone(&index), Arc::clone(&event), Arc::clone(&kicked));
            thread::spawn(move || {
                if wake(&index, 1, &event) == 0 {
                    kicked.store(true, Ordering::Release);
                }
            })
        };
        let seen = sleep(&event, 0, &index);
        producer.join().unwrap();
        assert!(seen == 1 || kicked.load(Ordering::Acquire), "asleep, with work, and not woken");
    });
}

#[test]
fn a_side_that_goes_to_sleep_is_woken_or_sees_the_work() {
    sleep_and_wake(publish_then_read, publish_then_read);
}

#[test]
#[should_panic(expected = "not woken")]
fn without_the_barrier_it_would_sleep_for_ever() {
    fn no_barrier(word: &Shared, value: u16, other: &Shared) -> u16 {
        publish(word, value);
        observe(other)
    }
    sleep_and_wake(publish_then_read, no_barrier);
}

/// A device that yields for a slice that expires, polls, and yields again: the driver's only kick may have been asked
/// for by either slice, or none, where the device sees the work.
fn over_two_slices(arm: fn(&Shared, u16, &Shared) -> u16) {
    const PAST: u16 = 100;
    loom::model(move || {
        let index = Arc::new(Shared::new(0));
        let event = Arc::new(Shared::new(PAST));
        let kicked = Arc::new(AtomicBool::new(false));
        let driver = {
            let (index, event, kicked) = (Arc::clone(&index), Arc::clone(&event), Arc::clone(&kicked));
            thread::spawn(move || {
                if publish_then_read(&*index, 1, &*event) == 0 {
                    kicked.store(true, Ordering::Release);
                }
            })
        };
        let mut seen = arm(&event, 0, &index);
        publish(&*event, PAST);
        if seen == 0 {
            seen = observe(&*index);
        }
        if seen == 0 {
            seen = arm(&event, 0, &index);
        }
        driver.join().unwrap();
        // A kick is an edge that nothing reads: one of the first slice ends the second at once.
        assert!(seen == 1 || kicked.load(Ordering::Acquire), "asleep, with work, and not woken");
    });
}

#[test]
fn a_device_that_yields_again_is_woken_or_sees_the_work() {
    over_two_slices(publish_then_read);
}

#[test]
#[should_panic(expected = "not woken")]
fn without_the_barrier_the_second_slice_would_last() {
    over_two_slices(|word, value, other| {
        publish(word, value);
        observe(other)
    });
}

/// A 32-bit word of shared memory.
struct Doorbell(loom::sync::atomic::AtomicU32);

impl Word for Doorbell {
    type Value = u32;
    fn get(&self, ordering: Ordering) -> u32 {
        self.0.load(ordering)
    }
    fn set(&self, value: u32, ordering: Ordering) {
        self.0.store(value, ordering);
    }
    fn barrier() {
        fence(Ordering::SeqCst);
    }
}

/// A core arms the event index of a shadow doorbell and sleeps unless the doorbell moved; the host moves the doorbell
/// from `old` to `new`, and writes the register, which wakes the core, if the event index says so. `stale` is the event
/// index before.
fn sleep_on_a_shadow_doorbell(arm: fn(&Doorbell, u32, &Doorbell) -> u32, stale: u32, old: u32, new: u32) {
    loom::model(move || {
        let doorbell = Arc::new(Doorbell(loom::sync::atomic::AtomicU32::new(old)));
        let event = Arc::new(Doorbell(loom::sync::atomic::AtomicU32::new(stale)));
        let register = Arc::new(AtomicBool::new(false));
        let host = {
            let (doorbell, event, register) = (Arc::clone(&doorbell), Arc::clone(&event), Arc::clone(&register));
            thread::spawn(move || {
                let event = publish_then_read(&*doorbell, new, &*event);
                if softdpu_ring::nvme::needs_register(event, new, old) {
                    register.store(true, Ordering::Release);
                }
            })
        };
        let seen = arm(&event, old, &doorbell);
        host.join().unwrap();
        assert!(seen == new || register.load(Ordering::Acquire), "asleep, with a command, and not woken");
    });
}

#[test]
fn a_core_that_arms_a_shadow_doorbell_is_woken_or_sees_the_command() {
    // In the middle of a queue of 8, and around its end.
    for (stale, old, new) in [(2, 5, 6), (2, 5, 7), (7, 7, 0), (3, 7, 2), (6, 0, 1)] {
        sleep_on_a_shadow_doorbell(softdpu_ring::nvme::arm, stale, old, new);
    }
}

#[test]
#[should_panic(expected = "not woken")]
fn a_core_that_reads_the_doorbell_before_it_arms_would_sleep_for_ever() {
    fn read_first(event: &Doorbell, seen: u32, doorbell: &Doorbell) -> u32 {
        let found = observe(doorbell);
        publish(event, seen);
        found
    }
    sleep_on_a_shadow_doorbell(read_first, 2, 5, 6);
}
