//! lab/setup.d/rust.sh: a Rust that is too old is found before anything is downloaded.

#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs `script` in bash after what lab/setup.sh sources before it, with `cargo` as the one to ask.
fn bash(script: &str, cargo: &Path) -> Output {
    let prologue = "set -euo pipefail; ROOT=$1; . $ROOT/lab/setup.d/common.sh; . $ROOT/lab/setup.d/rust.sh;";
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{prologue} {script}"), "bash"]).arg(repository()).env("CARGO", cargo);
    command.output().unwrap_or_else(|error| panic!("bash: {error}"))
}

#[test]
fn versions_are_compared_by_number_and_what_is_no_version_is_too_old() {
    let at_least = |have: &str, want: &str| {
        bash(&format!("version_at_least '{have}' '{want}'"), Path::new("/none")).status.success()
    };
    for have in ["1.88.0", "1.88", "1.100.0", "1.95.0-nightly", "2.0.0"] {
        assert!(at_least(have, "1.88"), "{have}");
    }
    for have in ["0.66.0", "1.87.9", "1.9.0", "", "1", "unknown", "1.x.0"] {
        assert!(!at_least(have, "1.88"), "{have}");
    }
}

#[test]
fn an_old_or_missing_cargo_ends_the_setup_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let cargo = folder.path().join("cargo");
    let says = |version: &str| {
        let source = folder.path().join("source");
        std::fs::write(&source, format!("#!/bin/sh\necho '{version}'\n")).unwrap();
        // By a process of its own: a file that this one has open for writing, or a process that it is about to start,
        // cannot be executed.
        let installed = Command::new("install").args(["-m", "755"]).args([&source, &cargo]).status().unwrap();
        assert!(installed.success());
        let output = bash("check_rust", &cargo);
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let manifest = std::fs::read_to_string(repository().join("Cargo.toml")).unwrap();
    let wanted = manifest.split("rust-version = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();

    let (ok, words) = says("cargo 0.66.0");
    assert!(!ok && words.contains("is 0.66.0, which is too old"), "{words}");
    assert!(words.contains(&format!("needs Rust {wanted} or later: install rustup (https://rustup.rs)")), "{words}");
    let (ok, words) = says(&format!("cargo {wanted}.0 (f2d3ce0bd 2026-03-21)"));
    assert!(ok, "{words}");
    std::fs::remove_file(&cargo).unwrap();
    let missing = bash("check_rust", &cargo);
    let words = String::from_utf8_lossy(&missing.stderr);
    assert!(!missing.status.success() && words.contains("no cargo here") && words.contains("rustup"), "{words}");
}
