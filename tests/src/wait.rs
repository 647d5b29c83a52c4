//! Waiting for something to become true, never longer than a deadline.

use std::time::{Duration, Instant};

use crate::Failure;

/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(20);

/// Looks at `condition` until it gives a value, and fails after `deadline` with a sentence that names `what` was awaited.
pub fn wait_until<T>(
    what: &str,
    deadline: Duration,
    mut condition: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        if start.elapsed() >= deadline {
            return Err(Failure::new(format!("waited {:.1} s in vain for {what}", deadline.as_secs_f64())));
        }
        std::thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_comes_true_gives_its_value() {
        let mut calls = 0;
        let value = wait_until("the third look", Duration::from_secs(5), || {
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
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}
