//! One control-plane task: which threads it has, how they ran before, and how they run now.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use softdpu_api::status::{ControlPlaneTaskStatus, TaskState};
use softdpu_api::{ControlPlaneCpus, ControlPlaneTask};
use softdpu_sched::{MinimumShare, Nanos, TaskClass, TaskUse};
use softdpu_sys::threads::{self, OrdinaryPolicy, Scheduling};

use super::processes::{self, Process};

/// How threads were scheduled before they were a task's.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Before {
    batch: bool,
    idle: bool,
    nice: i32,
    cpus: Vec<usize>,
}

impl Before {
    fn of(Scheduling { policy, nice, cpus }: Scheduling) -> Before {
        let was = |other| policy == Some(other);
        Before { batch: was(OrdinaryPolicy::Batch), idle: was(OrdinaryPolicy::Idle), nice, cpus }
    }

    fn policy(&self) -> OrdinaryPolicy {
        match self {
            Before { idle: true, .. } => OrdinaryPolicy::Idle,
            Before { batch: true, .. } => OrdinaryPolicy::Batch,
            _ => OrdinaryPolicy::Other,
        }
    }

    /// The policy of a task that is behind its minimum.
    fn guaranteed(&self) -> OrdinaryPolicy {
        if self.batch { OrdinaryPolicy::Batch } else { OrdinaryPolicy::Other }
    }
}

/// A task as it is kept for the next supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    task: ControlPlaneTask,
    /// The user that asked for it: of processes of others, only root's tasks are made.
    user: u32,
    /// When its process began, in the kernel's ticks; 0 for a cgroup.
    began: u64,
    before: Before,
}

/// A task.
pub(super) struct Task {
    kept: Kept,
    share: MinimumShare,
    class: TaskClass,
    /// Its processes, and when they began.
    members: HashMap<u32, u64>,
    /// Its threads: what they had waited when they were looked at last, and how they run.
    threads: HashMap<u32, Seen>,
    used: TaskUse,
    /// What its processes had run before they were a task's.
    ran_before: Nanos,
    guaranteed: Nanos,
    looked: Option<Nanos>,
    error: Option<String>,
}

struct Seen {
    waited: Nanos,
    class: Option<TaskClass>,
}

/// Why a task cannot be.
pub(super) enum NoTask {
    /// It is not there, in words.
    Absent(String),
    /// It is not to be, in words.
    Refused(String),
}

impl Task {
    /// Begins to look after what `task` names, which runs as it did; `user` asks for that. `data_plane` is no task.
    pub(super) fn new(task: ControlPlaneTask, user: u32, data_plane: Option<u32>) -> Result<Task, NoTask> {
        let is_ours = |pid: u32| pid == std::process::id() || Some(pid) == data_plane;
        let another = || NoTask::Refused("it belongs to another user".to_owned());
        let (began, leader) = match (task.pid, &task.cgroup) {
            (Some(pid), _) if is_ours(pid) => return Err(NoTask::Refused(format!("process {pid} is softdpu itself"))),
            (Some(pid), _) => {
                let absent = || NoTask::Absent(format!("there is no process {pid}"));
                let process = processes::process(pid).ok_or_else(absent)?;
                let is_anothers = user != 0 && processes::owner(pid) != Some(user);
                // Another process may have had the number when its owner was asked for.
                if processes::process(pid).ok_or_else(absent)?.began != process.began {
                    return Err(absent());
                }
                if is_anothers {
                    return Err(another());
                }
                (process.began, Some(pid))
            }
            (None, Some(path)) => {
                let shown = path.display();
                let absent = || NoTask::Absent(format!("{shown} is no cgroup"));
                let members = processes::in_cgroup(path).ok_or_else(absent)?;
                if members.iter().any(|pid| is_ours(*pid)) {
                    return Err(NoTask::Refused(format!("softdpu itself is in the cgroup {shown}")));
                }
                if user != 0 && fs::metadata(path).map_or(true, |folder| folder.uid() != user) {
                    return Err(another());
                }
                (0, members.first().copied())
            }
            (None, None) => return Err(NoTask::Absent("a task is either a process or a cgroup".to_owned())),
        };
        let scheduling = match leader {
            Some(pid) => threads::scheduling(pid).map_err(|error| NoTask::Absent(format!("process {pid}: {error}")))?,
            // Of an empty cgroup: as a process is that nothing was said of.
            None => Scheduling {
                policy: Some(OrdinaryPolicy::Other),
                nice: 0,
                cpus: threads::scheduling(1).map(|of| of.cpus).unwrap_or_default(),
            },
        };
        Ok(Task::resume(Kept { task, user, began, before: Before::of(scheduling) }))
    }

    /// Looks after a task of the supervisor before.
    pub(super) fn resume(kept: Kept) -> Task {
        Task {
            share: MinimumShare::new(kept.task.minimum.saturating_mul(10)),
            kept,
            class: TaskClass::Idle,
            members: HashMap::new(),
            threads: HashMap::new(),
            used: TaskUse::default(),
            ran_before: Nanos(0),
            guaranteed: Nanos(0),
            looked: None,
            error: None,
        }
    }

    pub(super) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// The CPUs are others: each thread is scheduled anew.
    pub(super) fn settle_anew(&mut self) {
        self.threads.values_mut().for_each(|seen| seen.class = None);
    }

    pub(super) fn name(&self) -> &str {
        &self.kept.task.name
    }

    /// Whether `user` may say how it runs.
    pub(super) fn is_of(&self, user: u32) -> bool {
        user == 0 || self.kept.user == user
    }

    /// Whether `pid` may be its: softdpu's own processes are not, nor other users' where its user may not have them.
    fn may_have(&self, pid: u32, process: &Process) -> bool {
        let supervisor = std::process::id();
        let is_own = pid == supervisor || (self.kept.task.cgroup.is_some() && process.parent == supervisor);
        !is_own && (self.kept.user == 0 || processes::owner(pid) == Some(self.kept.user))
    }

    /// Whether it is what `other` names.
    pub(super) fn is_same(&self, other: &ControlPlaneTask) -> bool {
        (self.kept.task.pid, &self.kept.task.cgroup) == (other.pid, &other.cgroup)
    }

    /// Looks at its processes, of `all`, at `now`, decides how it runs, and has it run like that. False: it has ended.
    pub(super) fn look(&mut self, now: Nanos, all: &HashMap<u32, Process>, cpus: &ControlPlaneCpus) -> bool {
        if !self.find(all) {
            return false;
        }
        let ran = self.members.keys().filter_map(|pid| all.get(pid)).fold(Nanos(0), |sum, it| sum + it.ran);
        if self.looked.is_none() {
            self.ran_before = ran;
        }
        // Where a process ends that none of its others waits for, what it had is not in the sum any more.
        self.used.ran = self.used.ran.max(ran.since(self.ran_before));
        self.look_at_threads();
        if self.class == TaskClass::Guaranteed {
            self.guaranteed = self.guaranteed + now.since(self.looked.unwrap_or(now));
        }
        self.looked = Some(now);
        self.class = self.share.decide(now, self.used);
        self.apply(cpus);
        true
    }

    /// Finds its processes. False: there are none, and there will be none.
    fn find(&mut self, all: &HashMap<u32, Process>) -> bool {
        if let Some(path) = &self.kept.task.cgroup {
            let Some(members) = processes::in_cgroup(path) else { return false };
            let member = |pid: u32| Some((pid, all.get(&pid).filter(|process| self.may_have(pid, process))?.began));
            self.members = members.into_iter().filter_map(member).collect();
            return true;
        }
        if let Some(pid) = self.kept.task.pid {
            self.members.insert(pid, self.kept.began);
        }
        self.members.retain(|pid, began| all.get(pid).is_some_and(|process| process.began == *began));
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (pid, process) in all {
            children.entry(process.parent).or_default().push(*pid);
        }
        let mut to_visit: Vec<u32> = self.members.keys().copied().collect();
        while let Some(parent) = to_visit.pop() {
            for pid in children.get(&parent).into_iter().flatten() {
                let process = &all[pid];
                if self.may_have(*pid, process) && self.members.insert(*pid, process.began).is_none() {
                    to_visit.push(*pid);
                }
            }
        }
        !self.members.is_empty()
    }

    fn look_at_threads(&mut self) {
        let mut there = HashSet::new();
        for pid in self.members.keys() {
            for (number, thread) in processes::threads(*pid) {
                there.insert(number);
                match self.threads.get_mut(&number) {
                    Some(seen) => {
                        self.used.waited = self.used.waited + thread.waited.since(seen.waited);
                        seen.waited = thread.waited;
                    }
                    None => {
                        // One that began since waited as the task's.
                        if self.looked.is_some() {
                            self.used.waited = self.used.waited + thread.waited;
                        }
                        self.threads.insert(number, Seen { waited: thread.waited, class: None });
                    }
                }
            }
        }
        self.threads.retain(|number, _| there.contains(number));
    }

    /// Has each thread run as the task does now.
    fn apply(&mut self, cpus: &ControlPlaneCpus) {
        let class = self.class;
        let (policy, on) = match class {
            TaskClass::Idle => (OrdinaryPolicy::Idle, &cpus.cpus),
            TaskClass::Guaranteed if cpus.own.is_empty() => (self.kept.before.guaranteed(), &cpus.cpus),
            TaskClass::Guaranteed => (self.kept.before.guaranteed(), &cpus.own),
        };
        let mut error = None;
        for (number, seen) in self.threads.iter_mut().filter(|(_, seen)| seen.class != Some(class)) {
            match set(*number, policy, None, on) {
                Ok(()) => seen.class = Some(class),
                Err(failed) => error = Some(format!("thread {number} runs as it did: {}", reason(&failed))),
            }
        }
        if error.is_some() && error != self.error {
            tracing::warn!(task = self.name(), "{}", error.as_deref().unwrap_or_default());
        }
        self.error = error;
    }

    /// Has all its threads run as its first process did before it was a task.
    pub(super) fn give_back(&mut self, all: &HashMap<u32, Process>) {
        if !self.find(all) {
            return;
        }
        self.look_at_threads();
        let before = &self.kept.before;
        for number in self.threads.keys() {
            if let Err(error) = set(*number, before.policy(), Some(before.nice), &before.cpus) {
                tracing::warn!(task = self.name(), thread = number, %error, "a thread stays as it is");
            }
        }
    }

    pub(super) fn status(&self) -> ControlPlaneTaskStatus {
        let ControlPlaneTask { name, pid, cgroup, minimum } = self.kept.task.clone();
        ControlPlaneTaskStatus {
            name,
            pid,
            cgroup,
            minimum,
            state: match self.class {
                TaskClass::Idle => TaskState::Idle,
                TaskClass::Guaranteed => TaskState::Guaranteed,
            },
            processes: self.members.len() as u32,
            threads: self.threads.len() as u32,
            ran_us: self.used.ran.0 / 1_000,
            waited_us: self.used.waited.0 / 1_000,
            guaranteed_us: self.guaranteed.0 / 1_000,
            error: self.error.clone(),
        }
    }
}

/// Schedules a thread. One that has ended needs nothing, and one of a real-time policy stays as it is.
fn set(thread: u32, policy: OrdinaryPolicy, nice: Option<i32>, cpus: &[usize]) -> io::Result<()> {
    let set = || -> io::Result<()> {
        let now = threads::scheduling(thread)?;
        let Some(current) = now.policy else { return Ok(()) };
        // Nothing is asked of the kernel that is so already: its answer may be no.
        if current != policy {
            threads::set_policy(thread, policy)?;
        }
        if let Some(nice) = nice.filter(|nice| *nice != now.nice) {
            threads::set_nice(thread, nice)?;
        }
        if now.cpus != cpus && !cpus.is_empty() {
            threads::keep_to(thread, cpus)?;
        }
        Ok(())
    };
    match set() {
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(()),
        other => other,
    }
}

fn reason(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            format!("{error}: it is another user's, and the daemon has no CAP_SYS_NICE")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_of_another_user_and_the_data_plane_are_no_tasks() {
        let mut other = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let (pid, user) = (other.id(), rustix::process::getuid().as_raw());
        let new = |user, data_plane| {
            let task = ControlPlaneTask { name: "t".into(), pid: Some(pid), cgroup: None, minimum: 5 };
            Task::new(task, user, data_plane).map(|task| task.name().to_owned()).map_err(|no| match no {
                NoTask::Absent(why) | NoTask::Refused(why) => why,
            })
        };
        let (own, anothers, data_plane) = (new(user, None), new(user + 1, None), new(user, Some(pid)));
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(own.as_deref(), Ok("t"));
        assert_eq!(anothers.unwrap_err(), "it belongs to another user");
        assert_eq!(data_plane.unwrap_err(), format!("process {pid} is softdpu itself"));
    }
}
