//! A kill at any store: tests let a queue run until it has done so many stores to shared memory and is then gone.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

thread_local! {
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

struct Killed;

/// Before every store to shared memory.
pub(crate) fn point() {
    LEFT.with(|left| match left.get() {
        Some(0) => {
            left.set(None);
            resume_unwind(Box::new(Killed));
        }
        Some(n) => left.set(Some(n - 1)),
        None => {}
    });
}

/// Runs `f` and kills it before its store number `stores` (from 0). None: it was killed.
pub(crate) fn after<T>(stores: u64, f: impl FnOnce() -> T) -> Option<T> {
    LEFT.with(|left| left.set(Some(stores)));
    let result = catch_unwind(AssertUnwindSafe(f));
    LEFT.with(|left| left.set(None));
    match result {
        Ok(value) => Some(value),
        Err(payload) if payload.is::<Killed>() => None,
        Err(payload) => resume_unwind(payload),
    }
}
