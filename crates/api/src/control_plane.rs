//! Control-plane tasks: programs that run on the idle time of the data plane's cores.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use softdpu_site::is_name;

use crate::ApiError;
use crate::methods::{Parameters, Unread};

/// The most that a task's minimum can be, percent of a CPU: as many CPUs as Linux has.
const MOST_PERCENT: u32 = 100 * 8192;

/// A program that is to run on idle time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlPlaneTask {
    /// What it is called: letters, digits, `.`, `_` and `-`, at most 63.
    pub name: String,
    /// The process that it is, with all that this one starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The cgroup that it is instead, by its folder, with all that come to be in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// What it has at least of a CPU while it wants to run, percent; 5 where nothing is said.
    #[serde(default = "default_minimum")]
    pub minimum: u32,
}

/// A task that holds a lock of the kernel is never without a CPU for long.
fn default_minimum() -> u32 {
    ControlPlaneTask::MINIMUM
}

impl ControlPlaneTask {
    /// The minimum where nothing is said, percent of a CPU.
    pub const MINIMUM: u32 = 5;
}

impl Parameters for ControlPlaneTask {
    fn read(unread: &Unread<'_>) -> Result<ControlPlaneTask, ApiError> {
        let task: ControlPlaneTask = unread.typed()?;
        if !is_name(&task.name) {
            let message = format!("{:?} is no name: letters, digits, '.', '_' and '-', at most 63", task.name);
            return Err(unread.invalid(message));
        }
        match (&task.pid, &task.cgroup) {
            (Some(_), None) => {}
            (None, Some(cgroup)) if cgroup.is_absolute() => {}
            (None, Some(cgroup)) => {
                let message = format!("\"cgroup\" is {}, which is not an absolute path", cgroup.display());
                return Err(unread.invalid(message));
            }
            _ => return Err(unread.invalid("a task is either a \"pid\" or a \"cgroup\"")),
        }
        if task.minimum > MOST_PERCENT {
            let message = format!("\"minimum\" is {} %, and {MOST_PERCENT} % is the most", task.minimum);
            return Err(unread.invalid(message));
        }
        Ok(task)
    }
}

/// Where a task runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlPlaneCpus {
    /// All that it may use: the control plane's own and the data plane's.
    pub cpus: Vec<usize>,
    /// Those of them that the data plane does not have.
    pub own: Vec<usize>,
}
