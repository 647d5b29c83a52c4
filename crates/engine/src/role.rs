//! What a core's thread is: which CPUs it keeps to, with which priority, what it needs of the kernel, and when it
//! yields.

use softdpu_sched::{Nanos, YieldPolicy};
use softdpu_storage::IoContext;
use softdpu_sys::notify::Notifier;
use softdpu_sys::{affinity, wake};

use crate::engine::{EngineConfig, EngineError};

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

/// The facility without which a notifier cannot be made.
const NOTIFIER: &str = "asynchronous I/O for interrupts (needs CONFIG_AIO, and room below the sysctl fs.aio-max-nr)";

pub(crate) fn notifier() -> Result<Notifier, EngineError> {
    Notifier::new().map_err(|error| EngineError::Os { what: NOTIFIER, source: error.into() })
}

/// A core that is to be, with what it needs of the kernel.
pub(crate) struct Equipped {
    pub(crate) role: CoreRole,
    pub(crate) io: IoContext,
    pub(crate) notifier: Notifier,
}

impl Equipped {
    fn new(role: CoreRole, io_depth: u32) -> Result<Equipped, EngineError> {
        let mut io = IoContext::new(io_depth).map_err(|error| EngineError::Io(error.to_string()))?;
        // Now, as this process may give up making rings. Volumes in files say what is wrong with it, if there are any.
        if let Err(error) = io.prepare_files() {
            tracing::debug!(%error, ?role, "no ring for volumes in files");
        }
        Ok(Equipped { role, io, notifier: notifier()? })
    }
}

/// The cores that there are to be, the slow one among them or not. Of the spare ones there are no more than the kernel
/// has room for.
pub(crate) fn equip(config: &EngineConfig, has_slow: bool) -> Result<Vec<Equipped>, EngineError> {
    let new = |role| Equipped::new(role, config.io_depth);
    let mut cores: Vec<Equipped> =
        config.cpus.iter().map(|&cpu| new(CoreRole::DataPlane { cpu })).collect::<Result<_, _>>()?;
    let slow = has_slow.then(|| new(CoreRole::Slow)).transpose()?;
    for spare in 0..config.spare {
        match new(CoreRole::Spare) {
            Ok(core) => cores.push(core),
            Err(error) => {
                let wanted = config.spare;
                tracing::warn!(%error, "of {wanted} cores that may join with `softdpu scale`, {spare} can");
                break;
            }
        }
    }
    cores.extend(slow);
    Ok(cores)
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
