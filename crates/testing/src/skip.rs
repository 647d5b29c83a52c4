//! Tests that cannot run on this machine.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Reports that `test` was skipped, and why. The line goes to standard error around the test runner's capture, and into
/// the file that `SOFTDPU_SKIPS` names, which `make test` counts.
///
/// # Panics
/// Where that file cannot be written: a skip that is not counted would be a silent one.
pub fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED {test}: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("SOFTDPU_SKIPS") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", Path::new(&path).display()));
    }
}
