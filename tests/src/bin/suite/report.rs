//! What is printed, and the diagnosis of what failed.

use std::time::Duration;

use softdpu_tests::Failure;

use crate::program::{Outcome, Program, read};

/// How many of the longest programs are listed.
const LONGEST: usize = 8;

/// What a program printed, under a line with its name.
pub fn print_program(outcome: &Outcome) -> Result<(), Failure> {
    let verdict = if outcome.passed { "passed" } else { "failed" };
    println!("\n== {} {verdict}, {:.0} s", outcome.program.name, outcome.time.as_secs_f64());
    print!("{}", read(&outcome.log)?);
    Ok(())
}

/// Runs what failed again, with nothing beside it, and prints what that tells. Gives whether everything passed in the
/// first place. `alone: PROGRAM TEST` stands for each test that passes by itself, where lab/test.sh lists them.
pub fn print(outcomes: Vec<Outcome>, time: Duration) -> Result<bool, Failure> {
    for outcome in outcomes.iter().filter(|outcome| !outcome.passed) {
        if outcome.failed.is_empty() {
            // As the harness prints it, so that lab/test.sh counts it.
            println!(
                "\n{} ended before it could say what failed\ntest result: FAILED. 0 passed; 1 failed; 0 ignored;",
                outcome.program.name
            );
        }
        for test in &outcome.failed {
            diagnose(&outcome.program, test)?;
        }
    }
    let mut longest: Vec<&Outcome> = outcomes.iter().collect();
    longest.sort_by_key(|outcome| std::cmp::Reverse(outcome.time));
    let longest: Vec<String> = longest
        .iter()
        .take(LONGEST)
        .map(|outcome| format!("{} {:.0} s", outcome.program.name, outcome.time.as_secs_f64()))
        .collect();
    println!("\n{} programs in {:.0} s; the longest: {}", outcomes.len(), time.as_secs_f64(), longest.join(", "));
    Ok(outcomes.iter().all(|outcome| outcome.passed))
}

fn diagnose(program: &Program, test: &str) -> Result<(), Failure> {
    let (passed, log) = program.alone(test)?;
    if passed {
        println!(
            "\nalone: {} {test}: failed beside others, passed alone: a test to mend, or a fault that shows now and then",
            program.name
        );
    } else {
        println!("\n{} {test} failed alone, too:", program.name);
        // Indented, as lab/test.sh has counted this test's result.
        read(&log)?.lines().for_each(|line| println!("    {line}"));
    }
    Ok(())
}
