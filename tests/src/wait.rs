//! Waiting for something to become true, never longer than a deadline.

use std::time::{Duration, Instant};

use crate::Failure;

/// Between two checks of a condition.
const INTERVAL: Duration = Duration::from_millis(20);

/// Checks `condition` until it gives a value, and fails after `deadline` with a sentence that names `what` was
/// awaited.
pub fn wait_until<T>(
    what: &str,
    deadline: Duration,
    mut condition: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let start = Instant::now();
    loop {
        // A thread that was off the CPU until after the deadline checks once more.
        let last = start.elapsed() >= deadline;
        if let Some(value) = condition()? {
            return Ok(value);
        }
        if last {
            return Err(Failure::new(format!("waited {:.1} s in vain for {what}", deadline.as_secs_f64())));
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Waits until `value` has been the same for as long as `quiet`, and gives it: what was under way when something was
/// told to end has arrived. A value that goes on changing is an error after `deadline`.
pub fn wait_until_still<T: PartialEq>(
    what: &str,
    quiet: Duration,
    deadline: Duration,
    mut value: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (mut last, mut since) = (value()?, Instant::now());
    wait_until(what, deadline, || {
        let now = value()?;
        if now != last {
            (last, since) = (now, Instant::now());
            return Ok(None);
        }
        Ok((since.elapsed() >= quiet).then_some(now))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_comes_true_gives_its_value() {
        let mut calls = 0;
        let value = wait_until("the third check", Duration::from_secs(20), || {
            calls += 1;
            Ok((calls == 3).then_some(calls))
        });
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn the_error_names_what_was_awaited() {
        let error = wait_until::<()>("a blue moon", Duration::from_millis(30), || Ok(None)).unwrap_err();
        assert!(error.to_string().contains("a blue moon"), "{error}");
    }

    #[test]
    fn a_condition_that_fails_ends_the_wait_at_once() {
        let start = Instant::now();
        let error = wait_until::<()>("anything", Duration::from_secs(60), || Err(Failure::new("it died"))).unwrap_err();
        assert_eq!(error.to_string(), "it died");
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_value_is_still_when_it_was_the_same_for_a_while() {
        let mut checks = 0;
        let quiet = Duration::from_millis(50);
        let still = wait_until_still("stillness", quiet, Duration::from_secs(20), || {
            checks += 1;
            Ok(checks.min(4))
        });
        assert_eq!(still.unwrap(), 4);
        let mut checks = 0;
        let never = wait_until_still("stillness", quiet, Duration::from_millis(100), || {
            checks += 1;
            Ok(checks)
        });
        assert!(never.unwrap_err().to_string().contains("stillness"));
    }
}
