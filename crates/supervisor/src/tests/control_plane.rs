//! Control-plane tasks: real processes, looked after by a supervisor whose data plane the test plays.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use softdpu_api::status::{ControlPlaneTaskStatus, NodeStatus};
use softdpu_api::{ApiError, ControlPlaneTask, ErrorCode, Query, Upgrade, UpgradePart};
use softdpu_link::{Call, Up};
use softdpu_sys::threads::{OrdinaryPolicy, Scheduling, scheduling};

use super::bed::{Bed, FakePlane, PATIENCE};

/// A shell that starts `sleep` and waits for it, ended with the test.
struct Shell(Child);

impl Shell {
    fn start(command: &str) -> Shell {
        Shell(Command::new("sh").args(["-c", command]).stdin(Stdio::piped()).spawn().unwrap())
    }

    fn sleeping() -> Shell {
        Shell::start("sleep 60 & wait")
    }

    fn children(&self) -> Vec<u32> {
        let text = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.0.id())).unwrap();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    fn child(&self) -> u32 {
        wait_for("the shell's child", || self.children().first().copied())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for child in self.children() {
            let _ = Command::new("kill").arg(child.to_string()).status();
        }
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn task(name: &str, pid: u32) -> ControlPlaneTask {
    ControlPlaneTask { name: name.to_owned(), pid: Some(pid), cgroup: None, minimum: ControlPlaneTask::MINIMUM }
}

fn ask(bed: &Bed, query: Query) -> Result<Value, ApiError> {
    let mut client = bed.api();
    let asked = client.ask(query);
    client.answer(asked)
}

fn add(bed: &Bed, task: ControlPlaneTask) -> Result<Value, ApiError> {
    ask(bed, Query::ControlPlaneAdd(task))
}

fn tasks(bed: &Bed, plane: &mut FakePlane) -> Vec<ControlPlaneTaskStatus> {
    let mut client = bed.api();
    let asked = client.ask(Query::Status);
    let (id, call) = plane.call();
    assert_eq!(call, Call::Status);
    plane.say(&Up::Answer { id, result: Ok(json!(NodeStatus::default())) }, vec![]);
    let status: NodeStatus = serde_json::from_value(client.answer(asked).unwrap()).unwrap();
    status.control_plane.map(|it| it.tasks).unwrap_or_default()
}

fn of(pid: u32) -> Scheduling {
    scheduling(pid).unwrap()
}

/// Whether threads of `pid` run on idle time, on all CPUs.
fn is_idle(pid: u32, before: &Scheduling) -> bool {
    let now = of(pid);
    now.policy == Some(OrdinaryPolicy::Idle) && now.nice == before.nice
}

#[test]
fn a_process_runs_on_idle_time_with_all_that_it_starts_and_is_given_back() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let shell = Shell::sleeping();
    let child = shell.child();
    let before = of(child);
    assert_eq!(before.policy, Some(OrdinaryPolicy::Other));
    let answer = add(&bed, task("build", shell.0.id())).unwrap();
    assert!(!answer["cpus"].as_array().unwrap().is_empty(), "{answer}");
    assert!(is_idle(shell.0.id(), &before) && is_idle(child, &before));
    let [status] = tasks(&bed, &mut plane).try_into().unwrap();
    assert_eq!((status.name.as_str(), status.processes, status.threads, status.error), ("build", 2, 2, None));
    ask(&bed, Query::ControlPlaneRemove { name: "build".into() }).unwrap();
    assert_eq!((of(shell.0.id()), of(child)), (before.clone(), before));
    assert_eq!(tasks(&bed, &mut plane), []);
}

#[test]
fn what_a_task_starts_later_is_looked_after_and_its_end_is_seen() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    // The child is an ordinary one again, as what is started with chrt(1) or systemd-run(1) may be.
    let mut shell = Shell::start("read line; (chrt --other 0 sleep 60 || sleep 60) & wait");
    add(&bed, task("later", shell.0.id())).unwrap();
    shell.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let child = shell.child();
    wait_for("the later child to run on idle time", || (of(child).policy == Some(OrdinaryPolicy::Idle)).then_some(()));
    drop(shell);
    wait_for("the end of the task", || tasks(&bed, &mut plane).is_empty().then_some(()));
    assert!(!bed.path("run").join("control-plane.json").exists());
}

#[test]
fn tasks_are_given_back_when_the_daemon_stops() {
    let mut bed = Bed::new();
    let plane = bed.ready_plane();
    let shell = Shell::sleeping();
    let before = of(shell.child());
    add(&bed, task("build", shell.0.id())).unwrap();
    bed.handle.stop();
    plane.die("exit status 0");
    bed.finished().unwrap();
    assert_eq!((of(shell.0.id()), of(shell.child())), (before.clone(), before));
}

#[test]
fn the_next_supervisor_goes_on_with_tasks() {
    let mut bed = Bed::new();
    let mut plane = bed.ready_plane();
    let shell = Shell::sleeping();
    let before = of(shell.child());
    add(&bed, task("build", shell.0.id())).unwrap();
    let mut client = bed.api();
    let upgrade = Upgrade { program: "/second".into(), force: false, only: Some(UpgradePart::Supervisor) };
    let asked = client.ask(Query::Upgrade(upgrade));
    bed.followed();
    client.answer(asked).unwrap();
    let [status] = tasks(&bed, &mut plane).try_into().unwrap();
    assert_eq!(status.name, "build");
    ask(&bed, Query::ControlPlaneRemove { name: "build".into() }).unwrap();
    assert_eq!((of(shell.0.id()), of(shell.child())), (before.clone(), before));
}

#[test]
fn what_cannot_be_a_task_is_refused_and_runs_as_it_did() {
    let bed = Bed::new();
    let _plane = bed.ready_plane();
    let shell = Shell::sleeping();
    let pid = shell.0.id();
    add(&bed, task("a", pid)).unwrap();
    let error = |task| add(&bed, task).unwrap_err();
    let same = error(task("b", pid));
    assert_eq!((same.code, same.message.as_str()), (ErrorCode::Exists, "it is the control-plane task \"a\""));
    let other = Shell::sleeping();
    let named = error(task("a", other.0.id()));
    assert_eq!(named.message, "there is a control-plane task called \"a\" already");
    let softdpu = error(task("c", std::process::id()));
    assert_eq!(softdpu.message, format!("process {} is softdpu itself", std::process::id()));
    assert_eq!(softdpu.code, ErrorCode::Refused);
    let gone = error(task("c", 0x7fff_fffe));
    assert_eq!((gone.code, gone.message.as_str()), (ErrorCode::NotFound, "there is no process 2147483646"));
    let no_group = ControlPlaneTask { pid: None, cgroup: Some("/proc".into()), ..task("c", 1) };
    assert_eq!(error(no_group).message, "/proc is no cgroup");
    let missing = ask(&bed, Query::ControlPlaneRemove { name: "z".into() }).unwrap_err();
    assert_eq!(
        (missing.code, missing.message.as_str()),
        (ErrorCode::NotFound, "there is no control-plane task called \"z\"")
    );
    assert_eq!(of(other.child()).policy, Some(OrdinaryPolicy::Other));
}
