//! What a core's thread is: which CPUs it keeps to, with which priority, and when it yields.

use softdpu_sched::{Nanos, YieldPolicy};
use softdpu_sys::{affinity, wake};

/// How long the slow core spins without work before it sleeps: it has no CPU of its own.
const SLOW_IDLE: Nanos = Nanos(20_000);

/// What a core is. Those of the data plane come first, then the spare ones, then the slow one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoreRole {
    /// It has a CPU of its own and serves queues.
    DataPlane { cpu: usize },
    /// It has no CPU and no queue. It knows all that the others know, so that it can join them at once.
    Spare,
    /// Devices are demoted to it that make cores wait.
    Slow,
}

impl CoreRole {
    /// The CPU that it has to itself.
    pub(crate) fn cpu(self) -> Option<usize> {
        match self {
            CoreRole::DataPlane { cpu } => Some(cpu),
            CoreRole::Spare | CoreRole::Slow => None,
        }
    }

    /// Takes this thread to where it belongs: a CPU of its own, or any that no core has, if there is one.
    pub(crate) fn settle(self, others: &[usize]) {
        match self {
            CoreRole::DataPlane { cpu } => {
                keep_to(&[cpu]);
                rise();
            }
            CoreRole::Spare => {
                keep_to(others);
                // Now, as this process may give up the right to.
                rise();
            }
            CoreRole::Slow if others.is_empty() => {
                tracing::info!("every CPU is a core's: what makes cores wait is served on those, at ordinary priority");
            }
            CoreRole::Slow => keep_to(others),
        }
    }

    /// When it gives its CPU away.
    pub(crate) fn yielding(self, of_data_plane: YieldPolicy) -> YieldPolicy {
        match self {
            CoreRole::DataPlane { .. } => of_data_plane,
            CoreRole::Spare => YieldPolicy::After(Nanos(0)),
            CoreRole::Slow => YieldPolicy::After(SLOW_IDLE),
        }
    }
}

/// Keeps this thread to these CPUs; where it is, if there are none.
pub(crate) fn keep_to(cpus: &[usize]) {
    if cpus.is_empty() {
        return;
    }
    if let Err(error) = affinity::keep_to(cpus) {
        tracing::error!(?cpus, %error, "a core cannot be kept to its CPUs");
    }
}

/// Takes what a core has ahead of other threads, where this process may.
fn rise() {
    if let Err(error) = affinity::highest_nice() {
        tracing::info!(%error, "data-plane core runs at ordinary priority (no CAP_SYS_NICE)");
    }
    if let Err(error) = wake::exact_timers() {
        tracing::info!(%error, "slices of a data-plane core end up to 50 us late");
    }
}
