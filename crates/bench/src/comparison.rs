//! Subjects side by side: the same client, the same cases, rounds that take turns.
//!
//! Every measurement starts its server afresh and ends it: no other server's polling thread competes for the CPU, and a
//! figure does not depend on what was measured before it. Rounds go A B A B …, so that what changes on the machine in the
//! meantime meets all alike.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use softdpu_ring::Format;

use crate::SetupError;
use crate::calibration::{Calibration, calibrate};
use crate::front_end::{FrontEnd, FrontEndError, Options, Transfer};
use crate::load::{self, Load, LoadError, Outcome, Pattern, Waiting};
use crate::report::{Case, Measurement, Report};
use crate::scratch::ScratchFile;
use crate::subject::{Service, Subject, Volume};

/// Bytes of a null volume: nothing is stored.
const NULL_SIZE: u64 = 16 << 30;
/// Bytes of a memory or file volume: more than any processor's cache, little enough for any page cache.
const STORED_SIZE: u64 = 256 << 20;
/// Before each measurement.
const WARM_UP: Duration = Duration::from_millis(200);
/// Of the measurement of the client's own time.
const PROFILE: Duration = Duration::from_millis(300);
/// Of the calibration before and after each measurement.
const HOPS: Duration = Duration::from_millis(10);
/// How much the calibrations of a round may differ.
const STEADY: f64 = 1.5;
/// How often a round is measured at the most, because the machine changed in the middle of it.
const ATTEMPTS: usize = 4;
/// Between a server's socket and its first accept.
const ACCEPTS: Duration = Duration::from_secs(5);

/// Which volume to measure with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VolumeKind {
    /// Nothing behind it.
    Null,
    /// The server's memory.
    Memory,
    /// A file in the page cache.
    File,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Servers, the one the others are compared with last.
    pub subjects: Vec<Subject>,
    /// Volume of those that are started here.
    pub volume: VolumeKind,
    /// Access pattern.
    pub pattern: Pattern,
    /// Bytes of a request.
    pub block_size: u32,
    /// Queues.
    pub queues: u16,
    /// Ring layout.
    pub format: Format,
    /// Requests in flight on each queue, one case each.
    pub depths: Vec<usize>,
    /// Clients, one case each.
    pub clients: Vec<Waiting>,
    /// Measurements of each case and subject.
    pub rounds: usize,
    /// Of one measurement.
    pub duration: Duration,
    /// CPU of the client.
    pub client_cpu: usize,
    /// CPU of the server.
    pub server_cpu: usize,
    /// Folder for the file of a file volume.
    pub folder: std::path::PathBuf,
}

/// How far it is.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// Measurements done.
    pub done: usize,
    /// Measurements in all.
    pub of: usize,
    /// Who is next.
    pub subject: &'a str,
    /// What is next.
    pub case: Case,
}

impl Plan {
    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &client in &self.clients {
            for &depth in &self.depths {
                cases.push(Case {
                    volume: self.volume,
                    pattern: self.pattern,
                    block_size: self.block_size,
                    queues: self.queues,
                    format: self.format,
                    client,
                    depth,
                });
            }
        }
        cases
    }

    fn options(&self) -> Options {
        let deepest = self.depths.iter().copied().max().unwrap_or(1).clamp(1, 8192);
        // Three descriptors a request; a power of two suits both formats.
        let queue_size = (deepest * 3).next_power_of_two().max(256) as u16;
        Options {
            queues: self.queues,
            queue_size,
            format: self.format,
            max_transfer: self.block_size,
            ..Options::default()
        }
    }

    fn check(&self) -> Result<(), SetupError> {
        let wrong = |what: &str| Err(SetupError::Plan(what.to_owned()));
        if self.subjects.is_empty() || self.depths.is_empty() || self.clients.is_empty() || self.rounds == 0 {
            return wrong("nothing to measure: there has to be a subject, a depth, a client and a round");
        }
        // 1,024 descriptors are what every server takes.
        if self.depths.iter().any(|depth| !(1..=341).contains(depth)) {
            return wrong("depths are from 1 to 341: three descriptors a request, 1,024 in a queue");
        }
        if self.client_cpu == self.server_cpu {
            return wrong("client and server need a CPU each");
        }
        Ok(())
    }
}

/// Measures all of `plan`, and tells `progress` before each measurement.
///
/// # Errors
/// [`SetupError`] for the first thing that goes wrong.
pub fn run(plan: &Plan, mut progress: impl FnMut(Progress<'_>)) -> Result<Report, SetupError> {
    plan.check()?;
    let calibration = calibration(plan)?;
    let file = match plan.volume {
        VolumeKind::File => Some(filled_file(&plan.folder)?),
        _ => None,
    };
    let volume = match (&plan.volume, &file) {
        (VolumeKind::Null, _) => Volume::Null,
        (VolumeKind::Memory, _) => Volume::Memory,
        (VolumeKind::File, Some(file)) => Volume::File(file.path().to_owned()),
        (VolumeKind::File, None) => return Err(SetupError::Folder("no file was made".to_owned())),
    };
    let options = plan.options();
    let service = Service {
        size: if volume == Volume::Null { NULL_SIZE } else { STORED_SIZE },
        volume,
        queues: plan.queues,
        queue_size: options.queue_size,
        cpu: plan.server_cpu,
        devices: 1,
    };
    let subjects: Vec<_> = plan.subjects.iter().filter(|subject| subject.serves(&service.volume)).collect();
    let cases = plan.cases();
    // One round more, in which the client measures itself.
    let of = cases.len() * subjects.len() * (plan.rounds + 1);
    let mut done = 0;
    let mut disturbed = 0;
    let mut measurements = Vec::new();
    for case in &cases {
        let mut here: Vec<_> = subjects.iter().map(|subject| Measurement::new(subject.name(), case.clone())).collect();
        for round in 0..=plan.rounds {
            let mut attempts = 0;
            let outcomes = loop {
                attempts += 1;
                let mut hops = vec![two_hops(plan)?];
                let mut outcomes = Vec::with_capacity(subjects.len());
                for (at, subject) in subjects.iter().enumerate() {
                    progress(Progress { done: done + at, of, subject: subject.name(), case: case.clone() });
                    let profile = round == plan.rounds;
                    let outcome = measure(plan, subject, &service, &options, case, round as u64, profile)?;
                    hops.push(two_hops(plan)?);
                    outcomes.push((outcome, (hops[at] + hops[at + 1]) / 2.0));
                }
                if steady(&hops) {
                    break outcomes;
                }
                disturbed += 1;
                if attempts == ATTEMPTS {
                    break outcomes;
                }
            };
            for ((outcome, hops), measurement) in outcomes.iter().zip(&mut here) {
                measurement.add(outcome, *hops);
            }
            done += subjects.len();
        }
        measurements.extend(here);
    }
    Ok(Report { calibration, measurements, disturbed })
}

/// Whether nothing moved under a round: virtual CPUs wander, and two that no longer share a cache are several times as far
/// from each other.
fn steady(hops: &[f64]) -> bool {
    let (least, most) = hops.iter().fold((f64::MAX, 0.0f64), |(least, most), hop| (least.min(*hop), most.max(*hop)));
    most <= least * STEADY
}

fn two_hops(plan: &Plan) -> Result<f64, SetupError> {
    let calibration = calibrate(plan.client_cpu, plan.server_cpu, HOPS).map_err(SetupError::Cpu)?;
    Ok(calibration.two_hops)
}

/// The machine alone.
fn calibration(plan: &Plan) -> Result<Calibration, SetupError> {
    calibrate(plan.client_cpu, plan.server_cpu, Duration::from_millis(200)).map_err(SetupError::Cpu)
}

fn measure(
    plan: &Plan,
    subject: &Subject,
    service: &Service,
    options: &Options,
    case: &Case,
    seed: u64,
    profile: bool,
) -> Result<Outcome, SetupError> {
    let failed = |source: LoadError| SetupError::Load {
        subject: subject.name().to_owned(),
        case: case.to_string(),
        source: Box::new(source),
    };
    let running = subject.start(service)?;
    let mut front_end = connect(running.socket(), options).map_err(|error| failed(error.into()))?;
    let load = Load {
        pattern: plan.pattern,
        block_size: plan.block_size,
        depth: case.depth,
        waiting: case.client,
        sectors: front_end.capacity(),
        warm_up: WARM_UP,
        duration: if profile { PROFILE } else { plan.duration },
        // Any number that differs from round to round.
        seed: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        profile,
    };
    // A thread of its own carries the pinning.
    let outcome = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            softdpu_sys::affinity::pin_to(plan.client_cpu)
                .map_err(|error| LoadError::Load(format!("cannot run on CPU {}: {error}", plan.client_cpu)))?;
            // Where it is not allowed the figures are only noisier.
            let _ = softdpu_sys::affinity::highest_nice();
            load::run(front_end.queues_mut(), &load)
        });
        client.join().unwrap_or_else(|_| Err(LoadError::Load("the client panicked".to_owned())))
    });
    outcome.map_err(failed)
}

/// Connects to a server that may have bound its socket and not listened yet.
pub fn connect(path: &Path, options: &Options) -> Result<FrontEnd, FrontEndError> {
    let deadline = Instant::now() + ACCEPTS;
    loop {
        match FrontEnd::connect(path, options) {
            Err(FrontEndError::Connect { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            result => return result,
        }
    }
}

/// A file of [`STORED_SIZE`] bytes without holes, in the page cache because it was just written.
fn filled_file(folder: &Path) -> Result<ScratchFile, SetupError> {
    const CHUNK: usize = 1 << 20;
    let failed = |error: std::io::Error| SetupError::Folder(format!("in {}: {error}", folder.display()));
    let file = ScratchFile::new_in(folder, ".raw").map_err(failed)?;
    let chunk: Vec<u8> = (0..CHUNK).map(|at| (at / 512 % 255) as u8 + 1).collect();
    for at in 0..STORED_SIZE / CHUNK as u64 {
        file.as_file().write_all_at(&chunk, at * CHUNK as u64).map_err(failed)?;
    }
    // Written back now rather than in the middle of a measurement.
    file.as_file().sync_all().map_err(failed)?;
    Ok(file)
}

impl Pattern {
    /// As fio calls it.
    pub fn name(self) -> &'static str {
        match (self.transfer, self.random) {
            (Transfer::Read, true) => "randread",
            (Transfer::Read, false) => "read",
            (Transfer::Write, true) => "randwrite",
            (Transfer::Write, false) => "write",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_in_which_the_cpus_moved_apart_is_not_steady() {
        assert!(steady(&[110.0, 120.0, 105.0]));
        assert!(!steady(&[110.0, 585.0, 110.0]));
    }
}
