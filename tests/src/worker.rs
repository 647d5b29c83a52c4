//! Work that goes on in a thread of its own beside what a test does.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::Failure;

/// A thread at work, and what it shares with the test: counters of type `T`.
pub struct Worker<T> {
    name: &'static str,
    shared: Arc<Shared<T>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<T> {
    counts: T,
    stop: AtomicBool,
    error: Mutex<Option<String>>,
}

impl<T: Send + Sync + 'static> Worker<T> {
    /// Starts it. `work` goes on until its second argument says that it is to stop; an error of it is kept.
    pub fn start(
        name: &'static str,
        counts: T,
        work: impl FnOnce(&T, &AtomicBool) -> Result<(), Failure> + Send + 'static,
    ) -> Worker<T> {
        let shared = Arc::new(Shared { counts, stop: AtomicBool::new(false), error: Mutex::new(None) });
        let its = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            if let Err(error) = work(&its.counts, &its.stop) {
                *its.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
        });
        Worker { name, shared, thread: Some(thread) }
    }

    /// What it counts, whether or not it was disturbed.
    pub fn counts(&self) -> &T {
        &self.shared.counts
    }

    /// What it counts; an error if it was disturbed.
    pub fn undisturbed(&self) -> Result<&T, Failure> {
        match &*self.shared.error.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(Failure::new(format!("{} was disturbed: {error}", self.name))),
            None => Ok(&self.shared.counts),
        }
    }

    /// Ends it; an error if it was disturbed until then.
    pub fn stop(&mut self) -> Result<&T, Failure> {
        self.shared.stop.store(true, Relaxed);
        let ended = self.thread.take().map_or(Ok(()), JoinHandle::join);
        ended.map_err(|_| Failure::new(format!("{} panicked", self.name)))?;
        self.undisturbed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_worker_goes_on_until_it_is_stopped() {
        let mut worker = Worker::start("the worker", AtomicU64::new(0), |count, stop| {
            while !stop.load(Relaxed) || count.load(Relaxed) == 0 {
                count.fetch_add(1, Relaxed);
            }
            Ok(())
        });
        assert!(worker.stop().unwrap().load(Relaxed) > 0);
    }

    #[test]
    fn an_error_of_the_work_is_kept_and_told() {
        let mut worker = Worker::start("the worker", (), |(), _| Err(Failure::new("its ring broke")));
        assert_eq!(worker.stop().unwrap_err().to_string(), "the worker was disturbed: its ring broke");
        assert!(worker.undisturbed().is_err());
    }
}
