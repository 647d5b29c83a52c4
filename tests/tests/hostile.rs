//! A hostile driver and a hostile front end against a running softdpu, beside a well-behaved one.
//!
//! Each abuse begins with a device that works. After it: only that device broke, or only that request failed, or only
//! that connection was closed; `softdpu status` or the log says why; a broken ring signalled its error eventfd; a reset
//! of the ring or the device, or a new connection, brings the device back. All the while another tenant's driver reads
//! and writes and must not lose anything, and the data plane must be the same process.

#![allow(missing_docs)]

mod client;

#[path = "hostile/bystander.rs"]
mod bystander;
#[path = "hostile/descriptors.rs"]
mod descriptors;
#[path = "hostile/fds.rs"]
mod fds;
#[path = "hostile/lingering.rs"]
mod lingering;
#[path = "hostile/messages.rs"]
mod messages;
#[path = "hostile/raw.rs"]
mod raw;
#[path = "hostile/requests.rs"]
mod requests;
#[path = "hostile/rings.rs"]
mod rings;
#[path = "hostile/scene.rs"]
mod scene;
#[path = "hostile/walls.rs"]
mod walls;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use softdpu_tests::{Context, Failure, Lab, wait_until};

use bystander::Bystander;
use lingering::Attacker;
use scene::{Abuse, Scene};

/// Distinct abuses there have to be.
const LEAST: usize = 40;

/// `HOSTILE` stands for what the volume under attack is kept in.
const SITE: &str = r#"
[node]
dataplane = { cores = [0] }

[[tenant]]
name = "mallory"

[[tenant]]
name = "alice"

[[volume]]
name = "hostile"
HOSTILE

[[volume]]
name = "second"
memory = { size = "8 MiB" }

[[volume]]
name = "bystander"
file = { path = "bystander.img", size = "8 MiB" }

[[device]]
name = "hostile-disk"
tenant = "mallory"
domain = "mallory-vm"
virtio-blk = { volume = "hostile", queues = 2, packed = true, socket = "hostile-disk.sock" }

[[device]]
name = "second-disk"
tenant = "mallory"
domain = "mallory-vm"
virtio-blk = { volume = "second", socket = "second-disk.sock" }

[[device]]
name = "bystander-disk"
tenant = "alice"
domain = "alice-vm"
virtio-blk = { volume = "bystander", socket = "bystander-disk.sock" }
"#;

const MEMORY: &str = r#"memory = { size = "8 MiB" }"#;
const FILE: &str = r#"file = { path = "hostile.img", size = "8 MiB" }"#;

fn abuses() -> Vec<Abuse> {
    let groups = [descriptors::abuses(), requests::abuses(), rings::abuses(), messages::abuses(), fds::abuses()];
    let all: Vec<Abuse> = groups.into_iter().flatten().collect();
    match std::env::var("SOFTDPU_ABUSE") {
        Ok(part) => all.into_iter().filter(|abuse| abuse.name.contains(&part)).collect(),
        Err(_) => all,
    }
}

fn run(lab: &Lab, volume: &str) -> Result<(), Failure> {
    let abuses = abuses();
    let names: HashSet<&str> = abuses.iter().map(|abuse| abuse.name).collect();
    assert_eq!(names.len(), abuses.len(), "two abuses have one name");
    let mut scene = Scene::start(lab, &SITE.replace("HOSTILE", volume))?;
    let bystander = Bystander::start(&scene.socket("bystander"))?;
    let (mut held, mut failed) = (0, Vec::new());
    for abuse in &abuses {
        let start = Instant::now();
        let undisturbed = bystander.progress()?;
        let outcome = scene.play(abuse).and_then(|seen| {
            bystander.goes_on(undisturbed)?;
            scene.same_data_plane()?;
            Ok(seen)
        });
        let millis = start.elapsed().as_millis();
        match outcome {
            Ok(seen) => {
                held += 1;
                eprintln!("ok     {:44} {millis:5} ms  {seen}", abuse.name);
            }
            Err(error) => {
                eprintln!("FAILED {:44} {millis:5} ms  {} → {error}", abuse.name, abuse.what);
                failed.push(abuse.name);
                scene.same_data_plane()?;
            }
        }
    }
    let report = bystander.stop()?;
    eprintln!("{} abuses: {held} held, {} failed; {report}", abuses.len(), failed.len());
    scene.stop()?;
    if !failed.is_empty() {
        return Err(Failure::new(format!("{} abuses were not contained: {}", failed.len(), failed.join(", "))));
    }
    assert!(held >= LEAST || std::env::var_os("SOFTDPU_ABUSE").is_some(), "{held} of at least {LEAST} abuses");
    Ok(())
}

#[test]
fn an_abuse_breaks_nothing_but_its_own_device_on_a_memory_volume() {
    Lab::run("hostile", |lab| run(lab, MEMORY));
}

#[test]
fn an_abuse_breaks_nothing_but_its_own_device_on_a_file_volume() {
    Lab::run("hostile-file", |lab| run(lab, FILE));
}

#[test]
fn what_was_broken_before_a_kill_of_the_data_plane_is_broken_after_it() {
    Lab::run("hostile-kill", |lab| {
        let mut scene = Scene::start(lab, &SITE.replace("HOSTILE", MEMORY))?;
        let bystander = Bystander::start(&scene.socket("bystander"))?;
        for abuse in &abuses() {
            // One that the ring remembers, one that only the session does, one that only the in-flight region does.
            if ["loop", "ring goes with its memory", "in-flight used_idx far away"].contains(&abuse.name) {
                let seen = scene.play_across_a_kill(abuse).context(abuse.name)?;
                eprintln!("after a kill: {:44} {seen}", abuse.name);
            }
        }
        let progress = bystander.progress()?;
        bystander.goes_on(progress)?;
        eprintln!("{}", bystander.stop()?);
        scene.stop()
    });
}

#[test]
fn a_front_end_whose_interrupts_would_block_holds_up_nobody() {
    /// How long it goes on.
    const TIME: Duration = Duration::from_secs(2);
    /// The most that a round of the bystander on the same core may take: a scheduler's doing on a busy machine. A write
    /// that blocks ends when somebody reads, if ever.
    const WORST: Duration = Duration::from_millis(500);
    /// How often that is tried, before it has failed: a round may also take as long as the machine does something else.
    const TRIES: usize = 4;
    Lab::run("walls", |lab| {
        let scene = Scene::start(lab, &SITE.replace("HOSTILE", MEMORY))?;
        let bystander = Bystander::start(&scene.socket("bystander"))?;
        let (mut reads, mut built, mut worst) = (0, 0, Vec::new());
        let mut last;
        loop {
            bystander.take_worst();
            let progress = bystander.progress()?;
            let seen = walls::read_behind_a_wall(&scene.socket("hostile"), TIME)?;
            (reads, built, last) = (reads + seen.0, built + seen.1, seen.0);
            bystander.goes_on(progress)?;
            worst.push(bystander.take_worst());
            if worst.last() < Some(&WORST) && reads > 100 && built > 100 {
                break;
            }
            assert!(
                worst.len() < TRIES,
                "rounds of the bystander took {worst:?}, beside {reads} reads and {built} walls"
            );
        }
        let interrupts = wait_until("an interrupt for each read", SOON, || {
            Ok(Some(scene.interrupts()?).filter(|interrupts| *interrupts >= last))
        })?;
        eprintln!("{reads} reads and {interrupts} interrupts behind {built} walls; {}", bystander.stop()?);
        scene.same_data_plane()?;
        scene.stop()
    });
}

#[test]
fn a_descriptor_whose_close_waits_holds_up_neither_status_nor_the_next_data_plane() {
    /// The most that either may take: much for a busy machine, little of the time that a close waits.
    const MOST: Duration = Duration::from_secs(5);
    const _: () = assert!(MOST.as_secs() * 4 < lingering::LINGER.as_secs());
    Lab::run("lingering", |lab| {
        let mut scene = Scene::start(lab, &SITE.replace("HOSTILE", MEMORY))?;
        let bystander = Bystander::start(&scene.socket("bystander"))?;
        let mut attacker =
            Attacker { socket: scene.socket("hostile"), supervisor: scene.supervisor()?, peers: Vec::new() };
        for way in lingering::ways() {
            for kills in [false, true] {
                bystander.take_worst();
                (way.go)(&mut attacker).context(way.name)?;
                let start = Instant::now();
                if kills {
                    scene.kill_data_plane().context(way.name)?;
                } else {
                    scene.same_data_plane().context(way.name)?;
                }
                let answered = start.elapsed();
                let progress = bystander.progress()?;
                bystander.goes_on(progress).context(way.name)?;
                let worst = bystander.take_worst();
                eprintln!("{:42} status after {answered:8.1?}, the bystander's slowest round {worst:.1?}", way.name);
                assert!(answered < MOST, "{}: status was answered after {answered:?}", way.name);
                assert!(worst < MOST, "{}: a round of the bystander took {worst:?}", way.name);
            }
        }
        eprintln!("{} sockets; {}", attacker.peers.len(), bystander.stop()?);
        scene.stop()
    });
}

#[test]
fn a_thousand_connections_leave_no_descriptor_behind() {
    Lab::run("reconnect", |lab| {
        let mut scene = Scene::start(lab, &SITE.replace("HOSTILE", MEMORY))?;
        let bystander = Bystander::start(&scene.socket("bystander"))?;
        // What is made once, on the first use, is no leak.
        fds::connect_and_go(&scene.socket("hostile"), 20)?;
        let before = scene.descriptors_at_rest(None)?;
        let progress = bystander.progress()?;
        fds::connect_and_go(&scene.socket("hostile"), 1000).context("a thousand connections")?;
        let after = scene.descriptors_at_rest(Some(before))?;
        eprintln!(
            "descriptors of supervisor and data plane: {before:?} before, {after:?} after a thousand connections"
        );
        bystander.goes_on(progress)?;
        scene.same_data_plane()?;
        eprintln!("{}", bystander.stop()?);
        assert!(after.0 <= before.0 && after.1 <= before.1, "descriptors leak");
        scene.stop()
    });
}

/// How long `status` may take to show what happened, and an eventfd to be signalled.
pub const SOON: Duration = Duration::from_secs(30);
