//! Abuses of a running softdpu, played one after the other beside work that none of them may disturb.

use std::time::{Duration, Instant};

use crate::{Failure, wait_until};

/// The variable whose words choose some abuses by their names.
const CHOICE: &str = "SOFTDPU_ABUSE";

/// Whether an abuse is to be played: `SOFTDPU_ABUSE` chooses those whose names have its words.
pub fn is_chosen(name: &str) -> bool {
    std::env::var(CHOICE).map_or(true, |words| name.contains(&words))
}

/// Which abuses were contained.
#[derive(Default)]
pub struct Tally {
    held: usize,
    failed: Vec<&'static str>,
}

impl Tally {
    /// Plays one and prints how it ended: `play` gives what was seen, and an error where it was not contained.
    pub fn play(&mut self, name: &'static str, play: impl FnOnce() -> Result<String, Failure>) {
        let start = Instant::now();
        let outcome = play();
        let millis = start.elapsed().as_millis();
        match outcome {
            Ok(seen) => {
                self.held += 1;
                eprintln!("ok     {name:50} {millis:5} ms  {seen}");
            }
            Err(error) => {
                self.failed.push(name);
                eprintln!("FAILED {name:50} {millis:5} ms  {error}");
            }
        }
    }

    /// Fails unless all were contained, and at least `least` where all were to be played.
    pub fn verdict(self, least: usize) -> Result<(), Failure> {
        let Tally { held, failed } = self;
        eprintln!("{held} abuses held, {} failed", failed.len());
        if !failed.is_empty() {
            return Err(Failure::new(format!("{} abuses were not contained: {}", failed.len(), failed.join(", "))));
        }
        assert!(held >= least || std::env::var_os(CHOICE).is_some(), "{held} of at least {least} abuses");
        Ok(())
    }
}

/// Waits until `status` says with these words why a queue is broken, and gives what it says; `reason` asks it.
pub fn wait_for_reason(
    words: &str,
    deadline: Duration,
    mut reason: impl FnMut() -> Result<Option<String>, Failure>,
) -> Result<String, Failure> {
    let mut last = None;
    wait_until("status to show the broken queue", deadline, || {
        last = reason()?;
        Ok(last.clone().filter(|found| found.contains(words)))
    })
    .map_err(|error| Failure::new(format!("{error}; expected `{words}`, it shows {last:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_was_not_contained_fails_the_verdict_by_its_name() {
        let mut tally = Tally::default();
        tally.play("a loop", || Ok("it loops".to_owned()));
        tally.play("a lie", || Err(Failure::new("it was believed")));
        let error = tally.verdict(0).unwrap_err().to_string();
        assert!(error.contains("1 abuses") && error.contains("a lie"), "{error}");
    }

    #[test]
    fn the_reason_that_is_shown_instead_is_in_the_error() {
        let reason = || Ok(Some("it jumped".to_owned()));
        let error = wait_for_reason("it loops", Duration::ZERO, reason).unwrap_err().to_string();
        assert!(error.contains("expected `it loops`") && error.contains("it jumped"), "{error}");
        assert_eq!(wait_for_reason("jumped", Duration::ZERO, reason).unwrap(), "it jumped");
    }
}
