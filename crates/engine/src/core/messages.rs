//! What a core does when it is told something: queues come, change, move on and stop.

use std::os::fd::AsFd;
use std::sync::Arc;

use softdpu_ring::QueueError;
use softdpu_sched::{Nanos, TenantScheduler, Work};
use softdpu_sys::clock;

use super::Core;
use crate::ids::{CoreIndex, QueueKey};
use crate::message::{Ending, FromCore, QueueUpdate, ToCore};
use crate::queue::{Role, RunningQueue};

impl<S: TenantScheduler> Core<S> {
    pub(super) fn handle(&mut self, message: ToCore) {
        match message {
            ToCore::Start(queue) => {
                let (number, resumed) = (queue.key.number, queue.spec.resumed);
                self.adopt(queue);
                if resumed {
                    self.interrupt(&[number]);
                }
            }
            ToCore::Adopt(queue) => self.adopt(queue),
            ToCore::Update { key, update, token } => match self.queues.find(key) {
                Some(_) => self.update(key, update, token),
                None => self.elsewhere(key, ToCore::Update { key, update, token }),
            },
            ToCore::Stop { key, patience } => match self.queues.find(key) {
                Some(queue) => {
                    queue.stop(patience);
                    if queue.can_rewind() {
                        self.publish();
                    }
                    // What a broken network queue has lent may not come back to it.
                    let is_over = |queue: &mut RunningQueue| {
                        queue.is_quiescent() || patience.is_zero() || (queue.is_broken() && queue.can_rewind())
                    };
                    if self.queues.find(key).is_some_and(is_over) {
                        self.end_queue(key.number);
                    }
                }
                None => self.elsewhere(key, ToCore::Stop { key, patience }),
            },
            ToCore::Move { key, to } => match self.queues.find(key) {
                Some(_) => self.send_away(key, to),
                None => self.elsewhere(key, ToCore::Move { key, to }),
            },
            ToCore::Completed { key, done } => match self.queues.find_to_finish(key) {
                Some((queue, unpublished)) => {
                    for completed in done {
                        completed.finish(queue, unpublished);
                    }
                }
                None => self.elsewhere(key, ToCore::Completed { key, done }),
            },
            ToCore::GiveUp { key, by } => {
                self.abandon(key);
                self.peers[by.0].send(ToCore::GivenUp(key));
            }
            ToCore::GivenUp(key) => {
                if let Some(at) = self.endings.iter().position(|ending| ending.key == key) {
                    self.endings[at].unanswered -= 1;
                    if self.endings[at].unanswered == 0 {
                        let Ending { position, abandoned, .. } = self.endings.swap_remove(at);
                        self.control.send(FromCore::Stopped { key, position, abandoned });
                    }
                }
            }
            ToCore::Forget(key) => {
                self.moved.remove(&key);
                self.early.retain(|message| message_key(message) != Some(key));
                let number = key.number as usize;
                if self.forgotten.len() <= number {
                    self.forgotten.resize(number + 1, 0);
                }
                self.forgotten[number] = key.generation;
            }
            ToCore::Detach(volume) => self.disk.detach(&volume),
            ToCore::Tenant(tenant, share, counters) => {
                self.dispatcher.configure(tenant, share);
                self.accounting.set_tenant(tenant, counters);
                self.find_urgent();
            }
            ToCore::Tables(tables, replaced) => {
                let old = Arc::clone(self.net.vpc.tables());
                self.net.vpc.replace(tables);
                // Nobody may wait for it.
                drop(replaced.send(old));
            }
            ToCore::Port(id, port) => self.set_port(id, port),
            ToCore::Socket { port, owner, socket } => self.set_socket(port, owner, socket),
            ToCore::Receivers(id, receivers) => {
                if let Some(port) = self.net.port(id) {
                    port.receivers = receivers;
                }
            }
            ToCore::Parcels(parcels) => {
                self.net.arrived.extend(parcels);
            }
            ToCore::Steering(table) => self.set_steering(&table),
            ToCore::Handed { from, items } => self.net.steer.put(from, items),
            ToCore::Passed { reader, number } => self.net.steer.passed(reader, number),
            ToCore::Returned { key, numbers } => match self.queues.find_to_finish(key) {
                Some((queue, unpublished)) => {
                    if let Role::Transmit(transmit) = &mut queue.spec.role {
                        numbers.into_iter().for_each(|number| transmit.loans.take_back(number, &mut queue.finished));
                    }
                    // Also where nothing is finished: it may be the last that a stop waits for.
                    unpublished.add(queue);
                }
                None => self.elsewhere(key, ToCore::Returned { key, numbers }),
            },
            ToCore::Capture(start) => self.net.capture(self.index, start),
            ToCore::Explain(question) => {
                let answer = self.net.explain(question.port, &question.name, &question.frame);
                // Nobody may wait for it.
                drop(question.answer.send((self.index, answer)));
            }
            ToCore::Functions(switch) => self.net.switch_functions(self.index, *switch),
            ToCore::Inject(injection) => self.inject(injection),
            ToCore::Announce(port) => self.announce(port),
            ToCore::Shutdown => self.stopping = true,
        }
    }

    /// A message for a queue that is not here: it went on, or is still on its way to us.
    fn elsewhere(&mut self, key: QueueKey, message: ToCore) {
        match self.moved.get(&key) {
            Some(core) => self.peers[core.0].send(message),
            None if self.forgotten.get(key.number as usize).is_some_and(|gone| key.generation <= *gone) => {}
            None => self.early.push(message),
        }
    }

    fn adopt(&mut self, mut queue: Box<RunningQueue>) {
        let (key, number) = (queue.key, queue.key.number);
        self.moved.remove(&key);
        let problem = match &queue.spec.role {
            Role::Block { volume, .. } => match self.disk.attach(volume) {
                Ok(attachment) => {
                    queue.attachment = Some(attachment);
                    None
                }
                Err(error) => Some(format!("volume '{}': {error}", volume.name())),
            },
            Role::Transmit(_) | Role::Receive(_) => None,
        };
        let unwatched = queue.spec.kick.as_ref().and_then(|kick| self.sleep.watch(number, kick.as_fd()).err());
        let problem =
            problem.or_else(|| unwatched.map(|error| format!("its kick descriptor cannot be waited for: {error}")));
        if !queue.is_broken() {
            queue.spec.ring.disarm();
        }
        let (id, tenant) = (queue.id(), queue.spec.tenant);
        let waiting = queue.waiting.len() as u32;
        let bytes = queue.waiting.iter().map(|chain| chain.buffer.len()).sum();
        self.queues.insert(queue);
        self.find_urgent();
        self.accounting.counters.queues.set(self.queues.len() as u64);
        if let Some(Some(placement)) = self.queues.get(number).map(|queue| queue.placement) {
            self.dispatcher.place(id, placement);
        }
        if waiting > 0 {
            self.channels.enter(tenant, waiting, Nanos(clock::now()));
            self.dispatcher.ready(Nanos(clock::now()), id, Work { units: waiting, bytes });
        }
        if let Some(reason) = problem {
            self.break_queue(number, reason);
        }
        let (now_here, early) =
            std::mem::take(&mut self.early).into_iter().partition(|message| message_key(message) == Some(key));
        self.early = early;
        let now_here: Vec<_> = now_here;
        for message in now_here {
            self.handle(message);
        }
    }

    fn update(&mut self, key: QueueKey, update: QueueUpdate, token: u64) {
        if matches!(update, QueueUpdate::View(_)) {
            // What was delivered and is not published yet would be wound back with the rest.
            self.publish();
        }
        let Some(queue) = self.queues.find(key) else { return };
        let mut problem = None;
        match update {
            QueueUpdate::View(view) => {
                if !queue.is_broken() {
                    if let Role::Receive(receive) = &mut queue.spec.role {
                        // Buffers that wait for frames would hold the old memory for as long as none come.
                        receive.forget();
                        let _ = queue.spec.ring.rewind();
                    }
                    queue.waiting.release();
                    queue.waits_in_old_view = !queue.waiting.is_empty();
                    problem = queue.spec.ring.remap(&view).err().map(|error: QueueError| error.to_string());
                }
                queue.spec.view = view;
            }
            QueueUpdate::Call(call) => {
                queue.spec.call = call;
                // A driver that armed before the descriptor came must not wait for ever.
                self.interrupt(&[key.number]);
            }
            QueueUpdate::Kick(kick) => {
                if let Some(old) = &queue.spec.kick {
                    self.sleep.forget(old.as_fd());
                }
                queue.spec.kick = kick;
                if let Some(new) = &queue.spec.kick
                    && let Err(error) = self.sleep.watch(key.number, new.as_fd())
                {
                    problem = Some(format!("its kick descriptor cannot be waited for: {error}"));
                }
            }
            QueueUpdate::Error(error) => queue.spec.error = error,
            QueueUpdate::Enabled(enabled) => queue.spec.enabled = enabled,
            QueueUpdate::LogUsed(log) => queue.spec.ring.set_log_used(log),
        }
        if let Some(reason) = problem {
            self.break_queue(key.number, reason);
        }
        self.control.send(FromCore::Updated { key, token });
    }

    /// Hands a queue to another core. What is in flight stays.
    fn send_away(&mut self, key: QueueKey, to: CoreIndex) {
        if to == self.index {
            return;
        }
        self.publish();
        // Before anything that its next core has to say to theirs.
        self.hand_over_parcels();
        let Some(mut queue) = self.take_out(key.number) else { return };
        if self.disk.holds_any_of(key) && !queue.former_cores.contains(&self.index) {
            queue.former_cores.push(self.index);
        }
        self.moved.insert(key, to);
        self.peers[to.0].send(ToCore::Adopt(queue));
    }

    /// Removes a queue from this core's tables.
    fn take_out(&mut self, number: u32) -> Option<Box<RunningQueue>> {
        let mut queue = self.queues.remove(number)?;
        self.find_urgent();
        self.accounting.counters.queues.set(self.queues.len() as u64);
        if let Some(kick) = &queue.spec.kick {
            self.sleep.forget(kick.as_fd());
        }
        self.dispatcher.cancel(Nanos(clock::now()), queue.id());
        self.channels.leave(queue.spec.tenant, queue.waiting.len() as u32);
        queue.attachment = None;
        if let Role::Transmit(transmit) = &mut queue.spec.role {
            transmit.backpressure = None;
        }
        Some(queue)
    }

    /// A stopped queue leaves, with nothing in flight or with what a back end would not give back in time. Its stop is
    /// told when no core has a request left whose completion would touch the guest's memory.
    pub(super) fn end_queue(&mut self, number: u32) {
        let Some(mut queue) = self.take_out(number) else { return };
        let key = queue.key;
        self.abandon(key);
        let is_lent = queue.can_rewind() && !queue.is_quiescent();
        if is_lent {
            // A core that answers is done with the parcels that it was sent before it was asked.
            self.hand_over_parcels();
            queue.former_cores = (0..self.peers.len()).map(CoreIndex).collect();
        }
        if queue.can_rewind() {
            queue.in_flight = 0;
        }
        let abandoned = u16::try_from(queue.in_flight).unwrap_or(u16::MAX);
        if abandoned > 0 {
            tracing::warn!(
                device = %queue.spec.device, queue = queue.spec.index, abandoned,
                "stopped with requests that the volume did not finish in time"
            );
        }
        queue.spec.counters.in_flight.set(0);
        let position = queue.spec.ring.retire();
        queue.former_cores.retain(|core| *core != self.index);
        if queue.former_cores.is_empty() || (abandoned == 0 && !is_lent) {
            self.control.send(FromCore::Stopped { key, position, abandoned });
            return;
        }
        self.endings.push(Ending { key, position, abandoned, unanswered: queue.former_cores.len() });
        for core in queue.former_cores {
            self.peers[core.0].send(ToCore::GiveUp { key, by: self.index });
        }
    }

    /// Abandons the requests of a queue that ended. To its tenant they are done.
    pub(super) fn abandon(&mut self, key: QueueKey) {
        let now = Nanos(clock::now());
        let Core { disk, dispatcher, .. } = self;
        disk.abandon(key, |flight| dispatcher.complete(now, flight.grant, flight.cost(now)));
    }

    pub(super) fn break_queue(&mut self, number: u32, reason: String) {
        let Some(queue) = self.queues.get_mut(number) else { return };
        if !queue.set_broken() {
            return;
        }
        // Zeroes where the ring was make no sense; this is why they are there.
        let reason = queue.truncated_file().map_or(reason, str::to_owned);
        tracing::warn!(device = %queue.spec.device, queue = queue.spec.index, reason, "queue broken by its driver");
        let deadline = queue.stop_deadline();
        // What is left is at back ends, which still read and write the guest's memory.
        queue.in_flight = queue.in_flight.saturating_sub((queue.finished.len() + queue.waiting.len()) as u32);
        queue.finished.clear();
        self.dispatcher.cancel(Nanos(clock::now()), queue.id());
        self.channels.leave(queue.spec.tenant, queue.waiting.len() as u32);
        queue.waiting.clear();
        queue.waiting.release();
        let settled = queue.in_flight == 0 || queue.can_rewind();
        if let Err(error) = self.notifier.signal(queue.spec.error.as_ref().map(AsFd::as_fd)) {
            tracing::error!(%error, "a front end could not be told that its queue is broken");
        }
        self.control.send(FromCore::Broken { key: queue.key, reason });
        if deadline.is_some() && settled {
            self.end_queue(number);
        }
    }
}

fn message_key(message: &ToCore) -> Option<QueueKey> {
    match message {
        ToCore::Start(queue) | ToCore::Adopt(queue) => Some(queue.key),
        ToCore::Update { key, .. }
        | ToCore::Stop { key, .. }
        | ToCore::Move { key, .. }
        | ToCore::Completed { key, .. }
        | ToCore::Returned { key, .. }
        | ToCore::GiveUp { key, .. }
        | ToCore::GivenUp(key)
        | ToCore::Forget(key) => Some(*key),
        ToCore::Detach(_)
        | ToCore::Tenant(..)
        | ToCore::Tables(..)
        | ToCore::Port(..)
        | ToCore::Socket { .. }
        | ToCore::Receivers(..)
        | ToCore::Parcels(_)
        | ToCore::Capture(_)
        | ToCore::Functions(_)
        | ToCore::Inject(_)
        | ToCore::Announce(_)
        | ToCore::Explain(_)
        | ToCore::Steering(_)
        | ToCore::Handed { .. }
        | ToCore::Passed { .. }
        | ToCore::Shutdown => None,
    }
}
