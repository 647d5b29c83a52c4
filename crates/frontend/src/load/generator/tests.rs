//! The generator over jobs without a server.

use super::*;

/// A server's queue that answers after so many turns of the client.
struct Queue {
    depth: usize,
    in_flight: usize,
    /// Turns until it runs; the server has acknowledged its start already.
    starts_after: u32,
    /// The first requests that it loses.
    loses: u32,
    /// What was in flight at each turn, those before it ran included.
    seen: Vec<usize>,
    completed: u64,
}

impl Queue {
    fn new(depth: usize, starts_after: u32) -> Queue {
        Queue { depth, in_flight: 0, starts_after, loses: 0, seen: Vec::new(), completed: 0 }
    }
}

impl Job for Queue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn raise(&mut self, depth: usize) -> Result<(), LoadError> {
        self.in_flight = self.in_flight.max(depth);
        if self.loses > 0 {
            self.loses -= 1;
            self.in_flight = 0;
        }
        Ok(())
    }

    fn turn(&mut self, most: usize, submits: bool, outcome: &mut Outcome) -> Result<Turn, LoadError> {
        self.seen.push(self.in_flight);
        if self.starts_after > 0 {
            self.starts_after -= 1;
            return Ok(Turn::default());
        }
        let completed = self.in_flight.min(most);
        if !submits {
            self.in_flight -= completed;
        }
        if completed == 0 {
            return Ok(Turn::default());
        }
        self.completed += completed as u64;
        let now = clock::now();
        outcome.completed(now, completed);
        Ok(Turn { completed, now, submitted: submits })
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn signals(&self) -> Signals {
        Signals { kicks: self.completed, interrupts: 0 }
    }

    fn arm(&mut self) -> bool {
        true
    }

    fn poll_fds<'a>(&'a self, _fds: &mut PollFds<'a>) {}

    fn woken(&mut self, _slept: bool) {}

    fn overdue(&self, waited: Duration) -> LoadError {
        LoadError::Load(format!("nothing for {waited:?}"))
    }
}

fn generator(batch: usize, waiting: Waiting) -> Generator {
    Generator::new(GeneratorOptions { waiting, batch, pace: None, profile: false })
}

#[test]
fn no_load_begins_before_each_queue_has_answered() {
    let (mut early, mut late) = (Queue::new(8, 0), Queue::new(4, 500));
    generator(2, Waiting::Polling).start(&mut [&mut early, &mut late]).unwrap();
    assert_eq!((early.in_flight, late.in_flight), (8, 4), "both are under full load then");
    assert!(early.seen.iter().all(|in_flight| *in_flight == 1), "one request before: {:?}", early.seen);
    assert_eq!((late.seen.len(), late.completed), (501, 1));
}

#[test]
fn a_queue_that_loses_its_first_requests_is_probed_again() {
    let mut queue = Queue { loses: 3, ..Queue::new(2, 0) };
    generator(2, Waiting::Polling).probe(&mut [&mut queue]).unwrap();
    assert_eq!((queue.completed, queue.in_flight), (1, 0));
}

#[test]
fn what_is_measured_is_what_completes_in_the_measured_time() {
    for waiting in [Waiting::Polling, Waiting::Blocking] {
        let mut queues = [Queue::new(3, 0), Queue::new(1, 0)];
        let mut jobs: Vec<&mut Queue> = queues.iter_mut().collect();
        let mut outcomes = vec![Outcome::default(); 2];
        let mut generator = generator(2, waiting);
        generator.start(&mut jobs).unwrap();
        generator.warm_up(&mut jobs, Duration::from_millis(1)).unwrap();
        let before: Vec<u64> = jobs.iter().map(|job| job.completed).collect();
        generator.measure(&mut jobs, Duration::from_millis(2), &mut outcomes).unwrap();
        let after: Vec<u64> = jobs.iter().map(|job| job.completed).collect();
        generator.drain(&mut jobs).unwrap();
        assert!(jobs.iter().all(|job| job.in_flight == 0), "{waiting}: nothing is left in flight");
        for ((outcome, before), after) in outcomes.iter().zip(before).zip(after) {
            assert_eq!((outcome.requests, outcome.kicks), (after - before, after - before), "{waiting}");
            assert_eq!(outcome.slices.iter().sum::<u64>(), outcome.requests);
            assert!(outcome.requests > 0 && outcome.elapsed >= Duration::from_millis(2));
        }
        // Two of three at each turn of the one, one of one at each of the other.
        assert_eq!(outcomes[0].requests, 2 * outcomes[0].batches);
        assert_eq!(outcomes[1].requests, outcomes[1].batches);
    }
}

#[test]
fn a_load_of_which_nothing_completes_ends_with_its_time() {
    let mut queue = Queue::new(1, 0);
    let mut generator = generator(1, Waiting::Polling);
    generator.start(&mut [&mut queue]).unwrap();
    queue.starts_after = u32::MAX;
    let mut outcomes = [Outcome::default()];
    generator.measure(&mut [&mut queue], Duration::from_millis(2), &mut outcomes).unwrap();
    assert_eq!(outcomes[0].requests, 0);
    assert!(outcomes[0].elapsed < STALL);
}
