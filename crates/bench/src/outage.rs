//! The gap that clients see when the data plane is upgraded or killed, beside the same run's gaps without either.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use softdpu_frontend::{BlockFrontEnd, BlockOptions, BlockQueue, BlockRequest, FrontEndError};
use softdpu_sys::affinity;

use crate::SetupError;
use crate::samples::Samples;
use crate::side_by_side::Figure;
use crate::subject::{Running, Service, Subject, Variant, Volume};

/// How long gaps are watched without an event, and after it.
const WINDOW: Duration = Duration::from_millis(200);

/// The longest that an event may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of a request.
const REQUEST: u32 = 4096;

/// What happens to the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `softdpu upgrade`, to the same program.
    Upgrade,
    /// SIGKILL.
    Kill,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Event::Upgrade => "upgrade",
            Event::Kill => "recover",
        }
    }
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What happens.
    pub event: Event,
    /// How often.
    pub rounds: u32,
    /// Disks in memory, each with a client that has one request in flight, one case each.
    pub devices: Vec<usize>,
    /// The data plane's CPU.
    pub server_cpu: usize,
    /// The clients'.
    pub client_cpu: usize,
}

/// The gaps with so many disks.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// Disks.
    pub devices: usize,
    /// The longest time that any disk had no completion, round by round, without an event, in milliseconds.
    pub without: Samples,
    /// The same with one.
    pub with: Samples,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Gaps {
    event: Event,
    /// By number of disks.
    pub cases: Vec<Case>,
}

/// A client's disk.
struct Disk {
    front_end: BlockFrontEnd,
    last: Instant,
    gap: Duration,
}

impl Disk {
    fn submit(&mut self) -> Result<(), FrontEndError> {
        let queue: &mut BlockQueue = self.front_end.queue_mut(0);
        queue.submit(BlockRequest::Read { sector: 0, len: REQUEST })?;
        queue.publish();
        Ok(())
    }

    fn poll(&mut self) -> Result<(), FrontEndError> {
        while self.front_end.queue_mut(0).poll().is_some() {
            let now = Instant::now();
            self.gap = self.gap.max(now - self.last);
            self.last = now;
            self.front_end.queue_mut(0).keep_quiet(1);
            self.submit()?;
        }
        Ok(())
    }
}

/// Runs `plan`.
///
/// # Errors
/// [`SetupError`].
pub fn measure(program: &Path, plan: &Plan) -> Result<Gaps, SetupError> {
    let mut cases = Vec::new();
    for &devices in &plan.devices {
        cases.push(measure_case(program, plan, devices)?);
    }
    Ok(Gaps { event: plan.event, cases })
}

fn measure_case(program: &Path, plan: &Plan, devices: usize) -> Result<Case, SetupError> {
    let subject = Subject::Softdpu { program: program.to_owned(), variant: Variant::Plain };
    let service =
        Service { volume: Volume::Memory, size: 1 << 20, queues: 1, queue_size: 256, cpu: plan.server_cpu, devices };
    let running = subject.start(&service)?;
    let failed = |source: FrontEndError| SetupError::Load {
        subject: subject.name().to_owned(),
        case: format!("{} with {devices} disks", plan.event.name()),
        source: Box::new(source),
    };
    let mut disks = Vec::new();
    for socket in running.sockets() {
        let front_end = BlockFrontEnd::connect_when_listening(socket, &BlockOptions::default()).map_err(failed)?;
        disks.push(Disk { front_end, last: Instant::now(), gap: Duration::ZERO });
    }
    let api = api_socket(&running)?;
    let mut case = Case { devices, ..Case::default() };
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            if let Err(error) = affinity::pin_to(plan.client_cpu) {
                return Err(SetupError::Plan(format!("the clients' CPU {}: {error}", plan.client_cpu)));
            }
            disks.iter_mut().try_for_each(Disk::submit).map_err(failed)?;
            for _ in 0..plan.rounds {
                let watch = |disks: &mut Vec<Disk>, until: &dyn Fn() -> bool| {
                    let start = Instant::now();
                    disks.iter_mut().for_each(|disk| (disk.last, disk.gap) = (start, Duration::ZERO));
                    while !until() {
                        disks.iter_mut().try_for_each(Disk::poll).map_err(failed)?;
                        if start.elapsed() > PATIENCE {
                            return Err(SetupError::Plan(format!("the event took longer than {PATIENCE:?}")));
                        }
                    }
                    let now = Instant::now();
                    let gaps = disks.iter().map(|disk| disk.gap.max(now - disk.last));
                    Ok(gaps.max().unwrap_or_default().as_secs_f64() * 1e3)
                };
                let end = Instant::now() + WINDOW;
                case.without.push(watch(&mut disks, &|| Instant::now() >= end)?);
                let is_over = AtomicBool::new(false);
                let with = std::thread::scope(|scope| {
                    let event = scope.spawn(|| {
                        let done = happen(program, &api, plan.event);
                        std::thread::sleep(WINDOW);
                        is_over.store(true, Ordering::Release);
                        done
                    });
                    let gap = watch(&mut disks, &|| is_over.load(Ordering::Acquire));
                    event.join().map_err(|_| SetupError::Plan("the event's thread panicked".to_owned()))??;
                    gap
                })?;
                case.with.push(with);
            }
            Ok(())
        });
        clients.join().map_err(|_| SetupError::Plan("the clients' thread panicked".to_owned()))?
    })?;
    Ok(case)
}

fn api_socket(running: &Running) -> Result<PathBuf, SetupError> {
    let folder = running.socket().parent();
    folder
        .map(|folder| folder.join("run/api.sock"))
        .ok_or_else(|| SetupError::Plan("the disks' sockets are in no folder".to_owned()))
}

/// Has it happen, and waits until it is over.
fn happen(program: &Path, api: &Path, event: Event) -> Result<(), SetupError> {
    let ask = |arguments: &[&str]| {
        let output = Command::new(program).args(arguments).env("SOFTDPU_SOCKET", api).stdin(Stdio::null()).output();
        let output = output.map_err(|error| SetupError::Plan(format!("{}: {error}", program.display())))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(SetupError::Plan(String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let pid = || {
        let status: serde_json::Value = serde_json::from_str(&ask(&["status", "--json"])?).unwrap_or_default();
        let plane = &status["data_plane"];
        let pid = plane["pid"].as_i64().filter(|_| plane["state"] == "running").and_then(|pid| i32::try_from(pid).ok());
        Ok::<_, SetupError>(pid.and_then(rustix::process::Pid::from_raw))
    };
    match event {
        Event::Upgrade => ask(&["upgrade", "--json"]).map(drop),
        Event::Kill => {
            let before = pid()?.ok_or_else(|| SetupError::Plan("there is no data plane to kill".to_owned()))?;
            rustix::process::kill_process(before, rustix::process::Signal::KILL)
                .map_err(|error| SetupError::Plan(format!("killing the data plane: {error}")))?;
            let start = Instant::now();
            while pid()?.is_none_or(|pid| pid == before) {
                if start.elapsed() > PATIENCE {
                    return Err(SetupError::Plan("no other data plane was started in time".to_owned()));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        }
    }
}

impl Case {
    /// By how much the gap with the event is longer, round by round.
    fn beyond(&self) -> Samples {
        self.with.iter().zip(self.without.iter()).map(|(with, without)| with - without).collect()
    }
}

impl fmt::Display for Gaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.cases {
            let (without, with, beyond) = (case.without.spread(), case.with.spread(), case.beyond().spread());
            writeln!(
                f,
                "{} disks, {} rounds: longest gap of a disk {:.2} ms (median; {:.2} to {:.2}), without the event {:.2} ms \
                 ({:.2} to {:.2}), beyond that {:.2} ms",
                case.devices,
                case.with.len(),
                with.median,
                with.least,
                with.most,
                without.median,
                without.least,
                without.most,
                beyond.median
            )?;
        }
        Ok(())
    }
}

impl Gaps {
    /// One JSON object a line: each round's values, then their medians and the largest.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        let bench = self.event.name();
        let mut write = |case: &str, metric: &str, value| {
            Figure { bench, subject: "softdpu", case, metric, unit: "ms", value }.write(to)
        };
        for case in &self.cases {
            let disks = format!("{} disks", case.devices);
            let beyond = case.beyond();
            for (metric, samples) in [("gap", &case.with), ("gap-without", &case.without), ("gap-beyond", &beyond)] {
                for (round, value) in samples.iter().enumerate() {
                    write(&format!("{disks}, round {}", round + 1), metric, value)?;
                }
                let spread = samples.spread();
                write(&disks, &format!("{metric}-median"), spread.median)?;
                write(&disks, &format!("{metric}-most"), spread.most)?;
            }
        }
        Ok(())
    }
}
