//! A core's thread has its CPU and its nice value when the engine has started.

#![allow(missing_docs)]

#[allow(dead_code, reason = "each program of tests uses a part of it")]
mod common;

use std::fs;
use std::time::Duration;

use common::cores::{cpus, engine};
use softdpu_sys::affinity;

/// The fields of a thread's `stat` behind its name (proc(5)), and the CPUs that it may run on.
fn threads_called(name: &str) -> Vec<(i32, String)> {
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
    let found = threads.filter_map(|thread| {
        let path = thread.path();
        (fs::read_to_string(path.join("comm")).ok()?.trim() == name).then_some(())?;
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        // "PID (NAME) state …": nice is the 19th field of all.
        let nice = stat.rsplit_once(')')?.1.split_whitespace().nth(16)?.parse().ok()?;
        let status = fs::read_to_string(path.join("status")).ok()?;
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned();
        Some((nice, cpus))
    });
    found.collect()
}

#[test]
fn a_core_has_its_priority_before_the_process_gives_up_the_privilege_for_it() {
    let may = std::thread::spawn(|| affinity::highest_nice().is_ok()).join().unwrap();
    let nice = if may { -20 } else { 0 };
    for start in 0..50 {
        let engine = engine(Some(Duration::from_micros(20)));
        for (core, cpu) in cpus().into_iter().enumerate() {
            assert_eq!(threads_called(&format!("core-{core}")), [(nice, cpu.to_string())], "start {start}");
        }
        drop(engine);
    }
}
