//! What an interrupt costs: from the data plane's one write to the driver that wakes up, and how many are saved.
//!
//! ```text
//!  bare     a thread writes an eventfd ──▶ another one, asleep on it, wakes         only the kernel's code
//!  served   a request of a driver that sleeps, less one of a driver that polls     the same through a server
//!  load     interrupts per request, of a driver that sleeps, at growing depths     what EVENT_IDX saves
//! ```
//!
//! A guest adds what its VMM does with the eventfd: nothing in user space where that is bound to an interrupt by KVM.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Release};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags};
use softdpu_frontend::load::{LoadError, Waiting};
use softdpu_frontend::sleep_until;
use softdpu_plot::Table;
use softdpu_sys::clock;
use softdpu_sys::wake::Doorbell;

use crate::SetupError;
use crate::comparison::{self, Plan};
use crate::report::BlockMeasurement;
use crate::side_by_side::{Figure, Progress, on_cpu};

/// Longest wake-up told apart, nanoseconds.
const LONGEST: u64 = 1_000_000_000;
/// Between two signals, so that the other thread has gone to sleep: longer than a kernel takes to put it there.
const PAUSE: u64 = 50_000;
/// The longest one waits for the other.
const STALL: Duration = Duration::from_secs(5);

/// What was found.
#[derive(Clone, Debug)]
pub struct Figures {
    /// From before the write to the sleeper's return from poll(2), nanoseconds.
    pub wake_up: Histogram<u64>,
    /// What the write takes its writer where it wakes a thread, nanoseconds.
    pub signal: f64,
    /// The same where no thread sleeps.
    pub signal_unheard: f64,
    /// A server's, by depth: with a driver that polls, then with one that sleeps.
    pub served: Vec<BlockMeasurement>,
}

/// Measures signals from one CPU of `plan` to the other for its duration, and then what it plans.
///
/// # Errors
/// [`SetupError`].
pub fn measure(plan: &Plan, progress: impl FnMut(Progress<'_, crate::report::Case>)) -> Result<Figures, SetupError> {
    let wrong = |error: LoadError| SetupError::Load {
        subject: "machine".to_owned(),
        case: "eventfd".to_owned(),
        source: Box::new(error),
    };
    let (wake_up, signal) = signals(plan.server_cpu, plan.client_cpu, plan.duration).map_err(wrong)?;
    let signal_unheard = on_cpu(plan.server_cpu, LoadError::Load, unheard).map_err(wrong)?;
    let served = comparison::run(plan, progress)?.measurements;
    Ok(Figures { wake_up, signal, signal_unheard, served })
}

fn bell() -> Result<Doorbell, LoadError> {
    Doorbell::new().map_err(|error| LoadError::Load(format!("an event counter: {error}")))
}

/// Signals from a thread on CPU `from` to one that sleeps on CPU `to`: how long each took to wake it, and the mean of
/// what they took the writer.
fn signals(from: usize, to: usize, duration: Duration) -> Result<(Histogram<u64>, f64), LoadError> {
    let bell = bell()?;
    let (sent_at, heard, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            on_cpu(to, LoadError::Load, || {
                let mut latency =
                    Histogram::new_with_bounds(1, LONGEST, 3).map_err(|error| LoadError::Load(error.to_string()))?;
                while !over.load(Acquire) {
                    let fd = bell.as_fd();
                    if sleep_until(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Instant::now() + STALL).is_err()
                    {
                        return Err(LoadError::Load("no signal came".to_owned()));
                    }
                    let now = clock::now();
                    bell.drain();
                    if !over.load(Acquire) {
                        latency.saturating_record(now.saturating_sub(sent_at.load(Acquire)));
                        heard.fetch_add(1, Release);
                    }
                }
                Ok(latency)
            })
        });
        let writer = on_cpu(from, LoadError::Load, || {
            let (end, mut count, mut cost) = (clock::now() + duration.as_nanos() as u64, 0, 0);
            while clock::now() < end {
                let asleep = clock::now() + PAUSE;
                while clock::now() < asleep {
                    std::hint::spin_loop();
                }
                let start = clock::now();
                sent_at.store(start, Release);
                bell.ring();
                cost += clock::now() - start;
                count += 1;
                while heard.load(Acquire) < count {
                    if clock::now() - start > STALL.as_nanos() as u64 {
                        return Err(LoadError::Load("a signal was not heard".to_owned()));
                    }
                    std::hint::spin_loop();
                }
            }
            Ok(cost as f64 / count.max(1) as f64)
        });
        over.store(true, Release);
        bell.ring();
        let latency = sleeper.join().unwrap_or_else(|_| Err(LoadError::Load("the sleeper panicked".to_owned())))?;
        Ok((latency, writer?))
    })
}

/// What a signal takes its writer when no thread sleeps.
fn unheard() -> Result<f64, LoadError> {
    const SIGNALS: u32 = 100_000;
    let bell = bell()?;
    let start = clock::now();
    for _ in 0..SIGNALS {
        bell.ring();
    }
    Ok((clock::now() - start) as f64 / f64::from(SIGNALS))
}

impl Figures {
    /// By case of a driver that sleeps: that, and by how many nanoseconds its median latency is above that of one which
    /// polls.
    fn costs(&self) -> impl Iterator<Item = (&BlockMeasurement, f64)> {
        let median = |measurement: &BlockMeasurement| measurement.work.latency_at(0.5) as f64;
        let asleep = self.served.iter().filter(|measurement| measurement.case.client == Waiting::Blocking);
        asleep.filter_map(move |measurement| {
            let like_it = |other: &&BlockMeasurement| {
                other.subject == measurement.subject
                    && other.case.depth == measurement.case.depth
                    && other.case.client == Waiting::Polling
            };
            Some((measurement, median(measurement) - median(self.served.iter().find(like_it)?)))
        })
    }

    /// One JSON object a line.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        let mut line = |subject: &str, case: &str, metric, unit, value| {
            Figure { bench: "interrupt", subject, case, metric, unit, value }.write(to)
        };
        for (quantile, metric) in [(0.5, "wake-up-p50"), (0.99, "wake-up-p99")] {
            line("machine", "eventfd", metric, "ns", self.wake_up.value_at_quantile(quantile) as f64)?;
        }
        line("machine", "eventfd", "signal-time", "ns", self.signal)?;
        line("machine", "eventfd without a sleeper", "signal-time", "ns", self.signal_unheard)?;
        for (measurement, cost) in self.costs() {
            let (subject, case) = (&measurement.subject, measurement.case.to_string());
            line(subject, &case, "latency-above-polling", "ns", cost)?;
            line(subject, &case, "interrupts-per-request", "1", measurement.work.interrupts_per_request())?;
        }
        Ok(())
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quantile = |quantile| self.wake_up.value_at_quantile(quantile) as f64 / 1e3;
        writeln!(
            f,
            "eventfd to a thread asleep on the other CPU: {:.2} us (p99 {:.2} us); the write takes its writer {:.2} \
             us, and {:.2} us where no thread sleeps",
            quantile(0.5),
            quantile(0.99),
            self.signal / 1e3,
            self.signal_unheard / 1e3
        )?;
        let mut table = Table::new(["case", "subject", "latency above polling>", "interrupts per request>"]);
        for (measurement, cost) in self.costs() {
            table.row(vec![
                measurement.case.to_string(),
                measurement.subject.clone(),
                format!("{:.2} us", cost / 1e3),
                format!("{:.4}", measurement.work.interrupts_per_request()),
            ]);
        }
        write!(f, "\n{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_is_heard_once() {
        let allowed = softdpu_sys::affinity::allowed();
        let (from, to) = (allowed[0], *allowed.get(1).unwrap_or(&allowed[0]));
        if from == to {
            // The writer would wait for a sleeper that it keeps from running.
            return softdpu_testing::skip("signals between CPUs", "they need two");
        }
        let (latency, cost) = signals(from, to, Duration::from_millis(50)).unwrap();
        assert!(latency.len() > 1 && latency.min() > 0 && cost > 0.0, "{} signals", latency.len());
    }
}
