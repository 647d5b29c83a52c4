//! Processes and threads as `/proc` shows them (proc(5)).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstatfs, open, openat};
use softdpu_sched::Nanos;
use softdpu_sys::threads::ticks_per_second;

/// A process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) parent: u32,
    /// When it began, in the kernel's ticks since boot: another process of that number began at another time.
    pub(super) began: u64,
    /// For how long it ran, with those of its children that it has waited for.
    pub(super) ran: Nanos,
}

/// What the kernel counts of a thread (`schedstat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) waited: Nanos,
}

/// The folder of a process or thread.
fn folder(number: u32) -> PathBuf {
    Path::new("/proc").join(number.to_string())
}

/// The process of that number.
pub(super) fn process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(folder(pid).join("stat")).ok()?;
    read_stat(&stat, ticks_per_second())
}

/// Out of "PID (NAME) STATE PARENT …"; a name may have blanks and brackets in it.
fn read_stat(stat: &str, ticks_per_second: u64) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // proc(5) counts from 1, and the state is field 3.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = field(14)? + field(15)? + field(16)? + field(17)?;
    let ran = Nanos(ticks.saturating_mul(Nanos::SECOND.0 / ticks_per_second.max(1)));
    Some(Process { parent: u32::try_from(field(4)?).ok()?, began: field(22)?, ran })
}

fn numbers(folder: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// All processes.
pub(super) fn processes() -> HashMap<u32, Process> {
    numbers(Path::new("/proc")).filter_map(|pid| Some((pid, process(pid)?))).collect()
}

/// The threads of a process.
pub(super) fn threads(pid: u32) -> Vec<(u32, Thread)> {
    let tasks = folder(pid).join("task");
    let thread = |number: u32| {
        // "RAN WAITED SLICES", nanoseconds. A kernel may be without it.
        let text = fs::read_to_string(tasks.join(number.to_string()).join("schedstat")).unwrap_or_default();
        let waited = text.split_whitespace().nth(1).and_then(|waited| waited.parse().ok()).unwrap_or(0);
        (number, Thread { waited: Nanos(waited) })
    };
    numbers(&tasks).map(thread).collect()
}

/// The user that a process is of.
pub(super) fn owner(pid: u32) -> Option<u32> {
    Some(fs::metadata(folder(pid)).ok()?.uid())
}

/// The file systems of cgroups, version 2 and 1 (statfs(2)).
const CGROUP_MAGICS: [u64; 2] = [0x6367_7270, 0x0027_e0eb];

/// The most cgroups below one that are looked into.
const MOST_CGROUPS: usize = 4096;

/// The processes in a cgroup and those below it; none where it is no cgroup.
pub(super) fn in_cgroup(path: &Path) -> Option<Vec<u32>> {
    let (mut to_visit, mut found) = (vec![path.to_owned()], in_one_cgroup(path)?);
    for _ in 0..MOST_CGROUPS {
        let Some(folder) = to_visit.pop() else { break };
        for below in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if below.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.extend(in_one_cgroup(&below.path()).unwrap_or_default());
                to_visit.push(below.path());
            }
        }
    }
    Some(found)
}

fn in_one_cgroup(path: &Path) -> Option<Vec<u32>> {
    // What is not the kernel's own file could be anything: a pipe, or what has no end.
    let folder = open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let kind = fstatfs(&folder).ok()?.f_type as u64;
    if !CGROUP_MAGICS.contains(&kind) {
        return None;
    }
    let file = openat(&folder, "cgroup.procs", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let text = io::read_to_string(fs::File::from(file)).ok()?;
    Some(text.lines().filter_map(|line| line.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_is_read_whatever_the_name() {
        let stat = "7 (a) b (c)) S 3 7 7 0 -1 4194560 1 2 0 0 10 20 30 40 20 0 1 0 99 0 0";
        let expected = Process { parent: 3, began: 99, ran: Nanos(1_000_000_000) };
        assert_eq!(read_stat(stat, 100), Some(expected));
        for wrong in ["", "7 (a", "7 (a) S", "7 (a) S x 7 7 0 -1 4194560 1 2 0 0 10 20 30 40 20 0 1 0 99"] {
            assert_eq!(read_stat(wrong, 100), None, "{wrong}");
        }
    }

    #[test]
    fn this_process_is_there_with_its_threads() {
        let this = std::process::id();
        let process = processes()[&this];
        assert_eq!(process.parent, std::os::unix::process::parent_id());
        assert!(threads(this).iter().any(|(thread, _)| *thread == this));
        assert_eq!(owner(this), Some(rustix::process::getuid().as_raw()));
        assert_eq!(in_cgroup(Path::new("/proc")), None);
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.procs"), format!("{this}\n")).unwrap();
        assert_eq!(in_cgroup(folder.path()), None, "a folder that is none of the kernel's");
    }
}
