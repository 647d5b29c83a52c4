use softdpu_sched::threads::ThreadDecision;

use super::*;

const CLASS: SloClass = SloClass(0);

fn decided(number: u32, thread: u32, sequence: Sequence, core: u32) -> Transaction {
    let decision = ThreadDecision { core: CoreId(core), thread: ThreadId(thread), sequence };
    Transaction { number, decision, preempts: false }
}

/// Three runnable threads.
fn threads() -> (HostThreads, Vec<Sequence>) {
    let host = HostThreads::new(8, 4).unwrap();
    let woken = (0..3).map(|thread| {
        host.create(ThreadId(thread), CLASS).unwrap();
        host.wake(ThreadId(thread), CLASS).unwrap().sequence
    });
    let sequences = woken.collect();
    (host, sequences)
}

fn outcomes(host: &HostThreads, batch: &[Transaction], grouping: Grouping) -> Vec<Outcome> {
    host.commit(batch, grouping, &mut Vec::new()).iter().map(|found| found.outcome).collect()
}

#[test]
fn a_decision_is_enacted_once() {
    let (host, sequences) = threads();
    let decision = decided(1, 0, sequences[0], 2);
    assert_eq!(outcomes(&host, &[decision, decision], Grouping::Each), [Outcome::Committed, Outcome::Stale]);
    assert_eq!(host.state(ThreadId(0)), (ThreadState::Running(CoreId(2)), sequences[0].next()));
    assert_eq!(host.on(CoreId(2)), Some(ThreadId(0)));
}

#[test]
fn a_thread_that_exited_moved_or_ran_since_refuses_and_nothing_changes() {
    type Change = fn(&HostThreads);
    let changes: [(&str, Change); 4] = [
        ("exited", |host| assert!(host.depart(ThreadId(0)).is_some())),
        ("moved", |host| assert!(host.bind(ThreadId(0), CoreId(1)).is_some())),
        ("exited, and another one has its id", |host| {
            host.depart(ThreadId(0)).unwrap();
            host.create(ThreadId(0), CLASS).unwrap();
            host.wake(ThreadId(0), CLASS).unwrap();
        }),
        ("ran, blocked and woke", |host| {
            let sequence = host.state(ThreadId(0)).1;
            assert_eq!(outcomes(host, &[decided(9, 0, sequence, 3)], Grouping::Each), [Outcome::Committed]);
            host.block(ThreadId(0)).unwrap();
            host.wake(ThreadId(0), CLASS).unwrap();
        }),
    ];
    for (what, change) in changes {
        let (host, sequences) = threads();
        change(&host);
        let before = host.state(ThreadId(0));
        assert_eq!(outcomes(&host, &[decided(1, 0, sequences[0], 0)], Grouping::Each), [Outcome::Stale], "{what}");
        assert_eq!((host.state(ThreadId(0)), host.on(CoreId(0))), (before, None), "{what}");
    }
}

#[test]
fn a_group_is_committed_whole_or_not_at_all() {
    let (host, sequences) = threads();
    host.depart(ThreadId(2)).unwrap();
    let group: Vec<Transaction> = (0..3).map(|at| decided(at, at, sequences[at as usize], at)).collect();
    let found = outcomes(&host, &group, Grouping::Together);
    assert_eq!(found, [Outcome::GroupRefused, Outcome::GroupRefused, Outcome::Stale]);
    for thread in 0..2 {
        let same = (ThreadState::Runnable, sequences[thread as usize]);
        assert_eq!((host.state(ThreadId(thread)), host.on(CoreId(thread))), (same, None));
    }
    // The same decisions are good without the third.
    assert_eq!(outcomes(&host, &group[..2], Grouping::Together), [Outcome::Committed; 2]);
}

#[test]
fn a_group_that_wants_a_core_or_a_thread_twice_is_refused() {
    let (host, sequences) = threads();
    let twice = [decided(0, 0, sequences[0], 1), decided(1, 1, sequences[1], 1)];
    assert_eq!(outcomes(&host, &twice, Grouping::Together), [Outcome::GroupRefused, Outcome::CoreBusy]);
    let same = [decided(0, 0, sequences[0], 1), decided(1, 0, sequences[0], 2)];
    assert_eq!(outcomes(&host, &same, Grouping::Together), [Outcome::GroupRefused, Outcome::Stale]);
    assert_eq!(outcomes(&host, &[twice[0]], Grouping::Each), [Outcome::Committed], "nothing is left reserved");
}

#[test]
fn a_busy_core_refuses_unless_the_decision_preempts() {
    let (host, sequences) = threads();
    outcomes(&host, &[decided(0, 0, sequences[0], 0)], Grouping::Each);
    let next = decided(1, 1, sequences[1], 0);
    assert_eq!(outcomes(&host, &[next], Grouping::Each), [Outcome::CoreBusy]);
    let mut messages = Vec::new();
    let found = host.commit(&[Transaction { preempts: true, ..next }], Grouping::Each, &mut messages);
    assert_eq!(found[0].outcome, Outcome::Committed);
    let (state, sequence) = host.state(ThreadId(0));
    assert_eq!((state, host.on(CoreId(0))), (ThreadState::Runnable, Some(ThreadId(1))));
    let core = CoreId(0);
    let told = ThreadMessage { thread: ThreadId(0), sequence, event: ThreadEvent::Preempted, core, class: CLASS };
    assert_eq!(messages, [told]);
}

#[test]
fn ids_outside_of_the_partition_are_refused() {
    let (host, sequences) = threads();
    let batch = [decided(0, 8, sequences[0], 0), decided(1, 0, sequences[0], 4), decided(2, u32::MAX, sequences[0], 0)];
    assert_eq!(outcomes(&host, &batch, Grouping::Each), [Outcome::NotOwned; 3]);
    // A number that does not fit into the word is of no thread.
    let wrong = decided(3, 0, Sequence(sequences[0].0 | 1 << 60), 0);
    assert_eq!(outcomes(&host, &[wrong], Grouping::Each), [Outcome::Stale]);
    assert!(HostThreads::new(1, 1 << 14).is_none());
}

#[test]
fn a_bound_thread_that_runs_elsewhere_leaves_its_core() {
    let (host, sequences) = threads();
    outcomes(&host, &[decided(0, 0, sequences[0], 0)], Grouping::Each);
    let (bound, left) = host.bind(ThreadId(0), CoreId(3)).unwrap();
    assert_eq!((bound.event, bound.core), (ThreadEvent::Affinity, CoreId(3)));
    assert_eq!(left.map(|message| (message.event, message.core)), Some((ThreadEvent::Preempted, CoreId(0))));
    let (state, sequence) = host.state(ThreadId(0));
    assert_eq!((state, host.on(CoreId(0))), (ThreadState::Runnable, None));
    assert_eq!(outcomes(&host, &[decided(1, 0, sequence, 1)], Grouping::Each), [Outcome::Stale], "another core");
    assert_eq!(outcomes(&host, &[decided(2, 0, sequence, 3)], Grouping::Each), [Outcome::Committed]);
}
