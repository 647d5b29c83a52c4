//! Hostile guests with interfaces against a running softdpu, beside two well-behaved ones in the same network.
//!
//! Each abuse begins with an interface that works. After it: frames were dropped and counted under their reason, or
//! that queue broke, its error eventfd was signalled, and `softdpu status` says why; the interface works again, at once
//! or with a new connection. All the while two other guests exchange frames, of which the receiver looks at every byte:
//! none may be another guest's or other than sent, and the data plane must be the same process.
//!
//! Floods are measured, see [`floods`].

#![allow(missing_docs)]

#[path = "hostile_net/chains.rs"]
mod chains;
#[path = "hostile_net/contents.rs"]
mod contents;
#[path = "hostile_net/floods.rs"]
mod floods;
#[path = "hostile_net/headers.rs"]
mod headers;
#[path = "hostile_net/nic.rs"]
mod nic;
#[path = "hostile_net/packets.rs"]
mod packets;
#[path = "hostile_net/pair.rs"]
mod pair;
#[path = "hostile_net/receive.rs"]
mod receive;
#[path = "hostile_net/scene.rs"]
mod scene;

use std::collections::HashSet;
use std::time::Duration;

use softdpu_tests::abuses::{Tally, is_chosen};
use softdpu_tests::{Context, Failure, Lab};

use pair::Pair;
use scene::{Abuse, Scene};

/// Distinct abuses there have to be.
const LEAST: usize = 100;

/// How long `status` may take to show what happened, and an eventfd to be signalled.
const SOON: Duration = Duration::from_secs(30);

fn abuses() -> Vec<Abuse> {
    let groups = [headers::abuses(), chains::abuses(), receive::abuses(), contents::abuses()];
    let all: Vec<Abuse> = groups.into_iter().flatten().collect();
    let names: HashSet<&str> = all.iter().map(|abuse| abuse.name).collect();
    assert_eq!(names.len(), all.len(), "two abuses have one name");
    all.into_iter().filter(|abuse| is_chosen(abuse.name)).collect()
}

/// Runs a scenario with a hostile guest and a well-behaved pair beside it. The pair sends `pace` frames a second, or as
/// many as it can.
fn beside_a_pair(name: &str, pace: Option<u64>, scenario: impl FnOnce(&Scene, &Pair) -> Result<(), Failure>) {
    Lab::run(name, |lab| {
        let scene = Scene::start(lab)?;
        let mut pair = Pair::start(&scene, pace)?;
        scenario(&scene, &pair)?;
        eprintln!("{}", pair.stop(&scene)?);
        scene.stop()
    });
}

#[test]
fn an_abuse_is_counted_or_breaks_its_own_queue_and_reaches_no_other_guest() {
    beside_a_pair("hostile-net", Some(pair::GENTLE), |scene, pair| {
        let mut tally = Tally::default();
        for abuse in &abuses() {
            let undisturbed = pair.received()?;
            tally.play(abuse.name, || {
                let seen = scene.play(abuse)?;
                pair.goes_on(undisturbed)?;
                Ok(seen)
            });
            scene.same_data_plane().context(abuse.name)?;
        }
        tally.verdict(LEAST)
    });
}

#[test]
fn a_flood_takes_nothing_from_a_pair_that_asks_for_less_than_its_share() {
    beside_a_pair("hostile-floods", None, |scene, pair| {
        let pace = floods::find_pace(pair)?;
        let mut failed = Vec::new();
        for flood in floods::floods().into_iter().filter(|flood| is_chosen(flood.name)) {
            let seen = floods::play(scene, pair, pace, &flood)?;
            let ok = seen.is_enough();
            eprintln!("{} {:36} {seen}", if ok { "ok    " } else { "FAILED" }, flood.name);
            if !ok {
                failed.push(flood.name);
            }
            scene.same_data_plane()?;
        }
        for (name, seen) in floods::play_storms(scene, pair, pace)? {
            let ok = seen.is_enough();
            eprintln!("{} {name:42} {seen}", if ok { "ok    " } else { "FAILED" });
            if !ok {
                failed.push(name);
            }
            scene.same_data_plane()?;
        }
        eprintln!("paced at {pace} frames/s");
        assert!(failed.is_empty(), "the pair lost more than a tenth of its frames to: {}", failed.join(", "));
        Ok(())
    });
}
