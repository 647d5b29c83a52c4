//! SECURITY.md names a test for each line of its tables, and the packaged unit has the exposure that it says.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn text(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// What is between backticks in a cell.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn each_line_of_securitys_tables_has_a_test_that_exists() {
    let security = text("SECURITY.md");
    let mut lines = 0;
    for row in security.lines().filter(|line| line.starts_with("| ") && line.matches(" | ").count() == 3) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        if cells[3].trim() == "test" {
            continue;
        }
        let names = quoted(cells[3]);
        let [file, tests @ ..] = names.as_slice() else { panic!("no test is named: {row}") };
        let code = text(file);
        assert!(!tests.is_empty(), "no test of {file} is named: {row}");
        for test in tests {
            let is_there = code.contains(&format!("fn {test}(")) || code.contains(&format!("\"{test}\""));
            assert!(is_there, "{file} has no test `{test}`: {row}");
        }
        lines += 1;
    }
    assert!(lines > 15, "the tables were not found: {lines} lines");
}

/// The exposure that systemd gives a unit, in tenths.
fn exposure(unit: &Path) -> Option<u32> {
    let output = Command::new("systemd-analyze").args(["security", "--offline=true"]).arg(unit).output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, level) = said.split_once("Overall exposure level")?;
    let level = level.split_once(": ")?.1.split_whitespace().next()?;
    level.replace('.', "").parse().ok()
}

#[test]
fn the_packaged_units_exposure_is_low_also_with_networks() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("softdpu.service");
    let packaged = root().join("packaging/systemd/softdpu.service");
    std::fs::copy(&packaged, &unit).unwrap();
    let Some(alone) = exposure(&unit) else {
        return softdpu_testing::skip("the unit's exposure", "there is no systemd-analyze with --offline");
    };
    assert!(alone < 25, "{alone} tenths");
    // The drop-in for networks lies beside it.
    let networks = exposure(&packaged).unwrap();
    assert!(networks <= 25, "with networks: {networks} tenths");
}
