//! Cores that join and leave while the others go on (ZOC §4.2).
//!
//! Each thread that may ever be a core runs from the start. A *spare* one has no CPU, no queue and no socket, and
//! sleeps, but is told all that the others are told: networks, ports, tenants. So what is sized by the number of cores
//! never changes, and a core that leaves goes on to answer for what it had: requests at its back ends, chains that it
//! has lent or borrowed, and messages for queues that have moved.
//!
//! Cores are numbered from 0 without gaps. The last ones leave; where another was to, its number gets another CPU.

use std::collections::HashSet;
use std::sync::Arc;

use softdpu_sched::Policy;
use softdpu_vpc::PortId;

use crate::engine::{Engine, EngineError, check_allowed};
use crate::ids::{CoreIndex, QueueKey};
use crate::message::ToCore;
use crate::role::CoreRole;
use crate::steering::SteeringSpec;

/// The CPU of each core, from those before and those that are wanted: as many cores as possible keep theirs.
fn arrange(before: &[usize], wanted: &[usize]) -> Vec<usize> {
    let kept = |place: usize| before.get(place).copied().filter(|cpu| wanted.contains(cpu));
    let kept: Vec<Option<usize>> = (0..wanted.len()).map(kept).collect();
    let mut others = wanted.iter().copied().filter(|cpu| !kept.contains(&Some(*cpu)));
    kept.iter().filter_map(|kept| kept.or_else(|| others.next())).collect()
}

impl Engine {
    /// The data plane has these CPUs from now on. Queues of cores that leave move to the others, as do their sockets;
    /// what is in flight ends where it is. Returns the CPUs in the order of the cores that have them. Packets from
    /// tunnels that were steered to cores which leave stay where they are read.
    ///
    /// # Errors
    /// [`EngineError`]; nothing has changed then.
    pub fn scale(&mut self, cpus: &[usize]) -> Result<Vec<usize>, EngineError> {
        let before: Vec<usize> = self.cores().map(|(cpu, _)| cpu).collect();
        self.check_scale(cpus, before.len())?;
        let arranged = arrange(&before, cpus);
        let (stay, count) = (before.len().min(arranged.len()), arranged.len());
        for (place, &cpu) in arranged.iter().enumerate() {
            self.cores[place].role = CoreRole::DataPlane { cpu };
        }
        for core in &mut self.cores[count..before.len().max(count)] {
            core.role = CoreRole::Spare;
        }
        self.shares.set_guaranteeing(count);
        // Each core goes to its CPU before it gets anything to do there.
        let others: Vec<usize> = self.allowed.iter().copied().filter(|cpu| !arranged.contains(cpu)).collect();
        for (place, core) in self.cores.iter().enumerate() {
            let is_same = core.role.cpu().is_some() && before.get(place) == arranged.get(place);
            if !is_same && (core.role.cpu().is_some() || place >= before.len()) {
                self.settle(CoreIndex(place), &others);
            }
        }
        for place in stay..count {
            self.send(CoreIndex(place), ToCore::Yielding(self.yielding));
        }
        self.leave(count);
        for place in count..before.len() {
            self.send(CoreIndex(place), ToCore::Yielding(CoreRole::Spare.yielding(self.yielding)));
            self.settle(CoreIndex(place), &others);
        }
        self.send_shares();
        Ok(arranged)
    }

    /// Cores that there may be.
    pub fn most_cores(&self) -> usize {
        self.slow().map_or(self.cores.len(), |slow| slow.0)
    }

    fn check_scale(&self, cpus: &[usize], before: usize) -> Result<(), EngineError> {
        if cpus.is_empty() {
            return Err(EngineError::NoCores);
        }
        if let Some((_, cpu)) = cpus.iter().enumerate().find(|(at, cpu)| cpus[..*at].contains(cpu)) {
            return Err(EngineError::Twice(*cpu));
        }
        check_allowed(cpus, &self.allowed)?;
        let (wanted, most) = (cpus.len(), self.most_cores());
        if wanted > most {
            return Err(EngineError::TooManyCores { wanted, most });
        }
        if wanted != before && matches!(self.fairness(), Policy::Mtda(..) | Policy::MtdaPrinted(..)) {
            return Err(EngineError::FixedPolicy);
        }
        let sockets = self.network.sockets.borrow();
        let bound = sockets.values().find(|it| it.owners.len() > 1 && it.owners.iter().any(|core| core.0 >= wanted));
        match bound {
            Some(it) => Err(EngineError::BoundSockets { port: Arc::clone(&it.name), sockets: it.owners.len() }),
            None => Ok(()),
        }
    }

    /// Tells a core which CPUs it is to keep to, if it has a thread.
    fn settle(&self, core: CoreIndex, others: &[usize]) {
        let handle = &self.cores[core.0];
        if handle.thread.is_some() {
            // Where every CPU is a core's, the others run on any.
            let others = if others.is_empty() { &self.allowed } else { others };
            let cpus = handle.role.cpu().map_or_else(|| others.to_vec(), |cpu| vec![cpu]);
            self.send(core, ToCore::KeepTo(cpus));
        }
    }

    /// Nothing is on cores from `count` on any more.
    fn leave(&mut self, count: usize) {
        let leaves = |core: CoreIndex| core.0 >= count;
        let mut queues: Vec<QueueKey> =
            self.placed.iter().filter(|(_, placed)| leaves(placed.home)).map(|(key, _)| *key).collect();
        queues.sort_unstable_by_key(|key| key.number);
        for key in queues {
            let to = self.least_loaded();
            if let Err(error) = self.move_queue(key, to) {
                tracing::error!(%error, "a queue stays on a core that leaves");
            }
        }
        let hand: Vec<(PortId, CoreIndex)> = {
            let sockets = self.network.sockets.borrow();
            let single = |(port, it): (&PortId, &PortSockets)| match it.owners[..] {
                [owner] if leaves(owner) => Some((*port, owner)),
                _ => None,
            };
            sockets.iter().filter_map(single).collect()
        };
        for (port, from) in hand {
            let to = self.least_loaded();
            self.send(from, ToCore::HandSocket { port, to });
            if let Some(it) = self.network.sockets.borrow_mut().get_mut(&port) {
                it.owners = vec![to];
            }
        }
        let spec = self.steering_spec();
        let stays = SteeringSpec {
            mode: spec.mode,
            spread: spec.spread.iter().copied().filter(|core| !leaves(*core)).collect(),
            rules: spec.rules.iter().copied().filter(|(_, core)| !leaves(*core)).collect(),
        };
        let used: HashSet<usize> = self.steered_to();
        if (stays != *spec || used.iter().any(|core| *core >= count))
            && let Err(error) = self.set_steering(stays)
        {
            tracing::error!(%error, "packets from tunnels are still forwarded by a core that leaves");
        }
    }
}

/// Which cores have sockets of a port.
pub(crate) struct PortSockets {
    pub name: Arc<str>,
    pub owners: Vec<CoreIndex>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_keep_their_cpus_where_they_can() {
        for (before, wanted, arranged) in [
            (&[0, 1][..], &[0][..], &[0][..]),
            (&[0, 1], &[1], &[1]),
            (&[0], &[0, 1], &[0, 1]),
            (&[0], &[1, 0], &[0, 1]),
            (&[0, 1, 2], &[2, 0], &[0, 2]),
            (&[3, 4], &[5, 6, 4], &[5, 4, 6]),
        ] {
            assert_eq!(arrange(before, wanted), arranged, "{before:?} to {wanted:?}");
        }
    }
}
