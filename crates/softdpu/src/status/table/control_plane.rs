//! Control-plane tasks.

use std::time::Duration;

use softdpu_api::status::{ControlPlaneStatus, ControlPlaneTaskStatus, elapsed};

use super::{layout, one_line};

/// Control-plane tasks, a line each; nothing where there are none.
pub fn task_table(status: &ControlPlaneStatus) -> String {
    let time = |us: u64| elapsed(Duration::from_micros(us).as_secs());
    let rows = status.tasks.iter().map(|task| {
        let ControlPlaneTaskStatus { name, pid, cgroup, .. } = task;
        let what = match (pid, cgroup) {
            (Some(pid), _) => format!("pid {pid}"),
            (None, Some(path)) => path.display().to_string(),
            (None, None) => String::new(),
        };
        let state = match &task.error {
            Some(error) => one_line(error),
            None => task.state.to_string(),
        };
        vec![
            one_line(name),
            one_line(&what),
            task.processes.to_string(),
            task.threads.to_string(),
            format!("{} %", task.minimum),
            time(task.ran_us),
            time(task.waited_us),
            time(task.guaranteed_us),
            state,
        ]
    });
    let header = ["TASK", "WHAT", "PROCESSES>", "THREADS>", "MINIMUM>", "RAN>", "WAITED>", "GUARANTEED>", "STATE"];
    layout(&header, rows.collect())
}
