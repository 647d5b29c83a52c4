//! Rounds that take turns: A B A B …, so that what changes on the machine in the meantime meets all alike.

use std::time::Duration;

use crate::SetupError;
use crate::calibration::calibrate;

/// Of the calibration before and after each measurement.
const HOPS: Duration = Duration::from_millis(10);
/// How much the calibrations of a round may differ.
const STEADY: f64 = 1.5;
/// How often a round is measured at the most, because the machine changed in the middle of it.
const ATTEMPTS: usize = 4;

/// One measurement that is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Number of the subject.
    pub subject: usize,
    /// Number of the round.
    pub round: usize,
    /// Whether the client measures itself: the round after the last.
    pub profile: bool,
}

/// What a measurement gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample<O> {
    pub outcome: O,
    pub conditions: Conditions,
}

/// What the machine was like around a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Conditions {
    /// Two bare cross-core hops, nanoseconds.
    pub hops: f64,
    /// Whether they stayed as they were for the whole of the round.
    pub is_steady: bool,
}

/// How turns are taken.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    /// Rounds, beside the one in which the client measures itself.
    pub rounds: usize,
    /// CPU of the client.
    pub client_cpu: usize,
    /// CPU of the servers.
    pub server_cpu: usize,
    /// Rounds in which the distance of the two CPUs changed.
    pub disturbed: usize,
}

impl Turns {
    /// Calls `measure` for each of `subjects` in each round, the rounds in which the machine changed again; gives the
    /// rounds, each with an outcome a subject.
    ///
    /// # Errors
    /// The first of `measure`'s, and [`SetupError::Cpu`].
    pub(crate) fn take<O>(
        &mut self,
        subjects: usize,
        mut measure: impl FnMut(Turn) -> Result<O, SetupError>,
    ) -> Result<Vec<Vec<Sample<O>>>, SetupError> {
        (0..=self.rounds).map(|round| self.round(round, subjects, &mut measure)).collect()
    }

    fn round<O>(
        &mut self,
        round: usize,
        subjects: usize,
        measure: &mut impl FnMut(Turn) -> Result<O, SetupError>,
    ) -> Result<Vec<Sample<O>>, SetupError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut hops = vec![self.two_hops()?];
            let mut outcomes = Vec::with_capacity(subjects);
            for subject in 0..subjects {
                outcomes.push(measure(Turn { subject, round, profile: round == self.rounds })?);
                hops.push(self.two_hops()?);
            }
            let is_steady = steady(&hops);
            self.disturbed += usize::from(!is_steady);
            if is_steady || attempts == ATTEMPTS {
                let conditions = hops.windows(2).map(|ends| Conditions { hops: (ends[0] + ends[1]) / 2.0, is_steady });
                return Ok(outcomes
                    .into_iter()
                    .zip(conditions)
                    .map(|(outcome, conditions)| Sample { outcome, conditions })
                    .collect());
            }
        }
    }

    fn two_hops(&self) -> Result<f64, SetupError> {
        let calibration = calibrate(self.client_cpu, self.server_cpu, HOPS).map_err(SetupError::Cpu)?;
        Ok(calibration.two_hops)
    }
}

/// Whether nothing moved under a round: virtual CPUs wander, and two that no longer share a cache are several times as
/// far from each other.
fn steady(hops: &[f64]) -> bool {
    let (least, most) = hops.iter().fold((f64::MAX, 0.0f64), |(least, most), hop| (least.min(*hop), most.max(*hop)));
    most <= least * STEADY
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
