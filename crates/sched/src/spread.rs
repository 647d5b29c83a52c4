//! Which core works on which packets from tunnels: buckets of flows, and elephants beside them.
//!
//! What comes by tunnels is read by whoever has the underlay's socket, and may be worked on anywhere. As the [balancer](crate::Balancer) of queues this
//! is asked now and then; but buckets are many and light, so that many move at once, and one may hold a flow that is more than a core has to
//! give to the others in it. Such an elephant gets a place of its own, first where it is, so that *the others* can go; only when nothing else can
//! does it go itself.

use std::collections::BTreeMap;

use crate::Nanos;

/// A bucket that had packets lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLoad {
    /// Which.
    pub bucket: usize,
    /// The core that works on it, from 0.
    pub core: usize,
    /// What it takes of that core, in thousandths.
    pub load: u32,
}

/// A flow that carries much, of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elephant<F> {
    /// Which.
    pub flow: F,
    /// The bucket that it is in.
    pub bucket: usize,
}

/// A flow that was given a place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned<F> {
    /// Which.
    pub flow: F,
    /// Where it is.
    pub core: usize,
    /// What it takes of that core, in thousandths.
    pub load: u32,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order<F> {
    /// A bucket's packets go to another core.
    Move {
        /// Which.
        bucket: usize,
        /// Where to.
        to: usize,
    },
    /// A flow gets a place of its own, where it has been in its bucket or where it is pinned, or on another core.
    Pin {
        /// Which.
        flow: F,
        /// Where.
        core: usize,
    },
    /// A flow goes back to its bucket.
    Unpin {
        /// Which.
        flow: F,
    },
}

/// How eagerly flows are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keenness {
    /// What the busiest core has to do at the least, in thousandths, before anything moves.
    pub busy: u32,
    /// By how much it has to be above the idlest, in thousandths.
    pub difference: u32,
    /// For how long a bucket, or a flow, stays where it was put.
    pub rest: Nanos,
    /// Buckets that move at a time.
    pub moves: usize,
    /// How often in a row a flow has to be an elephant before it gets a place of its own.
    pub told: u32,
    /// How often in a row it has to be none before it goes back.
    pub quiet: u32,
    /// Elephants that have a place of their own.
    pub pins: usize,
}

impl Default for Keenness {
    fn default() -> Self {
        Keenness {
            busy: 600,
            difference: 250,
            rest: Nanos(5 * Nanos::SECOND.0),
            moves: 64,
            told: 2,
            quiet: 10,
            pins: 16,
        }
    }
}

/// Puts buckets and elephants on cores, see the [module](self). Pure: it is asked now and then, and answers with orders.
#[derive(Debug)]
pub struct Spreader<F> {
    keenness: Keenness,
    moved: BTreeMap<usize, Nanos>,
    /// Elephants without a place of their own: how often in a row they were told of.
    told: BTreeMap<F, u32>,
    /// Those that have one: since when, and how often in a row they were not.
    pinned: BTreeMap<F, (Nanos, u32)>,
}

impl<F: Ord + Copy> Default for Spreader<F> {
    fn default() -> Self {
        Spreader::new(Keenness::default())
    }
}

impl<F: Ord + Copy> Spreader<F> {
    /// One that has moved nothing yet.
    pub fn new(keenness: Keenness) -> Spreader<F> {
        Spreader { keenness, moved: BTreeMap::new(), told: BTreeMap::new(), pinned: BTreeMap::new() }
    }

    /// What is to be done at `now`. `busy`: what each core has to do, of whatever kind, in thousandths of its time; the loads of buckets and of
    /// pinned flows are parts of that.
    pub fn plan(
        &mut self,
        now: Nanos,
        busy: &[u32],
        buckets: &[BucketLoad],
        elephants: &[Elephant<F>],
        pinned: &[Pinned<F>],
    ) -> Vec<Order<F>> {
        let mut orders = self.let_go(now, elephants, pinned);
        let by_load = |core: &usize| (busy.get(*core).copied().unwrap_or(0), *core);
        let (Some(from), Some(to)) = ((0..busy.len()).max_by_key(by_load), (0..busy.len()).min_by_key(by_load)) else {
            return orders;
        };
        let difference = busy[from] - busy[to];
        if busy[from] < self.keenness.busy || difference < self.keenness.difference {
            return orders;
        }
        let before = orders.len();
        let mut left = difference / 2;
        let mut here: Vec<&BucketLoad> = buckets
            .iter()
            .filter(|load| load.core == from && load.load > 0 && self.may_move(now, load.bucket))
            .collect();
        here.sort_by_key(|load| (std::cmp::Reverse(load.load), load.bucket));
        for load in here {
            if load.load <= left && orders.len() - before < self.keenness.moves {
                left -= load.load;
                self.moved.insert(load.bucket, now);
                orders.push(Order::Move { bucket: load.bucket, to });
            } else if load.load > left
                && self.pinned.len() < self.keenness.pins
                && let Some(elephant) = elephants.iter().find(|elephant| {
                    elephant.bucket == load.bucket && self.told.get(&elephant.flow) >= Some(&self.keenness.told)
                })
            {
                self.told.remove(&elephant.flow);
                self.pinned.insert(elephant.flow, (now, 0));
                orders.push(Order::Pin { flow: elephant.flow, core: from });
            }
        }
        if orders.len() == before {
            let rested = |flow: &F| self.pinned.get(flow).is_some_and(|(at, _)| now.since(*at) >= self.keenness.rest);
            let can = |of: &&Pinned<F>| of.core == from && of.load > 0 && of.load < difference && rested(&of.flow);
            // The one that comes nearest to half of the difference.
            let best = pinned.iter().filter(can).min_by_key(|of| (difference.abs_diff(2 * of.load), of.flow));
            if let Some(&Pinned { flow, .. }) = best {
                self.pinned.insert(flow, (now, 0));
                orders.push(Order::Pin { flow, core: to });
            }
        }
        orders
    }

    fn may_move(&self, now: Nanos, bucket: usize) -> bool {
        self.moved.get(&bucket).is_none_or(|at| now.since(*at) >= self.keenness.rest)
    }

    /// Counts who is an elephant, and lets go of those that are none any more.
    fn let_go(&mut self, now: Nanos, elephants: &[Elephant<F>], pinned: &[Pinned<F>]) -> Vec<Order<F>> {
        let is_elephant = |flow: &F| elephants.iter().any(|elephant| elephant.flow == *flow);
        // Somebody else may have put them back.
        self.pinned.retain(|flow, _| pinned.iter().any(|known| known.flow == *flow));
        self.told.retain(|flow, _| is_elephant(flow));
        for elephant in elephants.iter().filter(|elephant| !pinned.iter().any(|known| known.flow == elephant.flow)) {
            *self.told.entry(elephant.flow).or_default() += 1;
        }
        let mut orders = Vec::new();
        for known in pinned {
            let (_, quiet) = self.pinned.entry(known.flow).or_insert((now, 0));
            *quiet = if is_elephant(&known.flow) { 0 } else { *quiet + 1 };
            if *quiet >= self.keenness.quiet {
                self.pinned.remove(&known.flow);
                orders.push(Order::Unpin { flow: known.flow });
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
