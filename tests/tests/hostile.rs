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
#[path = "hostile/slow.rs"]
mod slow;
#[path = "hostile/walls.rs"]
mod walls;

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::{Duration, Instant};

use softdpu_tests::abuses::{Tally, is_chosen};
use softdpu_tests::{Context, Failure, Interval, Lab, Site, wait_until};

use bystander::Bystander;
use lingering::Attacker;
use scene::{Abuse, Scene};

/// Distinct abuses there have to be.
const LEAST: usize = 40;

/// The site, with the volume under attack kept in `hostile`.
fn site(hostile: &str) -> String {
    let disk = |volume: &str, more: &str| {
        format!("virtio-blk = {{ volume = '{volume}', socket = '{volume}-disk.sock'{more} }}")
    };
    let site = Site::on(&[0])
        .tenants(["mallory", "alice"])
        .volume("hostile", hostile)
        .volume("second", MEMORY)
        .volume("bystander", "file = { path = 'bystander.img', size = '8 MiB' }")
        .device("hostile-disk", &disk("hostile", ", queues = 2, packed = true"))
        .with("tenant = 'mallory'\ndomain = 'mallory-vm'")
        .device("second-disk", &disk("second", ""))
        .with("tenant = 'mallory'\ndomain = 'mallory-vm'")
        .device("bystander-disk", &disk("bystander", ""))
        .with("tenant = 'alice'\ndomain = 'alice-vm'");
    site.to_string()
}

/// Runs a scenario with a hostile front end and a well-behaved one beside it, which has to have gone on undisturbed.
fn beside_a_bystander(name: &str, hostile: &str, scenario: impl FnOnce(&mut Scene, &Bystander) -> Result<(), Failure>) {
    Lab::run(name, |lab| {
        let mut scene = Scene::start(lab, &site(hostile))?;
        let mut bystander = Bystander::start(&scene.socket("bystander"))?;
        scenario(&mut scene, &bystander)?;
        let progress = bystander.progress()?;
        bystander.goes_on(progress)?;
        eprintln!("{}", bystander.stop()?);
        scene.stop()
    });
}

const MEMORY: &str = r#"memory = { size = "8 MiB" }"#;
const FILE: &str = r#"file = { path = "hostile.img", size = "8 MiB" }"#;

fn all_abuses() -> Vec<Abuse> {
    let groups = [descriptors::abuses(), requests::abuses(), rings::abuses(), messages::abuses(), fds::abuses()];
    let all: Vec<Abuse> = groups.into_iter().flatten().collect();
    let names: HashSet<&str> = all.iter().map(|abuse| abuse.name).collect();
    assert_eq!(names.len(), all.len(), "two abuses have one name");
    all
}

/// Plays all abuses on a volume kept in `hostile`.
fn play_all(name: &str, hostile: &str) {
    beside_a_bystander(name, hostile, |scene, bystander| {
        let mut tally = Tally::default();
        for abuse in all_abuses().iter().filter(|abuse| is_chosen(abuse.name)) {
            let undisturbed = bystander.progress()?;
            tally.play(abuse.name, || {
                let seen = scene.play(abuse).context(abuse.what)?;
                bystander.goes_on(undisturbed)?;
                Ok(seen)
            });
            scene.same_data_plane().context(abuse.name)?;
        }
        tally.verdict(LEAST)
    });
}

#[test]
fn an_abuse_breaks_nothing_but_its_own_device_on_a_memory_volume() {
    play_all("hostile", MEMORY);
}

#[test]
fn an_abuse_breaks_nothing_but_its_own_device_on_a_file_volume() {
    play_all("hostile-file", FILE);
}

#[test]
fn what_was_broken_before_a_kill_of_the_data_plane_is_broken_after_it() {
    // One that the ring remembers, one that only the session does, one that only the in-flight region does.
    let kept = ["loop", "ring goes with its memory", "in-flight used_idx far away"];
    beside_a_bystander("hostile-kill", MEMORY, |scene, _| {
        let chosen = |abuse: &Abuse| kept.contains(&abuse.name) && is_chosen(abuse.name);
        for abuse in all_abuses().into_iter().filter(chosen) {
            let seen = scene.play_across_a_kill(&abuse).context(abuse.name)?;
            eprintln!("after a kill: {:44} {seen}", abuse.name);
        }
        Ok(())
    });
}

#[test]
fn a_front_end_whose_interrupts_would_block_holds_up_no_other() {
    /// How long it goes on.
    const TIME: Duration = Duration::from_secs(2);
    /// The most that a round of the bystander on the same core may take: a scheduler's doing on a busy machine. A write
    /// that blocks ends when the front end reads, if ever.
    const WORST: Duration = Duration::from_millis(500);
    beside_a_bystander("walls", MEMORY, |scene, bystander| {
        bystander.take_worst();
        let progress = bystander.progress()?;
        let (reads, built) = walls::read_behind_a_wall(&scene.socket("hostile"), TIME)?;
        bystander.goes_on(progress)?;
        let worst = bystander.take_worst();
        assert!(
            worst < WORST && reads > 100 && built > 100,
            "a round of the bystander took {worst:?}, beside {reads} reads and {built} walls"
        );
        let interrupts = wait_until("an interrupt for each read", SOON, || {
            Ok(Some(scene.interrupts()?).filter(|interrupts| *interrupts >= reads))
        })?;
        eprintln!("{reads} reads and {interrupts} interrupts behind {built} walls");
        scene.same_data_plane()
    });
}

#[test]
fn a_descriptor_whose_close_waits_holds_up_neither_status_nor_the_next_data_plane() {
    /// The most that either may take: much for a busy machine, little of the time that a close waits.
    const MOST: Duration = Duration::from_secs(5);
    const _: () = assert!(MOST.as_secs() * 4 < lingering::LINGER.as_secs());
    beside_a_bystander("lingering", MEMORY, |scene, bystander| {
        let mut attacker =
            Attacker { socket: scene.socket("hostile"), supervisor: scene.supervisor()?, peers: Vec::new() };
        for attack in lingering::attacks() {
            for kills in [false, true] {
                bystander.take_worst();
                (attack.act)(&mut attacker).context(attack.name)?;
                let start = Instant::now();
                if kills {
                    scene.kill_data_plane().context(attack.name)?;
                } else {
                    scene.same_data_plane().context(attack.name)?;
                }
                let answered = start.elapsed();
                let progress = bystander.progress()?;
                bystander.goes_on(progress).context(attack.name)?;
                let worst = bystander.take_worst();
                eprintln!("{:42} status after {answered:8.1?}, the bystander's slowest round {worst:.1?}", attack.name);
                assert!(answered < MOST, "{}: status was answered after {answered:?}", attack.name);
                assert!(worst < MOST, "{}: a round of the bystander took {worst:?}", attack.name);
            }
        }
        eprintln!("{} sockets", attacker.peers.len());
        Ok(())
    });
}

/// Windows of an attack, each beside one without it.
const PAIRS: usize = 15;

/// What a bystander has to keep of its rounds while an attack goes on: it was some hundredths.
const KEPT: f64 = 0.4;

/// The bystander's rounds a second while something goes on.
fn rounds_while(bystander: &Bystander, action: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let (before, start) = (bystander.progress()?, Instant::now());
    action()?;
    Ok((bystander.progress()? - before) as f64 / start.elapsed().as_secs_f64())
}

/// Holds the bystander to its rounds while an attack goes on: of those that it makes without. `rounds` counts them,
/// with an attack or not.
fn keeps_its_rounds(bystander: &Bystander, rounds: impl FnMut(bool) -> Result<f64, Failure>) -> Result<(), Failure> {
    let (rounds, mut worst) = (RefCell::new(rounds), Vec::new());
    let attacked = || {
        bystander.take_worst();
        let made = (rounds.borrow_mut())(true)?;
        worst.push(bystander.take_worst());
        Ok(made)
    };
    let kept = Interval::of_ratios(PAIRS, attacked, || (rounds.borrow_mut())(false))?;
    eprintln!("the bystander's worst rounds: {worst:.1?}");
    kept.is_at_least(KEPT, "the bystander's rounds, of those without an attack")
}

/// The hostile device was demoted and charged, and the bystander's was not.
fn is_demoted_alone(scene: &Scene) -> Result<(), Failure> {
    let (hostile, bystander) = (scene.demotion("hostile-disk")?, scene.demotion("bystander-disk")?);
    let charged = scene.core_time("mallory")?;
    eprintln!("{hostile:?}, charged with {charged:?}; the bystander: {bystander:?}");
    assert!(hostile.is_demoted && hostile.stalls > 0, "it is not demoted: {hostile:?}");
    assert!(charged >= hostile.stalled, "charged with {charged:?}, after {hostile:?}");
    assert!(!bystander.is_demoted && 10 * bystander.stalled < hostile.stalled, "the bystander pays: {bystander:?}");
    Ok(())
}

/// A window of an attack with a slow eventfd.
const WINDOW: Duration = Duration::from_millis(200);

#[test]
fn a_front_end_that_passes_a_slow_call_eventfd_again_and_again_slows_no_other() {
    beside_a_bystander("passed", MEMORY, |scene, bystander| {
        let mut watched = slow::Watched::start(&scene.socket("hostile"))?;
        keeps_its_rounds(bystander, |is_attack| {
            let calm = || std::thread::sleep(WINDOW);
            rounds_while(bystander, || {
                if is_attack {
                    return watched.pass_for(WINDOW);
                }
                calm();
                Ok(())
            })
        })?;
        assert!(scene.demotion("hostile-disk")?.is_demoted, "it is not demoted");
        scene.same_data_plane()
    });
}

#[test]
fn a_front_end_with_a_slow_call_eventfd_slows_no_other() {
    beside_a_bystander("watched", MEMORY, |scene, bystander| {
        let mut watched = slow::Watched::start(&scene.socket("hostile"))?;
        keeps_its_rounds(bystander, |is_attack| {
            rounds_while(bystander, || {
                if is_attack {
                    return watched.read_for(WINDOW);
                }
                std::thread::sleep(WINDOW);
                Ok(())
            })
        })?;
        is_demoted_alone(scene)?;
        watched.unwatch();
        wait_until("the device to be back from the slow core", SOON, || {
            watched.read_for(Duration::from_millis(1))?;
            Ok((!scene.demotion("hostile-disk")?.is_demoted).then_some(()))
        })?;
        scene.same_data_plane()
    });
}

#[test]
fn a_front_end_that_punches_its_memory_slows_no_other() {
    beside_a_bystander("punched", MEMORY, |scene, bystander| {
        let mut puncher = slow::Puncher::start(&scene.socket("hostile"))?;
        keeps_its_rounds(bystander, |is_attack| {
            puncher.fill()?;
            rounds_while(bystander, || puncher.punch(is_attack))
        })?;
        is_demoted_alone(scene)?;
        scene.same_data_plane()
    });
}

#[test]
fn a_thousand_connections_leave_no_descriptor_behind() {
    beside_a_bystander("reconnect", MEMORY, |scene, bystander| {
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
        assert!(after.0 <= before.0 && after.1 <= before.1, "descriptors leak");
        Ok(())
    });
}

/// How long `status` may take to show what happened, and an eventfd to be signalled.
pub const SOON: Duration = Duration::from_secs(30);
