//! One core, driven by hand, with a scheduler that writes down what it is told.

mod frames;
mod loans;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use softdpu_ring::Format;
use softdpu_sched::{Cost, Decision, Fcfs, Grant, Nanos, QueueId, Share, TenantId, TenantScheduler, Work};
use softdpu_storage::{IoContext, Kind, PathBroker, Volume, VolumeSpec};
use softdpu_sys::notify::Notifier;
use softdpu_vpc::Tables;
use softdpu_vpc::spec::Spec;

use super::{Core, CoreParts};
use crate::common::{Guest, memory_volume};
use crate::counters::CoreCounters;
use crate::mailbox::{Inbox, mailbox};
use crate::message::{CoreIndex, FromCore, QueueKey, ToCore};
use crate::queue::RunningQueue;

const KEY: QueueKey = QueueKey { number: 0, generation: 1 };

/// First come, first served, with its books open.
#[derive(Default)]
struct Recorder {
    policy: Fcfs,
    charged: Vec<(Grant, Cost)>,
    completed: Vec<(Grant, Cost)>,
}

impl TenantScheduler for Recorder {
    fn configure(&mut self, tenant: TenantId, share: Share) {
        self.policy.configure(tenant, share);
    }
    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        self.policy.ready(now, queue, work);
    }
    fn decide(&mut self, now: Nanos) -> Decision {
        self.policy.decide(now)
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
    /// A round runs all that came before it, however slow the machine.
    fn turn(&self, _now: Nanos) -> Nanos {
        Nanos(u64::MAX)
    }
}

/// A core without queues, and what it tells the control thread.
fn bare(tables: Arc<Tables>) -> (Core<Recorder>, Inbox<FromCore>) {
    let (core, events, _) = beside_another(tables);
    (core, events)
}

/// The same, and what it tells a second core.
fn beside_another(tables: Arc<Tables>) -> (Core<Recorder>, Inbox<FromCore>, Inbox<ToCore>) {
    let (peer, inbox) = mailbox().unwrap();
    let (other, other_inbox) = mailbox().unwrap();
    let (control, events) = mailbox().unwrap();
    let core = Core::new(CoreParts {
        index: CoreIndex(0),
        scheduler: Recorder::default(),
        io: IoContext::new(64).unwrap(),
        notifier: Notifier::new().unwrap(),
        inbox,
        peers: vec![peer, other],
        control,
        counters: Arc::new(CoreCounters::default()),
        idle_after_ns: None,
        parcels: [AtomicUsize::new(0), AtomicUsize::new(0)].into(),
        tables,
        flows: 64,
    })
    .unwrap();
    (core, events, other_inbox)
}

fn core_with(guest: &Guest, volume: &Arc<Volume>) -> Core<Recorder> {
    let (mut core, _events) = bare(Arc::new(Tables::build(&Spec::default()).unwrap()));
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
    let kind = Kind::File { path, size: None, create: false, direct: false, discard: true };
    let volume = Volume::open(VolumeSpec::new("disk", kind), &PathBroker::new()).unwrap();
    volume.activate().unwrap();
    // Writes: reads of what is in the page cache end within their grant.
    let core = move_three(&volume, Some(&[7; 512]));
    let queue = QueueId { tenant: TenantId(3), index: 0 };
    let completed: Vec<_> =
        core.scheduler.completed.iter().map(|(grant, cost)| (grant.queue, cost.units, cost.bytes)).collect();
    assert_eq!(completed, [(queue, 1, 512); 3]);
    assert!(core.scheduler.completed.iter().all(|(_, cost)| cost.time > Nanos(0)));
    let pending: u32 = core.scheduler.charged.iter().map(|(_, cost)| cost.pending).sum();
    assert_eq!(pending, 3, "the grant left them at the back end");
}

#[test]
fn what_ends_within_its_grant_is_charged_once() {
    let core = move_three(&memory_volume(1 << 20), None);
    let charged: Vec<_> =
        core.scheduler.charged.iter().map(|(_, cost)| (cost.units, cost.bytes, cost.pending)).collect();
    assert_eq!(charged, [(3, 3 * 512, 0)]);
    assert!(core.scheduler.completed.is_empty());
}
