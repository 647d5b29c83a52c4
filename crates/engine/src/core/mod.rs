//! A data-plane core: intake → decide → run → charge → complete → poll back ends, again and again.

mod accounting;
mod capture;
mod deferred;
mod disk;
mod grants;
mod messages;
mod nap;
mod net;
mod parcels;
mod ports;
mod publish;
mod send;
mod sockets;
mod steer;
#[cfg(test)]
mod tests;

use accounting::Accounting;
pub(crate) use capture::Captures;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use rustix::io::Errno;
use softdpu_ring::{Chains, Sink};
use softdpu_sched::{Dispatcher, Nanos, TenantScheduler, Work};
use softdpu_storage::IoContext;
use softdpu_sys::clock;
use softdpu_sys::notify::Notifier;
use softdpu_vpc::Tables;

use crate::channel::Channels;
use crate::counters::CoreCounters;
use crate::disk::DiskPath;
use crate::flight::CompletedRequest;
use crate::ids::{CoreIndex, QueueKey};
use crate::mailbox::{Inbox, Mailbox};
use crate::message::{Ending, FromCore, ToCore};
use crate::net::{Net, Room};
use crate::queue::{QueueTable, Role};
use crate::sleep::Sleep;

/// Chains taken from one ring before the next is looked at.
const INTAKE: usize = 64;

/// Rounds between two looks at what changes slowly: time-outs, stop deadlines, memory that was cut short.
const SLOW_EVERY: u32 = 1024;

/// Everything a core owns. Lives on its thread.
pub(crate) struct Core<S> {
    index: CoreIndex,
    dispatcher: Dispatcher<S>,
    disk: DiskPath,
    inbox: Inbox<ToCore>,
    peers: Vec<Mailbox<ToCore>>,
    control: Mailbox<FromCore>,
    sleep: Sleep,
    /// Spinning time without work before the core sleeps; none: never.
    idle_after_ns: Option<u64>,

    queues: QueueTable,
    /// Numbers of queues here that bring work of tenants of class [`LatencyClass::Latency`], where the policy ends
    /// grants for them.
    urgent: Vec<u32>,
    accounting: Accounting,
    /// Queues that went to another core.
    moved: HashMap<QueueKey, CoreIndex>,
    /// Messages for queues that have not arrived yet.
    early: Vec<ToCore>,
    /// Queues whose stop is told when the cores they were on before have given up what they hold of them.
    endings: Vec<Ending>,
    /// By queue number: the last generation of which nothing more is to be heard. Generations only grow.
    forgotten: Vec<u32>,
    channels: Channels,
    notifier: Notifier,
    /// Completed requests of queues that moved.
    travelling: Vec<(QueueKey, CoreIndex, Vec<CompletedRequest>)>,
    announced: bool,
    stopping: bool,

    // Reused in every round.
    batch: Chains,
    /// Numbers of queues whose drivers are to be interrupted.
    interrupts: Vec<u32>,
    /// The kernel did not take them the last time.
    interrupts_fail: bool,

    net: Net,
    /// Frames on their way to each core.
    rooms: Arc<[Room]>,
    /// Packets from tunnels that wait for each core to work on them.
    handed: Arc<[AtomicUsize]>,
}

/// What looking at the rings came to.
struct Intake {
    /// Whether anything was there.
    any: bool,
    /// What of the time is charged to whose requests were taken in, nanoseconds.
    charged: u64,
    /// When it ended, if that is known.
    ended: Option<u64>,
}

/// What a core is made of.
pub(crate) struct CoreParts<S> {
    pub index: CoreIndex,
    pub scheduler: S,
    pub io: IoContext,
    pub notifier: Notifier,
    pub inbox: Inbox<ToCore>,
    pub peers: Vec<Mailbox<ToCore>>,
    pub control: Mailbox<FromCore>,
    pub counters: Arc<CoreCounters>,
    pub idle_after_ns: Option<u64>,
    pub rooms: Arc<[Room]>,
    pub handed: Arc<[AtomicUsize]>,
    pub tables: Arc<Tables>,
    /// Flows that it keeps at most.
    pub flows: usize,
}

impl<S: TenantScheduler> Core<S> {
    pub(crate) fn new(parts: CoreParts<S>) -> Result<Self, Errno> {
        let disk = DiskPath::new(parts.io);
        let sleep = Sleep::new(parts.inbox.bell().as_fd(), disk.wait_fd())?;
        Ok(Core {
            index: parts.index,
            dispatcher: Dispatcher::new(parts.scheduler),
            disk,
            inbox: parts.inbox,
            peers: parts.peers,
            control: parts.control,
            sleep,
            idle_after_ns: parts.idle_after_ns,
            queues: QueueTable::default(),
            urgent: Vec::new(),
            accounting: Accounting::new(parts.counters),
            moved: HashMap::new(),
            early: Vec::new(),
            endings: Vec::new(),
            forgotten: Vec::new(),
            channels: Channels::default(),
            notifier: parts.notifier,
            travelling: Vec::new(),
            announced: false,
            stopping: false,
            batch: Chains::new(),
            interrupts: Vec::new(),
            interrupts_fail: false,
            net: Net::new(parts.tables, parts.flows, parts.rooms.len()),
            rooms: parts.rooms,
            handed: parts.handed,
        })
    }

    /// Sets whether turns end by time, as they do at first: not where what happens is not to depend on time.
    pub(crate) fn set_timed(&mut self, is_timed: bool) {
        self.dispatcher.set_timed(is_timed);
    }

    /// Runs until told to shut down.
    pub(crate) fn run(mut self) {
        let mut last = clock::now();
        let mut idle_since = last;
        let mut until_slow = SLOW_EVERY;
        while !self.stopping {
            let busy = self.round(last);
            until_slow -= 1;
            if until_slow == 0 {
                until_slow = SLOW_EVERY;
                self.look_around();
                self.advertise(last);
            }
            let now = clock::now();
            let passed = now.saturating_sub(last);
            last = now;
            self.accounting.counters.rounds.add(1);
            if busy {
                self.accounting.counters.busy_ns.add(passed);
                idle_since = now;
                continue;
            }
            self.accounting.counters.idle_ns.add(passed);
            std::hint::spin_loop();
            if self.idle_after_ns.is_some_and(|limit| now.saturating_sub(idle_since) >= limit) {
                self.nap();
                let now = clock::now();
                self.advertise(now);
                self.accounting.counters.idle_ns.add(now.saturating_sub(last));
                last = now;
                idle_since = now;
            }
        }
        self.net.finish_functions();
    }

    /// Everything once. Whether there was anything to do.
    pub(crate) fn round(&mut self, now: u64) -> bool {
        let mut busy = self.read_messages(now);
        if self.net.steer.waits() {
            busy |= self.work_lines(now);
        }
        let intake = self.intake(now, !busy);
        busy |= intake.any;
        let mut are_others = false;
        if self.channels.total() > 0 {
            are_others = self.deferred_goes_first() || self.run_grants(now, intake);
            busy |= are_others;
        }
        if self.disk.outstanding() > 0 {
            let mut started = clock::now();
            self.disk.flush();
            if self.accounting.has_submitted() {
                let flushed = clock::now();
                self.accounting.charge_submitted(&mut self.queues, started, flushed);
                started = flushed;
            }
            if self.disk.poll() {
                busy = true;
                self.finish_ended();
                self.accounting.polled_back_ends(started);
            }
            if self.disk.has_deferred() {
                busy = true;
                self.run_deferred(are_others);
            }
        }
        busy |= self.read_sockets();
        self.send_parcels();
        self.publish();
        self.flush_sockets();
        busy
    }

    /// Takes messages in the order in which they came, until there are no more, or frames from other cores have taken
    /// their part of the round: nobody granted those, and others have work too. Whether there were any.
    fn read_messages(&mut self, now: u64) -> bool {
        let mut any = false;
        if !self.net.arrived.is_empty() {
            any = true;
            if !self.take_arrived(now) {
                return true;
            }
        }
        if self.inbox.posted() || any {
            while let Some(message) = self.inbox.take() {
                any = true;
                self.handle(message);
                if !self.net.arrived.is_empty() && !self.take_arrived(now) {
                    break;
                }
            }
        }
        any
    }

    /// Takes new requests from the rings into their tenants' channels. `begins`: it is still `now`.
    fn intake(&mut self, now: u64, begins: bool) -> Intake {
        let (mut any, mut charged) = (false, 0);
        // When the last request was taken in, if nothing else was looked at since.
        let mut last = begins.then_some(now);
        let now = Nanos(now);
        self.queues.rotate();
        for step in 0..self.queues.len() {
            let Some(number) = self.queues.polled_at(step) else { break };
            if let Some(took) = self.take_in(number, now, &mut last) {
                any = true;
                charged += took;
            }
        }
        Intake { any, charged, ended: last }
    }

    /// Takes new requests from a queue's ring. None: there was nothing; otherwise what of the time is charged to it,
    /// nanoseconds. `last`: when the last request was taken in, if nothing else was looked at since.
    fn take_in(&mut self, number: u32, now: Nanos, last: &mut Option<u64>) -> Option<u64> {
        let queue = self.queues.get_mut(number)?;
        if !queue.is_active() {
            return None;
        }
        // One that fills its tenant's channel would keep the others of the tenant out of it.
        let own = INTAKE.saturating_sub(queue.waiting.len());
        let mut room = (self.channels.room(queue.spec.tenant) as usize).min(own).min(queue.poll_budget.chains());
        match &queue.spec.role {
            Role::Block { .. } => {}
            Role::Transmit(transmit) if transmit.backpressure.is_some() => {
                *last = None;
                self.release_held(number, now);
                return Some(0);
            }
            Role::Transmit(transmit) => room = room.min(transmit.budget(now)),
            Role::Receive(_) => return None,
        }
        if room == 0 {
            return None;
        }
        if !queue.spec.ring.has_work() {
            *last = None;
            return None;
        }
        let started = last.take().unwrap_or_else(clock::now);
        let before = queue.waiting.len();
        let taken = match queue.spec.ring.pop(&mut queue.waiting, room) {
            Ok(0) => return None,
            Ok(taken) => taken,
            Err(error) => {
                // What came before the bad entry is dropped with the queue.
                queue.waiting.cut(before);
                self.break_queue(number, error.to_string());
                return None;
            }
        };
        let bytes = queue.waiting[before..].iter().map(|chain| chain.buffer.len()).sum();
        let taken = taken as u32;
        queue.in_flight += taken;
        queue.spec.counters.in_flight.set(u64::from(queue.in_flight));
        self.channels.enter(queue.spec.tenant, taken, now);
        self.dispatcher.ready(now, queue.id(), Work { units: taken, bytes });
        let ended = clock::now();
        let took = self.accounting.cpu_time(started, ended);
        queue.uncharged += took;
        if self.dispatcher.is_timed() {
            queue.poll_budget.polled(taken as usize, took);
        }
        *last = Some(ended);
        Some(took)
    }

    /// What changes slowly.
    fn look_around(&mut self) {
        self.disk.tick(Instant::now());
        self.finish_ended();
        self.accounting.counters.waiting.set(u64::from(self.channels.total()));
        let seen = clock::now();
        self.accounting.restart_steal(seen);
        for (id, tenant) in self.accounting.tenants() {
            self.channels.look(id, Nanos(seen));
            tenant.waiting.set(u64::from(self.channels.waiting(id)));
            tenant.waited_ns.set(self.channels.waited(id));
            tenant.limited_ns.set(self.dispatcher.account(Nanos(seen), id).limited.0);
        }
        self.accounting.counters.outstanding.set(self.disk.outstanding() as u64);
        self.net.end_captures();
        let frames = self.net.vpc.stats();
        self.accounting.counters.frames.set(frames.received);
        self.accounting.counters.by_flow.set(frames.cached);
        self.accounting.counters.by_software.set(frames.software);
        self.accounting.counters.forwarding.take(&mut self.net.vpc, Nanos(seen), &mut self.net.windows);
        let now = seen;
        for place in (0..self.queues.len()).rev() {
            let Some(number) = self.queues.number_at(place) else { continue };
            let Some(queue) = self.queues.get_mut(number) else { continue };
            if queue.stop_deadline().is_some_and(|deadline| now >= deadline) {
                self.end_queue(number);
            } else if !queue.is_broken()
                && let Some(reason) = queue.truncated_file()
            {
                self.break_queue(number, reason.to_owned());
            }
        }
    }
}
