//! Subjects side by side, as in [`crate::comparison`]: every measurement starts its server afresh, rounds take turns.

use std::path::Path;
use std::time::Duration;

use softdpu_ring::Format;

use super::frames::Frames;
use super::load::{self, Load, LoadError, Outcome};
use super::port::{Options, Port};
use super::report::{Case, Measurement, Report};
use super::subject::{A, B, NetService, NetSubject};
use crate::SetupError;
use crate::calibration::calibrate;
use crate::comparison::{CALIBRATION, PROFILE, WARM_UP, patiently};
use crate::front_end::FrontEndError;
use crate::load::Waiting;
use crate::turns::{Turn, Turns};

/// The longest a message waits for its answer.
const ANSWERS: Duration = Duration::from_secs(5);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Servers, the one the others are compared with last.
    pub subjects: Vec<NetSubject>,
    /// Which frames, one case each.
    pub frames: Vec<Frames>,
    /// Flows they belong to.
    pub flows: u16,
    /// Ring layouts, one case each.
    pub formats: Vec<Format>,
    /// Descriptors of a queue.
    pub queue_size: u16,
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
        for &format in &self.formats {
            for &client in &self.clients {
                cases.extend(self.frames.iter().map(|&frames| Case { frames, format, client }));
            }
        }
        cases
    }

    fn check(&self) -> Result<(), SetupError> {
        let wrong = |what: &str| Err(SetupError::Plan(what.to_owned()));
        if self.subjects.is_empty() || self.cases().is_empty() || self.rounds == 0 {
            return wrong("nothing to measure: there has to be a subject, frames, a client, a format and a round");
        }
        if !(64..=1024).contains(&self.queue_size) || !self.queue_size.is_power_of_two() {
            return wrong("queue sizes are powers of two from 64 to 1024, as QEMU's");
        }
        if self.flows == 0 || self.flows > self.queue_size {
            return wrong("flows are from 1 to the queue size: each frame of a queue belongs to one");
        }
        if self.client_cpu == self.server_cpu {
            return wrong("client and server need a CPU each");
        }
        Ok(())
    }
}

/// Measures all of `plan`, and tells `progress` before each measurement. Where a subject lacks a feature that the frames of
/// a case need, the case is left out for it, which the report says.
///
/// # Errors
/// [`SetupError`] for the first other thing that goes wrong.
pub fn run(plan: &Plan, mut progress: impl FnMut(Progress<'_>)) -> Result<Report, SetupError> {
    plan.check()?;
    let calibration = calibrate(plan.client_cpu, plan.server_cpu, CALIBRATION).map_err(SetupError::Cpu)?;
    let cases = plan.cases();
    // One round more, in which the client measures itself.
    let of = cases.len() * plan.subjects.len() * (plan.rounds + 1);
    let mut done = 0;
    let mut turns =
        Turns { rounds: plan.rounds, client_cpu: plan.client_cpu, server_cpu: plan.server_cpu, disturbed: 0 };
    let (mut measurements, mut left_out) = (Vec::new(), Vec::new());
    for case in &cases {
        let mut able = Vec::new();
        for subject in &plan.subjects {
            match lacks(plan, subject, case)? {
                Some(why) => left_out.push((subject.name().to_owned(), case.clone(), why)),
                None => able.push(subject),
            }
        }
        let mut here: Vec<_> = able.iter().map(|subject| Measurement::new(subject.name(), case.clone())).collect();
        let rounds = turns.take(able.len(), |turn| {
            let subject = able[turn.subject];
            let done = done + turn.round * able.len() + turn.subject;
            progress(Progress { done, of, subject: subject.name(), case: case.clone() });
            measure(plan, subject, case, turn)
        })?;
        for round in &rounds {
            for ((outcome, hops), measurement) in round.iter().zip(&mut here) {
                measurement.add(outcome, *hops);
            }
        }
        done += plan.subjects.len() * (plan.rounds + 1);
        measurements.extend(here);
    }
    Ok(Report { calibration, measurements, disturbed: turns.disturbed, left_out })
}

/// What a subject lacks for a case.
fn lacks(plan: &Plan, subject: &NetSubject, case: &Case) -> Result<Option<String>, SetupError> {
    // What every server of the last years has needs no trial.
    if case.frames != Frames::Tso && case.format == Format::Split {
        return Ok(None);
    }
    let load = load_of(plan, case, false);
    let running = subject.start(&service(plan, case))?;
    match connect(running.sockets(), &load, case.format) {
        Err(error @ FrontEndError::Missing { .. }) => Ok(Some(error.to_string())),
        Err(error) => Err(failed(subject, case)(error.into())),
        Ok(_) => Ok(None),
    }
}

fn measure(plan: &Plan, subject: &NetSubject, case: &Case, turn: Turn) -> Result<Outcome, SetupError> {
    let running = subject.start(&service(plan, case))?;
    let load = load_of(plan, case, turn.profile);
    let (mut a, mut b) =
        connect(running.sockets(), &load, case.format).map_err(|error| failed(subject, case)(error.into()))?;
    // A thread of its own carries the pinning.
    let outcome = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            softdpu_sys::affinity::pin_to(plan.client_cpu)
                .map_err(|error| LoadError::Load(format!("cannot run on CPU {}: {error}", plan.client_cpu)))?;
            // Where it is not allowed the figures are only noisier.
            let _ = softdpu_sys::affinity::highest_nice();
            load::run(&mut a, &mut b, &load)
        });
        client.join().unwrap_or_else(|_| Err(LoadError::Load("the client panicked".to_owned())))
    });
    outcome.map_err(failed(subject, case))
}

fn failed(subject: &NetSubject, case: &Case) -> impl Fn(LoadError) -> SetupError {
    let (subject, case) = (subject.name().to_owned(), case.to_string());
    move |source| SetupError::Load { subject: subject.clone(), case: case.clone(), source: Box::new(source) }
}

fn service(plan: &Plan, case: &Case) -> NetService {
    NetService { queue_size: plan.queue_size, cpu: plan.server_cpu, frames: case.frames }
}

fn load_of(plan: &Plan, case: &Case, profile: bool) -> Load {
    Load {
        frames: case.frames,
        flows: plan.flows,
        from: A,
        to: B,
        queue_size: plan.queue_size,
        waiting: case.client,
        warm_up: WARM_UP,
        duration: if profile { PROFILE } else { plan.duration },
        profile,
    }
}

/// Connects the sending and the receiving guest of `load`, to a server that may not listen yet.
///
/// # Errors
/// [`FrontEndError`].
pub fn connect(sockets: &[impl AsRef<Path>], load: &Load, format: Format) -> Result<(Port, Port), FrontEndError> {
    let [a, b] = sockets else {
        return Err(FrontEndError::Options(format!("{} sockets; frames go from one to another", sockets.len())));
    };
    let port = |path: &Path, required: &[(u64, &'static str)], memory| {
        let queue_size = load.queue_size;
        let options = Options { queue_size, format, required: required.to_vec(), memory, timeout: ANSWERS };
        patiently(|| Port::connect(path, &options))
    };
    let receiver = port(b.as_ref(), load.frames.receiver_features(), load.receiver_memory())?;
    let sender = port(a.as_ref(), load.frames.sender_features(), load.sender_memory())?;
    Ok((sender, receiver))
}
