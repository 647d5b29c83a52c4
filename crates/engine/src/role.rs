//! What a core's thread is: where it runs, with which priority, and when it yields.

use softdpu_sched::{Nanos, YieldPolicy};
use softdpu_sys::{affinity, wake};

use crate::engine::EngineConfig;

/// How long the slow core spins without work before it sleeps: it has no CPU of its own.
const SLOW_IDLE: Nanos = Nanos(20_000);

/// What a core is. The slow one is the last, and no data-plane core: devices are demoted to it that make cores wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoreRole {
    DataPlane { cpu: usize },
    Slow,
}

impl CoreRole {
    /// Takes this thread to where it belongs: a CPU of its own, or any that no core has, if there is one.
    pub(crate) fn settle(self, others: &[usize]) {
        match self {
            CoreRole::DataPlane { cpu } => {
                if let Err(error) = affinity::pin_to(cpu) {
                    tracing::error!(cpu, %error, "data-plane core is not pinned");
                }
                if let Err(error) = affinity::highest_nice() {
                    tracing::info!(cpu, %error, "data-plane core runs at ordinary priority (no CAP_SYS_NICE)");
                }
                if let Err(error) = wake::exact_timers() {
                    tracing::info!(cpu, %error, "slices of a data-plane core end up to 50 us late");
                }
            }
            CoreRole::Slow if others.is_empty() => {
                tracing::info!("every CPU is a core's: what makes cores wait is served on those, at ordinary priority");
            }
            CoreRole::Slow => {
                if let Err(error) = affinity::keep_to(others) {
                    tracing::error!(%error, "the slow core may run on the other cores' CPUs");
                }
            }
        }
    }

    /// When it gives its CPU away.
    pub(crate) fn yielding(self, config: &EngineConfig) -> YieldPolicy {
        match self {
            CoreRole::DataPlane { .. } => config.yielding,
            CoreRole::Slow => YieldPolicy::After(SLOW_IDLE),
        }
    }
}
