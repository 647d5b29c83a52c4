//! A core that gives its CPU away, driven by hand.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use softdpu_sched::YieldTuning;
use softdpu_sys::clock;
use softdpu_sys::wake::Doorbell;

use super::*;
use crate::core::yielding::Idle;
use crate::message::QueueUpdate;

/// Longer than any test.
const MINUTE: Nanos = Nanos(60_000_000_000);

fn no_networks() -> Arc<Tables> {
    Arc::new(Tables::build(&Spec::default(), None).unwrap())
}

/// A core that yields by these bounds, with a queue.
fn yielding(slice: Nanos, longest: Nanos) -> (Core<Recorder>, Guest, Inbox<FromCore>) {
    yielding_with(Format::Split, slice, longest)
}

fn yielding_with(format: Format, slice: Nanos, longest: Nanos) -> (Core<Recorder>, Guest, Inbox<FromCore>) {
    let (mut core, events) = bare(no_networks());
    core.set_yielding(YieldPolicy::Adaptive(YieldTuning { slice, longest, ..YieldTuning::default() }));
    let guest = Guest::new(format);
    let volume = memory_volume(1 << 20);
    core.handle(ToCore::Start(Box::new(RunningQueue::new(KEY, guest.spec(&volume, 3)))));
    (core, guest, events)
}

fn yield_once(core: &mut Core<Recorder>) {
    let now = clock::now();
    let slice = core.work.dispatcher.yielding().slice();
    core.give_away(Idle::since(now), now, slice);
}

/// How often the core yielded, and what became of that: expired, preempted; by kicks, messages, the clock.
fn tally(core: &Core<Recorder>) -> [u64; 6] {
    let counters = &core.accounting.counters;
    let yields = &counters.yields;
    let ends = [&yields.expired, &yields.preempted, &yields.by_kick, &yields.by_message, &yields.by_timer];
    let [expired, preempted, kick, message, timer] = ends.map(|counter| counter.get());
    [counters.sleeps.get(), expired, preempted, kick, message, timer]
}

/// Threshold and slice, as `status` has them.
fn adapted(core: &Core<Recorder>) -> (u64, u64) {
    let yields = &core.accounting.counters.yields;
    (yields.threshold.get(), yields.slice_ns.get())
}

/// Does something once the core has given its CPU away, and some time later.
fn meanwhile(core: &Core<Recorder>, then: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    let counters = Arc::clone(&core.accounting.counters);
    std::thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !counters.asleep.load(Relaxed) {
            assert!(Instant::now() < deadline, "the core has not yielded within 20 s");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(3));
        then();
    })
}

#[test]
fn a_slice_in_which_nothing_comes_expires_and_the_next_is_twice_as_long() {
    let (mut core, _guest, _events) = yielding(Nanos(50_000), Nanos(200_000));
    assert_eq!(adapted(&core), (512, 50_000));
    for expected in [(256, 100_000), (128, 200_000), (64, 200_000)] {
        yield_once(&mut core);
        assert_eq!(adapted(&core), expected);
    }
    assert_eq!(tally(&core), [3, 3, 0, 0, 0, 3]);
}

#[test]
fn a_kick_ends_a_slice_and_the_next_is_the_first_again() {
    for format in [Format::Split, Format::Packed] {
        let (mut core, mut guest, _events) = yielding_with(format, Nanos(50_000), MINUTE);
        yield_once(&mut core);
        assert_eq!(adapted(&core), (256, 100_000));
        // What comes before notifications are armed is seen: there is no slice.
        assert!(guest.submit(None, 0));
        assert!(!guest.driver.publish(), "{format:?}: a core that polls wants no kicks");
        yield_once(&mut core);
        assert_eq!(tally(&core)[0], 1);
        core.round(clock::now());
        assert_eq!(guest.take().map(|(status, _)| status), Some(0));
        // What comes after rings.
        let (slice, longest) = (MINUTE, MINUTE);
        core.set_yielding(YieldPolicy::Adaptive(YieldTuning { slice, longest, ..YieldTuning::default() }));
        let kick = guest.memory.kick.as_fd().try_clone_to_owned().unwrap();
        let driver = meanwhile(&core, move || assert_eq!(rustix::io::write(&kick, &1_u64.to_ne_bytes()), Ok(8)));
        yield_once(&mut core);
        driver.join().unwrap();
        assert_eq!(tally(&core), [2, 1, 1, 1, 0, 1]);
        assert_eq!(adapted(&core), (1_024, MINUTE.0));
        assert!(guest.submit(None, 1));
        assert!(!guest.driver.publish(), "{format:?}: kicks are suppressed again");
    }
}

#[test]
fn notifications_are_armed_for_as_long_as_the_slice() {
    let (mut core, mut guest, _events) = yielding(MINUTE, MINUTE);
    let counters = Arc::clone(&core.accounting.counters);
    std::thread::scope(|scope| {
        let driver = scope.spawn(move || {
            let deadline = Instant::now() + Duration::from_secs(20);
            while !counters.asleep.load(Relaxed) {
                assert!(Instant::now() < deadline, "the core has not yielded within 20 s");
                std::thread::yield_now();
            }
            assert!(guest.submit(None, 0));
            let is_wanted = guest.driver.publish();
            guest.memory.kick.ring();
            is_wanted
        });
        yield_once(&mut core);
        assert!(driver.join().unwrap(), "a core that has yielded wants a kick");
    });
}

#[test]
fn a_message_preempts_and_a_deadline_of_the_cores_own_teaches_nothing() {
    let (mut core, _guest, _events) = yielding(MINUTE, MINUTE);
    let own_mailbox = core.links.peers[0].clone();
    let sender = meanwhile(&core, move || own_mailbox.send(ToCore::Forget(KEY)));
    yield_once(&mut core);
    sender.join().unwrap();
    assert_eq!(tally(&core), [1, 0, 1, 0, 1, 0]);
    assert_eq!(adapted(&core), (1_024, MINUTE.0));
    core.round(clock::now());
    // A queue that rests, as on the slow core: what it has is due in a millisecond.
    core.queues.get_mut(0).expect("a queue").rests_until = clock::now() + 1_000_000;
    yield_once(&mut core);
    assert_eq!(tally(&core), [2, 0, 1, 0, 1, 1], "due, not expired");
    assert_eq!(adapted(&core), (1_024, MINUTE.0));
}

/// A long span of work right after a slice is no stall of the queue that it was for: the thread has waited, but before.
#[test]
fn a_slice_is_charged_to_no_queue() {
    for is_preempted in [true, false] {
        let slice = if is_preempted { MINUTE } else { Nanos(5_000_000) };
        let (mut core, _guest, _events) = yielding(slice, slice);
        let own_mailbox = core.links.peers[0].clone();
        let sender = is_preempted.then(|| meanwhile(&core, move || own_mailbox.send(ToCore::Forget(KEY))));
        yield_once(&mut core);
        let ended = clock::now();
        let spent = core.accounting.spent(ended - 200_000, ended);
        assert!(!spent.has_waited, "preempted {is_preempted}: {spent:?}");
        assert_eq!(tally(&core)[2], u64::from(is_preempted));
        sender.into_iter().for_each(|sender| sender.join().unwrap());
    }
}

fn eventfd(bell: &Doorbell) -> Option<OwnedFd> {
    bell.as_fd().try_clone_to_owned().ok()
}

/// The driver of a queue that rests on the slow core has another eventfd: it may have armed before that came, and is
/// interrupted at once, by the core that has the queue and no other.
#[test]
fn an_interrupt_that_cannot_wait_is_sent_by_the_slow_core_though_the_queue_rests() {
    const SLOW: CoreIndex = CoreIndex(1);
    let (mut core, _events, to_slow) = of_two(no_networks(), CoreIndex(0), Some(SLOW));
    let (mut slow, slow_events, _to_core) = of_two(no_networks(), SLOW, Some(SLOW));
    let guest = Guest::new(Format::Split);
    let volume = memory_volume(1 << 20);
    core.handle(ToCore::Start(Box::new(RunningQueue::new(KEY, guest.spec(&volume, 3)))));
    core.handle(ToCore::Move { key: KEY, to: SLOW, serial: 1 });
    let bell = Doorbell::new().unwrap();
    core.handle(ToCore::Update { key: KEY, update: QueueUpdate::Call(eventfd(&bell)), token: 7 });
    assert!(!bell.drain(), "signalled by a core that does not have the queue");
    slow.handle(to_slow.next().expect("the queue"));
    slow.queues.get_mut(0).expect("the queue").rests_until = u64::MAX;
    slow.handle(to_slow.next().expect("what was for it"));
    assert!(bell.drain(), "the queue rests, its interrupts do not");
    assert!(to_slow.next().is_none() && !slow.completions.has_interrupts());
    let updated = std::iter::from_fn(|| slow_events.next());
    assert!(updated.into_iter().any(|event| matches!(event, FromCore::Updated { token: 7, .. })));
}
