//! When the kernel has no memory left (OOM): which process it is to kill, and whether it did.
//!
//! It is to kill the data plane: the supervisor starts the next one, and guests keep their connections. Such a kill is
//! a SIGKILL, as an administrator's is, and wait(2) does not say who sent it. The kernel counts it for the victim's
//! control group before it sends the signal. The data plane is in the supervisor's group, so a count of the group that
//! grew while a data plane lived tells why it died. Where the group's own limit was hit too, the data plane, or what it
//! was given, took the memory; otherwise the whole machine had none left, which may be another program's doing.

use std::fs::{read_to_string, write};
use std::io;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

/// How much more than this process another one is to be preferred: as if it had a tenth of the memory more.
const PREFERENCE: i32 = 100;

/// Has the kernel kill the process `id` before this one (proc_pid_oom_score_adj(5)).
pub(super) fn prefer(id: u32) -> io::Result<()> {
    let own: i32 = read_to_string("/proc/self/oom_score_adj")?.trim().parse().map_err(io::Error::other)?;
    write(format!("/proc/{id}/oom_score_adj"), (own + PREFERENCE).min(1000).to_string())
}

/// What the kernel has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OomCount {
    /// Processes that it has killed for want of memory.
    pub kills: u64,
    /// How often the group was at its own limit with nothing left to reclaim; none where the kernel does not tell.
    pub at_own_limit: Option<u64>,
    /// Counted for this process's group. Otherwise for the whole machine.
    pub of_group: bool,
}

/// Where this process's control group counts its OOM kills.
#[derive(Clone, Debug)]
pub(super) struct OomKills(Vec<PathBuf>);

impl OomKills {
    pub(super) fn of_this_process() -> OomKills {
        OomKills::below(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
    }

    /// The places where the counter may be, the most exact first: that of a group of version 2 without its children,
    /// with them, that of version 1. Without any of them the whole machine's has to do.
    fn below(proc: &Path, cgroups: &Path) -> OomKills {
        let groups = read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        let mut files = Vec::new();
        for line in groups.lines() {
            // cgroups(7): hierarchy, controllers, path.
            let mut fields = line.splitn(3, ':');
            let (Some(hierarchy), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            // Of a group outside the namespace of this process the path leads upwards.
            let path = Path::new(path.trim_start_matches('/'));
            if path.components().any(|part| part == Component::ParentDir) {
                continue;
            }
            if hierarchy == "0" {
                for root in [cgroups.to_owned(), cgroups.join("unified")] {
                    let group = root.join(path);
                    files.extend(["memory.events.local", "memory.events"].map(|name| group.join(name)));
                }
            } else if controllers.split(',').any(|controller| controller == "memory") {
                files.push(cgroups.join("memory").join(path).join("memory.oom_control"));
            }
        }
        files.push(proc.join("vmstat"));
        OomKills(files)
    }

    #[cfg(test)]
    pub(super) fn at(file: &Path) -> OomKills {
        OomKills(vec![file.to_owned()])
    }

    /// The counts so far; none where the kernel does not say.
    pub(super) fn count(&self) -> Option<OomCount> {
        self.0.iter().find_map(|file| {
            let text = read_to_string(file).ok()?;
            let number = |name: &str| {
                let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
                values.next()?.trim().parse().ok()
            };
            let of_group = !file.ends_with("vmstat");
            Some(OomCount { kills: number("oom_kill")?, at_own_limit: number("oom").filter(|_| of_group), of_group })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::create_dir_all;
    use std::process::Command;

    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(groups: &str) -> Machine {
            let machine = Machine(tempfile::tempdir().unwrap());
            machine.file("proc/self/cgroup", groups);
            machine
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, text).unwrap();
        }

        fn counts(&self) -> Option<OomCount> {
            OomKills::below(&self.0.path().join("proc"), &self.0.path().join("cgroup")).count()
        }

        fn count(&self) -> Option<u64> {
            self.counts().map(|count| count.kills)
        }
    }

    #[test]
    fn a_group_of_version_2_counts_its_own_kills() {
        let machine = Machine::new("0::/system.slice/softdpu.service\n");
        machine.file("proc/vmstat", "nr_free_pages 7\noom_kill 90\n");
        let group = "cgroup/system.slice/softdpu.service";
        machine.file(&format!("{group}/memory.events"), "low 0\nhigh 1\nmax 12\noom 3\noom_kill 5\noom_group_kill 0\n");
        assert_eq!(machine.count(), Some(5));
        machine.file(&format!("{group}/memory.events.local"), "oom 3\noom_kill 2\n");
        assert_eq!(machine.counts(), Some(OomCount { kills: 2, at_own_limit: Some(3), of_group: true }));
    }

    #[test]
    fn a_group_of_version_1_counts_them_too() {
        let machine = Machine::new("4:cpu,memory:/softdpu\n3:cpuset:/\n0::/\n");
        machine.file("cgroup/memory/softdpu/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
        assert_eq!(machine.count(), Some(4));
    }

    #[test]
    fn without_a_group_the_machine_counts() {
        let machine = Machine::new("0::/../elsewhere\n");
        assert_eq!(machine.count(), None);
        machine.file("proc/vmstat", "oom_kill 3\n");
        machine.file("elsewhere/memory.events", "oom_kill 8\n");
        assert_eq!(machine.counts(), Some(OomCount { kills: 3, at_own_limit: None, of_group: false }));
    }

    #[test]
    fn another_process_is_killed_before_this_one() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let score = |process: &str| -> i32 {
            read_to_string(format!("/proc/{process}/oom_score_adj")).unwrap().trim().parse().unwrap()
        };
        prefer(child.id()).unwrap();
        assert_eq!(score(&child.id().to_string()), (score("self") + 100).min(1000));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn this_machine_counts_somewhere() {
        assert!(OomKills::of_this_process().count().is_some());
    }
}
