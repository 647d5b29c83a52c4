//! Which core works on which packets from tunnels: buckets of flows, and elephants beside them.
//!
//! The core that has the underlay's socket reads packets from tunnels; any core may work on them. Flows are hashed into
//! buckets, and buckets move, as receive-flow-steering tables do (RSS indirection). Buckets are many and light, so many
//! move at once. A bucket may hold an elephant, a flow heavier than what the bucket's other flows can be moved for. An
//! elephant is pinned, first to the core where it is, so that *the others* of its bucket can move; it moves itself only
//! when nothing else can.

use std::collections::BTreeMap;

use super::Hysteresis;
use crate::Nanos;

/// A bucket that had packets lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLoad {
    /// The bucket.
    pub bucket: usize,
    /// The core that works on it, from 0.
    pub core: usize,
    /// What it takes of that core, in thousandths.
    pub load: u32,
}

/// A heavy flow of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elephant<F> {
    /// The flow.
    pub flow: F,
    /// The bucket that it is in.
    pub bucket: usize,
}

/// A flow that is pinned to a core, whatever bucket it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned<F> {
    /// The flow.
    pub flow: F,
    /// The core that works on it.
    pub core: usize,
    /// What it takes of that core, in thousandths.
    pub load: u32,
}

/// A change of the table that says which core works on what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order<F> {
    /// A bucket's packets go to another core.
    Move {
        /// The bucket.
        bucket: usize,
        /// Its new core.
        to: usize,
    },
    /// A flow is pinned to a core: to the one it is on, or to another one.
    Pin {
        /// The flow.
        flow: F,
        /// Its core.
        core: usize,
    },
    /// A flow goes back to its bucket.
    Unpin {
        /// The flow.
        flow: F,
    },
}

/// When flows move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadTuning {
    /// The least load of the busiest core at which anything moves, thousandths.
    pub busy: u32,
    /// How unequal loads have to be, how long a bucket or a flow stays, and how many buckets move at a time.
    pub hysteresis: Hysteresis,
    /// How often in a row a flow has to be an elephant before it is pinned.
    pub pin_after: u32,
    /// How often in a row it has to be none before it is unpinned.
    pub unpin_after: u32,
    /// Elephants that are pinned at the most.
    pub pins: usize,
}

impl Default for SpreadTuning {
    fn default() -> Self {
        let hysteresis = Hysteresis { imbalance: 250, dwell: Nanos(5 * Nanos::SECOND.0), moves: 64 };
        SpreadTuning { busy: 600, hysteresis, pin_after: 2, unpin_after: 10, pins: 16 }
    }
}

/// Puts buckets and elephants on cores, see the [module](self). Pure: it is asked now and then, and answers with
/// orders.
#[derive(Debug)]
pub struct Spreader<F> {
    tuning: SpreadTuning,
    moved: BTreeMap<usize, Nanos>,
    /// Elephants that are not pinned: how often in a row each was one.
    sightings: BTreeMap<F, u32>,
    /// Pinned flows: since when, and how often in a row each was no elephant.
    pinned: BTreeMap<F, (Nanos, u32)>,
}

impl<F: Ord + Copy> Default for Spreader<F> {
    fn default() -> Self {
        Spreader::new(SpreadTuning::default())
    }
}

impl<F: Ord + Copy> Spreader<F> {
    /// A spreader that has moved nothing yet.
    pub fn new(tuning: SpreadTuning) -> Spreader<F> {
        Spreader { tuning, moved: BTreeMap::new(), sightings: BTreeMap::new(), pinned: BTreeMap::new() }
    }

    /// Plans the changes at `now`. `busy` is each core's load of every kind, in thousandths of its time; the loads of
    /// buckets and of pinned flows are parts of it.
    pub fn plan(
        &mut self,
        now: Nanos,
        busy: &[u32],
        buckets: &[BucketLoad],
        elephants: &[Elephant<F>],
        pinned: &[Pinned<F>],
    ) -> Vec<Order<F>> {
        let mut orders = self.unpin_light(now, elephants, pinned);
        let by_load = |core: &usize| (busy.get(*core).copied().unwrap_or(0), *core);
        let (Some(from), Some(to)) = ((0..busy.len()).max_by_key(by_load), (0..busy.len()).min_by_key(by_load)) else {
            return orders;
        };
        let difference = busy[from] - busy[to];
        if busy[from] < self.tuning.busy || difference < self.tuning.hysteresis.imbalance {
            return orders;
        }
        let before = orders.len();
        let mut left = difference / 2;
        let mut movable: Vec<&BucketLoad> = buckets
            .iter()
            .filter(|load| load.core == from && load.load > 0 && self.may_move(now, load.bucket))
            .collect();
        movable.sort_by_key(|load| (std::cmp::Reverse(load.load), load.bucket));
        for load in movable {
            if load.load <= left && orders.len() - before < self.tuning.hysteresis.moves {
                left -= load.load;
                self.moved.insert(load.bucket, now);
                orders.push(Order::Move { bucket: load.bucket, to });
            } else if load.load > left
                && self.pinned.len() < self.tuning.pins
                && let Some(elephant) = elephants.iter().find(|elephant| {
                    elephant.bucket == load.bucket && self.sightings.get(&elephant.flow) >= Some(&self.tuning.pin_after)
                })
            {
                self.sightings.remove(&elephant.flow);
                self.pinned.insert(elephant.flow, (now, 0));
                orders.push(Order::Pin { flow: elephant.flow, core: from });
            }
        }
        if orders.len() == before {
            let dwell = self.tuning.hysteresis.dwell;
            let rested = |flow: &F| self.pinned.get(flow).is_some_and(|(at, _)| now.since(*at) >= dwell);
            let can = |of: &&Pinned<F>| of.core == from && of.load > 0 && of.load < difference && rested(&of.flow);
            // The flow whose load comes nearest to half of the difference.
            let best = pinned.iter().filter(can).min_by_key(|of| (difference.abs_diff(2 * of.load), of.flow));
            if let Some(&Pinned { flow, .. }) = best {
                self.pinned.insert(flow, (now, 0));
                orders.push(Order::Pin { flow, core: to });
            }
        }
        orders
    }

    fn may_move(&self, now: Nanos, bucket: usize) -> bool {
        self.moved.get(&bucket).is_none_or(|at| now.since(*at) >= self.tuning.hysteresis.dwell)
    }

    /// Counts which flows are elephants, and unpins those that are none any more.
    fn unpin_light(&mut self, now: Nanos, elephants: &[Elephant<F>], pinned: &[Pinned<F>]) -> Vec<Order<F>> {
        let is_elephant = |flow: &F| elephants.iter().any(|elephant| elephant.flow == *flow);
        // The caller may have unpinned some.
        self.pinned.retain(|flow, _| pinned.iter().any(|one| one.flow == *flow));
        self.sightings.retain(|flow, _| is_elephant(flow));
        for elephant in elephants.iter().filter(|elephant| !pinned.iter().any(|one| one.flow == elephant.flow)) {
            *self.sightings.entry(elephant.flow).or_default() += 1;
        }
        let mut orders = Vec::new();
        for &Pinned { flow, .. } in pinned {
            let (_, quiet) = self.pinned.entry(flow).or_insert((now, 0));
            *quiet = if is_elephant(&flow) { 0 } else { *quiet + 1 };
            if *quiet >= self.tuning.unpin_after {
                self.pinned.remove(&flow);
                orders.push(Order::Unpin { flow });
            }
        }
        orders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = Nanos::SECOND.0;

    fn bucket(bucket: usize, core: usize, load: u32) -> BucketLoad {
        BucketLoad { bucket, core, load }
    }

    #[test]
    fn many_light_buckets_go_from_a_busy_core_to_an_idle_one_and_then_rest() {
        let mut spreader: Spreader<u8> = Spreader::default();
        let mut buckets: Vec<BucketLoad> = (0..100).map(|number| bucket(number, 0, 9)).collect();
        let orders = spreader.plan(Nanos(SECOND), &[900, 0], &buckets, &[], &[]);
        assert_eq!(orders.len(), 50, "half of what there is: {orders:?}");
        for order in orders {
            let Order::Move { bucket, to: 1 } = order else { panic!("{order:?}") };
            buckets[bucket].core = 1;
        }
        assert_eq!(spreader.plan(Nanos(2 * SECOND), &[450, 450], &buckets, &[], &[]), []);
        // What went to the other core does not come back at once, though that is busy now.
        let orders = spreader.plan(Nanos(3 * SECOND), &[0, 900], &buckets, &[], &[]);
        assert_eq!(orders, []);
        let orders = spreader.plan(Nanos(7 * SECOND), &[0, 900], &buckets, &[], &[]);
        assert_eq!(orders.len(), 50);
    }

    #[test]
    fn nothing_moves_while_no_core_is_busy_or_all_are() {
        let buckets: Vec<BucketLoad> = (0..50).map(|number| bucket(number, 0, 9)).collect();
        for busy in [&[500, 0][..], &[1000, 900], &[900], &[]] {
            assert_eq!(Spreader::<u8>::default().plan(Nanos(SECOND), busy, &buckets, &[], &[]), [], "{busy:?}");
        }
    }

    #[test]
    fn an_elephant_stays_and_the_others_of_its_bucket_go() {
        let mut spreader = Spreader::default();
        let elephants = [Elephant { flow: 'e', bucket: 7 }];
        let busy = [1000, 0];
        let whole = [bucket(7, 0, 900)];
        assert_eq!(spreader.plan(Nanos(SECOND), &busy, &whole, &elephants, &[]), [], "it may be a moment's");
        let orders = spreader.plan(Nanos(2 * SECOND), &busy, &whole, &elephants, &[]);
        assert_eq!(orders, [Order::Pin { flow: 'e', core: 0 }]);
        let pinned = [Pinned { flow: 'e', core: 0, load: 800 }];
        let rest = [bucket(7, 0, 100)];
        let orders = spreader.plan(Nanos(3 * SECOND), &busy, &rest, &elephants, &pinned);
        assert_eq!(orders, [Order::Move { bucket: 7, to: 1 }]);
        // No more can be done for it: it would only make the other core the busy one.
        let gone = [bucket(7, 1, 100)];
        assert_eq!(spreader.plan(Nanos(30 * SECOND), &[900, 100], &gone, &elephants, &pinned), []);
    }

    #[test]
    fn an_elephant_goes_itself_where_its_core_has_work_that_cannot_go() {
        let mut spreader = Spreader::default();
        let elephants = [Elephant { flow: 'e', bucket: 7 }];
        let pinned = [Pinned { flow: 'e', core: 0, load: 500 }];
        assert_eq!(spreader.plan(Nanos(SECOND), &[1000, 0], &[], &elephants, &pinned), [], "it was just put there");
        let orders = spreader.plan(Nanos(7 * SECOND), &[1000, 0], &[], &elephants, &pinned);
        assert_eq!(orders, [Order::Pin { flow: 'e', core: 1 }]);
    }

    #[test]
    fn what_is_no_elephant_for_long_goes_back_to_its_bucket() {
        let mut spreader = Spreader::default();
        let pinned = [Pinned { flow: 'e', core: 0, load: 0 }];
        for window in 1..10 {
            assert_eq!(spreader.plan(Nanos(window * SECOND), &[10, 0], &[], &[], &pinned), [], "{window}");
        }
        assert_eq!(spreader.plan(Nanos(10 * SECOND), &[10, 0], &[], &[], &pinned), [Order::Unpin { flow: 'e' }]);
    }
}
