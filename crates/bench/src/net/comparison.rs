//! Subjects side by side, as in [`crate::side_by_side`].

use std::path::Path;
use std::time::Duration;

use softdpu_frontend::load::frames::{self, FrameLoad, FrameOutcome};
use softdpu_frontend::load::{LoadError, Waiting};
use softdpu_frontend::{Format, Frames, FrontEndError, NetFrontEnd, NetOptions, Station};

use super::counter::Counter;
use super::report::{Case, NetReport, Route};
use super::subject::{NetService, NetSubject};
use super::wire::{FAR, Wire};
use crate::SetupError;
use crate::side_by_side::{self, PROFILE, Progress, Terms, WARM_UP, on_cpu};
use crate::subject::Running;
use crate::turns::Turn;

/// The longest a message waits for its answer.
const ANSWERS: Duration = Duration::from_secs(5);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Servers, the one the others are compared with last.
    pub subjects: Vec<NetSubject>,
    /// Where frames go, one case each.
    pub routes: Vec<Route>,
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
        for &route in &self.routes {
            for &format in &self.formats {
                for &client in &self.clients {
                    cases.extend(self.frames.iter().map(|&frames| Case { route, frames, format, client }));
                }
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

/// Measures all of `plan`, and calls `progress` before each measurement. Where a subject lacks a feature that the
/// frames of a case need, the case is left out for it, which the report says.
///
/// # Errors
/// [`SetupError`] for the first other thing that goes wrong.
pub fn run(plan: &Plan, progress: impl FnMut(Progress<'_, Case>)) -> Result<NetReport, SetupError> {
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
    let wire = match case.route {
        Route::Guest => None,
        Route::Underlay => match subject.lacks_underlay(case.frames) {
            Some(why) => return Ok(Some(why.to_owned())),
            None => match Wire::new() {
                Ok(wire) => Some(wire),
                Err(error) => return Ok(Some(format!("there is no wire to the underlay: {error}"))),
            },
        },
    };
    // What every server of the last years has needs no trial.
    if case.frames != Frames::Tso && case.format == Format::Split {
        return Ok(None);
    }
    let load = load_of(plan, case, false);
    let running = start(plan, subject, case, wire.as_ref())?;
    let connected = match case.route {
        Route::Guest => connect(running.sockets(), &load, case.format).map(drop),
        Route::Underlay => connect_sender(running.socket(), &load, case.format).map(drop),
    };
    match connected {
        Err(error @ FrontEndError::Missing { .. }) => Ok(Some(error.to_string())),
        Err(error) => Err(failed(subject, case)(error.into())),
        Ok(()) => Ok(None),
    }
}

/// Starts a subject, where the wire is if there is one.
fn start(plan: &Plan, subject: &NetSubject, case: &Case, wire: Option<&Wire>) -> Result<Running, SetupError> {
    let service =
        NetService { queue_size: plan.queue_size, cpu: plan.server_cpu, frames: case.frames, route: case.route };
    subject.start(&service, wire)
}

fn measure(plan: &Plan, subject: &NetSubject, case: &Case, turn: Turn) -> Result<FrameOutcome, SetupError> {
    let load = load_of(plan, case, turn.profile);
    let wrong = |error: FrontEndError| failed(subject, case)(error.into());
    let outcome = match case.route {
        Route::Guest => {
            let running = start(plan, subject, case, None)?;
            let (mut a, mut b) = connect(running.sockets(), &load, case.format).map_err(wrong)?;
            on_cpu(plan.client_cpu, LoadError::Load, || frames::run(&mut a, &mut b, &load))
        }
        Route::Underlay => {
            let wire = Wire::new()?;
            let running = start(plan, subject, case, Some(&wire))?;
            let counter = wire.within(|| Counter::open(FAR, case.frames))?;
            let counter = counter.map_err(|why| failed(subject, case)(LoadError::Load(why)))?;
            let mut a = connect_sender(running.socket(), &load, case.format).map_err(wrong)?;
            on_cpu(plan.client_cpu, LoadError::Load, || frames::run_into(&mut a, counter, &load))
        }
    };
    outcome.map_err(failed(subject, case))
}

fn failed(subject: &NetSubject, case: &Case) -> impl Fn(LoadError) -> SetupError {
    let (subject, case) = (subject.name().to_owned(), case.to_string());
    move |source| SetupError::Load { subject: subject.clone(), case: case.clone(), source: Box::new(source) }
}

fn load_of(plan: &Plan, case: &Case, profile: bool) -> FrameLoad {
    FrameLoad {
        frames: case.frames,
        flows: plan.flows,
        from: Station::A,
        to: Station::B,
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
pub fn connect(
    sockets: &[impl AsRef<Path>],
    load: &FrameLoad,
    format: Format,
) -> Result<(NetFrontEnd, NetFrontEnd), FrontEndError> {
    let [a, b] = sockets else {
        return Err(FrontEndError::Options(format!("{} sockets; frames go from one to another", sockets.len())));
    };
    let receiver = port(b.as_ref(), load.frames.receiver_features(), load.receiver_memory(), load, format)?;
    Ok((connect_sender(a.as_ref(), load, format)?, receiver))
}

/// Connects the sending guest of `load`, to a server that may not listen yet.
///
/// # Errors
/// [`FrontEndError`].
pub fn connect_sender(socket: &Path, load: &FrameLoad, format: Format) -> Result<NetFrontEnd, FrontEndError> {
    port(socket, load.frames.sender_features(), load.sender_memory(), load, format)
}

fn port(
    path: &Path,
    required: &[(u64, &'static str)],
    memory: u64,
    load: &FrameLoad,
    format: Format,
) -> Result<NetFrontEnd, FrontEndError> {
    let options = NetOptions {
        queue_size: load.queue_size,
        format,
        required: required.to_vec(),
        memory,
        timeout: ANSWERS,
        status: false,
    };
    NetFrontEnd::connect_when_listening(path, &options)
}
