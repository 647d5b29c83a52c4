//! Subjects side by side, as in [`crate::side_by_side`].

use std::path::Path;
use std::time::Duration;

use softdpu_ring::Format;

use super::frames::Frames;
use super::load::{self, Load, LoadError, Outcome};
use super::port::{Options, Port};
use super::report::{Case, Report};
use super::subject::{A, B, NetService, NetSubject};
use crate::SetupError;
use crate::front_end::FrontEndError;
use crate::load::Waiting;
use crate::side_by_side::{self, PROFILE, Progress, Terms, WARM_UP, on_cpu, patiently};
use crate::turns::Turn;

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
        self.terms().check(self.subjects.len(), self.cases().len())?;
        if !(64..=1024).contains(&self.queue_size) || !self.queue_size.is_power_of_two() {
            return wrong("queue sizes are powers of two from 64 to 1024, as QEMU's");
        }
        if self.flows == 0 || self.flows > self.queue_size {
            return wrong("flows are from 1 to the queue size: each frame of a queue belongs to one");
        }
        Ok(())
    }

    fn terms(&self) -> Terms {
        Terms { rounds: self.rounds, client_cpu: self.client_cpu, server_cpu: self.server_cpu }
    }
}

/// Measures all of `plan`, and tells `progress` before each measurement. Where a subject lacks a feature that the frames of
/// a case need, the case is left out for it, which the report says.
///
/// # Errors
/// [`SetupError`] for the first other thing that goes wrong.
pub fn run(plan: &Plan, progress: impl FnMut(Progress<'_, Case>)) -> Result<Report, SetupError> {
    plan.check()?;
    let names: Vec<_> = plan.subjects.iter().map(NetSubject::name).collect();
    side_by_side::run(
        plan.terms(),
        &names,
        &plan.cases(),
        |at, case| lacks(plan, &plan.subjects[at], case),
        |at, case, turn| measure(plan, &plan.subjects[at], case, turn),
        progress,
    )
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
    on_cpu(plan.client_cpu, LoadError::Load, || load::run(&mut a, &mut b, &load)).map_err(failed(subject, case))
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
