use super::*;

struct Host<P> {
    policy: P,
    sequences: std::collections::BTreeMap<ThreadId, Sequence>,
}

impl<P: ThreadScheduler> Host<P> {
    fn new(policy: P) -> Self {
        Host { policy, sequences: Default::default() }
    }

    fn tell(&mut self, now: u64, thread: u32, event: ThreadEvent, core: u32, class: u8) {
        let thread = ThreadId(thread);
        let sequence = self.sequences.entry(thread).or_default();
        *sequence = sequence.next();
        let message = ThreadMessage { thread, sequence: *sequence, event, core: CoreId(core), class: SloClass(class) };
        self.policy.message(Nanos(now), &message);
    }

    fn wake(&mut self, now: u64, thread: u32, class: u8) {
        if !self.sequences.contains_key(&ThreadId(thread)) {
            self.tell(now, thread, ThreadEvent::Created, 0, class);
        }
        self.tell(now, thread, ThreadEvent::Wakeup, 0, class);
    }

    /// Picks for a core and commits.
    fn run(&mut self, now: u64, core: u32) -> Option<u32> {
        let decision = self.policy.pick(Nanos(now), CoreId(core))?;
        self.commit(now, decision);
        Some(decision.thread.0)
    }

    fn commit(&mut self, now: u64, decision: ThreadDecision) {
        let sequence = self.sequences.get_mut(&decision.thread).unwrap();
        assert_eq!(*sequence, decision.sequence, "a host would refuse it");
        *sequence = sequence.next();
        self.policy.outcome(Nanos(now), &decision, Outcome::Committed);
    }
}

#[test]
fn fifo_runs_threads_as_they_came_and_never_preempts() {
    let mut host = Host::new(FifoThreads::run_to_completion());
    for thread in 1..=3 {
        host.wake(0, thread, 0);
    }
    assert_eq!((host.run(1, 0), host.run(1, 1)), (Some(1), Some(2)));
    assert_eq!((host.policy.preempt(Nanos(1 << 40)), host.policy.deadline(Nanos(1))), (None, None));
    host.tell(5, 1, ThreadEvent::Blocked, 0, 0);
    host.wake(6, 1, 0);
    assert_eq!((host.run(7, 0), host.run(7, 2), host.run(7, 3)), (Some(3), Some(1), None));
}

#[test]
fn shinjuku_preempts_after_the_slice_only_where_others_wait() {
    let mut host = Host::new(Shinjuku::preemptive(SLICE));
    host.wake(0, 1, 0);
    assert_eq!(host.run(0, 0), Some(1));
    assert_eq!((host.policy.deadline(Nanos(0)), host.policy.preempt(Nanos(100_000))), (None, None), "none waits");
    host.wake(10_000, 2, 0);
    assert_eq!(host.policy.deadline(Nanos(10_000)), Some(SLICE));
    assert_eq!(host.policy.preempt(Nanos(29_999)), None);
    assert_eq!(host.policy.preempt(Nanos(30_000)), Some(CoreId(0)));
    assert_eq!(host.policy.preempt(Nanos(30_001)), None, "it is named once");
    let next = host.policy.pick(Nanos(30_000), CoreId(0)).unwrap();
    host.tell(31_000, 1, ThreadEvent::Preempted, 0, 0);
    host.commit(31_000, next);
    assert_eq!(host.policy.waiting(), 1, "the preempted one waits");
    assert_eq!(host.policy.deadline(Nanos(31_000)), Some(Nanos(61_000)));
}

#[test]
fn multi_queue_takes_the_class_that_has_waited_the_largest_part_of_its_objective() {
    let slos = [(SloClass(0), Nanos(100)), (SloClass(1), Nanos(10_000))];
    let mut host = Host::new(MultiQueueShinjuku::multi_queue(slos, SLICE));
    host.wake(0, 1, 1);
    host.wake(50, 2, 0);
    // 20 of 100 is more than 70 of 10,000.
    assert_eq!(host.run(70, 0), Some(2));
    host.wake(4_990, 3, 0);
    // 10 of 100 is less than 5,000 of 10,000.
    assert_eq!(host.run(5_000, 1), Some(1));
    assert_eq!(host.run(5_000, 2), Some(3));
}

/// Two cores, five vCPUs that never block.
#[test]
fn vm_shares_are_fair_and_quanta_are_within_their_bounds() {
    let tuning = VmTuning { cores: 2, ..VmTuning::default() };
    let mut host = Host::new(VmThreads::vm(tuning));
    for thread in 1..=5 {
        host.wake(0, thread, 0);
    }
    let mut on = [host.run(0, 0).unwrap(), host.run(0, 1).unwrap()];
    let (mut began, mut ran, mut waits) = ([0u64; 2], [0u64; 6], [0u64; 6]);
    let mut longest = 0;
    for now in (0..2_000_000_000u64).step_by(1_000_000) {
        while let Some(core) = host.policy.preempt(Nanos(now)) {
            let at = core.0 as usize;
            let old = on[at];
            let quantum = now - began[at];
            assert!((1_000_000..=10_000_000).contains(&quantum), "{quantum}");
            let next = host.policy.pick(Nanos(now), core).unwrap();
            host.tell(now, old, ThreadEvent::Preempted, core.0, 0);
            host.commit(now, next);
            ran[old as usize] += quantum;
            waits[old as usize] = now;
            longest = longest.max(now - waits[next.thread.0 as usize]);
            (on[at], began[at]) = (next.thread.0, now);
        }
    }
    let (least, most) = (ran[1..].iter().min().unwrap(), ran[1..].iter().max().unwrap());
    assert!(*least > 700_000_000 && most - least <= 20_000_000, "{ran:?}");
    assert!(longest <= 40_000_000 + 10_000_000, "{longest}");
}

#[test]
fn a_vm_that_slept_long_does_not_get_all_that_it_missed() {
    let mut host = Host::new(VmThreads::vm(VmTuning::default()));
    host.wake(0, 1, 0);
    host.wake(0, 2, 0);
    assert_eq!(host.run(0, 0), Some(1));
    host.tell(10_000_000, 1, ThreadEvent::Blocked, 0, 0);
    // The second one runs alone for a second.
    assert_eq!(host.run(10_000_000, 0), Some(2));
    host.wake(1_010_000_000, 1, 0);
    assert_eq!(host.policy.preempt(Nanos(1_010_000_000)), Some(CoreId(0)));
    assert_eq!(host.run(1_010_000_000, 0), Some(1));
    host.tell(1_010_000_000, 2, ThreadEvent::Preempted, 0, 0);
    // After its quantum the second one has a quantum too: it is not behind by the second that the first one slept.
    assert_eq!(host.policy.preempt(Nanos(1_020_000_000)), Some(CoreId(0)));
    assert_eq!(host.run(1_020_000_000, 0), Some(2));
    host.tell(1_020_000_000, 1, ThreadEvent::Preempted, 0, 0);
    assert_eq!(host.policy.preempt(Nanos(1_022_000_000)), None);
    assert_eq!(host.policy.preempt(Nanos(1_030_000_000)), Some(CoreId(0)));
}

#[test]
fn a_refused_decision_returns_its_thread_and_a_departed_one_is_gone() {
    let mut host = Host::new(FifoThreads::run_to_completion());
    host.wake(0, 1, 0);
    host.wake(0, 2, 0);
    let first = host.policy.pick(Nanos(1), CoreId(0)).unwrap();
    // It was given another core before the host read the decision: refused, and it waits again.
    host.tell(2, 1, ThreadEvent::Affinity, 3, 0);
    host.policy.outcome(Nanos(3), &first, Outcome::Stale);
    assert_eq!(host.policy.waiting(), 2);
    assert_eq!(host.run(4, 0), Some(2), "the first one may run on core 3 alone");
    let again = host.policy.pick(Nanos(4), CoreId(3)).unwrap();
    assert_eq!((again.thread, again.sequence), (ThreadId(1), host.sequences[&ThreadId(1)]));
    host.tell(5, 1, ThreadEvent::Departed, 0, 0);
    host.policy.outcome(Nanos(6), &again, Outcome::Stale);
    assert_eq!(host.policy.waiting(), 0);
    assert_eq!(host.run(7, 3), None);
}

#[test]
fn a_recall_that_was_too_late_leaves_the_thread_on_the_core_that_took_it() {
    let mut host = Host::new(FifoThreads::run_to_completion());
    host.wake(0, 1, 0);
    let staged = host.policy.pick(Nanos(1), CoreId(0)).unwrap();
    host.policy.recall(Nanos(2), &staged);
    assert_eq!(host.policy.waiting(), 1);
    // The host had it already.
    host.commit(3, staged);
    assert_eq!((host.policy.waiting(), host.run(4, 1)), (0, None));
}

#[test]
fn an_outcome_that_comes_after_the_thread_has_left_changes_nothing() {
    let mut host = Host::new(Shinjuku::preemptive(SLICE));
    host.wake(0, 1, 0);
    let decision = host.policy.pick(Nanos(1), CoreId(0)).unwrap();
    // Committed (sequence 3), ran, blocked (4), woke (5); the message overtakes the outcome.
    host.sequences.insert(ThreadId(1), Sequence(3));
    host.tell(2, 1, ThreadEvent::Blocked, 0, 0);
    host.wake(3, 1, 0);
    host.policy.outcome(Nanos(4), &decision, Outcome::Committed);
    assert_eq!(host.policy.waiting(), 1);
    assert_eq!(host.run(5, 0), Some(1));
}

#[test]
fn a_wake_up_that_overtakes_what_was_before_it_counts() {
    let mut host = Host::new(FifoThreads::run_to_completion());
    host.wake(0, 1, 0);
    assert_eq!(host.run(1, 0), Some(1));
    // Blocked on core 0 (4), woken by core 1 (5); the message of core 1 comes first.
    let of = |sequence, event| {
        let (thread, core, class) = (ThreadId(1), CoreId(0), SloClass(0));
        ThreadMessage { thread, sequence: Sequence(sequence), event, core, class }
    };
    host.policy.message(Nanos(2), &of(5, ThreadEvent::Wakeup));
    host.policy.message(Nanos(3), &of(4, ThreadEvent::Blocked));
    host.sequences.insert(ThreadId(1), Sequence(5));
    assert_eq!(host.run(4, 1), Some(1));
}
