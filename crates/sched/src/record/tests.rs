use proptest::prelude::*;

use super::*;
use crate::driver::{Arrivals, Client, Driver};
use crate::{BackEnd, LatencyClass, Limits, Policy, Rate, SliceEnd, WorkKind, YieldTuning};

fn header() -> Header {
    Header { core: 3, policy: "weighted".to_owned(), parameters: vec![("grant".to_owned(), 8_000)] }
}

fn all(file: &[u8]) -> Result<(Header, Vec<Event>), DecodeError> {
    let (header, decoder) = Decoder::new(file)?;
    Ok((header, decoder.collect::<Result<_, _>>()?))
}

fn written(header: &Header, events: &[Event]) -> Vec<u8> {
    let mut encoder = Encoder::new(header, 1 << 20);
    events.iter().for_each(|event| encoder.write(event));
    encoder.take(Vec::new())
}

fn yielded(now: u64, end: SliceEnd) -> YieldedSlice {
    YieldedSlice { now: Nanos(now), polls: 513, spun: Nanos(49_000), slice: Nanos(50_000), end }
}

/// One of each event, and each optional field there and not there.
fn each() -> Vec<Event> {
    let queue = QueueId { tenant: TenantId(7), index: 300 };
    let grant = Grant { queue, units: 64 };
    let rate = Some(Rate { rate: 50_000, burst: 500 });
    let limits = Limits { requests: rate, bytes: None, packets: Some(Rate { rate: u64::MAX, burst: 1 }) };
    let placement = Placement { device: 9, kind: WorkKind::Packets, back_end: Some(BackEnd { index: 2, depth: 128 }) };
    let tuning = YieldTuning {
        threshold: 512,
        least: 32,
        most: 8_192,
        slice: Nanos(50_000),
        longest: Nanos(102_400_000),
        spin: Nanos(50_000),
    };
    vec![
        Event::Configure { tenant: TenantId(0), share: Share::default() },
        Event::Configure {
            tenant: TenantId(u16::MAX),
            share: Share { weight: 4, guarantee: 250, class: LatencyClass::Background, limits, cores: 0 },
        },
        Event::Place { queue, placement },
        Event::Place { queue, placement: Placement::default() },
        Event::Ready { now: Nanos(1_000_000), queue, work: Work { units: 70, bytes: 70 << 12 } },
        Event::Decide { now: Nanos(1_000_400), decision: Decision::Run(grant) },
        Event::Charge {
            now: Nanos(1_009_400),
            grant,
            cost: Cost { units: 64, time: Nanos(9_000), bytes: 64 << 12, pending: 64 },
        },
        // The clock went back.
        Event::Decide { now: Nanos(1_009_300), decision: Decision::IdleUntil(Nanos(1_020_000)) },
        Event::Again { now: Nanos(1_019_000), times: 4_000 },
        Event::Complete {
            now: Nanos(1_019_500),
            grant: Grant { queue, units: 1 },
            cost: Cost { units: 1, time: Nanos(19_000), bytes: 4_096, pending: 0 },
        },
        Event::Cancel { now: Nanos(1_019_600), queue },
        Event::Decide { now: Nanos(1_019_700), decision: Decision::Idle },
        Event::Yielding(YieldPolicy::Never),
        Event::Yielding(YieldPolicy::After(Nanos(50_000))),
        Event::Yielding(YieldPolicy::Adaptive(tuning)),
        Event::Yielded(yielded(1_200_000, SliceEnd::Expired)),
        Event::Yielded(yielded(1_250_000, SliceEnd::Preempted)),
        Event::Yielded(yielded(1_260_000, SliceEnd::Due)),
        Event::Stopped,
    ]
}

/// What version 1 had: no yields.
fn each_of_version_1() -> Vec<Event> {
    let is_yield = |event: &Event| matches!(event, Event::Yielding(_) | Event::Yielded(_));
    each().into_iter().filter(|event| !is_yield(event)).collect()
}

const GOLDEN_1: &[u8] = include_bytes!("../../tests/golden/recording-1");
const GOLDEN: &[u8] = include_bytes!("../../tests/golden/recording-2");

#[test]
fn a_file_of_version_1_is_read() {
    assert_eq!(all(GOLDEN_1), Ok((header(), each_of_version_1())));
}

#[test]
fn a_file_of_version_2_is_read_and_written_as_it_was() {
    assert_eq!(all(GOLDEN), Ok((header(), each())));
    assert_eq!(written(&header(), &each()), GOLDEN, "a change of the format is a new version");
}

#[test]
fn a_file_that_ends_anywhere_gives_what_is_whole_and_says_where_it_ends() {
    let ends: Vec<usize> = {
        let (_, mut decoder) = Decoder::new(GOLDEN).expect("the golden file");
        let mut ends = vec![decoder.offset()];
        while decoder.next().is_some() {
            ends.push(decoder.offset());
        }
        ends
    };
    for length in 0..GOLDEN.len() {
        let read = all(&GOLDEN[..length]);
        match read {
            Ok((_, events)) => {
                assert!(ends.contains(&length));
                assert_eq!(events, each()[..events.len()]);
            }
            Err(DecodeError { offset, fault }) => {
                let expected =
                    if length < MAGIC.len() { (0, Fault::NotARecording) } else { (length, Fault::Truncated) };
                assert_eq!((offset, fault), expected);
            }
        }
    }
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let fault = |file: &[u8]| all(file).map(|_| ()).expect_err("damaged");
    let start = Decoder::new(GOLDEN).expect("the golden file").1.offset();
    let with = |tail: &[u8]| [&GOLDEN[..start], tail].concat();
    assert_eq!(fault(b"not a recording"), DecodeError { offset: 0, fault: Fault::NotARecording });
    let mut other = GOLDEN.to_vec();
    other[8] = 3;
    assert_eq!(fault(&other), DecodeError { offset: 8, fault: Fault::Version(3) });
    assert_eq!(fault(&with(&[99])), DecodeError { offset: start, fault: Fault::Opcode(99) });
    assert_eq!(fault(&with(&[opcode::AGAIN, 0, 1])), DecodeError { offset: start, fault: Fault::Again });
    let stopped = with(&[opcode::STOPPED, opcode::STOPPED]);
    assert_eq!(fault(&stopped), DecodeError { offset: start + 1, fault: Fault::AfterStop });
    let endless = with(&[[opcode::IDLE].as_slice(), &[0xff; 10]].concat());
    assert_eq!(fault(&endless), DecodeError { offset: start + 1, fault: Fault::TooLarge });
    // Queue number 2^32 - 1 of tenant 0.
    let queue = with(&[opcode::CANCEL, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    let value = u64::from(u32::MAX);
    assert_eq!(fault(&queue), DecodeError { offset: start + 3, fault: Fault::Field { name: "a queue", value } });
    // A time before the clock's origin.
    assert!(matches!(fault(&with(&[opcode::IDLE, 1])).fault, Fault::Field { name: "a time", .. }));
}

#[test]
fn a_full_buffer_stops_the_recording_and_says_so() {
    let mut recording = Recording::new(crate::Fcfs::new(), &header(), 4_096);
    let queue = QueueId { tenant: TenantId(0), index: 0 };
    let mut file = Vec::new();
    for round in 0..100 {
        recording.ready(Nanos(round), queue, Work { units: 1, bytes: 0 });
        let _ = recording.decide(Nanos(round));
    }
    assert!(!recording.is_stopped());
    file.extend(recording.take(Vec::with_capacity(4_096)));
    for round in 0..10_000 {
        recording.ready(Nanos(round), queue, Work { units: 1, bytes: 0 });
        let _ = recording.decide(Nanos(round));
    }
    assert!(recording.is_stopped());
    assert!(recording.pending() <= 4_096);
    file.extend(recording.finish().1);
    let (_, events) = all(&file).expect("whole");
    assert_eq!(events.last(), Some(&Event::Stopped));
    assert!(events.len() > 300 && events.len() < 2_000);
}

/// Makes a recording's calls to another policy, and compares its decisions.
fn replay(events: &[Event], mut policy: impl TenantScheduler) -> usize {
    let (mut asked, mut grants) = (0, 0);
    let mut last = None;
    for event in events {
        match *event {
            Event::Configure { tenant, share } => policy.configure(tenant, share),
            Event::Place { queue, placement } => policy.place(queue, placement),
            Event::Ready { now, queue, work } => policy.ready(now, queue, work),
            Event::Decide { now, decision } => {
                assert_eq!(policy.decide(now), decision, "decision {asked}");
                asked += 1;
                grants += usize::from(matches!(decision, Decision::Run(_)));
                last = Some(decision);
            }
            Event::Again { now, .. } => assert_eq!(Some(policy.decide(now)), last),
            Event::Charge { now, grant, cost } => policy.charge(now, grant, cost),
            Event::Complete { now, grant, cost } => policy.complete(now, grant, cost),
            Event::Cancel { now, queue } => policy.cancel(now, queue),
            Event::Yielding(_) | Event::Yielded(_) | Event::Stopped => {}
        }
    }
    grants
}

/// A policy that is asked several times while it has nothing to run, as by a core that polls.
struct Polled<S>(S);

impl<S> Preemption for Polled<S> {}
impl<S> DeferredWork for Polled<S> {}

impl<S: TenantScheduler> TenantScheduler for Polled<S> {
    fn configure(&mut self, tenant: TenantId, share: Share) {
        self.0.configure(tenant, share);
    }
    fn place(&mut self, queue: QueueId, placement: Placement) {
        self.0.place(queue, placement);
    }
    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        self.0.ready(now, queue, work);
    }
    fn decide(&mut self, now: Nanos) -> Decision {
        let mut decision = self.0.decide(now);
        for _ in 0..3 {
            if matches!(decision, Decision::Run(_)) {
                break;
            }
            decision = self.0.decide(now);
        }
        decision
    }
    fn charge(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        self.0.charge(now, grant, cost);
    }
    fn complete(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        self.0.complete(now, grant, cost);
    }
    fn cancel(&mut self, now: Nanos, queue: QueueId) {
        self.0.cancel(now, queue);
    }
}

#[test]
fn every_policy_decides_again_as_it_did() {
    for name in Policy::NAMES {
        let policy = Policy::named(name).expect("a policy");
        let header = Header { core: 0, policy: name.to_owned(), parameters: policy.parameters() };
        let mut recording = Recording::new(policy.build(), &header, 1 << 22);
        let limits = Limits { requests: Some(Rate { rate: 90_000, burst: 20 }), ..Limits::default() };
        recording.configure(TenantId(0), Share { weight: 3, guarantee: 100, limits, ..Share::default() });
        let back_end = Some(BackEnd { index: 0, depth: 8 });
        let mut disk = Client::new(2, 2, 700, Arrivals::Closed { depth: 30, think: 9_000 });
        disk.placement.back_end = back_end;
        disk.back_end = Some(60_000);
        let clients =
            [Client::flood(0, 0, 1_000), Client::new(1, 1, 2_000, Arrivals::Open { units: 3, every: 50_000 }), disk];
        let mut driver = Driver::new(Polled(recording), &clients);
        driver.run(20_000_000);
        let (_, file) = driver.dispatcher.into_policy().0.finish();
        let (read, events) = all(&file).expect("a recording");
        assert_eq!(read, header);
        assert_ne!(events.last(), Some(&Event::Stopped));
        let again = Policy::named(name).and_then(|policy| policy.with(&read.parameters)).expect("the same policy");
        assert_eq!(replay(&events, again.build()), driver.log.len(), "{name}");
        assert!(driver.log.len() > 100, "{name}");
    }
}

fn event() -> impl Strategy<Value = Event> {
    let queue =
        (any::<u16>(), 0..=LARGEST_QUEUE).prop_map(|(tenant, index)| QueueId { tenant: TenantId(tenant), index });
    let time = (0..=LARGEST_TIME.0).prop_map(Nanos);
    let grant = (queue.clone(), any::<u32>()).prop_map(|(queue, units)| Grant { queue, units });
    let cost = (any::<u32>(), time.clone(), any::<u64>(), any::<u32>());
    let cost = cost.prop_map(|(units, time, bytes, pending)| Cost { units, time, bytes, pending });
    let rate = proptest::option::of((any::<u64>(), any::<u64>()).prop_map(|(rate, burst)| Rate { rate, burst }));
    let share = (any::<u32>(), any::<u16>(), 0_usize..3, rate.clone(), rate.clone(), rate, any::<u16>());
    let share = share.prop_map(|(weight, guarantee, class, requests, bytes, packets, cores)| Share {
        weight,
        guarantee,
        class: [LatencyClass::Latency, LatencyClass::Normal, LatencyClass::Background][class],
        limits: Limits { requests, bytes, packets },
        cores,
    });
    let back_end = proptest::option::of((0..=LARGEST_BACK_END, any::<u32>()));
    let duration = time.clone();
    let tuning = (any::<u64>(), any::<u64>(), any::<u64>(), duration.clone(), duration.clone(), duration.clone());
    let tuning = tuning.prop_map(|(threshold, least, most, slice, longest, spin)| YieldTuning {
        threshold,
        least,
        most,
        slice,
        longest,
        spin,
    });
    let end = prop_oneof![Just(SliceEnd::Expired), Just(SliceEnd::Preempted), Just(SliceEnd::Due)];
    let slice = (time.clone(), any::<u64>(), duration.clone(), duration.clone(), end);
    let slice = slice.prop_map(|(now, polls, spun, slice, end)| YieldedSlice { now, polls, spun, slice, end });
    let placement = (any::<u32>(), any::<bool>(), back_end).prop_map(|(device, packets, back_end)| Placement {
        device,
        kind: if packets { WorkKind::Packets } else { WorkKind::Requests },
        back_end: back_end.map(|(index, depth)| BackEnd { index, depth }),
    });
    prop_oneof![
        (any::<u16>(), share).prop_map(|(tenant, share)| Event::Configure { tenant: TenantId(tenant), share }),
        (queue.clone(), placement).prop_map(|(queue, placement)| Event::Place { queue, placement }),
        (time.clone(), queue.clone(), any::<u32>(), any::<u64>()).prop_map(|(now, queue, units, bytes)| Event::Ready {
            now,
            queue,
            work: Work { units, bytes }
        }),
        (time.clone(), grant.clone()).prop_map(|(now, grant)| Event::Decide { now, decision: Decision::Run(grant) }),
        (time.clone(), time.clone()).prop_map(|(now, at)| Event::Decide { now, decision: Decision::IdleUntil(at) }),
        (time.clone(), grant.clone(), cost.clone()).prop_map(|(now, grant, cost)| Event::Charge { now, grant, cost }),
        (time.clone(), grant, cost).prop_map(|(now, grant, cost)| Event::Complete { now, grant, cost }),
        (time, queue).prop_map(|(now, queue)| Event::Cancel { now, queue }),
        Just(Event::Yielding(YieldPolicy::Never)),
        duration.prop_map(|spin| Event::Yielding(YieldPolicy::After(spin))),
        tuning.prop_map(|tuning| Event::Yielding(YieldPolicy::Adaptive(tuning))),
        slice.prop_map(Event::Yielded),
    ]
}

proptest! {
    #[test]
    fn what_was_written_is_read(mut events in proptest::collection::vec(event(), 0..60)) {
        // The same answer twice running is recorded as one that was asked for again.
        events.dedup_by(|a, b| matches!((a, b), (Event::Decide { decision: x, .. }, Event::Decide { decision: y, .. }) if x == y));
        prop_assert_eq!(all(&written(&header(), &events)), Ok((header(), events)));
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        tail in proptest::collection::vec(any::<u8>(), 0..200),
        flip in (0_usize..1_000, any::<u8>()),
    ) {
        let mut file = GOLDEN.to_vec();
        let at = flip.0 % file.len();
        file[at] = flip.1;
        file.extend(tail);
        if let Err(error) = all(&file) {
            prop_assert!(error.offset <= file.len(), "{error}");
        }
    }
}

#[test]
fn deferred_work_is_in_the_recorded_cost_and_has_the_default_order() {
    let mut recording = Recording::new(crate::Weighted::default(), &header(), 4_096);
    let tenant = TenantId(0);
    recording.configure(tenant, Share::default());
    assert!(!recording.charge_deferred(Nanos(1), tenant, Nanos(1_000)), "no event of a recording has it");
    // By tags that are not charged for it, it would be first for ever.
    assert_eq!(
        (recording.deferred_rank(tenant), recording.deferred_precedence(tenant)),
        (0, crate::Precedence::InTurn)
    );
}
