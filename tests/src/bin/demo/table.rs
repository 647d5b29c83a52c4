//! The demonstration's table.

use std::time::{Duration, Instant};

use softdpu_tests::{Failure, Guest, Report};

use crate::DEADLINE;

/// Characters of the lines above and below the table.
const LINE: usize = 96;

/// What was done, how it ended and how long it took: rows are printed as they come, and counted.
#[derive(Default)]
pub struct Table {
    ok: u32,
    failed: u32,
    skipped: u32,
}

enum Outcome {
    Ok,
    Failed,
    Skipped,
}

impl Table {
    /// Something that the host does. A failure is a row too.
    pub fn row<T>(&mut self, what: &str, work: impl FnOnce() -> Result<(T, String), Failure>) -> Result<T, Failure> {
        let start = Instant::now();
        let result = work();
        match result {
            Ok((value, note)) => {
                self.push(what, Outcome::Ok, start.elapsed(), &note);
                Ok(value)
            }
            Err(error) => {
                self.push(what, Outcome::Failed, start.elapsed(), "");
                Err(error)
            }
        }
    }

    /// Waits for a step of the guest.
    pub fn step(&mut self, guest: &mut Guest, step: &str, what: &str) -> Result<Report, Failure> {
        let start = Instant::now();
        match guest.step(step, DEADLINE) {
            Ok(report) => {
                let notes = report.fields.iter().filter(|(key, _)| *key != "ms");
                let notes: Vec<String> = notes.map(|(key, value)| format!("{key}={value}")).collect();
                self.guest(what, &report, &notes.join(" "))?;
                Ok(report)
            }
            Err(error) => {
                self.push(what, Outcome::Failed, start.elapsed(), "");
                Err(error)
            }
        }
    }

    /// A step that the guest reported, by the guest's clock.
    fn guest(&mut self, what: &str, report: &Report, note: &str) -> Result<(), Failure> {
        self.push(what, Outcome::Ok, Duration::from_millis(report.get("ms")?), note);
        Ok(())
    }

    pub fn skipped(&mut self, what: &str, why: &str) {
        self.push(what, Outcome::Skipped, Duration::ZERO, why);
    }

    fn push(&mut self, what: &str, outcome: Outcome, time: Duration, note: &str) {
        let (word, count) = match outcome {
            Outcome::Ok => ("ok", &mut self.ok),
            Outcome::Failed => ("FAILED", &mut self.failed),
            Outcome::Skipped => ("skipped", &mut self.skipped),
        };
        *count += 1;
        println!("  {what:<48} {word:<7} {:>6.2} s  {note}", time.as_secs_f64());
    }

    pub fn print_head(&self) {
        println!("  {:<48} {:<7} {:>8}  note\n  {}", "step", "result", "time", "-".repeat(LINE));
    }

    pub fn print_sum(&self, total: Duration) {
        let Table { ok, failed, skipped } = self;
        println!(
            "  {}\n  {ok} ok, {failed} failed, {skipped} skipped in {:.1} s",
            "-".repeat(LINE),
            total.as_secs_f64()
        );
    }
}
