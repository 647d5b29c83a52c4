//! The modules of the crate are a line: each uses only those below it in the picture at the top of `src/lib.rs`.
//!
//! Code that is compiled for tests alone may use any.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Words and punctuation of a source file, without comments, literals and what is compiled for tests alone.
fn tokens(source: &str) -> Vec<String> {
    without_tests(words(source))
}

fn words(source: &str) -> Vec<String> {
    let text: Vec<char> = source.chars().collect();
    let at = |index: usize| text.get(index).copied().unwrap_or_default();
    let (mut words, mut index) = (Vec::new(), 0);
    while index < text.len() {
        match at(index) {
            '/' if at(index + 1) == '/' => index += text[index..].iter().take_while(|c| **c != '\n').count(),
            '"' => {
                index += 1;
                while index < text.len() && at(index) != '"' {
                    index += if at(index) == '\\' { 2 } else { 1 };
                }
                index += 1;
            }
            // A character, or else a lifetime, with a name that is a word as any other.
            '\'' if at(index + 1) == '\\' => index += 2 + text[index + 2..].iter().take_while(|c| **c != '\'').count(),
            '\'' if at(index + 2) == '\'' => index += 3,
            ':' if at(index + 1) == ':' => {
                words.push("::".to_owned());
                index += 2;
            }
            c if c.is_alphanumeric() || c == '_' => {
                let word: String = text[index..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
                index += word.chars().count();
                words.push(word);
            }
            c => {
                if !c.is_whitespace() {
                    words.push(c.to_string());
                }
                index += 1;
            }
        }
    }
    words
}

fn without_tests(words: Vec<String>) -> Vec<String> {
    const ATTRIBUTE: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut index) = (Vec::new(), 0);
    while index < words.len() {
        if !words[index..].iter().map(String::as_str).take(ATTRIBUTE.len()).eq(ATTRIBUTE) {
            kept.push(words[index].clone());
            index += 1;
            continue;
        }
        // The item, or the field: up to its semicolon or comma, or the brace that closes it.
        let mut depth = 0;
        for word in &words[index + ATTRIBUTE.len()..] {
            index += 1;
            match word.as_str() {
                "{" | "(" | "[" | "<" => depth += 1,
                ")" | "]" | ">" => depth -= 1,
                "}" => {
                    depth -= 1;
                    if depth == 0 {
                        break;
                    }
                }
                ";" | "," if depth == 0 => break,
                _ => {}
            }
        }
        index += ATTRIBUTE.len();
    }
    kept
}

/// The modules that a file declares, of which the bodies are in other files.
fn declared(words: &[String]) -> impl Iterator<Item = &str> {
    words.windows(3).filter(|three| three[0] == "mod" && three[2] == ";").map(|three| three[1].as_str())
}

/// The first words of a path's tail: one, or one for each branch of `{…}`.
fn heads(words: &[String]) -> Vec<&str> {
    match words.first().map(String::as_str) {
        Some("{") => {
            let (mut depth, mut heads) = (0, Vec::new());
            for pair in words.windows(2) {
                let is_open = ["{", ","].contains(&pair[0].as_str());
                depth += i32::from(pair[0] == "{") - i32::from(pair[0] == "}");
                if depth == 0 {
                    break;
                }
                if depth == 1 && is_open && pair[1] != "}" {
                    heads.push(pair[1].as_str());
                }
            }
            heads
        }
        Some(head) => vec![head],
        None => Vec::new(),
    }
}

/// What the code of a module, `depth` levels below the crate's root, names by a path from that root.
fn named_from_root(words: &[String], depth: usize) -> BTreeSet<&str> {
    let mut named = BTreeSet::new();
    let mut index = 0;
    while index < words.len() {
        let supers = words[index..].chunks(2).take_while(|two| two[0] == "super").count();
        let behind = match words[index].as_str() {
            "crate" => 1,
            "super" if supers == depth => 2 * supers - 1,
            _ => {
                index += 1 + supers;
                continue;
            }
        };
        index += behind;
        if words.get(index).is_some_and(|word| word == "::") {
            named.extend(heads(&words[index + 1..]));
        }
    }
    named
}

/// All that the modules below `module`, and itself, name from the root.
fn uses(file: &Path, folder: &Path, depth: usize, named: &mut BTreeSet<String>) {
    let source = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let words = tokens(&source);
    named.extend(named_from_root(&words, depth).into_iter().map(str::to_owned));
    for child in declared(&words) {
        let file = file_of(folder, child);
        uses(&file, &folder.join(child), depth + 1, named);
    }
}

fn file_of(folder: &Path, module: &str) -> PathBuf {
    let flat = folder.join(format!("{module}.rs"));
    if flat.exists() { flat } else { folder.join(module).join("mod.rs") }
}

/// Each module's rank in the picture, the uppermost 0.
fn ranks(source: &str) -> BTreeMap<&str, usize> {
    let picture = source.split("//! # Modules").nth(1).and_then(|rest| rest.split("```").nth(1)).expect("a picture");
    let rows = picture.lines().filter_map(|line| line.strip_prefix("//!  ")).filter(|row| !row.trim().is_empty());
    rows.enumerate()
        .flat_map(|(rank, row)| {
            let names = row.trim_start().split("  ").next().unwrap_or_default();
            names.split(", ").map(move |name| (name, rank))
        })
        .collect()
}

#[test]
fn each_module_uses_only_those_below_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let root = fs::read_to_string(folder.join("lib.rs")).expect("the crate's root");
    let ranks = ranks(&root);
    let words = tokens(&root);
    let modules: BTreeSet<&str> = declared(&words).collect();
    assert_eq!(modules, ranks.keys().copied().collect(), "the picture in lib.rs has each module, and no other");
    let mut wrong = Vec::new();
    for module in &modules {
        let mut named = BTreeSet::new();
        uses(&file_of(&folder, module), &folder.join(module), 1, &mut named);
        for other in named.iter().map(String::as_str).filter(|other| other != module) {
            match ranks.get(other) {
                Some(below) if *below > ranks[module] => {}
                Some(_) => wrong.push(format!("{module} uses {other}, which is not below it")),
                None => wrong.push(format!("{module} names {other} by the crate's root: name the module that has it")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn paths_are_found_however_they_are_written() {
    let source = r#"
        //! Not [`this`](crate::comment).
        use crate::one::Thing;
        use crate::{two, three::{Four, five::Six}};
        fn text() -> (char, &'static str) { ('"', "crate::literal") }
        fn call<'a>(x: &'a crate::seven::Type) { super::super::eight(); super::sibling(); super::super::super::x(); }
        #[cfg(test)]
        mod tests { use crate::nine; }
        #[cfg(test)]
        mod other;
        mod child;
    "#;
    let words = tokens(source);
    let expected = ["eight", "one", "seven", "three", "two"];
    assert_eq!(named_from_root(&words, 2).into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(declared(&words).collect::<Vec<_>>(), ["child"]);
}
