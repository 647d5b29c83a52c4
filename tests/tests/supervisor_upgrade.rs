//! Upgrades of the supervisor under drivers that verify everything themselves and a management client that asks without
//! a pause: the same process goes on with another program, and neither notices.
//!
//! `SOFTDPU_UPGRADES` is their number (20; `make soak` takes 500), `SOFTDPU_SEED` repeats a run's moments.

#![allow(missing_docs)]

mod client;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use client::verified::{Drivers, devices, site};
use serde_json::Value;
use softdpu_tests::{Context, Daemon, Failure, Lab, Random, skip, softdpu};

const SUPERVISOR: [&str; 2] = ["--only", "supervisor"];

/// Longer than an answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn upgrades() -> Result<u32, Failure> {
    std::env::var("SOFTDPU_UPGRADES").map_or(Ok(20), |text| text.parse().context("SOFTDPU_UPGRADES"))
}

/// A client on one connection, which asks again as soon as it is answered.
struct Asker {
    stop: Arc<AtomicBool>,
    /// The longest time that an answer took since this was last taken, in microseconds.
    longest: Arc<AtomicU64>,
    thread: JoinHandle<Result<u64, Failure>>,
}

impl Asker {
    fn start(folder: &Path) -> Result<Asker, Failure> {
        let stream = UnixStream::connect(folder.join("run/softdpu/api.sock")).context("the management socket")?;
        stream.set_read_timeout(Some(PATIENCE)).context("its deadline")?;
        let (stop, longest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, times) = (Arc::clone(&stop), Arc::clone(&longest));
        let thread = std::thread::spawn(move || ask(stream, &until, &times));
        Ok(Asker { stop, longest, thread })
    }

    /// How many answers it had.
    fn stop(self) -> Result<u64, Failure> {
        self.stop.store(true, Relaxed);
        self.thread.join().map_err(|_| Failure::new("the client panicked"))?
    }
}

fn ask(stream: UnixStream, stop: &AtomicBool, longest: &AtomicU64) -> Result<u64, Failure> {
    let mut stream = BufReader::new(stream);
    let mut number = 0;
    while !stop.load(Relaxed) {
        let start = Instant::now();
        let request = format!("{{\"softdpu\":1,\"id\":{number},\"method\":\"volume.list\",\"params\":{{}}}}\n");
        // In two pieces: an upgrade may come between them.
        let (first, second) = request.as_bytes().split_at(request.len() / 2);
        stream.get_mut().write_all(first).context("half a request")?;
        stream.get_mut().write_all(second).context("the other half")?;
        let mut line = String::new();
        stream.read_line(&mut line).context("an answer")?;
        let answer: Value = serde_json::from_str(&line).context(format_args!("the answer {line:?}"))?;
        if answer["id"] != number || answer["result"].as_array().is_none_or(|volumes| volumes.len() != 8) {
            return Err(Failure::new(format!("answer {number} is {line}")));
        }
        number += 1;
        longest.fetch_max(start.elapsed().as_micros() as u64, Relaxed);
    }
    Ok(number)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

fn worst(times: &[Duration]) -> f64 {
    times.iter().max().map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

fn follow(lab: &Lab) -> Result<(), Failure> {
    let mut random = Random::from_environment();
    eprintln!("SOFTDPU_SEED={}", random.seed);
    let devices = devices();
    let mut daemon = Daemon::start(lab.path(), &site(&devices))?;
    let drivers = Drivers::start(&daemon, &devices, random.seed)?;
    let asker = Asker::start(lab.path())?;
    let (supervisor, upgrades) = (daemon.pid(), upgrades()?);
    let (mut before, mut gaps, mut silences, mut answers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for number in 1..=upgrades {
        drivers.forget_gaps();
        std::thread::sleep(random.between(Duration::from_millis(20), Duration::from_millis(200)));
        drivers.check()?;
        before.push(drivers.longest_gap());
        // The data plane is killed right before every fifth, and right after the one that follows that.
        if number % 5 == 3 {
            daemon.kill_data_plane()?;
            drivers.go_on("a kill")?;
        }
        let (data_plane, _) = daemon.data_plane()?;
        drivers.forget_gaps();
        asker.longest.store(0, Relaxed);
        let answer = daemon.upgrade_by(&SUPERVISOR)?;
        drivers.go_on("an upgrade of the supervisor")?;
        gaps.push(drivers.longest_gap());
        silences.push(Duration::from_micros(answer["supervisor"]["switched_us"].as_u64().unwrap_or(u64::MAX)));
        answers.push(Duration::from_micros(asker.longest.load(Relaxed)));
        let status = daemon.status()?;
        assert_eq!(daemon.data_plane()?.0, data_plane, "the data plane is the same");
        assert_eq!(status["supervisor_pid"], supervisor, "the process is the same");
        assert_eq!(status["supervisor_upgrade"]["stage"], "done", "{status}");
        eprintln!(
            "upgrade {number:3}: the supervisor was silent for {:5.1} ms, longest gap of a driver {:5.1} ms, longest answer {:5.1} ms",
            worst(&silences[silences.len() - 1..]),
            worst(&gaps[gaps.len() - 1..]),
            worst(&answers[answers.len() - 1..]),
        );
        if number % 5 == 4 {
            daemon.kill_data_plane()?;
            drivers.go_on("a kill")?;
        }
    }
    let answered = asker.stop()?;
    let total = drivers.settle()?;
    eprintln!(
        "{upgrades} upgrades of the supervisor, {} drivers, {total} requests: longest gap {:.1} ms (median; worst {:.1}), without an \
         upgrade {:.1} ms; silent for {:.1} ms (median; worst {:.1}); one client had {answered} answers, the longest wait for one \
         {:.1} ms (median; worst {:.1})",
        devices.len(),
        median(gaps.clone()),
        worst(&gaps),
        median(before),
        median(silences.clone()),
        worst(&silences),
        median(answers.clone()),
        worst(&answers),
    );
    daemon.stop()
}

#[test]
fn drivers_and_a_client_notice_nothing_of_other_programs_that_follow_in_the_supervisor() {
    Lab::run("supervisor-upgrade", follow);
}

/// A program of that name in the lab.
fn impostor(lab: &Lab, name: &str) -> Result<PathBuf, Failure> {
    let path = lab.path().join(name);
    std::fs::copy(env!("CARGO_BIN_EXE_impostor"), &path).context(format_args!("copying the impostor to {name}"))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).context("its mode")?;
    Ok(path)
}

fn refuse(lab: &Lab) -> Result<(), Failure> {
    let devices = devices();
    let daemon = Daemon::start(lab.path(), &site(&devices))?;
    let drivers = Drivers::start(&daemon, &devices, 1)?;
    let (supervisor, data_plane) = (daemon.pid(), daemon.data_plane()?);
    std::fs::write(lab.path().join("text"), "#!/bin/sh\nexit 0\n").context("a file that is no program")?;
    for (name, why) in [
        ("crashes", "killed by SIGABRT"),
        ("hangs", "does not answer in time"),
        ("babbles", "says more than it was asked for"),
        ("too-new", "reads states of formats 1000 to 1001"),
        ("crashes-over-the-state", "killed by SIGABRT"),
        ("hangs-over-the-state", "does not answer in time"),
        ("refuses", "it is not to its taste"),
        ("lies", "has not read it"),
        ("text", "cannot be started"),
        ("absent", "cannot be started"),
    ] {
        let path = match name {
            "text" | "absent" => lab.path().join(name),
            name => impostor(lab, name)?,
        };
        let path = path.to_string_lossy().into_owned();
        let error = match daemon.upgrade_by(&["--binary", &path]) {
            Ok(answer) => return Err(Failure::new(format!("{name} follows: {answer}"))),
            Err(error) => error.to_string(),
        };
        if !error.contains(why) {
            return Err(Failure::new(format!("{name}: {why:?} is not in {error}")));
        }
        drivers.go_on(name)?;
        assert_eq!((daemon.pid(), daemon.data_plane()?), (supervisor, data_plane));
    }
    // One that is right follows all the same.
    daemon.upgrade()?;
    drivers.settle()?;
    daemon.stop()
}

#[test]
fn a_program_that_cannot_follow_changes_nothing_and_the_answer_says_why() {
    Lab::run("supervisor-refuses", refuse);
}

/// The release to come, built with the feature `next-release`.
fn next() -> Option<PathBuf> {
    std::env::var_os("SOFTDPU_NEXT_BIN").map(PathBuf::from)
}

fn forward_and_back(lab: &Lab, next: &Path) -> Result<(), Failure> {
    let devices = devices();
    let daemon = Daemon::start(lab.path(), &site(&devices))?;
    let drivers = Drivers::start(&daemon, &devices, 1)?;
    let asker = Asker::start(lab.path())?;
    let this = softdpu()?;
    let (supervisor, release) = (daemon.pid(), daemon.status()?["version"].clone());
    // From one format to the other, within the newer, and back.
    for program in [next, next, &this, next, &this] {
        let path = program.to_string_lossy().into_owned();
        daemon.upgrade_by(&["--binary", &path])?;
        drivers.go_on("an upgrade of both")?;
        let status = daemon.status()?;
        let is_next = program == next;
        assert_eq!(status["version"] != release, is_next, "{} runs: {status}", program.display());
        assert_eq!(status["data_plane"]["upgrade"]["stage"], "done");
        assert_eq!(daemon.pid(), supervisor);
    }
    asker.stop()?;
    drivers.settle()?;
    daemon.stop()
}

/// A program that executes, and then cannot take up the state: the program before goes on in the same process.
fn give_way(lab: &Lab, next: &Path) -> Result<(), Failure> {
    let devices = devices();
    let daemon = Daemon::start(lab.path(), &site(&devices))?;
    let drivers = Drivers::start(&daemon, &devices, 1)?;
    let program = lab.path().join("cannot-resume");
    std::fs::copy(next, &program).context("a copy of the next release")?;
    let (supervisor, data_plane, release) = (daemon.pid(), daemon.data_plane()?, daemon.status()?["version"].clone());
    let error = match daemon.upgrade_by(&["--binary", &program.to_string_lossy()]) {
        Ok(answer) => return Err(Failure::new(format!("it follows: {answer}"))),
        Err(error) => error.to_string(),
    };
    assert!(error.contains("could not take up the state"), "{error}");
    drivers.go_on("a program that gave way")?;
    assert_eq!((daemon.pid(), daemon.data_plane()?), (supervisor, data_plane));
    assert_eq!(daemon.status()?["version"], release);
    daemon.upgrade()?;
    drivers.settle()?;
    daemon.stop()
}

#[test]
fn a_program_that_cannot_take_the_state_up_gives_way_to_the_one_before() {
    match next() {
        Some(next) => Lab::run("supervisor-gives-way", |lab| give_way(lab, &next)),
        None => skip("a program that gives way", "SOFTDPU_NEXT_BIN names no softdpu with the feature next-release"),
    }
}

#[test]
fn releases_with_other_formats_of_the_state_follow_each_other_forward_and_back() {
    match next() {
        Some(next) => Lab::run("supervisor-releases", |lab| forward_and_back(lab, &next)),
        None => skip("upgrades between releases", "SOFTDPU_NEXT_BIN names no softdpu with the feature next-release"),
    }
}
