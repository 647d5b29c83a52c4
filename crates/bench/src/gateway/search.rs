//! The search for the highest rate without losses: RFC 2544's throughput (§26.1), the no-drop rate of others.
//!
//! ```text
//!  bracket ── doubles or halves the rate, then bisects, with short trials ──▶ a rate
//!  sustain ── lowers the rate until it holds in a long trial ──▶ NoDropRate
//! ```
//!
//! The caller makes the trials; the search learns from each whether frames were lost.

/// Where the search for a rate begins, frames a second.
pub(super) const FIRST: f64 = 20_000.0;
/// The search goes no lower, frames a second.
const LEAST: f64 = 500.0;
/// Steps between a rate without losses and one with.
const STEPS: u32 = 5;
/// What of a rate that did not hold is tried next.
const LESS: f64 = 0.9;
/// How often at the most.
const TRIES: u32 = 8;

/// The highest rate at which no frame was lost for long, frames a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoDropRate {
    /// All frames of a long trial were answered at this rate.
    Held(f64),
    /// Frames were lost in every long trial; the last was at this rate. There is no no-drop rate then.
    NoneHeld {
        /// The lowest rate that was tried.
        lowest: f64,
    },
}

impl NoDropRate {
    /// The rate that held, or else the lowest that was tried.
    pub fn rate(self) -> f64 {
        match self {
            NoDropRate::Held(rate) | NoDropRate::NoneHeld { lowest: rate } => rate,
        }
    }
}

/// What a trial showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// All frames were answered.
    Passed,
    /// Frames were lost.
    Lost,
    /// All frames were answered, but the sender could not keep to the rate: there is nothing more to be found.
    SenderIsSlow,
}

/// A rate at which the frames of a short trial were answered, near the highest such. None: frames are lost at any rate.
///
/// # Errors
/// Those of `trial`.
pub(super) fn bracket<E>(mut trial: impl FnMut(f64) -> Result<Trial, E>) -> Result<Option<f64>, E> {
    let (mut good, mut bad) = (FIRST, f64::INFINITY);
    while trial(good)? == Trial::Lost {
        (good, bad) = (good / 2.0, good);
        if good < LEAST {
            return Ok(None);
        }
    }
    while bad.is_infinite() {
        let rate = good * 2.0;
        if trial(rate)? == Trial::Passed { good = rate } else { bad = rate }
    }
    for _ in 0..STEPS {
        let rate = (good + bad) / 2.0;
        if trial(rate)? == Trial::Passed { good = rate } else { bad = rate }
    }
    Ok(Some(good))
}

/// Lowers a rate, `first` to begin with, until `holds` says that it holds, and gives up after [`TRIES`].
///
/// # Errors
/// Those of `holds`.
pub(super) fn sustain<E>(first: f64, mut holds: impl FnMut(f64) -> Result<bool, E>) -> Result<NoDropRate, E> {
    let mut rate = first;
    for attempt in 1.. {
        if holds(rate)? {
            return Ok(NoDropRate::Held(rate));
        }
        if attempt == TRIES {
            break;
        }
        rate *= LESS;
    }
    Ok(NoDropRate::NoneHeld { lowest: rate })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Bracket over a server that loses frames above `limit`, and a sender that is slow above `own`.
    fn found(limit: f64, own: f64) -> Option<f64> {
        let trial = |rate| match rate {
            rate if rate > limit => Trial::Lost,
            rate if rate > own => Trial::SenderIsSlow,
            _ => Trial::Passed,
        };
        bracket(|rate| Ok::<_, Infallible>(trial(rate))).unwrap()
    }

    #[test]
    fn the_bracket_closes_in_on_the_highest_rate_without_losses() {
        for limit in [700.0, 20_000.0, 33_000.0, 1.7e6] {
            let rate = found(limit, f64::INFINITY).unwrap();
            // The result is the lower end of one of 2^STEPS parts of a doubling.
            assert!(rate <= limit && rate >= limit * (1.0 - 1.0 / f64::from(1 << STEPS)), "{limit}: {rate}");
        }
        assert_eq!(found(400.0, f64::INFINITY), None, "every rate loses frames");
    }

    #[test]
    fn a_sender_that_is_slow_ends_the_search_at_what_it_can_send() {
        let rate = found(f64::INFINITY, 300_000.0).unwrap();
        assert!((280_000.0..=300_000.0).contains(&rate), "{rate}");
    }

    #[test]
    fn a_rate_is_lowered_until_it_holds() {
        let mut tried = Vec::new();
        let held = sustain(1_000.0, |rate| {
            tried.push(rate);
            Ok::<_, Infallible>(rate < 750.0)
        });
        assert_eq!(tried, [1_000.0, 900.0, 810.0, 729.0]);
        assert_eq!(held, Ok(NoDropRate::Held(729.0)));
    }

    #[test]
    fn where_no_rate_holds_the_lowest_that_was_tried_is_told_as_that() {
        let mut tried = Vec::new();
        let held = sustain(1_000.0, |rate| {
            tried.push(rate);
            Ok::<_, Infallible>(false)
        });
        assert_eq!(tried.len(), TRIES as usize);
        let lowest = *tried.last().unwrap();
        assert_eq!(held, Ok(NoDropRate::NoneHeld { lowest }));
        assert_eq!(held.unwrap().rate(), lowest);
    }
}
