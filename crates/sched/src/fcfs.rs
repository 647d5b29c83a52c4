//! First come, first served: what a shared DPDK or SPDK core does. The baseline every other policy is compared with.

use std::collections::VecDeque;

use crate::{Cost, Decision, Grant, Nanos, QueueId, Share, TenantId, TenantScheduler, Work};

/// Runs ready work in the order in which it became ready, whoever it belongs to.
///
/// Adjacent arrivals of one queue merge into one entry, so memory is bounded by the number of alternations, which the
/// caller's bounded channels bound in turn.
#[derive(Debug, Default)]
pub struct Fcfs {
    line: VecDeque<(QueueId, u32)>,
}

impl Fcfs {
    /// The most units one grant carries: long enough to amortise a decision, short enough that the core polls its queues
    /// and back ends in between.
    pub const BATCH: u32 = 64;

    /// An empty line.
    pub fn new() -> Self {
        Self::default()
    }
}

impl TenantScheduler for Fcfs {
    fn configure(&mut self, _tenant: TenantId, _share: Share) {}

    #[inline]
    fn ready(&mut self, _now: Nanos, queue: QueueId, work: Work) {
        if work.units == 0 {
            return;
        }
        match self.line.back_mut() {
            Some((last, units)) if *last == queue => *units = units.saturating_add(work.units),
            _ => self.line.push_back((queue, work.units)),
        }
    }

    #[inline]
    fn decide(&mut self, _now: Nanos) -> Decision {
        let Some((queue, waiting)) = self.line.front_mut() else {
            return Decision::Idle;
        };
        let grant = Grant { queue: *queue, units: (*waiting).min(Self::BATCH) };
        *waiting -= grant.units;
        if *waiting == 0 {
            self.line.pop_front();
        }
        Decision::Run(grant)
    }

    #[inline]
    fn charge(&mut self, _now: Nanos, _grant: Grant, _cost: Cost) {}

    #[inline]
    fn complete(&mut self, _now: Nanos, _grant: Grant, _cost: Cost) {}

    fn cancel(&mut self, _now: Nanos, queue: QueueId) {
        self.line.retain(|(waiting, _)| *waiting != queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Nanos = Nanos(0);

    fn queue(tenant: u16, index: u32) -> QueueId {
        QueueId { tenant: TenantId(tenant), index }
    }

    fn units(n: u32) -> Work {
        Work { units: n, bytes: 0 }
    }

    #[test]
    fn runs_in_arrival_order_across_tenants() {
        let (a, b) = (queue(0, 0), queue(1, 1));
        let mut fcfs = Fcfs::new();
        fcfs.ready(T, a, units(2));
        fcfs.ready(T, b, units(1));
        fcfs.ready(T, a, units(3));

        let order: Vec<_> = std::iter::from_fn(|| match fcfs.decide(T) {
            Decision::Run(grant) => Some((grant.queue, grant.units)),
            _ => None,
        })
        .collect();
        assert_eq!(order, [(a, 2), (b, 1), (a, 3)]);
        assert_eq!(fcfs.decide(T), Decision::Idle);
    }

    #[test]
    fn a_grant_is_bounded_and_the_rest_keeps_its_place() {
        let (a, b) = (queue(0, 0), queue(1, 1));
        let mut fcfs = Fcfs::new();
        fcfs.ready(T, a, units(Fcfs::BATCH + 1));
        fcfs.ready(T, b, units(1));
        assert_eq!(fcfs.decide(T), Decision::Run(Grant { queue: a, units: Fcfs::BATCH }));
        assert_eq!(fcfs.decide(T), Decision::Run(Grant { queue: a, units: 1 }));
        assert_eq!(fcfs.decide(T), Decision::Run(Grant { queue: b, units: 1 }));
    }

    #[test]
    fn cancelled_work_is_never_granted() {
        let (a, b) = (queue(0, 0), queue(1, 1));
        let mut fcfs = Fcfs::new();
        fcfs.ready(T, a, units(5));
        fcfs.ready(T, b, units(1));
        fcfs.cancel(T, a);
        assert_eq!(fcfs.decide(T), Decision::Run(Grant { queue: b, units: 1 }));
        assert_eq!(fcfs.decide(T), Decision::Idle);
    }

    #[test]
    fn empty_work_leaves_no_trace() {
        let mut fcfs = Fcfs::new();
        fcfs.ready(T, queue(0, 0), units(0));
        assert_eq!(fcfs.decide(T), Decision::Idle);
    }
}
