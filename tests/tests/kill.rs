//! Kills (SIGKILL) and upgrades of the data plane at random moments while a guest writes and verifies: the guest does
//! not notice.
//!
//! `SOFTDPU_KILLS` and `SOFTDPU_UPGRADES` are their numbers (20; `make soak` takes 200 and 500), `SOFTDPU_SEED` repeats
//! the moments of a run.

#![allow(missing_docs)]

use std::time::{Duration, Instant};

use softdpu_tests::{Context, Disk, Failure, Guest, GuestSpec, Lab, Random, Server, ServerKind, skip, wait_until};

const MIB: u64 = 1 << 20;

/// Between two kills: from "right after the restart" to "in the middle of a round".
const LEAST_PAUSE: Duration = Duration::from_millis(50);
const MOST_PAUSE: Duration = Duration::from_millis(1000);

/// A round of a guest takes seconds; one that takes this long hangs.
const DEADLINE: Duration = Duration::from_secs(120);

/// What happens to the data plane.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Kill,
    Upgrade,
}

/// The disk that the guest works on.
fn data(lab: &Lab) -> Result<Disk, Failure> {
    Ok(Disk::new("data", lab.image("data.img", 64 * MIB)?).queues(4))
}

fn kills() -> Result<u32, Failure> {
    std::env::var("SOFTDPU_KILLS").map_or(Ok(20), |text| text.parse().context("SOFTDPU_KILLS"))
}

fn upgrades() -> Result<u32, Failure> {
    std::env::var("SOFTDPU_UPGRADES").map_or(Ok(20), |text| text.parse().context("SOFTDPU_UPGRADES"))
}

/// Kills or upgrades the data plane so often under a guest's I/O.
fn survive(lab: &Lab, disk: Disk, event: Event, count: u32) -> Result<(), Failure> {
    let mut random = Random::from_environment();
    eprintln!("SOFTDPU_SEED={}", random.seed);
    let mut server = Server::start(ServerKind::Softdpu, lab, &[disk])?;
    let spec = GuestSpec::new("guest").cpus(4).memory_mib(768).disk(server.guest_disk("data")?).job("kill-loop");
    let spec = spec.parameter("DISK", "vda").parameter("MIB", 8).parameter("JOBS", 4);
    let mut guest = Guest::boot(lab.path(), spec)?;
    guest.step("bystander", DEADLINE)?;

    let (mut changes, mut completions) = (Vec::new(), Vec::new());
    for _ in 0..count {
        std::thread::sleep(random.between(LEAST_PAUSE, MOST_PAUSE));
        guest.check()?;
        let daemon = server.daemon()?;
        changes.push(match event {
            Event::Kill => daemon.kill_data_plane()?,
            Event::Upgrade => Duration::from_micros(daemon.upgrade()?["switched_us"].as_u64().unwrap_or_default()),
        });
        // fio is never idle for longer than between two rounds, so a request completes soon.
        completions.push(wait_until("the first completion after it", DEADLINE, || {
            guest.check()?;
            Ok(match event {
                Event::Kill => daemon.first_completion_after_restart(),
                Event::Upgrade => daemon.first_completion_after_upgrade(),
            }
            .ok())
        })?);
    }
    // A whole round after the last of them: an old write that lands late would be found by its verification.
    let rounds = guest.reports().iter().filter(|report| report.step == "round").count();
    let start = Instant::now();
    while guest.reports().iter().filter(|report| report.step == "round").count() < rounds + 2 {
        guest.check()?;
        if start.elapsed() > DEADLINE {
            return Err(Failure::new("the guest finished no round afterwards"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    guest.type_line("stop")?;
    guest.finish(DEADLINE)?;

    let (_, counted) = server.daemon()?.data_plane()?;
    let kills = if event == Event::Kill { count } else { 0 };
    assert_eq!(counted, u64::from(kills), "status counts other restarts than there were kills");
    let rounds = guest.reports().into_iter().filter(|report| report.step == "round");
    let slowest: Result<Vec<u64>, Failure> = rounds.map(|round| round.get("worst_ms")).collect();
    let (what, done) = match event {
        Event::Kill => ("kills", "data plane back after"),
        Event::Upgrade => ("upgrades", "switched in"),
    };
    eprintln!("{count} {what}: {done} {}", median_and_worst(&mut changes));
    eprintln!("{count} {what}: first completion after {}", median_and_worst(&mut completions));
    eprintln!("{count} {what}: the guest's slowest request took {} ms", slowest?.into_iter().max().unwrap_or(0));
    server.stop()
}

fn median_and_worst(times: &mut [Duration]) -> String {
    times.sort();
    let millis = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
    format!("{:.1} ms (median), {:.1} ms (worst)", millis(times.get(times.len() / 2)), millis(times.last()))
}

fn only_softdpu(test: &str) -> bool {
    let softdpu = matches!(ServerKind::from_environment(), Ok(ServerKind::Softdpu));
    if !softdpu {
        skip(test, "qemu-storage-daemon does not survive a kill");
    }
    softdpu
}

#[test]
fn a_guest_does_not_notice_kills_of_the_data_plane_with_split_queues() {
    if only_softdpu("kills with split queues") {
        Lab::run("kill-split", |lab| survive(lab, data(lab)?, Event::Kill, kills()?));
    }
}

#[test]
fn a_guest_does_not_notice_kills_of_the_data_plane_with_packed_queues() {
    if only_softdpu("kills with packed queues") {
        Lab::run("kill-packed", |lab| survive(lab, data(lab)?.packed(), Event::Kill, kills()?));
    }
}

#[test]
fn a_guest_does_not_notice_upgrades_of_the_data_plane() {
    if only_softdpu("upgrades") {
        Lab::run("upgrade-guest", |lab| survive(lab, data(lab)?, Event::Upgrade, upgrades()?));
    }
}
