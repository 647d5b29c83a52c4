//! Which crate may use which: the table in `docs/architecture.md`, held to what `cargo metadata` says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const PREFIX: &str = "softdpu-";

/// What any crate's tests may use beside what the crate itself may use.
const TEST_SUPPORT: [&str; 2] = ["frontend", "testing"];

type Uses = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The packages of the workspace, without the crates of others.
fn packages() -> Vec<Value> {
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn short(package: &str) -> String {
    package.strip_prefix(PREFIX).unwrap_or(package).to_owned()
}

/// What each crate depends on: `kind` is null for what it is built with, `dev` for what its tests are.
fn uses(packages: &[Value], kind: &Value) -> Uses {
    let of = |package: &Value| {
        let all = package["dependencies"].as_array().unwrap();
        let ours = all.iter().filter(|dependency| dependency["kind"] == *kind && dependency["path"].is_string());
        ours.map(|dependency| short(dependency["name"].as_str().unwrap())).collect()
    };
    packages.iter().map(|package| (short(package["name"].as_str().unwrap()), of(package))).collect()
}

/// The rows of the table under `## Crates`.
fn documented() -> Uses {
    let page = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let section = page.split("\n## Crates\n").nth(1).expect("docs/architecture.md has a section `## Crates`");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, owns, used] = cells[..] else { panic!("a row is `| crate | owns | may use |`: {row}") };
        assert!(!owns.is_empty(), "what does it own? {row}");
        let used = used.split(',').map(str::trim).filter(|name| *name != "-").map(str::to_owned).collect();
        (name.trim_matches('`').to_owned(), used)
    })
    .collect()
}

/// What a crate is built with, directly or not.
fn reached(uses: &Uses, from: &str) -> BTreeSet<String> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(name) = left.pop() {
        for next in uses.get(&name).into_iter().flatten() {
            if reached.insert(next.clone()) {
                left.push(next.clone());
            }
        }
    }
    reached
}

#[test]
fn each_crate_uses_what_the_table_says_and_nothing_else() {
    let (table, found) = (documented(), uses(&packages(), &Value::Null));
    let mut wrong = Vec::new();
    for (name, used) in &found {
        let list = |names: &BTreeSet<String>| match names.len() {
            0 => "-".to_owned(),
            _ => names.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
        };
        match table.get(name) {
            Some(allowed) if allowed == used => {}
            Some(allowed) => wrong.push(format!(
                "`{name}`: the table has \"{}\", its Cargo.toml \"{}\"; if each new arrow points down, write the latter",
                list(allowed),
                list(used)
            )),
            None => {
                wrong.push(format!("`{name}` has no row; add `| `{name}` | WHAT IT OWNS | {} |`", list(used)));
            }
        }
    }
    let gone = table.keys().filter(|name| !found.contains_key(*name));
    wrong.extend(gone.map(|name| format!("`{name}` has a row and is no crate; remove the row")));
    assert!(wrong.is_empty(), "docs/architecture.md, the table in `## Crates`:\n{}", wrong.join("\n"));
}

#[test]
fn tests_use_no_more_than_their_crate_and_what_is_there_for_tests() {
    let packages = packages();
    let (table, tests) = (documented(), uses(&packages, &Value::from("dev")));
    for (name, used) in tests.iter().filter(|(name, _)| *name != "tests") {
        let mut allowed = reached(&table, name);
        allowed.extend(TEST_SUPPORT.map(str::to_owned));
        // A leaf draws nothing in.
        allowed.extend(table.iter().filter(|(_, used)| used.is_empty()).map(|(leaf, _)| leaf.clone()));
        let more: Vec<&String> = used.difference(&allowed).collect();
        assert!(
            more.is_empty(),
            "tests of {name} use {more:?}: what several crates' tests share belongs into `testing`"
        );
    }
}

#[test]
fn no_arrow_turns_back() {
    let found = uses(&packages(), &Value::Null);
    for name in found.keys() {
        assert!(!reached(&found, name).contains(name), "{name} uses itself");
    }
}

#[test]
fn the_supervisor_is_small_and_policies_are_pure() {
    let packages = packages();
    let found = uses(&packages, &Value::Null);
    let supervisor = reached(&found, "supervisor");
    for engine in ["engine", "dataplane", "storage", "device", "ring", "memory", "transport", "accel"] {
        assert!(!supervisor.contains(engine), "the supervisor is linked with {engine}");
    }
    for (crates, user) in [("ratatui", "softdpu"), ("io-uring", "sys"), ("axum", "supervisor")] {
        let has = |package: &&Value| {
            let all = package["dependencies"].as_array().unwrap();
            all.iter().any(|dependency| dependency["name"] == crates && dependency["kind"].is_null())
        };
        let users: Vec<String> =
            packages.iter().filter(has).map(|package| short(package["name"].as_str().unwrap())).collect();
        assert_eq!(users, [user], "crates that use {crates}");
    }
    let sched = packages.iter().find(|package| package["name"] == "softdpu-sched").unwrap();
    let built_with: Vec<&Value> =
        sched["dependencies"].as_array().unwrap().iter().filter(|dependency| dependency["kind"].is_null()).collect();
    assert!(built_with.is_empty(), "sched is std only: {built_with:?}");
}
