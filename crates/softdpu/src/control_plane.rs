//! `softdpu cp`: programs on the idle time of the data plane's cores.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::{Args, Subcommand};
use softdpu_api::{ControlPlaneCpus, ControlPlaneTask, Query, Request};
use softdpu_sys::threads::{self, OrdinaryPolicy};

use crate::arguments::Connection;
use crate::daemon::{absolute, connect, json_line};
use crate::output::print;
use crate::status;

/// `softdpu cp …`
#[derive(Debug, Subcommand)]
pub enum ControlPlaneCommand {
    /// Run a program, unmodified, on what is left of any CPU, those of the data plane among them
    Run {
        #[command(flatten)]
        task: TaskOptions,
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Have a program that runs already do so, with all that it starts
    #[command(group = clap::ArgGroup::new("what").required(true).args(["pid", "cgroup"]))]
    Adopt {
        #[command(flatten)]
        task: TaskOptions,
        /// Its process
        pid: Option<u32>,
        /// All processes of this cgroup instead, by its folder, such as /sys/fs/cgroup/system.slice/backup.service
        #[arg(long, value_name = "PATH")]
        cgroup: Option<PathBuf>,
    },
    /// Have a task run as it did before
    Release {
        /// The task
        name: String,
    },
    /// List tasks: how they run, and what they had
    List {
        /// Print one JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
}

/// What is said of a task.
#[derive(Debug, Args)]
pub struct TaskOptions {
    /// What it is called; the program's name and the number of its process if it is absent
    #[arg(long)]
    name: Option<String>,
    /// What it has at least of a CPU while it wants to run, percent, on the control plane's CPUs
    #[arg(long, value_name = "PERCENT", default_value_t = ControlPlaneTask::MINIMUM)]
    minimum: u32,
}

/// Does what is asked.
pub fn execute(connection: &Connection, command: ControlPlaneCommand) -> Result<(), String> {
    match command {
        ControlPlaneCommand::Run { task, command } => run(connection, task, &command),
        ControlPlaneCommand::Adopt { task, pid, cgroup } => {
            let cgroup = cgroup.map(|path| absolute(&path)).transpose()?;
            let name = match (&cgroup, pid) {
                (Some(path), _) => path.file_name().map(|name| name_of(&name.to_string_lossy())).unwrap_or_default(),
                (None, Some(pid)) => format!("{}-{pid}", program_of(pid)),
                (None, None) => return Err("name a process or a cgroup".to_owned()),
            };
            add(connection, task, name, pid, cgroup).map(drop)
        }
        ControlPlaneCommand::Release { name } => ask(connection, Query::ControlPlaneRemove { name }),
        ControlPlaneCommand::List { json } => {
            let tasks = connect(connection)?.status().map_err(|error| error.to_string())?.control_plane;
            let tasks = tasks.unwrap_or_default();
            print(&if json { json_line(&tasks) } else { status::task_table(&tasks) })
        }
    }
}

fn ask(connection: &Connection, query: Query) -> Result<(), String> {
    let answer: Result<softdpu_api::Empty, _> = connect(connection)?.call(Request::from(query));
    answer.map(drop).map_err(|error| error.to_string())
}

fn add(
    connection: &Connection,
    TaskOptions { name, minimum }: TaskOptions,
    default: String,
    pid: Option<u32>,
    cgroup: Option<PathBuf>,
) -> Result<ControlPlaneCpus, String> {
    let task = ControlPlaneTask { name: name.unwrap_or(default), pid, cgroup, minimum };
    connect(connection)?.call(Query::ControlPlaneAdd(task)).map_err(|error| error.to_string())
}

/// This process becomes the task, and then the program: its terminal, its folder and its exit code are as ever.
fn run(connection: &Connection, task: TaskOptions, command: &[OsString]) -> Result<(), String> {
    let Some((program, arguments)) = command.split_first() else {
        return Err("name a program".to_owned());
    };
    let (pid, shown) = (std::process::id(), program.to_string_lossy());
    let base = shown.rsplit('/').next().unwrap_or_default();
    let cpus = add(connection, task, format!("{}-{pid}", name_of(base)), Some(pid), None)?;
    // The daemon may do that to its own user's processes alone; this one may to itself.
    threads::set_policy(pid, OrdinaryPolicy::Idle)
        .and_then(|()| threads::keep_to(pid, &cpus.cpus))
        .map_err(|error| format!("this process cannot be put on idle time: {error}"))?;
    let error = Command::new(program).args(arguments).exec();
    Err(format!("{shown} cannot be started: {error}"))
}

/// `text` with what no name has replaced.
fn name_of(text: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let name: String = text.chars().map(kept).take(48).collect();
    if name.is_empty() { "task".to_owned() } else { name }
}

fn program_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name_of(name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_of_programs() {
        assert_eq!(name_of("make"), "make");
        assert_eq!(name_of("a b/c"), "a-b-c");
        assert_eq!(name_of(""), "task");
        assert_eq!(name_of(&"x".repeat(99)).len(), 48);
        assert!(softdpu_site::is_name(&format!("{}-{}", name_of(&"x".repeat(99)), u32::MAX)));
    }
}
