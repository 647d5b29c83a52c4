//! A data-plane core: intake → decide → run → charge → complete → poll back ends, again and again.
//!
//! The core drives its parts, each of which owns its state:
//!
//! ```text
//!   messages ─▶ Core ─▶ QueueTable       the virtqueues on this core
//!                 ├───▶ QueueDirectory   where the queues are that are not
//!                 ├───▶ WorkScheduler    channels, and the dispatcher of what waits in them
//!                 ├───▶ DiskPath         requests at volumes
//!                 ├───▶ Forwarder        frames: ports, flows, sockets, other cores
//!                 ├───▶ Completions      used rings and interrupts
//!                 └───▶ Accounting       where the time goes
//! ```
//!
//! Its own methods are in five files: the round (here), [messages], what becomes of [queues](lifecycle), [grants], and
//! how it [gives its CPU away](yielding).

mod accounting;
mod completions;
mod directory;
mod grants;
mod lifecycle;
mod messages;
#[cfg(test)]
mod tests;
mod work;
mod yielding;

use grants::IngressBurst;
pub(crate) use work::Contention;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use softdpu_ring::{Chains, Sink};
use softdpu_sched::{Nanos, TenantScheduler, Work, YieldPolicy};
use softdpu_storage::IoContext;
use softdpu_sys::clock;
use softdpu_sys::notify::Notifier;
use softdpu_vpc::Tables;

use self::accounting::Accounting;
use self::completions::Completions;
use self::directory::QueueDirectory;
use self::work::WorkScheduler;
use self::yielding::Idle;
use crate::counters::CoreCounters;
use crate::disk::DiskPath;
use crate::frames::{Forwarder, ForwarderShared};
use crate::links::CoreLinks;
use crate::mailbox::Inbox;
use crate::message::ToCore;
use crate::queue::{Backpressure, QueueTable, Role};
use crate::sleep::Sleep;
use crate::steal::Spent;

/// Chains taken from one ring before the next is polled.
const INTAKE: usize = 64;

/// Rounds between two [ticks](Core::tick).
const ROUNDS_PER_TICK: u32 = 1024;

/// Everything a core owns. Lives on its thread.
pub(crate) struct Core<S> {
    links: CoreLinks,
    inbox: Inbox<ToCore>,
    sleep: Sleep,
    stopping: bool,

    queues: QueueTable,
    directory: QueueDirectory,
    work: WorkScheduler<S>,
    disk: DiskPath,
    frames: Forwarder,
    completions: Completions,
    accounting: Accounting,
    /// The chains of the grant of frames that runs; reused.
    batch: Chains,
    /// Grants in a turn at the most.
    turn_grants: u32,
    ingress_burst: IngressBurst,
}

/// What polling the rings came to.
struct Intake {
    /// Whether anything was there.
    any: bool,
    /// How much of the time is charged to the queues that brought work, nanoseconds.
    charged: u64,
    /// When it ended, if that is known.
    ended: Option<u64>,
}

/// What a core is made of.
pub(crate) struct CoreParts<S> {
    pub links: CoreLinks,
    pub scheduler: S,
    pub io: IoContext,
    pub notifier: Notifier,
    pub inbox: Inbox<ToCore>,
    pub counters: Arc<CoreCounters>,
    pub yielding: YieldPolicy,
    pub shared: ForwarderShared,
    pub tables: Arc<Tables>,
    /// Flows that it keeps at most.
    pub flows: usize,
}

impl<S: TenantScheduler> Core<S> {
    pub(crate) fn new(parts: CoreParts<S>) -> Result<Self, Errno> {
        let CoreParts { links, scheduler, io, notifier, inbox, counters, yielding, shared, tables, flows } = parts;
        let disk = DiskPath::new(io);
        let sleep = Sleep::new(inbox.bell().as_fd(), disk.wait_fd())?;
        let mut core = Core {
            frames: Forwarder::new(links.clone(), Arc::clone(&counters), shared, tables, flows),
            links,
            inbox,
            sleep,
            stopping: false,
            queues: QueueTable::default(),
            directory: QueueDirectory::default(),
            work: WorkScheduler::new(scheduler),
            disk,
            completions: Completions::new(notifier),
            accounting: Accounting::new(counters),
            batch: Chains::new(),
            turn_grants: u32::MAX,
            ingress_burst: IngressBurst::default(),
        };
        core.set_yielding(yielding);
        Ok(core)
    }

    /// Sets whether turns end by time, as they do at first: not where what happens is not to depend on time.
    pub(crate) fn set_timed(&mut self, is_timed: bool) {
        self.work.dispatcher.set_timed(is_timed);
    }

    /// Ends turns after so many grants.
    pub(crate) fn set_turn(&mut self, grants: u32) {
        self.turn_grants = grants;
    }

    /// Runs until told to shut down.
    pub(crate) fn run(mut self) {
        let mut last = clock::now();
        let mut idle = Idle::since(last);
        let mut until_tick = ROUNDS_PER_TICK;
        while !self.stopping {
            let busy = self.round(last);
            until_tick -= 1;
            if until_tick == 0 {
                until_tick = ROUNDS_PER_TICK;
                self.tick();
                self.advertise(last);
            }
            let now = clock::now();
            let passed = now.saturating_sub(last);
            last = now;
            self.accounting.counters.rounds.add(1);
            if busy {
                self.accounting.counters.busy_ns.add(passed);
                idle = Idle::since(now);
                continue;
            }
            self.accounting.counters.idle_ns.add(passed);
            std::hint::spin_loop();
            idle.polls += 1;
            if let Some(slice) = self.work.dispatcher.yielding().yields(idle.polls, idle.spun(now)) {
                self.frames.rest();
                self.give_away(idle, now, slice);
                let now = clock::now();
                self.advertise(now);
                self.accounting.counters.idle_ns.add(now.saturating_sub(last));
                last = now;
                idle = Idle::since(now);
            }
        }
        self.frames.finish();
    }

    /// Everything once. Whether there was anything to do.
    pub(crate) fn round(&mut self, now: u64) -> bool {
        let mut busy = self.read_messages(now);
        if self.frames.has_steered() {
            let is_timed = self.work.dispatcher.is_timed();
            let contention = self.work.contention();
            busy |= self.frames.forward_steered(&mut self.queues, &self.sleep, &contention, (now, is_timed));
            self.settle_ingress();
            self.settle_broken();
        }
        let intake = self.intake(now, !busy);
        busy |= intake.any;
        let mut are_others = false;
        if self.work.is_waiting() {
            are_others = self.deferred_goes_first() || self.run_grants(now, intake);
            busy |= are_others;
        } else {
            self.work.forget_granted(now);
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
                self.give_back_completed();
                self.accounting.polled_back_ends(started);
            }
            if self.disk.has_deferred() {
                busy = true;
                self.run_deferred(are_others);
            }
        }
        busy |= self.frames.read_sockets(&mut self.queues, &self.sleep, &self.work.contention());
        self.settle_ingress();
        self.frames.send_outgoing(&mut self.queues);
        self.settle_broken();
        self.publish();
        self.settle_stalls();
        self.frames.flush_sockets(&self.sleep);
        busy
    }

    /// Takes new requests from the rings into their tenants' channels. `begins`: it is still `now`.
    fn intake(&mut self, now: u64, begins: bool) -> Intake {
        let (mut any, mut charged) = (false, 0);
        // When the last request was taken in, if nothing else was polled since.
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

    /// Takes new requests from a queue's ring. None: there was nothing; otherwise how much of the time is charged to
    /// it, nanoseconds. `last`: when the last request was taken in, if nothing else was polled since.
    fn take_in(&mut self, number: u32, now: Nanos, last: &mut Option<u64>) -> Option<u64> {
        let queue = self.queues.get_mut(number)?;
        if !queue.is_active() {
            return None;
        }
        // One that fills its tenant's channel would keep the others of the tenant out of it.
        let own = INTAKE.saturating_sub(queue.waiting.len());
        let mut room = (self.work.channels.room(queue.spec.tenant) as usize).min(own).min(queue.poll_budget.chains());
        match &queue.spec.role {
            Role::Block { .. } | Role::Nvme(_) => {}
            Role::Transmit(transmit) if transmit.backpressure.is_some() => {
                *last = None;
                self.release_backpressure(number, now);
                return Some(0);
            }
            Role::Transmit(transmit) => room = room.min(transmit.budget(now)),
            Role::Receive(_) => return None,
        }
        if room == 0 || queue.is_resting(now) {
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
        let bytes = queue.spec.role.bytes(&queue.waiting[before..]);
        let units = taken as u32;
        queue.in_flight += units;
        queue.spec.counters.in_flight.set(u64::from(queue.in_flight));
        self.work.enqueue(queue.id(), Work { units, bytes }, now);
        let ended = clock::now();
        let Spent { time: took, has_waited } = self.accounting.spent(started, ended);
        queue.uncharged += took;
        if self.work.dispatcher.is_timed() {
            queue.poll_budget.polled(taken, took);
        }
        if has_waited {
            self.queues.stalled(number, took);
        }
        *last = Some(ended);
        Some(took)
    }

    /// Lets a transmit queue go on that a port without buffers has held, if it may.
    fn release_backpressure(&mut self, number: u32, now: Nanos) {
        let Some(queue) = self.queues.get(number) else { return };
        let Role::Transmit(transmit) = &queue.spec.role else { return };
        let Some(Backpressure { port, units }) = transmit.backpressure else { return };
        if !self.frames.may_go_on(&mut self.queues, port, now) {
            return;
        }
        if let Some(queue) = self.queues.get_mut(number)
            && let Role::Transmit(transmit) = &mut queue.spec.role
        {
            transmit.backpressure = None;
            self.work.dispatcher.ready(now, queue.id(), Work { units, bytes: 0 });
        }
    }

    /// Makes what was finished visible to drivers, on whichever core their queues are, and ends queues that have
    /// nothing left.
    fn publish(&mut self) {
        let travelled = self.directory.send_completed(&self.links);
        if travelled > 0 {
            self.accounting.counters.travelled.add(travelled as u64);
        }
        if !self.queues.is_any_unpublished() && !self.completions.has_interrupts() {
            return;
        }
        let published = self.completions.publish(&mut self.queues, &mut self.accounting, &self.links);
        self.settle_broken();
        for &number in &published {
            let queue = self.queues.get(number);
            if queue.is_some_and(|queue| queue.is_quiescent() && queue.stop_deadline().is_some()) {
                self.end_queue(number);
            }
        }
        self.queues.return_unpublished(published);
    }

    /// What is due in the network without a frame.
    fn advertise(&mut self, now: u64) {
        self.frames.advertise(&mut self.queues, now);
        self.settle_broken();
    }

    /// What changes slowly: time-outs, counters, stop deadlines, memory that was cut short.
    fn tick(&mut self) {
        self.disk.tick(Instant::now());
        self.give_back_completed();
        let Core { work, accounting, .. } = self;
        accounting.counters.waiting.set(u64::from(work.channels.total()));
        let now = clock::now();
        accounting.restart_steal(now);
        for (id, tenant) in accounting.tenants() {
            work.channels.update(id, Nanos(now));
            tenant.waiting.set(u64::from(work.channels.waiting(id)));
            tenant.waited_ns.set(work.channels.waited(id));
            tenant.limited_ns.set(work.dispatcher.account(Nanos(now), id).limited.0);
        }
        accounting.counters.outstanding.set(self.disk.outstanding() as u64);
        self.frames.tick(Nanos(now));
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
