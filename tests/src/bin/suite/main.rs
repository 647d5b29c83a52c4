//! Runs the end-to-end test programs, several beside each other: most of their time they wait, for guests that boot and
//! for transfers that have to last a while.
//!
//! Some programs compare times, or keep both of a small machine's CPUs busy; they are named with `--alone` and run one
//! by one. A test that fails is run once more with nothing beside it, to tell whether what ran beside it is part of the
//! cause. It has failed all the same.

#![forbid(unsafe_code)]

mod program;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Parser;
use softdpu_tests::Failure;

use crate::program::{Outcome, Program};

/// Runs test programs beside each other, prints what each printed, and ends with 0 only if all of their tests passed.
#[derive(Parser)]
struct Options {
    /// How many run beside each other
    #[arg(long, default_value_t = 3)]
    lanes: usize,
    /// Programs that have the machine to themselves, by the names of their test files
    #[arg(long, value_delimiter = ',')]
    alone: Vec<String>,
    /// The longest that a program may take, seconds
    #[arg(long, default_value_t = 1200)]
    deadline: u64,
    /// Where to write what the programs print, one file each
    #[arg(long)]
    logs: PathBuf,
    /// The package's folder, in which the programs run, as under cargo
    #[arg(long)]
    folder: PathBuf,
    /// Test programs, as `cargo test --no-run` names them; those that take longest first
    #[arg(required = true)]
    programs: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("suite: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<bool, Failure> {
    let deadline = Duration::from_secs(options.deadline);
    let programs: Result<Vec<Program>, Failure> =
        options.programs.iter().map(|path| Program::new(path, &options.folder, &options.logs, deadline)).collect();
    let (alone, beside): (Vec<Program>, Vec<Program>) =
        programs?.into_iter().partition(|program| options.alone.contains(&program.name));
    if let Some(unknown) = options.alone.iter().find(|name| !alone.iter().any(|program| program.name == **name)) {
        return Err(Failure::new(format!("--alone {unknown}: there is no such test program among those given")));
    }
    let start = Instant::now();
    let mut outcomes = in_lanes(beside, options.lanes)?;
    outcomes.extend(in_lanes(alone, 1)?);
    let verdict = report::print(outcomes, start.elapsed())?;
    Ok(verdict)
}

/// Runs `programs` so that `lanes` of them are under way; prints what each printed when it has ended.
fn in_lanes(programs: Vec<Program>, lanes: usize) -> Result<Vec<Outcome>, Failure> {
    let waiting = Mutex::new(programs.into_iter());
    let done = Mutex::new(Vec::new());
    let next = || waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes.max(1))
            .map(|_| {
                scope.spawn(|| -> Result<(), Failure> {
                    while let Some(program) = next() {
                        let outcome = program.run()?;
                        let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        report::print_program(&outcome)?;
                        done.push(outcome);
                    }
                    Ok(())
                })
            })
            .collect();
        lanes.into_iter().try_for_each(|lane| lane.join().map_err(|_| Failure::new("a lane panicked"))?)
    })?;
    Ok(done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}
