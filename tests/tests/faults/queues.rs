//! Queues that move between cores while they work.

use std::sync::atomic::Ordering::SeqCst;

use serde_json::{Value, json};
use softdpu_frontend::BlockOptions;
use softdpu_tests::{Daemon, Failure, Lab, skip, wait_until};

use crate::common::*;
use crate::load::Load;

const QUEUES: u16 = 4;
const MOVES: u64 = 1000;
/// As many requests complete between so many moves, at least.
const PACE: u64 = 20;

/// Queues a core serves, as `status` counts them.
fn count(status: &Value, cpu: u64) -> Option<u64> {
    let core = status["cores"].as_array()?.iter().find(|core| core["cpu"] == cpu)?;
    core["queues"].as_u64()
}

fn expect_counts(daemon: &Daemon, wanted: [u64; 2]) -> Result<(), Failure> {
    wait_until(&format!("status to show {wanted:?} queues on the two cores"), WAIT, || {
        let status = daemon.status()?;
        Ok(([count(&status, 0), count(&status, 1)] == wanted.map(Some)).then_some(()))
    })
}

/// Requests that ended on a core that their queue had left.
fn travelled(status: &Value) -> u64 {
    let cores = status["cores"].as_array().map(Vec::as_slice).unwrap_or_default();
    cores.iter().filter_map(|core| core["travelled"].as_u64()).sum()
}

#[test]
fn a_thousand_moves_of_queues_under_load_lose_and_double_nothing() {
    const TEST: &str = "queue moves";
    if !possible(TEST, &[]) {
        return;
    }
    if cpus() < 2 {
        return skip(TEST, "this machine has one CPU");
    }
    // Requests of the first end within the round that takes them; those of the second are in flight while their queue
    // moves.
    moves("moves", "memory = { size = \"16 MiB\" }", false);
    // Not in the lab's folder, which may be in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let image = folder.path().join("image");
    moves(
        "moves-file",
        &format!("file = {{ path = \"{}\", size = \"16 MiB\", direct = true }}", image.display()),
        true,
    );
}

/// `ends_later`: requests end after the round that submits them.
fn moves(name: &str, backend: &str, ends_later: bool) {
    Lab::run(name, |lab| {
        let daemon = Daemon::start(lab.path(), &(node(&[0, 1]) + &disk("data", backend, QUEUES)))?;
        let mut front_end = connect(&daemon, "data", &BlockOptions { queues: QUEUES, ..BlockOptions::default() })?;
        let mut api = Api::connect(lab)?;
        let mut put = |queue: u16, core: u64| {
            api.call("queue.move", &json!({ "device": "data-disk", "queue": queue, "core": core })).map(|_| ())
        };
        // Fewer blocks than requests in flight: each block is written and read over and over, and what it has to hold
        // is known at any time, so a write that is run late or out of order is read by the next.
        let mut load = Load::new(&front_end, 24, 8);
        load.run(&mut front_end, |completed| {
            for queue in 0..QUEUES {
                put(queue, 0)?;
            }
            expect_counts(&daemon, [4, 0])?;
            for step in 0..MOVES {
                // Each queue in turn goes to the other core.
                put((step % u64::from(QUEUES)) as u16, (step / u64::from(QUEUES) + 1) % 2)?;
                // The load goes on meanwhile, also where it has to share its CPU.
                if step % PACE == PACE - 1 {
                    let wanted = completed.load(SeqCst) + PACE;
                    wait_until("requests to go on between moves", WAIT, || {
                        Ok((completed.load(SeqCst) >= wanted).then_some(()))
                    })?;
                }
                if step == 1 {
                    expect_counts(&daemon, [2, 2])?;
                }
            }
            // 1,000 moves are 250 of each queue: all are back.
            expect_counts(&daemon, [4, 0])?;
            if ends_later {
                // Whether one is in flight at a move is chance: until one was.
                wait_until("a request to be in flight while its queue moved", WAIT, || {
                    for (queue, core) in (0..QUEUES).flat_map(|queue| [(queue, 1), (queue, 0)]) {
                        put(queue, core)?;
                    }
                    Ok((travelled(&daemon.status()?) > 0).then_some(()))
                })?;
                expect_counts(&daemon, [4, 0])?;
            }
            daemon.command(&["queue", "move", "data-disk", "3", "1"])?;
            expect_counts(&daemon, [3, 1])
        })?;
        assert!(load.completed >= MOVES, "{} requests in {MOVES} moves", load.completed);
        let travelled = travelled(&daemon.status()?);
        eprintln!("{name}: {travelled} of {} requests ended on a core that their queue had left", load.completed);
        let words = refused(&daemon, &["queue", "move", "data-disk", "3", "77"]);
        assert!(words.contains("77"), "{words}");
        drop(front_end);
        daemon.stop()
    });
}
