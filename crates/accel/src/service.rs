//! An engine that tenants share: a bounded channel for each, a policy, and one ring before the engine (MTDA §III-B).

use std::collections::{BTreeMap, VecDeque};

use softdpu_sched::{Cost, Decision, Grant, Nanos, QueueId, Share, TenantId, TenantScheduler, Work};
use thiserror::Error;

use crate::operation::{Failure, Kind, Operation, Output};

/// Requests of one tenant that may wait.
pub const CHANNEL: usize = 256;

/// Requests between the policy and the engine. A policy cannot take back what it let in, so this is short.
pub const RING: usize = 16;

/// Something to be done with bytes.
#[derive(Clone, Debug)]
pub struct Request {
    /// Whose it is.
    pub tenant: TenantId,
    /// The caller's name for it.
    pub token: u64,
    /// What to do.
    pub operation: Operation,
    /// With what.
    pub data: Vec<u8>,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Whose it was.
    pub tenant: TenantId,
    /// The request's name.
    pub token: u64,
    /// What came of it.
    pub result: Result<Output, Failure>,
    /// The request's bytes, as the operation left them.
    pub data: Vec<u8>,
    /// What it took.
    pub took: Nanos,
}

/// Why a request was not taken. It is given back.
#[derive(Debug, Error)]
pub enum Refused {
    /// Its tenant has as many waiting as it may.
    #[error("its tenant has {CHANNEL} requests waiting")]
    Full(Request),
    /// It is for another kind of engine.
    #[error("this engine does no {:?}", .0.operation.kind())]
    Elsewhere(Request),
}

/// An engine of one kind on one core, and who uses it. Its owner gives it time with [`run`](Self::run).
#[derive(Debug)]
pub struct Service<S> {
    kind: Kind,
    scheduler: S,
    channels: BTreeMap<TenantId, Channel>,
    waiting: usize,
    ring: VecDeque<(Grant, Request)>,
    /// A grant for which the ring had no room yet: what is left of it, and what of it is in the ring or was, to be charged with the rest.
    partial: Option<(Grant, Cost)>,
}

/// What one tenant handed over.
#[derive(Debug, Default)]
struct Channel {
    waiting: VecDeque<Request>,
    /// What its requests took beyond what was charged for them, nanoseconds; less than nothing where they took less.
    owes: i64,
}

impl Channel {
    /// What is charged for requests that are expected to take so long: with it what is owed, or without what was charged too much.
    fn charged(&mut self, expected: Nanos) -> Nanos {
        let due = i64::try_from(expected.0).unwrap_or(i64::MAX).saturating_add(self.owes);
        self.owes = due.min(0);
        Nanos(due.max(0) as u64)
    }

    /// A request took so long, and not what was expected.
    fn took(&mut self, took: Nanos, expected: Nanos) {
        let signed = |time: Nanos| i64::try_from(time.0).unwrap_or(i64::MAX);
        self.owes = self.owes.saturating_add(signed(took) - signed(expected));
    }
}

impl<S: TenantScheduler> Service<S> {
    /// An engine of that kind, shared as `scheduler` says.
    pub fn new(kind: Kind, scheduler: S) -> Self {
        let (channels, ring) = (BTreeMap::new(), VecDeque::with_capacity(RING));
        Service { kind, scheduler, channels, waiting: 0, ring, partial: None }
    }

    /// Sets a tenant's share.
    pub fn configure(&mut self, tenant: TenantId, share: Share) {
        self.scheduler.configure(tenant, share);
    }

    /// Requests that are here.
    pub fn outstanding(&self) -> usize {
        self.waiting + self.ring.len()
    }

    /// Takes a request into its tenant's channel.
    ///
    /// # Errors
    /// [`Refused`], with the request.
    pub fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Refused> {
        if request.operation.kind() != self.kind {
            return Err(Refused::Elsewhere(request));
        }
        let channel = &mut self.channels.entry(request.tenant).or_default().waiting;
        if channel.len() >= CHANNEL {
            return Err(Refused::Full(request));
        }
        let work = Work { units: 1, bytes: request.data.len() as u64 };
        self.scheduler.ready(now, queue(request.tenant), work);
        channel.push_back(request);
        self.waiting += 1;
        Ok(())
    }

    /// Works until nothing is left that may run now, or a request has ended after `slice` of the owner's time, which `clock`
    /// tells. What ends is added to `done`. Returns when it wants to be called again; none where there is nothing to do.
    pub fn run(&mut self, slice: Nanos, mut clock: impl FnMut() -> Nanos, done: &mut Vec<Done>) -> Option<Nanos> {
        let began = clock();
        let mut now = began;
        loop {
            let later = self.feed(now);
            let Some((grant, Request { tenant, token, operation, mut data })) = self.ring.pop_front() else {
                return later;
            };
            let bytes = data.len() as u64;
            let expected = operation.expected(data.len());
            let result = operation.run(&mut data);
            let ended = clock();
            let took = ended.since(now);
            if let Some(channel) = self.channels.get_mut(&tenant) {
                channel.took(took, expected);
            }
            self.scheduler.complete(ended, grant, Cost { units: 1, time: took, bytes, pending: 0 });
            done.push(Done { tenant, token, result, data, took });
            now = ended;
            if now.since(began) >= slice {
                return (self.outstanding() > 0).then_some(now);
            }
        }
    }

    /// Ends everything a tenant has here: how many requests that were.
    pub fn cancel(&mut self, now: Nanos, tenant: TenantId) -> usize {
        if let Some((grant, cost)) = self.partial.take_if(|(grant, _)| grant.queue.tenant == tenant) {
            self.scheduler.charge(now, Grant { units: cost.units, ..grant }, cost);
        }
        self.scheduler.cancel(now, queue(tenant));
        let waited = self.channels.remove(&tenant).map_or(0, |channel| channel.waiting.len());
        self.waiting -= waited;
        let mut ended = 0;
        let scheduler = &mut self.scheduler;
        self.ring.retain(|(grant, _)| {
            let gone = grant.queue.tenant == tenant;
            if gone {
                ended += 1;
                scheduler.complete(now, *grant, Cost { units: 1, ..Cost::default() });
            }
            !gone
        });
        waited + ended
    }

    /// Fills the ring as the policy says. When it has something to say again, where it holds back what is there.
    fn feed(&mut self, now: Nanos) -> Option<Nanos> {
        while self.ring.len() < RING {
            let (grant, mut cost) = match self.partial.take() {
                Some(partial) => partial,
                None => match self.scheduler.decide(now) {
                    Decision::Run(grant) => (grant, Cost::default()),
                    Decision::IdleUntil(at) => return Some(at),
                    Decision::Idle => return None,
                },
            };
            let Some(channel) = self.channels.get_mut(&grant.queue.tenant) else { continue };
            let take = (grant.units as usize).min(RING - self.ring.len()).min(channel.waiting.len());
            let mut expected = Nanos(0);
            for request in channel.waiting.drain(..take) {
                expected = expected + request.operation.expected(request.data.len());
                cost.bytes += request.data.len() as u64;
                self.ring.push_back((Grant { units: 1, ..grant }, request));
            }
            // The policy decides by what it costs, before it has: it is told what is expected, and later the difference.
            cost.time = cost.time + channel.charged(expected);
            cost.units += take as u32;
            cost.pending += take as u32;
            self.waiting -= take;
            let left = grant.units - take as u32;
            if left > 0 && !channel.waiting.is_empty() {
                self.partial = Some((Grant { units: left, ..grant }, cost));
            } else {
                self.scheduler.charge(now, Grant { units: cost.units, ..grant }, cost);
            }
        }
        None
    }
}

/// A tenant has one queue here.
fn queue(tenant: TenantId) -> QueueId {
    QueueId { tenant, index: u32::from(tenant.0) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use softdpu_sched::{Fcfs, Weighted};

    use super::*;
    use crate::operation::{Algorithm, Digest};

    fn request(tenant: u16, token: u64, len: usize) -> Request {
        let operation = Operation::Hash(Algorithm::Crc32c);
        Request { tenant: TenantId(tenant), token, operation, data: vec![0; len] }
    }

    /// A clock by which each look is a microsecond after the one before.
    fn ticking(clock: &Cell<u64>) -> impl FnMut() -> Nanos {
        || {
            clock.set(clock.get() + 1000);
            Nanos(clock.get())
        }
    }

    #[test]
    fn requests_end_in_order_with_their_bytes_and_results() {
        let clock = Cell::new(0);
        let mut service = Service::new(Kind::Hash, Fcfs::new());
        for token in 0..40 {
            service.submit(Nanos(0), request(1, token, 32)).unwrap();
        }
        let mut done = Vec::new();
        assert_eq!(service.run(Nanos::SECOND, ticking(&clock), &mut done), None);
        assert_eq!(done.iter().map(|done| done.token).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
        let digest = Ok(Output::Digest(Digest::Crc32c(0x8a91_36aa)));
        assert!(done.iter().all(|done| done.result == digest && done.data.len() == 32 && done.took == Nanos(1000)));
        assert_eq!(service.outstanding(), 0);
    }

    #[test]
    fn a_channel_is_bounded_and_another_kind_is_refused() {
        let mut service = Service::new(Kind::Hash, Fcfs::new());
        for token in 0..CHANNEL as u64 {
            service.submit(Nanos(0), request(1, token, 1)).unwrap();
        }
        assert!(
            matches!(service.submit(Nanos(0), request(1, 9999, 1)), Err(Refused::Full(back)) if back.token == 9999)
        );
        assert!(service.submit(Nanos(0), request(2, 0, 1)).is_ok(), "another tenant has its own");
        let other = Request { operation: Operation::Compress, ..request(2, 1, 1) };
        assert!(matches!(service.submit(Nanos(0), other), Err(Refused::Elsewhere(_))));
    }

    #[test]
    fn a_slice_ends_and_the_next_goes_on() {
        let clock = Cell::new(0);
        let mut service = Service::new(Kind::Hash, Fcfs::new());
        for token in 0..100 {
            service.submit(Nanos(0), request(1, token, 32)).unwrap();
        }
        let mut done = Vec::new();
        let mut slices = 0;
        while service.outstanding() > 0 {
            let before = done.len();
            let _ = service.run(Nanos(10_000), ticking(&clock), &mut done);
            assert!((1..=10).contains(&(done.len() - before)));
            slices += 1;
        }
        assert_eq!((done.len(), slices), (100, 10));
    }

    /// What a tenant that always has work has more of than another, in cost as `weighted` counts it: time, and 20 ps a byte.
    fn ratio_of_costs(weights: [u32; 2], lens: [usize; 2], rounds: u64) -> f64 {
        let clock = Cell::new(0);
        let mut service = Service::new(Kind::Hash, Weighted::default());
        for (tenant, weight) in (1..).zip(weights) {
            service.configure(TenantId(tenant), Share { weight, ..Share::default() });
        }
        let mut costs = [0.0; 3];
        let mut done = Vec::new();
        for round in 0..rounds {
            let now = Nanos(clock.get());
            for (tenant, len) in (1..).zip(lens) {
                while service.submit(now, request(tenant, round, len)).is_ok() {}
            }
            let _ = service.run(Nanos(20_000), ticking(&clock), &mut done);
            for done in done.drain(..) {
                costs[usize::from(done.tenant.0)] += done.took.0 as f64 + 0.02 * done.data.len() as f64;
            }
        }
        costs[1] / costs[2]
    }

    /// Each request takes a microsecond, whatever it was expected to: 420 ns of 4 KiB, and 1,620 of 16.
    #[test]
    fn tenants_share_the_engine_by_weight_in_what_their_requests_took() {
        for (weights, lens) in [([3, 1], [4 << 10, 16 << 10]), ([3, 1], [16 << 10, 4 << 10]), ([1, 1], [64, 16 << 10])]
        {
            let due = f64::from(weights[0]) / f64::from(weights[1]);
            let ratio = ratio_of_costs(weights, lens, 2_000);
            assert!((ratio / due - 1.0).abs() < 0.02, "{weights:?}, {lens:?} bytes: {ratio:.3} to one");
        }
    }

    #[test]
    fn what_is_cancelled_is_gone_and_the_rest_stays() {
        let clock = Cell::new(0);
        let mut service = Service::new(Kind::Hash, Fcfs::new());
        for token in 0..30 {
            service.submit(Nanos(0), request(1, token, 32)).unwrap();
            service.submit(Nanos(0), request(2, token, 32)).unwrap();
        }
        let mut done = Vec::new();
        let _ = service.run(Nanos(1000), ticking(&clock), &mut done);
        let ended: Vec<_> = done.drain(..).map(|done| done.tenant).collect();
        let of_one = ended.iter().filter(|tenant| tenant.0 == 1).count();
        assert_eq!(service.cancel(Nanos(clock.get()), TenantId(1)), 30 - of_one);
        let _ = service.run(Nanos::SECOND, ticking(&clock), &mut done);
        assert!(done.iter().all(|done| done.tenant == TenantId(2)));
        assert_eq!((done.len(), service.outstanding()), (30 - (ended.len() - of_one), 0));
    }
}
