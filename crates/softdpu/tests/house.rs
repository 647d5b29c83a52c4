//! What keeps the repository easy to read: files of one subject, comments within the columns, pages that lead where
//! they say.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The most lines of a file of code.
const MOST_LINES: usize = 700;

/// The most columns of a comment, as `rustfmt.toml` has for code.
const MOST_COLUMNS: usize = 120;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files of the repository that end so: those that git tracks, or, where this is no checkout, all.
fn files(suffix: &str) -> Vec<String> {
    let tracked = Command::new("git").args(["ls-files", "-co", "--exclude-standard"]).current_dir(root()).output();
    let listed = match tracked {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout).unwrap(),
        _ => {
            let find = ["-c", "find . -type f -not -path './target/*' -not -path './.cache/*' | sed 's,^./,,'"];
            String::from_utf8(Command::new("sh").args(find).current_dir(root()).output().unwrap().stdout).unwrap()
        }
    };
    let files: Vec<String> = listed.lines().filter(|file| file.ends_with(suffix)).map(str::to_owned).collect();
    assert!(files.len() > 5, "only {files:?} end with {suffix}");
    files.into_iter().filter(|file| root().join(file).exists()).collect()
}

fn text(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn no_file_of_code_is_longer_than_a_mind_holds() {
    let long = files(".rs").into_iter().map(|file| (text(&file).lines().count(), file));
    let long: Vec<_> = long.filter(|(lines, _)| *lines > MOST_LINES).collect();
    assert!(long.is_empty(), "split these files of more than {MOST_LINES} lines by subject: {long:?}");
}

#[test]
fn comments_fit_the_columns_that_code_has() {
    let mut long = Vec::new();
    for file in files(".rs") {
        let text = text(&file);
        let lines = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
        let lines = lines.filter(|(_, line)| line.chars().count() > MOST_COLUMNS);
        long.extend(lines.map(|(number, _)| format!("{file}:{}", number + 1)));
    }
    assert!(long.is_empty(), "wrap these comments at {MOST_COLUMNS} columns: {long:#?}");
}

/// What is in the round brackets of Markdown links, outside of code.
fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(page) {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else { break };
            found.push(target.to_owned());
            rest = after;
        }
    }
    found
}

/// The lines of a page that are in no fenced block.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in prose(page).filter(|line| line.starts_with('#')) {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
        let anchor: String = kept.map(|char| if char == ' ' { '-' } else { char }).collect();
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    let written = page.split("<a id=\"").skip(1).filter_map(|rest| rest.split_once('"'));
    anchors.extend(written.map(|(anchor, _)| anchor.to_owned()));
    anchors
}

#[test]
fn links_of_pages_lead_somewhere() {
    let mut broken = Vec::new();
    for page in files(".md") {
        for link in links(&text(&page)).into_iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
        {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = root().join(&page).parent().unwrap().to_owned();
            let target = if path.is_empty() { root().join(&page) } else { folder.join(path) };
            let has_anchor = || anchors(&std::fs::read_to_string(&target).unwrap_or_default()).contains(anchor);
            if !target.exists() || !anchor.is_empty() && !has_anchor() {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "these links lead nowhere: {broken:#?}");
}

/// Words in backticks that are paths of the repository: they begin with one of its folders.
fn paths(page: &str) -> Vec<String> {
    const FOLDERS: [&str; 6] = ["crates/", "docs/", "lab/", "tests/", "packaging/", "fuzz/"];
    let quoted = page.split('`').skip(1).step_by(2);
    let words = quoted.filter(|word| FOLDERS.iter().any(|folder| word.starts_with(folder)));
    // A pattern stands for several files, a line number for a place in one.
    let words = words.filter(|word| !word.contains(['*', ' ', '<', '{', '…']));
    words.map(|word| word.split(':').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn paths_that_pages_name_exist() {
    let mut missing = Vec::new();
    for page in files(".md") {
        let gone = paths(&text(&page)).into_iter().filter(|path| !root().join(path).exists());
        missing.extend(gone.map(|path| format!("{page}: {path}")));
    }
    assert!(missing.is_empty(), "these paths do not exist: {missing:#?}");
}

#[test]
fn targets_of_make_that_pages_name_exist() {
    let makefile = text("Makefile");
    let targets: BTreeSet<&str> = makefile.lines().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    let mut missing = Vec::new();
    for page in files(".md") {
        let text = text(&page);
        let named = text.split('`').filter_map(|word| word.strip_prefix("make ")?.split_whitespace().next());
        let gone = named.filter(|target| target.chars().all(char::is_alphanumeric) && !targets.contains(target));
        missing.extend(gone.map(|target| format!("{page}: make {target}")));
    }
    assert!(missing.is_empty(), "the Makefile has none of these: {missing:#?}");
}
