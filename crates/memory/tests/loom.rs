//! Every interleaving of a store to guest memory and its dirty bit with a migration that clears the bit and copies:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p softdpu-memory --test loom`.
#![cfg(loom)]

#[path = "../src/mark.rs"]
mod mark;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU8, Ordering, fence};
use loom::thread;
use mark::{Bits, mark};

struct Byte(AtomicU8);

impl Bits for Byte {
    fn look(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
    fn add(&self, bits: u8) {
        self.0.fetch_or(bits, Ordering::Release);
    }
    fn barrier() {
        fence(Ordering::SeqCst);
    }
}

#[test]
fn a_store_is_in_the_copy_or_its_page_is_dirty_again() {
    loom::model(|| {
        // The page was written before, and is dirty.
        let shared = Arc::new((AtomicU8::new(0), Byte(AtomicU8::new(1))));
        let device = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (page, log) = &*shared;
                page.store(7, Ordering::Relaxed);
                mark([(log, 1)].into_iter());
            })
        };
        let (page, log) = &*shared;
        // A consumer's exchange is a full barrier to it (qatomic_xchg and the like).
        log.0.swap(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let copied = page.load(Ordering::Relaxed);
        device.join().unwrap();
        assert!(copied == 7 || log.look() & 1 == 1, "the store is neither in the copy nor in the bitmap");
    });
}
