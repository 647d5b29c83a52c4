//! `docs/configuration.md` is held to what the reader does: every key documented exists and the reverse, every example is
//! a valid site.

use std::collections::BTreeMap;
use std::path::Path;

use softdpu_control::config::{parse, schema};

fn reference() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The keys documented under each heading that has a table of keys.
fn documented(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut sections: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut title, mut in_keys) = (String::new(), false);
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")) {
            title = heading.trim_matches('`').to_owned();
        }
        if line.starts_with("| key | type | default | meaning |") {
            in_keys = true;
        } else if !line.starts_with('|') {
            in_keys = false;
        }
        if let Some((key, _)) = line.strip_prefix("| `").and_then(|row| row.split_once("` |"))
            && in_keys
        {
            sections.entry(title.clone()).or_default().push(key.to_owned());
        }
    }
    sections
}

#[test]
fn every_key_is_documented_and_every_documented_key_exists() {
    let expected: BTreeMap<String, Vec<String>> = schema::SECTIONS
        .iter()
        .map(|section| {
            let title = if section.title == schema::ROOT.title { "The file" } else { section.title };
            (title.to_owned(), section.keys.iter().map(|key| (*key).to_owned()).collect())
        })
        .collect();
    assert_eq!(documented(&reference()), expected);
}

#[test]
fn every_row_says_type_default_and_meaning() {
    let text = reference();
    for row in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert!(cells.len() >= 4 && cells.iter().all(|cell| !cell.is_empty()), "{row}");
    }
}

#[test]
fn every_example_is_a_valid_site() {
    let text = reference();
    let examples: Vec<&str> =
        text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    assert!(examples.len() >= 8, "{} examples", examples.len());
    for example in examples {
        let loaded = parse(example, "example.toml", Path::new("/srv/site"), None);
        assert!(loaded.site.is_some() && loaded.report.diagnostics.is_empty(), "{example}\n{}", loaded.report);
    }
}

#[test]
fn the_documented_message_is_the_one_that_is_printed() {
    let text = reference();
    let shown = text.split("$ softdpu check site.toml\n").nth(1).unwrap().split("```").next().unwrap();
    let site = "[[volume]]\nname = \"scratch\"\nmemory = { size = \"64\" }\n";
    assert_eq!(parse(site, "site.toml", Path::new("/srv/site"), None).report.to_string(), shown);
}
