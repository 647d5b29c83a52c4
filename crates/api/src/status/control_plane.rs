//! Control-plane tasks.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::ControlPlaneCpus;

/// How a control-plane task runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskState {
    /// Where nothing else wants a CPU.
    #[default]
    Idle,
    /// On the control plane's CPUs, as it had less than its minimum.
    Guaranteed,
}

/// Programs that run on the idle time of the data plane's cores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlPlaneStatus {
    /// Where they run.
    #[serde(flatten)]
    pub cpus: ControlPlaneCpus,
    /// The tasks, in the order in which they came.
    pub tasks: Vec<ControlPlaneTaskStatus>,
}

/// A control-plane task. Its counters count from the moment at which it became one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlPlaneTaskStatus {
    /// Its name.
    pub name: String,
    /// The process that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The cgroup that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// What it has at least, percent of a CPU.
    pub minimum: u32,
    /// How it runs.
    pub state: TaskState,
    /// Its processes.
    pub processes: u32,
    /// Their threads.
    pub threads: u32,
    /// For how long it ran, microseconds of a CPU: processes that are there, and those that were waited for.
    pub ran_us: u64,
    /// For how long its threads could have run and waited for a CPU, microseconds.
    pub waited_us: u64,
    /// For how long it was guaranteed its minimum, microseconds.
    pub guaranteed_us: u64,
    /// Why some of its threads run as they did before, where they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
