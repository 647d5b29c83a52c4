//! Jobs that are measured together, from one thread: each keeps its depth for the same time.

use std::time::Duration;

use super::generator::{Generator, GeneratorOptions, Job, Waiting};
use super::thread::{Priority, on_cpu};
use super::{LoadError, Outcome};

/// Completions of one job that are taken before the next job is looked at: the client's own fairness.
const BATCH: usize = 8;
/// The same where a job has a single request in flight, whose answer is not to wait for the client's work for others.
const SHORT_BATCH: usize = 2;

/// Where jobs run, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// CPU of the client.
    pub cpu: usize,
    /// Which programs the client goes before.
    pub priority: Priority,
    /// Completions of one job before the next one is looked at; none: as [`fair_batch`] has it.
    pub batch: Option<usize>,
    /// The time before the measured one.
    pub warm_up: Duration,
    /// The measured time.
    pub duration: Duration,
}

/// The number of completions of one of `jobs` that are taken before the next one is looked at.
pub fn fair_batch<J: Job + ?Sized>(jobs: &[&mut J]) -> usize {
    if jobs.iter().any(|job| job.depth() == 1) { SHORT_BATCH } else { BATCH }
}

/// Runs `jobs` at once. What each of them got.
///
/// # Errors
/// [`LoadError`].
pub fn run<'a, J: Job + ?Sized + 'a>(
    jobs: impl IntoIterator<Item = &'a mut J>,
    options: &RunOptions,
) -> Result<Vec<Outcome>, LoadError> {
    let mut jobs: Vec<&mut J> = jobs.into_iter().collect();
    let batch = options.batch.unwrap_or_else(|| fair_batch(&jobs));
    // Before anything is in flight: many of them take a while.
    let mut outcomes = vec![Outcome::default(); jobs.len()];
    on_cpu(options.cpu, options.priority, LoadError::Load, move || {
        let mut generator =
            Generator::new(GeneratorOptions { waiting: Waiting::Polling, batch, pace: None, profile: false });
        generator.start(&mut jobs)?;
        generator.warm_up(&mut jobs, options.warm_up)?;
        generator.measure(&mut jobs, options.duration, &mut outcomes)?;
        generator.drain(&mut jobs)?;
        Ok(outcomes)
    })
}
