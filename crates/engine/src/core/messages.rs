//! Messages to a core.

use std::os::fd::AsFd;

use softdpu_ring::QueueError;
use softdpu_sched::TenantScheduler;

use super::Core;
use crate::ids::QueueKey;
use crate::message::{FromCore, QueueUpdate, ToCore};
use crate::queue::{Role, RunningQueue};
use crate::role::keep_to;

impl<S: TenantScheduler> Core<S> {
    /// Takes messages in the order in which they came, until there are no more, or frames from other cores have taken
    /// their part of the round: no grant bounds those, and other work waits too. Whether there were any.
    pub(super) fn read_messages(&mut self, now: u64) -> bool {
        let mut any = false;
        if self.frames.has_arrived() {
            any = true;
            if !self.take_arrived(now) {
                return true;
            }
        }
        if self.inbox.posted() || any {
            while let Some(message) = self.inbox.take() {
                any = true;
                self.handle(message);
                if self.frames.has_arrived() && !self.take_arrived(now) {
                    break;
                }
            }
        }
        any
    }

    /// Sends frames that arrived from other cores. Whether there are no more.
    pub(super) fn take_arrived(&mut self, now: u64) -> bool {
        let is_timed = self.work.dispatcher.is_timed();
        let is_done = self.frames.take_arrived(&mut self.queues, now, is_timed);
        self.settle_broken();
        is_done
    }

    pub(super) fn handle(&mut self, message: ToCore) {
        match message {
            ToCore::Start(queue) => {
                let (number, resumed) = (queue.key.number, queue.spec.resumed);
                self.adopt(queue);
                if resumed {
                    self.interrupt_at_once(number);
                }
            }
            ToCore::Adopt(queue) => self.adopt(queue),
            ToCore::Update { key, update, token } => match self.queues.find(key) {
                Some(_) => self.update(key, update, token),
                None => self.forward(key, ToCore::Update { key, update, token }),
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
                None => self.forward(key, ToCore::Stop { key, patience }),
            },
            ToCore::Move { key, to, serial } => match self.queues.find(key) {
                Some(queue) if queue.last_move >= serial => {}
                Some(queue) => {
                    queue.last_move = serial;
                    self.send_away(key, to);
                }
                None => self.forward(key, ToCore::Move { key, to, serial }),
            },
            ToCore::Completed { key, done } => match self.queues.find_to_finish(key) {
                Some((queue, unpublished)) => {
                    for completed in done {
                        completed.finish(queue, unpublished);
                    }
                }
                None => self.forward(key, ToCore::Completed { key, done }),
            },
            ToCore::GiveUp { key, by } => {
                self.abandon(key);
                self.links.send(by, ToCore::GivenUp(key));
            }
            ToCore::GivenUp(key) => self.directory.given_up(key, &self.links),
            ToCore::Forget(key) => self.directory.forget(key),
            ToCore::Detach(volume) => self.disk.detach(&volume),
            ToCore::Tenant(tenant, share, counters) => {
                self.work.dispatcher.configure(tenant, share);
                self.accounting.set_tenant(tenant, counters);
                self.work.find_urgent(&self.queues);
            }
            ToCore::Ingress(queue) => self.frames.add_backlog(queue),
            ToCore::IngressLimit(tenant, limit) => self.frames.limit_ingress(tenant, limit),
            // The caller may not wait any more.
            ToCore::Tables(tables, replaced) => drop(replaced.send(self.frames.replace_tables(tables))),
            ToCore::Port(id, port) => {
                self.frames.set_port(id, port.map(|port| *port), &self.sleep);
                self.settle_ingress();
            }
            ToCore::Socket { port, owner, socket } => self.frames.set_socket(port, owner, socket, &self.sleep),
            ToCore::HandSocket { port, to } => self.frames.hand_socket(port, to, &self.sleep),
            ToCore::SocketMoved { port, from, to, socket } => {
                self.frames.socket_moved(port, (from, to), socket, &self.sleep);
            }
            ToCore::Receivers(port, receivers) => self.frames.set_receivers(port, receivers),
            ToCore::EgressFrames(frames) => self.frames.arrive(frames),
            ToCore::Steering(table) => self.frames.set_steering(&table),
            ToCore::Steered { from, items } => self.frames.steered(from, items),
            ToCore::MarkPassed { reader, number } => self.frames.mark_passed(reader, number),
            ToCore::Returned { key, numbers } => {
                if !self.queues.take_back(key, &numbers) {
                    self.forward(key, ToCore::Returned { key, numbers });
                }
            }
            ToCore::Capture(start) => self.frames.begin_capture(start),
            ToCore::Explain(request) => {
                let answer = self.frames.explain(request.port, &request.name, &request.frame);
                // The caller may not wait any more.
                drop(request.answer.send((self.links.index, answer)));
            }
            ToCore::Functions(switch) => self.frames.switch_functions(*switch),
            ToCore::Inject(injection) => {
                self.frames.inject(&mut self.queues, injection, &self.work.contention());
                self.settle_ingress();
                self.settle_broken();
            }
            ToCore::Announce(port) => {
                self.frames.announce(&mut self.queues, port);
                self.settle_broken();
            }
            ToCore::Yielding(policy) => self.set_yielding(policy),
            ToCore::KeepTo(cpus) => keep_to(&cpus),
            ToCore::Shutdown => self.stopping = true,
        }
    }

    /// Interrupts the driver of a queue, which is charged with it.
    fn interrupt_at_once(&mut self, number: u32) {
        let Core { completions, queues, accounting, .. } = self;
        completions.interrupt_and_charge(queues, &[number], accounting);
    }

    /// A message for a queue that is not on this core.
    fn forward(&mut self, key: QueueKey, message: ToCore) {
        self.directory.forward(key, message, &self.links);
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
                self.interrupt_at_once(key.number);
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
            QueueUpdate::Shadow(shadow) => {
                let switched = queue.spec.ring.pair_mut().map(|pair| pair.set_shadow(shadow));
                problem = switched.and_then(|switched| switched.err()).map(|error| error.to_string());
            }
            QueueUpdate::LogUsed(log) => queue.spec.ring.set_log_used(log),
        }
        if let Some(reason) = problem {
            self.break_queue(key.number, reason);
        }
        self.links.report(FromCore::Updated { key, token });
    }
}
