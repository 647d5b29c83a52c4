//! Every interleaving of the sleep and wake hand-shake: `RUSTFLAGS="--cfg loom" cargo test --release -p softdpu-engine
//! --test loom`.
#![cfg(loom)]

#[path = "../src/handshake.rs"]
mod handshake;

use handshake::Sleeper;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

/// The receiver either sees the message before it sleeps, or the bell is rung for it.
fn no_wake_up_is_lost(senders: u32) {
    let mut model = loom::model::Builder::new();
    // With two senders the full search takes minutes; three preemptions are enough to break the hand-shake without its
    // fences.
    model.preemption_bound = Some(3);
    model.check(move || {
        let sleeper = Arc::new(Sleeper::new());
        let messages = Arc::new(AtomicU32::new(0));
        let bell = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..senders)
            .map(|_| {
                let (sleeper, messages, bell) = (Arc::clone(&sleeper), Arc::clone(&messages), Arc::clone(&bell));
                thread::spawn(move || {
                    messages.fetch_add(1, Ordering::Relaxed);
                    if sleeper.post() {
                        bell.store(true, Ordering::Relaxed);
                    }
                })
            })
            .collect();

        let slept = !sleeper.posted() && sleeper.fall_asleep();
        for thread in threads {
            thread.join().unwrap();
        }
        if slept {
            assert!(bell.load(Ordering::Relaxed), "asleep with a message and a silent bell");
            sleeper.wake_up();
        }
        // Whatever happened, the next look finds everything.
        assert_eq!(messages.load(Ordering::Relaxed), senders);
    });
}

#[test]
fn one_sender_wakes_the_receiver() {
    no_wake_up_is_lost(1);
}

#[test]
fn of_two_senders_one_rings() {
    no_wake_up_is_lost(2);
}

#[test]
fn what_was_posted_is_visible_to_who_takes_the_mark() {
    loom::model(|| {
        let sleeper = Arc::new(Sleeper::new());
        let message = Arc::new(AtomicU32::new(0));
        let sender = {
            let (sleeper, message) = (Arc::clone(&sleeper), Arc::clone(&message));
            thread::spawn(move || {
                message.store(7, Ordering::Relaxed);
                sleeper.post();
            })
        };
        if sleeper.posted() {
            assert_eq!(message.load(Ordering::Relaxed), 7);
        }
        sender.join().unwrap();
    });
}

/// A core that yields for slices which end by themselves, again and again, is woken in the last one or has seen the
/// message. Its bell is drained after each. One message: loom does not know that a store comes after what another
/// thread has swapped before it, which it needs for a second one.
#[test]
fn no_wake_up_is_lost_over_slices_that_expire() {
    const SLICES: u32 = 2;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let sleeper = Arc::new(Sleeper::new());
        let messages = Arc::new(AtomicU32::new(0));
        let bell = Arc::new(AtomicBool::new(false));
        let sender = {
            let (sleeper, messages, bell) = (Arc::clone(&sleeper), Arc::clone(&messages), Arc::clone(&bell));
            thread::spawn(move || {
                messages.fetch_add(1, Ordering::Relaxed);
                if sleeper.post() {
                    bell.store(true, Ordering::Release);
                }
            })
        };
        let mut seen = 0;
        let mut look = || {
            if sleeper.posted() {
                seen = messages.load(Ordering::Relaxed);
            }
            seen
        };
        for _ in 0..SLICES {
            look();
            if sleeper.fall_asleep() {
                // The slice expires, whatever comes.
                sleeper.wake_up();
                bell.swap(false, Ordering::Acquire);
            }
        }
        let seen = look();
        let sleeps = sleeper.fall_asleep();
        sender.join().unwrap();
        if sleeps && seen < messages.load(Ordering::Relaxed) {
            assert!(bell.load(Ordering::Acquire), "asleep, with the message unseen and a silent bell");
        }
    });
}
