//! Writes the tables of figures in README.md and docs/ from the raw results in docs/results: `make figures`.
//!
//! ```text
//! figures                          write the tables
//! figures --from FOLDER RUN...     first renew docs/results/RUN.jsonl with the results in FOLDER
//! ```

use std::path::Path;
use std::process::ExitCode;

use softdpu_bench::figures::{Figures, FiguresError, write};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (from, runs) = match &arguments[..] {
        [] => (None, &[][..]),
        [flag, folder, runs @ ..] if flag == "--from" && !runs.is_empty() => (Some(folder.as_str()), runs),
        _ => {
            eprintln!("usage: figures [--from FOLDER RUN...]");
            return ExitCode::from(2);
        }
    };
    match run(Path::new("."), from.map(Path::new), runs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("figures: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(root: &Path, from: Option<&Path>, runs: &[String]) -> Result<(), FiguresError> {
    let mut figures = Figures::read(root)?;
    if let Some(from) = from {
        for told in figures.renew(root, from, runs)? {
            println!("{told}");
        }
    }
    for (path, is, should) in figures.pages(root)? {
        if is != should {
            write(&path, &should)?;
            println!("{}: written", path.display());
        }
    }
    Ok(())
}
