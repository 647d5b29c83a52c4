//! Grants of disks' queues: in pieces, between which other work may preempt them.

use std::collections::HashMap;

use softdpu_sched::{Cost, Grant, Nanos, PreemptionTick, TenantScheduler};
use softdpu_storage::Attachment;
use softdpu_sys::clock;

use super::Core;
use crate::flight::CompletedRequest;
use crate::ids::{CoreIndex, QueueKey};

/// How often in a grant with ticks the clock is read, about, where it is not known how long its requests take: after
/// each request where they are few.
const LOOKS: usize = 8;

impl<S: TenantScheduler> Core<S> {
    /// Runs the requests of a disk that the scheduler granted at `started`. Returns what it cost, but the time.
    ///
    /// Where a volume answers each request while it is submitted, one after the other, the driver sees each answer
    /// before the next request is run, so that it can go on meanwhile. Its interrupt comes once, with the last.
    pub(super) fn run_requests(&mut self, number: u32, grant: Grant, started: u64) -> Cost {
        let Some(queue) = self.queues.get(number) else { return Cost::default() };
        let Some(attachment) = queue.attachment else { return Cost::default() };
        let units = (grant.units as usize).min(queue.waiting.len());
        let singly = self.disk.answers_singly(attachment);
        let mut tick = self.dispatcher.tick(Nanos(started));
        let between = (units / LOOKS).max(1);
        let is_single = singly || !self.urgent.is_empty();
        let (mut left, mut did, mut seen) = (units, Cost { units: units as u32, ..Cost::default() }, 0);
        let mut now = started;
        while left > 0 {
            let piece = match (is_single, tick.is_on()) {
                (true, _) => 1,
                (false, true) => self.requests_until(number, &tick, now).unwrap_or(between),
                (false, false) => units,
            };
            let piece = piece.min(left);
            let (moved, pending) = self.run_piece(number, attachment, grant, started, piece);
            did.pending += pending;
            let Some(moved) = moved else { break };
            did.bytes += moved;
            left -= piece;
            seen += piece;
            let may_look = tick.is_on() && (!is_single || left > 0 && seen >= between);
            if may_look {
                seen = 0;
                let ended = clock::now();
                if let Some(queue) = self.queues.get_mut(number) {
                    queue.request_ns = Some(ended.saturating_sub(now) / piece as u64).filter(|_| !is_single);
                }
                now = ended;
            }
            if left > 0 && self.preempt_at_wakeup()
                || left > 0 && may_look && self.preempt_at_tick(number, &mut tick, now)
            {
                did.units = (units - left) as u32;
                break;
            }
            if left > 0 && singly {
                self.complete(number);
            }
        }
        did
    }

    /// How many requests of a queue run until the next tick, by what the last ones took. None: that is not known.
    #[inline]
    pub(super) fn requests_until(&self, number: u32, tick: &PreemptionTick, now: u64) -> Option<usize> {
        let each = self.queues.get(number)?.request_ns?;
        let time = tick.next().0.saturating_sub(now).max(1);
        usize::try_from(time.div_ceil(each.max(1))).ok()
    }

    /// Submits the first `units` waiting requests to the volume. Returns their bytes, none where the queue has ended or
    /// its driver has broken it, and how many of them the back end still has.
    fn run_piece(
        &mut self,
        number: u32,
        attachment: Attachment,
        grant: Grant,
        started: u64,
        units: usize,
    ) -> (Option<u64>, u32) {
        let Some((queue, unpublished)) = self.queues.get_to_finish(number) else { return (None, 0) };
        if queue.waiting.len() < units {
            return (None, 0);
        }
        self.channels.leave(queue.spec.tenant, units as u32);
        let submitted = self.disk.submit(queue, unpublished, attachment, (grant, started), units);
        let (bytes, pending) = match submitted {
            Ok(submitted) => (Some(submitted.bytes), submitted.pending),
            Err(error) => {
                self.break_queue(number, error.to_string());
                (None, 0)
            }
        };
        self.finish_completed(None);
        (bytes, pending)
    }

    /// Gives back what back ends have completed since they were last polled, and tells the policy what that cost them.
    pub(super) fn finish_ended(&mut self) {
        if self.disk.has_completed() {
            self.dispatcher.wake();
            self.finish_completed(Some(Nanos(clock::now())));
        }
    }

    /// Gives completed requests back to their queues, on whichever core those are now. A request that a back end
    /// completed at `back_ends` has a cost of its own; the others were completed within their grant, which is charged
    /// for them.
    fn finish_completed(&mut self, back_ends: Option<Nanos>) {
        let Core { disk, queues, dispatcher, moved, travelling, .. } = self;
        disk.give_back(
            queues,
            |flight| {
                if let Some(now) = back_ends {
                    dispatcher.complete(now, flight.grant, flight.cost(now));
                }
            },
            |key, completed| forward(moved, travelling, key, completed),
        );
    }
}

/// Keeps a completed request for the core that its queue is on now, if any. Otherwise the queue has ended and abandoned
/// the request.
#[cold]
fn forward(
    moved: &HashMap<QueueKey, CoreIndex>,
    travelling: &mut Vec<(QueueKey, CoreIndex, Vec<CompletedRequest>)>,
    key: QueueKey,
    completed: CompletedRequest,
) {
    let Some(&core) = moved.get(&key) else { return };
    match travelling.iter_mut().find(|(other, ..)| *other == key) {
        Some((_, _, batch)) => batch.push(completed),
        None => travelling.push((key, core, vec![completed])),
    }
}
