//! Packets of flows that are met for the first time after a change.

use std::sync::Arc;

use super::super::{Case, Load};
use super::core::{BURST, Core};
use super::traffic::{ORDER, SENDERS, Site, Way};

/// A case.
pub(super) struct After {
    pub flows: u32,
    /// Of what each of them uses; otherwise of something else.
    pub is_changed: bool,
}

impl Case for After {
    fn name(&self) -> String {
        let what = if self.is_changed { "what they use" } else { "something else" };
        format!("flow: first packets after a change of {what}, 1 M flows")
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let order = (0..ORDER as u32).map(|at| at % self.flows).collect();
        let mut core = Core::new(Site::plain(Way::Beside, self.flows), order)?;
        core.learn()?;
        Ok(Box::new(Changing { core, is_changed: self.is_changed, rounds: 0 }))
    }
}

struct Changing {
    core: Core,
    is_changed: bool,
    rounds: u32,
}

impl Changing {
    /// Other tables come into force.
    fn change(&mut self) {
        self.rounds += 1;
        let mut spec = self.core.site.spec().expect("as good as the one before");
        if self.is_changed {
            let is_even = self.rounds.is_multiple_of(2);
            spec.endpoints[..SENDERS as usize].iter_mut().for_each(|endpoint| endpoint.spoof_check = is_even);
        } else {
            spec.services.lease = self.rounds;
        }
        let tables = self.core.vpc.tables().rebuild(&spec, None).expect("as good as the one before");
        self.core.vpc.replace(Arc::new(tables));
    }
}

impl Load for Changing {
    fn run(&mut self, operations: u64) -> u64 {
        let bursts = operations.div_ceil(BURST as u64);
        for _ in 0..bursts {
            if self.core.at.is_multiple_of(self.core.site.flows as usize) {
                self.change();
            }
            self.core.burst();
        }
        bursts * BURST as u64
    }

    fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        let (stats, nanos) = (self.core.vpc.stats(), self.core.chunks.median());
        vec![
            ("inside", "ns", nanos),
            ("revalidated", "1", stats.revalidated as f64),
            ("recomputed", "1", stats.recomputed as f64),
            ("lost", "1", stats.dropped.iter().sum::<u64>() as f64),
        ]
    }
}
