//! One core, driven by hand, with a scheduler that writes down what it is told.

mod encrypted;
mod frames;
mod loans;
mod yielding;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use softdpu_ring::Format;
use softdpu_sched::{
    Cost, Decision, DeferredWork, Fcfs, Grant, LatencyClass, Nanos, Precedence, Preemption, QueueId, Share, TenantId,
    TenantScheduler, Work, YieldPolicy,
};
use softdpu_storage::{IoContext, PathBroker, Volume, VolumeKind, VolumeSpec};
use softdpu_sys::notify::Notifier;
use softdpu_vpc::Tables;
use softdpu_vpc::spec::Spec;

use super::{Core, CoreParts};
use crate::common::disk::{Guest, memory_volume};
use crate::counters::{CoreCounters, TenantCounters};
use crate::frames::ForwarderShared;
use crate::ids::{CoreIndex, QueueKey};
use crate::links::CoreLinks;
use crate::mailbox::{Inbox, mailbox};
use crate::message::{FromCore, ToCore};
use crate::queue::RunningQueue;

const KEY: QueueKey = QueueKey { number: 0, generation: 1 };

/// First come, first served, with its books open.
#[derive(Default)]
struct Recorder {
    policy: Fcfs,
    /// What happens while the first grant is decided, and the tenant that preempts all others from then on.
    meanwhile: Option<Box<dyn FnOnce()>>,
    first: Option<TenantId>,
    /// It ticks all the time, and `first` preempts at a tick.
    ticks: bool,
    /// It says that it never ends a grant.
    never_preempts: bool,
    charged: Vec<(Grant, Cost)>,
    completed: Vec<(Grant, Cost)>,
    /// It charges what is done beside grants, and writes it down.
    spends: bool,
    spent: Vec<(TenantId, Nanos)>,
    /// The tenant with work that goes on only where no other's may be granted.
    held: Option<TenantId>,
    /// It grants nothing.
    is_idle: bool,
    /// So many more grants, and then it says that it is to be asked again at once.
    grants_left: Option<u32>,
}

impl TenantScheduler for Recorder {
    fn configure(&mut self, tenant: TenantId, share: Share) {
        self.policy.configure(tenant, share);
    }
    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        self.policy.ready(now, queue, work);
    }
    fn decide(&mut self, now: Nanos) -> Decision {
        if let Some(meanwhile) = self.meanwhile.take() {
            meanwhile();
        }
        match &mut self.grants_left {
            Some(0) => return Decision::IdleUntil(now),
            Some(left) => *left -= 1,
            None => {}
        }
        if self.is_idle { Decision::Idle } else { self.policy.decide(now) }
    }
    fn charge(&mut self, _now: Nanos, grant: Grant, cost: Cost) {
        self.charged.push((grant, cost));
    }
    fn complete(&mut self, _now: Nanos, grant: Grant, cost: Cost) {
        self.completed.push((grant, cost));
    }
    fn cancel(&mut self, now: Nanos, queue: QueueId) {
        self.policy.cancel(now, queue);
    }
}

impl Preemption for Recorder {
    /// A round runs all that came before it, however slow the machine.
    fn turn(&self, _now: Nanos) -> Nanos {
        Nanos(u64::MAX)
    }
    fn can_preempt(&self) -> bool {
        !self.never_preempts
    }
    fn wakeup_preempt(&self, tenant: TenantId) -> bool {
        self.first == Some(tenant)
    }
    fn tick(&self) -> Option<Nanos> {
        self.ticks.then_some(Nanos(1))
    }
    fn tick_preempt(&self, tenant: TenantId) -> bool {
        self.first == Some(tenant)
    }
}

impl DeferredWork for Recorder {
    /// The larger its number, the earlier.
    fn deferred_rank(&self, tenant: TenantId) -> u64 {
        u64::from(u16::MAX - tenant.0)
    }
    fn deferred_precedence(&self, tenant: TenantId) -> Precedence {
        if self.held == Some(tenant) { Precedence::Last } else { Precedence::InTurn }
    }
    fn charge_deferred(&mut self, _now: Nanos, tenant: TenantId, time: Nanos) -> bool {
        self.spent.push((tenant, time));
        self.spends
    }
}

/// A core without queues, and what it tells the control thread.
fn bare(tables: Arc<Tables>) -> (Core<Recorder>, Inbox<FromCore>) {
    let (core, events, _) = beside_another(tables);
    (core, events)
}

/// The same, and what it tells a second core.
fn beside_another(tables: Arc<Tables>) -> (Core<Recorder>, Inbox<FromCore>, Inbox<ToCore>) {
    of_two(tables, CoreIndex(0), None)
}

/// One of two cores, and what it tells the other. `slow`: the one of them that is the slow core.
fn of_two(
    tables: Arc<Tables>,
    index: CoreIndex,
    slow: Option<CoreIndex>,
) -> (Core<Recorder>, Inbox<FromCore>, Inbox<ToCore>) {
    let (peer, inbox) = mailbox().unwrap();
    let (other, other_inbox) = mailbox().unwrap();
    let (control, events) = mailbox().unwrap();
    let peers = if index == CoreIndex(0) { vec![peer, other] } else { vec![other, peer] };
    let core = Core::new(CoreParts {
        links: CoreLinks { index, peers, slow, control },
        scheduler: Recorder::default(),
        io: IoContext::new(64).unwrap(),
        notifier: Notifier::new().unwrap(),
        inbox,
        counters: Arc::new(CoreCounters::default()),
        yielding: YieldPolicy::Never,
        shared: ForwarderShared::new(2),
        tables,
        flows: 64,
    })
    .unwrap();
    (core, events, other_inbox)
}

fn core_with(guest: &Guest, volume: &Arc<Volume>) -> Core<Recorder> {
    let (mut core, _events) = bare(Arc::new(Tables::build(&Spec::default(), None).unwrap()));
    core.handle(ToCore::Start(Box::new(RunningQueue::new(KEY, guest.spec(volume, 3)))));
    core
}

/// Reads three sectors, or writes them, and gives back the core.
fn move_three(volume: &Arc<Volume>, write: Option<&[u8; 512]>) -> Core<Recorder> {
    let mut guest = Guest::new(Format::Split);
    let mut core = core_with(&guest, volume);
    (0..3).for_each(|sector| assert!(guest.submit(write, sector)));
    guest.publish();
    while guest.outstanding() > 0 {
        core.round(softdpu_sys::clock::now());
        while let Some((status, _)) = guest.take() {
            assert_eq!(status, 0);
        }
    }
    core
}

#[test]
fn the_scheduler_is_told_what_a_back_end_did_for_a_grant_when_it_ended() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let path = file.path().to_owned();
    let kind = VolumeKind::File { path, size: None, create: false, direct: false, discard: true };
    let volume = Volume::open(VolumeSpec::new("disk", kind), &PathBroker::new()).unwrap();
    volume.activate().unwrap();
    // Writes: reads of what is in the page cache end within their grant.
    let core = move_three(&volume, Some(&[7; 512]));
    let queue = QueueId { tenant: TenantId(3), index: 0 };
    let completed: Vec<_> = core
        .work
        .dispatcher
        .policy()
        .completed
        .iter()
        .map(|(grant, cost)| (grant.queue, cost.units, cost.bytes))
        .collect();
    assert_eq!(completed, [(queue, 1, 512); 3]);
    assert!(core.work.dispatcher.policy().completed.iter().all(|(_, cost)| cost.time > Nanos(0)));
    let pending: u32 = core.work.dispatcher.policy().charged.iter().map(|(_, cost)| cost.pending).sum();
    assert_eq!(pending, 3, "the grant left them at the back end");
}

/// Starts a queue with 70 requests in its ring.
fn start_full(core: &mut Core<Recorder>, number: u32, volume: &Arc<Volume>) -> (Guest, QueueKey) {
    let mut guest = Guest::new(Format::Split);
    let key = QueueKey { number, generation: 1 };
    core.handle(ToCore::Start(Box::new(RunningQueue::new(key, guest.spec(volume, 3)))));
    (0..70).for_each(|sector| assert!(guest.submit(None, sector)));
    guest.publish();
    (guest, key)
}

#[test]
fn a_full_channel_takes_nothing_more_and_what_moves_in_with_a_queue_is_beyond_it() {
    let volume = memory_volume(1 << 20);
    let tables = || Arc::new(Tables::build(&Spec::default(), None).unwrap());
    let waiting = |core: &Core<Recorder>| core.work.channels.waiting(TenantId(3)) as usize;
    let (mut core, _events) = bare(tables());
    core.work.dispatcher.policy_mut().is_idle = true;
    let mut guests: Vec<Guest> = (0..17).map(|number| start_full(&mut core, number, &volume).0).collect();
    for _ in 0..10 {
        core.round(softdpu_sys::clock::now());
    }
    let each: Vec<usize> = core.queues.iter().map(|queue| queue.waiting.len()).collect();
    assert_eq!((waiting(&core), each.iter().sum()), (1_024, 1_024), "{each:?}");
    assert!(each.iter().all(|waiting| *waiting <= 64), "{each:?}");

    // One of the same tenant's that has taken requests on another core.
    let (mut other, _events, inbox) = beside_another(tables());
    other.work.dispatcher.policy_mut().is_idle = true;
    let (guest, key) = start_full(&mut other, 17, &volume);
    guests.push(guest);
    for _ in 0..10 {
        other.round(softdpu_sys::clock::now());
    }
    assert_eq!(waiting(&other), 64);
    other.handle(ToCore::Move { key, to: CoreIndex(1), serial: 1 });
    assert_eq!(waiting(&other), 0);
    inbox.posted();
    core.handle(inbox.take().expect("the queue is sent on"));
    assert_eq!(waiting(&core), 1_024 + 64, "they were taken already");
    for _ in 0..10 {
        core.round(softdpu_sys::clock::now());
    }
    assert_eq!(waiting(&core), 1_024 + 64, "nothing more is taken");

    core.work.dispatcher.policy_mut().is_idle = false;
    let mut left = 18 * 70;
    for _ in 0..100_000 {
        core.round(softdpu_sys::clock::now());
        assert!(waiting(&core) <= 1_024 + 64);
        left -= guests.iter_mut().map(|guest| std::iter::from_fn(|| guest.take()).count()).sum::<usize>();
    }
    assert_eq!(left, 0, "everything that waited in the rings was served in the end");
}

#[test]
fn a_move_that_another_has_overtaken_moves_nothing() {
    let tables = Arc::new(Tables::build(&Spec::default(), None).unwrap());
    let (mut core, _events, inbox) = beside_another(tables);
    let (_guest, key) = start_full(&mut core, 0, &memory_volume(1 << 20));
    // Away, back and away again: the last came first, from the core that the queue was on.
    core.handle(ToCore::Move { key, to: CoreIndex(0), serial: 3 });
    core.handle(ToCore::Move { key, to: CoreIndex(1), serial: 2 });
    assert!(core.queues.find(key).is_some() && inbox.take().is_none());
    core.handle(ToCore::Move { key, to: CoreIndex(1), serial: 4 });
    assert!(core.queues.find(key).is_none());
}

#[test]
fn what_ends_within_its_grant_is_charged_once() {
    let core = move_three(&memory_volume(1 << 20), None);
    let charged: Vec<_> =
        core.work.dispatcher.policy().charged.iter().map(|(_, cost)| (cost.units, cost.bytes, cost.pending)).collect();
    assert_eq!(charged, [(3, 3 * 512, 0)]);
    assert!(core.work.dispatcher.policy().completed.is_empty());
}

/// Units of each grant that ran, ten requests of one tenant and one of another, of class `class`, which comes as the
/// first is decided.
fn beside(class: LatencyClass, ends: impl FnOnce(&mut Recorder)) -> Vec<(u16, u32)> {
    let volume = memory_volume(1 << 20);
    let mut flood = Guest::new(Format::Split);
    let urgent = Rc::new(RefCell::new(Guest::new(Format::Split)));
    let mut core = core_with(&flood, &volume);
    ends(core.work.dispatcher.policy_mut());
    let key = QueueKey { number: 1, generation: 1 };
    let queue = RunningQueue::new(key, urgent.borrow().spec(&volume, 5));
    core.handle(ToCore::Start(Box::new(queue)));
    let share = Share { class, ..Share::default() };
    core.handle(ToCore::Tenant(TenantId(5), share, Arc::new(TenantCounters::default())));
    (0..10).for_each(|sector| assert!(flood.submit(None, sector)));
    flood.publish();
    let comes = Rc::clone(&urgent);
    core.work.dispatcher.policy_mut().first = Some(TenantId(5));
    core.work.dispatcher.policy_mut().meanwhile = Some(Box::new(move || {
        assert!(comes.borrow_mut().submit(None, 0));
        comes.borrow_mut().publish();
    }));
    for _ in 0..3 {
        core.round(softdpu_sys::clock::now());
    }
    assert_eq!((0..10).filter(|_| flood.take().is_some_and(|(status, _)| status == 0)).count(), 10, "all of it runs");
    assert_eq!(urgent.borrow_mut().take().map(|(status, _)| status), Some(0));
    core.work.dispatcher.policy().charged.iter().map(|(grant, cost)| (grant.queue.tenant.0, cost.units)).collect()
}

#[test]
fn an_urgent_arrival_preempts_a_grant_at_its_next_request() {
    // First come, first served as this one is, what was left comes first: it was ready again before.
    assert_eq!(beside(LatencyClass::Latency, |_| ()), [(3, 1), (3, 9), (5, 1)]);
    assert_eq!(beside(LatencyClass::Normal, |_| ()), [(3, 10), (5, 1)], "no urgent queue is polled");
    let never = |policy: &mut Recorder| policy.never_preempts = true;
    assert_eq!(beside(LatencyClass::Latency, never), [(3, 10), (5, 1)], "nor for a policy that ends no grant");
}

#[test]
fn work_that_goes_first_preempts_a_grant_at_a_tick() {
    let ticks = |policy: &mut Recorder| policy.ticks = true;
    assert_eq!(beside(LatencyClass::Normal, ticks), [(3, 1), (3, 9), (5, 1)]);
}

#[test]
fn a_message_that_preempts_a_grant_is_handled_in_the_next_round() {
    let volume = memory_volume(1 << 20);
    let mut guest = Guest::new(Format::Split);
    let mut core = core_with(&guest, &volume);
    let own_mailbox = core.links.peers[0].clone();
    core.work.dispatcher.policy_mut().ticks = true;
    core.work.dispatcher.policy_mut().meanwhile = Some(Box::new(move || own_mailbox.send(ToCore::Shutdown)));
    (0..10).for_each(|sector| assert!(guest.submit(None, sector)));
    guest.publish();
    core.round(softdpu_sys::clock::now());
    let ran: Vec<u32> = core.work.dispatcher.policy().charged.iter().map(|(_, cost)| cost.units).collect();
    assert_eq!((ran, core.stopping), (vec![1], false), "the message ends the turn");
    core.round(softdpu_sys::clock::now());
    assert!(core.stopping, "the message is lost until the next one");
}

#[test]
fn requests_of_a_grant_run_together_until_the_next_tick() {
    let volume = memory_volume(1 << 20);
    let mut flood = Guest::new(Format::Split);
    let mut core = core_with(&flood, &volume);
    core.work.dispatcher.policy_mut().ticks = true;
    assert_eq!(core.work.dispatcher.tick(Nanos(8_999)).next(), Nanos(9_000));
    let fit = |core: &Core<Recorder>, time| core.queues.get(0).and_then(|queue| queue.requests_in(time));
    assert_eq!(fit(&core, 8_000), None, "how long they take is not known");
    (0..10).for_each(|sector| assert!(flood.submit(None, sector)));
    flood.publish();
    core.round(softdpu_sys::clock::now());
    let each = core.queues.get(0).and_then(|queue| queue.request_ns);
    assert!(each.is_some_and(|each| each > 0), "what those took that ran: {each:?}");
    for (each, time, fits) in [(500, 8_000, 16), (500, 100, 1), (500, 0, 1), (20_000, 8_000, 1), (0, 8_000, 8_000)] {
        core.queues.get_mut(0).expect("a queue").request_ns = Some(each);
        assert_eq!(fit(&core, time), Some(fits), "{each} ns each, in {time}");
    }
}
