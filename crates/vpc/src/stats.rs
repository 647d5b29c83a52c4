//! What a core's VPC counts.

use crate::paths::{Datapath, Destination, Paths};
use crate::verdict::{DropReason, Verdict};

/// Counts of one core, frames each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Went in: the sum of the next four and of all drops.
    pub received: u64,
    /// Left for a port of this node.
    pub local: u64,
    /// Left for the underlay.
    pub underlay: u64,
    /// Of those two: by where they left to, and the tier that decided so.
    pub paths: Paths,
    /// Were handed to the software tier.
    pub software: u64,
    /// Are in a flow: reached the flow tier.
    pub flow: u64,
    /// Of those: decided by what was decided for their flow before.
    pub cached: u64,
    /// Of the others: were put to the policies of their ends, because one of them is at this node and has some.
    pub policy: u64,
    /// Of the flows that were met after a change: used nothing that changed, and go on as they are.
    pub revalidated: u64,
    /// Of them: used something that changed, and were computed anew.
    pub recomputed: u64,
    /// Flows that could not be kept: the table is full. Their packets are decided one by one.
    pub unkept: u64,
    /// Of those handed to the software tier: dealt with.
    pub consumed: u64,
    /// Frames that the software tier sent.
    pub replies: u64,
    /// Dropped by the switch and flow tiers, by reason, in the order of [`DropReason::ALL`].
    pub dropped: [u64; DropReason::ALL.len()],
    /// Dropped by the software tier, likewise: of those handed to it.
    pub dropped_software: [u64; DropReason::ALL.len()],
}

impl Default for Stats {
    fn default() -> Stats {
        Stats {
            received: 0,
            local: 0,
            underlay: 0,
            paths: Paths::default(),
            software: 0,
            flow: 0,
            cached: 0,
            policy: 0,
            revalidated: 0,
            recomputed: 0,
            unkept: 0,
            consumed: 0,
            replies: 0,
            dropped: [0; DropReason::ALL.len()],
            dropped_software: [0; DropReason::ALL.len()],
        }
    }
}

impl Stats {
    /// Drops for `reason` in all tiers.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize] + self.dropped_software[reason as usize]
    }

    #[inline]
    pub(crate) fn count(&mut self, verdict: &Verdict) {
        self.received += 1;
        match verdict {
            Verdict::Local { .. } => self.local += 1,
            Verdict::Underlay { .. } => self.underlay += 1,
            Verdict::Software => self.software += 1,
            Verdict::Consumed => self.consumed += 1,
            Verdict::Drop(reason) => self.dropped[*reason as usize] += 1,
        }
    }

    /// What its flow decided of a frame; `is_here` tells whether it came in by a port of this node.
    #[inline(never)]
    pub(crate) fn count_followed(&mut self, verdict: &Verdict, is_here: bool) {
        self.flow += 1;
        self.cached += 1;
        self.count_decided(verdict, is_here, Datapath::Fast);
    }

    /// Frames that flows sent to ports of this node.
    #[inline]
    pub(crate) fn count_local(&mut self, frames: u64) {
        self.received += frames;
        self.local += frames;
        self.flow += frames;
        self.cached += frames;
        self.paths.add(Destination::Port, Datapath::Fast, frames);
    }

    /// What was decided of a frame, by `by`; `is_here` tells whether it came in by a port of this node.
    #[inline]
    pub(crate) fn count_decided(&mut self, verdict: &Verdict, is_here: bool, by: Datapath) {
        self.count(verdict);
        match verdict {
            Verdict::Local { .. } => self.paths.add(Destination::Port, by, 1),
            Verdict::Underlay { .. } if is_here => self.paths.add(Destination::Tunnel, by, 1),
            Verdict::Underlay { .. } => self.paths.add(Destination::Transit, by, 1),
            Verdict::Software | Verdict::Consumed | Verdict::Drop(_) => {}
        }
    }

    pub(crate) fn count_software(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Drop(reason) => self.dropped_software[*reason as usize] += 1,
            Verdict::Local { .. } | Verdict::Underlay { .. } | Verdict::Software | Verdict::Consumed => {
                self.consumed += 1
            }
        }
    }
}
