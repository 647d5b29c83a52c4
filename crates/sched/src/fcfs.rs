//! First come, first served: what a shared DPDK or SPDK core does (MTDA §II-C.1, §V). The baseline every other policy
//! is compared with.

use crate::fifo::Fifo;
use crate::{Cost, Decision, DeferredWork, Grant, Nanos, Preemption, QueueId, Share, TenantId, TenantScheduler, Work};

/// Runs ready work in the order in which it became ready, whatever tenant it belongs to.
#[derive(Debug, Default)]
pub struct Fcfs {
    fifo: Fifo,
}

impl Fcfs {
    /// The most units one grant carries: long enough to amortise a decision, short enough that the core polls its
    /// queues and back ends in between.
    pub const BATCH: u32 = 64;

    /// A scheduler without work.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Preemption for Fcfs {}
impl DeferredWork for Fcfs {}

impl TenantScheduler for Fcfs {
    fn configure(&mut self, _tenant: TenantId, _share: Share) {}

    #[inline]
    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        self.fifo.push(now, queue, work.units);
    }

    #[inline]
    fn decide(&mut self, _now: Nanos) -> Decision {
        self.fifo.pop(Self::BATCH).map_or(Decision::Idle, |(grant, _)| Decision::Run(grant))
    }

    #[inline]
    fn charge(&mut self, _now: Nanos, _grant: Grant, _cost: Cost) {}

    fn cancel(&mut self, _now: Nanos, queue: QueueId) {
        self.fifo.cancel(queue);
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
