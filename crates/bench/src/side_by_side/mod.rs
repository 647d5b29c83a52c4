//! Subjects side by side: the same client, the same cases, rounds that take turns.
//!
//! Every measurement starts its server afresh and ends it: no other server's polling thread competes for the CPU, and a
//! figure does not depend on what was measured before it. Rounds go A B A B …, so that what changes on the machine in
//! the meantime meets all alike.

mod report;

use std::time::Duration;

use softdpu_frontend::load::{self, Priority};

pub(crate) use report::{Figure, client, rate};
pub use report::{Measurement, Report, Work};

use crate::SetupError;
use crate::calibration::calibrate;
use crate::turns::{Sample, Turn, Turns};

/// Before each measurement.
pub(crate) const WARM_UP: Duration = Duration::from_millis(200);
/// Of the measurement of the client's own time.
pub(crate) const PROFILE: Duration = Duration::from_millis(300);
/// Of the calibration before everything.
const CALIBRATION: Duration = Duration::from_millis(200);

/// How far it is.
#[derive(Clone, Debug)]
pub struct Progress<'a, C> {
    /// Measurements done.
    pub done: usize,
    /// Measurements in all.
    pub of: usize,
    /// The subject that is measured next.
    pub subject: &'a str,
    /// The case that is measured next.
    pub case: C,
}

/// How often is measured, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Measurements of each case and subject.
    pub rounds: usize,
    /// CPU of the client.
    pub client_cpu: usize,
    /// CPU of the server.
    pub server_cpu: usize,
}

impl Terms {
    /// # Errors
    /// [`SetupError::Plan`] where there is nothing to measure, or one CPU for both sides.
    pub(crate) fn check(self, subjects: usize, cases: usize) -> Result<(), SetupError> {
        let wrong = |what: &str| Err(SetupError::Plan(what.to_owned()));
        if subjects == 0 || cases == 0 || self.rounds == 0 {
            return wrong("nothing to measure: there has to be a subject, a case of each kind and a round");
        }
        if self.client_cpu == self.server_cpu {
            return wrong("client and server need a CPU each");
        }
        Ok(())
    }
}

/// Measures every one of `subjects` (their names) in every case, and calls `progress` before each measurement.
///
/// `lacks` returns why a subject cannot be measured in a case: it is left out then, which the report says. `measure`
/// takes the subject's number.
///
/// # Errors
/// The first that `lacks` or `measure` gives, and [`SetupError::Cpu`].
pub(crate) fn run<W: Work>(
    terms: Terms,
    subjects: &[&str],
    cases: &[W::Case],
    mut lacks: impl FnMut(usize, &W::Case) -> Result<Option<String>, SetupError>,
    mut measure: impl FnMut(usize, &W::Case, Turn) -> Result<W::Outcome, SetupError>,
    mut progress: impl FnMut(Progress<'_, W::Case>),
) -> Result<Report<W>, SetupError> {
    let Terms { rounds, client_cpu, server_cpu } = terms;
    let calibration = calibrate(client_cpu, server_cpu, CALIBRATION).map_err(SetupError::Cpu)?;
    // One round more, in which the client measures itself.
    let of = cases.len() * subjects.len() * (rounds + 1);
    let mut done = 0;
    let mut turns = Turns { rounds, client_cpu, server_cpu, disturbed: 0 };
    let (mut measurements, mut left_out) = (Vec::new(), Vec::new());
    for case in cases {
        let mut able = Vec::new();
        for (at, subject) in subjects.iter().enumerate() {
            match lacks(at, case)? {
                Some(why) => left_out.push(((*subject).to_owned(), case.clone(), why)),
                None => able.push(at),
            }
        }
        let mut of_case: Vec<_> = able.iter().map(|at| Measurement::new(subjects[*at], case.clone())).collect();
        let taken = turns.take(able.len(), |turn| {
            let at = able[turn.subject];
            let done = done + turn.round * able.len() + turn.subject;
            progress(Progress { done, of, subject: subjects[at], case: case.clone() });
            measure(at, case, turn)
        })?;
        for round in &taken {
            for (Sample { outcome, conditions }, measurement) in round.iter().zip(&mut of_case) {
                measurement.add(outcome, *conditions);
            }
        }
        done += subjects.len() * (rounds + 1);
        measurements.extend(of_case);
    }
    Ok(Report { calibration, measurements, disturbed: turns.disturbed, left_out })
}

/// Runs `client` on `cpu`, before the programs of its session; `wrong` makes an error of a sentence.
pub(crate) fn on_cpu<T: Send, E: Send>(
    cpu: usize,
    wrong: fn(String) -> E,
    client: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    load::on_cpu(cpu, Priority::Nice, wrong, client)
}
